//! Plays a history: every action in turn, the invariants after each call, and the return to rest.

use std::collections::{BTreeSet, VecDeque};
use std::mem::discriminant;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use gloo_router::{GlooRouter, admissible};
use rollouts_rpc::rollout::{SetHeaderRoute, SetMirrorRoute};
use rollouts_rpc::{Rollout, TrafficRouter as _, Verification};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::api::{Api, CALL_TIMEOUT, Event, Met, router};
use crate::controller::{Call, Controller, Pass, Pod, Roles, header_route, mirror_route};
use crate::documents::{annotation, http, owned, tables};
use crate::history::{Action, Edit, History, Second, Services, Setup, Who};
use crate::oracle;
use crate::owner::{Status, Table, Trust};

/// Passes of each Rollout after which nothing may be left to do.
const PASSES_TO_REST: usize = 14;

/// Plays a history. `seen` is called for every action.
///
/// # Errors
/// Returns `Err` with the violated invariant and the action before it, also if the plugin panics.
pub(crate) fn play(history: &History, seen: &dyn Fn()) -> Result<(), String> {
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| play_all(history, seen)));
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

fn play_all(history: &History, seen: &dyn Fn()) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let mut play = Play::new(&history.setup);
        for (index, action) in history.actions.iter().enumerate() {
            seen();
            if play.is_traced {
                println!("- {action}");
            }
            let outcome = play.act(action).await;
            outcome.map_err(|why| format!("after action {} ({action}): {why}", index + 1))?;
        }
        play.rest().await.map_err(|why| format!("at rest: {why}"))
    })
}

/// Duration of a pass of the controller, with the time until the next one.
const PASS: Duration = Duration::from_secs(5);

/// The Pods that the stable and the canary Service of a Rollout select, for several passes.
type Selected = VecDeque<[(String, Vec<Pod>); 2]>;

struct Play {
    api: Api,
    /// Number of passes after which endpoints follow the selectors, and what Services selected in each of these passes, by
    /// Rollout.
    lag: Option<usize>,
    selected: Vec<Selected>,
    router: GlooRouter<Api>,
    controllers: Vec<Controller>,
    /// The passes of each Rollout that set a weight, for late processes.
    passes: Vec<Vec<Pass>>,
    /// Tables in which this process has set a weight, by Rollout.
    known: BTreeSet<(Who, usize)>,
    /// Tables that other clients have changed since the pass began.
    changed: BTreeSet<usize>,
    /// Whether tables can be selected and deselected.
    by_label: bool,
    is_traced: bool,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Done(Option<Verification>),
    Refused(String),
    /// The plugin's process ended.
    Killed,
}

impl Play {
    fn new(setup: &Setup) -> Self {
        let anchor = match setup.services {
            Services::PingPong => "reviews-ping",
            Services::Pair | Services::Subsets => "reviews",
        };
        let preview =
            (setup.has_preview && setup.services == Services::Pair).then_some("reviews-canary");
        let documents = tables(anchor, preview, setup.by_label)
            .into_iter()
            .take(setup.tables);
        let tables: Vec<Table> = documents.map(Table::new).collect();
        let mut selector = json!({"namespace": "shop", "labels": {"canary": "on"}});
        if !setup.by_label {
            let names: Vec<&str> = tables.iter().map(|table| table.key.name.as_str()).collect();
            selector = json!({"namespace": "shop", "names": names});
        }
        let mut plugin = json!({"routeTableSelector": selector});
        let plain = plugin.clone();
        if setup.services == Services::Subsets {
            plugin["subset"] = json!({"service": anchor});
        }
        let mut controllers = vec![Controller::first(setup, plugin)];
        match setup.second {
            Second::Absent => {}
            Second::Neighbour => {
                controllers.push(Controller::second("ratings", "ratings", setup, plain));
            }
            // All Rollouts distinguish subsets by the same label.
            Second::Rival if setup.services == Services::Subsets => {}
            Second::Rival => controllers.push(Controller::second("rival", anchor, setup, plain)),
        }
        let api = Api::new(tables, controllers.iter().map(Status::of).collect());
        let mut play = Self {
            router: router(Arc::new(api.clone())),
            api,
            // With a second Rollout behind the same Service, the endpoints would never be of one version.
            lag: setup.lag.filter(|_| setup.second != Second::Rival),
            selected: vec![Selected::new(); controllers.len()],
            passes: vec![Vec::new(); controllers.len()],
            controllers,
            known: BTreeSet::new(),
            changed: BTreeSet::new(),
            by_label: setup.by_label,
            is_traced: std::env::var_os("MODEL_TRACE").is_some(),
        };
        for who in 0..play.controllers.len() {
            play.move_endpoints(who);
        }
        play.publish();
        play
    }

    /// Sets the endpoints to the Pods that were selected `lag` passes ago.
    fn move_endpoints(&mut self, who: Who) {
        let Some(lag) = self.lag else { return };
        let selected = &mut self.selected[who];
        selected.extend(self.controllers[who].selected_pods());
        while selected.len() > lag + 1 {
            selected.pop_front();
        }
        for (service, pods) in selected.front().into_iter().flatten() {
            self.api.show_endpoints(service, pods);
        }
    }

    /// Publishes the Rollouts to the plugin and to the owners.
    fn publish(&self) {
        self.api.world().statuses = self.controllers.iter().map(Status::of).collect();
        for controller in &self.controllers {
            self.api.show_rollout(controller.object());
        }
    }

    async fn act(&mut self, action: &Action) -> Result<(), String> {
        let at = |who: &Who| who % self.controllers.len();
        match action {
            Action::Reconcile(who) => {
                self.reconcile(at(who)).await?;
            }
            Action::Update(who) => self.change(*who, Controller::update),
            Action::Rollback(who) => self.change(*who, Controller::rollback),
            Action::Abort(who) => self.change(*who, Controller::abort),
            Action::Retry(who) => self.change(*who, Controller::retry),
            Action::Promote(who) => self.change(*who, Controller::promote),
            Action::PromoteFull(who) => self.change(*who, Controller::promote_full),
            Action::CanaryDown(who) => self.change(*who, Controller::canary_down),
            Action::StableDown(who) => self.change(*who, Controller::stable_down),
            Action::Edit {
                edit: Edit::Select | Edit::Deselect,
                ..
            } if !self.by_label => {}
            Action::Edit {
                table,
                edit,
                when: 0,
            } => self.api.edit(*table, *edit),
            Action::Edit { table, edit, when } => {
                self.api.schedule(*when, Event::Edit(*table, *edit));
            }
            Action::Fault { on, fault, times } => self.api.fail(*on, *fault, *times),
            Action::Heal => self.api.heal(),
            Action::Restart { when: 0 } => self.restart(),
            Action::Restart { when } => self.api.schedule(*when, Event::Restart),
            Action::Late { who, ago, when } => {
                let passes = &self.passes[at(who)];
                let pass = passes
                    .len()
                    .checked_sub(*ago + 1)
                    .map(|index| passes[index].clone());
                // For a process from before a promotion, the subset that is now stable is the canary's.
                let pass = pass.filter(|pass| {
                    let now = self.controllers[at(who)].pass().roles.stable;
                    now.1.is_none() || now == pass.roles.stable
                });
                match pass {
                    Some(pass) if *when == 0 => self.api.late(&pass).await,
                    Some(pass) => self.api.schedule(*when, Event::Late(Box::new(pass))),
                    None => {}
                }
            }
        }
        Ok(())
    }

    fn change(&mut self, who: Who, change: impl Fn(&mut Controller)) {
        let who = who % self.controllers.len();
        change(&mut self.controllers[who]);
        self.publish();
    }

    fn restart(&mut self) {
        self.router = router(Arc::new(self.api.clone()));
        self.known.clear();
    }

    /// Makes one pass of the controller.
    async fn reconcile(&mut self, who: Who) -> Result<(), String> {
        let pass = self.controllers[who].pass();
        self.changed.clear();
        // The controller changes the selectors before it calls plugins.
        self.move_endpoints(who);
        let mut is_verified = true;
        let mut is_done = true;
        for call in &pass.calls {
            match self.call(who, &pass, call).await? {
                Outcome::Done(verification) => {
                    is_verified &= verification != Some(Verification::NotVerified);
                }
                Outcome::Refused(_) | Outcome::Killed => {
                    is_done = false;
                    break;
                }
            }
        }
        let sets_weight = pass.calls.contains(&Call::SetWeight);
        if sets_weight {
            self.passes[who].push(pass.clone());
            is_admissible(&pass, &pass.rollout)?;
        }
        if is_done {
            let before = self.controllers[who].weights.canary;
            self.controllers[who].finish(&pass, is_verified);
            if self.controllers[who].weights.canary != before {
                self.api.miss_status();
            }
            let written = self.controllers[who].rollout();
            if sets_weight && written.status.is_promoted() == pass.rollout.status.is_promoted() {
                is_admissible(&pass, &written)?;
            }
        }
        self.controllers[who].wait();
        self.publish();
        tokio::time::sleep(PASS).await;
        Ok(())
    }

    /// Makes one call and checks the invariants after it.
    async fn call(&mut self, who: Who, pass: &Pass, call: &Call) -> Result<Outcome, String> {
        let said = |why: String| {
            format!(
                "{call:?} {} of {}: {why}",
                pass.desired.value, pass.desired.max
            )
        };
        let before = self.live();
        self.api.world().met = Met::default();
        let was_calm = self.api.is_calm();
        let writes = self.api.writes();
        let outcome = self.ask(pass, call).await;
        if self.is_traced {
            println!("{call:?} {} for {who}: {outcome:?}", pass.desired.value);
            self.print_tables();
        }
        if outcome == Outcome::Killed {
            self.restart();
        }
        let met = self.api.world().met.clone();
        self.changed.extend(&met.changed);
        let is_idle = self.api.writes() == writes && met.changed.is_empty();
        if *call == Call::SetWeight || !is_idle || matches!(outcome, Outcome::Refused(_)) {
            self.check(who, pass, call, &outcome, &before, &met)
                .map_err(said)?;
        }
        let asks_for_writes = matches!(
            call,
            Call::SetWeight | Call::SetHeaderRoute(_) | Call::SetMirrorRoute(_)
        );
        let is_answered = outcome != Outcome::Killed;
        if was_calm && is_answered && (asks_for_writes || self.api.writes() > writes) {
            if matches!(outcome, Outcome::Refused(_)) {
                // One part of a call may have done what another part was waiting for.
                self.ask(pass, call).await;
            }
            let writes = self.api.writes();
            let again = self.ask(pass, call).await;
            let written = self.api.writes() - writes;
            // A restored table may no longer forward to the Rollout, so that later calls are refused.
            let has_no_target = {
                let live = self.live();
                let world = self.api.world();
                let owners = world.tables.iter().map(|table| &table.document);
                let mut tables = owners.chain(live.iter().flatten());
                tables.any(|table| has_no_target(table, &pass.roles))
            };
            if written > 0 || discriminant(&again) != discriminant(&outcome) && !has_no_target {
                return Err(said(format!(
                    "repeated, the call wrote {written} times: {again:?} after {outcome:?}"
                )));
            }
        }
        Ok(outcome)
    }

    /// Makes one call, without checks.
    async fn ask(&self, pass: &Pass, call: &Call) -> Outcome {
        let Pass {
            rollout,
            desired,
            hashes,
            additional,
            ..
        } = pass;
        let router = &self.router;
        let answer = async {
            match call {
                Call::RemoveManagedRoutes => router.remove_managed_routes(rollout).await,
                Call::SetHeaderRoute(is_set) => {
                    let route =
                        SetHeaderRoute::deserialize(header_route(*is_set)).expect("a header route");
                    router.set_header_route(rollout, &route).await
                }
                Call::SetMirrorRoute(is_set) => {
                    let route =
                        SetMirrorRoute::deserialize(mirror_route(*is_set)).expect("a mirror route");
                    router.set_mirror_route(rollout, &route).await
                }
                Call::UpdateHash => router.update_hash(rollout, hashes, additional).await,
                Call::SetWeight => router.set_weight(rollout, *desired, additional).await,
                Call::VerifyWeight => {
                    return router
                        .verify_weight(rollout, *desired, additional)
                        .await
                        .map(Some);
                }
            }
            .map(|()| None)
        };
        tokio::select! {
            biased;
            () = self.api.killed() => Outcome::Killed,
            answer = tokio::time::timeout(CALL_TIMEOUT, answer) => match answer {
                Ok(Ok(verification)) => Outcome::Done(verification),
                Ok(Err(error)) => Outcome::Refused(rollouts_rpc::error_chain(error.as_error())),
                Err(_) => Outcome::Refused("no answer in time".to_owned()),
            },
        }
    }

    fn check(
        &mut self,
        who: Who,
        pass: &Pass,
        call: &Call,
        outcome: &Outcome,
        before: &[Option<Value>],
        met: &Met,
    ) -> Result<(), String> {
        let after = self.live();
        let name = self.controllers[who].key().name;
        let others = self.roles_but(who);
        {
            let mut world = self.api.world();
            for (index, table) in world.tables.iter_mut().enumerate() {
                let Some(after) = &after[index] else { continue };
                oracle::check_owner_parts(table, after)?;
                table.note_live(after);
                let Some(before) = before[index]
                    .as_ref()
                    .filter(|_| !met.changed.contains(&index))
                else {
                    continue;
                };
                oracle::check_other_rollouts(table, before, after, &name, &pass.roles, &others)?;
                let broken = oracle::broken_rules(after);
                let was_broken = !oracle::broken_rules(before).is_empty() || table.was_invalid;
                if !broken.is_empty() && !was_broken {
                    return Err(format!(
                        "{} is not valid to Gloo: {}",
                        table.key,
                        broken.join("; ")
                    ));
                }
            }
        }
        match (call, outcome) {
            (Call::RemoveManagedRoutes, Outcome::Refused(why)) => Err(format!(
                "the error keeps the controller from calling SetWeight: {why}"
            )),
            (Call::SetWeight, Outcome::Done(_)) => self.check_done(who, pass, &after, met),
            (Call::SetWeight, Outcome::Refused(why)) => {
                self.check_refused(who, pass, before, &after, met, why)
            }
            _ => Ok(()),
        }
    }

    /// Checks the tables after a successful SetWeight.
    fn check_done(
        &mut self,
        who: Who,
        pass: &Pass,
        after: &[Option<Value>],
        met: &Met,
    ) -> Result<(), String> {
        let name = self.controllers[who].key().name;
        let others = self.roles_but(who);
        let mut world = self.api.world();
        if world.tables.iter().all(|table| table.is_selected) && oracle::is_down(pass) {
            self.known.retain(|(of, _)| *of != who);
        }
        for (index, table) in world.tables.iter_mut().enumerate() {
            let Some(live) = after[index]
                .as_ref()
                .filter(|_| !met.changed.contains(&index))
            else {
                continue;
            };
            if !table.is_selected {
                // With ping-pong, the owner's text may forward to the Service that is now the canary's.
                let is_ping_pong = pass.roles.is_ping_pong();
                let met_failure = !met.failed.is_empty() || met.reads_failed || met.policies_failed;
                if self.known.remove(&(who, index)) && !met_failure && !is_ping_pong {
                    let resting = resting(pass);
                    none(oracle::wrong_routes(table, live, &resting, &others))?;
                }
                continue;
            }
            let (wrong, is_held) = wrong_routes(table, live, pass, &others, self.lag.is_some());
            // At rest there is no record.
            if !oracle::is_down(pass) || is_held {
                self.known.insert((who, index));
            }
            none(wrong)?;
            if !self.changed.contains(&index) && !table.is_broken() {
                oracle::managed_routes(table, live, &name, pass)?;
            }
            for (route, at) in owned(live).into_iter().enumerate() {
                let owners = http(&table.document)[route].clone();
                let is_rest = annotation(live).is_none() && oracle::is_rest(&owners, pass);
                if is_rest && oracle::routes_to(&owners, &pass.roles) {
                    table.adopt(route, &http(live)[at]);
                }
            }
        }
        Ok(())
    }

    /// Checks the tables and the error after a failed SetWeight.
    fn check_refused(
        &self,
        who: Who,
        pass: &Pass,
        before: &[Option<Value>],
        after: &[Option<Value>],
        met: &Met,
        why: &str,
    ) -> Result<(), String> {
        if why.contains(['\n', '%']) {
            return Err(format!("not one plain line: {why:?}"));
        }
        let others = self.roles_but(who);
        let world = self.api.world();
        let selected = || {
            world
                .tables
                .iter()
                .enumerate()
                .filter(|(_, table)| table.is_selected)
        };
        let is_unplannable = |table: &Table| {
            table.is_broken() || table.is_deleted || has_no_target(&table.document, &pass.roles)
        };
        let has_reason = met.reads_failed
            || met.policies_failed
            || !met.failed.is_empty()
            || !met.changed.is_empty()
            // A table that is no longer selected may still have to be restored.
            || world.tables.iter().any(|table| !table.is_selected)
            || selected().any(|(_, table)| is_unplannable(table) || table.trust.iter().any(|trust| *trust != Trust::Bytes))
            || self.is_disputed(pass, &others);
        if !has_reason {
            return Err(format!("refused without a reason: {why}"));
        }
        for (index, table) in selected() {
            let (Some(before), Some(after)) = (&before[index], &after[index]) else {
                continue;
            };
            if met.changed.contains(&index) {
                continue;
            }
            let (wrong, _) = wrong_routes(table, after, pass, &others, self.lag.is_some());
            let grows = |table: &(Value, Value)| {
                let shares =
                    [&table.0, &table.1].map(|table| oracle::canary_shares(table, &pass.roles));
                shares[0]
                    .iter()
                    .zip(&shares[1])
                    .any(|(before, after)| after > before)
            };
            let plans_fail = selected()
                .any(|(_, table)| table.is_broken() || table.is_deleted && !self.by_label);
            if plans_fail
                && met.changed.is_empty()
                && !oracle::is_down(pass)
                && grows(&(before.clone(), after.clone()))
            {
                return Err(format!(
                    "{} got more canary although another table cannot be planned: {why}",
                    table.key
                ));
            }
            if wrong.is_empty() || !oracle::is_down(pass) {
                continue;
            }
            let is_excused = met.reads_failed
                || met.failed.contains(&index)
                || has_no_target(&table.document, &pass.roles);
            if !is_excused {
                return Err(format!(
                    "weight 0 was not written: {}; the error is {why}",
                    wrong.join("; ")
                ));
            }
            if !met.reads_failed && !why.contains(&table.key.to_string()) {
                return Err(format!(
                    "{} was not changed, and the error does not name it: {why}",
                    table.key
                ));
            }
        }
        Ok(())
    }

    /// Whether another Rollout has the same stable Service.
    fn is_disputed(&self, pass: &Pass, others: &[Roles]) -> bool {
        others.iter().any(|roles| {
            roles
                .anchors
                .iter()
                .any(|anchor| pass.roles.anchors.contains(anchor))
        })
    }

    /// Brings the model to rest: owners repair what is broken, and nothing is rolled out. Then checks that every table is
    /// restored.
    async fn rest(&mut self) -> Result<(), String> {
        self.api.heal();
        self.api.forget_events();
        let tables = self.live().len();
        for table in 0..tables {
            if self.live()[table].is_none() {
                self.api.edit(table, Edit::Recreate);
            }
            self.api.edit(table, Edit::Mend);
            if !self.api.world().tables[table].is_selected {
                self.api.edit(table, Edit::Select);
            }
        }
        for who in 0..self.controllers.len() {
            if self.controllers[who].is_pong() {
                // The owner's text returns when ping is stable again.
                self.change(who, Controller::update);
                self.change(who, Controller::promote_full);
                for _ in 0..PASSES_TO_REST {
                    self.reconcile(who).await?;
                }
            }
            self.change(who, Controller::abort);
        }
        let mut quiet_passes = 0;
        for _ in 0..PASSES_TO_REST {
            let writes = self.api.writes();
            for who in 0..self.controllers.len() {
                self.reconcile(who).await?;
            }
            quiet_passes = if self.api.writes() == writes {
                quiet_passes + 1
            } else {
                0
            };
            if quiet_passes > 3 {
                break;
            }
        }
        if quiet_passes < 2 {
            return Err("it does not stop writing".to_owned());
        }
        let policies = self.api.count_policies().await;
        let live = self.live();
        let world = self.api.world();
        for (table, live) in world.tables.iter().zip(&live) {
            let Some(live) = live else { continue };
            for who in 0..self.controllers.len() {
                let mut pass = self.controllers[who].pass();
                pass = resting(&pass);
                // While pong is stable, the routes of that Rollout differ from their owner's text.
                let others = self.controllers.iter().enumerate();
                let others = others.filter(|(index, other)| *index != who && other.is_pong());
                let others: Vec<Roles> = others.map(|(_, other)| other.pass().roles).collect();
                none(oracle::wrong_routes(table, live, &pass, &others))?;
            }
            // With ping-pong the owner's text returns when ping is stable, which takes a rollout that is not refused.
            let is_owners = !self.controllers.iter().any(Controller::is_pong);
            if is_owners && table.trust.iter().all(|trust| *trust == Trust::Bytes) {
                oracle::check_restored(table, live)?;
            }
        }
        if policies > 0 {
            return Err(format!("{policies} MirrorPolicies are left"));
        }
        Ok(())
    }

    fn print_tables(&self) {
        for table in self.live().iter().flatten() {
            println!(
                "  {}: {}",
                table["metadata"]["name"],
                annotation(table).unwrap_or("at rest")
            );
            for route in http(table) {
                println!("    {} {}", route["name"], oracle::show(route));
            }
        }
        for table in &self.api.world().tables {
            println!("  the owner of {}:", table.key);
            for (route, trust) in http(&table.document).iter().zip(&table.trust) {
                println!("    {} {} {trust:?}", route["name"], oracle::show(route));
            }
        }
    }

    fn live(&self) -> Vec<Option<Value>> {
        let tables = self.api.world().tables.len();
        (0..tables).map(|table| self.api.live(table)).collect()
    }

    fn roles_but(&self, who: Who) -> Vec<Roles> {
        let others = self
            .controllers
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != who);
        others
            .map(|(_, controller)| controller.pass().roles)
            .collect()
    }
}

/// Checks that the status of the Rollout admits the weight that the controller asks for.
fn is_admissible(pass: &Pass, rollout: &Rollout) -> Result<(), String> {
    let weight = pass.desired.value;
    if admissible(rollout).contains(weight) {
        return Ok(());
    }
    Err(format!(
        "{weight} is not admissible by status {:?}",
        rollout.status
    ))
}

/// Returns the routes that differ from what a pass asked for, and whether its promotion is held. If there `are_endpoints`,
/// traffic may stay on the canary Service right after a promotion, since it routes to the new Pods. After an abort or a
/// rollback it may not.
fn wrong_routes(
    table: &Table,
    live: &Value,
    pass: &Pass,
    others: &[Roles],
    are_endpoints: bool,
) -> (Vec<String>, bool) {
    let wrong = oracle::wrong_routes(table, live, pass, others);
    match held(pass).filter(|_| are_endpoints && !wrong.is_empty()) {
        Some(held) => (oracle::wrong_routes(table, live, &held, others), true),
        None => (wrong, false),
    }
}

/// Returns the pass that a held promotion carries out instead.
fn held(pass: &Pass) -> Option<Pass> {
    let rollout = &pass.rollout;
    let is_promotion = oracle::is_down(pass) && rollout.status.promoted_canary().is_some();
    let mut pass = pass.clone();
    pass.desired.value = pass.desired.max;
    is_promotion.then_some(pass)
}

/// Returns the pass that restores a table.
fn resting(pass: &Pass) -> Pass {
    let mut pass = pass.clone();
    pass.desired.value = 0;
    pass.additional.clear();
    pass.roles.is_one_version = true;
    pass
}

fn has_no_target(table: &Value, roles: &Roles) -> bool {
    !http(table)
        .iter()
        .any(|route| oracle::routes_to(route, roles))
}

fn none(wrong: Vec<String>) -> Result<(), String> {
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}
