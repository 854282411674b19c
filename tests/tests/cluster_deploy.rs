//! The manifests of `deploy`, rendered with the installation of a controller's release and applied to a real API server. The
//! released controller runs with the permissions, the Deployment and the ConfigMap of the cluster.

use anyhow::{Context as _, Result, ensure};
use e2e_tests::walks::{AT_25, a_promoted_canary_returns_the_table};
use e2e_tests::{
    Canary, Cluster, Download, Release, apply, eventually, plugin_binary, render, run,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{DynamicObject, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

const RELEASE: Release = Release::V1_9;
const BINARY: &str = "rollouts-plugin-trafficrouter-glooplatform-linux-amd64";
/// The recipe for an Application that applies RouteTables.
const ARGO_CD: &str = include_str!("../../deploy/argo-cd/application.yaml");
const ROLE: &str = "argo-rollouts-gloo-platform";

/// Runs a test in a separate cluster, because a cluster has one installation.
async fn in_cluster(test: impl AsyncFnOnce(&mut Cluster) -> Result<()>) -> Result<()> {
    let mut cluster = Cluster::start_empty().await?;
    cluster.create_controller_namespace().await?;
    if let Err(error) = test(&mut cluster).await {
        return Err(cluster.with_logs(error));
    }
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_init_container_brings_a_plugin_that_walks_a_canary() -> Result<()> {
    in_cluster(async |cluster| {
        let installation = render(RELEASE, "init-container", &[])?;
        cluster.install_with_gloo(installation).await?;
        cluster.start_deployed_controller(RELEASE, &[]).await?;
        a_promoted_canary_returns_the_table(cluster).await?;
        argo_cd_ignores_the_routes_while_a_canary_has_a_share(cluster).await?;
        the_doctor_names_each_right_that_is_taken_away(cluster).await
    })
    .await
}

/// Argo CD ignores the fields of the field manager in the recipe. `doctor` reports an Application without the recipe.
async fn argo_cd_ignores_the_routes_while_a_canary_has_a_share(cluster: &Cluster) -> Result<()> {
    let recipe: Value = serde_saphyr::from_str(ARGO_CD)?;
    let manager = recipe.pointer("/spec/ignoreDifferences/0/managedFieldsManagers/0");
    let manager = manager.and_then(Value::as_str).context("no manager")?;
    let mut untold = recipe.clone();
    *untold.pointer_mut("/spec").context("no spec")? = json!({});
    install_applications(cluster).await?;
    cluster.create_namespace("argocd").await?;
    apply(cluster.client(), &[serde_json::from_value(untold)?]).await?;

    let canary = Canary::deploy(cluster, "gitops").await?;
    canary
        .edit_table(|table| {
            let id = "shop:networking.gloo.solo.io/RouteTable:gitops/demo";
            table
                .annotations_mut()
                .insert("argocd.argoproj.io/tracking-id".to_owned(), id.to_owned());
        })
        .await?;
    let original = canary.table().await?;
    let doctor = async || run(cluster.kubeconfig(), "doctor").await;
    let fights = "Application shop reverts the weights of RouteTable gitops/demo";
    doctor().await?.check(1, &[fights])?;
    apply(cluster.client(), &[serde_json::from_value(recipe.clone())?]).await?;
    let well = "no Application reverts the tables; Argo CD applies 1 of ";
    doctor().await?.check(0, &[well])?;

    canary.change_image("registry.example.com/demo:2").await?;
    canary.paused_at(1).await?;
    canary.splits(AT_25).await?;
    let managers = canary.managers_of_routes().await?;
    ensure!(managers == [manager], "{managers:?}");
    canary.abort().await?;
    canary.restores(&original).await?;
    let managers = canary.managers_of_routes().await?;
    ensure!(!managers.iter().any(|it| it == manager), "{managers:?}");
    Ok(())
}

/// Argo CD's CRD of Applications, without its schema.
async fn install_applications(cluster: &Cluster) -> Result<()> {
    let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let schema = json!({ "type": "object", "properties": { "spec": open } });
    let version = json!({
        "name": "v1alpha1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
    });
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "applications.argoproj.io" },
        "spec": {
            "group": "argoproj.io",
            "names": { "kind": "Application", "plural": "applications" },
            "scope": "Namespaced",
            "versions": [version],
        },
    });
    cluster
        .install_with_gloo(vec![serde_json::from_value(crd)?])
        .await
}

/// `doctor` runs as the controller, so this checks the least permissions with which it reports no problem.
async fn the_doctor_names_each_right_that_is_taken_away(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "mirrored").await?;
    let mirror = json!({ "name": "header-canary", "match": [{ "path": { "prefix": "/" } }] });
    let steps = json!([{ "setMirrorRoute": mirror }, { "pause": {} }]);
    canary
        .change_spec(json!({ "strategy": { "canary": { "steps": steps } } }))
        .await?;

    let account = cluster
        .service_account_kubeconfig("argo-rollouts", "argo-rollouts")
        .await?;
    let well = run(&account, "doctor").await?;
    well.check(0, &["you may do all that the plugin does"])?;

    let roles: Api<ClusterRole> = Api::all(cluster.client().clone());
    let granted = roles.get(ROLE).await?;
    let rules = granted.rules.as_deref().unwrap_or_default();
    ensure!(!rules.is_empty(), "the ClusterRole grants nothing");
    for (index, rule) in rules.iter().enumerate() {
        for verb in &rule.verbs {
            let mut less = roles.get(ROLE).await?;
            let others = rule.verbs.iter().filter(|other| *other != verb);
            let rule_without = PolicyRule {
                verbs: others.cloned().collect(),
                ..rule.clone()
            };
            let mut rules = rules.to_vec();
            *rules.get_mut(index).context("no such rule")? = rule_without;
            less.rules = Some(rules);
            roles.replace(ROLE, &PostParams::default(), &less).await?;

            let (groups, resources) = (rule.api_groups.as_deref(), rule.resources.as_deref());
            let group = groups.and_then(<[_]>::first).context("no group")?;
            let resource = resources.and_then(<[_]>::first).context("no resource")?;
            let missing = format!("you may not {verb} {resource}.{group} in ");
            // The API server's authorizer learns of changed roles by a watch.
            eventually(&missing, async || {
                run(&account, "doctor").await?.check(1, &[&missing])
            })
            .await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_runs_only_with_the_right_checksum() -> Result<()> {
    in_cluster(async |cluster| {
        let download = Download::serve(&plugin_binary()?, BINARY).await?;
        let certificate = download.certificate();
        let trust = [("SSL_CERT_FILE", certificate.as_path())];
        let installation = |sha256: &str| {
            let fill_in = [("URL", download.url()), ("SHA256_LINUX_AMD64", sha256)];
            render(RELEASE, "https", &fill_in)
        };

        let another = download.sha256().replace(['0', '1', '2', '3'], "4");
        cluster.install_with_gloo(installation(&another)?).await?;
        cluster.start_deployed_controller(RELEASE, &trust).await?;
        let said = cluster.controller_gives_up().await?;
        let refusal = format!(
            "sha256 hash of downloaded plugin ({}/{BINARY}) does not match expected hash",
            download.url()
        );
        ensure!(said.contains(&refusal), "{said}");
        ensure!(cluster.plugin()?.is_none(), "the plugin runs all the same");

        let right: Vec<DynamicObject> = installation(download.sha256())?;
        apply(cluster.client(), &right).await?;
        cluster.start_deployed_controller(RELEASE, &trust).await?;
        a_promoted_canary_returns_the_table(cluster).await
    })
    .await
}
