//! A traffic router that carries out each call as the plugin does, and appends the call and the RouteTable after it to the file in
//! `$RECORD`, as one line of JSON. The RouteTable has the name of the Rollout.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use gloo_router::{GlooRouter, Policy};
use gloo_types::{Document, RouteTableSelector};
use rollouts_rpc::rollout::{SetHeaderRoute, SetMirrorRoute};
use rollouts_rpc::{
    DesiredWeight, PodHashes, Result, Rollout, Router, TrafficRouter, Verification,
    WeightDestination,
};
use route_store::{Freshness, KubeAccess, KubeRouteStore, RouteStore as _};
use serde_json::json;

struct Recorder {
    router: GlooRouter<KubeRouteStore>,
    store: Arc<KubeRouteStore>,
    file: Mutex<std::fs::File>,
}

impl Recorder {
    async fn record<T>(&self, rollout: &Rollout, call: String, result: Result<T>) -> Result<T> {
        let metadata = &rollout.metadata;
        let table = RouteTableSelector::of_name(&*metadata.namespace, &*metadata.name);
        let tables = self.store.select(&table, Freshness::Live).await.tables;
        let line = json!({
            "namespace": metadata.namespace,
            "call": call,
            "error": result.as_ref().err().map(ToString::to_string),
            "table": tables.first().map(Document::raw),
        });
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(file, "{line}").map_err(|error| error.to_string())?;
        result
    }
}

fn shown(weight: i32, additional: &[WeightDestination]) -> String {
    let mut text = format!("SetWeight {weight}");
    for destination in additional {
        text += &format!(" {}={}", destination.service_name, destination.weight);
    }
    text
}

impl TrafficRouter for Recorder {
    async fn update_hash(
        &self,
        rollout: &Rollout,
        hashes: &PodHashes,
        additional: &[WeightDestination],
    ) -> Result {
        let result = self.router.update_hash(rollout, hashes, additional).await;
        self.record(rollout, "UpdateHash".to_owned(), result).await
    }

    async fn set_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result {
        let result = self.router.set_weight(rollout, desired, additional).await;
        let call = shown(desired.value, additional);
        self.record(rollout, call, result).await
    }

    async fn verify_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result<Verification> {
        let result = self
            .router
            .verify_weight(rollout, desired, additional)
            .await;
        let call = "VerifyWeight".to_owned();
        self.record(rollout, call, result).await
    }

    async fn set_header_route(&self, rollout: &Rollout, route: &SetHeaderRoute) -> Result {
        let result = self.router.set_header_route(rollout, route).await;
        let call = format!("SetHeaderRoute {}", route.name);
        self.record(rollout, call, result).await
    }

    async fn set_mirror_route(&self, rollout: &Rollout, route: &SetMirrorRoute) -> Result {
        let result = self.router.set_mirror_route(rollout, route).await;
        let call = format!("SetMirrorRoute {}", route.name);
        self.record(rollout, call, result).await
    }

    async fn remove_managed_routes(&self, rollout: &Rollout) -> Result {
        let result = self.router.remove_managed_routes(rollout).await;
        let call = "RemoveManagedRoutes".to_owned();
        self.record(rollout, call, result).await
    }
}

fn main() -> ExitCode {
    let path = env::var_os("RECORD").unwrap_or_default();
    let Ok(file) = OpenOptions::new().create(true).append(true).open(path) else {
        return ExitCode::FAILURE;
    };
    let store = Arc::new(KubeRouteStore::new(KubeAccess::default()));
    let policy = Policy {
        plugin_names: vec![e2e_tests::PLUGIN_NAME.to_owned()],
        ..Policy::default()
    };
    rollouts_rpc::main(Router(Recorder {
        router: GlooRouter::new(Arc::clone(&store), policy),
        store,
        file: Mutex::new(file),
    }))
}
