//! A scenario as a file holds it: a table, calls of the controller, edits of the owner, and the table expected after each.
//!
//! `header`, `remove` and `in_force` are about managed routes; `own: hdr` in an expected route stands for the labels that
//! mark it as the managed route `hdr` of `shop/reviews`, and `own: ratings/hdr` of `shop/ratings`.
//!
//! In the files `reviews 75` stands for `{ref: {name: reviews, namespace: shop}, port: {number: 80}, weight: 75}`, and
//! `reviews` for the same without weight. `routes` lists the destinations of the routes that differ from the input, by
//! position; `expect: input` means that table and annotations are byte-equal to the input.

use std::collections::BTreeMap;

use route_planner::{
    AdditionalDestination, HeaderMatch, HeaderRoute, Intent, IntentKind, ManagedRoute,
    ManagedRoutes, MirrorRoute, PodHashes, RequestMatch, TextMatch,
};
use serde::Deserialize;
use serde_json::Value;

use crate::table;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    #[serde(default = "default_table")]
    pub(crate) table: String,
    #[serde(default)]
    pub(crate) plugin: Option<Value>,
    #[serde(default)]
    pub(crate) managed_routes: Vec<String>,
    pub(crate) spec: Value,
    pub(crate) steps: Vec<Step>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Step {
    /// SetWeight of `rollout`, out of `max`.
    pub(crate) weight: Option<i32>,
    pub(crate) max: Option<i32>,
    pub(crate) additional: Vec<(String, i32)>,
    pub(crate) rollout: Option<String>,
    /// Names of the Services; by default that of the Rollout, and with `-canary`.
    pub(crate) stable: Option<String>,
    pub(crate) canary: Option<String>,
    /// SetHeaderRoute, as in a Rollout's step.
    pub(crate) header: Option<Value>,
    /// SetMirrorRoute, as in a Rollout's step.
    pub(crate) mirror: Option<Value>,
    /// RemoveManagedRoutes.
    pub(crate) remove: bool,
    /// The header routes, and the mirror routes, that SetWeight is to see to, from this step on.
    pub(crate) in_force: Option<Vec<Value>>,
    pub(crate) mirrors_in_force: Option<Vec<Value>>,
    /// Whether managed routes are about to go, in this step.
    pub(crate) ending: bool,
    /// Hashes of the stable and the canary's pods.
    pub(crate) hashes: Option<(String, String)>,
    /// JSON Patch by the owner of the table.
    pub(crate) edit: Option<json_patch::Patch>,
    /// The owner applies the input again, over whatever is there.
    pub(crate) reapply: bool,
    pub(crate) routes: BTreeMap<usize, Value>,
    pub(crate) spec: Option<Value>,
    pub(crate) expect: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) warnings: Vec<String>,
}

fn default_table() -> String {
    "shop/shop".to_owned()
}

impl Step {
    /// What the controller asks for in this step, with the managed routes that are in force.
    pub(crate) fn intents(&self, managed: &ManagedRoutes) -> impl Iterator<Item = Intent> {
        let additional = self
            .additional
            .iter()
            .map(|(service, weight)| AdditionalDestination {
                service: service.clone(),
                weight: *weight,
                port: None,
            });
        let weight = self
            .weight
            .map(|weight| table::weight(weight, self.max.unwrap_or(100), additional.collect()));
        let header = self.header.as_ref().map(header_route);
        let mirror = self.mirror.as_ref().map(mirror_route);
        let kinds = [
            self.remove.then_some(IntentKind::RemoveManagedRoutes),
            header.or(mirror).map(IntentKind::SetManagedRoute),
            weight,
        ];
        kinds.into_iter().flatten().map(|kind| {
            let rollout = self.rollout.as_deref().unwrap_or("shop/reviews");
            let mut intent = table::intent(rollout, 0, 100, vec![]);
            intent.kind = kind;
            intent.managed = managed.clone();
            let services = &mut intent.services;
            services.stable = self.stable.clone().unwrap_or(services.stable.clone());
            services.canary = self.canary.clone().unwrap_or(services.canary.clone());
            let hashes = self.hashes.clone();
            intent.hashes = hashes.map(|(stable, canary)| PodHashes {
                stable,
                canary,
                others: false,
            });
            intent
        })
    }

    /// Takes over what this step says about the managed routes from now on.
    pub(crate) fn manage(&self, managed: &mut ManagedRoutes) {
        if let Some(routes) = &self.in_force {
            managed.in_force = routes.iter().map(header_route).collect();
        }
        if let Some(routes) = &self.mirrors_in_force {
            managed.in_force = routes.iter().map(mirror_route).collect();
        }
        managed.is_ending = self.ending;
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn text_match(value: &Value) -> TextMatch {
    TextMatch {
        exact: text(&value["exact"]),
        prefix: text(&value["prefix"]),
        regex: text(&value["regex"]),
    }
}

/// A `setHeaderRoute` as written in a Rollout.
pub(crate) fn header_route(step: &Value) -> ManagedRoute {
    let matches = step["match"].as_array().into_iter().flatten();
    ManagedRoute::Header(HeaderRoute {
        name: text(&step["name"]),
        matches: matches
            .map(|entry| HeaderMatch {
                name: text(&entry["headerName"]),
                value: text_match(&entry["headerValue"]),
            })
            .collect(),
    })
}

/// A `setMirrorRoute` as written in a Rollout.
pub(crate) fn mirror_route(step: &Value) -> ManagedRoute {
    let matches = step["match"].as_array().into_iter().flatten();
    let percentage = step["percentage"].as_i64();
    ManagedRoute::Mirror(MirrorRoute {
        name: text(&step["name"]),
        percentage: percentage.and_then(|percentage| percentage.try_into().ok()),
        matches: matches
            .map(|entry| RequestMatch {
                method: entry.get("method").map(text_match),
                path: entry.get("path").map(text_match),
                headers: entry["headers"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, value)| (name.clone(), text_match(value)))
                    .collect(),
            })
            .collect(),
    })
}
