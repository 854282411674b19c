//! Promotions by a real controller that wait for Pods. The test creates the Pods and the endpoints of the Services.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::updates::{AT_100, IDLE};
use e2e_tests::{Canary, Cluster, Endpoints, PLUGIN_NAME, Release, Setup, Suite, trials};
use futures::future::{join_all, try_join_all};
use kube::api::DynamicObject;
use serde_json::json;
use tokio::time::sleep;

const STABLE: &str = "demo-stable";
const CANARY: &str = "demo-canary";
/// The Pods of the previous version, of the promoted version, and of the next one.
const OLD: &str = "old";
const NEW: [&str; 2] = ["new-1", "new-2"];
const NEXT: &str = "next";
const HELD: &str = "PromotionHeld";
const RELEASED: &str = "PromotionReleased";
/// The reasons in the message of [`RELEASED`].
const COMPLETE: &str = "which routes to the new Pods";
const BROKEN: &str = "are no longer those that were promoted";
/// How long a test waits for an unwanted release. Longer than a `settle` of 1 s.
const OBSERVED: Duration = Duration::from_secs(4);

/// A Rollout with Pods and endpoints.
struct Shop {
    canary: Canary,
    /// The table before the update.
    owners: DynamicObject,
    endpoints: Endpoints,
}

impl Shop {
    /// Updates a canary to weight 100. Its Service has the new Pods, and the stable Service has the old one.
    async fn at_100(cluster: &Cluster, namespace: &str, settle: &str) -> Result<Self> {
        let canary = Canary::deploy(cluster, namespace).await?;
        let owners = canary.table().await?;
        let mut endpoints = Endpoints::of(cluster, namespace).await?;
        endpoints.add_pods(&canary, &[OLD]).await?;
        endpoints.set_endpoints(STABLE, &[OLD]).await?;
        endpoints.set_endpoints(CANARY, &[OLD]).await?;

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
        endpoints.set_endpoints(CANARY, &NEW).await?;
        canary.promote().await?;
        canary.paused_at(2).await?;
        canary.splits(AT_100).await?;
        Ok(Self {
            canary,
            owners,
            endpoints,
        })
    }

    /// Promotes a canary at weight 100, and waits until the plugin holds the promotion.
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

    /// Makes a change, and checks that the hold ends with this reason, or that it continues.
    async fn check(&self, change: Change, reason: Option<&str>) -> Result<()> {
        change.make(self).await?;
        let Some(reason) = reason else {
            sleep(OBSERVED).await;
            return self.is_held().await;
        };
        self.is_restored().await?;
        let message = self.canary.event(RELEASED).await?;
        ensure!(message.contains(reason), "{message}");
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

/// A change during a hold.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// The stable Service has these Pods.
    Stable(&'static [&'static str]),
    /// The canary Service has these Pods.
    Canary(&'static [&'static str]),
    /// The Rollout has a new version. The test writes the status, because the controller would also call the plugin.
    NewRevision,
    /// The Rollout is deleted.
    Deleted,
}

/// The namespace, `settle`, the change, and the reason why the hold ends; `None` if it continues.
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
    async fn make(self, shop: &Shop) -> Result<()> {
        match self {
            Self::Stable(pods) => shop.endpoints.set_endpoints(STABLE, pods).await,
            Self::Canary(pods) => shop.endpoints.set_endpoints(CANARY, pods).await,
            Self::NewRevision => {
                let status = json!({ "currentPodHash": "next" });
                shop.canary.change_status(status).await
            }
            Self::Deleted => shop.canary.delete_rollout().await,
        }
    }
}

/// The controller is frozen during the changes, so that the plugin writes without a call.
async fn a_hold_ends_between_the_calls(cluster: &mut Cluster) -> Result<()> {
    let controller = cluster.controller()?;
    let shops = CASES.map(|(name, settle, ..)| Shop::held(cluster, name, settle));
    let shops = try_join_all(shops).await?;
    let histories = shops.iter().map(|shop| shop.canary.watch_table());
    let histories = try_join_all(histories).await?;

    controller.freeze()?;
    controller.thaw_plugins()?;
    let cases = CASES.iter().zip(&shops);
    let checked = cases.map(async |((name, _, change, end), shop)| {
        let checked = shop.check(*change, *end).await;
        checked.with_context(|| (*name).to_owned())
    });
    let checked = join_all(checked).await;
    controller.thaw()?;
    checked.into_iter().collect::<Result<()>>()?;

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
    shop.endpoints.set_endpoints(STABLE, &NEW).await?;
    shop.is_restored().await
}

/// One Pod of the stable Service is not ready, and traffic must not go to the newest version.
async fn a_new_version_ends_a_hold(cluster: &Cluster) -> Result<()> {
    let shop = Shop::held(cluster, "next-version", "1h").await?;
    shop.endpoints.set_endpoints(STABLE, &["new-1"]).await?;
    shop.is_held().await?;
    let history = shop.canary.watch_table().await?;
    shop.canary
        .change_image("registry.example.com/demo:3")
        .await?;
    shop.is_restored().await?;
    let message = shop.canary.event(RELEASED).await?;
    ensure!(message.contains(BROKEN), "{message}");
    shop.canary.paused_at(0).await?;
    shop.endpoints.set_endpoints(CANARY, &[NEXT]).await?;
    sleep(OBSERVED).await;
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
    let test = async |cluster: &mut Cluster| -> Result<()> {
        let shop = Shop::at_100(cluster, "unguarded", "1h").await?;
        shop.canary.promote().await?;
        shop.is_restored().await?;
        shop.canary.healthy().await?;
        ensure!(shop.events_of(HELD).await? == 0);
        Ok(())
    };
    cluster.run(test).await
}

fn main() -> Result<ExitCode> {
    Suite::run(Some(Release::V1_9), |suite| {
        let mut trials = trials![suite:
            a_new_version_ends_a_hold,
            an_abort_is_not_held,
            without_the_guard_a_promotion_waits_for_no_pod,
        ];
        let name = "a_hold_ends_between_the_calls";
        trials.push(suite.trial_alone(name, a_hold_ends_between_the_calls));
        Ok(trials)
    })
}
