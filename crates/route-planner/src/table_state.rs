//! What a table holds for one Rollout. Each call reads it once, so that weights and managed routes are decided on the same
//! facts.
//!
//! For each route that its owner wrote, the survey says which record is about it, what its owner's list of destinations is,
//! and whether that list leads to the Rollout. A route that cannot be understood carries the reason and stops no other route.
//!
//! ```text
//! table, while the canary has 25 %               survey
//! health  directResponse                         Other
//! list    reviews 60, reviews-canary 20,         Forward, record 0, Here: owner's list is reviews 80, legacy 20,
//!         legacy 20                              its anchor is reviews
//! hdr     managed route                          not in the survey: its owner is the Rollout
//! ratings ratings                                Forward, no record, Elsewhere
//! odd     destinations: 5                        Unknown, with the path of the value
//! ```
//!
//! [`matched`] finds the records, [`recover`] the owner's lists. From the survey, `set_weight` decides the list that each route
//! gets and `managed_routes` decides the copies of routes; neither reads the table or the record again.

use std::collections::HashMap;

use gloo_types::{DocumentError, RouteTableDoc};

use crate::config::PluginConfig;
use crate::destinations::{
    DestinationList, Distinction, Malformed, Reading, Slot, check_destination,
};
use crate::error::{PlanError, Refusal};
use crate::intent::{Intent, IntentKind};
use crate::plan::{SkipReason, Warning};
use crate::record::{Hash, Record, Records, RouteRecord, Split};
use crate::record_matching::{Candidate, Copies, matched};
use crate::recovery::{
    Recovered, additional_roles, recover, stable_from_canary, without_applied, without_canary,
};
use crate::roles::Roles;
use crate::route::{Protocol, Route};

/// The annotation of a table, as one Rollout reads it.
pub(crate) struct Memory {
    pub(crate) records: Records,
    /// The Rollout's own record.
    pub(crate) own: Record,
    /// The records of other Rollouts, as far as they can be read.
    others: Vec<(String, Record)>,
    /// Why the Rollout's own record cannot be read. It is empty then.
    pub(crate) problem: Option<Refusal>,
}

/// A table as one Rollout sees it.
pub(crate) struct Survey<'a> {
    pub(crate) config: &'a PluginConfig,
    pub(crate) intent: &'a Intent,
    pub(crate) table: &'a RouteTableDoc,
    pub(crate) memory: &'a Memory,
    pub(crate) roles: Roles<'a>,
    /// The routes that their owner wrote: HTTP, TCP, TLS.
    pub(crate) routes: Vec<Surveyed<'a>>,
    /// Records whose route is not found.
    pub(crate) lost: Vec<&'a RouteRecord>,
    pub(crate) warnings: Vec<Warning>,
}

/// One route.
pub(crate) struct Surveyed<'a> {
    pub(crate) route: Route<'a>,
    /// Hash of the matchers.
    pub(crate) matchers: Hash,
    /// The record about it; a route that its owner copied from a split one has none.
    pub(crate) record: Option<&'a RouteRecord>,
    /// What was changed in it. Set with `record`, and for copies.
    pub(crate) split: Option<&'a Split>,
    pub(crate) finding: Finding<'a>,
}

/// What a route means for the Rollout.
pub(crate) enum Finding<'a> {
    /// It does not forward.
    Other(SkipReason),
    /// It cannot be understood.
    Unknown(Refusal),
    /// It forwards.
    Forward {
        /// The destinations that are there.
        live: DestinationList<'a>,
        leads: Leads<'a>,
    },
}

/// Where a route leads.
pub(crate) enum Leads<'a> {
    /// Not to the Rollout, or the configuration does not select it.
    Elsewhere {
        owners: DestinationList<'a>,
        why: SkipReason,
    },
    /// To the Rollout, by the destination `anchor`.
    Here {
        owners: DestinationList<'a>,
        anchor: Slot<'a>,
    },
    /// Its owner replaced the stable destination while it was split.
    Replaced {
        owners: DestinationList<'a>,
        /// What replaced it.
        by: Box<Slot<'a>>,
        refusal: Refusal,
    },
    /// Another Rollout with the same stable destination splits it.
    SplitBy(String),
    /// The record cannot be read, so the owner's list is not known.
    Unrecorded,
}

impl Memory {
    pub(crate) fn read(table: &RouteTableDoc, rollout: &str) -> Self {
        let mut memory = Self {
            records: Records::default(),
            own: Record::default(),
            others: Vec::new(),
            problem: None,
        };
        let own = Records::read(table).and_then(|records| {
            let others = records.rollouts().filter(|name| *name != rollout);
            let others = others.filter_map(|name| Some((name.to_owned(), records.of(name).ok()?)));
            memory.others = others.collect();
            let own = records.of(rollout);
            memory.records = records;
            own
        });
        match own {
            Ok(own) => memory.own = own,
            Err(problem) => memory.problem = Some(problem),
        }
        memory
    }
}

impl<'a> Survey<'a> {
    /// Reads a table.
    ///
    /// # Errors
    /// Returns `Err` if the intent does not name two destinations, and if the lists of routes are not lists.
    pub(crate) fn new(
        config: &'a PluginConfig,
        intent: &'a Intent,
        table: &'a RouteTableDoc,
        memory: &'a Memory,
    ) -> Result<Self, PlanError> {
        check_lists(table)?;
        let roles = Roles::new(config, intent).map_err(|refusal| intent.refused(table, refusal))?;
        let by = roles.by;
        let reader = Reader {
            reading: Reading {
                namespace: &table.key().namespace,
                by,
            },
            default: default_destination(table, by),
        };
        let mut survey = Self {
            config,
            intent,
            table,
            memory,
            roles,
            routes: Vec::new(),
            lost: Vec::new(),
            warnings: Vec::new(),
        };
        let read = reader.routes(table, config);
        survey.fill(&reader, read);
        Ok(survey)
    }

    fn fill(&mut self, reader: &Reader<'a>, read: Vec<Read<'a>>) {
        let record = &self.memory.own;
        let is_ours = |read: &&Read<'a>| {
            !record
                .owners
                .contains(&read.matchers.with_name(read.route.name))
        };
        let own: Vec<Option<usize>> = {
            let is_stable = |slot: &Slot<'_>| self.roles.is_or_was_stable(slot);
            let candidates: Vec<_> = read.iter().filter(is_ours).map(Read::candidate).collect();
            let found = matched(record, &candidates, reader.reading, &is_stable);
            let mut found = found.into_iter();
            let found = read
                .iter()
                .map(|it| is_ours(&it).then(|| found.next().flatten()));
            found.map(Option::flatten).collect()
        };
        let mut is_lost = vec![true; record.routes.len()];
        for index in own.iter().flatten() {
            if let Some(is_lost) = is_lost.get_mut(*index) {
                *is_lost = false;
            }
        }
        let lost = record.routes.iter().zip(is_lost);
        self.lost = lost
            .filter_map(|(it, is_lost)| is_lost.then_some(it))
            .collect();
        let claims = self.claims(&read, reader);
        let copies = {
            let candidates: Vec<_> = read.iter().map(Read::candidate).collect();
            Copies::of(record, &candidates, &own)
        };

        let mut routes = Vec::with_capacity(read.len());
        for ((index, read), record_index) in read.into_iter().enumerate().zip(own) {
            let found = record_index.and_then(|index| record.routes.get(index));
            let mut split = found.and_then(|found| record.split_of(found));
            let claim = claims.get(&index);
            let is_ours = is_ours(&&read);
            if split.is_none()
                && let Ok(Some(live)) = &read.list
                && is_ours
            {
                let is_stable = |slot: &Slot<'_>| self.roles.is_or_was_stable(slot);
                split = copies.split_of(record, read.route.protocol, live, &is_stable);
            }
            let finding = match (read.list, claim) {
                (Err(refusal), _) => Finding::Unknown(refusal),
                (Ok(None), _) => Finding::Other(read.route.other_action()),
                (Ok(Some(live)), Some(rollout)) if split.is_none() => Finding::Forward {
                    live,
                    leads: Leads::SplitBy(rollout.clone()),
                },
                (Ok(Some(live)), _) => {
                    let leads = self.leads(&read.route, &live, split, is_ours, reader);
                    Finding::Forward { live, leads }
                }
            };
            routes.push(Surveyed {
                route: read.route,
                matchers: read.matchers,
                record: found,
                split,
                finding,
            });
        }
        self.routes = routes;
        if record.routes.is_empty() && self.memory.problem.is_none() {
            self.rebuild_full();
        }
    }

    /// Routes that another Rollout with the same stable destination splits, by their position among all.
    fn claims(&self, read: &[Read<'a>], reader: &Reader<'a>) -> HashMap<usize, String> {
        let mut claims = HashMap::new();
        if self.memory.others.is_empty() {
            return claims;
        }
        let is_rest = self.roles.are_at_rest(self.intent);
        let candidates: Vec<Candidate<'_, 'a>> = read.iter().map(Read::candidate).collect();
        for (rollout, record) in &self.memory.others {
            let is_stable = |slot: &Slot<'_>| self.roles.is_anchor(slot);
            let found = matched(record, &candidates, reader.reading, &is_stable);
            let copies = Copies::of(record, &candidates, &found);
            for (index, (it, found)) in read.iter().zip(found).enumerate() {
                let found = found.and_then(|found| record.routes.get(found));
                let split = match (found, &it.list) {
                    (Some(found), Ok(Some(live))) => {
                        // A route that Git restored, for example, may be brought to rest.
                        let split = record.split_of(found);
                        split.filter(|split| !is_rest || !is_restored(live, split))
                    }
                    (Some(found), _) => record.split_of(found),
                    (None, Ok(Some(live))) => {
                        copies.split_of(record, it.route.protocol, live, &is_stable)
                    }
                    _ => None,
                };
                let stable = split.and_then(|split| split.originals.first());
                let is_same = stable.is_some_and(|stable| {
                    let stable = Slot::new(&stable.1, reader.reading);
                    self.roles.is_anchor(&stable)
                });
                if is_same {
                    claims.entry(index).or_insert_with(|| rollout.clone());
                }
            }
        }
        claims
    }

    fn leads(
        &mut self,
        route: &Route<'a>,
        live: &DestinationList<'a>,
        split: Option<&'a Split>,
        is_ours: bool,
        reader: &Reader<'a>,
    ) -> Leads<'a> {
        if self.memory.problem.is_some() {
            return Leads::Unrecorded;
        }
        let default = match &reader.default {
            Ok(default) if route.protocol.is_http() => default.as_ref(),
            _ => None,
        };
        let mut is_split = split.is_some();
        let recovered =
            split.map(|split| recover(live, split, &self.roles, default, reader.reading));
        let owners = match recovered {
            Some(Recovered::Owners(owners)) => self.without_experiment(owners),
            Some(Recovered::Replaced { owners, stable, by }) => {
                let refusal = Refusal::Replaced {
                    route: route.label(),
                    stable,
                    by: by.label(),
                };
                return Leads::Replaced {
                    owners,
                    by,
                    refusal,
                };
            }
            Some(Recovered::Repointed) => {
                is_split = false;
                self.warnings.push(Warning::Repointed {
                    route: route.label(),
                });
                live.clone().materialised(default)
            }
            None if is_ours => self.unrecorded(route, live, default),
            None => live.clone().materialised(default),
        };
        match self.roles.anchors(&owners, is_split).first() {
            None => Leads::Elsewhere {
                why: SkipReason::LeadsTo(owners.slots.iter().map(Slot::label).collect()),
                owners,
            },
            Some(_) if !route.is_selected => Leads::Elsewhere {
                why: SkipReason::NotSelected(route.selector_key()),
                owners,
            },
            Some(anchor) => Leads::Here {
                anchor: (*anchor).clone(),
                owners,
            },
        }
    }

    /// The owner's list without the experiment that runs, whose Service the controller made. It can be in the record when the
    /// annotation was lost, and the first call after that went by a status from before the experiment.
    fn without_experiment(&self, owners: DestinationList<'a>) -> DestinationList<'a> {
        let applied = self.intent.applied.as_ref();
        let Some(applied) = applied.filter(|applied| !applied.additional.is_empty()) else {
            return owners;
        };
        let experiment = additional_roles(&self.roles, applied);
        let is_experiment = |slot: &Slot<'a>| experiment.iter().any(|(role, _)| role.is(slot));
        match owners.slots.iter().any(is_experiment) {
            true => without_applied(&owners, &self.roles, applied, &[]).unwrap_or(owners),
            false => owners,
        }
    }

    /// The owner's list of a route without record: the live one, unless the list itself tells that it was split, or its
    /// weights are those that were set last.
    fn unrecorded(
        &mut self,
        route: &Route<'a>,
        live: &DestinationList<'a>,
        default: Option<&Slot<'a>>,
    ) -> DestinationList<'a> {
        let applied = self.intent.applied.as_ref();
        let asked = match &self.intent.kind {
            IntentKind::SetWeight(split) => &*split.additional,
            IntentKind::SetManagedRoute(_) | IntentKind::RemoveManagedRoutes => &[],
        };
        let mut slots = live.slots.iter();
        let rebuilt = if !route.is_selected {
            None
        } else if slots.any(|slot| self.roles.stable.selects_pods(slot)) {
            without_canary(live, &self.roles, applied, false)
        } else {
            applied.and_then(|applied| without_applied(live, &self.roles, applied, asked))
        };
        if let Some(owners) = rebuilt {
            self.warnings.push(Warning::Rebuilt {
                route: route.label(),
            });
            return owners;
        }
        live.clone().materialised(default)
    }

    /// Takes routes that send everything to the canary for routes of the Rollout if no other route leads to it: the annotation
    /// was lost at full weight.
    fn rebuild_full(&mut self) {
        let is_full = match (&self.intent.applied, &self.intent.hashes) {
            (Some(applied), _) => i64::from(applied.canary) == applied.total(),
            // Without recorded weights there has to be an update at least.
            (None, Some(hashes)) => !hashes.stable.is_empty() && hashes.stable != hashes.canary,
            (None, None) => false,
        };
        let is_led_to = self.routes.iter().any(|it| match &it.finding {
            Finding::Forward { leads, .. } => !matches!(leads, Leads::Elsewhere { .. }),
            _ => false,
        });
        if !is_full {
            return;
        }
        for it in &mut self.routes {
            let Finding::Forward { live, leads } = &mut it.finding else {
                continue;
            };
            if !it.route.is_selected {
                continue;
            }
            let Some(owners) = stable_from_canary(live, &self.roles) else {
                continue;
            };
            let Some(anchor) = self.roles.anchors(&owners, false).first().copied().cloned() else {
                continue;
            };
            if is_led_to {
                // The table was created from Git, for example: the owner wrote the weight.
                self.warnings.push(Warning::OnlyCanary {
                    route: it.route.label(),
                    canary: self.roles.canary.name().to_owned(),
                });
                continue;
            }
            *leads = Leads::Here { owners, anchor };
            self.warnings.push(Warning::Rebuilt {
                route: it.route.label(),
            });
        }
    }

    /// Where the routes lead, for the refusal of a table in which none leads to the Rollout.
    pub(crate) fn found(&self) -> String {
        const SHOWN: usize = 5;
        let skipped: Vec<String> = self.skipped().map(|skip| skip.to_string()).collect();
        match skipped.len() {
            0 => "no routes".to_owned(),
            all if all <= SHOWN => skipped.join("; "),
            all => {
                let mut shown = skipped;
                shown.truncate(SHOWN);
                shown.push(format!("{} more", all - SHOWN));
                shown.join("; ")
            }
        }
    }

    /// Routes that are skipped, and why.
    pub(crate) fn skipped(&self) -> impl Iterator<Item = crate::plan::Skip> {
        self.routes.iter().filter_map(|it| {
            let reason = match &it.finding {
                Finding::Other(reason) => reason.clone(),
                Finding::Forward {
                    leads: Leads::Elsewhere { why, .. },
                    ..
                } => why.clone(),
                Finding::Forward {
                    leads: Leads::SplitBy(rollout),
                    ..
                } => SkipReason::SplitBy(rollout.clone()),
                _ => return None,
            };
            Some(crate::plan::Skip {
                route: it.route.label(),
                reason,
            })
        })
    }
}

/// A route and its live list, before anything is known of records.
struct Read<'a> {
    route: Route<'a>,
    matchers: Hash,
    list: Result<Option<DestinationList<'a>>, Refusal>,
}

impl<'a> Read<'a> {
    fn candidate(&self) -> Candidate<'_, 'a> {
        Candidate {
            route: &self.route,
            list: self.list.as_ref().ok().and_then(Option::as_ref),
            is_readable: self.list.is_ok(),
            matchers: &self.matchers,
        }
    }
}

struct Reader<'a> {
    reading: Reading<'a>,
    /// Where HTTP routes without destinations lead.
    default: Result<Option<Slot<'a>>, Malformed>,
}

impl<'a> Reader<'a> {
    fn routes(&self, table: &'a RouteTableDoc, config: &PluginConfig) -> Vec<Read<'a>> {
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
                Read {
                    matchers: Hash::of_matchers(&route),
                    list,
                    route,
                }
            })
            .collect()
    }

    fn list(&self, route: &Route<'a>) -> Result<Option<DestinationList<'a>>, Malformed> {
        let Some(forward) = route.forward() else {
            return Ok(None);
        };
        let list = DestinationList::live(forward, self.reading)?;
        if let Err(problem) = &self.default
            && !list.form.is_listed()
            && route.protocol.is_http()
        {
            return Err(problem.clone());
        }
        Ok(Some(list))
    }
}

/// Whether a route is as its owner wrote it, although it was split.
fn is_restored(list: &DestinationList<'_>, split: &Split) -> bool {
    let mut originals = split.originals.iter();
    originals.all(|original| list.slots.iter().any(|slot| slot.is_value(&original.1)))
}

fn default_destination(
    table: &RouteTableDoc,
    by: Distinction,
) -> Result<Option<Slot<'_>>, Malformed> {
    let Some(raw) = table.raw().pointer("/spec/defaultDestination") else {
        return Ok(None);
    };
    if raw.is_null() {
        return Ok(None);
    }
    check_destination(raw).map_err(|Malformed { path, expected }| {
        Malformed::new(format!("spec.defaultDestination{path}"), expected)
    })?;
    let reading = Reading {
        namespace: &table.key().namespace,
        by,
    };
    Ok(Some(Slot::new(raw, reading).without_weight()))
}

/// Checks that the lists of routes are lists; what is in them is checked route by route.
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
    // The typed view says which value has the wrong type.
    table.spec().map(|_| ())
}
