//! Reads a table once for one Rollout, and classifies every route that the table's owner wrote.
//!
//! [`TableState`] is the input of all decisions: `set_weight` computes the new list of each route from it, `managed_routes`
//! the copies of routes. Neither reads the table or the record again. For each route it says whether the route forwards,
//! which record entry belongs to it, what the owner's list of destinations is, and how the route is related to the Rollout.
//! A route that cannot be decoded carries the reason, and the other routes are planned all the same.
//!
//! For Rollout `reviews` at 25 %, while the record says that `list` is split:
//!
//! ```text
//! route    live destinations          action         relation
//! health   directResponse             NotForwarding
//! list     reviews 60,                Forward        Managed: the owner's list is reviews 80, legacy 20;
//!          reviews-canary 20,                        the anchor is reviews
//!          legacy 20
//! hdr      reviews-canary             not a RouteState: it is a managed route, which its labels show
//! ratings  ratings                    Forward        Unrelated: it forwards to ratings
//! odd      destinations: 5            Unreadable: forwardTo.destinations is not a list
//! ```
//!
//! [`match_records`] finds the record entry of a route, [`recover`] the owner's list.

use std::collections::{HashMap, HashSet};

use gloo_types::{DocumentError, RouteTableDoc};

use crate::applied_again::is_applied_again;
use crate::config::PluginConfig;
use crate::destinations::{
    Destination, DestinationList, Distinction, Malformed, ReadContext, check_destination,
};
use crate::error::{PlanError, Refusal};
use crate::intent::Intent;
use crate::plan::{Skip, SkipReason, Warning};
use crate::record::{Hash, RecordSet, RouteEntry, Split};
use crate::record_matching::{Candidate, Copies, match_records};
use crate::recovery::share_of;
use crate::recovery::{
    Recovered, additional_roles, recover, stable_from_canary, without_applied, without_canary,
};
use crate::roles::Roles;
use crate::route::{Protocol, Route};

/// A table as one Rollout sees it.
pub(crate) struct TableState<'a> {
    pub(crate) config: &'a PluginConfig,
    pub(crate) intent: &'a Intent,
    pub(crate) table: &'a RouteTableDoc,
    pub(crate) records: &'a RecordSet,
    pub(crate) roles: Roles<'a>,
    /// The routes that the owner wrote: HTTP, TCP, TLS.
    pub(crate) routes: Vec<RouteState<'a>>,
    /// Record entries whose route is not found.
    pub(crate) lost: Vec<&'a RouteEntry>,
    pub(crate) warnings: Vec<Warning>,
}

/// A route that the owner wrote, and what is known about it.
pub(crate) struct RouteState<'a> {
    pub(crate) route: Route<'a>,
    /// Hash of the matchers.
    pub(crate) matchers: Hash,
    /// The record entry of the route. A copy of a split route, made by the owner, has none.
    pub(crate) entry: Option<&'a RouteEntry>,
    /// What was changed in the route, by its `entry` or by that of the route from which it was copied.
    pub(crate) split: Option<&'a Split>,
    pub(crate) action: Action<'a>,
}

impl<'a> RouteState<'a> {
    /// The relation of a route that forwards; `None` for another one.
    pub(crate) fn relation(&self) -> Option<&Relation<'a>> {
        match &self.action {
            Action::Forward { relation, .. } => Some(relation),
            Action::NotForwarding(_) | Action::Unreadable(_) => None,
        }
    }
}

/// What a route does with requests.
pub(crate) enum Action<'a> {
    /// Something else than forward them.
    NotForwarding(SkipReason),
    /// Unknown: the route cannot be decoded.
    Unreadable(Refusal),
    /// It forwards them.
    Forward {
        /// The destinations in the table now.
        live: DestinationList<'a>,
        relation: Relation<'a>,
    },
}

/// How a route that forwards is related to the Rollout. `owner_list` is the list as the owner wrote it.
pub(crate) enum Relation<'a> {
    /// The route does not forward to the Rollout, or the configuration does not select it.
    Unrelated {
        owner_list: DestinationList<'a>,
        reason: SkipReason,
    },
    /// The route forwards to the Rollout by the destination `anchor`, so its traffic is split.
    Managed {
        owner_list: DestinationList<'a>,
        anchor: Destination<'a>,
    },
    /// The owner replaced the stable destination while the route was split.
    StableReplaced {
        owner_list: DestinationList<'a>,
        replacement: Box<Destination<'a>>,
        refusal: Refusal,
    },
    /// Another Rollout with the same stable destination splits the route.
    SplitByOther(String),
    /// The record cannot be decoded, so the owner's list is not known.
    RecordUnreadable,
}

impl<'a> TableState<'a> {
    /// Reads a table.
    ///
    /// # Errors
    /// Returns `Err` if the intent does not name two destinations, or if a list of routes is not a list.
    pub(crate) fn new(
        config: &'a PluginConfig,
        intent: &'a Intent,
        table: &'a RouteTableDoc,
        records: &'a RecordSet,
    ) -> Result<Self, PlanError> {
        // First of all: a list of another type would look like a table without routes, whose record is not needed any more.
        check_lists(table)?;
        let roles = Roles::new(config, intent).map_err(|refusal| intent.refused(table, refusal))?;
        let distinction = roles.distinction;
        let reader = Reader {
            context: ReadContext {
                namespace: &table.key().namespace,
                distinction,
            },
            default: default_destination(table, distinction),
        };
        let mut state = Self {
            config,
            intent,
            table,
            records,
            roles,
            routes: Vec::new(),
            lost: Vec::new(),
            warnings: Vec::new(),
        };
        let read = reader.routes(table, config);
        state.classify(&reader, read);
        Ok(state)
    }

    /// Fills `routes` and `lost`.
    fn classify(&mut self, reader: &Reader<'a>, read: Vec<ReadRoute<'a>>) {
        let record = &self.records.own;
        let is_owners = |it: &ReadRoute<'a>| record.has_owner_route(it.route.name, &it.matchers);
        // A split route may have the name and the matchers of the owner's. Then the entry tells which of them is split.
        let is_candidate = |it: &&ReadRoute<'a>| {
            let is_named = |name: &str| name.is_empty() || name == it.route.name;
            let mut entries = record.routes.iter();
            !is_owners(it)
                || entries.any(|entry| entry.matchers == it.matchers && is_named(&entry.name))
        };
        let entries: Vec<Option<usize>> = {
            let candidates = read.iter().filter(is_candidate);
            let candidates: Vec<_> = candidates.map(ReadRoute::candidate).collect();
            let mut found = match_records(record, &candidates, reader.context).into_iter();
            let found = read
                .iter()
                .map(|it| is_candidate(&it).then(|| found.next().flatten()));
            found.map(Option::flatten).collect()
        };
        let found: HashSet<usize> = entries.iter().flatten().copied().collect();
        let lost = record.routes.iter().enumerate();
        let lost = lost.filter(|(index, _)| !found.contains(index));
        self.lost = lost.map(|(_, entry)| entry).collect();
        let claims = self.claims(&read, reader);
        let copies = {
            let candidates: Vec<_> = read.iter().map(ReadRoute::candidate).collect();
            Copies::of(record, &candidates, &entries)
        };

        let mut routes = Vec::with_capacity(read.len());
        for ((index, read), entry) in read.into_iter().enumerate().zip(entries) {
            let entry = entry.and_then(|index| record.routes.get(index));
            let mut split = entry.and_then(|entry| record.split_of(entry));
            let claim = claims.get(&index);
            let is_owners = is_owners(&read);
            // The owner's own routes to the canary may have the same weights as a split route.
            if split.is_none()
                && let Ok(Some(live)) = &read.list
                && !is_owners
            {
                split = copies.split_of(record, read.route.protocol, live);
            }
            if let (Some(recorded), Ok(Some(live))) = (split, &read.list) {
                let default = reader.default_of(&read.route);
                let applied = self.intent.applied.as_ref();
                if is_applied_again(live, recorded, &self.roles, default, applied) {
                    split = None;
                }
            }
            let action = match (read.list, claim) {
                (Err(refusal), _) => Action::Unreadable(refusal),
                (Ok(None), _) => Action::NotForwarding(read.route.other_action()),
                // A route that this Rollout has split too stays its own. Otherwise neither of them would take it back to
                // stable.
                (Ok(Some(live)), Some(rollout)) if split.is_none() => Action::Forward {
                    live,
                    relation: Relation::SplitByOther(rollout.clone()),
                },
                (Ok(Some(live)), _) => {
                    let relation = self.relation(&read.route, &live, split, is_owners, reader);
                    Action::Forward { live, relation }
                }
            };
            routes.push(RouteState {
                route: read.route,
                matchers: read.matchers,
                entry,
                split,
                action,
            });
        }
        self.routes = routes;
        if record.routes.is_empty() && self.records.problem.is_none() {
            self.rebuild_full();
        }
    }

    /// The routes that another Rollout with the same stable destination splits: its name, by their position in `read`.
    fn claims(&self, read: &[ReadRoute<'a>], reader: &Reader<'a>) -> HashMap<usize, String> {
        let mut claims = HashMap::new();
        if self.records.others.is_empty() {
            return claims;
        }
        let is_rest = self.roles.is_rest(self.intent);
        let candidates: Vec<Candidate<'_, 'a>> = read.iter().map(ReadRoute::candidate).collect();
        for (rollout, record) in &self.records.others {
            let found = match_records(record, &candidates, reader.context);
            for (index, (it, found)) in read.iter().zip(found).enumerate() {
                let found = found.and_then(|found| record.routes.get(found));
                // A route that the owner has restored, from Git for example, may be brought to rest.
                let is_free = |split: &Split| match &it.list {
                    Ok(Some(live)) => is_rest && is_restored(live, split),
                    _ => false,
                };
                let split = found.and_then(|found| record.split_of(found));
                let split = split.filter(|split| !is_free(split));
                let stable = split.and_then(|split| split.originals.first());
                let is_same = stable.is_some_and(|stable| {
                    let stable = Destination::new(&stable.destination, reader.context);
                    self.roles.is_anchor(&stable)
                });
                if is_same {
                    // Records are in the order in which they were written, so the first one belongs to the Rollout that
                    // split the route first.
                    claims.entry(index).or_insert_with(|| rollout.clone());
                }
            }
        }
        claims
    }

    /// Determines the relation of a route that forwards.
    ///
    /// `is_owners` is whether the record says that the route is not split, although it may look so.
    fn relation(
        &mut self,
        route: &Route<'a>,
        live: &DestinationList<'a>,
        split: Option<&'a Split>,
        is_owners: bool,
        reader: &Reader<'a>,
    ) -> Relation<'a> {
        // Any weight could be the plugin's or the owner's. Only weight 0 is safe then.
        if self.records.problem.is_some() {
            return Relation::RecordUnreadable;
        }
        let default = reader.default_of(route);
        let mut is_split = split.is_some();
        let recovered =
            split.map(|split| recover(live, split, &self.roles, default, reader.context));
        let owner_list = match recovered {
            Some(Recovered::List(list)) => self.without_experiment(list),
            Some(Recovered::StableReplaced {
                list,
                stable,
                replacement,
            }) => {
                let refusal = Refusal::Replaced {
                    route: route.label(),
                    stable,
                    by: replacement.label(),
                };
                return Relation::StableReplaced {
                    owner_list: list,
                    replacement,
                    refusal,
                };
            }
            Some(Recovered::Repointed) => {
                is_split = false;
                self.warnings.push(Warning::Repointed {
                    route: route.label(),
                });
                live.clone().with_default(default)
            }
            // Its owner forwards it to the canary, and the record remembers it: nothing is recovered in it.
            None if is_owners => live.clone().with_default(default),
            None => self.owner_list_without_record(route, live, default),
        };
        match self.roles.anchors(&owner_list, is_split).first() {
            None => Relation::Unrelated {
                reason: SkipReason::ForwardsTo(owner_list.labels()),
                owner_list,
            },
            // A changed selector may have deselected a split route: it is restored.
            Some(_) if !route.is_selected => Relation::Unrelated {
                reason: SkipReason::NotSelected(route.selector_key()),
                owner_list,
            },
            Some(anchor) => Relation::Managed {
                anchor: (*anchor).clone(),
                owner_list,
            },
        }
    }

    /// Removes the running experiment from the owner's list. The Service of an experiment belongs to the controller, but it
    /// can get into the record: if the annotation was lost, and the next call had a status from before the experiment.
    fn without_experiment(&self, list: DestinationList<'a>) -> DestinationList<'a> {
        let applied = self.intent.applied.as_ref();
        let Some(applied) = applied.filter(|applied| !applied.additional.is_empty()) else {
            return list;
        };
        let experiment = additional_roles(&self.roles, applied);
        let is_experiment = |it: &Destination<'a>| experiment.iter().any(|(role, _)| role.is(it));
        match list.destinations.iter().any(is_experiment) {
            true => without_applied(&list, &self.roles, applied).unwrap_or(list),
            false => list,
        }
    }

    /// The owner's list of a route that has no record entry.
    ///
    /// That is the live list, unless the list shows that planning split it: by a subset that selects Pods, or by the weights
    /// that were set last. Then the list is rebuilt from the live one.
    fn owner_list_without_record(
        &mut self,
        route: &Route<'a>,
        live: &DestinationList<'a>,
        default: Option<&Destination<'a>>,
    ) -> DestinationList<'a> {
        let applied = self.intent.applied.as_ref();
        let mut destinations = live.destinations.iter();
        // The plugin writes only into selected routes, so the weights of others are the owner's, however they look.
        let rebuilt = if !route.is_selected {
            None
        } else if destinations.any(|it| self.roles.stable.selects_pods(it)) {
            without_canary(live, &self.roles, applied, false)
        } else {
            applied.and_then(|applied| without_applied(live, &self.roles, applied))
        };
        // A share that is too small for a weight is not split, so nothing is missing.
        let rebuilt = rebuilt.filter(|list| !list.equals(live));
        if let Some(list) = rebuilt {
            self.warnings.push(Warning::Rebuilt {
                route: route.label(),
            });
            return list;
        }
        live.clone().with_default(default)
    }

    /// Handles an annotation that was lost at full weight: if no route forwards to the Rollout, routes that send all traffic to
    /// the canary are taken for split routes.
    fn rebuild_full(&mut self) {
        // An owner may route requests to the canary for good, so the weights that were set must say the same.
        let is_full = match (&self.intent.applied, &self.intent.hashes) {
            (Some(applied), _) => i64::from(applied.canary) == applied.total(),
            // Without recorded weights, at least an update has to be in progress.
            (None, Some(hashes)) => !hashes.stable.is_empty() && hashes.stable != hashes.canary,
            (None, None) => false,
        };
        if !is_full {
            return;
        }
        let mut relations = self.routes.iter().filter_map(RouteState::relation);
        let is_led_to = relations.any(|it| !matches!(it, Relation::Unrelated { .. }));
        for it in &mut self.routes {
            let Action::Forward { live, relation } = &mut it.action else {
                continue;
            };
            if !it.route.is_selected {
                continue;
            }
            let Some(owner_list) = stable_from_canary(live, &self.roles) else {
                continue;
            };
            let anchors = self.roles.anchors(&owner_list, false);
            let Some(anchor) = anchors.first().copied().cloned() else {
                continue;
            };
            if is_led_to {
                // The owner wrote this weight: the table was created anew from Git, for example.
                self.warnings.push(Warning::OnlyCanary {
                    route: it.route.label(),
                    canary: self.roles.canary.name().to_owned(),
                    share: share_of(live, |it| self.roles.canary.is(it)),
                });
                continue;
            }
            *relation = Relation::Managed { owner_list, anchor };
            self.warnings.push(Warning::Rebuilt {
                route: it.route.label(),
            });
        }
    }

    /// Describes the destinations of the routes, for the error that no route forwards to the Rollout.
    pub(crate) fn found(&self) -> String {
        // The error becomes the text of an Event.
        const SHOWN: usize = 5;
        let mut shown: Vec<String> = self.skipped().map(|skip| skip.to_string()).collect();
        let more = shown.len().saturating_sub(SHOWN);
        shown.truncate(SHOWN);
        if more > 0 {
            shown.push(format!("{more} more"));
        }
        match shown.is_empty() {
            true => "no routes".to_owned(),
            false => shown.join("; "),
        }
    }

    /// The routes that are skipped, and why.
    pub(crate) fn skipped(&self) -> impl Iterator<Item = Skip> {
        self.routes.iter().filter_map(|it| {
            let reason = match (&it.action, it.relation()) {
                (Action::NotForwarding(reason), _)
                | (_, Some(Relation::Unrelated { reason, .. })) => reason.clone(),
                (_, Some(Relation::SplitByOther(rollout))) => SkipReason::SplitBy(rollout.clone()),
                _ => return None,
            };
            Some(Skip {
                route: it.route.label(),
                reason,
            })
        })
    }
}

/// A route before it is compared with the record.
struct ReadRoute<'a> {
    route: Route<'a>,
    matchers: Hash,
    /// The live list; `None` for a route that does not forward.
    list: Result<Option<DestinationList<'a>>, Refusal>,
}

impl<'a> ReadRoute<'a> {
    fn candidate(&self) -> Candidate<'_, 'a> {
        Candidate {
            route: &self.route,
            list: self.list.as_ref().ok().and_then(Option::as_ref),
            is_readable: self.list.is_ok(),
            matchers: &self.matchers,
        }
    }
}

/// Reads the lists of routes.
struct Reader<'a> {
    context: ReadContext<'a>,
    /// `spec.defaultDestination`, to which HTTP routes without destinations refer.
    default: Option<Destination<'a>>,
}

impl<'a> Reader<'a> {
    fn routes(&self, table: &'a RouteTableDoc, config: &PluginConfig) -> Vec<ReadRoute<'a>> {
        let routes = Route::all(table, config.routes()).into_iter();
        routes
            .map(|(route, problem)| {
                let list = match problem {
                    Some(problem) => Err(problem),
                    None => self.list(&route),
                };
                let list = list.map_err(|Malformed { path, expected }| Refusal::Malformed {
                    route: route.label(),
                    path,
                    expected,
                });
                ReadRoute {
                    matchers: Hash::of_matchers(&route),
                    list,
                    route,
                }
            })
            .collect()
    }

    /// The default destination of a route: Gloo applies it to HTTP routes only.
    fn default_of(&self, route: &Route<'_>) -> Option<&Destination<'a>> {
        self.default.as_ref().filter(|_| route.protocol.is_http())
    }

    fn list(&self, route: &Route<'a>) -> Result<Option<DestinationList<'a>>, Malformed> {
        let Some(forward) = route.forward() else {
            return Ok(None);
        };
        DestinationList::live(forward, self.context).map(Some)
    }
}

/// Whether a route that was split has the owner's destinations again, unchanged.
fn is_restored(list: &DestinationList<'_>, split: &Split) -> bool {
    let mut originals = split.originals.iter();
    originals.all(|original| {
        list.destinations
            .iter()
            .any(|it| it.equals_json(&original.destination))
    })
}

/// The table's default destination; `None` if it has none, or one that cannot be decoded.
fn default_destination(table: &RouteTableDoc, distinction: Distinction) -> Option<Destination<'_>> {
    let raw = table.raw().pointer("/spec/defaultDestination")?;
    check_destination(raw).ok()?;
    let context = ReadContext {
        namespace: &table.key().namespace,
        distinction,
    };
    Some(Destination::new(raw, context).with_weight(None))
}

/// Checks that the lists of routes are lists. The routes in them are checked one by one later.
fn check_lists(table: &RouteTableDoc) -> Result<(), DocumentError> {
    let spec = table.raw().get("spec");
    let lists = [Protocol::Http, Protocol::Tcp, Protocol::Tls];
    let are_lists = lists.iter().all(|list| {
        let routes = spec.and_then(|spec| spec.get(list.key()));
        routes.is_none_or(serde_json::Value::is_array)
    });
    let is_object = spec.is_none_or(|spec| spec.is_object() || spec.is_null());
    if are_lists && is_object {
        return Ok(());
    }
    // Decoding the typed view names the value that has the wrong type.
    table.spec().map(|_| ())
}
