//! A traffic router for ingress-nginx. A copy of the stable Ingress forwards to the canary, and its annotations set the share.
//!
//! A Rollout configures it under `trafficRouting.plugins` as `example/nginx: {stableIngress: shop}`. It only needs the
//! permissions for Ingresses that the controller's release has.

use std::process::ExitCode;

use anyhow::Context as _;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, Patch, PatchParams};
use rollouts_rpc::{DesiredWeight, Result, Rollout, Router, TrafficRouter, WeightDestination};
use serde::Deserialize;
use tokio::sync::OnceCell;
use tracing::info;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Config {
    stable_ingress: String,
}

#[derive(Default)]
struct Nginx(OnceCell<kube::Client>);

impl Nginx {
    /// Connects on the first call. `init` is not the place: it blocks all other plugins and is not retried after an error.
    async fn ingresses(&self, rollout: &Rollout) -> anyhow::Result<Api<Ingress>> {
        let client = self.0.get_or_try_init(kube::Client::try_default);
        Ok(Api::namespaced(
            client.await?.clone(),
            &rollout.metadata.namespace,
        ))
    }
}

/// Returns the desired Ingress of the canary, a changed copy of `stable`.
fn canary_ingress(
    stable: Ingress,
    name: String,
    rollout: &Rollout,
    desired: DesiredWeight,
) -> anyhow::Result<Ingress> {
    let services = rollout.services().context("the rollout has no canary")?;
    let mut spec = stable.spec.unwrap_or_default();
    let rules = spec.rules.iter_mut().flatten();
    let paths = rules.flat_map(|rule| rule.http.iter_mut().flat_map(|http| &mut http.paths));
    let backends = paths.filter_map(|path| path.backend.service.as_mut());
    let mut moved = 0;
    for backend in backends.filter(|backend| backend.name == services.stable) {
        services.canary.clone_into(&mut backend.name);
        moved += 1;
    }
    anyhow::ensure!(moved > 0, "no path forwards to service {}", services.stable);
    let owner = OwnerReference {
        api_version: "argoproj.io/v1alpha1".into(),
        kind: "Rollout".into(),
        name: rollout.metadata.name.clone(),
        uid: rollout.metadata.uid.clone(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    let annotations = [
        ("canary", "true".to_owned()),
        ("canary-weight", desired.value.to_string()),
        ("canary-weight-total", desired.max.to_string()),
    ];
    let annotations =
        annotations.map(|(key, value)| (format!("nginx.ingress.kubernetes.io/{key}"), value));
    let metadata = ObjectMeta {
        name: Some(name),
        annotations: Some(annotations.into()),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    Ok(Ingress {
        metadata,
        spec: Some(spec),
        ..Ingress::default()
    })
}

impl TrafficRouter for Nginx {
    async fn set_weight(
        &self,
        rollout: &Rollout,
        to: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result {
        let Config { stable_ingress } = rollout.config("example/nginx")?;
        let ingresses = self.ingresses(rollout).await?;
        let name = format!("{}-{stable_ingress}-canary", rollout.metadata.name);
        let stable = ingresses.get(&stable_ingress).await?;
        let canary = canary_ingress(stable, name.clone(), rollout, to)?;
        // Server-side apply creates or updates the Ingress, or changes nothing.
        let apply = PatchParams::apply("nginx-router-example");
        ingresses
            .patch(&name, &apply, &Patch::Apply(&canary))
            .await?;
        info!(ingress = name, weight = to.value, "weight set");
        Ok(())
    }
}

fn main() -> ExitCode {
    rollouts_rpc::main(Router(Nginx::default()))
}
