//! The manifests of `deploy`, rendered with those of a release and applied to a real API server. The released controller runs
//! with the permissions, the Deployment and the ConfigMap of the cluster.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::updates::{AT_25, PAUSES, a_promoted_canary_restores_the_table};
use e2e_tests::{
    ApiServerFault, Canary, Cluster, Download, Proxy, Release, apply, appset_kustomization, count,
    eventually, follow_install_page, hold_port, management_account, plugin_binary, render,
    render_in, run,
};
use http::StatusCode;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{DynamicObject, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

const RELEASE: Release = Release::V1_9;
const BINARY: &str = "rollouts-plugin-trafficrouter-glooplatform-linux-amd64";
/// The example of an Application that applies RouteTables.
const ARGO_CD: &str = include_str!("../../deploy/argo-cd/application.yaml");
/// Repairs of drift between the calls.
const REPAIRED: &str = r#"gloo_router_repairs_total{outcome="written"}"#;
const ROLE: &str = "argo-rollouts-gloo-platform";
/// The manifests of a controller for all namespaces.
const EVERYWHERE: &[&str] = &["cluster-install"];
/// The manifests of a controller for its own namespace.
const NAMESPACED: &[&str] = &["crds", "namespace-install"];
/// Namespace of the controller.
const NAMESPACE: &str = "argo-rollouts";
/// Answers to the lists and watches of all namespaces, which are forbidden anyway.
const FAULTS: [Option<Option<StatusCode>>; 4] = [
    None,
    Some(Some(StatusCode::INTERNAL_SERVER_ERROR)),
    Some(Some(StatusCode::GATEWAY_TIMEOUT)),
    Some(None),
];

/// Runs a test in a separate cluster, because a cluster can have one installation.
async fn in_cluster(test: impl AsyncFnOnce(&mut Cluster) -> Result<()>) -> Result<()> {
    let cluster = Cluster::start_empty().await?;
    cluster.create_controller_namespace().await?;
    cluster.run(test).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_init_container_installs_a_working_plugin() -> Result<()> {
    in_cluster(async |cluster| {
        let installation = render(RELEASE, EVERYWHERE, &["init-container"], &[])?;
        cluster.install_with_gloo(installation).await?;
        cluster.start_deployed_controller(RELEASE, &[]).await?;
        a_promoted_canary_restores_the_table(cluster).await?;
        argo_cd_ignores_the_routes_during_an_update(cluster).await?;
        the_doctor_names_each_revoked_permission(cluster).await
    })
    .await
}

/// All installations that one cluster can have: none replaces an object of another, and afterwards each account may do what its own
/// manifests grant.
#[tokio::test(flavor = "multi_thread")]
async fn installations_in_one_cluster_keep_their_names_and_permissions() -> Result<()> {
    in_cluster(async |cluster| {
        let generator = ["kubernetes", "namespaces", "refresh"];
        let installations = [
            render(RELEASE, EVERYWHERE, &["init-container"], &[])?,
            management_account("east")?,
            management_account("west")?,
            appset_kustomization(&generator)?,
        ];
        let mut names = BTreeSet::new();
        for installation in &installations {
            let known = names.clone();
            for object in installation {
                let kind = object.types.as_ref().map(|types| types.kind.clone());
                let name = (kind, object.namespace(), object.name_any());
                ensure!(!known.contains(&name), "two installations have {name:?}");
                names.insert(name);
            }
        }
        for namespace in ["gloo-mesh", "argocd"] {
            cluster.create_namespace(namespace).await?;
        }
        let objects: Vec<DynamicObject> = installations.into_iter().flatten().collect();
        cluster.install_with_gloo(objects.clone()).await?;
        let asked = check_permissions(cluster, &objects).await?;
        ensure!(asked > 50, "only {asked} permissions");
        Ok(())
    })
    .await
}

/// With the permissions of one namespace, the plugin does all that it does with those of all, whatever becomes of the requests
/// for all namespaces.
#[tokio::test(flavor = "multi_thread")]
async fn the_permissions_of_one_namespace_are_enough() -> Result<()> {
    in_cluster(async |cluster| {
        let installation = render(
            RELEASE,
            NAMESPACED,
            &["init-container", "single-namespace"],
            &[],
        )?;
        cluster.install_with_gloo(installation).await?;
        let account = cluster
            .service_account_kubeconfig(NAMESPACE, "argo-rollouts")
            .await?;
        let proxy = Proxy::start_as(&account).await?;
        let metrics = hold_port()?.local_addr()?.to_string();
        let variables = [
            ("KUBECONFIG", proxy.kubeconfig()),
            ("GLOO_PLUGIN_GC_AFTER", Path::new("1")),
            ("GLOO_PLUGIN_METRICS_ADDRESS", Path::new(&metrics)),
        ];
        cluster
            .start_deployed_controller(RELEASE, &variables)
            .await?;
        let canary = Canary::deploy(cluster, NAMESPACE).await?;
        let owners = canary.table().await?;
        for (round, fault) in FAULTS.into_iter().enumerate() {
            proxy.set_fault(fault.map(ApiServerFault::ListsOfAll));
            canary
                .change_image(&format!("registry.example.com/demo:{}", round + 2))
                .await?;
            canary.paused_at(1).await?;
            canary.splits(AT_25).await?;
            // Otherwise calls restore the weights before the plugin does, again and again, as in a fight.
            canary.idle().await?;
            let repaired = count(&metrics, REPAIRED).await?;
            eventually("the plugin repairs drift", async || {
                canary.revert_table(&owners).await?;
                canary.splits(AT_25).await?;
                ensure!(count(&metrics, REPAIRED).await? > repaired, "{fault:?}");
                Ok(())
            })
            .await?;
            canary.promote_at(&PAUSES).await?;
            canary.healthy().await?;
            canary.restores(&owners).await?;
            for kind in ["RouteTable", "Rollout"] {
                let labels = format!(r#"{{cluster="local",kind="{kind}"}}"#);
                for (gauge, expect) in [("synced", 1), ("namespaces", 1)] {
                    let value =
                        count(&metrics, &format!("gloo_router_watch_{gauge}{labels}")).await?;
                    ensure!(value == expect, "{fault:?}: {gauge} {kind}: {value}");
                }
            }
        }
        canary.update_to_25().await?;
        canary.delete_rollout().await?;
        canary.restores(&owners).await?;
        canary.event("TrafficRestored").await?;

        let doctor = run(&account, "doctor").await?;
        doctor.check(0, &["you may do all that the plugin does"])
    })
    .await
}

/// Other objects name an account by its name and namespace. They must follow a suffix, and another namespace.
#[test]
fn objects_name_the_accounts_of_their_installation() -> Result<()> {
    let components = ["init-container", "single-namespace"];
    for installation in [
        management_account("east")?,
        render_in("shop", RELEASE, NAMESPACED, &components, &[])?,
        render(RELEASE, EVERYWHERE, &["init-container"], &[])?,
    ] {
        let kind = |it: &DynamicObject| it.types.as_ref().map(|types| types.kind.clone());
        let accounts = installation
            .iter()
            .filter(|it| kind(it).as_deref() == Some("ServiceAccount"));
        let accounts: BTreeSet<_> = accounts
            .map(|it| (it.namespace().unwrap_or_default(), it.name_any()))
            .collect();
        let mut named = 0;
        for object in &installation {
            let text = |path: &str| object.data.pointer(path)?.as_str().map(str::to_owned);
            let subject = text("/subjects/0/namespace").zip(text("/subjects/0/name"));
            let token = object
                .annotations()
                .get("kubernetes.io/service-account.name");
            let token = object.namespace().zip(token.cloned());
            for account in subject.into_iter().chain(token) {
                ensure!(
                    accounts.contains(&account),
                    "{}: {account:?} of {accounts:?}",
                    object.name_any()
                );
                named += 1;
            }
        }
        ensure!(named >= 2, "{named}");
    }
    Ok(())
}

/// Asks the API server about each permission of the roles that `objects` bind to service accounts. Returns their number.
async fn check_permissions(cluster: &Cluster, objects: &[DynamicObject]) -> Result<usize> {
    let reviews: Api<SubjectAccessReview> = Api::all(cluster.client().clone());
    let is_kind = |object: &DynamicObject, kind: &str| {
        object
            .types
            .as_ref()
            .is_some_and(|types| types.kind == kind)
    };
    let mut asked = 0;
    for kind in ["ClusterRoleBinding", "RoleBinding"] {
        for binding in objects.iter().filter(|it| is_kind(it, kind)) {
            let text = |path: &str| binding.data.pointer(path).and_then(Value::as_str);
            let role = text("/roleRef/name").context("no role")?;
            let role_kind = text("/roleRef/kind").context("no kind")?;
            let role = objects
                .iter()
                .find(|it| is_kind(it, role_kind) && it.name_any() == role);
            let role = role.with_context(|| format!("no {role_kind} of {}", binding.name_any()))?;
            let rules = role.data.get("rules").context("no rules")?;
            let rules: Vec<PolicyRule> = serde_json::from_value(rules.clone())?;
            let account = text("/subjects/0/name").context("no subject")?;
            let namespace = text("/subjects/0/namespace").context("no namespace")?;
            let user = format!("system:serviceaccount:{namespace}:{account}");
            for attributes in rules.iter().flat_map(attributes) {
                let namespace = binding.namespace();
                let spec = SubjectAccessReviewSpec {
                    user: Some(user.clone()),
                    resource_attributes: Some(ResourceAttributes {
                        namespace,
                        ..attributes.clone()
                    }),
                    ..SubjectAccessReviewSpec::default()
                };
                let review = SubjectAccessReview {
                    spec,
                    ..SubjectAccessReview::default()
                };
                let review = reviews.create(&PostParams::default(), &review).await?;
                let is_allowed = review.status.is_some_and(|status| status.allowed);
                ensure!(is_allowed, "{user} may not {attributes:?}");
                asked += 1;
            }
        }
    }
    Ok(asked)
}

/// The permissions of a rule, one for each verb, group and resource.
fn attributes(rule: &PolicyRule) -> Vec<ResourceAttributes> {
    let list = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    let mut attributes = Vec::new();
    for verb in &rule.verbs {
        for group in list(&rule.api_groups) {
            for resource in list(&rule.resources) {
                let (resource, subresource) = match resource.split_once('/') {
                    Some((resource, sub)) => (resource.to_owned(), Some(sub.to_owned())),
                    None => (resource, None),
                };
                attributes.push(ResourceAttributes {
                    group: Some(group.clone()),
                    resource: Some(resource),
                    subresource,
                    verb: Some(verb.clone()),
                    name: list(&rule.resource_names).into_iter().next(),
                    ..ResourceAttributes::default()
                });
            }
        }
    }
    attributes
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
async fn the_install_page_installs_a_download_with_the_correct_checksum() -> Result<()> {
    let release = Release::V1_10;
    let cluster = Cluster::start_empty().await?;
    cluster
        .run(async |cluster| {
            let download = Download::serve(&plugin_binary()?, BINARY).await?;
            let certificate = download.certificate();
            let trust = [("SSL_CERT_FILE", certificate.as_path())];
            let install = async |cluster: &Cluster, sha256: &str| {
                let fill_in = [("URL", download.url()), ("SHA256_LINUX_AMD64", sha256)];
                follow_install_page(cluster, release, &fill_in).await
            };

            let wrong = download.sha256().replace(['0', '1', '2', '3'], "4");
            install(cluster, &wrong).await?;
            cluster.install_with_gloo(Vec::new()).await?;
            cluster.start_deployed_controller(release, &trust).await?;
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

            install(cluster, download.sha256()).await?;
            cluster.start_deployed_controller(release, &trust).await?;
            a_promoted_canary_restores_the_table(cluster).await
        })
        .await
}
