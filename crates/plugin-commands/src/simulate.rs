//! `simulate`: runs a whole update, step by step.

use std::collections::BTreeSet;

use gloo_router::{from_rpc, portions};
use gloo_types::{MirrorPolicy, MirrorPolicyDoc, ObjectKey, Resource as _, RouteTableDoc};
use route_planner::{Portion, belongs_to};
use route_store::RouteStore as _;
use serde::Serialize;
use serde_json::Value;

use super::call::Call;
use super::controller::ControllerRelease;
use super::output::{self, BOLD, Format, GREEN, RED, YELLOW, styled};
use super::routes::{RouteState, name_all, routes};
use super::trial::{Objects, Trial};
use super::update::{Event, Pass, Rollback, Update};
use super::world::Source;
use crate::flags::whole;

/// Run all steps of a Rollout and show the destinations of its routes at each step. Writes nothing.
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

Exit codes: 0 the tables return to what they were; 1 the controller refuses the Rollout, the plugin would refuse a step, or something is left behind; \
2 the command line is wrong, or names what does not exist; 3 an input or the cluster cannot be read.")]
pub(crate) struct Args {
    /// The Rollout, as name or namespace/name; required if there are several.
    rollout: Option<String>,

    /// Abort at this step, counted from 0, instead of finishing.
    #[arg(long, value_name = "INDEX", value_parser = whole::<usize>)]
    abort_at: Option<usize>,

    /// Start again after the abort has ended.
    #[arg(long, requires = "abort_at")]
    retry: bool,

    /// Promote in full at this step, as `kubectl argo rollouts promote --full` does.
    #[arg(long, value_name = "INDEX", conflicts_with = "abort_at", value_parser = whole::<usize>)]
    promote_full_at: Option<usize>,

    /// Apply another version at this step.
    #[arg(long, value_name = "INDEX", conflicts_with_all = ["abort_at", "promote_full_at"], value_parser = whole::<usize>)]
    new_version_at: Option<usize>,

    /// Apply the stable version again at this step.
    #[arg(long, value_name = "INDEX", conflicts_with_all = ["abort_at", "promote_full_at", "new_version_at"], value_parser = whole::<usize>)]
    rollback_at: Option<usize>,

    /// Go back to the version before the stable one, instead of to a new version.
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "late", conflicts_with_all = ["abort_at", "promote_full_at", "new_version_at", "rollback_at"])]
    rollback: Option<Rollback>,

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
pub(super) struct Report<'p> {
    rollout: String,
    pub(super) passes: Vec<PassReport<'p>>,
    pub(super) end: End,
}

#[derive(Debug, Serialize)]
pub(super) struct PassReport<'p> {
    at: &'p str,
    #[serde(skip)]
    pub(super) pass: &'p Pass,
    calls: Vec<String>,
    pub(super) warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
    routes: Vec<RouteState>,
    /// What the versions get of the routes that the Rollout splits, each with its table.
    #[serde(skip)]
    portions: Vec<(String, Portion)>,
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

pub(super) async fn run(args: &Args) -> anyhow::Result<bool> {
    let name = args.rollout.as_deref();
    let (trial, release) = Trial::load(&args.source, name, args.controller_release).await?;
    let update = Update::new(&trial.subject, release).going_back(args.rollback);
    let event = args.event();
    if let Some((step, _)) = event {
        update.require_step(step)?;
    }
    let passes = update.passes(event);
    let mut report = run_update(&trial, &passes).await?;
    let first = report.passes.first_mut();
    if let (Some(first), Some(unmatched)) = (first, trial.unmatched().await) {
        first.warnings.insert(0, unmatched);
    }
    output::print(&args.output.render(&report, text)?)?;
    Ok(matches!(report.end, End::Restored | End::Swapped))
}

impl Args {
    /// Returns what happens at which step.
    fn event(&self) -> Option<(usize, Event)> {
        let (retry, abort) = (self.abort_at.filter(|_| self.retry), self.abort_at);
        let mut events = [
            (retry, Event::Retry),
            (abort, Event::Abort),
            (self.promote_full_at, Event::PromoteFull),
            (self.new_version_at, Event::NewVersion),
            (self.rollback_at, Event::StableVersion),
        ]
        .into_iter();
        events.find_map(|(step, event)| Some((step?, event)))
    }
}

/// Runs an update until its end, or until the plugin refuses a call.
pub(super) async fn run_update<'p>(
    trial: &Trial,
    passes: &'p [Pass],
) -> anyhow::Result<Report<'p>> {
    let mut reports: Vec<PassReport<'p>> = Vec::new();
    let rollout = &trial.subject.key;
    let mark = trial.policy().mark(rollout);
    let before = trial.objects().await?.into_iter();
    let before = before.filter_map(|(id, object)| {
        let object = at_rest(&mark, id.0, object)?;
        Some((id, object))
    });
    let before = before.collect();
    let mut is_stuck = passes.last().is_none_or(|pass| !pass.is_end());
    let mut lost = BTreeSet::new();
    for (index, pass) in passes.iter().enumerate() {
        let mut rollout = pass.rollout.clone();
        rollout.metadata.resource_version = index.to_string();
        let mut report = PassReport {
            at: &pass.at,
            pass,
            calls: Vec::new(),
            warnings: about_step(trial, pass)
                .into_iter()
                .chain(without_pods(pass, &mut lost))
                .collect(),
            refused: None,
            routes: Vec::new(),
            portions: Vec::new(),
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
        let policies = trial.store.policies().await?;
        let tables = trial.store.tables()?;
        let states = tables.iter().flat_map(|table| routes(table, &policies));
        report.routes = states.collect();
        if let Some(Call::SetWeight(weight, additional)) = pass.calls.last() {
            for table in &tables {
                let of = portions(trial.policy(), &pass.rollout, *weight, additional, table);
                let of = of.into_iter().map(|it| (table.key().to_string(), it));
                report.portions.extend(of);
            }
        }
        let is_refused = report.refused.is_some();
        is_stuck |= is_refused;
        let is_stuck_here = is_stuck && pass.is_waiting && index + 1 == passes.len();
        if is_stuck_here || !reports.last().is_some_and(|last| report.repeats(last)) {
            reports.push(report);
        }
        if is_refused {
            break;
        }
    }
    name_all(reports.iter_mut().flat_map(|report| &mut report.routes));
    compare_weights(&mut reports);
    let is_ping_pong = passes
        .last()
        .is_some_and(|pass| pass.rollout.is_ping_pong() && !pass.rollout.status.abort);
    let end = match is_stuck {
        true => End::Stuck,
        false => end(&before, &trial.objects().await?, is_ping_pong),
    };
    Ok(Report {
        rollout: rollout.to_string(),
        passes: reports,
        end,
    })
}

impl PassReport<'_> {
    /// Whether this pass says nothing that `last` has not said.
    fn repeats(&self, last: &Self) -> bool {
        (self.pass.is_waiting || self.pass.at == last.pass.at)
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
fn compare_weights(reports: &mut [PassReport<'_>]) {
    let first = reports.first().map(|first| first.routes.clone());
    let first = first.unwrap_or_default();
    let routes = reports.iter().flat_map(|report| &report.routes);
    let changed = routes.filter(|route| !first.contains(route)).cloned();
    let changed: Vec<RouteState> = changed.collect();
    for report in reports {
        let Some(Call::SetWeight(weight, additional)) = report.pass.calls.last() else {
            continue;
        };
        // More than the maximum is scaled down.
        let weight = i64::from(*weight);
        let others = additional.iter().map(|it| i64::from(it.weight));
        let max = i64::from(report.pass.rollout.max_traffic_weight());
        let max = max.max(others.sum::<i64>() + weight).max(1);
        let asked = u32::try_from(weight * 100 / max).unwrap_or_default();
        for route in &mut report.routes {
            let is_changed = changed.iter().any(|it| it.is_same(route));
            let mut portions = report.portions.iter();
            let portion = portions.find(|(table, it)| *table == route.table && route.has(it));
            if let Some((_, portion)) = portion.filter(|_| is_changed) {
                report.warnings.extend(route.compare(asked, portion));
            }
        }
    }
}

/// Warns of a step that does not do what it says.
fn about_step(trial: &Trial, pass: &Pass) -> Vec<String> {
    let mut warnings = Vec::new();
    let steps = trial.subject.rollout.steps();
    let step = pass.step.and_then(|index| steps.get(index));
    let mirror = step.and_then(|step| step.set_mirror_route.as_ref());
    // A router receives no percentage instead of 0.
    if mirror.is_some_and(|it| it.percentage == Some(0)) && !pass.is_waiting {
        warnings.push("percentage: 0 copies no requests: the route is removed".to_owned());
    }
    let max = pass.rollout.max_traffic_weight();
    if let Some(weight) = pass.first_pods_get {
        warnings.push(format!(
            "rollbackWindow skips the steps: the canary gets {weight} of {max} as soon as one of its Pods is available (argo-rollouts#3941): a longer scaleDownDelaySeconds keeps its Pods"
        ));
    }
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

/// Warns of what a step loses because the canary has no Pods. `lost` has the managed routes that a former step has lost.
fn without_pods(pass: &Pass, lost: &mut BTreeSet<String>) -> Vec<String> {
    let steps = pass.rollout.steps();
    let Some(index) = pass.step.filter(|_| pass.lacks_pods) else {
        return Vec::new();
    };
    let mut warnings = Vec::new();
    if pass.calls.contains(&Call::RemoveManagedRoutes) {
        let mut set = BTreeSet::new();
        let so_far = steps.iter().take(index + 1);
        for route in so_far.flat_map(from_rpc::managed_routes_of) {
            match route.is_removal() {
                true => set.remove(route.name()),
                false => set.insert(route.name().to_owned()),
            };
        }
        for name in set {
            if lost.insert(name.clone()) {
                warnings.push(format!(
                    "the canary has no Pods here, and the controller removes managed route {name} while it has none: start one before with setCanaryScale: {{replicas: 1}}"
                ));
            }
        }
    }
    let weight = steps.get(index).and_then(|step| step.set_weight);
    if let Some(weight) = weight.filter(|weight| *weight > 0 && !pass.is_waiting) {
        warnings.push(format!(
            "setWeight {weight} has no effect, because the canary has no Pods: change setCanaryScale or replicas"
        ));
    }
    warnings
}

/// Returns a table without the changes of the Rollout that marks with `mark`, if these can be read, and no policy of it. Changes of
/// other Rollouts stay.
fn at_rest(mark: &ObjectKey, kind: &str, object: Value) -> Option<Value> {
    if kind == MirrorPolicy::KIND {
        let policy = MirrorPolicyDoc::from_value(object.clone()).ok();
        let is_own = policy.is_some_and(|policy| belongs_to(&policy, mark));
        return (!is_own).then_some(object);
    }
    let rest = RouteTableDoc::from_value(object.clone()).ok();
    let rest = rest.and_then(|table| {
        let plan = route_planner::restore(mark, &table).ok()?;
        Some(plan.applied_to(&table)?.into_raw())
    });
    // The router reports a table that cannot be read.
    Some(rest.unwrap_or(object))
}

/// Compares the objects, with the order of their keys.
fn end(before: &Objects, after: &Objects, is_ping_pong: bool) -> End {
    let mut changed = Vec::new();
    for id in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let (before, after) = (before.get(id), after.get(id));
        if before.map(ToString::to_string) != after.map(ToString::to_string) {
            changed.push(difference(id, before, after));
        }
    }
    match changed.as_slice() {
        [] => End::Restored,
        _ if is_ping_pong => End::Swapped,
        _ => End::Changed(changed),
    }
}

/// Says what an update leaves in an object, and how it would be restored.
fn difference(
    (kind, key): &(&'static str, ObjectKey),
    before: Option<&Value>,
    after: Option<&Value>,
) -> String {
    let what = format!("{kind} {key}");
    let of_table = |object: Option<&Value>| {
        let table = RouteTableDoc::from_value(object?.clone()).ok()?;
        Some(routes(&table, &[]))
    };
    let (Some(mut old), Some(mut new)) = (of_table(before), of_table(after)) else {
        return match after {
            None => format!("{what}: an update deletes it"),
            Some(_) => format!("{what}: an update leaves it changed"),
        };
    };
    name_all(old.iter_mut().chain(&mut new));
    let mut differing = Vec::new();
    for route in &old {
        match new.iter().find(|it| it.is_same(route)) {
            Some(new) if new == route => {}
            Some(new) => differing.push(format!(
                "route {} has {} before an update and {} after it",
                route.route,
                route.written(),
                new.written()
            )),
            None => differing.push(format!("route {} is removed", route.route)),
        }
    }
    match differing.as_slice() {
        [] => {
            format!("{what}: an update changes it: compare it with the output of plan --weight 0")
        }
        routes => format!(
            "{what}: {}: write the second into the source of the table",
            routes.join("; ")
        ),
    }
}

fn text(report: &Report<'_>) -> String {
    let head = ["STEP", "CALLS", "ROUTE", "WEIGHTS", "TRAFFIC"];
    let mut rows = vec![head.map(str::to_owned)];
    let mut shown: &[RouteState] = &[];
    let passes = &report.passes;
    for (index, report) in passes.iter().enumerate() {
        let mut first = [report.pass.at.clone(), report.calls.join(", ")];
        let mut row = |route: Option<&RouteState>, weights: String, traffic: String| {
            let route = route.map(|it| format!("{} {}", it.table, it.route));
            let [at, calls] = std::mem::take(&mut first);
            rows.push([at, calls, route.unwrap_or_default(), weights, traffic]);
        };
        let is_left = |old: &&RouteState| !report.routes.iter().any(|new| new.is_same(old));
        let gone: Vec<&RouteState> = shown.iter().filter(is_left).collect();
        let is_changed = |state: &&RouteState| !shown.contains(state);
        let changed: Vec<&RouteState> = report.routes.iter().filter(is_changed).collect();
        // The last one tells where an update is stuck.
        let is_shown = !report.pass.is_waiting || index + 1 == passes.len();
        if changed.is_empty() && gone.is_empty() && is_shown {
            row(None, "as before".to_owned(), String::new());
        }
        for state in changed {
            row(Some(state), state.written(), state.traffic());
        }
        for state in gone {
            row(Some(state), "removed".to_owned(), String::new());
        }
        shown = &report.routes;
    }
    let mut text = styled(BOLD, &format!("Rollout {}", report.rollout)) + "\n\n";
    text += &output::table(&rows);
    text.push('\n');
    let mut warned: Vec<&String> = Vec::new();
    for pass in &report.passes {
        for warning in &pass.warnings {
            if !warned.contains(&warning) {
                warned.push(warning);
                text += &output::line(YELLOW, "warning", &format!("{}: {warning}", pass.pass.at));
            }
        }
        if let Some(reason) = &pass.refused {
            text += &output::line(RED, "refused", &format!("{}: {reason}", pass.pass.at));
        }
    }
    if let End::Changed(objects) = &report.end {
        for object in objects {
            text += &output::line(RED, "not restored", object);
        }
    }
    let (style, end) = match &report.end {
        End::Restored => (GREEN, "At the end every table is what its owner wrote."),
        End::Swapped => (
            GREEN,
            "At the end the other Service of the pair is stable, and the tables forward to it; they return with the next update.",
        ),
        End::Changed(_) => (RED, "At the end not every table is what its owner wrote."),
        End::Stuck if passes.iter().any(|it| it.pass.rollout.spec.paused) => (
            RED,
            "The controller would not get past this step: spec.paused is true.",
        ),
        End::Stuck => (RED, "The controller would not get past this step."),
    };
    text + &styled(style, end) + "\n"
}
