//! The routes a Rollout manages: which copies of which routes are to be there, where, and under which names.
//!
//! As with weights, every call starts from what the owner wrote: the copies are made anew from their sources, and the
//! difference to what is there becomes the edits. What is ours is told by labels alone ([`crate::ownership`]).
//!
//! ```text
//! before                                SetHeaderRoute hdr
//! http:                                 http:
//! - name: health                        - name: health
//!   directResponse: {status: 200}         directResponse: {status: 200}
//!                                       - name: hdr
//!                                         matchers: [{uri: {prefix: /}, headers: [{name: x, value: "1"}]}]
//!                                         forwardTo: {pathRewrite: /, destinations: [{ref: {name: reviews-canary}}]}
//! - name: root                          - name: root
//!   matchers: [{uri: {prefix: /}}]        matchers: [{uri: {prefix: /}}]
//!   forwardTo: {pathRewrite: /, ...}      forwardTo: {pathRewrite: /, ...}
//! ```

mod list;

use std::collections::BTreeSet;

use gloo_types::{RouteTableDoc, RouteTableSpec};
use serde_json::{Map, Value, json};

use self::list::List;
use crate::config::{HeaderRoutePlacement, PluginConfig};
use crate::edit::{Plan, Warning};
use crate::error::Refusal;
use crate::header_route;
use crate::intent::{HeaderRoute, Intent};
use crate::ownership::{Owner, Ownership, label_value};
use crate::source::{Source, no_source};

/// Plans one header route; the Rollout's other managed routes stay as they are.
pub(crate) fn set(
    config: &PluginConfig,
    intent: &Intent,
    route: &HeaderRoute,
    table: &RouteTableDoc,
    spec: &RouteTableSpec,
) -> Result<Plan, Refusal> {
    let mut plan = Plan::nothing(table);
    let http = http(table.raw());
    let mut copies = Vec::new();
    if !route.matches.is_empty() {
        let sources = Source::all(config, intent, table, spec, &mut plan)?;
        if sources.is_empty() {
            return Err(no_source(config, intent, spec, &plan)?);
        }
        copies = Copy::all(config, intent, route, http, &sources)?;
    }
    let name = label_value(&route.name);
    change(
        config,
        intent,
        http,
        |managed| managed == name,
        copies,
        &mut plan,
    );
    Ok(plan)
}

/// Plans the removal of every managed route of the Rollout.
pub(crate) fn remove_all(intent: &Intent, config: &PluginConfig, table: &RouteTableDoc) -> Plan {
    let mut plan = Plan::nothing(table);
    change(
        config,
        intent,
        http(table.raw()),
        |_| true,
        vec![],
        &mut plan,
    );
    plan
}

/// Adds to a plan of weights what brings the Rollout's managed routes into step with the table and with the steps so far.
pub(crate) fn keep(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
    spec: &RouteTableSpec,
    plan: &mut Plan,
) -> Result<(), Refusal> {
    let owner = Owner::new(&intent.rollout);
    let http = http(table.raw());
    let there: BTreeSet<String> = http
        .iter()
        .filter_map(Ownership::of)
        .filter(|ownership| ownership.owner == owner)
        .map(|ownership| ownership.managed)
        .collect();
    let managed = &intent.managed;
    let wanted = managed
        .in_force
        .iter()
        .filter(|route| !managed.is_ending || there.contains(&label_value(&route.name)));
    let wanted: Vec<&HeaderRoute> = wanted.collect();
    if wanted.is_empty() && (there.is_empty() || managed.is_ending) {
        return Ok(());
    }
    let mut copies = Vec::new();
    if !wanted.is_empty() {
        let sources = Source::all(config, intent, table, spec, &mut Plan::nothing(table))?;
        for route in &wanted {
            copies.extend(Copy::all(config, intent, route, http, &sources)?);
        }
    }
    let names: Vec<String> = wanted
        .iter()
        .map(|route| label_value(&route.name))
        .collect();
    let is_decided = |name: &str| !managed.is_ending || names.iter().any(|other| other == name);
    change(config, intent, http, is_decided, copies, plan);
    Ok(())
}

fn http(table: &Value) -> &[Value] {
    let http = table.pointer("/spec/http").and_then(Value::as_array);
    http.map_or(&[], Vec::as_slice)
}

/// A route that is to be there, made from `source`.
struct Copy {
    /// Name of the managed route.
    managed: String,
    /// Position of the source.
    source: usize,
    route: Map<String, Value>,
}

impl Copy {
    /// A copy of each source for the requests that `route` is about.
    fn all(
        config: &PluginConfig,
        intent: &Intent,
        route: &HeaderRoute,
        http: &[Value],
        sources: &[Source],
    ) -> Result<Vec<Self>, Refusal> {
        if route.name.is_empty() {
            return Err(Refusal::UnnamedManagedRoute);
        }
        let alternatives = header_route::alternatives(route, config.header_match())?;
        let labels = Owner::new(&intent.rollout).labels(&route.name);
        let copies = sources.iter().filter_map(|source| {
            let mut copy = http.get(source.index)?.as_object()?.clone();
            let matchers = header_route::narrowed(copy.get("matchers"), &alternatives);
            let forward = header_route::leading_to(copy.get("forwardTo")?, &source.canary.raw);
            copy.insert("matchers".to_owned(), json!(matchers));
            copy.insert("forwardTo".to_owned(), forward);
            let own = copy.entry("labels").or_insert_with(|| json!({}));
            if let Value::Object(own) = own {
                own.extend(labels.clone());
            }
            Some(Self {
                managed: route.name.clone(),
                source: source.index,
                route: copy,
            })
        });
        Ok(copies.collect())
    }
}

/// Replaces those managed routes of the Rollout that `is_decided` is about by `copies`.
fn change(
    config: &PluginConfig,
    intent: &Intent,
    http: &[Value],
    is_decided: impl Fn(&str) -> bool,
    copies: Vec<Copy>,
    plan: &mut Plan,
) {
    let mut list = List::read(http, &intent.rollout, &intent.managed.order, is_decided);
    let is_top = config.header_route_placement() == HeaderRoutePlacement::Top;
    list.put_in(copies, is_top);
    match list.edits() {
        Some(edits) => plan.edits.extend(edits),
        None => plan.warnings.push(Warning::OnlyManagedRoutes),
    }
}
