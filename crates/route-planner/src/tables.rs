//! Decides about several tables of one Rollout: traffic returns to stable table by table, and moves to the canary only if all tables
//! can be read and planned.
//!
//! For example, weight 25 for three tables, one of which was deleted:
//!
//! ```text
//! table   canary before   plan        result
//! high    50              25          25: traffic returns to stable
//! low     10              25          10: no share grows, because another table failed
//! gone    -               not found   the caller says which table failed
//! ```

use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTableDoc};
use json_patch::Patch;

use crate::config::PluginConfig;
use crate::error::PlanError;
use crate::intent::{Intent, IntentKind};
use crate::plan::Plan;
use crate::{plan, plan_toward_stable};

/// A table, and the plan of an intent for it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Planned {
    /// The table as it is now.
    pub table: RouteTableDoc,
    /// What [`plan()`](crate::plan()) returned for it.
    pub plan: Result<Plan, PlanError>,
}

/// What is written, in two steps.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Writes {
    /// Written first. They increase no share.
    pub steady: Vec<TableWrite>,
    /// Written afterwards, if nothing has failed; otherwise each gets [`Growing::toward_stable`].
    pub growing: Vec<Growing>,
    /// What cannot be done. If there is anything, `growing` is empty.
    pub errors: Vec<PlanError>,
}

/// A plan that is written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TableWrite {
    /// The plan.
    pub plan: Plan,
    /// Whether it increases a canary's share.
    pub grows: bool,
    /// Whether the MirrorPolicies of the table are changed too.
    pub with_policies: bool,
    /// Whether it moves traffic toward stable only, because something else has failed.
    pub is_partial: bool,
    /// Whether a share may grow if the table has to be planned again.
    may_grow: bool,
}

/// A write that increases a canary's share.
#[derive(Debug)]
#[non_exhaustive]
pub struct Growing {
    /// The write.
    pub write: TableWrite,
    table: RouteTableDoc,
}

impl Planned {
    /// Plans an intent for a table.
    pub fn new(config: &PluginConfig, intent: &Intent, table: RouteTableDoc) -> Self {
        let plan = plan(config, intent, &table);
        Self { table, plan }
    }

    /// Returns the plan, if there is one.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref().ok()
    }

    /// Whether a plan sends more requests, or copies of requests, to the canary.
    pub fn adds_share(&self, intent: &Intent) -> bool {
        self.plan().is_some_and(|plan| plan.adds_share(intent))
    }
}

/// One patch of a table that carries the writes of several Rollouts, from [`combine`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Combined {
    /// Applies to the table, and to no other version of it.
    pub patch: Patch,
    /// Whether the table is as its owner wrote it afterwards, see [`Plan::hands_back`].
    pub hands_back: bool,
    /// For each write, in their order, why it is not a part of the patch.
    pub errors: Vec<Option<PlanError>>,
}

/// Plans writes again for `table`, each for the result of those before it. A write that cannot be planned does not change the others.
pub fn combine<'w>(
    table: &RouteTableDoc,
    writes: impl IntoIterator<Item = (&'w PluginConfig, &'w Intent, &'w mut TableWrite)>,
) -> Combined {
    let mut combined = Combined {
        patch: Patch::default(),
        hands_back: false,
        errors: Vec::new(),
    };
    let mut changed: Option<RouteTableDoc> = None;
    for (config, intent, write) in writes {
        let before = changed.as_ref().unwrap_or(table);
        let error = write.plan_again(config, intent, before).err();
        if error.is_none() && !write.plan.is_noop() {
            changed = write.plan.applied_to(before).or(changed);
            combined.patch.0.extend(write.plan.to_json_patch().0);
            combined.hands_back = write.plan.hands_back;
        }
        combined.errors.push(error);
    }
    combined
}

/// Decides which plans are written. `policies` are the existing MirrorPolicies, `None` if they could not be read. `has_failed` tells
/// that something else failed, so that no share may grow.
///
/// If anything has failed, a table whose plan would increase the canary's share gets a plan toward stable instead.
pub fn decide(
    config: &PluginConfig,
    intent: &Intent,
    planned: Vec<Planned>,
    policies: Option<&[MirrorPolicyDoc]>,
    has_failed: bool,
) -> Writes {
    // A managed route may be meant for some of the tables only.
    let is_weight = matches!(intent.kind, IntentKind::SetWeight(_));
    let may_be_without_route = !is_weight && planned.iter().any(|it| it.plan.is_ok());
    let mut writes = Writes::default();
    let mut refused = Vec::new();
    for Planned { table, plan } in planned {
        match plan.and_then(|plan| check_policies(plan, policies)) {
            Ok(Some(plan)) => {
                writes.errors.extend(plan.left());
                let grows = plan.grows() || intent.adds_route();
                let write = TableWrite::new(plan, grows);
                if grows {
                    writes.growing.push(Growing { write, table });
                } else {
                    writes.steady.push(write);
                }
            }
            // The caller knows why there are no policies.
            Ok(None) => refused.push(table),
            Err(error) if may_be_without_route && error.is_without_route() => {}
            Err(error) => {
                writes.errors.push(error);
                refused.push(table);
            }
        }
    }
    if has_failed || !writes.errors.is_empty() {
        refused.extend(writes.growing.drain(..).map(|growing| growing.table));
        for write in &mut writes.steady {
            write.may_grow = false;
        }
    }
    if intent.adds_route() {
        // A managed route moves traffic to the canary and none back, so there is no plan toward stable.
        refused.clear();
    }
    for table in refused {
        match TableWrite::toward_stable(config, intent, &table, policies) {
            Ok(write) => {
                writes.errors.extend(write.plan.left());
                writes.steady.push(write);
            }
            Err(error) => writes.errors.push(error),
        }
    }
    writes
}

impl Writes {
    /// Leaves only what is written to one table.
    pub fn retain(&mut self, table: &ObjectKey) {
        self.steady.retain(|it| it.plan.table == *table);
        self.growing.retain(|it| it.write.plan.table == *table);
    }
}

impl Growing {
    /// Plans the part of the write that moves no more traffic to the canary: shares shrink, and managed routes that exist stay.
    ///
    /// # Errors
    /// See [`plan_toward_stable`].
    pub fn toward_stable(
        &self,
        config: &PluginConfig,
        intent: &Intent,
        policies: Option<&[MirrorPolicyDoc]>,
    ) -> Result<TableWrite, PlanError> {
        TableWrite::toward_stable(config, intent, &self.table, policies)
    }
}

impl TableWrite {
    /// Creates a write of a plan.
    pub fn new(plan: Plan, grows: bool) -> Self {
        Self {
            plan,
            grows,
            with_policies: true,
            is_partial: false,
            may_grow: true,
        }
    }

    fn toward_stable(
        config: &PluginConfig,
        intent: &Intent,
        table: &RouteTableDoc,
        policies: Option<&[MirrorPolicyDoc]>,
    ) -> Result<Self, PlanError> {
        let plan = plan_toward_stable(config, intent, table)?;
        let with_policies = matches!(check_policies(plan.clone(), policies), Ok(Some(_)));
        Ok(Self {
            plan,
            grows: false,
            with_policies,
            is_partial: true,
            may_grow: false,
        })
    }

    /// Plans again for a newer version of the table. If the first plan increased no share because something else had failed, this
    /// one does not either.
    ///
    /// # Errors
    /// See [`plan()`](crate::plan()).
    pub fn plan_again(
        &mut self,
        config: &PluginConfig,
        intent: &Intent,
        table: &RouteTableDoc,
    ) -> Result<(), PlanError> {
        self.plan = if self.may_grow {
            plan(config, intent, table)?
        } else {
            plan_toward_stable(config, intent, table)?
        };
        Ok(())
    }
}

/// Returns the plan if its policies can be planned too, and `None` if they could not be read.
fn check_policies(
    plan: Plan,
    policies: Option<&[MirrorPolicyDoc]>,
) -> Result<Option<Plan>, PlanError> {
    match policies {
        Some(policies) => plan.policy_changes(policies).map(|_| Some(plan)),
        None if plan.needs_policies() => Ok(None),
        None => Ok(Some(plan)),
    }
}
