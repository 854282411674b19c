//! The judge: which outcomes of a request the steps allow, computed from the owner's route, the steps in force and the weights
//! that were asked for last.

use std::collections::BTreeMap;

use super::judgement::{Base, Outcome, Rule, Share, service_of};
use super::play::{Asked, Managed, Snapshot};
use super::served::OwnerRoute;
use super::world::{Canary, EXPERIMENT, Request, World};

/// A request with what the judge knows about it.
pub(super) struct Case<'a> {
    pub(super) world: &'a World,
    pub(super) snapshot: &'a Snapshot,
    pub(super) request: &'a Request,
    /// The owner's route that served it. A request without a route has no clusters.
    pub(super) route: &'a OwnerRoute,
    /// The sources of Rollouts with header routes on top whose matchers the request meets, by their position.
    pub(super) sources: &'a BTreeMap<usize, (usize, &'a OwnerRoute)>,
}

/// One managed route that may serve a request.
struct Candidate<'a> {
    who: usize,
    route: &'a Managed,
    /// Whether the request reached a source of the Rollout in the owner's table.
    is_own: bool,
}

impl Case<'_> {
    /// The acceptable outcomes; the first one is the most plausible.
    pub(super) fn outcomes(&self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let mut is_certain = false;
        for (who, asked) in self.snapshot.asked.iter().enumerate() {
            for candidate in self.candidates(who, asked) {
                outcomes.extend(self.outcome(&candidate));
                if candidate.route.is_certain && candidate.is_own {
                    // The later ones of this Rollout never serve the request.
                    is_certain = true;
                    break;
                }
            }
        }
        let unnamed = Outcome {
            rule: Rule::Unnamed,
            managed: None,
            is_certain: true,
            shares: self.shares(),
            copy: None,
            base: Base::Owner,
        };
        if !is_certain {
            let first = outcomes.len();
            outcomes.push(unnamed);
            outcomes.swap(0, first);
        }
        outcomes
    }

    /// The managed routes of a Rollout that name the request, in the order of `managedRoutes`.
    fn candidates<'a>(&self, who: usize, asked: &'a Asked) -> Vec<Candidate<'a>> {
        let Some(canary) = self.world.canaries.get(who) else {
            return Vec::new();
        };
        if !self.request.route.is_empty() {
            return Vec::new();
        }
        let is_own = self.stable(canary).is_some();
        let mut sources = self.sources.values();
        let is_on_top = sources.any(|(owner, _)| *owner == who);
        let mut candidates: Vec<Candidate<'a>> = asked
            .routes
            .iter()
            .filter(|route| route.step.names(self.request, canary.needs_all))
            .filter(|route| is_own || (is_on_top && !route.step.is_mirror()))
            .map(|route| Candidate { who, route, is_own })
            .collect();
        let rank = |candidate: &Candidate<'_>| {
            let name = candidate.route.step.name();
            canary
                .managed
                .iter()
                .position(|managed| Some(&**managed) == name)
        };
        // Header routes on top precede mirror routes, which stand before their sources.
        candidates.sort_by_key(|it| (is_on_top && it.route.step.is_mirror(), rank(it)));
        candidates
    }

    fn outcome(&self, candidate: &Candidate<'_>) -> Vec<Outcome> {
        let Some(canary) = self.world.canaries.get(candidate.who) else {
            return Vec::new();
        };
        let managed = candidate.route.step.name().map(str::to_owned);
        if candidate.route.step.is_mirror() {
            let Some((stable, _)) = self.stable(canary) else {
                return Vec::new();
            };
            return vec![Outcome {
                rule: Rule::Mirror,
                managed,
                is_certain: candidate.route.is_certain,
                shares: self.shares(),
                copy: Some(canary_cluster(&stable, canary)),
                base: Base::Owner,
            }];
        }
        let header = |stable: &str, base| Outcome {
            rule: Rule::Header,
            managed: managed.clone(),
            is_certain: candidate.route.is_certain,
            shares: vec![Share {
                cluster: canary_cluster(stable, canary),
                min: 100.0,
                max: 100.0,
            }],
            copy: None,
            base,
        };
        let own = self
            .stable(canary)
            .map(|(stable, _)| header(&stable, Base::Owner));
        // On top, the header route of another source may take the request first.
        let sources = self
            .sources
            .iter()
            .filter(|(_, (who, _))| *who == candidate.who);
        let top = sources.filter_map(|(source, (_, route))| {
            let (stable, _) = stable_of(route, canary)?;
            Some(header(&stable, Base::Source(*source)))
        });
        own.into_iter().chain(top).collect()
    }

    /// The cluster of a Rollout's stable Service in the route, and its share.
    fn stable(&self, canary: &Canary) -> Option<(String, u32)> {
        if !self.is_selected(canary) {
            return None;
        }
        stable_of(self.route, canary)
    }

    /// Whether the Rollout selects the route: every HTTP route of its tables, and TCP and TLS routes by port.
    fn is_selected(&self, canary: &Canary) -> bool {
        match self.request.route.as_str() {
            "" => true,
            "tcp0" => canary.tcp == Some(9000),
            "tcp1" => canary.tcp == Some(9001),
            _ => canary.tls.is_some(),
        }
    }

    /// The shares of all clusters of the route.
    fn shares(&self) -> Vec<Share> {
        let mut shares = Shares::default();
        for (cluster, weight) in &self.route.clusters {
            let weight = f64::from(*weight);
            let owner = self.world.canaries.iter().enumerate().find(|(_, canary)| {
                self.stable(canary)
                    .is_some_and(|(stable, _)| stable == *cluster)
            });
            match owner.and_then(|(who, canary)| Some((canary, self.snapshot.asked.get(who)?))) {
                Some((canary, asked)) => split(cluster, canary, weight, asked, &mut shares),
                None => shares.add(cluster.clone(), (weight, weight)),
            }
        }
        shares.0
    }
}

/// The shares of a route. Two Rollouts may have an experiment of the same Service.
#[derive(Default)]
struct Shares(Vec<Share>);

impl Shares {
    fn add(&mut self, cluster: String, (min, max): (f64, f64)) {
        match self.0.iter_mut().find(|share| share.cluster == cluster) {
            Some(share) => {
                share.min += min;
                share.max += max;
            }
            None => self.0.push(Share { cluster, min, max }),
        }
    }
}

/// Divides the share of a stable Service. Of several splits, any may be in force.
fn split(stable: &str, canary: &Canary, share: f64, asked: &Asked, shares: &mut Shares) {
    let bounds = |percent: &dyn Fn(usize) -> i32| {
        let mut bounds = (f64::MAX, 0.0_f64);
        for index in 0..asked.splits.len() {
            let percent = f64::from(percent(index));
            let exact = share * percent / 100.0;
            let (min, max) = match percent {
                0.0 => (0.0, 0.0),
                100.0 => (share, share),
                // Rounded, but both sides get at least 1.
                _ => ((exact - 1.0).max(1.0), (exact + 1.0).min(share - 1.0)),
            };
            bounds = (bounds.0.min(min), bounds.1.max(max));
        }
        bounds
    };
    let at = |index: usize| asked.splits.get(index).copied().unwrap_or_default();
    let to_canary = bounds(&|index| at(index).canary);
    let to_experiment = bounds(&|index| at(index).experiment);
    let rest = (
        (share - to_canary.1 - to_experiment.1).max(0.0),
        share - to_canary.0 - to_experiment.0,
    );
    let parts = [
        (stable.to_owned(), rest),
        (canary_cluster(stable, canary), to_canary),
        (renamed(stable, EXPERIMENT), to_experiment),
    ];
    for (cluster, bounds) in parts {
        shares.add(cluster, bounds);
    }
}

fn stable_of(route: &OwnerRoute, canary: &Canary) -> Option<(String, u32)> {
    let mut clusters = route.clusters.iter();
    let found = clusters.find(|(cluster, _)| service_of(cluster) == canary.name);
    found.cloned()
}

fn canary_cluster(stable: &str, canary: &Canary) -> String {
    renamed(stable, &canary.canary())
}

/// The cluster of another Service with the same namespace and port.
fn renamed(cluster: &str, service: &str) -> String {
    let (namespace, rest) = cluster.split_once('/').unwrap_or_default();
    let port = rest.split_once(':').map(|(_, port)| format!(":{port}"));
    format!("{namespace}/{service}{}", port.unwrap_or_default())
}
