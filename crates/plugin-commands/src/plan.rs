//! `plan`: shows what one call of the controller would change.

use std::collections::BTreeSet;

use anyhow::Context as _;
use clap::ValueEnum;
use rollouts_rpc::{Rollout, WeightDestination, escaped};
use route_store::{Operation, Write};
use serde::Serialize;
use serde_json::{Value, json};

use super::call::Call;
use super::controller::ControllerRelease;
use super::misuse;
use super::output::{self, BOLD, DIM, RED, YELLOW, styled};
use super::trial::{Objects, Trial};
use super::update::{Update, is_under_way, of_next_call};
use super::world::{Source, Subject};
use crate::flags::whole;

/// Show what a call of the controller would change, as a diff. Writes nothing.
///
/// The Rollout and its RouteTables come from files or from the cluster. A Rollout without a running update is planned as if a
/// new version had just been applied.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  plan -f rollout.yaml -f shop.yaml --weight 25     what setWeight 25 would do
  plan shop/reviews --step 2                        all that step 2 would do, in the cluster
  plan -f rollout.yaml --live --weight 50           the Rollout of a file, the tables of the cluster
  plan shop/reviews --weight 25 -o patch            the JSON Patch that would be sent

Exit codes: 0 planned; 1 the controller or the plugin would refuse, or an entry of the plugin block selects no route; 2 the command line is wrong, or names what does not exist; 3 an input or the cluster cannot be read.")]
pub(crate) struct Args {
    /// The Rollout, as name or namespace/name; required if there are several.
    rollout: Option<String>,

    #[command(flatten)]
    asked: Asked,

    /// With --weight: an additional destination, as of an experiment; repeatable.
    #[arg(long, value_name = "SERVICE=WEIGHT", requires = "weight", value_parser = additional)]
    additional: Vec<(String, i32)>,

    /// Release of the Argo Rollouts controller, such as 1.10.2. Default: that of the cluster, if Rollouts or tables are read from
    /// it and the controller is in namespace argo-rollouts; otherwise the newest that is tested.
    #[arg(long, value_name = "RELEASE")]
    controller_release: Option<ControllerRelease>,

    #[command(flatten)]
    source: Source,

    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: PlanFormat,
}

#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = false)]
struct Asked {
    /// SetWeight with this weight.
    #[arg(long, value_parser = whole::<i32>)]
    weight: Option<i32>,

    /// SetHeaderRoute, with the matches of the step that sets this route.
    #[arg(long, value_name = "NAME")]
    header_route: Option<String>,

    /// SetMirrorRoute, with the matches of the step that sets this route.
    #[arg(long, value_name = "NAME")]
    mirror_route: Option<String>,

    /// RemoveManagedRoutes.
    #[arg(long)]
    remove_managed_routes: bool,

    /// All calls at the step with this index, which starts at 0 like status.currentStepIndex; at an experiment, the calls while it runs.
    #[arg(long, value_name = "INDEX", value_parser = whole::<usize>)]
    step: Option<usize>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PlanFormat {
    Text,
    Json,
    Yaml,
    Patch,
}

/// The result of the calls.
#[derive(Debug, Default, Serialize)]
struct Report {
    rollout: String,
    /// What the status of the Rollout does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    assumed: Option<&'static str>,
    calls: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// Entries of the plugin block that select no route. The plugin carries out the calls with the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    unmatched: Option<String>,
    warnings: Vec<String>,
    changes: Vec<Change>,
}

/// One object that would change.
#[derive(Debug, Serialize)]
struct Change {
    kind: &'static str,
    object: String,
    /// The JSON Patches that would be sent, without their test of `resourceVersion`. Empty for an object that is created or
    /// deleted.
    patches: Vec<Value>,
    /// `null` for an object that is created.
    before: Value,
    /// `null` for an object that is deleted.
    after: Value,
}

pub(super) async fn run(args: &Args) -> anyhow::Result<bool> {
    let name = args.rollout.as_deref();
    let (trial, release) = Trial::load(&args.source, name, args.controller_release).await?;
    let before = trial.objects().await?;
    let (rollout, calls) = args.calls(&trial.subject, release)?;
    let mut report = Report {
        rollout: trial.subject.key.to_string(),
        assumed: args.assumed(&trial.subject),
        ..Report::default()
    };
    let mut deferred = None;
    for call in &calls {
        let outcome = trial.call(&rollout, call).await;
        report.calls.push(call.to_string());
        report.warnings.extend(outcome.warnings);
        report.refused = report.refused.or(outcome.error);
        deferred = deferred.or(outcome.deferred);
    }
    report.refused = report.refused.or(deferred);
    report.unmatched = trial.unmatched().await;
    report.changes = changes(&trial.store.written(), &before, &trial.objects().await?);
    output::print(&match args.output {
        PlanFormat::Text => text(&report)?,
        PlanFormat::Json => output::json(&report)?,
        PlanFormat::Yaml => output::yaml(&report)?,
        PlanFormat::Patch => patch(&report)?,
    })?;
    Ok(report.refused.or(report.unmatched).is_none())
}

impl Args {
    /// Returns what is assumed about the Rollout, besides its status.
    fn assumed(&self, subject: &Subject) -> Option<&'static str> {
        let (asked, status) = (&self.asked, &subject.rollout.status);
        // The calls of a step, which may not be the current one.
        let is_at_step =
            asked.step.is_some() || asked.header_route.is_some() || asked.mirror_route.is_some();
        if !is_under_way(&subject.rollout) {
            Some("the Rollout is at rest: planned as if a new version had just been applied")
        } else if is_at_step && status.abort {
            Some("the Rollout is aborted: planned as if it had been retried")
        } else if is_at_step && status.promote_full {
            Some("the Rollout is being promoted in full: planned as if it were not")
        } else {
            None
        }
    }

    /// Returns the requested calls, as the controller would make them, and the Rollout at that time.
    fn calls(
        &self,
        subject: &Subject,
        release: Option<ControllerRelease>,
    ) -> anyhow::Result<(Rollout, Vec<Call>)> {
        let asked = &self.asked;
        let update = Update::new(subject, release);
        if let Some(index) = asked.step {
            update.require_step(index)?;
            let pass = update.step(index).into_iter().next();
            let pass = pass.with_context(|| format!("an update does not reach step {index}"))?;
            return Ok((pass.rollout, pass.calls));
        }
        let rollout = of_next_call(subject);
        if let Some(weight) = asked.weight {
            let max = rollout.max_traffic_weight();
            let others = self.additional.iter().map(|(_, weight)| weight);
            for weight in others.chain([&weight]) {
                // The plugin refuses every weight of a lower maximum.
                if max > 0 && !(0..=max).contains(weight) {
                    misuse!("{weight} is not a weight of this Rollout: use 0 to {max}");
                }
            }
            let additional = self.additional.iter();
            let additional = additional.map(|(service, weight)| WeightDestination {
                weight: *weight,
                service_name: service.clone(),
                pod_template_hash: service.clone(),
            });
            return Ok((rollout, vec![Call::SetWeight(weight, additional.collect())]));
        }
        let (name, kind) = match (&asked.header_route, &asked.mirror_route) {
            (Some(name), _) => (name, "header"),
            (None, Some(name)) => (name, "mirror"),
            (None, None) => return Ok((rollout, vec![Call::RemoveManagedRoutes])),
        };
        let mut set = BTreeSet::new();
        for pass in update.passes(None) {
            for call in pass.calls {
                let found = match &call {
                    Call::SetHeaderRoute(route) => ("header", route.name.clone()),
                    Call::SetMirrorRoute(route) => ("mirror", route.name.clone()),
                    _ => continue,
                };
                if found.0 == kind && found.1 == *name {
                    return Ok((pass.rollout, vec![call]));
                }
                set.insert(found);
            }
        }
        if let Some((other, _)) = set.iter().find(|(_, found)| found == name) {
            misuse!("{name} is a {other} route: use --{other}-route");
        }
        let others = set.iter().filter(|(found, _)| *found == kind);
        let others: Vec<&str> = others.map(|(_, name)| name.as_str()).collect();
        match others.as_slice() {
            [] => misuse!("no step sets a {kind} route"),
            others => {
                let others = others.join(", ");
                misuse!("no step sets a route {name}: use one of {others}")
            }
        }
    }
}

/// Returns the objects that differ, with the patches of the calls.
fn changes(written: &[Write], before: &Objects, after: &Objects) -> Vec<Change> {
    let mut changes = Vec::new();
    for id in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let (before, after) = (before.get(id), after.get(id));
        if before == after {
            continue;
        }
        let (kind, key) = id;
        let writes = written.iter().filter(|it| it.kind == *kind);
        let patches = writes.filter_map(|write| match &write.operation {
            Operation::Patch(patch) if write.key == *key => Some(without_version(patch)),
            _ => None,
        });
        changes.push(Change {
            kind,
            object: key.to_string(),
            patches: patches.collect(),
            before: before.cloned().unwrap_or_default(),
            after: after.cloned().unwrap_or_default(),
        });
    }
    changes
}

/// Removes the test of the resource version from a patch. The other tests guard the current values.
fn without_version(patch: &json_patch::Patch) -> Value {
    let operations = patch.iter();
    let operations = operations.filter(|it| *it.path() != "/metadata/resourceVersion");
    operations.map(|operation| json!(operation)).collect()
}

fn text(report: &Report) -> anyhow::Result<String> {
    let mut text = styled(BOLD, &format!("Rollout {}", report.rollout));
    text += &format!(": {}\n", escaped(&report.calls.join(", ")));
    if let Some(assumed) = report.assumed {
        text += &(styled(DIM, assumed) + "\n");
    }
    for change in &report.changes {
        let label = format!("{} {}", change.kind, change.object);
        text += "\n";
        text += &output::diff(&label, &change.before, &change.after)?;
    }
    if !report.warnings.is_empty() || report.refused.is_some() || report.unmatched.is_some() {
        text += "\n";
    }
    for warning in &report.warnings {
        text += &output::line(YELLOW, "warning", warning);
    }
    if let Some(unmatched) = &report.unmatched {
        text += &output::line(RED, "error", unmatched);
    }
    match &report.refused {
        Some(reason) => text += &output::line(RED, "refused", reason),
        None if report.changes.is_empty() => text += &(styled(DIM, "nothing changes") + "\n"),
        None => {}
    }
    Ok(text)
}

/// Prints the only JSON Patch, for other tools.
fn patch(report: &Report) -> anyhow::Result<String> {
    if let Some(reason) = &report.refused {
        output::print_error(reason);
    }
    let patches: Vec<&[Value]> = report.changes.iter().map(|it| &*it.patches).collect();
    match patches.as_slice() {
        [] => Ok("[]\n".to_owned()),
        [[patch]] => output::json(patch),
        _ => misuse!("the change is not a single JSON Patch: use -o json, which shows all changes"),
    }
}

fn additional(text: &str) -> Result<(String, i32), String> {
    let (service, weight) = text.split_once('=').unwrap_or_default();
    match weight.parse() {
        Ok(weight) if !service.is_empty() => Ok((service.to_owned(), weight)),
        _ => Err("use the name of a Service and a weight, such as trial=10".to_owned()),
    }
}
