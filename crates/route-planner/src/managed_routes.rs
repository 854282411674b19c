//! The routes a Rollout manages: copies of the routes that lead to it, each narrowed to the requests of a step.
//!
//! A header route sends its requests to the canary alone; a mirror route sends them where its source does, and a MirrorPolicy
//! copies them to the canary ([`crate::mirror_policy`]). If two Rollouts split one source, a new weight of the first one
//! reaches the mirror route of the second one with the next SetWeight of the second one.
//!
//! As with weights, every call starts from what the owner wrote: the copies are computed from their sources, and the
//! difference to the live routes becomes the edits. Labels alone mark what is ours ([`crate::ownership`]).
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

use self::list::{Copy, List};
use crate::config::HeaderRoutePlacement;
use crate::destinations::{DestinationList, ListForm, Slot};
use crate::error::Refusal;
use crate::intent::{Intent, ManagedRoute};
use crate::matcher::{header_conditions, mirror_conditions, narrowed};
use crate::mirror_policy::{Mirror, Policies, mirror_label};
use crate::ownership::{Decided, Owner, Ownership, label_value};
use crate::plan::{Edit, Warning};
use crate::route::{Protocol, Route, raw_routes};
use crate::table_state::{Finding, Leads, Survey};

/// What changes about the managed routes of a table.
#[derive(Default)]
pub(crate) struct Managed {
    pub(crate) edits: Vec<Edit>,
    pub(crate) policies: Option<Policies>,
    pub(crate) warnings: Vec<Warning>,
    /// Whether routes of the Rollout are in the table afterwards.
    pub(crate) is_left: bool,
}

impl Managed {
    /// The managed routes stay as they are.
    pub(crate) fn untouched(intent: &Intent, table: &RouteTableDoc) -> Self {
        Self {
            is_left: !live(intent, table).is_empty(),
            ..Self::default()
        }
    }
}

/// Decides one managed route; the Rollout's others stay as they are.
///
/// # Errors
/// Returns `Err` if the step cannot be expressed on a route, and if no route leads to the Rollout.
pub(crate) fn set(survey: &Survey<'_>, route: &ManagedRoute) -> Result<Managed, Refusal> {
    let decided = Decided::Named(vec![label_value(route.name())]);
    let sources = sources(survey)?;
    if sources.is_empty() {
        return Err(match raw_routes(survey.table, Protocol::Http) {
            [] => Refusal::NoHttpRoutes,
            _ => Refusal::NoStableRoute {
                stable: survey.roles.stable.label(),
                found: survey.found(),
            },
        });
    }
    let copies = copies(survey, &[route], &sources, &HashMap::new())?;
    if copies.is_empty() {
        return Err(Refusal::NoRequest(route.name().to_owned()));
    }
    Ok(decide(
        survey.intent,
        survey.table,
        decided,
        copies,
        is_top(survey),
    ))
}

/// Decides the removal of the managed routes of the Rollout, or of one of them.
pub(crate) fn remove(intent: &Intent, table: &RouteTableDoc, route: Option<&str>) -> Managed {
    let decided = match route {
        Some(name) => Decided::Named(vec![label_value(name)]),
        None => Decided::All,
    };
    decide(intent, table, decided, Vec::new(), false)
}

/// Decides how the Rollout's managed routes follow the table and the steps so far. `targets` are the lists that the routes of
/// the survey get.
///
/// # Errors
/// Returns `Err` if a step cannot be expressed on a route.
pub(crate) fn keep(
    survey: &Survey<'_>,
    targets: &[Option<DestinationList<'_>>],
) -> Result<Managed, Refusal> {
    let live = live(survey.intent, survey.table);
    let managed = &survey.intent.managed;
    // The controller has removed them in this pass, or has tried to.
    let wanted: Vec<&ManagedRoute> = match managed.is_ending {
        true => Vec::new(),
        false => managed.in_force.iter().collect(),
    };
    if wanted.is_empty() && live.is_empty() {
        return Ok(Managed::default());
    }
    let mut made = Vec::new();
    if !wanted.is_empty() {
        let forwards = survey.routes.iter().zip(targets);
        let forwards = forwards.filter(|(it, _)| it.route.protocol.is_http());
        let forwards = forwards.filter_map(|(it, target)| Some((it.route.index, target.as_ref()?)));
        made = copies(survey, &wanted, &sources(survey)?, &forwards.collect())?;
    }
    Ok(decide(
        survey.intent,
        survey.table,
        Decided::All,
        made,
        is_top(survey),
    ))
}

/// The managed routes of the Rollout that are in the table, by their label values.
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
    /// The canary's destination in it, without weight.
    canary: Value,
}

fn sources<'s, 'a>(survey: &'s Survey<'a>) -> Result<Vec<Source<'s, 'a>>, Refusal> {
    if let Some(problem) = &survey.memory.problem {
        return Err(problem.clone());
    }
    let mut sources = Vec::new();
    for surveyed in &survey.routes {
        let route = &surveyed.route;
        let Finding::Forward {
            leads: Leads::Here { owners, anchor },
            ..
        } = &surveyed.finding
        else {
            continue;
        };
        if !route.protocol.is_http() {
            continue;
        }
        let roles = &survey.roles;
        roles.check_anchor(route, owners, surveyed.split.is_some())?;
        let canary: Slot<'a> = match roles.canary.find_only(route, owners)? {
            Some(canary) => canary.clone(),
            None => roles.canary.made_from(anchor, route)?,
        };
        sources.push(Source {
            route,
            canary: canary.weighing(None).value(),
        });
    }
    Ok(sources)
}

/// A copy of each source for each of the `wanted` routes. `targets` are the lists that sources get, by their position.
fn copies(
    survey: &Survey<'_>,
    wanted: &[&ManagedRoute],
    sources: &[Source<'_, '_>],
    targets: &HashMap<usize, &DestinationList<'_>>,
) -> Result<Vec<Copy>, Refusal> {
    let rollout = &survey.intent.rollout;
    if survey.config.is_top_refused() {
        return Err(Refusal::TopPlacement);
    }
    let mut copies = Vec::new();
    for managed in wanted {
        if managed.name().is_empty() {
            return Err(Refusal::UnnamedManagedRoute);
        }
        let conditions = match managed {
            ManagedRoute::Header(route) => header_conditions(route, survey.config.header_match())?,
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
                    let mirror = Mirror::new(rollout, survey.table.key(), step, &source.canary)?;
                    labels.extend([mirror.route_label()]);
                    Some(mirror)
                }
            };
            let own = route.entry("labels").or_insert_with(|| json!({}));
            if let Value::Object(own) = own {
                own.extend(labels);
            }
            copies.push(Copy {
                managed: managed.name().to_owned(),
                source: source.route.index,
                route,
                mirror,
            });
        }
    }
    Ok(copies)
}

/// Gives a route the destinations that its source gets.
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

fn is_top(survey: &Survey<'_>) -> bool {
    survey.config.header_route_placement() == HeaderRoutePlacement::Top
}

/// Replaces the `decided` managed routes by `copies`.
fn decide(
    intent: &Intent,
    table: &RouteTableDoc,
    decided: Decided,
    copies: Vec<Copy>,
    is_top: bool,
) -> Managed {
    let http = raw_routes(table, Protocol::Http);
    let owner = Owner::new(&intent.rollout);
    let mut policies = Policies::new(&intent.rollout, table, decided.clone());
    policies.has_mirrors = http.iter().any(|route| {
        let is_mirror = route
            .get("labels")
            .is_some_and(|labels| labels.get(mirror_label()).is_some());
        let ownership = Ownership::of(route).filter(|at| is_mirror && at.owner == owner);
        ownership.is_some_and(|at| decided.includes(&at.managed))
    });
    let is_decided = |managed: &str| decided.includes(managed);
    let mut list = List::read(http, &owner, &intent.managed.order, is_decided);
    for (mirror, route) in list.insert(copies, is_top) {
        policies.want(&mirror, &route);
    }
    let mut managed = Managed {
        policies: Some(policies),
        is_left: list.has_ours(),
        ..Managed::default()
    };
    match list.edits() {
        Some(edits) => managed.edits = edits,
        None => {
            managed.is_left = true;
            managed.warnings.push(Warning::OnlyManagedRoutes);
        }
    }
    managed
}
