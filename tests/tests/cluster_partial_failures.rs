//! A real rollout over several RouteTables, some of which the controller cannot restore when it is aborted.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing key of a JSON value fails the test"
)]

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::updates::{AT_25, IDLE, IMAGE};
use e2e_tests::{Canary, Cluster, Release, Suite, apply, delete, eventually, parse, split, trials};
use gloo_types::{Resource as _, RouteTable};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use serde_json::{Value, json};

const NAMESPACE: &str = "partial";
/// The binding of `deploy`, which grants access to all RouteTables in all namespaces.
const BINDING: &str = include_str!("../../deploy/kustomize/rights/cluster-role-binding.yaml");
const ROLE: &str = "argo-rollouts-gloo-platform";

/// Exceeds the 32 bits of the field. The CustomResourceDefinition sets no upper limit.
const TOO_LARGE: u64 = 1 << 32;

/// One of the RouteTables that the Rollout selects.
struct Table {
    name: &'static str,
    fault: Fault,
    /// Its split after the first reconcile of the abort; `None` if the table does not exist.
    left: Option<&'static str>,
    /// The text about it in the event; `None` if the event does not name it.
    reason: Option<&'static str>,
}

/// The fault of a table during the rollout.
enum Fault {
    Healthy,
    Deleted,
    /// One of its routes has an invalid weight.
    Malformed,
    /// The controller loses its permission for these verbs.
    Forbidden(&'static [&'static str]),
}

/// Healthy tables are the first and the last by name, so a plugin that stops at a failure misses one of them.
const TABLES: [Table; 6] = [
    Table {
        name: "blue",
        fault: Fault::Healthy,
        left: Some(IDLE),
        reason: None,
    },
    Table {
        name: "deleted",
        fault: Fault::Deleted,
        left: None,
        reason: Some("RouteTable partial/deleted not found"),
    },
    Table {
        name: "malformed",
        fault: Fault::Malformed,
        left: Some(
            "rare: demo-stable; shared: demo-canary=20 demo-stable=60 legacy=4294967296; ratings: ratings",
        ),
        reason: Some("RouteTable partial/malformed: route shared cannot be read"),
    },
    Table {
        name: "unreadable",
        fault: Fault::Forbidden(&["get", "patch"]),
        left: Some(AT_25),
        reason: Some("not allowed to get RouteTable partial/unreadable"),
    },
    Table {
        name: "unwritable",
        fault: Fault::Forbidden(&["patch"]),
        left: Some(AT_25),
        reason: Some("not allowed to patch RouteTable partial/unwritable"),
    },
    Table {
        name: "yellow",
        fault: Fault::Healthy,
        left: Some(IDLE),
        reason: None,
    },
];

impl Fault {
    async fn inject(&self, cluster: &Cluster, table: &Canary) -> Result<()> {
        match self {
            Self::Healthy => Ok(()),
            Self::Deleted => table.delete_table().await,
            Self::Malformed => table.edit_table(|it| weigh_legacy(it, TOO_LARGE)).await,
            Self::Forbidden(verbs) => grant(cluster, table.table_name(), verbs).await,
        }
    }

    async fn repair(
        &self,
        cluster: &Cluster,
        table: &Canary,
        owners: &DynamicObject,
    ) -> Result<()> {
        match self {
            Self::Healthy => Ok(()),
            Self::Deleted => table.create_table(owners).await,
            Self::Malformed => table.edit_table(|it| weigh_legacy(it, 20)).await,
            Self::Forbidden(_) => grant(cluster, table.table_name(), &[]).await,
        }
    }
}

/// Sets the weight of the other team's destination in the route `shared`.
fn weigh_legacy(table: &mut DynamicObject, weight: u64) {
    let routes = table.data["spec"]["http"].as_array_mut();
    let routes = routes.into_iter().flatten();
    let lists = routes.filter_map(|route| route.pointer_mut("/forwardTo/destinations"));
    for destination in lists.filter_map(Value::as_array_mut).flatten() {
        if destination["ref"]["name"] == "legacy" {
            destination["weight"] = Value::from(weight);
        }
    }
}

/// Grants the controller what `deploy` grants, on one RouteTable and without the `denied` verbs. Waits until the API server
/// enforces it, since its authorizer watches roles.
async fn grant(cluster: &Cluster, table: &str, denied: &[&str]) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(cluster.client().clone());
    let mut rules = roles.get(ROLE).await?.rules.unwrap_or_default();
    rules.retain(|rule| rule.resources.iter().flatten().eq([RouteTable::PLURAL]));
    for rule in &mut rules {
        rule.verbs.retain(|verb| !denied.contains(&verb.as_str()));
        rule.resource_names = Some(vec![table.to_owned()]);
    }
    let binding = parse(BINDING)?.pop().context("no binding")?;
    let metadata = json!({ "name": table, "namespace": NAMESPACE });
    let group = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "Role",
        "metadata": metadata,
        "rules": rules,
    });
    let binding = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": { "apiGroup": group, "kind": "Role", "name": table },
        "subjects": binding.data["subjects"],
    });
    for object in [role, binding] {
        apply(cluster.client(), &[serde_json::from_value(object)?]).await?;
    }
    let controller = Api::all(cluster.controller_client().await?);
    for verb in ["get", "patch"] {
        let granted = !denied.contains(&verb);
        eventually(
            &format!("{verb} on {table} granted: {granted}"),
            async || {
                ensure!(is_allowed(&controller, verb, table).await? == granted);
                Ok(())
            },
        )
        .await?;
    }
    Ok(())
}

/// Returns whether the user of `reviews` has permission for a verb on a RouteTable.
async fn is_allowed(
    reviews: &Api<SelfSubjectAccessReview>,
    verb: &str,
    table: &str,
) -> Result<bool> {
    let attributes = ResourceAttributes {
        group: Some(RouteTable::GROUP.to_owned()),
        resource: Some(RouteTable::PLURAL.to_owned()),
        namespace: Some(NAMESPACE.to_owned()),
        name: Some(table.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let review = reviews.create(&PostParams::default(), &review).await?;
    Ok(review.status.context("no answer")?.allowed)
}

/// Deploys a Rollout that selects all [`TABLES`], with permissions for each table, and moves it to 25 %. Returns each table
/// as its owner wrote it.
async fn at_25(cluster: &Cluster) -> Result<(Canary, Vec<DynamicObject>)> {
    let names = TABLES.map(|table| table.name);
    cluster.create_namespace(NAMESPACE).await?;
    for name in names {
        grant(cluster, name, &[]).await?;
    }
    delete(cluster.client(), &parse(BINDING)?).await?;
    let canary = Canary::deploy_with_tables(cluster, NAMESPACE, &names).await?;
    let mut owners = Vec::new();
    for name in names {
        owners.push(canary.with_table(name).table().await?);
    }
    canary.change_image(IMAGE).await?;
    canary.paused_at(1).await?;
    for name in names {
        canary.with_table(name).splits(AT_25).await?;
    }
    Ok((canary, owners))
}

async fn an_abort_restores_healthy_tables_first_and_failing_tables_once_repaired(
    cluster: &Cluster,
) -> Result<()> {
    let (canary, owners) = at_25(cluster).await?;
    for table in &TABLES {
        let canary = canary.with_table(table.name);
        table.fault.inject(cluster, &canary).await?;
    }

    canary.idle().await?;
    let earlier = canary.events().await?;
    canary.abort().await?;
    let message = canary.event_after(&earlier, "TrafficRoutingError").await?;
    // No retry: the plugin writes every table that it can before it returns the error.
    for (table, owners) in TABLES.iter().zip(&owners) {
        let canary = canary.with_table(table.name);
        if let Some(left) = table.left {
            let actual = split(&canary.table().await?);
            ensure!(actual == left, "{}: {actual}\n{message}", table.name);
        }
        match table.reason {
            Some(reason) => ensure!(message.contains(reason), "no {reason:?} in {message}"),
            None => {
                canary.is_restored(owners).await?;
                let name = format!("{NAMESPACE}/{}", table.name);
                ensure!(!message.contains(&name), "{name} in {message}");
            }
        }
    }

    for (table, owners) in TABLES.iter().zip(&owners) {
        let canary = canary.with_table(table.name);
        table.fault.repair(cluster, &canary, owners).await?;
    }
    for (table, owners) in TABLES.iter().zip(&owners) {
        canary.with_table(table.name).restores(owners).await?;
    }
    canary.aborted().await?;
    // A later reconcile succeeds as well.
    canary
        .change_spec(json!({ "revisionHistoryLimit": 3 }))
        .await?;
    canary.aborted().await
}

fn main() -> Result<ExitCode> {
    Suite::run(Some(Release::V1_9), |suite| {
        Ok(trials![suite:
            an_abort_restores_healthy_tables_first_and_failing_tables_once_repaired,
        ])
    })
}
