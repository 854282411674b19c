//! The MirrorPolicies behind mirror routes: reading them, and taking away those of a Rollout.

use gloo_types::MirrorPolicyDoc;
use route_planner::{Plan, belongs_to};
use route_store::{PolicyStore, StoreError};
use tracing::{debug, info};

use super::GlooRouter;
use crate::{
    error::{ShiftError, TableError},
    from_rpc::Request,
};

impl<S: PolicyStore> GlooRouter<S> {
    /// All MirrorPolicies there are.
    pub(super) async fn policies(
        &self,
        request: &Request,
    ) -> Result<Vec<MirrorPolicyDoc>, ShiftError> {
        let policies = self.store.policies().await;
        policies.map_err(|source| ShiftError::Policies {
            rollout: request.intent.rollout.clone(),
            source: Box::new(source),
        })
    }

    /// Deletes every MirrorPolicy of the Rollout, also those whose routes somebody else has removed.
    pub(super) async fn remove_policies(
        &self,
        request: &Request,
        plans: &[Plan],
    ) -> Vec<TableError> {
        let has_routes = plans.iter().any(Plan::needs_policies);
        if !has_routes && !request.has_mirrors {
            return Vec::new();
        }
        let rollout = &request.intent.rollout;
        let live = match self.store.policies().await {
            Ok(live) => live,
            Err(error) if has_routes => return vec![error.into()],
            Err(error) => {
                // The step has never been carried out, and will say so itself.
                debug!(%rollout, "MirrorPolicies are not read: {error}");
                return Vec::new();
            }
        };
        let mut errors = Vec::new();
        for policy in live.iter().filter(|policy| belongs_to(policy, rollout)) {
            errors.extend(self.delete_policy(request, policy).await.err());
        }
        errors
    }

    pub(super) async fn delete_policy(
        &self,
        request: &Request,
        policy: &MirrorPolicyDoc,
    ) -> Result<(), TableError> {
        match self.store.delete_policy(policy).await {
            Ok(()) => {
                info!(rollout = %request.intent.rollout, mirror_policy = %policy.key(), "deleted");
                Ok(())
            }
            Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
