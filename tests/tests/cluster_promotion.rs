//! Promotions by a real controller that wait for Pods. The test creates the Pods and sets the endpoints of the Services.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::walks::{AT_100, IDLE};
use e2e_tests::{Canary, Cluster, Endpoints, PLUGIN_NAME, Release, Setup, Suite};
use futures::future::{join_all, try_join_all};
use kube::api::DynamicObject;
use serde_json::json;
use tokio::time::sleep;

const STABLE: &str = "demo-stable";
const CANARY: &str = "demo-canary";
/// The Pods of the previous version, of the promoted version, and of the next version.
const OLD: &str = "old";
const NEW: [&str; 2] = ["new-1", "new-2"];
const NEXT: &str = "next";
const HELD: &str = "PromotionHeld";
const RELEASED: &str = "PromotionReleased";
/// The reason in the Event.
const COMPLETE: &str = "which leads to the new Pods";
const BROKEN: &str = "are no longer those that were promoted";
/// Longer than `settle` of most tests.
const A_WHILE: Duration = Duration::from_secs(4);

/// A Rollout with Pods and endpoints.
struct Shop {
    canary: Canary,
    /// The table as its owner wrote it.
    owners: DynamicObject,
    endpoints: Endpoints,
}

impl Shop {
    /// A canary that has all traffic, and whose Service leads to the new Pods; the stable Service leads to the old one.
    async fn at_100(cluster: &Cluster, namespace: &str, settle: &str) -> Result<Self> {
        let canary = Canary::deploy(cluster, namespace).await?;
        let owners = canary.table().await?;
        let mut endpoints = Endpoints::of(cluster, namespace).await?;
        endpoints.add_pods(&canary, &[OLD]).await?;
        endpoints.lead(STABLE, &[OLD]).await?;
        endpoints.lead(CANARY, &[OLD]).await?;

        let guard = json!({ "promotionGuard": { "settle": settle } });
        let routing = json!({ "trafficRouting": { "plugins": { PLUGIN_NAME: guard } } });
        canary
            .change_spec(json!({ "strategy": { "canary": routing } }))
            .await?;
        let steps = json!([{ "pause": {} }, { "setWeight": 100 }, { "pause": {} }]);
        canary
            .change_image_and_steps("registry.example.com/demo:2", steps)
            .await?;
        canary.paused_at(0).await?;
        endpoints.add_pods(&canary, &NEW).await?;
        endpoints.add_pod(NEXT, "next").await?;
        endpoints.lead(CANARY, &NEW).await?;
        canary.promote().await?;
        canary.paused_at(2).await?;
        canary.splits(AT_100).await?;
        Ok(Self {
            canary,
            owners,
            endpoints,
        })
    }

    /// The same canary after its promotion.
    async fn held(cluster: &Cluster, namespace: &str, settle: &str) -> Result<Self> {
        let shop = Self::at_100(cluster, namespace, settle).await?;
        shop.canary.promote().await?;
        shop.canary.event(HELD).await?;
        shop.canary.splits(AT_100).await?;
        Ok(shop)
    }

    async fn is_restored(&self) -> Result<()> {
        self.canary.restores(&self.owners).await
    }

    /// Waits for the end of a hold, if one ends.
    async fn ends(&self, change: Change, why: Option<&str>) -> Result<()> {
        change.happen(self).await?;
        let Some(why) = why else {
            sleep(A_WHILE).await;
            return self.is_held().await;
        };
        self.is_restored().await?;
        let message = self.canary.event(RELEASED).await?;
        ensure!(message.contains(why), "{message}");
        Ok(())
    }

    async fn is_held(&self) -> Result<()> {
        self.canary.splits(AT_100).await
    }

    async fn events_of(&self, reason: &str) -> Result<usize> {
        let events = self.canary.events().await?;
        let of_reason = events
            .iter()
            .filter(|it| it.reason.as_deref() == Some(reason));
        Ok(of_reason.count())
    }
}

/// An event during a hold.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// The stable Service leads to these Pods.
    Stable(&'static [&'static str]),
    /// The canary Service leads to these Pods.
    Canary(&'static [&'static str]),
    /// The status has a new version. The test writes it, because the controller would also call the plugin.
    NewRevision,
    /// The Rollout is deleted.
    Deleted,
}

/// The events, `settle`, and the reason for the end of the hold; `None` if it continues.
type Case = (&'static str, &'static str, Change, Option<&'static str>);

const CASES: [Case; 8] = [
    ("complete", "1s", Change::Stable(&NEW), Some(COMPLETE)),
    ("incomplete", "1s", Change::Stable(&["new-1"]), None),
    (
        "mixed",
        "1s",
        Change::Stable(&["new-1", "new-2", OLD]),
        None,
    ),
    ("not-settled", "1h", Change::Stable(&NEW), None),
    (
        "foreign",
        "1h",
        Change::Canary(&["new-1", NEXT]),
        Some(BROKEN),
    ),
    ("gone", "1h", Change::Canary(&[]), Some(BROKEN)),
    ("revised", "1h", Change::NewRevision, Some(BROKEN)),
    ("deleted", "1h", Change::Deleted, Some(BROKEN)),
];

impl Change {
    async fn happen(self, shop: &Shop) -> Result<()> {
        match self {
            Self::Stable(pods) => shop.endpoints.lead(STABLE, pods).await,
            Self::Canary(pods) => shop.endpoints.lead(CANARY, pods).await,
            Self::NewRevision => {
                let status = json!({ "currentPodHash": "next" });
                shop.canary.change_status(status).await
            }
            Self::Deleted => shop.canary.delete_rollout().await,
        }
    }
}

/// The controller is frozen, so that no call causes a write.
async fn a_hold_ends_between_the_calls(cluster: &mut Cluster) -> Result<()> {
    let controller = cluster.controller()?;
    let shops = CASES.map(|(name, settle, ..)| Shop::held(cluster, name, settle));
    let shops = try_join_all(shops).await?;
    let histories = shops.iter().map(|shop| shop.canary.watch_table());
    let histories = try_join_all(histories).await?;

    controller.freeze()?;
    controller.thaw_plugins()?;
    let cases = CASES.iter().zip(&shops);
    let ended = cases.map(async |((name, _, change, end), shop)| {
        let ended = shop.ends(*change, *end).await;
        ended.with_context(|| (*name).to_owned())
    });
    let ended = join_all(ended).await;
    controller.thaw()?;
    ended.into_iter().collect::<Result<()>>()?;

    for (case, history) in CASES.iter().zip(histories) {
        let writes = history.splits().len() - 1;
        let expected = usize::from(case.3.is_some());
        ensure!(writes == expected, "{case:?}: {:#?}", history.splits());
    }

    // A new process has no hold until the next call of the controller.
    let shop = shops.get(1).context("no such case")?;
    let earlier = shop.canary.events().await?;
    cluster.kill_plugin().await?;
    shop.canary.event_after(&earlier, HELD).await?;
    shop.is_held().await?;
    shop.endpoints.lead(STABLE, &NEW).await?;
    shop.is_restored().await
}

/// One Pod of the stable Service is not ready, and traffic must not go to the newest version.
async fn a_new_version_ends_a_hold(cluster: &Cluster) -> Result<()> {
    let shop = Shop::held(cluster, "next-version", "1h").await?;
    shop.endpoints.lead(STABLE, &["new-1"]).await?;
    shop.is_held().await?;
    let history = shop.canary.watch_table().await?;
    shop.canary
        .change_image("registry.example.com/demo:3")
        .await?;
    shop.is_restored().await?;
    let message = shop.canary.event(RELEASED).await?;
    ensure!(message.contains(BROKEN), "{message}");
    shop.canary.paused_at(0).await?;
    shop.endpoints.lead(CANARY, &[NEXT]).await?;
    sleep(A_WHILE).await;
    let seen = history.splits();
    ensure!(seen == [AT_100, IDLE], "{seen:#?}");
    Ok(())
}

async fn an_abort_is_not_held(cluster: &Cluster) -> Result<()> {
    let shop = Shop::at_100(cluster, "aborted", "1h").await?;
    shop.canary.abort().await?;
    shop.is_restored().await?;
    shop.canary.aborted().await?;
    ensure!(shop.events_of(HELD).await? == 0);
    Ok(())
}

async fn without_the_guard_a_promotion_waits_for_no_pod(_: &Cluster) -> Result<()> {
    let off = Setup {
        variables: &[("GLOO_PLUGIN_PROMOTION_GUARD", Path::new("off"))],
        ..Setup::default()
    };
    let cluster = Cluster::start_with(Release::V1_9, off).await?;
    let promoted = async {
        let shop = Shop::at_100(&cluster, "unguarded", "1h").await?;
        shop.canary.promote().await?;
        shop.is_restored().await?;
        shop.canary.healthy().await?;
        ensure!(shop.events_of(HELD).await? == 0);
        Ok::<_, anyhow::Error>(())
    };
    if let Err(error) = promoted.await {
        return Err(cluster.with_logs(error));
    }
    cluster.stop().await
}

fn main() -> Result<ExitCode> {
    Suite::run(Some(Release::V1_9), |suite| {
        macro_rules! trial {
            ($how:ident, $test:ident) => {
                suite.$how(stringify!($test), $test)
            };
        }
        Ok(vec![
            trial!(trial, a_new_version_ends_a_hold),
            trial!(trial, an_abort_is_not_held),
            trial!(trial, without_the_guard_a_promotion_waits_for_no_pod),
            trial!(trial_alone, a_hold_ends_between_the_calls),
        ])
    })
}
