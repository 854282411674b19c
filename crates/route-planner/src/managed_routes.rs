//! Managed routes: copies of the routes that lead to the Rollout, each narrowed to the requests that a step selects.
//!
//! A header route sends its requests to the canary only. A mirror route sends them to the destinations of its source, and a
//! MirrorPolicy copies them to the canary ([`crate::mirror_policy`]). If two Rollouts split one source, the mirror route of
//! one follows a new weight of the other with its own next SetWeight.
//!
//! As for weights, every call starts from what the owner wrote: it computes the copies from their sources, and the
//! difference to the live routes becomes the edits. Labels mark the managed routes of a Rollout ([`crate::ownership`]).
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

use std::collections::{BTreeSet, HashMap};

use gloo_types::RouteTableDoc;
use serde_json::{Map, Value, json};

use self::list::{RouteCopy, RouteList};
use crate::config::HeaderRoutePlacement;
use crate::destinations::{Destination, DestinationList, ListForm};
use crate::error::Refusal;
use crate::intent::{Intent, ManagedRoute};
use crate::matcher::{header_conditions, mirror_conditions, narrowed};
use crate::mirror_policy::{Mirror, Policies, mirror_label};
use crate::ownership::{Owner, Ownership, Scope, label_value};
use crate::plan::{Edit, Warning};
use crate::route::{Protocol, Route, raw_routes};
use crate::table_state::{Action, Relation, TableState};

/// The changes of a table's managed routes.
#[derive(Default)]
pub(crate) struct ManagedRoutePlan {
    pub(crate) edits: Vec<Edit>,
    pub(crate) policies: Option<Policies>,
    pub(crate) warnings: Vec<Warning>,
    /// Whether the table has managed routes of the Rollout afterwards.
    pub(crate) has_routes: bool,
}

impl ManagedRoutePlan {
    /// Leaves the managed routes unchanged.
    pub(crate) fn untouched(intent: &Intent, table: &RouteTableDoc) -> Self {
        Self {
            has_routes: !live(intent, table).is_empty(),
            ..Self::default()
        }
    }
}

/// Plans one managed route. The Rollout's other managed routes stay unchanged.
///
/// # Errors
/// Returns `Err` if the step cannot be combined with a route, or if no route leads to the Rollout.
pub(crate) fn set_one(
    state: &TableState<'_>,
    route: &ManagedRoute,
) -> Result<ManagedRoutePlan, Refusal> {
    let scope = Scope::Named(vec![label_value(route.name())]);
    let sources = sources(state)?;
    if sources.is_empty() {
        return Err(match raw_routes(state.table, Protocol::Http) {
            [] => Refusal::NoHttpRoutes,
            _ => Refusal::NoStableRoute {
                stable: state.roles.stable.label(),
                found: state.found(),
            },
        });
    }
    let copies = copies(state, &[route], &sources, &HashMap::new())?;
    if copies.is_empty() {
        return Err(Refusal::NoRequest(route.name().to_owned()));
    }
    Ok(replace(
        state.intent,
        state.table,
        scope,
        copies,
        is_top(state),
    ))
}

/// Plans the removal of all managed routes of the Rollout, or of `route`.
pub(crate) fn remove(
    intent: &Intent,
    table: &RouteTableDoc,
    route: Option<&str>,
) -> ManagedRoutePlan {
    let scope = match route {
        Some(name) => Scope::Named(vec![label_value(name)]),
        None => Scope::All,
    };
    replace(intent, table, scope, Vec::new(), false)
}

/// Plans the managed routes that the steps so far ask for, and removes others. `targets` are the new lists of
/// [`TableState::routes`].
///
/// # Errors
/// Returns `Err` if a step cannot be combined with a route.
pub(crate) fn reconcile(
    state: &TableState<'_>,
    targets: &[Option<DestinationList<'_>>],
) -> Result<ManagedRoutePlan, Refusal> {
    let live = live(state.intent, state.table);
    let managed = &state.intent.managed;
    // In its last pass the controller asks to remove them; that call may have failed.
    let wanted: Vec<&ManagedRoute> = match managed.is_ending {
        true => Vec::new(),
        false => managed.in_force.iter().collect(),
    };
    if wanted.is_empty() && live.is_empty() {
        return Ok(ManagedRoutePlan::default());
    }
    let mut made = Vec::new();
    if !wanted.is_empty() {
        let forwards = state.routes.iter().zip(targets);
        let forwards = forwards.filter(|(it, _)| it.route.protocol.is_http());
        let forwards = forwards.filter_map(|(it, target)| Some((it.route.index, target.as_ref()?)));
        made = copies(state, &wanted, &sources(state)?, &forwards.collect())?;
    }
    Ok(replace(
        state.intent,
        state.table,
        Scope::All,
        made,
        is_top(state),
    ))
}

/// The label values of the Rollout's managed routes in the table.
fn live(intent: &Intent, table: &RouteTableDoc) -> BTreeSet<String> {
    let owner = Owner::new(&intent.rollout);
    let routes = raw_routes(table, Protocol::Http).iter();
    routes
        .filter_map(Ownership::of)
        .filter(|ownership| ownership.owner == owner)
        .map(|ownership| ownership.managed)
        .collect()
}

/// An HTTP route that leads to the Rollout.
struct Source<'s, 'a> {
    route: &'s Route<'a>,
    /// The JSON of the canary's destination in this route, without a weight.
    canary: Value,
}

/// The HTTP routes that lead to the Rollout.
fn sources<'s, 'a>(state: &'s TableState<'a>) -> Result<Vec<Source<'s, 'a>>, Refusal> {
    if let Some(problem) = &state.records.problem {
        return Err(problem.clone());
    }
    let mut sources = Vec::new();
    for route_state in &state.routes {
        let route = &route_state.route;
        let Action::Forward {
            relation: Relation::Managed { owner_list, anchor },
            ..
        } = &route_state.action
        else {
            continue;
        };
        if !route.protocol.is_http() {
            continue;
        }
        let roles = &state.roles;
        roles.check_anchor(route, owner_list, route_state.split.is_some())?;
        let canary: Destination<'a> = match roles.canary.find_only(route, owner_list)? {
            Some(canary) => canary.clone(),
            None => roles.canary.made_from(anchor, route)?,
        };
        sources.push(Source {
            route,
            canary: canary.with_weight(None).value(),
        });
    }
    Ok(sources)
}

/// Copies each source for each of the `wanted` managed routes. `targets` are the new lists of sources, by their position.
fn copies(
    state: &TableState<'_>,
    wanted: &[&ManagedRoute],
    sources: &[Source<'_, '_>],
    targets: &HashMap<usize, &DestinationList<'_>>,
) -> Result<Vec<RouteCopy>, Refusal> {
    let rollout = &state.intent.rollout;
    if state.config.is_top_refused() {
        return Err(Refusal::TopPlacement);
    }
    let mut copies = Vec::new();
    for managed in wanted {
        if managed.name().is_empty() {
            return Err(Refusal::UnnamedManagedRoute);
        }
        let conditions = match managed {
            ManagedRoute::Header(route) => header_conditions(route, state.config.header_match())?,
            ManagedRoute::Mirror(route) => mirror_conditions(route)?,
        };
        let labels = Owner::new(rollout).labels(managed.name());
        for source in sources {
            let Some(raw) = source.route.raw.as_object() else {
                continue;
            };
            let matchers = narrowed(raw, &conditions);
            let matchers = matchers.map_err(|problem| Refusal::Combination {
                managed: managed.name().to_owned(),
                route: source.route.label(),
                problem,
            })?;
            if matchers.is_empty() {
                continue;
            }
            let mut route = raw.clone();
            route.insert("matchers".to_owned(), json!(matchers));
            let mut labels = labels.clone();
            let mirror = match managed {
                ManagedRoute::Header(_) => {
                    if let Some(Value::Object(forward)) = route.get_mut("forwardTo") {
                        forward.insert("destinations".to_owned(), json!([source.canary]));
                    }
                    None
                }
                ManagedRoute::Mirror(step) => {
                    if let Some(target) = targets.get(&source.route.index) {
                        set_destinations(&mut route, target);
                    }
                    let mirror = Mirror::new(rollout, state.table.key(), step, &source.canary)?;
                    labels.extend([mirror.route_label()]);
                    Some(mirror)
                }
            };
            let own = route.entry("labels").or_insert_with(|| json!({}));
            if let Value::Object(own) = own {
                own.extend(labels);
            }
            copies.push(RouteCopy {
                managed: managed.name().to_owned(),
                source: source.route.index,
                route,
                mirror,
            });
        }
    }
    Ok(copies)
}

/// Sets the destinations of a mirror route to the new list of its source.
fn set_destinations(route: &mut Map<String, Value>, target: &DestinationList<'_>) {
    let Some(Value::Object(forward)) = route.get_mut("forwardTo") else {
        return;
    };
    match target.form {
        ListForm::Listed => forward.insert("destinations".to_owned(), target.value()),
        ListForm::Empty => forward.insert("destinations".to_owned(), json!([])),
        ListForm::Absent => forward.shift_remove("destinations"),
    };
}

fn is_top(state: &TableState<'_>) -> bool {
    state.config.header_route_placement() == HeaderRoutePlacement::Top
}

/// Replaces the managed routes in `scope` by `copies`.
fn replace(
    intent: &Intent,
    table: &RouteTableDoc,
    scope: Scope,
    copies: Vec<RouteCopy>,
    is_top: bool,
) -> ManagedRoutePlan {
    let http = raw_routes(table, Protocol::Http);
    let owner = Owner::new(&intent.rollout);
    let mut policies = Policies::new(&intent.rollout, table, scope.clone());
    policies.has_mirrors = http.iter().any(|route| {
        let is_mirror = route
            .get("labels")
            .is_some_and(|labels| labels.get(mirror_label()).is_some());
        let ownership = Ownership::of(route).filter(|at| is_mirror && at.owner == owner);
        ownership.is_some_and(|at| scope.includes(&at.managed))
    });
    let is_in_scope = |managed: &str| scope.includes(managed);
    let mut list = RouteList::read(http, &owner, &intent.managed.order, is_in_scope);
    for (mirror, route) in list.insert(copies, is_top) {
        policies.want(&mirror, &route);
    }
    let mut managed = ManagedRoutePlan {
        policies: Some(policies),
        has_routes: list.has_own_routes(),
        ..ManagedRoutePlan::default()
    };
    match list.edits() {
        Some(edits) => managed.edits = edits,
        None => {
            managed.has_routes = true;
            managed.warnings.push(Warning::OnlyManagedRoutes);
        }
    }
    managed
}
