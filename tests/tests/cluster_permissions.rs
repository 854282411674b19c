//! The plugin without each of its permissions: exactly the features fail that the doctor reports.
//!
//! One controller runs a process of the plugin for each permission. The process has all other permissions, and one Rollout
//! that names it.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::updates::{AT_25, AT_100, IDLE};
use e2e_tests::{
    Canary, Cluster, DEADLINE, Endpoints, PLUGIN_NAME, Release, Setup, count, eventually, grant,
    hold_port, run, split,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Subject};
use kube::Api;
use kube::api::DynamicObject;
use plugin_commands::{Permissions, permissions};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// The newest release, because older ones do not pass mirror steps to plugins.
const RELEASE: Release = Release::V1_10;
/// The ClusterRole that `deploy` adds to that of the release.
const ADDED: &str = "argo-rollouts-gloo-platform";
const STABLE: &str = "demo-stable";
const CANARY: &str = "demo-canary";
/// Repairs of drift.
const REPAIRS: &str = r#"gloo_router_repairs_total{outcome="written"}"#;
/// Promotions that the plugin holds.
const HOLDS: &str = "gloo_router_guard_holds";
/// Forbidden reads of a table. VerifyWeight does not report them to the controller.
const FORBIDDEN: &str =
    r#"gloo_router_api_requests_total{cluster="local",verb="get",kind="RouteTable",code="403"}"#;
/// Whether the cache has all tables.
const SYNCED: &str = r#"gloo_router_watch_synced{cluster="local",kind="RouteTable"}"#;
/// Reasons of Events that the plugin itself writes.
const PLUGIN_EVENTS: [&str; 2] = ["TrafficDriftRepaired", "PromotionHeld"];
const OLD: &str = "old";
const NEW: &str = "new";
/// How long a test waits for a feature that must not work.
const OBSERVED: Duration = Duration::from_secs(8);

/// A feature of the plugin that the test observes in a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Feature {
    /// Traffic is shifted.
    Shift,
    /// Drift is repaired.
    Repair,
    /// A mirror step succeeds.
    Mirror,
    /// An update is promoted.
    Promote,
    /// A promotion waits for Pods.
    Hold,
    /// The promotion continues when the Pods are ready, without a call.
    Release,
    /// Events report what the plugin did between the calls.
    Events,
    /// The MirrorPolicies of a mirror step are deleted.
    MirrorCleanup,
    /// A repeated Event has a higher count.
    EventCount,
}

const ALL: [Feature; 9] = [
    Feature::Shift,
    Feature::Repair,
    Feature::Mirror,
    Feature::Promote,
    Feature::Hold,
    Feature::Release,
    Feature::MirrorCleanup,
    Feature::Events,
    Feature::EventCount,
];

/// The consequence of a missing permission in the words of the doctor, and the features that then fail. [`Feature::EventCount`]
/// needs two repairs, so it fails with [`Feature::Repair`].
const CONSEQUENCES: [(&str, &[Feature]); 16] = [
    ("no traffic is shifted", &ALL),
    (
        "no update is promoted",
        &[
            Feature::Promote,
            Feature::Hold,
            Feature::Release,
            Feature::MirrorCleanup,
        ],
    ),
    (
        "RouteTables are found by name only, every call reads them again, and drift waits for the next call",
        &[Feature::Repair, Feature::EventCount],
    ),
    (
        "every call reads its RouteTables again, and drift waits for the next call",
        &[Feature::Repair, Feature::EventCount],
    ),
    ("setMirrorRoute steps fail", &[Feature::Mirror]),
    (
        "a MirrorPolicy keeps the percentage that it was created with",
        &[],
    ),
    (
        "unused MirrorPolicies are not deleted",
        &[Feature::MirrorCleanup],
    ),
    ("every call reads MirrorPolicies again", &[]),
    (
        "drift is not repaired, a promotion that waits for Pods continues only with a later call, and a mirror step with percentage 0 copies all requests",
        &[Feature::Repair, Feature::Release, Feature::EventCount],
    ),
    ("tables of deleted Rollouts are not restored", &[]),
    (
        "a promotion does not wait until the stable Service routes to the new Pods",
        &[Feature::Hold, Feature::Release],
    ),
    (
        "a promotion that waits for Pods continues only with a later call",
        &[Feature::Release],
    ),
    (
        "the destination of an experiment gets the port of the stable destination, also if its Service has another one",
        &[],
    ),
    (
        "the plugin does not know whether its controller is the leader, and writes nothing between the calls",
        &[Feature::Repair, Feature::Release, Feature::EventCount],
    ),
    (
        "no Event reports what the plugin does between the calls",
        &[Feature::Events, Feature::EventCount],
    ),
    ("repeated Events have no count", &[Feature::EventCount]),
];

/// A process without one permission, or with all, and its Rollout.
struct Case {
    missing: Option<Permissions>,
    /// Name of the user, its role, the context in the kubeconfig, and the namespace.
    name: String,
    /// Name of the plugin.
    plugin: String,
    /// Address of the metrics.
    metrics: String,
}

/// A Rollout after its promotion or after a failure, and the features that worked.
struct Updated {
    works: BTreeSet<Feature>,
    canary: Canary,
    endpoints: Endpoints,
}

impl Case {
    fn all() -> Result<Vec<Self>> {
        let mut held = Vec::new();
        let mut cases = Vec::new();
        for missing in permissions().into_iter().map(Some).chain([None]) {
            let name = format!("less-{}", cases.len());
            let listener = hold_port()?;
            cases.push(Self {
                missing,
                plugin: format!("example/{name}"),
                metrics: listener.local_addr()?.to_string(),
                name,
            });
            // Open until all addresses are known, so that they differ.
            held.push(listener);
        }
        Ok(cases)
    }

    /// Grants the user `rules` without the missing permission.
    async fn grant(&self, cluster: &Cluster, rules: &[PolicyRule]) -> Result<()> {
        let name = &self.name;
        let rules: Vec<_> = rules.iter().flat_map(|rule| self.without(rule)).collect();
        let user = Subject {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "User".to_owned(),
            name: name.clone(),
            namespace: None,
        };
        grant(cluster.client(), name, &rules, user).await
    }

    fn without(&self, rule: &PolicyRule) -> Vec<PolicyRule> {
        let Some(missing) = self.missing else {
            return vec![rule.clone()];
        };
        let has = |list: &Option<Vec<String>>, it: &str| {
            list.iter().flatten().any(|one| one == it || one == "*")
        };
        if !has(&rule.api_groups, missing.group) || !has(&rule.resources, missing.resource) {
            return vec![rule.clone()];
        }
        let resources = rule.resources.iter().flatten();
        let others = resources.filter(|it| *it != missing.resource).cloned();
        let verbs = rule
            .verbs
            .iter()
            .filter(|it| !missing.verbs.contains(&it.as_str()))
            .cloned();
        let of_others = PolicyRule {
            resources: Some(others.collect()),
            ..rule.clone()
        };
        let less = PolicyRule {
            resources: Some(vec![missing.resource.to_owned()]),
            verbs: verbs.collect(),
            ..rule.clone()
        };
        let mut rules = vec![of_others, less];
        rules.retain(|it| !it.verbs.is_empty() && it.resources != Some(Vec::new()));
        rules
    }

    /// Runs an update until it is promoted.
    async fn update(&self, cluster: &Cluster) -> Result<Updated> {
        let canary = Canary::deploy(cluster, &self.name).await?;
        let owners = canary.table().await?;
        let mut endpoints = Endpoints::of(cluster, &self.name).await?;
        endpoints.add_pods(&canary, &[OLD]).await?;
        endpoints.set_endpoints(STABLE, &[OLD]).await?;
        let mut works = BTreeSet::new();

        let mut spec = self.new_version();
        if self.has_only_the_cache() {
            // The controller starts a plugin for the first Rollout that names it, and until the cache is filled, calls read tables.
            let template = spec
                .as_object_mut()
                .and_then(|spec| spec.remove("template"));
            canary.change_spec(spec).await?;
            eventually("the cache has all tables", async || {
                ensure!(self.count(SYNCED).await? == 1, "{SYNCED} is not 1");
                Ok(())
            })
            .await?;
            spec = json!({ "template": template });
        }
        let update = canary.change_spec(spec);
        if self
            .reaches(&canary, update, |_, split| split == AT_25)
            .await?
        {
            works.insert(Feature::Shift);
            canary.paused_at(1).await?;
            endpoints.add_pods(&canary, &[NEW]).await?;
            endpoints.set_endpoints(CANARY, &[NEW]).await?;
            self.drift(&canary, &owners, &mut works).await?;
            self.promote(&canary, &mut works).await?;
        }
        Ok(Updated {
            works,
            canary,
            endpoints,
        })
    }

    /// Whether the plugin cannot read single tables.
    fn has_only_the_cache(&self) -> bool {
        let is_get = |it: Permissions| it.resource == "routetables" && it.verbs.contains(&"get");
        self.missing.is_some_and(is_get)
    }

    async fn drift(
        &self,
        canary: &Canary,
        owners: &DynamicObject,
        works: &mut BTreeSet<Feature>,
    ) -> Result<()> {
        for repairs in 1..=2 {
            let is_repaired = async || {
                if self.count(REPAIRS).await? >= repairs {
                    return Ok(true);
                }
                // A call of the controller can repair an edit before the plugin does so between the calls.
                if split(&canary.table().await?) == AT_25 {
                    let revert = |table: &mut DynamicObject| table.data.clone_from(&owners.data);
                    canary.edit_table(revert).await?;
                }
                Ok(false)
            };
            if !self.works(Feature::Repair, is_repaired).await? {
                return Ok(());
            }
            works.insert(Feature::Repair);
        }
        Ok(())
    }

    async fn promote(&self, canary: &Canary, works: &mut BTreeSet<Feature>) -> Result<()> {
        let forbidden = self.count(FORBIDDEN).await?;
        let at_the_end = |rollout: &Value, _: &str| {
            rollout.pointer("/status/currentStepIndex") == Some(&json!(3))
        };
        if self.reaches(canary, canary.promote(), at_the_end).await? {
            works.insert(Feature::Mirror);
            canary.paused_at(3).await?;
            canary.promote().await?;
        } else {
            canary.promote_fully().await?;
        }
        let is_promoted = eventually(
            "the update is promoted, or a read is forbidden",
            async || {
                let (rollout, table) = (canary.rollout().await?.data, canary.table().await?);
                let status = |field: &str| rollout.pointer(&format!("/status/{field}"));
                let is_new_stable = status("stableRS") == status("currentPodHash");
                let is_promoted = is_new_stable && [IDLE, AT_100].contains(&&*split(&table));
                let is_forbidden = self.count(FORBIDDEN).await? > forbidden + 1;
                ensure!(is_promoted || is_forbidden, "{rollout:#}");
                Ok(is_promoted)
            },
        );
        if !is_promoted.await? {
            return Ok(());
        }
        works.insert(Feature::Promote);
        let is_held = eventually("the promotion is held or complete", async || {
            let is_held = self.count(HOLDS).await? > 0;
            ensure!(is_held || split(&canary.table().await?) == IDLE);
            Ok(is_held)
        });
        if is_held.await? {
            works.insert(Feature::Hold);
        }
        Ok(())
    }

    /// Checks the features that need no further calls, and returns all that worked.
    async fn without_calls(
        &self,
        cluster: &Cluster,
        updated: Updated,
    ) -> Result<BTreeSet<Feature>> {
        let Updated {
            mut works,
            canary,
            endpoints,
        } = updated;
        if works.contains(&Feature::Hold) {
            endpoints.set_endpoints(STABLE, &[NEW]).await?;
            let is_released = async || Ok(split(&canary.table().await?) == IDLE);
            if self.works(Feature::Release, is_released).await? {
                works.insert(Feature::Release);
            }
        }
        if works.contains(&Feature::Promote) && canary.mirror_policies(cluster).await?.is_empty() {
            works.insert(Feature::MirrorCleanup);
        }
        let has_event = async |count: i32| {
            let events = canary.events().await?;
            let is_plugins =
                |it: &Event| PLUGIN_EVENTS.contains(&it.reason.as_deref().unwrap_or_default());
            Ok(events
                .iter()
                .any(|it| is_plugins(it) && it.count >= Some(count)))
        };
        if self
            .works(Feature::Events, async || has_event(1).await)
            .await?
        {
            works.insert(Feature::Events);
            if self
                .works(Feature::EventCount, async || has_event(2).await)
                .await?
            {
                works.insert(Feature::EventCount);
            }
        }
        Ok(works)
    }

    /// Returns the features that must work, and the exit code and a text of the doctor.
    fn expected(&self) -> Result<(BTreeSet<Feature>, i32, String)> {
        let mut works = BTreeSet::from(ALL);
        let Some(missing) = self.missing else {
            return Ok((works, 0, "you may do all that the plugin does".to_owned()));
        };
        let Permissions {
            verbs,
            resource,
            without,
            ..
        } = missing;
        let mut consequences = CONSEQUENCES.iter();
        let consequence = consequences.find(|(text, _)| *text == without);
        let (_, failing) = consequence.with_context(|| format!("not in the table: {without}"))?;
        works.retain(|feature| !failing.contains(feature));
        Ok((works, 1, format!("{} {resource}", verbs.concat())))
    }

    /// Waits until a feature has an effect. Returns whether it had one in time.
    async fn works(&self, feature: Feature, probe: impl AsyncFn() -> Result<bool>) -> Result<bool> {
        let (works, ..) = self.expected()?;
        let time = if works.contains(&feature) {
            DEADLINE
        } else {
            OBSERVED
        };
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            if probe().await? {
                return Ok(true);
            }
            sleep(Duration::from_millis(250)).await;
        }
        Ok(false)
    }

    async fn count(&self, series: &str) -> Result<u64> {
        count(&self.metrics, series).await
    }

    /// Returns the spec of a new version with the plugin of this case.
    fn new_version(&self) -> Value {
        let matches = json!([{ "method": { "exact": "GET" }, "path": { "prefix": "/" } }]);
        let mirror = json!({ "name": "header-canary", "percentage": 35, "match": matches });
        let steps = json!([
            { "setWeight": 25 },
            { "pause": {} },
            { "setMirrorRoute": mirror },
            { "pause": {} },
        ]);
        let block = json!({ "routeTableSelector": { "name": "demo" }, "promotionGuard": { "settle": "1s" } });
        let plugins = json!({ PLUGIN_NAME: null, self.plugin.as_str(): block });
        json!({
            "template": { "spec": { "containers": [{ "name": "app", "image": "registry.example.com/demo:2" }] } },
            "strategy": { "canary": { "steps": steps, "trafficRouting": { "plugins": plugins } } },
        })
    }

    /// Waits until the Rollout and the split are in the `wanted` state after `act`, or an Event reports that a call was not allowed.
    /// Returns whether the state was reached.
    async fn reaches(
        &self,
        canary: &Canary,
        act: impl Future<Output = Result<()>>,
        wanted: impl Fn(&Value, &str) -> bool,
    ) -> Result<bool> {
        let earlier = canary.events().await?;
        act.await?;
        let what = format!("the wanted state or an error without {:?}", self.missing);
        eventually(&what, async || {
            let rollout = canary.rollout().await?.data;
            let split = split(&canary.table().await?);
            if wanted(&rollout, &split) {
                return Ok(true);
            }
            let events = canary.events().await?;
            let is_reported = events.iter().any(|event| {
                let message = event.message.as_deref().unwrap_or_default();
                !earlier.contains(event) && message.contains("not allowed to")
            });
            ensure!(is_reported, "{split} {rollout:#}");
            Ok(false)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_permission_only_its_features_fail() -> Result<()> {
    let cluster = Cluster::start_without_controller(RELEASE).await?;
    cluster.run(all_cases).await
}

async fn all_cases(cluster: &mut Cluster) -> Result<()> {
    let cases = Case::all()?;
    let rules = rules(cluster).await?;
    for case in &cases {
        case.grant(cluster, &rules).await?;
    }
    let directory = tempfile::tempdir()?;
    let kubeconfig = directory.path().join("kubeconfig");
    fs::write(&kubeconfig, contexts(cluster, &cases)?)?;

    let args = cases.iter().map(|case| {
        [
            format!("--context={}", case.name),
            format!("--plugin-name={}", case.plugin),
            format!("--metrics-address={}", case.metrics),
        ]
    });
    let args: Vec<_> = args.collect();
    let args: Vec<_> = args
        .iter()
        .map(|args| args.each_ref().map(String::as_str))
        .collect();
    let names = cases.iter().map(|case| case.plugin.as_str());
    let mut plugins: Vec<(&str, &[&str])> =
        names.zip(args.iter().map(<[_; 3]>::as_slice)).collect();
    plugins.push((PLUGIN_NAME, &[]));
    let setup = Setup {
        plugins: &plugins,
        variables: &[
            ("KUBECONFIG", &kubeconfig),
            // A process must not restore the tables of Rollouts that name another plugin.
            ("GLOO_PLUGIN_GC_AFTER", "86400".as_ref()),
        ],
        ..Setup::default()
    };
    cluster.register_and_start(RELEASE, setup).await?;
    let cluster = &*cluster;
    let updated = join_all(cases.iter().map(|case| case.update(cluster))).await;
    // From here on the controller is frozen, so that the plugins write without a call.
    let controller = cluster.controller()?;
    controller.freeze()?;
    controller.thaw_plugins()?;
    let ended = cases.iter().zip(updated).map(async |(case, updated)| {
        let works = case.without_calls(cluster, updated?).await?;
        let line = format!("doctor --context={}", case.name);
        Ok::<_, anyhow::Error>((works, run(&kubeconfig, &line).await?))
    });
    let ended = join_all(ended).await;
    controller.thaw()?;
    let mut wrong = String::new();
    for (case, ended) in cases.iter().zip(ended) {
        let (works, doctor) = ended.with_context(|| format!("{:?}", case.missing))?;
        let (expected, code, text) = case.expected()?;
        if works != expected {
            wrong += &format!("{:?}: {works:?} work, not {expected:?}\n", case.missing);
        }
        doctor.check(code, &[&text])?;
    }
    ensure!(wrong.is_empty(), "{wrong}");
    Ok(())
}

/// Returns the rules of the release and of `deploy`.
async fn rules(cluster: &Cluster) -> Result<Vec<PolicyRule>> {
    let roles: Api<ClusterRole> = Api::all(cluster.client().clone());
    let mut rules = Vec::new();
    for role in ["argo-rollouts", ADDED] {
        let granted = roles.get(role).await?.rules.unwrap_or_default();
        if role == ADDED {
            all_are_checked(&granted)?;
        }
        rules.extend(granted);
    }
    Ok(rules)
}

/// Checks that `deploy` grants only permissions that the doctor checks.
fn all_are_checked(granted: &[PolicyRule]) -> Result<()> {
    let known = permissions();
    for rule in granted {
        for resource in rule.resources.iter().flatten() {
            for verb in &rule.verbs {
                let is_known = known
                    .iter()
                    .any(|it| it.resource == resource && it.verbs.contains(&verb.as_str()));
                ensure!(is_known, "the doctor does not check {verb} {resource}");
            }
        }
    }
    Ok(())
}

/// Returns a kubeconfig with a context for each case, and one with all permissions.
fn contexts(cluster: &Cluster, cases: &[Case]) -> Result<String> {
    let mut config: Value = serde_saphyr::from_str(&fs::read_to_string(cluster.kubeconfig())?)?;
    let admin = config
        .pointer("/users/0/user")
        .cloned()
        .context("no user")?;
    for case in cases {
        let mut user = admin.clone();
        user.as_object_mut()
            .context("no user")?
            .insert("as".to_owned(), json!(case.name));
        let context = json!({ "cluster": "e2e", "user": case.name });
        for (list, entry) in [
            ("users", json!({ "name": case.name, "user": user })),
            ("contexts", json!({ "name": case.name, "context": context })),
        ] {
            let list = config.get_mut(list).and_then(Value::as_array_mut);
            list.context("no list")?.push(entry);
        }
    }
    Ok(config.to_string())
}
