//! `validate`: lists every problem of Rollouts and their tables, with its position.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use clap::ValueEnum;
use gloo_router::{ASSUMED_PORT, ShiftError, from_rpc};
use gloo_types::{Resource as _, RouteTable, RouteTableDoc, violations};
use rollouts_rpc::error_chain;
use route_planner::{ConfigProblem, PluginConfig};
use route_store::{Freshness, MemoryRouteStore, RouteStore as _, StoreError};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::Answer;
use super::controller::{ControllerRelease, abort_advice};
use super::input::{self, Manifest, Spot, Step, Unreadable, path};
use super::output::{self, BOLD, GREEN, RED, YELLOW, styled};
use super::simulate::{End, run_update};
use super::trial::{Trial, unmatched_entries};
use super::update::Update;
use super::world::{Source, Subject};

/// Check Rollouts that use the plugin, and their RouteTables: lists every problem, with its position and its remedy.
///
/// Objects of other kinds are ignored, so a whole directory of manifests may be given. Every Rollout is also simulated, to
/// find what the plugin would refuse during an update.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  validate -f deploy/                               every manifest of a directory
  validate -f rollout.yaml --live                   a Rollout of a file against the tables of the cluster
  validate                                          all Rollouts of the cluster
  validate -f deploy/ -o github                     annotations in a GitHub workflow

Exit codes: 0 no errors; 1 errors, or warnings with --strict; 2 the command line is wrong; \
3 the cluster cannot be read.")]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,

    /// Release of the Argo Rollouts controller, such as 1.10.2, for advice that depends on it. Default: that of the cluster, if
    /// Rollouts or tables are read from it and the controller is in namespace argo-rollouts.
    #[arg(long, value_name = "RELEASE")]
    controller_release: Option<ControllerRelease>,

    /// Count warnings as errors.
    #[arg(long)]
    strict: bool,

    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: ValidateFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ValidateFormat {
    Text,
    Json,
    Yaml,
    /// Workflow commands, which GitHub shows at the lines of a pull request.
    Github,
}

/// The result of the checks.
#[derive(Debug, Serialize)]
struct Report {
    rollouts: usize,
    route_tables: usize,
    problems: Vec<Problem>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Problem {
    #[serde(flatten, serialize_with = "shown")]
    spot: Spot,
    severity: Severity,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    Error,
    Warning,
}

/// Seconds that old Pods have to serve after a promotion, until every gateway has received the change.
const ENOUGH_FOR_A_GATEWAY: u64 = 15;

pub(super) async fn run(args: &Args) -> anyhow::Result<Answer> {
    let report = check(args).await?;
    let is_bad = report
        .problems
        .iter()
        .any(|problem| args.strict || problem.severity == Severity::Error);
    output::print(&match args.output {
        ValidateFormat::Text => text(&report),
        ValidateFormat::Json => output::json(&report)?,
        ValidateFormat::Yaml => output::yaml(&report)?,
        ValidateFormat::Github => github(&report),
    })?;
    Ok(if is_bad { Answer::No } else { Answer::Yes })
}

async fn check(args: &Args) -> anyhow::Result<Report> {
    let source = &args.source;
    let (manifests, unreadable) = if source.files.is_empty() {
        (source.live_rollouts().await?, Vec::new())
    } else {
        input::read(&source.files)
    };
    let mut unreadable = unreadable;
    let store = MemoryRouteStore::default();
    let mut problems: BTreeSet<Problem> = BTreeSet::new();
    let mut route_tables = 0;
    for manifest in &manifests {
        let is_table = manifest.kind() == RouteTable::KIND;
        route_tables += usize::from(is_table);
        unreadable.extend(source.put(&store, manifest).err());
        if is_table {
            let table = source.with_namespace(&manifest.value);
            problems.extend(table_problems(manifest, table));
        }
    }
    problems.extend(unreadable.into_iter().map(Problem::from));
    let release = source.release(args.controller_release).await;
    let mut rollouts = 0;
    for manifest in manifests.iter().filter(|it| source.is_subject(it)) {
        rollouts += 1;
        match source.subject(&manifest.value) {
            Ok(subject) => {
                let store = Arc::new(MemoryRouteStore::default());
                for manifest in &manifests {
                    // What cannot be read is already reported.
                    let _ = source.put(&store, manifest);
                }
                problems.extend(scaling_problems(manifest, &subject, release));
                problems.extend(ping_pong_problem(source, manifest, &subject).await);
                let release = release.unwrap_or(ControllerRelease::NEWEST);
                let found = rollout_problems(source, manifest, &subject, &store, release);
                problems.extend(found.await?);
            }
            Err(error) => {
                problems.insert(manifest.unreadable(&error.path, &error).into());
            }
        }
    }
    if rollouts == 0 && problems.is_empty() {
        let names = source.policy().plugin_names.join(" or ");
        let message = format!("no Rollout has {names} under trafficRouting.plugins");
        let spot = Spot {
            file: source.shown(),
            place: None,
        };
        problems.insert(Problem::warning(spot, message));
    }
    Ok(Report {
        rollouts,
        route_tables,
        problems: problems.into_iter().collect(),
    })
}

/// Returns the problems that make a table invalid to Gloo, as far as it can be read.
fn table_problems(manifest: &Manifest, object: Value) -> Vec<Problem> {
    let version = object.get("apiVersion").cloned();
    let Ok(table) = RouteTableDoc::from_value(object) else {
        return Vec::new();
    };
    let error = |at: &str, what: &dyn fmt::Display| {
        let message = format!("RouteTable {}: {what}", table.key());
        Problem::error(manifest.spot(&path(at)), message)
    };
    let expected = format!("{}/{}", RouteTable::GROUP, RouteTable::VERSION);
    let mut problems = Vec::new();
    if version.as_ref().and_then(Value::as_str) != Some(&expected) {
        let message = format!("apiVersion must be {expected}");
        problems.push(error("apiVersion", &message));
    }
    let violations = table.spec().map(|spec| violations(&spec));
    let violations = violations.into_iter().flatten();
    problems.extend(violations.map(|violation| error(&violation.path, &violation)));
    problems
}

/// Returns the problems of a Rollout's plugin block or, if there are none, those of a simulated update.
async fn rollout_problems(
    source: &Source,
    manifest: &Manifest,
    subject: &Subject,
    store: &Arc<MemoryRouteStore>,
    release: ControllerRelease,
) -> anyhow::Result<Vec<Problem>> {
    let label = format!("Rollout {}", subject.key);
    let spot = manifest.spot(&block_path(source, &subject.api));
    let config = from_rpc::config(&source.policy(), &subject.rollout, &subject.key);
    let mut problems = block_problems(source, manifest, subject);
    let refused = subject.refusals().into_iter();
    problems
        .extend(refused.map(|(at, message)| Problem::error(manifest.spot(&path(&at)), message)));
    if let Err(error) = &config
        && (problems.is_empty() || is_of_several_blocks(error))
    {
        problems.push(Problem::error(spot.clone(), error_chain(error)));
    }
    let Some(config) = config.ok().filter(|_| problems.is_empty()) else {
        return Ok(problems);
    };
    if source.is_live() {
        source.copy_tables(subject, store).await?;
    } else if let Err(StoreError::NotFound { what }) = store
        .select(config.route_tables(), Freshness::Live)
        .await
        .complete()
    {
        let message = format!("{label}: the files do not have {what}: its routes are not checked");
        return Ok(vec![Problem::warning(spot, message)]);
    }
    let unmatched = unmatched_entries(&config, store).await;
    let unmatched = unmatched.map(|text| {
        let (spot, message) = (spot.clone(), format!("{label}: {text}"));
        // Files may lack tables that the cluster has.
        match config.route_tables().by_label() && !source.is_live() {
            true => Problem::warning(spot, format!("{message}, unless another table has it")),
            false => Problem::error(spot, message),
        }
    });
    store.put_rollout(subject.api.clone())?;
    let trial = Trial::new(store, source.policy(), subject);
    let report = run_update(&trial, store, &Update::new(subject, release).passes(None)).await?;

    let steps = path("spec.strategy.canary.steps");
    let mut problems: Vec<Problem> = unmatched.into_iter().collect();
    for pass in &report.passes {
        let spot = match pass.step {
            Some(index) => {
                let mut step = steps.clone();
                step.push(Step::Index(index));
                manifest.spot(&step)
            }
            None => spot.clone(),
        };
        // Only the controller knows the Services of an experiment whose Pod template is in a workloadRef.
        let is_problem = |warning: &&String| !warning.ends_with(ASSUMED_PORT);
        for warning in pass.warnings.iter().filter(is_problem) {
            problems.push(Problem::warning(
                spot.clone(),
                format!("{label}: {warning}"),
            ));
        }
        problems.extend(
            pass.refused
                .iter()
                .map(|reason| Problem::error(spot.clone(), reason.clone())),
        );
    }
    if let End::Changed(objects) = &report.end {
        let objects = objects.join(", ");
        let message = format!("{label}: an update does not restore these objects: {objects}");
        problems.push(Problem::error(spot, message));
    }
    let mut said = BTreeSet::new();
    problems.retain(|problem| said.insert(problem.message.clone()));
    Ok(problems)
}

/// Returns warnings about Pods that would end before the gateway stops sending requests to them, which no router can prevent.
fn scaling_problems(
    manifest: &Manifest,
    subject: &Subject,
    release: Option<ControllerRelease>,
) -> Vec<Problem> {
    let canary = subject.api.pointer("/spec/strategy/canary");
    let of_canary = |key: &str| canary.and_then(|canary| canary.get(key));
    let mut problems = Vec::new();
    let mut warn = |key: &str, message: &str| {
        let spot = manifest.spot(&path(&format!("spec.strategy.canary.{key}")));
        let message = format!("Rollout {}: {key}: {message}", subject.key);
        problems.push(Problem::warning(spot, message));
    };
    let is_dynamic = of_canary("dynamicStableScale").and_then(Value::as_bool) == Some(true);
    if is_dynamic {
        let containers = subject.api.pointer("/spec/template/spec/containers");
        let has_hook = |container: &Value| container.pointer("/lifecycle/preStop").is_some();
        // The template of a workloadRef is not available here.
        if let Some(containers) = containers.and_then(Value::as_array)
            && !containers.iter().any(has_hook)
        {
            warn(
                "dynamicStableScale",
                "give the Pods a preStop hook that sleeps for some seconds, since they end before the gateway stops sending requests to them",
            );
        }
        if let Some(advice) = abort_advice(release, &subject.api) {
            warn("dynamicStableScale", &advice);
        }
    }
    let delay = of_canary("scaleDownDelaySeconds").and_then(Value::as_u64);
    if delay.is_some_and(|delay| !is_dynamic && delay < ENOUGH_FOR_A_GATEWAY) {
        let message = format!(
            "raise it to at least {ENOUGH_FOR_A_GATEWAY}, so that old Pods serve until the gateway has stopped sending requests to them"
        );
        warn("scaleDownDelaySeconds", &message);
    }
    problems
}

/// Returns a warning about ping-pong that is new for a Rollout which exists in the cluster. Files alone do not tell.
async fn ping_pong_problem(
    source: &Source,
    manifest: &Manifest,
    subject: &Subject,
) -> Option<Problem> {
    let pong = source.unprepared_pong(subject).await?;
    let spot = manifest.spot(&path("spec.strategy.canary.pingPong"));
    let message = format!("Rollout {}: {pong}", subject.key);
    Some(Problem::warning(spot, message))
}

/// Returns every problem of a plugin block. The parser reports one at a time, so the value is removed and the rest is parsed
/// again.
fn block_problems(source: &Source, manifest: &Manifest, subject: &Subject) -> Vec<Problem> {
    let at = block_path(source, &subject.api);
    let Some(mut block) = lookup(&subject.api, &at).cloned() else {
        return Vec::new();
    };
    let namespaces = source.policy().destination_namespaces;
    let mut problems = Vec::new();
    let mut removed = Vec::new();
    while let Err(error) =
        PluginConfig::from_json(block.to_string().as_bytes(), &subject.key, &namespaces)
    {
        let inside = path(error.problem.path().unwrap_or_default());
        // A value may be missing only because a wrong one was removed.
        let follows = match error.problem {
            ConfigProblem::NoSelector => !problems.is_empty(),
            ConfigProblem::Key(strict_json::Problem::Empty { .. }) => removed.starts_with(&inside),
            _ => false,
        };
        if !follows {
            let whole: Vec<Step> = at.iter().chain(&inside).cloned().collect();
            problems.push(Problem::error(manifest.spot(&whole), error.to_string()));
        }
        let goes_on = match (&error.problem, block.as_object_mut()) {
            (ConfigProblem::NoSelector, Some(block)) => {
                block.insert("routeTableSelector".to_owned(), json!({"name": "any"}));
                true
            }
            _ => remove(&mut block, &inside),
        };
        if !goes_on {
            break;
        }
        removed = inside;
    }
    problems
}

/// Returns the path of the plugin block that is read.
fn block_path(source: &Source, api: &Value) -> Vec<Step> {
    let mut at = path("spec.strategy.canary.trafficRouting.plugins");
    let plugins = lookup(api, &at);
    let names = source.policy().plugin_names.into_iter();
    let name = names
        .into_iter()
        .find(|name| plugins.is_some_and(|plugins| plugins.get(name).is_some()));
    at.extend(name.map(Step::Key));
    at
}

/// Whether a Rollout has several blocks of the plugin, of which only the first is checked.
fn is_of_several_blocks(error: &ShiftError) -> bool {
    matches!(error, ShiftError::Config(error) if matches!(error.problem, ConfigProblem::SeveralPlugins(..)))
}

fn lookup<'v>(value: &'v Value, path: &[Step]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get(key),
        Step::Index(index) => value.get(index),
    })
}

/// Removes the value at `path`. Returns whether it existed.
fn remove(value: &mut Value, path: &[Step]) -> bool {
    let Some((last, above)) = path.split_last() else {
        return false;
    };
    let parent = above.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get_mut(key),
        Step::Index(index) => value.get_mut(index),
    });
    match (parent, last) {
        (Some(Value::Object(fields)), Step::Key(key)) => fields.shift_remove(key).is_some(),
        (Some(Value::Array(items)), Step::Index(index)) if *index < items.len() => {
            items.remove(*index);
            true
        }
        _ => false,
    }
}

impl From<Unreadable> for Problem {
    fn from(Unreadable { spot, reason }: Unreadable) -> Self {
        Self::error(spot, reason)
    }
}

impl Problem {
    fn error(spot: Spot, message: String) -> Self {
        Self {
            spot,
            severity: Severity::Error,
            message,
        }
    }

    fn warning(spot: Spot, message: String) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(spot, message)
        }
    }
}

/// Serialises a position as three fields.
fn shown<S: Serializer>(spot: &Spot, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Shown<'s> {
        file: &'s str,
        line: Option<u64>,
        column: Option<u64>,
    }
    let Spot { file, place } = spot;
    Shown {
        file,
        line: place.map(|place| place.line),
        column: place.map(|place| place.column),
    }
    .serialize(serializer)
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for problem in &report.problems {
        let severity = match problem.severity {
            Severity::Error => styled(RED, "error"),
            Severity::Warning => styled(YELLOW, "warning"),
        };
        let spot = styled(BOLD, &problem.spot.to_string());
        text += &format!("{spot}: {severity}: {}\n", problem.message);
    }
    let count = |severity| {
        let problems = report.problems.iter();
        problems.filter(|it| it.severity == severity).count()
    };
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let checked = format!(
        "Rollouts: {}, RouteTables: {}, errors: {errors}, warnings: {warnings}",
        report.rollouts, report.route_tables
    );
    let style = if errors == 0 { GREEN } else { RED };
    text + &styled(style, &checked) + "\n"
}

/// Formats problems as workflow commands of GitHub Actions.
fn github(report: &Report) -> String {
    let mut text = String::new();
    for Problem {
        spot,
        severity,
        message,
    } in &report.problems
    {
        let kind = match severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        text += &format!("::{kind} file={}", property(&spot.file));
        if let Some(place) = spot.place {
            text += &format!(",line={},col={}", place.line, place.column);
        }
        text += &format!("::{}\n", escaped(message));
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

fn property(text: &str) -> String {
    escaped(text).replace(':', "%3A").replace(',', "%2C")
}
