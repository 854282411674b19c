//! Restores tables by the marks in them: the record in the annotation, and the labels of managed routes.
//!
//! Traffic must return to the stable version also while the plugin block of the Rollout cannot be used, for example because of a
//! misspelt key, and in tables that a changed block no longer selects. The marks name the Rollout and what the owner wrote.

use std::collections::BTreeSet;

use gloo_types::{ObjectKey, RouteTableDoc};
use rollouts_rpc::Rollout;
use route_planner::{Plan, PolicyChange, involved, restore};
use route_store::{Selection, Store, StoreError};
use tracing::info;

use super::{
    GlooRouter, carry_out,
    deadline::Deadline,
    memory::Urgency,
    write::{WRITE_ATTEMPTS, pause},
};
use crate::error::{Failure, Failures, ShiftError};
use crate::from_rpc;

impl<S: Store> GlooRouter<S> {
    /// Carries out SetWeight 0 for a Rollout whose plugin block cannot be used because of `block`: restores all tables with its
    /// marks. Returns the error of the call, which says what was restored.
    pub(super) async fn restore_all(
        &self,
        rollout: &Rollout,
        block: ShiftError,
        deadline: Deadline,
    ) -> ShiftError {
        let rollout = from_rpc::key(rollout);
        let (mut restored, mut failures) = (Vec::new(), Vec::new());
        let marked = self.marked(&rollout, deadline).await;
        failures.extend(marked.errors.into_iter().map(Failure::Store));
        for table in marked.tables {
            let key = table.key().clone();
            let write = deadline.tables(self.restore_table(&rollout, table));
            match write.await {
                Some(Ok(())) => restored.push(key),
                Some(Err(failure)) => failures.push(failure),
                None => failures.push(Failure::NotWritten(format!("RouteTable {key}"))),
            }
        }
        ShiftError::Unusable {
            block: Box::new(block),
            restored,
            failures: Failures::check(failures).err(),
        }
    }

    /// Returns the tables with marks of a Rollout, apart from those of which it is known that they are at rest.
    pub(super) async fn marked(&self, rollout: &ObjectKey, deadline: Deadline) -> Selection {
        let mark = self.policy.mark(rollout);
        let Some(mut marked) = deadline.tables(self.store.marked(rollout)).await else {
            let late = StoreError::CallEnded {
                verb: "list",
                what: "RouteTables".to_owned(),
            };
            return Selection {
                errors: vec![late],
                ..Selection::default()
            };
        };
        marked.tables.retain(|table| {
            let involved = involved(table);
            involved.is_ok_and(|marks: BTreeSet<ObjectKey>| marks.contains(&mark))
        });
        marked
    }

    /// Restores one table with its MirrorPolicies. After a conflict it reads the table and plans again.
    async fn restore_table(
        &self,
        rollout: &ObjectKey,
        mut table: RouteTableDoc,
    ) -> Result<(), Failure> {
        let mark = self.policy.mark(rollout);
        let key = table.key().clone();
        let mut guard = self.memory.locks.lock(&key, Urgency::Less).await;
        for attempt in 1.. {
            let plan = restore(&mark, &table)?;
            self.delete_policies_of(rollout, &plan).await?;
            if plan.is_noop() {
                break;
            }
            match carry_out(&*self.store, &plan).await {
                Ok(written) => {
                    guard.newest = Some(Box::new(written));
                    for edit in &plan.edits {
                        info!(%rollout, route_table = %key, "{edit}");
                    }
                    break;
                }
                Err(StoreError::Conflict(_)) if attempt < WRITE_ATTEMPTS => {
                    tokio::time::sleep(pause(attempt)).await;
                    table = self.store.read(&key).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Deletes the MirrorPolicies of the routes that a restore removes.
    async fn delete_policies_of(&self, rollout: &ObjectKey, plan: &Plan) -> Result<(), Failure> {
        if !plan.needs_policies() {
            return Ok(());
        }
        let live = self.policies_if_any().await?;
        for change in plan.policy_changes(&live)? {
            if let PolicyChange::Delete(policy) = change {
                self.delete_policy(rollout, &policy).await?;
            }
        }
        Ok(())
    }
}
