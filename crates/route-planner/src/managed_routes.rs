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

use std::collections::BTreeSet;

use gloo_types::{RouteTableDoc, RouteTableSpec};
use serde_json::{Map, Value, json};

use crate::config::{HeaderRoutePlacement, PluginConfig};
use crate::edit::{Edit, Plan, Warning};
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
            return Err(no_source(intent, &plan)?);
        }
        copies = Copy::all(config, intent, route, http, &sources)?;
    }
    let name = label_value(&route.name);
    change(
        config,
        intent,
        http,
        |managed| *managed == name,
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
    let is_decided = |name: &String| !managed.is_ending || names.contains(name);
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

/// One entry of the list of routes that is to be.
struct Entry {
    /// Position of the entry it is now, for those that are not made anew.
    live: Option<usize>,
    /// Position of its managed route in the order of precedence.
    rank: usize,
    value: Value,
}

/// Replaces those managed routes of the Rollout that `is_decided` is about by `copies`.
fn change(
    config: &PluginConfig,
    intent: &Intent,
    http: &[Value],
    is_decided: impl Fn(&String) -> bool,
    copies: Vec<Copy>,
    plan: &mut Plan,
) {
    let owner = Owner::new(&intent.rollout);
    let owners: Vec<Option<Ownership>> = http.iter().map(Ownership::of).collect();
    let is_ours = |at: &Option<Ownership>| at.as_ref().is_some_and(|at| at.owner == owner);
    let is_replaced = |at: &Option<Ownership>| {
        is_ours(at) && at.as_ref().is_some_and(|at| is_decided(&at.managed))
    };
    let order: Vec<String> = intent
        .managed
        .order
        .iter()
        .map(|name| label_value(name))
        .collect();
    let rank = |managed: &str| {
        let position = order.iter().position(|name| name == managed);
        position.unwrap_or(order.len())
    };
    let others = http.iter().zip(&owners).filter(|(_, at)| !is_replaced(at));
    let mut copies = named(
        copies,
        intent,
        others.map(|(route, _)| name_of(route)).collect(),
    );

    let mut target: Vec<Entry> = Vec::new();
    // The managed routes since the last route of the table's owner: those of other Rollouts, and ours.
    let mut foreign: Vec<(usize, &Owner)> = Vec::new();
    let mut ours: Vec<Entry> = Vec::new();
    let entry = |index: usize, rank| Entry {
        live: Some(index),
        rank,
        value: http.get(index).cloned().unwrap_or_default(),
    };
    let mut is_first = true;
    for index in 0..=http.len() {
        match owners.get(index) {
            Some(at) if is_replaced(at) => continue,
            Some(Some(at)) if at.owner == owner => {
                ours.push(entry(index, rank(&at.managed)));
                continue;
            }
            Some(Some(at)) => {
                foreign.push((index, &at.owner));
                continue;
            }
            _ => {}
        }
        // Each Rollout has its place among those that manage routes in front of the same one.
        let all = config.header_route_placement() == HeaderRoutePlacement::Top && is_first;
        is_first = false;
        let (here, rest) = copies
            .into_iter()
            .partition(|(source, _, _)| all || *source == index);
        copies = rest;
        ours.extend(here.into_iter().map(|(_, managed, value)| Entry {
            live: None,
            rank: rank(&label_value(&managed)),
            value,
        }));
        ours.sort_by_key(|entry| entry.rank);
        let before = foreign
            .iter()
            .take_while(|(_, other)| **other < owner)
            .count();
        let mut foreign_entries = foreign.drain(..).map(|(index, _)| entry(index, 0));
        target.extend(foreign_entries.by_ref().take(before));
        target.append(&mut ours);
        target.extend(foreign_entries);
        if index < http.len() {
            target.push(entry(index, 0));
        }
    }
    if target.is_empty() && !http.is_empty() {
        plan.warnings.push(Warning::OnlyManagedRoutes);
        return;
    }
    let fixed: Vec<bool> = owners.iter().map(|at| !is_ours(at)).collect();
    plan.edits.extend(difference(http, &fixed, target));
}

/// Gives each copy a name that no other route of the table has: `hdr`, `hdr-2`, `hdr-3`.
fn named(
    copies: Vec<Copy>,
    intent: &Intent,
    mut taken: BTreeSet<String>,
) -> Vec<(usize, String, Value)> {
    let reserved = &intent.managed.order;
    let copies = copies.into_iter().map(|copy| {
        let Copy {
            managed,
            source,
            mut route,
        } = copy;
        let numbered = (2_usize..).map(|number| format!("{managed}-{number}"));
        let numbered = numbered.filter(|name| !reserved.contains(name));
        let mut names = std::iter::once(managed.clone()).chain(numbered);
        let name = names.find(|name| !taken.contains(name)).unwrap_or_default();
        route.insert("name".to_owned(), json!(name));
        taken.insert(name);
        (source, managed, Value::Object(route))
    });
    copies.collect()
}

fn name_of(route: &Value) -> String {
    let name = route.get("name").and_then(Value::as_str);
    name.unwrap_or_default().to_owned()
}

/// The edits that turn `http` into `target`. `fixed` entries are in both, in the same order; others are recognised by name.
fn difference(http: &[Value], fixed: &[bool], target: Vec<Entry>) -> Vec<Edit> {
    let mut next = 0;
    let mut kept = BTreeSet::new();
    let mut replaced = Vec::new();
    let mut inserted = Vec::new();
    for (index, Entry { live, value, .. }) in target.into_iter().enumerate() {
        let is_fixed = live.and_then(|live| fixed.get(live)) == Some(&true);
        let name = name_of(&value);
        let mut free = http.iter().zip(fixed).enumerate().skip(next);
        let here = if is_fixed {
            free.find(|(index, _)| Some(*index) == live)
        } else {
            let mut free = free.take_while(|(_, (_, fixed))| !**fixed);
            free.find(|(_, (route, _))| name_of(route) == name)
        };
        match here {
            Some((at, (expect, _))) => {
                next = at + 1;
                kept.insert(at);
                if *expect != value {
                    replaced.push(Edit::ReplaceRoute {
                        index: at,
                        name,
                        expect: expect.clone(),
                        value,
                    });
                }
            }
            None => inserted.push(Edit::InsertRoute { index, name, value }),
        }
    }
    let removed = http.iter().enumerate().rev();
    let removed = removed
        .filter(|(index, _)| !kept.contains(index))
        .map(|(index, expect)| Edit::RemoveRoute {
            index,
            name: name_of(expect),
            expect: expect.clone(),
        });
    replaced
        .into_iter()
        .chain(removed)
        .chain(inserted)
        .collect()
}
