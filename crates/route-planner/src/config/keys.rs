//! The table of all keys of the plugin block, and the reader that accepts only these keys. `cargo xtask docs` generates the
//! reference in `docs/configuration.md` from the same table.

use std::ops::Deref;

use serde_json::Value;
use strict_json::Problem;

use crate::error::ConfigProblem;

/// A key of the plugin block, or of an object in it.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// The key as written.
    pub name: &'static str,
    /// The form of its value.
    pub value: Shape,
    /// The default, as a text for the reference.
    pub default: &'static str,
    /// Its description: one line of Markdown.
    pub about: &'static str,
}

/// The form of a value.
#[derive(Debug, PartialEq, Eq)]
pub enum Shape {
    /// The name of a Kubernetes object.
    Name,
    /// A list of such names.
    Names,
    /// Any text.
    Text,
    /// A list of texts.
    Texts,
    /// The key or the value of a label.
    Label,
    /// A list of such texts.
    Labels,
    /// Labels with their values.
    LabelMap,
    /// 1 to 65535.
    Port,
    /// A duration in Go's form: `90s`, `1m30s`.
    Duration,
    /// One of these words. If the key has a default, it is the first.
    OneOf(&'static [&'static str]),
    /// An object with these keys.
    Object(&'static [Key]),
    /// A list of such objects.
    Objects(&'static [Key]),
}

/// The plugin block.
pub const BLOCK: &[Key] = &[
    key(
        "routeTableSelector",
        Shape::Object(&[
            key("name", Shape::Name, "", "the table with this name"),
            key("names", Shape::Names, "", "the tables with these names"),
            key(
                "labels",
                Shape::LabelMap,
                "",
                "tables with all of these labels",
            ),
            key(
                "matchExpressions",
                Shape::Objects(&[
                    key("key", Shape::Label, "required", "the label"),
                    key(
                        "operator",
                        Shape::OneOf(&["In", "NotIn", "Exists", "DoesNotExist"]),
                        "required",
                        "as in a label selector of Kubernetes",
                    ),
                    key("values", Shape::Labels, "", "for `In` and `NotIn`"),
                ]),
                "",
                "tables whose labels match all of these",
            ),
            key(
                "namespace",
                Shape::Name,
                "the Rollout's, without `namespaces`",
                "the namespace of the tables; the flag `--allowed-route-table-namespaces` may restrict it",
            ),
            key(
                "namespaces",
                Shape::Names,
                "",
                "more namespaces of the tables",
            ),
        ]),
        "required",
        "selects the RouteTables, by at least one of `name`, `names`, `labels` and `matchExpressions`. Named tables must exist; \
         with names and labels, tables that match either are selected",
    ),
    key(
        "routeSelector",
        Shape::Object(&[
            key("name", Shape::Text, "", "the route with this name"),
            key("names", Shape::Texts, "", "the routes with these names"),
            key(
                "labels",
                Shape::LabelMap,
                "",
                "routes with all of these labels",
            ),
        ]),
        "all that forward to stable",
        "selects HTTP routes of these tables: routes with one of the names, and routes with all of the labels",
    ),
    key(
        "tcpRoutes",
        Shape::Objects(&[key(
            "port",
            Shape::Port,
            "required",
            "a port of the route's matchers",
        )]),
        "none",
        "selects TCP routes",
    ),
    key(
        "tlsRoutes",
        Shape::Objects(&[
            key(
                "sniHosts",
                Shape::Texts,
                "any",
                "all server names of one of the route's matchers, in any order",
            ),
            key("port", Shape::Port, "any", "the port of that matcher"),
        ]),
        "none",
        "selects TLS routes; each entry needs `sniHosts` or `port`",
    ),
    key(
        "stableDestination",
        Shape::Object(DESTINATION),
        "the Service `stableService`",
        "identifies the stable destination",
    ),
    key(
        "canaryDestination",
        Shape::Object(DESTINATION),
        "as stable, named `canaryService`",
        "identifies the canary destination; absent keys inherit from `stableDestination`, except `name` and `subset`",
    ),
    key(
        "subset",
        Shape::Object(&[
            key(
                "service",
                Shape::Name,
                "required",
                "the Service, which selects the pods of both versions",
            ),
            key(
                "label",
                Shape::Label,
                "`rollouts-pod-template-hash`",
                "the label of the pods whose value distinguishes the versions",
            ),
        ]),
        "none",
        "one Service for both versions, which are distinguished by the hash of their pods",
    ),
    key(
        "headerMatch",
        Shape::OneOf(&["any", "all"]),
        "`any`",
        "whether a request must meet one entry in the `match` of a header step, or all of them",
    ),
    key(
        "headerRoutePlacement",
        Shape::OneOf(&["beforeSource", "top"]),
        "`beforeSource`",
        "where header routes are inserted: each before the route that it copies, or before all routes. Mirror routes always precede the route that they copy, so with `top` header routes also precede mirror routes",
    ),
    key(
        "zeroWeight",
        Shape::OneOf(&["remove", "keep"]),
        "`remove`",
        "whether the owner's destinations without traffic are removed until the rollout ends, or stay with weight 0, which Gloo's reference takes for unset and refuses beside 100: `validate` warns",
    ),
    key(
        "verify",
        Shape::OneOf(&["auto", "weights", "accepted"]),
        "`auto`",
        "when a weight counts as set: if the table has it (`weights`), if Gloo has also accepted the table (`accepted`), or as \
         `accepted` if Gloo writes a status and as `weights` otherwise (`auto`)",
    ),
    key(
        "promotionGuard",
        Shape::Object(&[
            key(
                "settle",
                Shape::Duration,
                "`5s`",
                "how long traffic stays on the canary Service after all endpoints of the stable Service are new Pods, because the \
                 gateway receives endpoints later than the API server",
            ),
            key(
                "timeout",
                Shape::Duration,
                "`2m`",
                "after this time, half of the new Pods behind the stable Service are enough; with fewer, the promotion is still held \
                 and the plugin warns",
            ),
            key(
                "before",
                Shape::Duration,
                "`0s`",
                "how long the canary must have all traffic, accepted by Gloo, before the controller may promote it",
            ),
        ]),
        "",
        "how long a promotion waits for Pods, see [between the calls](between-the-calls.md#promotions-wait-for-pods); the \
         flag `--promotion-guard off` disables it for all Rollouts",
    ),
    key(
        "routeTableName",
        Shape::Name,
        "",
        "alias of `routeTableSelector.name`. This and the keys below are for blocks that were written for the first plugin",
    ),
    key(
        "routeTableNamespace",
        Shape::Name,
        "",
        "alias of `routeTableSelector.namespace`",
    ),
    key(
        "destinationKind",
        Shape::OneOf(KINDS),
        "",
        "alias of `stableDestination.kind`",
    ),
    key(
        "destinationNamespace",
        Shape::Name,
        "",
        "alias of `stableDestination.namespace`",
    ),
];

const DESTINATION: &[Key] = &[
    key("kind", Shape::OneOf(KINDS), "`SERVICE`", "its kind"),
    key("name", Shape::Name, "the Rollout's Service", "its name"),
    key(
        "namespace",
        Shape::Name,
        "the Rollout's",
        "its namespace; another than the Rollout's must be listed in the flag `--allowed-destination-namespaces`",
    ),
    key(
        "cluster",
        Shape::Name,
        "any",
        "its cluster, if a route forwards to several",
    ),
    key(
        "port",
        Shape::Object(&[
            key("number", Shape::Port, "", "its number"),
            key("name", Shape::Text, "", "or its name"),
        ]),
        "any",
        "its port; other ports do not match, and a canary that is inserted gets this port",
    ),
    key(
        "subset",
        Shape::LabelMap,
        "",
        "labels of its pods that distinguish it from the other version",
    ),
];

const KINDS: &[&str] = &["SERVICE", "VIRTUAL_DESTINATION", "EXTERNAL_SERVICE"];

const fn key(name: &'static str, value: Shape, default: &'static str, about: &'static str) -> Key {
    Key {
        name,
        value,
        default,
        about,
    }
}

/// An object of the plugin block. All its keys are in the table.
pub(super) struct Block<'a> {
    keys: strict_json::Block<'a>,
    known: &'static [Key],
}

/// Parses the JSON of a whole block.
pub(super) fn root(raw: &[u8]) -> Result<Value, ConfigProblem> {
    serde_json::from_slice(raw).map_err(|error| ConfigProblem::Json(error.to_string()))
}

impl<'a> Block<'a> {
    pub(super) fn root(value: &'a Value, known: &'static [Key]) -> Result<Self, Problem> {
        let keys = strict_json::Block::root(value, "the plugin block", &names(known));
        let keys = keys.map_err(translated)?;
        Ok(Self { keys, known })
    }

    /// The value of `key`, which must be one of the words in the table.
    pub(super) fn one_of(&self, key: &str) -> Result<Option<&'a str>, Problem> {
        let choices = match self.shape(key) {
            Some(Shape::OneOf(choices)) => *choices,
            _ => &[],
        };
        self.keys.one_of(key, choices)
    }

    /// The object under `key`; an empty one if it is absent.
    pub(super) fn block(&self, key: &str) -> Result<Self, Problem> {
        let known = self.known_in(key);
        let keys = self.keys.block(key, &names(known))?;
        Ok(Self { keys, known })
    }

    /// The objects in the list under `key`.
    pub(super) fn blocks(&self, key: &str) -> Result<Vec<Self>, Problem> {
        let known = self.known_in(key);
        let blocks = self.keys.blocks(key, &names(known))?.into_iter();
        Ok(blocks.map(|keys| Self { keys, known }).collect())
    }

    fn shape(&self, key: &str) -> Option<&'static Shape> {
        let known = self.known.iter().find(|known| known.name == key);
        known.map(|known| &known.value)
    }

    /// The keys that an object under `key` may have.
    fn known_in(&self, key: &str) -> &'static [Key] {
        match self.shape(key) {
            Some(Shape::Object(keys) | Shape::Objects(keys)) => keys,
            _ => &[],
        }
    }
}

impl<'a> Deref for Block<'a> {
    type Target = strict_json::Block<'a>;

    fn deref(&self) -> &Self::Target {
        &self.keys
    }
}

/// Keys of published variants of the plugin in Go, and the keys that mean the same.
const OF_VARIANTS: [(&str, &str); 2] = [
    ("canarySubsetSelector", "canaryDestination.subset"),
    ("stableSubsetSelector", "stableDestination.subset"),
];

fn translated(problem: Problem) -> Problem {
    match problem {
        Problem::UnknownKey { path, hint } => {
            let known = OF_VARIANTS.iter().find(|(variant, _)| *variant == path);
            let hint = known.map_or(hint, |(_, key)| format!(": set {key} instead"));
            Problem::UnknownKey { path, hint }
        }
        problem => problem,
    }
}

fn names(keys: &[Key]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}
