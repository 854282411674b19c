//! Shifting without Argo Rollouts: the caller says whose traffic goes where, and keeps its own steps.
//!
//! It has the order of writes, the retries and the refusals of a call of the controller. What needs a Rollout it does not have:
//! repairs between the calls, promotions that wait for Pods, header and mirror routes.

use gloo_types::{ObjectKey, is_object_name};
use route_planner::{Intent, IntentKind, Observation, PluginConfig, ServicePair, WeightSplit};
use route_store::{Decision, Priority, Store};

use super::GlooRouter;
use crate::error::{Failures, ShiftError};
use crate::from_rpc::{Policy, Request};

/// Whose traffic is shifted, between which Services, in which tables.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Target {
    /// The object to which the shift belongs, of any kind. The Services are in its namespace. Tables are marked with its namespace
    /// and name, and with [`Policy::cluster`]. A plugin of Argo Rollouts that reads the same tables restores those with the mark of
    /// a Rollout that does not exist, unless the mark has the name of another cluster.
    pub owner: ObjectKey,
    /// The Services that share the traffic.
    pub services: ServicePair,
    /// The tables and their routes.
    pub config: PluginConfig,
}

impl Target {
    /// The share of one object's traffic between two Services.
    #[must_use]
    pub fn new(owner: ObjectKey, services: ServicePair, config: PluginConfig) -> Self {
        Self {
            owner,
            services,
            config,
        }
    }

    fn request(&self, policy: &Policy, percent: u8) -> Result<Request, ShiftError> {
        if percent > 100 {
            return Err(ShiftError::NotAPercentage(percent));
        }
        let names = [
            ("a namespace", Some(&self.owner.namespace)),
            ("an owner", Some(&self.owner.name)),
            ("a Service", Some(&self.services.stable)),
            ("a Service", Some(&self.services.canary)),
            ("a cluster", policy.cluster.as_ref()),
        ];
        for (of, name) in names {
            // Marks join them with characters that no name has.
            if let Some(name) = name.filter(|name| !is_object_name(name)) {
                let name = name.clone();
                return Err(ShiftError::InvalidName { of, name });
            }
        }
        policy.check(&self.owner, &self.config)?;
        Ok(Request {
            rollout: self.owner.clone(),
            config: self.config.clone(),
            intent: Intent::new(
                policy.mark(&self.owner),
                self.services.clone(),
                IntentKind::SetWeight(WeightSplit::percent(percent.into())),
            ),
            has_mirrors: false,
            facts: None,
        })
    }
}

impl<S: Store> GlooRouter<S> {
    /// Shifts `percent` of the traffic of the stable Service to the canary Service. If a selected table cannot be read or planned,
    /// no table gives the canary more; less is set in every table where that is possible. Header and mirror routes of the same
    /// owner are removed.
    ///
    /// 0 restores the tables as their owners wrote them, also those that this router shifted before and that are no longer selected.
    /// One thing stays different: a canary that its owner listed with a share gets no traffic, until
    /// [`restore`](route_planner::restore) gives it back.
    ///
    /// Several tables are written at once. If a write fails, or the future is dropped, some of the others have the new weights: the
    /// next call sets the others, or takes these back.
    ///
    /// # Errors
    /// Returns `Err` if `percent` is above 100, a name is invalid, the policy does not allow a namespace, or a table cannot be read,
    /// planned or written, also if it was changed by others in each of three attempts. The error names each such table.
    pub async fn shift_to(&self, target: &Target, percent: u8) -> Result<(), ShiftError> {
        let priority = match percent {
            0 => Priority::TowardStable,
            _ => Priority::Call,
        };
        let shift = |deadline| async move {
            let mut request = target.request(&self.policy, percent)?;
            let selected = self.selected(&request, Decision::Plan, deadline).await;
            let is_complete = selected.failures.is_empty();
            let selected = self.for_weights(&mut request, selected, deadline).await;
            let keys = selected.keys();
            let plans = selected.plan(&request);
            let shifted = self.shift(&request, plans, deadline, None).await;
            let mut failures = shifted.into_failures();
            if is_complete {
                let left_behind = self.memory.left_behind(&target.owner, &keys);
                let left_behind = left_behind.into_iter().collect();
                failures.extend(self.release_all(&request, left_behind, deadline).await);
            }
            Ok(Failures::check(failures)?)
        };
        self.call(priority, shift).await
    }

    /// Returns whether `percent` is in force in all selected tables: the first other observation, in the order of the tables.
    ///
    /// # Errors
    /// As [`shift_to`](Self::shift_to), but for writes.
    pub async fn observe(&self, target: &Target, percent: u8) -> Result<Observation, ShiftError> {
        let look = |deadline| async move {
            let mut request = target.request(&self.policy, percent)?;
            let observed = self.observe_all(&mut request, Decision::Verify, deadline);
            let mut observed = observed.await?.into_iter().map(|(_, it)| it);
            let other = observed.find(|it| *it != Observation::Verified);
            Ok(other.unwrap_or(Observation::Verified))
        };
        self.call(Priority::Call, look).await
    }
}
