//! Sends a quarter of the requests for a Service to its canary, and takes them back, without Argo Rollouts.
#![expect(clippy::print_stdout, reason = "a person reads this")]

use std::{env::args_os, sync::Arc, time::Duration};

use gloo_router::gloo_types::{ObjectKey, RouteTableSelector};
use gloo_router::route_planner::{Observation, PluginConfig, ServicePair};
use gloo_router::route_store::{DirRouteStore, KubeAccess, KubeRouteStore, Store};
use gloo_router::{GlooRouter, Policy, Target};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match args_os().nth(1) {
        Some(directory) => walk(DirRouteStore::new(directory)).await,
        None => walk(KubeRouteStore::new(KubeAccess::default())).await,
    }
}

async fn walk(store: impl Store) -> anyhow::Result<()> {
    let target = Target::new(
        ObjectKey::new("shop", "reviews"),
        ServicePair::new("reviews", "reviews-canary"),
        PluginConfig::new(RouteTableSelector::of_name("shop", "reviews")),
    );
    let policy = Policy {
        cluster: Some("embed".into()),
        ..Policy::default()
    };
    let router = GlooRouter::new(Arc::new(store), policy);
    router.shift_to(&target, 25).await?;
    while router.observe(&target, 25).await? != Observation::Verified {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    println!("a quarter of the requests goes to reviews-canary");
    router.shift_to(&target, 0).await?;
    println!("RouteTable shop/reviews is as its owner wrote it");
    Ok(())
}
