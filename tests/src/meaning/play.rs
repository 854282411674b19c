//! Plays the history of a world: the controller's calls to a router over a store in memory, and what is asked for after each
//! step.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use gloo_router::{DEFAULT_PLUGIN_NAMES, GlooRouter, Policy};
use gloo_types::ObjectKey;
use rollouts_rpc::rollout::{SetHeaderRoute, SetMirrorRoute};
use rollouts_rpc::{
    DesiredWeight, PodHashes, Rollout, RouterError, TrafficRouter as _, Verification,
    WeightDestination, error_chain,
};
use route_store::{MemoryRouteStore, RouteStore as _};
use serde::Deserialize as _;
use serde_json::Value;

use super::steps::Act;
use super::world::{EXPERIMENT, NAMESPACE, Step, World};

/// The tables and the plugin's policies after a step.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// Number of the step, from 0.
    pub(super) step: usize,
    pub(super) tables: Vec<Value>,
    /// All MirrorPolicies, those of owners too.
    pub(super) mirrors: Vec<Value>,
    /// What is asked for, by Rollout.
    pub(super) asked: Vec<Asked>,
    /// What the plugin answered to the step.
    pub(super) answer: String,
    pub(super) is_refused: bool,
}

/// What the controller has asked for on behalf of a Rollout.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// The last split that succeeded, and those that were refused since: the plugin may have carried them out in part.
    pub(super) splits: Vec<Split>,
    /// The managed routes.
    pub(super) routes: Vec<Managed>,
    /// Whether the Rollout was aborted or promoted, and SetWeight 0 succeeded.
    pub(super) is_over: bool,
    /// Whether the controller went on after the last VerifyWeight.
    pub(super) is_verified: bool,
}

/// The weights of one SetWeight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Split {
    pub(super) canary: i32,
    pub(super) experiment: i32,
}

/// A managed route.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Managed {
    pub(super) step: Act,
    /// Whether it must exist. Otherwise its step, or its removal, was refused.
    pub(super) is_certain: bool,
}

/// Plays all steps, and returns the tables after each.
///
/// # Errors
/// Returns `Err` if an object of the world is malformed.
pub(super) async fn play(world: &World) -> Result<Vec<Snapshot>> {
    let store = Arc::new(MemoryRouteStore::new(world.tables.iter().cloned())?);
    for policy in &world.mirrors {
        store.put_policy(policy.clone())?;
    }
    for service in &world.services {
        store.put_service(service.clone())?;
    }
    let policy = Policy {
        plugin_names: DEFAULT_PLUGIN_NAMES.map(str::to_owned).to_vec(),
        allow_top_placement: true,
        ..Policy::default()
    };
    let router = GlooRouter::new(Arc::clone(&store), policy).with_promotion_guard(false);
    let mut asked = vec![Asked::resting(); world.canaries.len()];
    let mut snapshots = Vec::new();
    for (index, step) in world.history.iter().enumerate() {
        let rollout = world.rollout(step.who, index);
        store.put_rollout(rollout.clone())?;
        let pass = Pass {
            rollout: Rollout::deserialize(rollout)?,
            step,
            split: split(world, index),
        };
        let answer = pass.call(&router).await?;
        if let Some(asked) = asked.get_mut(step.who) {
            asked.advance(world, index, pass.split, &answer);
        }
        snapshots.push(Snapshot {
            step: index,
            tables: tables(world, &store)?,
            mirrors: store
                .policies()
                .await?
                .iter()
                .map(|policy| policy.raw().clone())
                .collect(),
            asked: asked.clone(),
            is_refused: !answer.is_set,
            answer: answer.text,
        });
    }
    Ok(snapshots)
}

fn tables(world: &World, store: &MemoryRouteStore) -> Result<Vec<Value>> {
    let live = world.tables.iter().map(|table| {
        let name = table.pointer("/metadata/name").and_then(Value::as_str);
        let key = ObjectKey::new(NAMESPACE, name.context("a table without name")?);
        store.table(&key).context("the table is gone")
    });
    live.collect()
}

/// The split that the steps so far ask for.
fn split(world: &World, at: usize) -> Split {
    let mut split = Split::default();
    let who = world.history.get(at).map(|step| step.who);
    let so_far = world.history.iter().take(at + 1);
    for step in so_far.filter(|step| Some(step.who) == who) {
        split.experiment = 0;
        match step.act {
            Act::Weight(weight) => split.canary = weight,
            Act::Experiment(weight) => split.experiment = weight,
            Act::Abort | Act::Promote => split = Split::default(),
            Act::Header { .. } | Act::Mirror { .. } => {}
        }
    }
    split
}

/// The calls of one pass of the controller.
struct Pass<'w> {
    rollout: Rollout,
    step: &'w Step,
    split: Split,
}

struct Answer {
    is_set: bool,
    is_verified: bool,
    text: String,
}

impl Pass<'_> {
    async fn call(&self, router: &GlooRouter<MemoryRouteStore>) -> Result<Answer> {
        let rollout = &self.rollout;
        let refused = |error: RouterError| Answer {
            is_set: false,
            is_verified: false,
            text: format!("refused: {}", error_chain(error.as_error())),
        };
        let act = &self.step.act;
        // In the order of the controller (upstream `rollout/trafficrouting.go`).
        let managed = match (act, act.route()) {
            (Act::Header { .. }, Some(route)) => {
                let route = SetHeaderRoute::deserialize(route)?;
                router.set_header_route(rollout, &route).await
            }
            (Act::Mirror { .. }, Some(route)) => {
                let route = SetMirrorRoute::deserialize(route)?;
                router.set_mirror_route(rollout, &route).await
            }
            (Act::Abort | Act::Promote, _) => router.remove_managed_routes(rollout).await,
            _ => Ok(()),
        };
        if let Err(error) = managed {
            return Ok(refused(error));
        }
        let hashes = PodHashes {
            canary: rollout.status.current_pod_hash.clone(),
            stable: rollout.status.stable_rs.clone(),
        };
        let experiment = WeightDestination {
            weight: self.split.experiment,
            service_name: EXPERIMENT.to_owned(),
            pod_template_hash: "v3".to_owned(),
        };
        let runs = self.split.experiment > 0;
        let additional: Vec<_> = runs.then_some(experiment).into_iter().collect();
        let desired = DesiredWeight {
            value: self.split.canary,
            max: 100,
        };
        let set = async {
            router.update_hash(rollout, &hashes, &additional).await?;
            router.set_weight(rollout, desired, &additional).await
        };
        if let Err(error) = set.await {
            return Ok(refused(error));
        }
        let verified = router.verify_weight(rollout, desired, &additional).await;
        Ok(Answer {
            is_set: true,
            is_verified: matches!(
                verified,
                Ok(Verification::Verified | Verification::NotImplemented)
            ),
            text: match verified {
                Ok(verified) => format!("set, {verified:?}"),
                Err(error) => format!("set, not verified: {}", error_chain(error.as_error())),
            },
        })
    }
}

impl Asked {
    fn resting() -> Self {
        Self {
            splits: vec![Split::default()],
            ..Self::default()
        }
    }

    /// Notes a step and the plugin's answer.
    fn advance(&mut self, world: &World, at: usize, split: Split, answer: &Answer) {
        let wanted = in_force(world, at);
        let act = world.history.get(at).map(|step| &step.act);
        let is_last = matches!(act, Some(Act::Abort | Act::Promote));
        self.is_verified = answer.is_verified;
        if answer.is_set {
            self.is_over = is_last;
            self.splits = vec![split];
            self.routes = wanted
                .into_iter()
                .map(|step| Managed {
                    step,
                    is_certain: true,
                })
                .collect();
            return;
        }
        if !self.splits.contains(&split) {
            self.splits.push(split);
        }
        for route in &mut self.routes {
            route.is_certain &= wanted.contains(&route.step);
        }
        for step in wanted {
            if !self.routes.iter().any(|route| route.step == step) {
                self.routes.push(Managed {
                    step,
                    is_certain: false,
                });
            }
        }
    }
}

/// The header and mirror steps so far that no later step has replaced or removed.
fn in_force(world: &World, at: usize) -> Vec<Act> {
    let mut routes: Vec<Act> = Vec::new();
    let who = world.history.get(at).map(|step| step.who);
    let so_far = world.history.iter().take(at + 1);
    for step in so_far.filter(|step| Some(step.who) == who) {
        match &step.act {
            Act::Abort | Act::Promote => routes.clear(),
            act => {
                if let Some(name) = act.name() {
                    routes.retain(|other| other.name() != Some(name));
                    routes.extend(Some(act.clone()).filter(|act| !act.is_removal()));
                }
            }
        }
    }
    routes
}
