//! `simulate`: runs a whole update, step by step.

use std::collections::BTreeSet;
use std::sync::Arc;

use gloo_router::from_rpc;
use gloo_types::{ObjectKey, RouteTableDoc};
use route_store::{MemoryRouteStore, PolicyStore as _};
use serde::Serialize;

use super::Answer;
use super::call::Call;
use super::controller::ControllerRelease;
use super::output::{self, BOLD, Format, GREEN, RED, YELLOW, styled};
use super::routes::{RouteState, routes};
use super::trial::{Objects, Trial, objects, unmatched_entries};
use super::update::{Event, Pass, Update};
use super::world::Source;

/// Run all steps of a Rollout and show where its routes lead at each step. Writes nothing.
///
/// The calls are those of the controller, from one version at rest to the next. Pauses, analyses and experiments succeed, and all
/// Pods of a version become available together. At the end it reports whether every table is again what its owner wrote.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  simulate -f rollout.yaml -f shop.yaml             a whole update
  simulate -f deploy/ --abort-at 2                  one that is aborted at step 2
  simulate -f deploy/ --abort-at 2 --retry          and then started again
  simulate shop/reviews                             a Rollout and its tables in the cluster

Exit codes: 0 the tables return to what they were; 1 the plugin would refuse a step, or something is left behind; \
2 the command line is wrong; 3 an input or the cluster cannot be read.")]
pub(crate) struct Args {
    /// The Rollout, as name or namespace/name; required if there are several.
    rollout: Option<String>,

    /// Abort at this step, counted from 0, instead of finishing.
    #[arg(long, value_name = "INDEX")]
    abort_at: Option<usize>,

    /// Start again after the abort has ended.
    #[arg(long, requires = "abort_at")]
    retry: bool,

    /// Promote in full at this step, as `kubectl argo rollouts promote --full` does.
    #[arg(long, value_name = "INDEX", conflicts_with = "abort_at")]
    promote_full_at: Option<usize>,

    /// Apply another version at this step.
    #[arg(long, value_name = "INDEX", conflicts_with_all = ["abort_at", "promote_full_at"])]
    new_version_at: Option<usize>,

    /// Release of the Argo Rollouts controller, such as 1.10.2. Default: that of the cluster, if Rollouts or tables are read from
    /// it and the controller is in namespace argo-rollouts; otherwise the newest that is tested.
    #[arg(long, value_name = "RELEASE")]
    controller_release: Option<ControllerRelease>,

    #[command(flatten)]
    source: Source,

    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

/// A whole update.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    rollout: String,
    pub(super) passes: Vec<PassReport>,
    pub(super) end: End,
}

#[derive(Debug, Serialize)]
pub(super) struct PassReport {
    pub(super) at: String,
    #[serde(skip)]
    pub(super) step: Option<usize>,
    #[serde(skip)]
    is_waiting: bool,
    /// Index of the pass.
    #[serde(skip)]
    index: usize,
    calls: Vec<String>,
    pub(super) warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
    routes: Vec<RouteState>,
}

/// The state of the tables at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum End {
    /// As their owners wrote them.
    Restored,
    /// With the other Service as stable.
    Swapped,
    /// These objects differ.
    Changed(Vec<String>),
    /// The controller would not get to the end.
    Stuck,
}

pub(super) async fn run(args: &Args) -> anyhow::Result<Answer> {
    let (subject, store) = args.source.load(args.rollout.as_deref()).await?;
    let release = args.source.release(args.controller_release).await;
    let update = Update::new(&subject, release.unwrap_or(ControllerRelease::NEWEST));
    let event = args.event();
    if let Some((step, _)) = event {
        update.require_step(step)?;
    }
    let trial = Trial::new(&store, args.source.policy(), &subject);
    let passes = update.passes(event);
    let config = from_rpc::config(&args.source.policy(), &subject.rollout, &subject.key);
    let unmatched = match config {
        Ok(config) => unmatched_entries(&config, &store).await,
        Err(_) => None,
    };
    let mut report = Report {
        rollout: subject.key.to_string(),
        ..run_update(&trial, &store, &passes).await?
    };
    let first = report.passes.first_mut();
    if let (Some(first), Some(unmatched)) = (first, unmatched) {
        first.warnings.insert(0, unmatched);
    }
    output::print(&args.output.render(&report, text)?)?;
    Ok(match report.end {
        End::Restored | End::Swapped => Answer::Yes,
        End::Changed(_) | End::Stuck => Answer::No,
    })
}

impl Args {
    /// Returns what happens at which step.
    fn event(&self) -> Option<(usize, Event)> {
        let abort = if self.retry {
            Event::Retry
        } else {
            Event::Abort
        };
        let events = [
            (self.abort_at, abort),
            (self.promote_full_at, Event::PromoteFull),
            (self.new_version_at, Event::NewVersion),
        ];
        events
            .into_iter()
            .find_map(|(step, event)| Some((step?, event)))
    }
}

/// Runs an update until its end, or until the plugin refuses a call.
pub(super) async fn run_update(
    trial: &Trial<'_>,
    store: &Arc<MemoryRouteStore>,
    passes: &[Pass],
) -> anyhow::Result<Report> {
    let mut reports: Vec<PassReport> = Vec::new();
    let rollout = passes.first().map(|pass| &pass.rollout);
    let rollout = rollout.map(from_rpc::key);
    let before = objects(store, |table| match &rollout {
        Some(rollout) => at_rest(rollout, table),
        None => table,
    });
    let before = before.await?;
    let mut is_stuck = passes.last().is_none_or(|pass| !pass.is_end());
    let mut without_pods = WithoutPods::default();
    for (index, pass) in passes.iter().enumerate() {
        let mut rollout = pass.rollout.clone();
        rollout.metadata.resource_version = index.to_string();
        let mut report = PassReport {
            at: pass.at.clone(),
            step: pass.step,
            is_waiting: pass.is_waiting,
            index,
            calls: Vec::new(),
            warnings: about_step(trial, pass)
                .into_iter()
                .chain(without_pods.warnings(pass))
                .collect(),
            refused: None,
            routes: Vec::new(),
        };
        for call in &pass.calls {
            let outcome = trial.call(&rollout, call).await;
            report.calls.push(call.to_string());
            report.warnings.extend(outcome.warnings);
            report.refused = outcome.error;
            if report.refused.is_some() {
                break;
            }
        }
        let policies = store.policies().await?;
        let tables = store.tables()?;
        let states = tables.iter().flat_map(|table| routes(table, &policies));
        report.routes = states.collect();
        let is_refused = report.refused.is_some();
        is_stuck |= is_refused;
        if !reports
            .last()
            .is_some_and(|last| report.repeats(last, pass))
        {
            reports.push(report);
        }
        if is_refused {
            break;
        }
    }
    compare_weights(&mut reports, passes);
    let is_ping_pong = passes
        .last()
        .is_some_and(|pass| pass.rollout.is_ping_pong() && !pass.rollout.status.abort);
    let end = match is_stuck {
        true => End::Stuck,
        false => end(&before, &objects(store, |table| table).await?, is_ping_pong),
    };
    Ok(Report {
        rollout: String::new(),
        passes: reports,
        end,
    })
}

impl PassReport {
    /// Whether this pass says nothing that `last` has not said.
    fn repeats(&self, last: &Self, pass: &Pass) -> bool {
        (pass.is_waiting || self.at == last.at)
            && self.calls == last.calls
            && self.routes == last.routes
            && self
                .warnings
                .iter()
                .all(|warning| last.warnings.contains(warning))
            && self.refused.is_none()
    }
}

/// Compares the weights of the routes that the update changes with those that the controller asks for.
fn compare_weights(reports: &mut [PassReport], passes: &[Pass]) {
    let first = reports.first().map(|first| first.routes.clone());
    let first = first.unwrap_or_default();
    let routes = reports.iter().flat_map(|report| &report.routes);
    let changed = routes.filter(|route| !first.contains(route)).cloned();
    let changed: Vec<RouteState> = changed.collect();
    for report in reports {
        let Some(pass) = passes.get(report.index) else {
            continue;
        };
        if let Some(Call::SetWeight(weight, additional)) = pass.calls.last() {
            let is_changed = |route: &&mut RouteState| changed.iter().any(|it| it.is_same(route));
            let routes = report.routes.iter_mut().filter(is_changed);
            let rounded = routes.filter_map(|it| it.compare(&pass.rollout, *weight, additional));
            report.warnings.extend(rounded);
        }
    }
}

/// Warns of a step that does not do what it says.
fn about_step(trial: &Trial<'_>, pass: &Pass) -> Vec<String> {
    let mut warnings = Vec::new();
    let step = pass
        .step
        .and_then(|index| trial.rollout().steps().get(index));
    let mirror = step.and_then(|step| step.set_mirror_route.as_ref());
    // A router receives no percentage instead of 0.
    if mirror.is_some_and(|it| it.percentage == Some(0)) && !pass.is_waiting {
        warnings.push("percentage: 0 copies no requests: the route is removed".to_owned());
    }
    let max = pass.rollout.max_traffic_weight();
    if let Some(Call::SetWeight(weight, additional)) = pass.calls.last() {
        let all: i64 = additional.iter().map(|it| i64::from(it.weight)).sum();
        let all = all + i64::from(*weight);
        if all > i64::from(max) {
            warnings.push(format!(
                "the weights of the canary and of the experiment add up to {all} of {max}: stable gets no traffic, and the others are scaled down"
            ));
        }
    }
    warnings
}

/// What steps lose because the canary has no Pods.
#[derive(Default)]
struct WithoutPods {
    /// Managed routes that were lost, each once.
    lost: BTreeSet<String>,
}

impl WithoutPods {
    fn warnings(&mut self, pass: &Pass) -> Vec<String> {
        let steps = pass.rollout.steps();
        let Some(index) = pass.step.filter(|_| pass.lacks_pods) else {
            return Vec::new();
        };
        let mut warnings = Vec::new();
        if pass.calls.contains(&Call::RemoveManagedRoutes) {
            let mut set = BTreeSet::new();
            for step in steps.iter().take(index + 1) {
                let header = step.set_header_route.iter();
                let header = header.map(|it| (&it.name, it.matches.is_empty()));
                let mirror = step.set_mirror_route.iter();
                let mirror = mirror.map(|it| (&it.name, it.matches.is_empty()));
                for (name, is_removal) in header.chain(mirror) {
                    match is_removal {
                        true => set.remove(name),
                        false => set.insert(name),
                    };
                }
            }
            let lost = set
                .into_iter()
                .filter(|name| self.lost.insert((*name).clone()));
            warnings.extend(lost.map(|name| format!(
                "the canary has no Pods here, and the controller removes managed route {name} while it has none: start one before with setCanaryScale: {{replicas: 1}}"
            )));
        }
        let weight = steps.get(index).and_then(|step| step.set_weight);
        if let Some(weight) = weight.filter(|weight| *weight > 0 && !pass.is_waiting) {
            warnings.push(format!(
                "setWeight {weight} has no effect, because the canary has no Pods: change setCanaryScale or replicas"
            ));
        }
        warnings
    }
}

/// Returns a table without the changes of the Rollout, if these can be read. Changes of other Rollouts stay.
fn at_rest(rollout: &ObjectKey, table: RouteTableDoc) -> RouteTableDoc {
    let plan = route_planner::restore(rollout, &table);
    // The router reports a table that cannot be read.
    let rest = plan.ok().and_then(|plan| plan.applied_to(&table));
    rest.unwrap_or(table)
}

/// Compares the objects, with the order of their keys.
fn end(before: &Objects, after: &Objects, is_ping_pong: bool) -> End {
    let text = |objects: &Objects, id| objects.get(id).map(ToString::to_string);
    let ids: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let changed = ids
        .into_iter()
        .filter(|id| text(before, id) != text(after, id));
    let changed: Vec<String> = changed.map(|(kind, key)| format!("{kind} {key}")).collect();
    match changed.as_slice() {
        [] => End::Restored,
        _ if is_ping_pong => End::Swapped,
        _ => End::Changed(changed),
    }
}

fn text(report: &Report) -> String {
    let head = ["STEP", "CALLS", "ROUTE", "DESTINATIONS"].map(str::to_owned);
    let mut rows = vec![head];
    let mut shown: &[RouteState] = &[];
    for pass in &report.passes {
        let calls = pass.calls.join(", ");
        let changed = pass.routes.iter().filter(|state| !shown.contains(state));
        let changed: Vec<&RouteState> = changed.collect();
        let is_left = |old: &&RouteState| !pass.routes.iter().any(|new| new.is_same(old));
        let gone = shown.iter().filter(is_left);
        let mut lines: Vec<[String; 2]> = changed
            .into_iter()
            .map(|state| [label(state), state.shares()])
            .chain(gone.map(|state| [label(state), "removed".to_owned()]))
            .collect();
        if lines.is_empty() && pass.is_waiting {
            continue;
        }
        if lines.is_empty() {
            lines.push([String::new(), "as before".to_owned()]);
        }
        let mut first = [pass.at.clone(), calls];
        for [route, shares] in lines {
            let [at, calls] = std::mem::take(&mut first);
            rows.push([at, calls, route, shares]);
        }
        shown = &pass.routes;
    }
    let mut text = styled(BOLD, &format!("Rollout {}", report.rollout)) + "\n\n";
    text += &output::table(&rows);
    text.push('\n');
    let mut warned: Vec<&String> = Vec::new();
    for pass in &report.passes {
        for warning in &pass.warnings {
            if !warned.contains(&warning) {
                warned.push(warning);
                text += &format!("{YELLOW}warning{YELLOW:#}: {}: {warning}\n", pass.at);
            }
        }
        if let Some(reason) = &pass.refused {
            text += &format!("{RED}refused{RED:#}: {}: {reason}\n", pass.at);
        }
    }
    text += &match &report.end {
        End::Restored => styled(GREEN, "At the end every table is what its owner wrote."),
        End::Swapped => styled(
            GREEN,
            "At the end the other Service of the pair is stable, and the tables lead to it; they return with the next update.",
        ),
        End::Changed(objects) => styled(
            RED,
            &format!(
                "At the end these objects are not restored: {}.",
                objects.join(", ")
            ),
        ),
        End::Stuck => styled(RED, "The controller would not get past this step."),
    };
    text.push('\n');
    text
}

fn label(state: &RouteState) -> String {
    format!("{} {}", state.table, state.route)
}
