//! Plays a scenario call by call. Each call of the controller is made twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use gloo_router::{GlooRouter, Policy};
use gloo_types::ObjectKey;
use rollouts_rpc::host::{CallError, RouterClient};
use rollouts_rpc::rollout::{Rollout, SetHeaderRoute, SetMirrorRoute};
use rollouts_rpc::testing::MemoryHost;
use rollouts_rpc::{PodHashes, Router, ServeConfig, Verification, WeightDestination};
use route_store::{RouteStore as _, Store, StoreError};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::expect::{self, Tables};
use crate::place::{Place, Watched};
use crate::scenario::{Action, Call, Scenario, key};

pub(super) async fn play(scenario: &Scenario, place: &impl Place) -> Result<()> {
    let mut player = Player::start(scenario, place).await?;
    for (index, call) in scenario.calls.iter().enumerate() {
        let named = call.name.as_deref().unwrap_or_default();
        player
            .step(call)
            .await
            .with_context(|| format!("call {} {named} {:?}", index + 1, call.action()))?;
    }
    player.plugin.quit().await
}

/// The state of a running scenario.
struct Player<'a, P: Place> {
    scenario: &'a Scenario,
    place: &'a P,
    store: Arc<Watched<P::Store>>,
    plugin: Plugin,
    /// Rollouts for which a call was made so far, as the API server shows them.
    rollouts: BTreeMap<Option<String>, Value>,
    /// The tables as their owners created them, in the order of the file.
    objects: Vec<(ObjectKey, Value)>,
    original: Tables,
    named: BTreeMap<String, Tables>,
}

impl<'a, P: Place> Player<'a, P> {
    async fn start(scenario: &'a Scenario, place: &'a P) -> Result<Self> {
        let objects = scenario.objects()?;
        for (_, object) in &objects {
            place.create(object.clone()).await?;
        }
        for service in scenario.services()? {
            place.create(service).await?;
        }
        let store = Watched::new(place.store());
        let mut player = Self {
            plugin: Plugin::start(scenario, Arc::clone(&store)).await?,
            scenario,
            place,
            store,
            rollouts: BTreeMap::new(),
            objects,
            original: Tables::new(),
            named: BTreeMap::new(),
        };
        player.original = player.tables().await?;
        Ok(player)
    }

    async fn step(&mut self, call: &Call) -> Result<()> {
        let action = call.action()?;
        let before = self.tables().await?;
        let writes = self.store.writes();
        if let Some(edit) = &call.meanwhile {
            self.store
                .edit_before_the_next_write(self.table(call)?, edit.clone());
        }
        let outcome = self.perform(call, &action).await?;
        let after = self.tables().await?;
        outcome.check(call)?;
        let (first, _) = self.objects.first().context("no tables")?;
        expect::check(call, first, &self.original, &before, &after, &self.named)?;
        let policies = self.store.unwatched().policies().await?;
        if let Some(expected) = call.policies {
            let actual = policies.len();
            ensure!(
                actual == expected,
                "{actual} policies, expected {expected}: {policies:#?}"
            );
        }
        ensure!(
            !call.restored || policies.is_empty(),
            "policies are left: {policies:#?}"
        );
        let written = self.store.writes() - writes;
        if let Some(expected) = call.writes {
            ensure!(written == expected, "{written} writes, expected {expected}");
        }
        if action.is_from_the_controller() {
            expect::check_validity(&self.original, &before, &after)?;
        }
        if action.is_from_the_controller() && !call.once {
            let again = self.perform(call, &action).await?;
            ensure!(again == outcome, "repeated, the outcome is {again:?}");
            let again = self.store.writes() - writes - written;
            ensure!(again == 0, "repeated, the call wrote {again} times");
        }
        if let Some(name) = &call.name {
            self.named.insert(name.clone(), after);
        }
        Ok(())
    }

    async fn perform(&mut self, call: &Call, action: &Action<'_>) -> Result<Outcome> {
        let scenario = self.scenario;
        let api = match self.rollouts.get_mut(&call.rollout_name) {
            Some(rollout) => rollout,
            None => {
                let rollout = scenario.rollout(call.rollout_name.as_deref())?;
                self.rollouts
                    .entry(call.rollout_name.clone())
                    .or_insert(rollout)
            }
        };
        if !call.rollout.is_null() {
            json_patch::merge(api, &call.rollout);
        }
        let step = match action {
            Action::SetHeaderRoute(route) => Some(step(api, "setHeaderRoute", route)?),
            Action::SetMirrorRoute(route) => Some(step(api, "setMirrorRoute", route)?),
            _ => None,
        };
        let rollout = Rollout::deserialize(&*api)?;
        let additional: Vec<_> = call.additional.iter().map(destination).collect();
        let router = &self.plugin.router;
        let answer = match action {
            Action::SetWeight(weight) => router.set_weight(&rollout, *weight, &additional).await,
            Action::VerifyWeight(weight) => {
                let verified = router.verify_weight(&rollout, *weight, &additional).await;
                return Outcome::of(verified.map(Some));
            }
            Action::SetHeaderRoute(_) => {
                let route = SetHeaderRoute::deserialize(step.unwrap_or_default())?;
                router.set_header_route(&rollout, &route).await
            }
            Action::SetMirrorRoute(_) => {
                let route = SetMirrorRoute::deserialize(step.unwrap_or_default())?;
                router.set_mirror_route(&rollout, &route).await
            }
            Action::RemoveManagedRoutes => router.remove_managed_routes(&rollout).await,
            Action::UpdateHash(hashes) => {
                let hashes = PodHashes {
                    canary: hashes.canary.clone(),
                    stable: hashes.stable.clone(),
                };
                router.update_hash(&rollout, &hashes, &additional).await
            }
            Action::Edit(edit) => {
                self.store
                    .unwatched()
                    .patch(&self.table(call)?, edit)
                    .await?;
                Ok(())
            }
            Action::Reapply => {
                let table = self.table(call)?;
                let original = self.objects.iter().find(|(key, _)| *key == table);
                let (_, original) = original.context("there is no such table")?;
                let replace =
                    json!([{"op": "replace", "path": "/spec", "value": original.get("spec")}]);
                let replace = serde_json::from_value(replace)?;
                self.store.unwatched().patch(&table, &replace).await?;
                Ok(())
            }
            Action::Status(status) => {
                let table = self.table(call)?;
                self.place.set_status(&table, status).await?;
                Ok(())
            }
            Action::Delete => {
                let table = self.table(call)?;
                self.place.delete(&table).await?;
                Ok(())
            }
            Action::Restart => {
                let store = Arc::clone(&self.store);
                self.plugin = Plugin::start(scenario, store).await?;
                Ok(())
            }
            Action::Change => Ok(()),
        };
        Outcome::of(answer.map(|()| None))
    }

    /// Returns the table of a call.
    fn table(&self, call: &Call) -> Result<ObjectKey> {
        match &call.table {
            Some(name) => key(name),
            None => Ok(self.objects.first().context("no tables")?.0.clone()),
        }
    }

    async fn tables(&self) -> Result<Tables> {
        let mut tables = Tables::new();
        for (key, _) in &self.objects {
            let table = match self.store.unwatched().read(key).await {
                Ok(table) => Some(table),
                Err(StoreError::NotFound { .. }) => None,
                Err(error) => return Err(error.into()),
            };
            tables.insert(key.clone(), table);
        }
        Ok(tables)
    }
}

/// The router, called through a connection of the plugin protocol in this process.
struct Plugin {
    host: MemoryHost,
    router: RouterClient,
}

impl Plugin {
    async fn start(scenario: &Scenario, store: Arc<impl Store>) -> Result<Self> {
        let policy = Policy {
            route_table_namespaces: scenario.flags.route_table_namespaces.clone(),
            destination_namespaces: scenario.flags.destination_namespaces.clone(),
            allow_top_placement: scenario.flags.allow_top_placement,
            ..Policy::default()
        };
        let router = GlooRouter::new(store, policy);
        let host = MemoryHost::start(ServeConfig::new(), Router(router)).await?;
        let router = host.router().await?;
        Ok(Self { host, router })
    }

    async fn quit(self) -> Result<()> {
        self.host.quit().await??;
        Ok(())
    }
}

/// The outcome of a call.
#[derive(Debug, PartialEq)]
enum Outcome {
    Done(Option<Verification>),
    Refused(String),
}

impl Outcome {
    fn of(answer: Result<Option<Verification>, CallError>) -> Result<Self> {
        match answer {
            Ok(verification) => Ok(Self::Done(verification)),
            Err(CallError::Router(text)) => Ok(Self::Refused(text)),
            Err(error) => Err(error.into()),
        }
    }

    fn check(&self, call: &Call) -> Result<()> {
        match (self, &call.error) {
            (Self::Done(verification), None) => {
                if let Some(expected) = &call.verification {
                    let verification = verification.map(|it| format!("{it:?}"));
                    ensure!(
                        verification.as_ref() == Some(expected),
                        "{verification:?}, expected {expected}"
                    );
                }
                Ok(())
            }
            (Self::Refused(text), Some(expected)) => {
                ensure!(
                    text.contains(expected),
                    "{text:?} does not say {expected:?}"
                );
                ensure!(!text.contains(['\n', '%']), "not one plain line: {text:?}");
                Ok(())
            }
            (Self::Done(_), Some(expected)) => Err(anyhow!("no error with {expected:?}")),
            (Self::Refused(text), None) => Err(anyhow!("refused: {text}")),
        }
    }
}

/// Returns the content of a step: `route` itself, or that of the Rollout's step with this route name, which becomes the
/// current step.
fn step(rollout: &mut Value, kind: &str, route: &Value) -> Result<Value> {
    let Some(name) = route.as_str() else {
        return Ok(route.clone());
    };
    let steps = rollout.pointer("/spec/strategy/canary/steps");
    let steps = steps.and_then(Value::as_array).into_iter().flatten();
    let found = steps.enumerate().find_map(|(index, step)| {
        let route = step.get(kind)?;
        let is_it = route.get("name").is_some_and(|it| it == name);
        is_it.then(|| (index, route.clone()))
    });
    let (index, route) = found.with_context(|| format!("no {kind} step has route {name}"))?;
    json_patch::merge(rollout, &json!({"status": {"currentStepIndex": index}}));
    Ok(route)
}

fn destination((service, weight): &(String, i32)) -> WeightDestination {
    WeightDestination {
        weight: *weight,
        service_name: service.clone(),
        pod_template_hash: "e1".to_owned(),
    }
}
