//! Permissions of users and service accounts.

use anyhow::{Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Subject};
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
    grant(owner, &name, &rules.unwrap_or_default(), subject).await
}

/// Gives `subject` a ClusterRole of this name with these rules, instead of those that it had.
///
/// # Errors
/// The API server refuses.
pub async fn grant(
    owner: &Client,
    name: &str,
    rules: &[PolicyRule],
    subject: Subject,
) -> Result<()> {
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
    let objects = [role, binding].map(serde_json::from_value);
    apply(owner, &objects.into_iter().collect::<Result<Vec<_>, _>>()?).await
}
