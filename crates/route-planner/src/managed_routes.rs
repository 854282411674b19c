//! Managed routes: copies of the routes that forward to the Rollout, each narrowed to the requests that a step selects.
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

use std::collections::{HashMap, HashSet};

use gloo_types::RouteTableDoc;
use serde_json::{Map, Value, json};

use self::list::{RouteCopy, RouteList, following, name_of};
use crate::config::{HeaderRoutePlacement, PluginConfig};
use crate::destinations::{Destination, DestinationList, ListForm, ReadContext};
use crate::error::Refusal;
use crate::intent::{Intent, ManagedRoute, ManagedRouteUpdate};
use crate::matcher::{Narrowed, header_conditions, mirror_conditions, narrowed};
use crate::mirror_policy::{Mirror, Policies, is_mirror};
use crate::ownership::{Owner, Ownership, Scope, label_value};
use crate::plan::{Edit, Warning};
use crate::recovery::without_canary;
use crate::route::{Protocol, Route, raw_routes};
use crate::table_state::{Action, Relation, RouteState, TableState};

/// The changes of a table's managed routes.
#[derive(Default)]
pub(crate) struct ManagedRoutePlan {
    pub(crate) edits: Vec<Edit>,
    pub(crate) policies: Option<Policies>,
    pub(crate) warnings: Vec<Warning>,
    /// What cannot be done.
    pub(crate) left: Vec<Refusal>,
    /// Whether the table has managed routes of the Rollout afterwards.
    pub(crate) has_routes: bool,
}

/// Plans one managed route. The Rollout's other managed routes stay unchanged.
///
/// # Errors
/// Returns `Err` if the step cannot be combined with a route, or if no route forwards to the Rollout.
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
                selectors: "routeTableSelector and routeSelector",
                stable: state.roles.stable.label(),
                found: state.found(),
            },
        });
    }
    let lists = HashMap::new();
    let copies = copies(state, &[route], &sources, &lists)?;
    if copies.is_empty() {
        return Err(Refusal::NoRequest(route.name().to_owned()));
    }
    let mut change = RouteChange::new(state.config, scope);
    change.copies = copies;
    Ok(replace(state.intent, state.table, change, &lists, &|_| None).0)
}

/// Plans the removal of all managed routes of the Rollout, or of `route`.
pub(crate) fn remove(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
    route: Option<&str>,
) -> ManagedRoutePlan {
    let scope = match route {
        Some(name) => Scope::Named(vec![label_value(name)]),
        None => Scope::All,
    };
    let change = RouteChange::new(config, scope);
    replace(intent, table, change, &HashMap::new(), &|_| None).0
}

/// Plans the managed routes for a SetWeight. `targets` are the new lists of [`TableState::routes`], which the mirror routes of
/// all Rollouts get from their sources.
///
/// # Errors
/// Returns `Err` if a managed route is to be inserted, and its step cannot be combined with a route.
pub(crate) fn reconcile(
    state: &TableState<'_>,
    targets: &[Option<DestinationList<'_>>],
    update: ManagedRouteUpdate,
) -> Result<ManagedRoutePlan, Refusal> {
    let in_force = &state.intent.managed.in_force;
    let http = raw_routes(state.table, Protocol::Http);
    let inserts_any = state.intent.managed.inserts_any(update);
    if !inserts_any && !http.iter().any(|route| Ownership::of(route).is_some()) {
        return Ok(ManagedRoutePlan::default());
    }
    let lists = new_lists(state, targets);
    let mut change = RouteChange::new(state.config, Scope::All);
    match update {
        ManagedRouteUpdate::AsPlanned if inserts_any => {
            let wanted: Vec<&ManagedRoute> = in_force.iter().collect();
            change.copies = copies(state, &wanted, &sources(state)?, &lists)?;
        }
        ManagedRouteUpdate::KeepExisting => {
            let sources: Vec<Source<'_, '_>> = state
                .routes
                .iter()
                .filter_map(|it| source(state, it)?.ok())
                .collect();
            for route in in_force {
                // A copy that cannot be combined with its source any more would change live requests.
                let copies = sources
                    .chunks(1)
                    .flat_map(|source| copies(state, &[route], source, &lists).unwrap_or_default());
                change.copies.extend(copies);
            }
            let kept = in_force.iter().map(|route| label_value(route.name()));
            change.scope = Scope::Except(kept.collect());
            change.only_existing = true;
            change.unknown = unknown(state, &sources);
        }
        ManagedRouteUpdate::AsPlanned | ManagedRouteUpdate::RemoveAll => {}
    }
    let is_down = state.intent.sends_all_to_stable();
    let fold = |index: usize| folded(state, http.get(index)?).filter(|_| is_down);
    let (mut plan, strays) = replace(state.intent, state.table, change, &lists, &fold);
    let strays = strays.into_iter().filter_map(|index| http.get(index));
    plan.left = strays.filter_map(|route| stray(state, route)).collect();
    Ok(plan)
}

/// The HTTP routes of which it is not known whether they forward to the Rollout, or where, by their position. Managed routes in front
/// of them stay as they are.
fn unknown(state: &TableState<'_>, sources: &[Source<'_, '_>]) -> HashSet<usize> {
    let is_known = |it: &RouteState<'_>| {
        matches!(it.action, Action::NotForwarding(_))
            || matches!(it.relation(), Some(Relation::Unrelated { .. }))
    };
    let http = state.routes.iter().filter(|it| it.route.protocol.is_http());
    let unknown = http.filter(|it| !is_known(it)).map(|it| it.route.index);
    unknown
        .filter(|index| !sources.iter().any(|source| source.route.index == *index))
        .collect()
}

/// The new lists of the HTTP routes that forward, or forwarded, to the Rollout, by their position.
fn new_lists<'t, 'a>(
    state: &TableState<'_>,
    targets: &'t [Option<DestinationList<'a>>],
) -> HashMap<usize, &'t DestinationList<'a>> {
    let routes = state.routes.iter().zip(targets);
    let lists = routes.filter_map(|(it, target)| {
        let is_unrelated = matches!(it.relation(), Some(Relation::Unrelated { .. }));
        let is_ours = !is_unrelated || it.split.is_some();
        let target = target.as_ref()?;
        (is_ours && it.route.protocol.is_http()).then_some((it.route.index, target))
    });
    lists.collect()
}

/// The refusal of a mirror route whose source is not found, so that its weights are not known, and that sends requests to the
/// canary.
fn stray(state: &TableState<'_>, route: &Value) -> Option<Refusal> {
    let list = DestinationList::live(route.get("forwardTo")?, context(state)).ok()?;
    let mut weights = list.destinations.iter().zip(list.effective_weights());
    weights
        .any(|(it, weight)| weight > 0 && state.roles.canary.is(it))
        .then(|| Refusal::StrayMirror {
            route: name_of(route).to_owned(),
            canary: state.roles.canary.label(),
        })
}

/// Such a mirror route at weight 0: stable gets the share of the canary.
fn folded<'a>(state: &TableState<'a>, route: &'a Value) -> Option<Value> {
    let list = DestinationList::live(route.get("forwardTo")?, context(state)).ok()?;
    let applied = state.intent.applied.as_ref();
    following(route, &without_canary(&list, &state.roles, applied, false)?)
}

fn context<'a>(state: &TableState<'a>) -> ReadContext<'a> {
    ReadContext {
        namespace: &state.table.key().namespace,
        distinction: state.roles.distinction,
    }
}

/// An HTTP route that forwards to the Rollout.
struct Source<'s, 'a> {
    route: &'s Route<'a>,
    /// The JSON of the canary's destination in this route, without a weight.
    canary: Value,
}

/// The HTTP routes that forward to the Rollout.
fn sources<'s, 'a>(state: &'s TableState<'a>) -> Result<Vec<Source<'s, 'a>>, Refusal> {
    if let Some(problem) = &state.records.problem {
        return Err(problem.clone());
    }
    let routes = state.routes.iter();
    routes.filter_map(|it| source(state, it)).collect()
}

/// A route as a source; `None` if it does not forward to the Rollout.
fn source<'s, 'a>(
    state: &'s TableState<'a>,
    route_state: &'s RouteState<'a>,
) -> Option<Result<Source<'s, 'a>, Refusal>> {
    let route = &route_state.route;
    let Some(Relation::Managed { owner_list, anchor }) = route_state.relation() else {
        return None;
    };
    let roles = &state.roles;
    let canary = || -> Result<Destination<'a>, Refusal> {
        roles.check_anchor(route, owner_list, route_state.split.is_some())?;
        match roles.canary.find_only(route, owner_list)? {
            Some(canary) => Ok(canary.clone()),
            None => roles.canary.made_from(anchor, route),
        }
    };
    route.protocol.is_http().then(|| {
        Ok(Source {
            route,
            canary: canary()?.with_weight(None).value(),
        })
    })
}

/// Copies each source for each of the `wanted` managed routes. `targets` are the new lists of sources, by their position.
fn copies(
    state: &TableState<'_>,
    wanted: &[&ManagedRoute],
    sources: &[Source<'_, '_>],
    targets: &HashMap<usize, &DestinationList<'_>>,
) -> Result<Vec<RouteCopy>, Refusal> {
    let rollout = &state.intent.rollout;
    let is_top = is_top(state.config);
    let hosts = state.table.raw().pointer("/spec/hosts");
    // A table without hosts is one to which others delegate.
    let is_delegated = hosts.and_then(Value::as_array).is_none_or(Vec::is_empty);
    let mut copies = Vec::new();
    for managed in wanted {
        if managed.name().is_empty() {
            return Err(Refusal::UnnamedManagedRoute);
        }
        let conditions = match managed {
            ManagedRoute::Header(_) if state.config.is_top_refused() => {
                return Err(Refusal::TopPlacement);
            }
            ManagedRoute::Header(route) => header_conditions(route, state.config.header_match())?,
            ManagedRoute::Mirror(route) => mirror_conditions(route)?,
        };
        let labels = Owner::new(rollout).labels(managed.name());
        for source in sources {
            let Some(raw) = source.route.raw.as_object() else {
                continue;
            };
            let narrowed = narrowed(raw, &conditions, is_delegated);
            let narrowed = narrowed.map_err(|problem| Refusal::Combination {
                managed: managed.name().to_owned(),
                route: source.route.label(),
                problem,
            })?;
            for Narrowed {
                matchers,
                path_rewrite,
            } in narrowed
            {
                let mut route = raw.clone();
                if matchers != [json!({})] {
                    route.insert("matchers".to_owned(), json!(matchers));
                }
                let mut labels = labels.clone();
                let forward = route.get_mut("forwardTo").and_then(Value::as_object_mut);
                let mirror = match (managed, forward) {
                    (_, None) => continue,
                    (ManagedRoute::Header(_), Some(forward)) => {
                        forward.insert("destinations".to_owned(), json!([source.canary]));
                        None
                    }
                    (ManagedRoute::Mirror(step), Some(forward)) => {
                        if let Some(path) = path_rewrite {
                            forward.insert("pathRewrite".to_owned(), json!(path));
                        }
                        if let Some(target) = targets.get(&source.route.index) {
                            set_destinations(forward, target);
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
                    is_top: is_top && mirror.is_none(),
                    route,
                    mirror,
                });
            }
        }
    }
    Ok(copies)
}

/// Sets the destinations of a mirror route to the new list of its source.
fn set_destinations(forward: &mut Map<String, Value>, target: &DestinationList<'_>) {
    match target.form {
        ListForm::Listed => forward.insert("destinations".to_owned(), target.value()),
        ListForm::Empty => forward.insert("destinations".to_owned(), json!([])),
        ListForm::Absent => forward.shift_remove("destinations"),
    };
}

fn is_top(config: &PluginConfig) -> bool {
    config.header_route_placement() == HeaderRoutePlacement::Top
}

/// A change of the managed routes of a Rollout.
struct RouteChange {
    /// The managed routes that are replaced by `copies`. All other mirror routes get the new lists of their sources.
    scope: Scope,
    copies: Vec<RouteCopy>,
    has_headers_first: bool,
    /// Whether a copy is dropped if the managed route does not exist in front of its source.
    only_existing: bool,
    /// With `only_existing`: the routes in front of which managed routes outside of `scope` stay as they are.
    unknown: HashSet<usize>,
}

impl RouteChange {
    fn new(config: &PluginConfig, scope: Scope) -> Self {
        Self {
            scope,
            copies: Vec::new(),
            has_headers_first: is_top(config),
            only_existing: false,
            unknown: HashSet::new(),
        }
    }
}

/// Plans a change. `fold` returns a mirror route without a source, by its position, with a new list, if that is known. Returns
/// also the positions of mirror routes for which it is not.
fn replace(
    intent: &Intent,
    table: &RouteTableDoc,
    change: RouteChange,
    lists: &HashMap<usize, &DestinationList<'_>>,
    fold: &dyn Fn(usize) -> Option<Value>,
) -> (ManagedRoutePlan, Vec<usize>) {
    let http = raw_routes(table, Protocol::Http);
    let owner = Owner::new(&intent.rollout);
    let scope = &change.scope;
    let mut policies = Policies::new(&intent.rollout, table, scope.clone());
    policies.has_mirrors = http.iter().any(|route| {
        let ownership = Ownership::of(route).filter(|at| is_mirror(route) && at.owner == owner);
        ownership.is_some_and(|at| scope.includes(&at.managed))
    });
    let is_replaced = |managed: &str, base: Option<usize>| {
        let is_known = base.is_none_or(|base| !change.unknown.contains(&base));
        scope.includes(managed) || (change.only_existing && is_known)
    };
    let mut list = RouteList::read(http, &owner, &intent.managed.order, is_replaced);
    list.has_headers_first = change.has_headers_first;
    let strays = list.follow(lists, fold);
    for (mirror, route) in list.insert(change.copies, change.only_existing) {
        policies.want(&mirror, &route);
    }
    let mut managed = ManagedRoutePlan {
        policies: Some(policies),
        has_routes: list.has_own_routes(),
        ..ManagedRoutePlan::default()
    };
    match list.edits() {
        Some((edits, warnings)) => {
            managed.edits = edits;
            managed.warnings.extend(warnings);
        }
        None => {
            managed.has_routes = true;
            managed.warnings.push(Warning::OnlyManagedRoutes);
        }
    }
    (managed, strays)
}
