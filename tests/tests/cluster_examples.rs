//! The example router for ingress-nginx with a real API server, with exactly the permissions of the controller.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use e2e_tests::{Cluster, Suite, apply};
use k8s_openapi::api::networking::v1::Ingress;
use kube::{Api, ResourceExt as _};
use rollouts_rpc::Rollout;
use rollouts_rpc::goplugin::handshake::PluginKind;
use rollouts_rpc::host::{PluginProcess, RouterClient};
use serde_json::{Value, json};
use tokio::process::Command;

const NAMESPACE: &str = "nginx";
const CANARY: &str = "reviews-shop-canary";

fn rollout(stable_ingress: &str) -> Result<Rollout> {
    let rollout = json!({
        "metadata": {"name": "reviews", "namespace": NAMESPACE, "uid": "3f0e1a52-9a1b-4f5e-8a41-0d6d5e0f9c11"},
        "spec": {"strategy": {"canary": {
            "stableService": "reviews",
            "canaryService": "reviews-canary",
            "trafficRouting": {"plugins": {"example/nginx": {"stableIngress": stable_ingress}}},
        }}},
    });
    Ok(serde_json::from_value(rollout)?)
}

fn stable_ingress() -> Value {
    let path = |path: &str, service: &str| {
        let backend = json!({ "service": { "name": service, "port": { "number": 80 } } });
        json!({ "path": path, "pathType": "Prefix", "backend": backend })
    };
    let paths = [path("/", "reviews"), path("/ratings", "ratings")];
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": { "name": "shop", "namespace": NAMESPACE },
        "spec": { "ingressClassName": "nginx", "rules": [{ "host": "shop.example.com", "http": { "paths": paths } }] },
    })
}

/// Describes the Service of each path and the annotations.
fn describe(ingress: &Ingress) -> String {
    let rules = ingress
        .spec
        .iter()
        .flat_map(|spec| spec.rules.iter().flatten());
    let paths = rules.flat_map(|rule| rule.http.iter().flat_map(|http| &http.paths));
    let services = paths.map(|path| {
        let service = path.backend.service.as_ref();
        let service = service.map(|service| service.name.as_str());
        format!(
            "{} to {}",
            path.path.as_deref().unwrap_or_default(),
            service.unwrap_or_default()
        )
    });
    let annotations = ingress.annotations().iter().map(|(key, value)| {
        format!(
            "{}={value}",
            key.trim_start_matches("nginx.ingress.kubernetes.io/")
        )
    });
    services.chain(annotations).collect::<Vec<_>>().join(", ")
}

async fn check_refused(router: &RouterClient, stable_ingress: &str, expect: &str) -> Result<()> {
    let answer = router.set_weight(&rollout(stable_ingress)?, 25, &[]).await;
    let text = answer.err().map(|error| error.to_string());
    let text = text.unwrap_or_default();
    ensure!(
        text.contains(expect),
        "{text:?} does not contain {expect:?}"
    );
    Ok(())
}

async fn the_nginx_router_sets_the_weight_of_a_canary_ingress(cluster: &Cluster) -> Result<()> {
    cluster.create_namespace(NAMESPACE).await?;
    apply(
        cluster.client(),
        &[serde_json::from_value(stable_ingress())?],
    )
    .await?;
    let ingresses: Api<Ingress> = Api::namespaced(cluster.client().clone(), NAMESPACE);

    let directory = PathBuf::from(env::var_os("EXAMPLES_DIR").unwrap_or_default());
    let program = directory.join("nginx_router");
    ensure!(
        program.is_file(),
        "EXAMPLES_DIR must be the directory of the built examples, it is {directory:?}"
    );
    let mut command = Command::new(program);
    command.env("KUBECONFIG", cluster.controller_kubeconfig());
    let plugin = PluginProcess::start(command, PluginKind::TrafficRouter, drop).await?;
    let router = plugin.session().dispense_router().await?;
    router.init_plugin().await?;

    for weight in [25, 100, 0] {
        router.set_weight(&rollout("shop")?, weight, &[]).await?;
        let canary = ingresses.get(CANARY).await?;
        let expect = format!(
            "/ to reviews-canary, /ratings to ratings, canary=true, canary-weight={weight}, canary-weight-total=100"
        );
        ensure!(describe(&canary) == expect, "{}", describe(&canary));

        router.set_weight(&rollout("shop")?, weight, &[]).await?;
        let again = ingresses.get(CANARY).await?;
        ensure!(
            again.resource_version() == canary.resource_version(),
            "the second call wrote"
        );
    }
    let stable = ingresses.get("shop").await?;
    ensure!(
        describe(&stable) == "/ to reviews, /ratings to ratings",
        "{}",
        describe(&stable)
    );

    check_refused(
        &router,
        "gone",
        "ingresses.networking.k8s.io \"gone\" not found",
    )
    .await?;
    check_refused(&router, CANARY, "no path forwards to service reviews").await?;
    ensure!(
        plugin.quit().await?.graceful,
        "the plugin did not exit after the request to quit"
    );
    Ok(())
}

fn main() -> Result<ExitCode> {
    Suite::run(None, |suite| {
        Ok(vec![suite.trial(
            "the_nginx_router_sets_the_weight_of_a_canary_ingress",
            the_nginx_router_sets_the_weight_of_a_canary_ingress,
        )])
    })
}
