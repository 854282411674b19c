//! Every key of the plugin block: the parser takes names and choices from here, and the reference is written from it.

use std::ops::Deref;

use serde_json::Value;
use strict_json::Problem;

use crate::error::ConfigProblem;

/// A key of the plugin block, or of an object in it.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// The key as written.
    pub name: &'static str,
    /// What it may hold.
    pub value: Shape,
    /// The default, in words.
    pub default: &'static str,
    /// What it is for: Markdown, one line.
    pub about: &'static str,
}

/// What a key holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Shape {
    /// The name of a Kubernetes object.
    Name,
    /// Several of them.
    Names,
    /// Any text.
    Text,
    /// Several texts.
    Texts,
    /// The key or the value of a label.
    Label,
    /// Several of them.
    Labels,
    /// Labels with their values.
    LabelMap,
    /// 1 to 65535.
    Port,
    /// A span of time, as Go writes it: `90s`, `1m30s`.
    Duration,
    /// One of these words; the first is the default if there is one.
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
            key("name", Shape::Name, "", "the table of that name"),
            key("names", Shape::Names, "", "the tables of these names"),
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
                        "as in a selector of Kubernetes",
                    ),
                    key("values", Shape::Labels, "", "for `In` and `NotIn`"),
                ]),
                "",
                "tables whose labels meet all of these",
            ),
            key(
                "namespace",
                Shape::Name,
                "the Rollout's, without `namespaces`",
                "where to look for them; the flag `--allowed-route-table-namespaces` may restrict it",
            ),
            key("namespaces", Shape::Names, "", "further places to look"),
        ]),
        "required",
        "which RouteTables; at least one of `name`, `names`, `labels` and `matchExpressions`. Named tables must exist; \
         names and labels together select both",
    ),
    key(
        "routeSelector",
        Shape::Object(&[
            key("name", Shape::Text, "", "the route of that name"),
            key("names", Shape::Texts, "", "the routes of these names"),
            key(
                "labels",
                Shape::LabelMap,
                "",
                "routes with all of these labels",
            ),
        ]),
        "all that lead to stable",
        "which of their HTTP routes: those of one of the names, and those with all of the labels",
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
        "which TCP routes",
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
        "which TLS routes; each entry needs `sniHosts` or `port`",
    ),
    key(
        "stableDestination",
        Shape::Object(DESTINATION),
        "the Service `stableService`",
        "what counts as stable",
    ),
    key(
        "canaryDestination",
        Shape::Object(DESTINATION),
        "as stable, named `canaryService`",
        "what the canary is; what is left out is as for stable, except `name` and `subset`",
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
                "the pods' label that tells the versions apart",
            ),
        ]),
        "none",
        "one Service for both versions, told apart by the hash of their pods",
    ),
    key(
        "headerMatch",
        Shape::OneOf(&["any", "all"]),
        "`any`",
        "whether a request needs one of the entries in a header step's `match`, or all of them",
    ),
    key(
        "headerRoutePlacement",
        Shape::OneOf(&["beforeSource", "top"]),
        "`beforeSource`",
        "where header routes go: each before the route it is a copy of, or before all routes",
    ),
    key(
        "zeroWeight",
        Shape::OneOf(&["remove", "keep"]),
        "`remove`",
        "what becomes of the owner's destinations without traffic: they are taken out until the rollout ends, or stay \
         with weight 0",
    ),
    key(
        "verify",
        Shape::OneOf(&["auto", "weights", "accepted"]),
        "`auto`",
        "when a step is done: as soon as the table shows the weights (`weights`), when Gloo has accepted them too \
         (`accepted`), or that only if Gloo reports on the table (`auto`)",
    ),
    key(
        "promotionGuard",
        Shape::Object(&[
            key(
                "settle",
                Shape::Duration,
                "`5s`",
                "how long traffic stays on the canary Service after the stable Service leads to the new Pods only: the \
                 gateway hears of them later than the API server",
            ),
            key(
                "timeout",
                Shape::Duration,
                "`2m`",
                "after this time half of the new Pods behind the stable Service are enough; with fewer it holds on and \
                 warns",
            ),
            key(
                "before",
                Shape::Duration,
                "`0s`",
                "how long the canary has all traffic, as Gloo accepted it, before the controller may promote it",
            ),
        ]),
        "",
        "how long a promotion waits for Pods, see [between the calls](between-the-calls.md#promotions-wait-for-pods); the \
         flag `--promotion-guard off` ends it for all Rollouts",
    ),
    key(
        "routeTableName",
        Shape::Name,
        "",
        "as `routeTableSelector.name`; for blocks of the first plugin, as are these:",
    ),
    key(
        "routeTableNamespace",
        Shape::Name,
        "",
        "as `routeTableSelector.namespace`",
    ),
    key(
        "destinationKind",
        Shape::OneOf(KINDS),
        "",
        "as `stableDestination.kind`",
    ),
    key(
        "destinationNamespace",
        Shape::Name,
        "",
        "as `stableDestination.namespace`",
    ),
];

const DESTINATION: &[Key] = &[
    key("kind", Shape::OneOf(KINDS), "`SERVICE`", "what it is"),
    key("name", Shape::Name, "the Rollout's Service", "its name"),
    key(
        "namespace",
        Shape::Name,
        "the Rollout's",
        "another one must be listed by the flag `--allowed-destination-namespaces`",
    ),
    key(
        "cluster",
        Shape::Name,
        "any",
        "its cluster, where a route leads to several",
    ),
    key(
        "port",
        Shape::Object(&[
            key("number", Shape::Port, "", "its number"),
            key("name", Shape::Text, "", "or its name"),
        ]),
        "any",
        "only destinations with this port; for the canary, the port it gets",
    ),
    key(
        "subset",
        Shape::LabelMap,
        "",
        "labels of its pods, which tell it from the other version",
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

/// An object of the plugin block, whose keys are all in the table.
pub(super) struct Block<'a> {
    keys: strict_json::Block<'a>,
    known: &'static [Key],
}

/// Parses the text of a whole block.
pub(super) fn root(raw: &[u8]) -> Result<Value, ConfigProblem> {
    serde_json::from_slice(raw).map_err(|error| ConfigProblem::Json(error.to_string()))
}

impl<'a> Block<'a> {
    pub(super) fn root(value: &'a Value, known: &'static [Key]) -> Result<Self, Problem> {
        let keys = strict_json::Block::root(value, "the plugin block", &names(known))?;
        Ok(Self { keys, known })
    }

    /// One of the words in the table.
    pub(super) fn one_of(&self, key: &str) -> Result<Option<&'a str>, Problem> {
        let choices = match self.shape(key) {
            Some(Shape::OneOf(choices)) => *choices,
            _ => &[],
        };
        self.keys.one_of(key, choices)
    }

    /// The object under `key`; one without keys when absent.
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

    /// The keys of the objects under `key`.
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

fn names(keys: &[Key]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}
