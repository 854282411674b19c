//! A traffic router for ingress-nginx: a copy of the stable Ingress leads to the canary and takes the share its
//! annotations name.
//!
//! A Rollout names it under `trafficRouting.plugins` as `example/nginx: {stableIngress: shop}`. It needs no rights but
//! those on Ingresses that the controller's release has.

use anyhow::Context as _;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, Patch, PatchParams};
use rollouts_rpc::goplugin::log::{self, LogFormat};
use rollouts_rpc::{
    DesiredWeight, PluginEnv, PluginError, PodHashes, Rollout, ServeConfig, TrafficRouter,
    Verification, WeightDestination,
};
use serde::Deserialize;
use tokio::sync::OnceCell;
use tracing::{info, level_filters::LevelFilter};

const PLUGIN: &str = "example/nginx";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Config {
    stable_ingress: String,
}

#[derive(Default)]
struct Nginx(OnceCell<kube::Client>);

impl Nginx {
    /// Connects when first needed: `init` holds up every other plugin, and is not called again after an error.
    async fn ingresses(&self, rollout: &Rollout) -> anyhow::Result<Api<Ingress>> {
        let client = self.0.get_or_try_init(kube::Client::try_default);
        Ok(Api::namespaced(
            client.await?.clone(),
            &rollout.metadata.namespace,
        ))
    }
}

fn config(rollout: &Rollout) -> anyhow::Result<Config> {
    let routing = rollout.traffic_routing();
    let json = routing.and_then(|routing| routing.plugins.get(PLUGIN));
    let json = json.context("the rollout does not configure example/nginx")?;
    serde_json::from_slice(json.as_ref())
        .context("the configuration of example/nginx does not parse")
}

/// The Ingress that should be there beside `stable`.
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
    anyhow::ensure!(moved > 0, "no path leads to service {}", services.stable);
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
    fn type_name(&self) -> &str {
        "Nginx"
    }
    async fn init(&self) -> Result<(), PluginError> {
        Ok(())
    }
    async fn update_hash(
        &self,
        _: &Rollout,
        _: &PodHashes,
        _: &[WeightDestination],
    ) -> Result<(), PluginError> {
        Ok(())
    }
    async fn set_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result<(), PluginError> {
        let (config, ingresses) = (config(rollout)?, self.ingresses(rollout).await?);
        let name = format!("{}-{}-canary", rollout.metadata.name, config.stable_ingress);
        let stable = ingresses.get(&config.stable_ingress).await?;
        let canary = canary_ingress(stable, name.clone(), rollout, desired)?;
        // Server-side apply makes it, changes it, or writes nothing.
        let apply = PatchParams::apply("nginx-router-example");
        ingresses
            .patch(&name, &apply, &Patch::Apply(&canary))
            .await?;
        info!(ingress = name, weight = desired.value, "weight set");
        Ok(())
    }
    /// The annotations are in force once they are written.
    async fn verify_weight(
        &self,
        _: &Rollout,
        _: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result<Verification, PluginError> {
        Ok(Verification::NotImplemented)
    }
    async fn remove_managed_routes(&self, _: &Rollout) -> Result<(), PluginError> {
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    log::install(LevelFilter::INFO, LogFormat::Json)?;
    let env = PluginEnv::from_vars(std::env::vars_os());
    let (config, announce) = (
        ServeConfig::TRAFFIC_ROUTER,
        rollouts_rpc::announce_on_stdout,
    );
    rollouts_rpc::serve(&config, &env, announce, Nginx::default()).await?;
    Ok(())
}
