//! The manifests of `deploy`, rendered with those of a release and applied to a real API server. The released controller runs
//! with the permissions, the Deployment and the ConfigMap of the cluster.

use anyhow::{Context as _, Result, ensure};
use e2e_tests::updates::a_promoted_canary_restores_the_table;
use e2e_tests::{
    Canary, Cluster, Download, Release, apply, eventually, plugin_binary, render, run,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{DynamicObject, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

const RELEASE: Release = Release::V1_9;
const BINARY: &str = "rollouts-plugin-trafficrouter-glooplatform-linux-amd64";
/// The example of an Application that applies RouteTables.
const ARGO_CD: &str = include_str!("../../deploy/argo-cd/application.yaml");
const ROLE: &str = "argo-rollouts-gloo-platform";

/// Runs a test in a separate cluster, because a cluster can have one installation.
async fn in_cluster(test: impl AsyncFnOnce(&mut Cluster) -> Result<()>) -> Result<()> {
    let cluster = Cluster::start_empty().await?;
    cluster.create_controller_namespace().await?;
    cluster.run(test).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_init_container_installs_a_working_plugin() -> Result<()> {
    in_cluster(async |cluster| {
        let installation = render(RELEASE, "init-container", &[])?;
        cluster.install_with_gloo(installation).await?;
        cluster.start_deployed_controller(RELEASE, &[]).await?;
        a_promoted_canary_restores_the_table(cluster).await?;
        argo_cd_ignores_the_routes_during_an_update(cluster).await?;
        the_doctor_names_each_revoked_permission(cluster).await
    })
    .await
}

/// The Application of `deploy` makes Argo CD ignore fields of one field manager. During an update this manager owns the routes.
/// The doctor reports an Application without that setting.
async fn argo_cd_ignores_the_routes_during_an_update(cluster: &Cluster) -> Result<()> {
    let application: Value = serde_saphyr::from_str(ARGO_CD)?;
    let manager = application.pointer("/spec/ignoreDifferences/0/managedFieldsManagers/0");
    let manager = manager.and_then(Value::as_str).context("no manager")?;
    let mut incomplete = application.clone();
    *incomplete.pointer_mut("/spec").context("no spec")? = json!({});
    install_applications(cluster).await?;
    cluster.create_namespace("argocd").await?;
    apply(cluster.client(), &[serde_json::from_value(incomplete)?]).await?;

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
    let reverts = "Application shop reverts the weights of RouteTable gitops/demo";
    doctor().await?.check(1, &[reverts])?;
    apply(
        cluster.client(),
        &[serde_json::from_value(application.clone())?],
    )
    .await?;
    let no_reverts = "no Application reverts the tables; Argo CD applies 1 of ";
    doctor().await?.check(0, &[no_reverts])?;

    canary.update_to_25().await?;
    let managers = canary.managers_of_routes().await?;
    ensure!(managers == [manager], "{managers:?}");
    canary.abort().await?;
    canary.restores(&original).await?;
    let managers = canary.managers_of_routes().await?;
    ensure!(!managers.iter().any(|it| it == manager), "{managers:?}");
    Ok(())
}

/// Installs Argo CD's CustomResourceDefinition of Applications, without its schema.
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

/// The doctor runs as the controller's service account. The account has no more permissions than the plugin needs: the doctor
/// reports each one that is revoked.
async fn the_doctor_names_each_revoked_permission(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "mirrored").await?;
    let mirror = json!({ "name": "header-canary", "match": [{ "path": { "prefix": "/" } }] });
    let steps = json!([{ "setMirrorRoute": mirror }, { "pause": {} }]);
    canary
        .change_spec(json!({ "strategy": { "canary": { "steps": steps } } }))
        .await?;

    let account = cluster
        .service_account_kubeconfig("argo-rollouts", "argo-rollouts")
        .await?;
    let complete = run(&account, "doctor").await?;
    complete.check(0, &["you may do all that the plugin does"])?;

    let roles: Api<ClusterRole> = Api::all(cluster.client().clone());
    let granted = roles.get(ROLE).await?;
    let rules = granted.rules.as_deref().unwrap_or_default();
    ensure!(!rules.is_empty(), "the ClusterRole grants nothing");
    for (index, rule) in rules.iter().enumerate() {
        for verb in &rule.verbs {
            let mut reduced = roles.get(ROLE).await?;
            let others = rule.verbs.iter().filter(|other| *other != verb);
            let rule_without = PolicyRule {
                verbs: others.cloned().collect(),
                ..rule.clone()
            };
            let mut rules = rules.to_vec();
            *rules.get_mut(index).context("no such rule")? = rule_without;
            reduced.rules = Some(rules);
            roles
                .replace(ROLE, &PostParams::default(), &reduced)
                .await?;

            let (groups, resources) = (rule.api_groups.as_deref(), rule.resources.as_deref());
            let group = groups.and_then(<[_]>::first).context("no group")?;
            let resource = resources.and_then(<[_]>::first).context("no resource")?;
            let missing = format!("you may not {verb} {resource}.{group} in ");
            // The API server enforces the change later, since its authorizer watches roles.
            eventually(&missing, async || {
                run(&account, "doctor").await?.check(1, &[&missing])
            })
            .await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_runs_only_with_the_correct_checksum() -> Result<()> {
    in_cluster(async |cluster| {
        let download = Download::serve(&plugin_binary()?, BINARY).await?;
        let certificate = download.certificate();
        let trust = [("SSL_CERT_FILE", certificate.as_path())];
        let installation = |sha256: &str| {
            let fill_in = [("URL", download.url()), ("SHA256_LINUX_AMD64", sha256)];
            render(RELEASE, "https", &fill_in)
        };

        let wrong = download.sha256().replace(['0', '1', '2', '3'], "4");
        cluster.install_with_gloo(installation(&wrong)?).await?;
        cluster.start_deployed_controller(RELEASE, &trust).await?;
        let log = cluster.controller_exits().await?;
        let refusal = format!(
            "sha256 hash of downloaded plugin ({}/{BINARY}) does not match expected hash",
            download.url()
        );
        ensure!(log.contains(&refusal), "{log}");
        ensure!(
            cluster.plugin()?.is_none(),
            "the plugin runs with a wrong checksum"
        );

        let correct: Vec<DynamicObject> = installation(download.sha256())?;
        apply(cluster.client(), &correct).await?;
        cluster.start_deployed_controller(RELEASE, &trust).await?;
        a_promoted_canary_restores_the_table(cluster).await
    })
    .await
}
