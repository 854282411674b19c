//! The routes a Rollout manages: which copies of which routes are to be there, where, and under which names.
//!
//! A header route sends its requests to the canary alone; a mirror route treats them as its source does, and a MirrorPolicy
//! copies them to the canary ([`crate::mirror_policy`]). When two Rollouts split one source, a weight of the one reaches the
//! mirror route of the other with the other's next SetWeight.
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
use crate::intent::{Intent, ManagedRoute};
use crate::matcher::{header_conditions, mirror_conditions, narrowed};
use crate::mirror_policy::{Mirror, Policies, mirror_label};
use crate::ownership::{Owner, Ownership, label_value};
use crate::source::{Source, no_source};

/// Which managed routes of the Rollout a plan is about, by their label values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decided {
    All,
    Named(Vec<String>),
}

impl Decided {
    pub(crate) fn includes(&self, managed: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|name| name == managed),
        }
    }
}

/// Plans one managed route; the Rollout's others stay as they are.
pub(crate) fn set(
    config: &PluginConfig,
    intent: &Intent,
    route: &ManagedRoute,
    table: &RouteTableDoc,
    spec: &RouteTableSpec,
) -> Result<Plan, Refusal> {
    let mut plan = Plan::nothing(&intent.rollout, table);
    let mut change = Change::new(config, intent, table, http(table.raw()).to_vec());
    change.decided = Decided::Named(vec![label_value(route.name())]);
    if !route.is_removal() {
        let sources = Source::all(config, intent, table, spec, &mut plan)?;
        if sources.is_empty() {
            return Err(no_source(config, intent, spec, &plan)?);
        }
        change.copy(route, &sources)?;
        if change.copies.is_empty() {
            return Err(Refusal::NoRequest(route.name().to_owned()));
        }
    }
    change.plan(&mut plan);
    Ok(plan)
}

/// Plans the removal of every managed route of the Rollout.
pub(crate) fn remove_all(config: &PluginConfig, intent: &Intent, table: &RouteTableDoc) -> Plan {
    let mut plan = Plan::nothing(&intent.rollout, table);
    Change::new(config, intent, table, http(table.raw()).to_vec()).plan(&mut plan);
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
    let there: BTreeSet<String> = http(table.raw())
        .iter()
        .filter_map(Ownership::of)
        .filter(|ownership| ownership.owner == owner)
        .map(|ownership| ownership.managed)
        .collect();
    let managed = &intent.managed;
    let wanted = managed
        .in_force
        .iter()
        .filter(|route| !managed.is_ending || there.contains(&label_value(route.name())));
    let wanted: Vec<&ManagedRoute> = wanted.collect();
    if wanted.is_empty() && (there.is_empty() || managed.is_ending) {
        return Ok(());
    }
    // Mirror routes split as their sources will.
    let mut after = table.raw().clone();
    if json_patch::patch(&mut after, &plan.to_json_patch()).is_err() {
        after = table.raw().clone();
    }
    let mut change = Change::new(config, intent, table, http(&after).to_vec());
    if managed.is_ending {
        let names = wanted.iter().map(|route| label_value(route.name()));
        change.decided = Decided::Named(names.collect());
    }
    if !wanted.is_empty() {
        let sources = Source::all(
            config,
            intent,
            table,
            spec,
            &mut Plan::nothing(&intent.rollout, table),
        )?;
        for route in &wanted {
            change.copy(route, &sources)?;
        }
    }
    change.plan(plan);
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
    mirror: Option<Mirror>,
}

/// Replaces those managed routes that are decided about by copies.
struct Change<'a> {
    config: &'a PluginConfig,
    intent: &'a Intent,
    table: &'a RouteTableDoc,
    /// The routes of the table, with the edits so far.
    http: Vec<Value>,
    decided: Decided,
    copies: Vec<Copy>,
}

impl<'a> Change<'a> {
    fn new(
        config: &'a PluginConfig,
        intent: &'a Intent,
        table: &'a RouteTableDoc,
        http: Vec<Value>,
    ) -> Self {
        Self {
            config,
            intent,
            table,
            http,
            decided: Decided::All,
            copies: Vec::new(),
        }
    }

    /// Adds a copy of each source for the requests that `managed` is about.
    fn copy(&mut self, managed: &ManagedRoute, sources: &[Source]) -> Result<(), Refusal> {
        if managed.name().is_empty() {
            return Err(Refusal::UnnamedManagedRoute);
        }
        let conditions = match managed {
            ManagedRoute::Header(route) => header_conditions(route, self.config.header_match())?,
            ManagedRoute::Mirror(route) => mirror_conditions(route)?,
        };
        let rollout = &self.intent.rollout;
        for source in sources {
            let route = self.http.get(source.index).and_then(Value::as_object);
            let Some(mut route) = route.cloned() else {
                continue;
            };
            let matchers = narrowed(&route, &conditions);
            let matchers = matchers.map_err(|problem| Refusal::Combination {
                managed: managed.name().to_owned(),
                route: source.label.clone(),
                problem,
            })?;
            if matchers.is_empty() {
                continue;
            }
            route.insert("matchers".to_owned(), json!(matchers));
            let canary = &source.canary.raw;
            let mut labels = Owner::new(rollout).labels(managed.name());
            let mirror = match managed {
                ManagedRoute::Header(_) => {
                    if let Some(Value::Object(forward)) = route.get_mut("forwardTo") {
                        forward.insert("destinations".to_owned(), json!([canary]));
                    }
                    None
                }
                ManagedRoute::Mirror(step) => {
                    let mirror = Mirror::new(rollout, self.table.key(), step, canary)?;
                    labels.extend([mirror.route_label()]);
                    Some(mirror)
                }
            };
            let own = route.entry("labels").or_insert_with(|| json!({}));
            if let Value::Object(own) = own {
                own.extend(labels);
            }
            self.copies.push(Copy {
                managed: managed.name().to_owned(),
                source: source.index,
                route,
                mirror,
            });
        }
        Ok(())
    }

    fn plan(self, plan: &mut Plan) {
        let Intent {
            rollout, managed, ..
        } = self.intent;
        let mut policies = Policies::new(rollout, self.table, self.decided.clone());
        let owner = Owner::new(rollout);
        policies.has_mirrors = self.http.iter().any(|route| {
            let is_mirror = route
                .pointer("/labels")
                .is_some_and(|labels| labels.get(mirror_label()).is_some());
            let ownership = Ownership::of(route).filter(|at| at.owner == owner);
            is_mirror && ownership.is_some_and(|at| self.decided.includes(&at.managed))
        });
        let decided = |managed: &str| self.decided.includes(managed);
        let mut list = List::read(&self.http, rollout, &managed.order, decided);
        let is_top = self.config.header_route_placement() == HeaderRoutePlacement::Top;
        for mirrored in list.put_in(self.copies, is_top) {
            policies.want(&mirrored.0, &mirrored.1);
        }
        plan.policies = Some(policies);
        match list.edits() {
            Some(edits) => plan.edits.extend(edits),
            None => plan.warnings.push(Warning::OnlyManagedRoutes),
        }
    }
}
