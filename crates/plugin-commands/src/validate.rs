//! `validate`: lists every problem of Rollouts and their tables, with its position.

mod advice;
mod block;
mod report;
mod several;
mod shape;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use clap::ValueEnum;
use gloo_router::{ASSUMED_PORT, Policy, from_rpc};
use gloo_types::{ObjectKey, Resource as _, RouteTable, RouteTableDoc, contradiction};
use jsonptr::{Pointer, PointerBuf};
use rollouts_rpc::error_chain;
use route_planner::{
    ANNOTATION, HeaderMatchMode, HeaderRoute, Intent, ManagedRoute, PluginConfig, PodHashes,
    WeightSplit, match_problems,
};
use route_store::{Freshness, MemoryRouteStore, RouteStore as _, StoreError};
use serde_json::{Value, json};

use self::report::{Problem, Problems, Report, Severity};
use self::several::Splits;
use self::shape::Misfit;
use super::controller::ControllerRelease;
use super::input::{Manifest, Spot, path};
use super::invalid_spec;
use super::node::{Node, Refusal};
use super::output;
use super::simulate::{End, run_update};
use super::trial::{Trial, unmatched_entries};
use super::update::{Rollback, Update};
use super::world::{Source, Subject, misnamed};

/// The warning of the planner about weights that are an error of the table.
const REJECTED: &str = ": Gloo rejects the owner's weights: ";

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

pub(super) async fn run(args: &Args) -> anyhow::Result<bool> {
    let report = check(args).await?;
    let is_bad = report
        .problems
        .iter()
        .any(|problem| args.strict || problem.severity == Severity::Error);
    output::print(&match args.output {
        ValidateFormat::Text => report::text(&report),
        ValidateFormat::Json => output::json(&report)?,
        ValidateFormat::Yaml => output::yaml(&report)?,
        ValidateFormat::Github => report::github(&report),
    })?;
    Ok(!is_bad)
}

async fn check(args: &Args) -> anyhow::Result<Report> {
    let source = &args.source;
    let (manifests, unreadable) = if source.files.is_empty() {
        (source.live_rollouts().await?, Vec::new())
    } else {
        source.read()
    };
    let mut problems: BTreeSet<Problem> = unreadable.into_iter().map(Problem::from).collect();
    let ignored = several::ignored(source, &manifests);
    let is_complete = problems.is_empty() && ignored.is_empty();
    problems.extend(ignored);
    problems.extend(several::duplicates(&manifests));
    let world = World {
        source,
        manifests: &manifests,
        release: source.release(args.controller_release).await,
        unread: unread_tables(&manifests, &mut problems),
    };
    let (mut splits, mut live_tables) = (Vec::new(), BTreeSet::new());
    let mut rollouts = 0;
    for manifest in manifests.iter().filter(|it| source.is_subject(it)) {
        rollouts += 1;
        let Some(key) = manifest.key() else {
            let spot = manifest.spot(&path("metadata"));
            let message = "Rollout without metadata.name: name it".to_owned();
            problems.insert(Problem::error(spot, message));
            continue;
        };
        let mut checked = Checked {
            world: &world,
            block: block::of(source, &manifest.value).at,
            policy: source.policy(),
            problems: Problems::new(manifest, format!("Rollout {key}")),
            bad_steps: BTreeSet::new(),
            is_refused: false,
            live_tables: BTreeSet::new(),
            splits: None,
        };
        checked.check().await?;
        splits.extend(checked.splits);
        problems.extend(checked.problems.found);
        live_tables.extend(checked.live_tables);
    }
    problems.extend(several::shared(&splits));
    if rollouts == 0 && is_complete {
        let message = source.without_plugin(&manifests);
        let spot = Spot::new(source.shown(), None);
        problems.insert(Problem::warning(spot, message));
    }
    let tables = manifests.iter().filter(|it| it.kind() == RouteTable::KIND);
    Ok(Report {
        rollouts,
        route_tables: tables.count() + live_tables.len(),
        problems: problems.into_iter().collect(),
    })
}

/// Checks every object apart from the Rollouts. Returns the tables that cannot be read.
fn unread_tables(manifests: &[Manifest], problems: &mut BTreeSet<Problem>) -> BTreeSet<ObjectKey> {
    let store = MemoryRouteStore::default();
    let mut unread = BTreeSet::new();
    for manifest in manifests {
        let stored = manifest.put(&store);
        if manifest.kind() != RouteTable::KIND {
            problems.extend(stored.err().map(Problem::from));
            continue;
        }
        if stored.is_err() {
            unread.extend(manifest.key());
        }
        let mistyped = shape::of_route_table(&manifest.value);
        let is_said = mistyped.iter().any(|it| matches!(it, Misfit::Wrong(..)));
        problems.extend(stored.err().filter(|_| !is_said).map(Problem::from));
        problems.extend(table::problems(manifest));
    }
    unread
}

/// What the Rollouts are checked with.
struct World<'a> {
    source: &'a Source,
    manifests: &'a [Manifest],
    release: Option<ControllerRelease>,
    unread: BTreeSet<ObjectKey>,
}

/// A Rollout, and what is wrong with it.
struct Checked<'a> {
    world: &'a World<'a>,
    /// The place of the plugin block.
    block: PointerBuf,
    /// What the administrator allows, and after the check of the block what it asks for beyond that.
    policy: Policy,
    problems: Problems<'a>,
    /// The steps at fault. A simulation leaves them out.
    bad_steps: BTreeSet<usize>,
    /// Whether the strategy has a fault that is not in a step.
    is_refused: bool,
    /// The selected tables that the files lack.
    live_tables: BTreeSet<ObjectKey>,
    splits: Option<Splits>,
}

impl Checked<'_> {
    async fn check(&mut self) -> anyhow::Result<()> {
        let manifest = self.problems.manifest;
        let release = self.world.release.unwrap_or(ControllerRelease::NEWEST);
        let objects = self.world.manifests.iter().map(|it| &it.value);
        let workload = invalid_spec::workload_of(&manifest.value, objects);
        self.spec(&manifest.value, workload, release);
        let played = invalid_spec::known_to(release, manifest.value.clone());
        let mut subject = match Subject::new(without_steps(&played, &self.bad_steps)) {
            Ok(subject) => subject,
            Err(error) => {
                // A value of another type is reported already, unless it is in metadata or in the status.
                if self.problems.found.is_empty() {
                    let unreadable = manifest.unreadable(error.path(), &error);
                    self.problems.found.push(unreadable.into());
                }
                return Ok(());
            }
        };
        self.splits = Some(Splits {
            rollout: subject.key.clone(),
            services: several::services_of(&subject),
            spot: manifest.spot(&self.block),
            parts: BTreeSet::new(),
        });
        let (world, problems) = (self.world, &mut self.problems);
        let labels = invalid_spec::labels_of(&subject.api, workload);
        several::references(problems, world.manifests, &subject, labels.as_ref());
        advice::about_scaling(problems, &subject, world.release);
        if let Some(text) = world.source.unprepared_pong(&subject).await {
            problems.warn(&path("spec.strategy.canary.pingPong"), text);
        }
        advice::about_block(problems, world.source, &subject);
        advice::about_steps(problems, &subject);
        let is_bad = block::check(problems, world.source, &mut subject, &mut self.policy);
        let config = subject.config(&self.policy);
        if let Err(error) = &config
            && (!is_bad || block::is_of_several_blocks(error))
        {
            problems.named(&self.block, error_chain(error));
        }
        let config = config.ok();
        self.matches(&subject, config.as_ref());
        match config {
            Some(config) => self.routes(&subject, &config).await,
            None => Ok(()),
        }
    }

    /// Finds what the API server and the controller refuse, and what they drop. `workload` is what `workloadRef` names.
    fn spec(&mut self, api: &Value, workload: Option<&Value>, release: ControllerRelease) {
        const VERSION: &str = "argoproj.io/v1alpha1";
        if Node::root(api).get("apiVersion").text() != VERSION {
            let text = format!("apiVersion must be {VERSION}");
            self.problems.error(&path("apiVersion"), text);
        }
        for misfit in shape::of_rollout(api) {
            match misfit {
                Misfit::Wrong(at, text) => self.refuse(&path(&at), &text),
                Misfit::Unknown(at, text) => {
                    let text = format!("the API server drops {text}");
                    self.problems.warn(&path(&at), text);
                }
            }
        }
        let refusals = invalid_spec::of_strategy(api, release).into_iter();
        let refusals = refusals
            .chain(invalid_spec::of_pods(api, workload))
            .chain(invalid_spec::refused_maximum(api, release));
        for Refusal { at, text } in refusals {
            self.refuse(&at, &text);
        }
        if let Some(Refusal { at, text }) = invalid_spec::dropped(api, release) {
            self.problems.warn(&at, text);
        }
    }

    /// Reports an error at a place, which may be in a step.
    fn refuse(&mut self, at: &Pointer, text: &str) {
        self.problems.error(at, text);
        let step = at.strip_prefix(&path("spec.strategy.canary.steps"));
        match step.and_then(|it| it.first()?.decoded().parse().ok()) {
            Some(index) => drop(self.bad_steps.insert(index)),
            // The rest does not matter to the plugin.
            None => self.is_refused |= at.starts_with(&path("spec.strategy")),
        }
    }

    /// Checks every match of the steps, of which a call would only report the first.
    fn matches(&mut self, subject: &Subject, config: Option<&PluginConfig>) {
        let is_all = config.is_some_and(|it| it.header_match() == HeaderMatchMode::All);
        let steps = subject.get("spec.strategy.canary.steps").items();
        for (node, step) in steps.iter().zip(subject.rollout.steps()) {
            for route in from_rpc::managed_routes_of(step) {
                let node = match &route {
                    ManagedRoute::Header(_) => node.get("setHeaderRoute"),
                    ManagedRoute::Mirror(_) => node.get("setMirrorRoute"),
                };
                for (entry, refusal) in match_problems(&route) {
                    let at = node.get("match").at.with_trailing_token(entry);
                    self.refuse(&at, &refusal.to_string());
                }
                let ManagedRoute::Header(HeaderRoute { name, matches, .. }) = &route else {
                    continue;
                };
                let headers: Vec<_> = matches.iter().filter_map(exact_header).collect();
                if let Some(header) = contradiction(&headers).filter(|_| is_all) {
                    let text = format!(
                        "managed route {name}: no request matches, because header {header} cannot have both values: set headerMatch: any"
                    );
                    self.refuse(&node.at, &text);
                }
            }
        }
    }

    /// Checks the routes: which ones are selected, and what an update does with them.
    async fn routes(&mut self, subject: &Subject, config: &PluginConfig) -> anyhow::Result<()> {
        let source = self.world.source;
        let store = self.store(subject, config).await?;
        let selection = store.select(config.route_tables(), Freshness::Live).await;
        let tables = match selection.complete() {
            Ok(tables) => tables,
            Err(StoreError::NotFound { what }) if !source.is_live() => {
                let is_unread = |key: &ObjectKey| config.route_tables().names.contains(&key.name);
                if !self.world.unread.iter().any(is_unread) {
                    let remedy = misnamed(config.route_tables(), self.world.manifests);
                    let remedy = remedy.map(|it| format!("; {it}")).unwrap_or_default();
                    let text =
                        format!("the files do not have {what}: its routes are not checked{remedy}");
                    self.problems.warn(&self.block, text);
                }
                return Ok(());
            }
            Err(_) => Vec::new(),
        };
        for table in &tables {
            let tables = self.world.manifests.iter();
            let mut tables = tables.filter(|it| it.kind() == RouteTable::KIND);
            if !tables.any(|it| it.key().as_ref() == Some(table.key())) {
                let found = table::problems(&Manifest::live(table.clone()));
                self.problems.found.extend(found);
                self.live_tables.insert(table.key().clone());
            }
        }
        self.entries(subject, config, &store, &tables).await;
        if self.is_refused {
            return Ok(());
        }
        self.update(subject, config).await
    }

    /// Finds entries of the block that select nothing, or nothing that forwards to the Rollout.
    async fn entries(
        &mut self,
        subject: &Subject,
        config: &PluginConfig,
        store: &MemoryRouteStore,
        tables: &[RouteTableDoc],
    ) {
        // Files may lack tables that the cluster has.
        let may_lack = config.route_tables().by_label() && !self.world.source.is_live();
        match unmatched_entries(config, store).await {
            Some(text) if may_lack => {
                let text = format!("{text}, unless another table has it");
                self.problems.warn(&self.block, text);
            }
            Some(text) => self.problems.error(&self.block, text),
            None => {}
        }
        let Some(intent) = half(subject) else {
            return;
        };
        let idle = config.routes().idle(config, &intent, tables);
        if !idle.is_empty() {
            let idle = idle.join("; ");
            let text = format!(
                "no route that {idle} selects forwards to the stable destination: correct or remove the entry"
            );
            self.problems.warn(&self.block, text);
        }
        if let Some(splits) = &mut self.splits {
            splits.parts = several::split_by(config, &intent, tables);
        }
    }

    /// Simulates an update, and a rollback that skips its steps. A call stops at the first error, so each step with an error is left out, and the rest is simulated again.
    async fn update(&mut self, subject: &Subject, config: &PluginConfig) -> anyhow::Result<()> {
        while let Ok(subject) = Subject::new(without_steps(&subject.api, &self.bad_steps)) {
            let refused = self.simulate(&subject, config, None).await?;
            if refused.is_some_and(|index| self.bad_steps.insert(index)) {
                continue;
            }
            if subject.get("spec").has("rollbackWindow") {
                let rollback = Some(Rollback::Late);
                self.simulate(&subject, config, rollback).await?;
            }
            break;
        }
        let mut said = BTreeSet::new();
        self.problems
            .found
            .retain(|problem| said.insert((problem.spot.file.clone(), problem.message.clone())));
        Ok(())
    }

    /// Simulates an update, and returns the step that is refused.
    async fn simulate(
        &mut self,
        subject: &Subject,
        config: &PluginConfig,
        rollback: Option<Rollback>,
    ) -> anyhow::Result<Option<usize>> {
        let store = self.store(subject, config).await?;
        store.put_rollout(subject.api.clone())?;
        let trial = Trial::new(store, self.policy.clone(), subject.clone());
        let update = Update::new(subject, self.world.release).going_back(rollback);
        let passes = update.passes(None);
        let report = run_update(&trial, &passes).await?;
        let mut refused = None;
        for pass in &report.passes {
            let at = match pass.pass.step {
                Some(index) => path(&format!("spec.strategy.canary.steps[{index}]")),
                None if rollback.is_some() => path("spec.rollbackWindow"),
                None => self.block.clone(),
            };
            // The checks of the table report its weights, and only the controller knows the Services of an experiment whose Pod
            // template is in a workloadRef.
            let warnings = pass.warnings.iter();
            let is_left_out =
                |text: &&String| text.contains(REJECTED) || text.ends_with(ASSUMED_PORT);
            for warning in warnings.filter(|warning| !is_left_out(warning)) {
                self.problems.warn(&at, warning);
            }
            if let Some(reason) = &pass.refused {
                self.problems.named(&at, reason.clone());
                refused = pass.pass.step;
            }
        }
        if let End::Changed(objects) = &report.end {
            for object in objects {
                let text = format!("not restored: {object}");
                self.problems.error(&self.block, text);
            }
        }
        let threshold = subject.get("spec.strategy.canary.replicaProgressThreshold");
        if report.end == End::Stuck
            && refused.is_none()
            && threshold.is_set()
            && let Some(last) = passes.last()
        {
            let step = last.step.map(|index| format!("step {index}"));
            let step = step.unwrap_or_else(|| "the last step".to_owned());
            let text = format!(
                "replicaProgressThreshold: an update does not get past {step}, because the canary has fewer Pods: lower the value"
            );
            self.problems.error(&threshold.at, text);
        }
        Ok(refused)
    }

    /// Returns a store with the objects that the Rollout needs: of the tables, those that it selects, and those with a record.
    async fn store(
        &self,
        subject: &Subject,
        config: &PluginConfig,
    ) -> anyhow::Result<Arc<MemoryRouteStore>> {
        let source = self.world.source;
        let is_needed = |manifest: &&Manifest| {
            let metadata = Node::root(&manifest.value).get("metadata");
            let labels = metadata.get("labels").texts();
            let selector = config.route_tables();
            manifest.kind() != RouteTable::KIND
                || metadata.get("annotations").value.get(ANNOTATION).is_some()
                || manifest
                    .key()
                    .is_some_and(|key| selector.matches(&key, &labels))
        };
        let store = Arc::new(MemoryRouteStore::default());
        for manifest in self.world.manifests.iter().filter(is_needed) {
            // What cannot be read is already reported.
            let _ = manifest.put(&store);
        }
        if source.is_live() {
            source.copy_tables(subject, &store).await?;
        }
        Ok(store)
    }
}

/// Returns a Rollout with a pause instead of each of these steps.
fn without_steps(api: &Value, bad: &BTreeSet<usize>) -> Value {
    let mut api = api.clone();
    let steps = api.pointer_mut("/spec/strategy/canary/steps");
    let steps = steps.and_then(Value::as_array_mut).into_iter().flatten();
    for (_, step) in steps.enumerate().filter(|(index, _)| bad.contains(index)) {
        *step = json!({"pause": {}});
    }
    api
}

/// Returns the request for half of the traffic, which changes every route that forwards to the Rollout.
fn half(subject: &Subject) -> Option<Intent> {
    let services = subject.rollout.services()?;
    let half = WeightSplit::percent(50);
    let mut intent =
        Intent::set_weight(subject.key.clone(), services.stable, services.canary, half);
    intent.services.ping_pong = subject.rollout.is_ping_pong();
    intent.hashes = Some(PodHashes {
        stable: "stable".to_owned(),
        canary: "canary".to_owned(),
        others: false,
    });
    Some(intent)
}

/// The condition of a step on a header, if it is on the whole value.
fn exact_header(header: &route_planner::HeaderMatch) -> Option<gloo_types::HeaderMatcher> {
    let exact = &header.value.exact;
    if exact.is_empty() {
        return None;
    }
    let mut matcher = gloo_types::HeaderMatcher::default();
    matcher.name.clone_from(&header.name);
    matcher.value = Some(exact.clone());
    Some(matcher)
}
