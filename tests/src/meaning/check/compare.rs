//! Compares the answers of one step with the outcomes that the judge allows.

use std::collections::{BTreeMap, BTreeSet};

use super::prepared::{Prepared, Served};
use super::{ALL_PICKS, Answers, Checked, EPSILON, Effort, Key, PICKS, STRIDE, SWEPT};
use crate::meaning::backends::Answer;
use crate::meaning::judge::Case;
use crate::meaning::judgement::service_of;
use crate::meaning::judgement::{Base, Finding, Outcome, shown_answer, shown_request};
use crate::meaning::served::{OwnerRoute, Unserved};
use crate::meaning::world::{EXPERIMENT, Request};

/// Judges the tables after one step of a world.
pub(super) struct Judge<'a> {
    index: usize,
    prepared: &'a Prepared<'a>,
    served: &'a Served,
    answers: &'a Answers,
    none: OwnerRoute,
}

impl<'a> Judge<'a> {
    pub(super) fn new(
        index: usize,
        prepared: &'a Prepared<'a>,
        served: &'a Served,
        answers: &'a Answers,
    ) -> Self {
        Self {
            index,
            prepared,
            served,
            answers,
            none: OwnerRoute::default(),
        }
    }

    fn answer(&self, tag: &str, request: usize, pick: u32) -> Option<&'a Answer> {
        self.answers
            .get(&(self.index, tag.to_owned(), request, pick))
    }

    /// The route of an answer.
    fn route(&self, tag: &str, request: usize, routes: &'a [OwnerRoute]) -> Option<&'a OwnerRoute> {
        let answer = self.answer(tag, request, PICKS[0])?;
        routes.get(answer.route.parse::<usize>().ok()?)
    }

    /// The outcomes of a request, and the owner's route.
    fn outcomes(&self, at: usize, request: &Request) -> (Vec<Outcome>, &OwnerRoute) {
        let route = self.route(&self.prepared.owner, at, &self.prepared.routes);
        let route = route.unwrap_or(&self.none);
        let sources = self.prepared.sources.iter().enumerate();
        let sources = sources.filter_map(|(number, source)| {
            // Another route than the only one means that none matches.
            let answer = self.answer(&source.tag, at, PICKS[0])?;
            (answer.route == "0").then_some((number, (source.who, &source.route)))
        });
        let case = Case {
            world: self.prepared.world,
            snapshot: &self.served.snapshot,
            request,
            route,
            sources: &sources.collect(),
        };
        (case.outcomes(), route)
    }

    /// Plans the requests to the plugin's tables, and returns those whose shares are measured: one of each kind.
    pub(super) fn plan(&self, effort: Effort, plan: &mut BTreeSet<Key>) -> Vec<usize> {
        let Ok(tag) = &self.served.tag else {
            return Vec::new();
        };
        let mut kinds = BTreeSet::new();
        let mut swept = Vec::new();
        for (at, request) in self.prepared.world.requests.iter().enumerate() {
            plan.extend(PICKS.map(|pick| (self.index, tag.clone(), at, pick)));
            let (outcomes, route) = self.outcomes(at, request);
            let is_split = outcomes.iter().any(|outcome| outcome.shares.len() > 1);
            let kind = (route.name.clone(), format!("{outcomes:?}"));
            let is_measured = is_split && effort != Effort::Last { shares: false };
            if is_measured && swept.len() < SWEPT && kinds.insert(kind) {
                let picks = (0..ALL_PICKS).step_by(STRIDE).chain([ALL_PICKS - 1]);
                plan.extend(picks.map(|pick| (self.index, tag.clone(), at, pick)));
                swept.push(at);
            }
        }
        swept
    }

    /// Plans the picks between two that lead to different clusters.
    pub(super) fn refine(&self, swept: &[usize], plan: &mut BTreeSet<Key>) {
        let Ok(tag) = &self.served.tag else {
            return;
        };
        for at in swept {
            let known = self.clusters(tag, *at);
            for ((low, one), (high, other)) in known.iter().zip(known.iter().skip(1)) {
                if one != other {
                    let between = low + 1..*high;
                    plan.extend(between.map(|pick| (self.index, tag.clone(), *at, pick)));
                }
            }
        }
    }

    /// The clusters that answered, by pick.
    fn clusters(&self, tag: &str, at: usize) -> BTreeMap<u32, &'a str> {
        let picks = (0..ALL_PICKS).filter_map(|pick| {
            let upstream = self.answer(tag, at, pick)?.upstream.as_ref()?;
            Some((pick, upstream.cluster.as_str()))
        });
        picks.collect()
    }

    /// Compares all answers after the step.
    pub(super) fn findings(
        &self,
        swept: impl Iterator<Item = usize>,
        checked: &mut Checked,
    ) -> Vec<Finding> {
        checked.steps += 1;
        checked.refused += usize::from(self.served.snapshot.is_refused);
        let tag = match &self.served.tag {
            Ok(tag) => tag,
            Err(Unserved::Model(_)) => {
                checked.skipped += 1;
                return Vec::new();
            }
            Err(problem @ Unserved::Invalid(_)) => {
                return vec![Finding {
                    kind: "(a) Gloo refuses the tables".to_owned(),
                    step: self.served.snapshot.step,
                    request: 0,
                    detail: problem.to_string(),
                }];
            }
        };
        let mut findings = Vec::new();
        let swept: BTreeSet<usize> = swept.collect();
        for (at, request) in self.prepared.world.requests.iter().enumerate() {
            let (outcomes, _) = self.outcomes(at, request);
            let differing = PICKS.into_iter().chain(0..ALL_PICKS).find_map(|pick| {
                let found = self.answer(tag, at, pick)?;
                let difference = self.difference(at, pick, &outcomes, found)?;
                Some(self.finding(at, &outcomes, &difference, found))
            });
            let differing = differing.or_else(|| {
                let is_swept = swept.contains(&at);
                self.wrong_shares(at, &outcomes, &self.counts(tag, at))
                    .filter(|_| is_swept)
            });
            findings.extend(differing);
        }
        findings
    }

    /// What differs from the most plausible outcome, if no outcome fits.
    fn difference(
        &self,
        at: usize,
        pick: u32,
        outcomes: &[Outcome],
        found: &Answer,
    ) -> Option<String> {
        // The owner's answers differ by pick in the destination only.
        let pick = if PICKS.contains(&pick) {
            pick
        } else {
            PICKS[0]
        };
        let mut first = None;
        for outcome in by_route(outcomes, &found.route) {
            let tag = match outcome.base {
                Base::Owner => &self.prepared.owner,
                Base::Source(number) => match self.prepared.sources.get(number) {
                    Some(source) => &source.tag,
                    None => continue,
                },
            };
            let Some(base) = self.answer(tag, at, pick) else {
                continue;
            };
            match outcome.difference(base, found) {
                None => return None,
                Some(difference) => first = first.or(Some(difference)),
            }
        }
        first
    }

    /// The number of picks of each cluster. A pick that was not sent is that of its neighbour.
    fn counts(&self, tag: &str, at: usize) -> BTreeMap<String, u32> {
        let known = self.clusters(tag, at);
        let mut counts = BTreeMap::new();
        for pick in 0..ALL_PICKS {
            if let Some((_, cluster)) = known.range(..=pick).next_back() {
                *counts.entry((*cluster).to_owned()).or_default() += 1;
            }
        }
        counts
    }

    fn wrong_shares(
        &self,
        at: usize,
        outcomes: &[Outcome],
        counts: &BTreeMap<String, u32>,
    ) -> Option<Finding> {
        let fits = |outcome: &Outcome| {
            outcome.shares.iter().all(|share| {
                let of_it = counts.iter().filter(|(cluster, _)| share.is_of(cluster));
                let count = f64::from(of_it.map(|(_, count)| count).sum::<u32>());
                count >= share.min - EPSILON && count <= share.max + EPSILON
            })
        };
        if counts.is_empty() || outcomes.iter().any(fits) {
            return None;
        }
        let route = self.answer(self.served.tag.as_ref().ok()?, at, PICKS[0])?;
        let place = by_route(outcomes, &route.route).first()?.place();
        Some(Finding {
            kind: format!("(d) share{place}"),
            step: self.served.snapshot.step,
            request: at,
            detail: format!("shares {counts:?}\n{}", self.detail(at, outcomes)),
        })
    }

    fn finding(
        &self,
        at: usize,
        outcomes: &[Outcome],
        difference: &str,
        found: &Answer,
    ) -> Finding {
        let cluster = found.upstream.as_ref().map(|it| it.cluster.as_str());
        let service = service_of(cluster.unwrap_or_default());
        let asked = self
            .prepared
            .world
            .canaries
            .iter()
            .zip(&self.served.snapshot.asked);
        let over = asked.filter(|(canary, asked)| asked.is_over && canary.canary() == service);
        let over = over.map(|(_, asked)| asked.is_verified).next();
        let is_share = difference.starts_with("(d) share");
        let is_destination = is_share || difference.ends_with(" destination");
        let kind = match over {
            Some(is_verified) if is_destination => {
                let agrees = if is_verified {
                    ", and VerifyWeight does not object"
                } else {
                    ""
                };
                format!("(d) a Rollout that is over keeps requests{agrees}")
            }
            _ if is_share => difference.to_owned(),
            _ if is_destination && service == EXPERIMENT => "(d) port of an experiment".to_owned(),
            _ => format!("{difference}{}", self.circumstances(outcomes, &found.route)),
        };
        Finding {
            kind,
            step: self.served.snapshot.step,
            request: at,
            detail: format!(
                "plugin: {}\n{}",
                shown_answer(found),
                self.detail(at, outcomes)
            ),
        }
    }

    /// What groups findings besides the difference: whether a managed route serves a request that its step does not name.
    fn circumstances(&self, outcomes: &[Outcome], route: &str) -> &'static str {
        let name = managed_name(route);
        let world = self.prepared.world;
        let is_its = |managed: &String| managed == name;
        let owner = world
            .canaries
            .iter()
            .find(|canary| canary.managed.iter().any(is_its));
        let Some(owner) = owner else {
            return "";
        };
        let mut managed = outcomes
            .iter()
            .filter_map(|outcome| outcome.managed.as_ref());
        if managed.any(is_its) {
            return "";
        }
        let mut http = world
            .tables
            .iter()
            .filter_map(|table| table.pointer("/spec/http"));
        if owner.is_top {
            ", taken by a route on top"
        } else if http.any(|http| http.to_string().contains("ROUTE_SPECIFICITY")) {
            ", taken by a route under ROUTE_SPECIFICITY"
        } else {
            ", taken by a managed route"
        }
    }

    /// The request, the owner's answer and the expectation.
    fn detail(&self, at: usize, outcomes: &[Outcome]) -> String {
        let request = self.prepared.world.requests.get(at);
        let request = request.map(shown_request).unwrap_or_default();
        let (snapshot, owner) = (&self.served.snapshot, &self.prepared.owner);
        let base = self.answer(owner, at, PICKS[0]);
        let base = base.map(shown_answer).unwrap_or_default();
        let route = self.route(owner, at, &self.prepared.routes);
        let route = route.map(|route| route.name.clone()).unwrap_or_default();
        format!(
            "owner:  {base} ({route})\nrequest: {request}\nexpected: {outcomes:?}\nanswer to step {}: {}",
            snapshot.step + 1,
            snapshot.answer
        )
    }
}

/// The name of the managed route, for a route of this name. The plugin adds a number to a name that is in use.
fn managed_name(route: &str) -> &str {
    let name = route.rsplit('/').next().unwrap_or_default();
    name.split('-').next().unwrap_or_default()
}

/// The outcomes, the most plausible first: whose managed route has served the request, or must exist.
fn by_route<'a>(outcomes: &'a [Outcome], route: &str) -> Vec<&'a Outcome> {
    let name = managed_name(route);
    let mut sorted: Vec<&Outcome> = outcomes.iter().collect();
    sorted.sort_by_key(|outcome| {
        (
            outcome.managed.as_deref() != Some(name),
            !outcome.is_certain,
        )
    });
    sorted
}
