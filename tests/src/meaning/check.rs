//! Checks worlds: plays their histories, serves owners' and the plugin's tables by one Envoy, sends each request to both, and
//! asks the judge.

mod compare;
mod prepared;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::{Value, json};
use traffic_lab::{Envoy, envoy_binary};

use self::compare::Judge;
use self::prepared::Prepared;
use super::backends::{Answer, Backends, Sent};
use super::judgement::Finding;
use super::world::{EXPERIMENT, NAMESPACE, Request, World};

/// The picks of a request whose shares are not measured: both ends of the split.
const PICKS: [u32; 2] = [7, 93];
/// The number of picks, and the distance of those with which shares are measured first. Where two neighbours lead to different
/// clusters, those in between are sent too. This misses only a share smaller than the distance between two shares of one cluster,
/// which no list has.
const ALL_PICKS: u32 = 100;
const STRIDE: usize = 4;
/// How many requests per step are measured.
const SWEPT: usize = 3;
/// Slack for floating point.
const EPSILON: f64 = 0.001;

const SERVICES: [&str; 8] = [
    "reviews",
    "reviews-canary",
    "ratings",
    "ratings-canary",
    EXPERIMENT,
    "legacy",
    "cart",
    "audit",
];

/// A change of a virtual host with the plugin's tables, which a check must find.
pub type Fault = fn(&mut Value);

/// An Envoy with a server for each cluster.
pub struct Checker {
    envoy: Envoy,
    backends: Backends,
    fault: Option<Fault>,
    effort: Effort,
}

/// What is checked of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Effort {
    /// Every step.
    #[default]
    All,
    /// Only the last step. Shares are measured if the flag is set.
    Last { shares: bool },
}

/// The result of checking some worlds.
#[derive(Debug, Default)]
pub struct Checked {
    /// Findings with the position of their world.
    pub findings: Vec<(usize, Finding)>,
    /// Steps whose tables were checked.
    pub steps: usize,
    /// Requests that were sent.
    pub requests: usize,
    /// Steps that the plugin refused.
    pub refused: usize,
    /// Worlds, and steps, that the model cannot translate.
    pub skipped: usize,
}

/// A request to a virtual host: position of the world, first label of the host, position of the request, and pick.
type Key = (usize, String, usize, u32);

type Answers = BTreeMap<Key, Answer>;

impl Checker {
    /// Starts Envoy and the servers.
    ///
    /// # Errors
    /// Returns `Err` if one of them does not start.
    pub async fn start() -> Result<Self> {
        let mut clusters = Vec::new();
        for service in SERVICES {
            for port in ["", ":8080", ":9090"] {
                clusters.push(format!("{NAMESPACE}/{service}{port}"));
            }
        }
        let backends = Backends::start(clusters).await?;
        let mut envoy = Envoy::start(&envoy_binary()?).await?;
        envoy.set_endpoints(&backends.endpoints()).await?;
        Ok(Self {
            envoy,
            backends,
            fault: None,
            effort: Effort::All,
        })
    }

    /// Sets what is checked of each world.
    pub(super) fn set_effort(&mut self, effort: Effort) {
        self.effort = effort;
    }

    /// Plants a fault into all of the plugin's tables, or removes it.
    pub fn plant(&mut self, fault: Option<Fault>) {
        self.fault = fault;
    }

    /// Checks worlds.
    ///
    /// # Errors
    /// Returns `Err` if an object is malformed, or Envoy rejects the routes.
    pub async fn check(&mut self, worlds: &[World]) -> Result<Checked> {
        let mut checked = Checked::default();
        let mut prepared = BTreeMap::new();
        for (index, world) in worlds.iter().enumerate() {
            match Prepared::of(world, index, self.fault).await? {
                Some(mut it) => {
                    if self.effort != Effort::All {
                        it.keep_last_step();
                    }
                    prepared.insert(index, it);
                }
                None => checked.skipped += 1,
            }
        }
        let hosts: Vec<Value> = prepared
            .values()
            .flat_map(Prepared::virtual_hosts)
            .collect();
        self.envoy
            .set_routes(&json!({"virtual_hosts": hosts, "ignore_port_in_host_matching": true}))
            .await?;

        let mut answers = Answers::new();
        let mut plan = BTreeSet::new();
        for (index, it) in &prepared {
            to_owner(*index, it, &mut plan);
        }
        self.send(worlds, plan, &mut answers, &mut checked).await?;
        let mut plan = BTreeSet::new();
        let mut swept = BTreeMap::new();
        for (index, it) in &prepared {
            for (step, served) in it.steps.iter().enumerate() {
                let judge = Judge::new(*index, it, served, &answers);
                swept.insert((*index, step), judge.plan(self.effort, &mut plan));
            }
        }
        self.send(worlds, plan, &mut answers, &mut checked).await?;
        let mut plan = BTreeSet::new();
        for ((index, step), swept) in &swept {
            let served = prepared
                .get(index)
                .and_then(|it| Some((it, it.steps.get(*step)?)));
            if let Some((it, served)) = served {
                Judge::new(*index, it, served, &answers).refine(swept, &mut plan);
            }
        }
        self.send(worlds, plan, &mut answers, &mut checked).await?;
        for (index, it) in &prepared {
            for (step, served) in it.steps.iter().enumerate() {
                let judge = Judge::new(*index, it, served, &answers);
                let swept = swept.get(&(*index, step)).into_iter().flatten();
                let found = judge.findings(swept.copied(), &mut checked);
                checked
                    .findings
                    .extend(found.into_iter().map(|found| (*index, found)));
            }
        }
        Ok(checked)
    }

    async fn send(
        &self,
        worlds: &[World],
        plan: BTreeSet<Key>,
        answers: &mut Answers,
        checked: &mut Checked,
    ) -> Result<()> {
        let request = |index: usize, request: usize| -> Option<&Request> {
            worlds.get(index)?.requests.get(request)
        };
        let plan: Vec<(Key, Sent<'_>)> = plan
            .into_iter()
            .filter_map(|key| {
                let sent = Sent {
                    request: request(key.0, key.2)?,
                    tag: key.1.clone(),
                    pick: key.3,
                };
                Some((key, sent))
            })
            .collect();
        let (keys, sent): (Vec<Key>, Vec<Sent<'_>>) = plan.into_iter().unzip();
        checked.requests += sent.len();
        let found = self.backends.send(self.envoy.address(), &sent).await?;
        answers.extend(keys.into_iter().zip(found));
        Ok(())
    }
}

/// Plans the requests to the owner's tables and to the sources alone.
fn to_owner(index: usize, prepared: &Prepared<'_>, plan: &mut BTreeSet<Key>) {
    for (at, request) in prepared.world.requests.iter().enumerate() {
        for pick in PICKS {
            plan.insert((index, prepared.owner.clone(), at, pick));
        }
        let sources = prepared.sources.iter().filter(|_| request.route.is_empty());
        for source in sources {
            plan.extend(PICKS.map(|pick| (index, source.tag.clone(), at, pick)));
        }
    }
}
