//! `restore`: removes what a deleted Rollout has left in tables.

use std::io::{self, BufRead as _, IsTerminal as _};

use anyhow::Context as _;
use gloo_router::carry_out;
use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTable};
use rollouts_rpc::Rollout;
use route_planner::{Plan, PluginConfig, belongs_to, is_for_table, marked, restore};
use route_store::{Clusters, RolloutReader as _, RouteStore as _, StoreError};
use serde_json::Value;

use super::misuse;
use super::output::{self, BOLD, DIM, GREEN, YELLOW, styled};
use super::world::{self, Subject};
use crate::flags::ClusterFlags;

/// Restore the RouteTables of a Rollout that was deleted during an update to what their owners wrote.
///
/// The controller does not notify a plugin when a Rollout is deleted, so its share of the traffic stays. This command removes
/// what the Rollout has left in every table of the cluster, and nothing else: edits of the owner and changes for other Rollouts
/// stay. If the Rollout exists, the tables that it selects are skipped.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  restore shop/reviews --dry-run                    show the changes
  restore shop/reviews                              show them, ask, and write
  restore shop/reviews --yes                        in a script
  restore shop/reviews@east                         in a management cluster, for a Rollout of cluster east

Exit codes: 0 restored, or nothing to do; 1 not restored: declined, or the Rollout still selects the tables; \
2 the command line is wrong; 3 the cluster cannot be read or written.")]
pub(crate) struct Args {
    /// The Rollout, as namespace/name, or as namespace/name@cluster in a management cluster.
    #[arg(value_parser = key)]
    rollout: ObjectKey,

    /// Write without asking.
    #[arg(short, long)]
    yes: bool,

    /// Only show what would be written.
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    #[command(flatten)]
    cluster: ClusterFlags,
}

/// A table that is restored.
struct Change {
    plan: Plan,
    before: Value,
    after: Value,
}

/// Whether the Rollout exists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Existence {
    /// The Rollout exists.
    Exists,
    /// The Rollout does not exist.
    Gone,
    /// The Rollouts of its cluster cannot be read here, or there is no such kind.
    Unknown,
}

/// The changes to write.
struct Work {
    changes: Vec<Change>,
    policies: Vec<MirrorPolicyDoc>,
    /// Tables that are skipped because the Rollout exists and selects them.
    in_use: Vec<ObjectKey>,
    /// Whether the Rollout exists.
    existence: Existence,
}

pub(super) async fn run(args: &Args) -> anyhow::Result<bool> {
    let clusters = args.cluster.clusters();
    let work = plan(args, &clusters).await?;
    output::print(&text(args, &work)?)?;
    if work.changes.is_empty() && work.policies.is_empty() {
        return Ok(work.in_use.is_empty());
    }
    if args.dry_run {
        return Ok(true);
    }
    if !args.yes && !is_confirmed()? {
        output::print("nothing was written\n")?;
        return Ok(false);
    }
    // A policy is deleted before its routes.
    for policy in &work.policies {
        match clusters.tables.delete_policy(policy).await {
            Err(StoreError::NotFound { .. }) => {}
            deleted => deleted?,
        }
    }
    for Change { plan, .. } in &work.changes {
        carry_out(&*clusters.tables, plan).await?;
    }
    output::print(&(styled(GREEN, "restored") + "\n"))?;
    Ok(true)
}

async fn plan(args: &Args, clusters: &Clusters) -> anyhow::Result<Work> {
    let Clusters { local, tables, .. } = clusters;
    let policy = args.cluster.policy();
    let (rollout, cluster) = marked(&args.rollout);
    let mark = match cluster {
        Some(_) => args.rollout.clone(),
        None => policy.mark(&rollout),
    };
    let is_known = policy.marked(&mark).is_some();
    let live = match is_known {
        true => local.rollout(&rollout).await?,
        false => None,
    };
    let existence = match live {
        Some(_) => Existence::Exists,
        None if !is_known => Existence::Unknown,
        None => match local.objects::<Rollout>(Some(&rollout.namespace)).await {
            Err(StoreError::NotFound { .. }) => Existence::Unknown,
            _ => Existence::Gone,
        },
    };
    let config = match live {
        None => None,
        Some(live) => Subject::new(live.into_raw())?.config(&policy).ok(),
    };
    let mut work = Work {
        changes: Vec::new(),
        policies: Vec::new(),
        in_use: Vec::new(),
        existence,
    };
    for table in tables.objects::<RouteTable>(None).await? {
        let plan = restore(&mark, &table)?;
        if plan.is_noop() {
            continue;
        }
        let selector = config.as_ref().map(PluginConfig::route_tables);
        if selector.is_some_and(|it| it.matches(table.key(), table.labels())) {
            work.in_use.push(plan.table);
            continue;
        }
        let after = plan
            .applied_to(&table)
            .with_context(|| format!("RouteTable {}: the plan does not apply", table.key()))?;
        work.changes.push(Change {
            plan,
            before: table.into_raw(),
            after: after.into_raw(),
        });
    }
    let is_left = |policy: &MirrorPolicyDoc| match existence {
        Existence::Exists => {
            let mut tables = work.changes.iter().map(|change| &change.plan.table);
            tables.any(|table| is_for_table(policy, &mark, table))
        }
        Existence::Gone | Existence::Unknown => belongs_to(policy, &mark),
    };
    let policies = world::policies(tables).await?;
    work.policies = policies.into_iter().filter(is_left).collect();
    Ok(work)
}

fn text(args: &Args, work: &Work) -> anyhow::Result<String> {
    let rollout = &args.rollout;
    let mut text = match work.existence {
        Existence::Exists => String::new(),
        Existence::Gone => format!("this cluster has no Rollout {rollout}\n\n"),
        Existence::Unknown => {
            let message = format!(
                "the Rollouts of that cluster cannot be read here: make sure that {rollout} was deleted"
            );
            output::line(YELLOW, "warning", &message) + "\n"
        }
    };
    for policy in &work.policies {
        text += &styled(BOLD, &format!("MirrorPolicy {} is deleted", policy.key()));
        text += "\n\n";
    }
    for change in &work.changes {
        let label = format!("RouteTable {}", change.plan.table);
        text += &output::diff(&label, &change.before, &change.after)?;
        for warning in &change.plan.warnings {
            text += &output::line(YELLOW, "warning", &warning.to_string());
        }
        text.push('\n');
    }
    for table in &work.in_use {
        let message = format!(
            "Rollout {rollout} exists and selects RouteTable {table}: abort the Rollout instead"
        );
        text += &output::line(YELLOW, "skipped", &message);
    }
    if work.changes.is_empty() && work.policies.is_empty() && work.in_use.is_empty() {
        text += &(styled(DIM, &format!("no table has changes for Rollout {rollout}")) + "\n");
    }
    Ok(text)
}

/// Asks for confirmation on the terminal.
fn is_confirmed() -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        misuse!("there is no terminal to ask for confirmation: pass --yes or --dry-run");
    }
    output::print("Write this? [y/N] ")?;
    let mut answer = String::new();
    if io::stdin().lock().read_line(&mut answer)? == 0 {
        output::print("\n")?;
    }
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

pub(super) fn key(text: &str) -> Result<ObjectKey, String> {
    let key = text
        .split_once('/')
        .filter(|(namespace, name)| {
            let is_whole = !namespace.is_empty() && !name.is_empty();
            is_whole && !name.contains('/') && !name.ends_with('@')
        })
        .map(|(namespace, name)| ObjectKey::new(namespace, name));
    key.ok_or_else(|| "expected namespace/name".to_owned())
}
