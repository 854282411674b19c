//! `status`: shows what the plugin has set in a cluster.

mod watch;

use std::collections::BTreeMap;

use gloo_router::{behind_recorded, portions};
use gloo_types::{Approval, MirrorPolicyDoc, ObjectKey, RouteTable, RouteTableDoc};
use rollouts_rpc::error_chain;
use route_planner::{Portion, involved};
use route_store::Clusters;
use serde::Serialize;

use super::output::{self, DIM, Format, RED, YELLOW, styled};
use super::routes::{RouteState, name_all, routes};
use super::world::{self, Subject};
use crate::flags::ClusterFlags;

/// Show each Rollout of a cluster that uses the plugin, the destinations of its routes, and whether Gloo accepts its tables.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  status                                            all namespaces
  status -n shop -o json                            the Rollouts of one namespace, for a program
  status --watch                                    the progress of Rollouts

The plugin has added the routes marked with *. Parts that Rollouts have left in tables which they no longer use are listed \
below; `restore` removes them.

Exit codes: 0 no problem was found; 1 a Rollout cannot be carried out, Gloo refuses a table, or something was left behind; \
2 the command line is wrong; 3 the cluster cannot be read.")]
pub(crate) struct Args {
    /// Only Rollouts of this namespace.
    #[arg(short, long)]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterFlags,

    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,

    /// Show requested and accepted weights, held promotions and repairs, repeatedly until Ctrl-C.
    #[arg(short, long, conflicts_with = "output")]
    watch: bool,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    rollouts: Vec<RolloutStatus>,
    left_behind: Vec<LeftBehind>,
}

#[derive(Debug, Default, Serialize)]
struct RolloutStatus {
    rollout: String,
    phase: String,
    /// Index of the current step, and the number of steps.
    step: Option<(i32, usize)>,
    /// Why the plugin refuses its calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// Why the last weight is not in force, or not accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    behind: Option<String>,
    tables: Vec<TableStatus>,
    /// What the versions get of the routes that the Rollout splits.
    #[serde(skip)]
    portions: Vec<Portion>,
    /// The canary's weight that the controller recorded last.
    #[serde(skip)]
    asked: Option<i32>,
}

#[derive(Debug, Serialize)]
struct TableStatus {
    table: String,
    /// Whether it has changes for this Rollout.
    is_changed: bool,
    gloo: Verdict,
    routes: Vec<RouteState>,
}

/// Gloo's status of a table.
#[derive(Debug, Default, Serialize)]
struct Verdict {
    /// The state; absent if Gloo has not written a status.
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    /// Whether the state is of the current generation.
    is_current: bool,
    is_bad: bool,
}

/// Changes for a Rollout that was deleted or does not select the table.
#[derive(Debug, Serialize)]
struct LeftBehind {
    table: String,
    rollout: String,
}

pub(super) async fn run(args: &Args) -> anyhow::Result<bool> {
    let clusters = args.cluster.clusters();
    if args.watch {
        return watch::run(args, &clusters).await;
    }
    let report = read(args, &clusters).await?;
    let is_ok = report.left_behind.is_empty()
        && report.rollouts.iter().all(|rollout| {
            rollout.problem.is_none() && !rollout.tables.iter().any(|table| table.gloo.is_bad)
        });
    output::print(&args.output.render(&report, text)?)?;
    Ok(is_ok)
}

/// Reads the cluster.
async fn read(args: &Args, clusters: &Clusters) -> anyhow::Result<Report> {
    if !args.watch {
        output::progress("reading Rollouts");
    }
    let rollouts = world::rollouts(&clusters.local, args.namespace.as_deref()).await?;
    if !args.watch {
        output::progress("reading RouteTables");
    }
    let tables = clusters.tables.objects::<RouteTable>(None).await?;
    let policies = world::policies(&clusters.tables).await?;
    let policy = args.cluster.policy();

    let mut report = Report::default();
    let mut selected_by_mark: BTreeMap<ObjectKey, Vec<ObjectKey>> = BTreeMap::new();
    for rollout in rollouts {
        if !args.cluster.uses_plugin(rollout.raw()) {
            continue;
        }
        let name = rollout.key().to_string();
        match Subject::new(rollout.into_raw()) {
            Ok(subject) => {
                let (status, selected) = status(args, &subject, &tables, &policies);
                selected_by_mark.insert(policy.mark(&subject.key), selected);
                report.rollouts.push(status);
            }
            Err(error) => report.rollouts.push(RolloutStatus {
                rollout: name,
                problem: Some(error_chain(&error)),
                ..RolloutStatus::default()
            }),
        }
    }
    for table in &tables {
        // An unreadable annotation stops the Rollouts of the table, and is reported with them.
        for rollout in involved(table).unwrap_or_default() {
            let namespace = args.namespace.as_ref();
            let is_asked = namespace.is_none_or(|it| rollout.namespace == *it);
            // Rollouts of other clusters cannot be read here.
            let is_here = is_asked && policy.marked(&rollout).is_some();
            let selected = selected_by_mark.get(&rollout);
            if is_here && selected.is_none_or(|tables| !tables.contains(table.key())) {
                report.left_behind.push(LeftBehind {
                    table: table.key().to_string(),
                    rollout: rollout.to_string(),
                });
            }
        }
    }
    let tables = report.rollouts.iter_mut().flat_map(|it| &mut it.tables);
    name_all(tables.flat_map(|table| &mut table.routes));
    Ok(report)
}

/// Returns the status of a Rollout, and the tables that it selects.
fn status(
    args: &Args,
    subject: &Subject,
    tables: &[RouteTableDoc],
    policies: &[MirrorPolicyDoc],
) -> (RolloutStatus, Vec<ObjectKey>) {
    let Subject { key, rollout, .. } = subject;
    let steps = rollout.steps().len();
    let recorded = rollout.status.canary.weights.as_ref();
    let mut status = RolloutStatus {
        rollout: key.to_string(),
        phase: rollout.status.phase.clone(),
        step: rollout.status.current_step_index.map(|step| (step, steps)),
        asked: recorded.map(|weights| weights.canary.weight),
        ..RolloutStatus::default()
    };
    let policy = args.cluster.policy();
    let config = match subject.config(&policy) {
        Ok(config) => config,
        Err(error) => {
            status.problem = Some(error_chain(&error));
            return (status, Vec::new());
        }
    };
    let selector = config.route_tables();
    let mut selected = Vec::new();
    for table in tables {
        if !selector.matches(table.key(), table.labels()) {
            continue;
        }
        selected.push(table.key().clone());
        let is_changed = match involved(table) {
            Ok(rollouts) => rollouts.contains(&policy.mark(key)),
            Err(error) => {
                status.problem = Some(error_chain(&error));
                true
            }
        };
        let behind = behind_recorded(&policy, rollout, table);
        status.behind = status.behind.or(behind.map(|behind| behind.reason));
        let additional = recorded.map_or(&[][..], |weights| &weights.additional);
        let asked = status.asked.unwrap_or(0);
        let portions = portions(&policy, rollout, asked, additional, table);
        status.portions.extend(portions);
        status.tables.push(TableStatus {
            table: table.key().to_string(),
            is_changed,
            gloo: Verdict::of(table),
            routes: routes(table, policies),
        });
    }
    if selected.is_empty() {
        status.problem = Some(format!(
            "selects no RouteTable ({selector}): create it or correct routeTableSelector"
        ));
    }
    (status, selected)
}

impl RolloutStatus {
    /// Returns the name, the phase and the step.
    fn cells(&self) -> [String; 3] {
        let step = self.step.map(|(step, steps)| format!("{step}/{steps}"));
        [
            self.rollout.clone(),
            self.phase.clone(),
            step.unwrap_or_default(),
        ]
    }
}

impl Verdict {
    fn of(table: &RouteTableDoc) -> Self {
        let status = table.status().unwrap_or_default();
        let Some(state) = status.state() else {
            return Self::default();
        };
        let generation = table.generation();
        let is_current = generation.is_none_or(|it| it == state.observed_generation);
        let words: Vec<&str> = state.message.split_whitespace().collect();
        Self {
            approval: Some(state.approval.to_string()),
            message: words.join(" "),
            is_current,
            is_bad: is_current
                && matches!(
                    state.approval,
                    Approval::Invalid | Approval::Failed | Approval::Unlicensed
                ),
        }
    }

    fn shown(&self) -> String {
        match (&self.approval, self.message.as_str()) {
            (None, _) => "-".to_owned(),
            (Some(word), _) if !self.is_current => format!("{word}, for an older generation"),
            (Some(word), "") => word.clone(),
            (Some(word), message) => format!("{word}: {message}"),
        }
    }
}

/// Returns a table, and a line for each Rollout with a problem and for each whose last weight is not in force.
fn overview<const N: usize>(rollouts: &[RolloutStatus], rows: &[[String; N]]) -> String {
    let mut text = match rollouts {
        [] => styled(DIM, "no Rollout uses the plugin") + "\n",
        _ => output::table(rows),
    };
    for rollout in rollouts {
        let name = &rollout.rollout;
        if let Some(problem) = &rollout.problem {
            text += &output::line(RED, "problem", &format!("{name}: {problem}"));
        } else if let Some(behind) = &rollout.behind {
            text += &output::line(YELLOW, "behind", &format!("{name}: {behind}"));
        }
    }
    text
}

fn text(report: &Report) -> String {
    let head = [
        "ROLLOUT", "PHASE", "STEP", "TABLE", "GLOO", "ROUTE", "WEIGHTS", "TRAFFIC",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for rollout in &report.rollouts {
        let mut first = rollout.cells();
        let mut row = |of_table: [String; 2], of_route: [String; 3]| {
            let [name, phase, step] = std::mem::take(&mut first);
            let [table, gloo] = of_table;
            let [route, weights, traffic] = of_route;
            rows.push([name, phase, step, table, gloo, route, weights, traffic]);
        };
        if rollout.tables.is_empty() {
            row(Default::default(), Default::default());
        }
        for table in &rollout.tables {
            let mut label = [table.table.clone(), table.gloo.shown()];
            for state in &table.routes {
                let mark = if state.managed_by.is_some() { " *" } else { "" };
                let route = format!("{}{mark}", state.route);
                let cells = [route, state.written(), state.traffic()];
                row(std::mem::take(&mut label), cells);
            }
        }
    }
    let mut text = overview(&report.rollouts, &rows);
    for LeftBehind { table, rollout } in &report.left_behind {
        let message = format!(
            "RouteTable {table} has changes for Rollout {rollout}, which was deleted or does not select it: run restore {rollout}"
        );
        text += &output::line(YELLOW, "left behind", &message);
    }
    text
}
