//! The commands of the plugin with a real API server, with exactly the permissions of the controller.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::{
    Answer, Cluster, END_OF_INPUT, Suite, apply, bind_reader, delete, eventually, parse, run,
    run_typing, trials,
};
use gloo_types::{Resource, RouteTable};
use k8s_openapi::api::rbac::v1::Subject;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Writes a kubeconfig for a user without any permission.
fn kubeconfig_without_permissions(cluster: &Cluster, directory: &TempDir) -> Result<PathBuf> {
    let mut config: Value = serde_json::from_str(&fs::read_to_string(cluster.kubeconfig())?)?;
    let user = config
        .pointer_mut("/users/0/user")
        .and_then(Value::as_object_mut);
    user.context("no user")?
        .insert("as".to_owned(), json!("nobody"));
    let path = directory.path().join("kubeconfig");
    fs::write(&path, config.to_string())?;
    Ok(path)
}

/// A Rollout with the name of its stable Service.
fn rollout(namespace: &str, name: &str) -> Value {
    let selector = json!({ "name": "shop", "namespace": namespace });
    json!({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Rollout",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": name, "image": "registry.example.com/demo:1" }] },
            },
            "strategy": { "canary": {
                "stableService": name,
                "canaryService": format!("{name}-canary"),
                "trafficRouting": {
                    "managedRoutes": [{ "name": "testers" }],
                    "plugins": { "solo-io/glooplatform": { "routeTableSelector": selector } },
                },
                "steps": [
                    { "setWeight": 25 },
                    { "setHeaderRoute": {
                        "name": "testers",
                        "match": [{ "headerName": "x-tester", "headerValue": { "exact": "yes" } }],
                    } },
                    { "pause": {} },
                ],
            } },
        },
    })
}

fn table(namespace: &str) -> Value {
    let route = |name: &str| {
        let destination =
            json!({ "ref": { "name": name, "namespace": namespace }, "port": { "number": 80 } });
        json!({ "name": name, "forwardTo": { "destinations": [destination] } })
    };
    json!({
        "apiVersion": "networking.gloo.solo.io/v2",
        "kind": "RouteTable",
        "metadata": { "name": "shop", "namespace": namespace },
        "spec": { "http": [route("reviews"), route("ratings")] },
    })
}

/// Creates two Rollouts and the table that both use.
async fn deploy(cluster: &Cluster, namespace: &str) -> Result<Api<DynamicObject>> {
    cluster.create_namespace(namespace).await?;
    let rollouts = ["reviews", "ratings"].map(|name| rollout(namespace, name));
    for object in [table(namespace)].into_iter().chain(rollouts) {
        apply(cluster.client(), &[serde_json::from_value(object)?]).await?;
    }
    Ok(objects::<RouteTable>(cluster, namespace))
}

fn objects<R: Resource>(cluster: &Cluster, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(R::GROUP, R::VERSION, R::KIND));
    Api::namespaced_with(cluster.client().clone(), namespace, &resource)
}

fn rollouts(cluster: &Cluster, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("argoproj.io", "v1alpha1", "Rollout");
    Api::namespaced_with(
        cluster.client().clone(),
        namespace,
        &ApiResource::from_gvk(&kind),
    )
}

/// Applies the patch that a command printed.
async fn apply_patch(tables: &Api<DynamicObject>, answer: &Answer) -> Result<()> {
    answer.check(0, &[])?;
    let patch: json_patch::Patch = serde_json::from_str(&answer.stdout)?;
    let patch = Patch::<()>::Json(patch);
    tables
        .patch("shop", &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

async fn plan_simulate_and_validate_read_the_cluster_and_write_nothing(
    cluster: &Cluster,
) -> Result<()> {
    let tables = deploy(cluster, "reading").await?;
    let before = tables.get("shop").await?;
    let user = cluster.controller_kubeconfig();

    let plan = run(user, "plan reading/reviews --weight 25").await?;
    plan.check(
        0,
        &["+        weight: 75\n", "+          name: reviews-canary\n"],
    )?;
    let simulation = run(user, "simulate reading/reviews").await?;
    simulation.check(
        0,
        &[
            "1 setHeaderRoute testers",
            "every table is what its owner wrote",
        ],
    )?;
    run(user, "validate --strict")
        .await?
        .check(0, &["errors: 0, warnings: 0"])?;
    run(user, "plan reading/gone --weight 25")
        .await?
        .check(2, &["the cluster has no Rollout reading/gone"])?;

    let directory = tempfile::tempdir()?;
    let file = directory.path().join("rollout.yaml");
    let mut changed = rollout("reading", "reviews");
    json_patch::merge(
        &mut changed,
        &json!({ "spec": { "strategy": { "canary": { "stableService": "nobody" } } } }),
    );
    fs::write(&file, changed.to_string())?;
    let file = file.display();
    let refused = "no selected route forwards to Service reading/nobody";
    run(user, &format!("plan -f {file} --live --weight 25"))
        .await?
        .check(1, &[refused])?;
    run(user, &format!("validate -f {file} --live"))
        .await?
        .check(1, &[refused])?;

    ensure!(tables.get("shop").await? == before, "the table was written");
    Ok(())
}

async fn status_and_restore_handle_a_rollout_that_is_deleted_during_its_update(
    cluster: &Cluster,
) -> Result<()> {
    let tables = deploy(cluster, "deleted").await?;
    let original = tables.get("shop").await?.data;
    let user = cluster.controller_kubeconfig();
    for name in ["ratings", "reviews"] {
        let plan = run(user, &format!("plan deleted/{name} --weight 25 -o patch")).await?;
        apply_patch(&tables, &plan).await?;
    }
    let header = run(user, "plan deleted/reviews --header-route testers -o patch").await?;
    apply_patch(&tables, &header).await?;

    let splits = "reviews 75, reviews-canary 25";
    let status = run(user, "status -n deleted").await?;
    status.check(0, &[splits, "testers *", "ratings 75, ratings-canary 25"])?;
    let in_use = run(user, "restore deleted/reviews --yes").await?;
    in_use.check(
        1,
        &["Rollout deleted/reviews exists and selects RouteTable deleted/shop"],
    )?;

    rollouts(cluster, "deleted")
        .delete("reviews", &DeleteParams::default())
        .await?;
    let status = run(user, "status -n deleted").await?;
    status.check(
        1,
        &["RouteTable deleted/shop has changes for Rollout deleted/reviews"],
    )?;
    let before = tables.get("shop").await?;
    run(user, "restore deleted/reviews")
        .await?
        .check(2, &["pass --yes or --dry-run"])?;
    let dry = run(user, "restore deleted/reviews --dry-run").await?;
    dry.check(
        0,
        &["-          name: reviews-canary\n", "-    name: testers\n"],
    )?;
    for typed in ["n\n", "\n", "yep\n", END_OF_INPUT] {
        run_typing(user, "restore deleted/reviews", typed)
            .await?
            .check(1, &["Write this? [y/N]", "nothing was written\n"])?;
    }
    ensure!(tables.get("shop").await? == before, "the table was written");

    run_typing(user, "restore deleted/reviews", "y\n")
        .await?
        .check(0, &["Write this? [y/N]", "restored"])?;
    run(user, "restore deleted/reviews --yes")
        .await?
        .check(0, &["no table has changes for"])?;
    let status = run(user, "status -n deleted").await?;
    status.check(0, &["ratings 75, ratings-canary 25"])?;
    ensure!(
        !status.stdout.contains("reviews-canary"),
        "{}",
        status.stdout
    );

    rollouts(cluster, "deleted")
        .delete("ratings", &DeleteParams::default())
        .await?;
    run(user, "restore deleted/ratings --yes")
        .await?
        .check(0, &["restored"])?;
    let restored = tables.get("shop").await?;
    ensure!(
        restored.metadata.annotations.is_none(),
        "{:?}",
        restored.metadata
    );
    ensure!(restored.data == original, "{}", restored.data);
    Ok(())
}

/// Reads the Services, the tables and the Rollout of a folder of `examples/manifests`.
fn example(folder: &Path) -> Result<Vec<DynamicObject>> {
    let mut objects = Vec::new();
    for file in ["services.yaml", "route-table.yaml", "rollout.yaml"] {
        objects.extend(parse(&fs::read_to_string(folder.join(file))?)?);
    }
    Ok(objects)
}

async fn simulate_prints_the_same_for_examples_as_files_and_in_the_cluster(
    cluster: &Cluster,
) -> Result<()> {
    let user = cluster.controller_kubeconfig();
    for namespace in ["shop", "gloo-mesh"] {
        cluster.create_namespace(namespace).await?;
    }
    for folder in fs::read_dir("../examples/manifests")? {
        let folder = folder?.path();
        let mut objects = example(&folder)?;
        apply(cluster.client(), &objects).await?;
        let folder = folder.display();
        let files = run(user, &format!("simulate -f {folder}")).await?;
        let live = run(user, "simulate shop/reviews").await?;
        live.check(0, &[&files.stdout])
            .with_context(|| format!("{folder}"))?;
        objects.reverse();
        delete(cluster.client(), &objects).await?;
    }
    Ok(())
}

async fn missing_permissions_are_reported_in_one_line(cluster: &Cluster) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let user = kubeconfig_without_permissions(cluster, &directory)?;
    let remedy = "grant it on rollouts.argoproj.io";
    for line in [
        "plan a/b --weight 1",
        "simulate a/b",
        "validate",
        "status",
        "restore a/b",
    ] {
        let answer = run(&user, line).await?;
        answer.check(3, &["not allowed to", remedy])?;
        ensure!(answer.stderr.lines().count() == 1, "{}", answer.stderr);
    }
    Ok(())
}

async fn doctor_reports_what_is_missing(cluster: &Cluster) -> Result<()> {
    deploy(cluster, "doctor").await?;
    let user = cluster.kubeconfig();
    cluster.create_controller_namespace().await?;

    let permitted =
        "system:serviceaccount:argo-rollouts:argo-rollouts may do all that the plugin does";
    let unregistered = "argo-rollouts/argo-rollouts-config does not register the plugin";
    run(user, "doctor")
        .await?
        .check(1, &[permitted, unregistered])?;

    let plugin = env::var("PLUGIN_BINARY")?;
    let entry = |name: &str| json!([{ "name": name, "location": format!("file://{plugin}") }]);
    let register = async |name: &str| {
        let config = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": "argo-rollouts-config", "namespace": "argo-rollouts" },
            "data": { "trafficRouterPlugins": entry(name).to_string() },
        });
        apply(cluster.client(), &[serde_json::from_value(config)?]).await
    };
    register("solo-io/glooplatformAPI").await?;
    let renamed =
        "Rollout doctor/reviews uses solo-io/glooplatform, which the ConfigMap does not register";
    run(user, "doctor").await?.check(1, &[renamed])?;
    register("solo-io/glooplatform").await?;
    let complete = run(user, "doctor").await?;
    complete.check(
        0,
        &[
            "v1.37.2",
            "routetables of networking.gloo.solo.io/v2",
            "sha256",
            permitted,
        ],
    )?;
    ensure!(!complete.stdout.contains("problem"), "{}", complete.stdout);

    // Without permission to impersonate, doctor checks the caller's own permissions.
    run(cluster.controller_kubeconfig(), "doctor")
        .await?
        .check(0, &["you may do all"])?;
    let account = Subject {
        kind: "ServiceAccount".to_owned(),
        name: "reader".to_owned(),
        namespace: Some("doctor".to_owned()),
        ..Subject::default()
    };
    bind_reader(cluster.client(), account).await?;
    let denied = "system:serviceaccount:doctor:reader may not patch routetables.networking.gloo.solo.io in namespace";
    run(user, "doctor --service-account doctor/reader")
        .await?
        .check(1, &[denied])?;
    let directory = tempfile::tempdir()?;
    let user = kubeconfig_without_permissions(cluster, &directory)?;
    run(&user, "doctor")
        .await?
        .check(1, &["you may not get routetables.networking.gloo.solo.io"])
}

async fn missing_crds_are_reported_in_one_line(_: &Cluster) -> Result<()> {
    let empty = Cluster::start_empty().await?;
    let user = empty.kubeconfig();
    for line in ["plan a/b --weight 1", "simulate a/b"] {
        run(user, line)
            .await?
            .check(2, &["the cluster has no Rollout a/b"])?;
    }
    for line in ["validate", "status"] {
        let answer = run(user, line).await?;
        answer.check(3, &["no rollouts.argoproj.io: install Argo Rollouts"])?;
        ensure!(answer.stderr.lines().count() == 1, "{}", answer.stderr);
    }
    let missing = [
        "no routetables of networking.gloo.solo.io/v2: install Gloo Platform",
        "install Argo Rollouts",
    ];
    run(user, "doctor").await?.check(1, &missing)
}

async fn restore_warns_if_the_cluster_has_no_rollouts(_: &Cluster) -> Result<()> {
    let tables_only = Cluster::start_empty().await?;
    let client = tables_only.client();
    for crd in [
        gloo_types::crd::route_table(),
        gloo_types::crd::mirror_policy(),
    ] {
        apply(client, &[serde_json::from_value(crd)?]).await?;
    }
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "remote" } });
    apply(client, &[serde_json::from_value(namespace)?]).await?;
    let table: DynamicObject = serde_json::from_value(table("remote"))?;
    eventually("the CRDs are established", async || {
        apply(client, std::slice::from_ref(&table)).await
    })
    .await?;

    let user = tables_only.kubeconfig();
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("rollout.yaml");
    fs::write(&file, rollout("remote", "reviews").to_string())?;
    let plan = format!("plan -f {} --live --weight 25 -o patch", file.display());
    let plan = run(user, &plan).await?;
    apply_patch(&objects::<RouteTable>(&tables_only, "remote"), &plan).await?;

    let warning = "the Rollouts of that cluster cannot be read here: make sure that remote/reviews was deleted";
    run(user, "restore remote/reviews --yes")
        .await?
        .check(0, &[warning, "restored"])
}

fn main() -> Result<ExitCode> {
    Suite::run(None, |suite| {
        Ok(trials![suite:
            plan_simulate_and_validate_read_the_cluster_and_write_nothing,
            status_and_restore_handle_a_rollout_that_is_deleted_during_its_update,
            simulate_prints_the_same_for_examples_as_files_and_in_the_cluster,
            missing_permissions_are_reported_in_one_line,
            doctor_reports_what_is_missing,
            missing_crds_are_reported_in_one_line,
            restore_warns_if_the_cluster_has_no_rollouts,
        ])
    })
}
