//! Somebody who may look but not write.

use anyhow::{Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, Subject};
use kube::{Api, Client};
use serde_json::json;

use crate::apply;

/// Gives `subject` what `deploy` gives the plugin, but for the right to patch, in a role named after it.
///
/// # Errors
/// The ClusterRole grants no patch, or the API server refuses.
pub async fn bind_reader(owner: &Client, subject: Subject) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(owner.clone());
    let mut rules = roles.get("argo-rollouts-gloo-platform").await?.rules;
    let verbs = rules.iter_mut().flatten().map(|rule| &mut rule.verbs);
    let mut taken = 0;
    for verbs in verbs {
        let before = verbs.len();
        verbs.retain(|verb| verb != "patch");
        taken += before - verbs.len();
    }
    ensure!(taken > 0, "the ClusterRole grants no patch");
    let name = format!("{}-{}", subject.kind.to_lowercase(), subject.name);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": { "name": name },
        "rules": rules,
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [subject],
    });
    for object in [role, binding] {
        apply(owner, &[serde_json::from_value(object)?]).await?;
    }
    Ok(())
}
