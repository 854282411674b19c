//! The stage of the demo in a cluster: the released controller calls the plugin, whose requests to the API server go through a
//! proxy.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use gloo_types::{MirrorPolicy, Resource};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Event;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use traffic_lab::{Delays, World};
use traffic_page::{
    Action, Board, Command, FILE, Live, OWNERS, Plugin, Progress, Setting, Stage, StageError,
    Switch, Tables, Version, steps,
};

use super::workloads::VERSION_LABEL;
use super::{Replicas, Workloads, open_gateway};
use crate::cluster::METRICS_ADDRESS;
use crate::cluster::free_ports;
use crate::generator::send;
use crate::{ApiServerFault, Canary, Cluster, Proxy, Release, Setup, manifest};

const RELEASE: Release = Release::V1_10;
const NAMESPACE: &str = "shop";
const TABLE: &str = "shop";
/// Delay of endpoints while the switch "late" is on.
const LATE: Duration = Duration::from_secs(2);
/// The controller resyncs each 10 s. The default is 15 minutes.
const FLAGS: [&str; 2] = ["--leader-elect=false", "--rollout-resync=10"];
/// `scaleDownDelaySeconds`: how long old Pods run. The default is 30 s.
const SCALE_DOWN: u32 = 6;
/// `scaleDownDelaySeconds` while the switch "at once" is on. With 0 the controller reconciles in a loop and scales nothing down.
const SCALE_DOWN_AT_ONCE: u32 = 1;
/// `--gc-after` in seconds: when the plugin restores the table of a deleted Rollout. The default is 30 s.
const GC_AFTER: &str = "10";
/// Interval of reading objects.
const OBJECTS_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of reading Events and metrics.
const PLUGIN_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time to wait for the end of a reconcile.
const BUSY: Duration = Duration::from_secs(1);
/// The plugin's counter of calls.
const CALLS: &str = "gloo_router_calls_total";
/// Reasons of the controller's Events that the log does not show: the page shows them already, or they are too frequent.
const NOT_SHOWN: [&str; 7] = [
    "NewReplicaSetCreated",
    "RolloutNotCompleted",
    "RolloutUpdated",
    "RolloutStepCompleted",
    "ScalingReplicaSet",
    "SwitchService",
    "RolloutAddedToInformer",
];

/// A canary in a cluster, and the processes of the cluster.
pub struct ClusterStage {
    board: Board,
    cluster: Cluster,
    proxy: Proxy,
    canary: Canary,
    workloads: Workloads,
    world: Arc<World>,
    rollout: Value,
    replicas: Vec<Replicas>,
    /// The versions by Pod template hash.
    versions: BTreeMap<String, Version>,
    newest: Version,
    /// The owner's table, as read at the start.
    owners: DynamicObject,
    tables: Tables,
    switches: BTreeMap<Switch, bool>,
    metrics: Metrics,
    plugin: Plugin,
    /// The texts of Events in the log, and the count of each.
    events: BTreeMap<String, i32>,
    objects_due: Instant,
    plugin_due: Instant,
}

/// The plugin's counters of the controller's calls.
struct Metrics {
    /// The plugin's metrics address.
    address: String,
    /// The counters of the current process, by series.
    counts: BTreeMap<String, u64>,
    /// Calls of earlier processes.
    earlier_calls: u64,
}

impl ClusterStage {
    /// Starts the cluster with the plugin at `$PLUGIN_BINARY`, and the load when the first version is healthy.
    ///
    /// # Errors
    /// Returns `Err` if a program does not start, with the end of its log.
    pub async fn open() -> Result<Self> {
        let mut cluster = Cluster::start_without_controller(RELEASE).await?;
        let proxy = Proxy::start(&cluster).await?;
        let [port] = free_ports()?;
        let metrics = Metrics {
            address: format!("{}:{port}", Ipv4Addr::LOCALHOST),
            counts: BTreeMap::new(),
            earlier_calls: 0,
        };
        let variables = variables(&proxy, &metrics, false);
        let variables = borrowed(&variables);
        let started = cluster.register_and_start(RELEASE, setup(&variables));
        started.await?;
        cluster.stop_kubelet();
        let world = Arc::new(open_gateway().await?);
        let workloads = Workloads::start(
            &cluster,
            NAMESPACE,
            Arc::clone(&world),
            Duration::ZERO,
            true,
        );
        let workloads = workloads.await?;
        let manifests = manifests(Version::FIRST)?;
        let canary = Canary::deploy_manifests(&cluster, NAMESPACE, &manifests).await;
        let canary = canary.map_err(|error| cluster.with_logs(error))?;
        let canary = canary.with_table(TABLE);
        world.delivered().await?;
        let mut stage = Self {
            board: Board::new(Setting::Cluster),
            proxy,
            workloads,
            world,
            rollout: Value::Null,
            replicas: Vec::new(),
            versions: BTreeMap::new(),
            newest: Version::FIRST,
            owners: canary.table().await?,
            canary,
            tables: Tables::default(),
            switches: Switch::ALL.map(|(_, switch)| (switch, false)).into(),
            metrics,
            plugin: Plugin::default(),
            events: BTreeMap::new(),
            objects_due: Instant::now(),
            plugin_due: Instant::now(),
            cluster,
        };
        stage.read_objects().await?;
        stage.read_plugin().await?;
        let gateway = stage.world.address();
        stage.board.start_load(gateway);
        Ok(stage)
    }

    async fn execute(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Act(action) => self.act(action).await,
            Command::Kill => {
                self.cluster.kill_plugin().await?;
                let text = "the plugin is killed; the gateway keeps serving";
                self.board.note("fault", text);
                self.read_plugin().await
            }
            Command::Revert => {
                self.read_objects().await?;
                if self.tables.is_owners()? {
                    bail!("the table is equal to the owner's");
                }
                let owners = self.owners.data.get("spec").cloned();
                let owners = owners.unwrap_or_default();
                let written = RefCell::new(None);
                let reverted = self.canary.edit_table(|table| {
                    if let Some(spec) = table.data.get_mut("spec") {
                        spec.clone_from(&owners);
                    }
                    written.replace(Some(table.clone()));
                });
                reverted.await?;
                let text = "GitOps restores the owner's table from Git";
                // Shows the written table: the plugin may have repaired the stored one already.
                let table = written.into_inner().context("nothing was written")?;
                self.show_tables("fault", text, &table).await
            }
            Command::Turn(switch) => {
                let is_on = !self.is_on(switch);
                self.set_switch(switch, is_on).await?;
                self.switches.insert(switch, is_on);
                self.read_objects().await
            }
        }
    }

    async fn act(&mut self, action: Action) -> Result<()> {
        self.read_objects().await?;
        if !self.allowed().contains(&action) {
            bail!("not possible now");
        }
        // The controller can miss a change during a reconcile until the next one.
        let _ = timeout(BUSY, self.canary.idle()).await;
        let before = self.version("currentPodHash");
        let is_paused = self.is_paused();
        match action {
            Action::NewVersion { fails } => {
                self.newest = Version {
                    number: self.newest.number + 1,
                    fails,
                };
                self.canary.change_image(&image(self.newest)).await?;
            }
            Action::Promote if is_paused => {
                self.canary.change_spec(json!({"paused": false})).await?;
            }
            Action::Promote => self.canary.promote().await?,
            Action::PromoteFully => {
                self.canary.change_spec(json!({"paused": false})).await?;
                self.canary.promote_fully().await?;
            }
            Action::Abort => self.canary.abort().await?,
            Action::Retry => self.canary.change_status(json!({"abort": false})).await?,
            Action::Pause => {
                let paused = json!({"paused": !is_paused});
                self.canary.change_spec(paused).await?;
            }
        }
        let text = action.describe(self.newest, before, !is_paused);
        self.board.note("you", &text);
        Ok(())
    }

    async fn set_switch(&mut self, switch: Switch, is_on: bool) -> Result<()> {
        let text = match switch {
            Switch::Away => {
                self.proxy
                    .set_fault(is_on.then_some(ApiServerFault::Frozen));
                if is_on {
                    "the API server no longer answers the plugin"
                } else {
                    "the API server answers again"
                }
            }
            Switch::Late => {
                self.world.set_delays(Delays {
                    endpoints: if is_on { LATE } else { Duration::ZERO },
                    ..Delays::default()
                });
                if is_on {
                    "from now on the gateway receives endpoints 2 s late"
                } else {
                    "the gateway receives endpoints at once"
                }
            }
            Switch::AtOnce => {
                let delay = if is_on {
                    SCALE_DOWN_AT_ONCE
                } else {
                    SCALE_DOWN
                };
                let canary = json!({"scaleDownDelaySeconds": delay});
                let strategy = json!({"strategy": {"canary": canary}});
                self.canary.change_spec(strategy).await?;
                if is_on {
                    "from now on old Pods end after 1 s: scaleDownDelaySeconds"
                } else {
                    "old Pods run for 6 s: scaleDownDelaySeconds"
                }
            }
            Switch::GuardOff => {
                self.cluster.take_controller()?.stop().await?;
                let variables = variables(&self.proxy, &self.metrics, is_on);
                let borrowed = borrowed(&variables);
                self.cluster.add_controller(RELEASE, setup(&borrowed))?;
                self.canary = self.canary.of_controller(self.cluster.controller()?);
                if is_on {
                    "the controller is restarted: its plugin has --promotion-guard off"
                } else {
                    "the controller is restarted: its plugin has the guard again"
                }
            }
            Switch::Deleted if is_on => {
                self.canary.delete_rollout().await?;
                self.orphan().await?;
                "the Rollout is deleted with --cascade=orphan, and its canary scaled down"
            }
            Switch::Deleted => {
                let stable = self.version("stableRS");
                let manifests = manifests(stable)?;
                let objects = manifest::parse(&manifests)?;
                let is_rollout = |it: &&DynamicObject| {
                    it.types
                        .as_ref()
                        .is_some_and(|types| types.kind == "Rollout")
                };
                let rollout: Vec<_> = objects.iter().filter(is_rollout).cloned().collect();
                manifest::apply(self.cluster.client(), &rollout).await?;
                self.switches.insert(Switch::AtOnce, false);
                "the Rollout is created again, and finds its Pods"
            }
        };
        let who = if is_on { "fault" } else { "you" };
        self.board.note(who, text);
        Ok(())
    }

    /// Orphans the ReplicaSets of the deleted Rollout, like the garbage collector, which does not run here. Then scales down
    /// the canary, like a user: the controller has removed the hash from the selectors of both Services, so they match all
    /// Pods.
    async fn orphan(&self) -> Result<()> {
        let stable = self.status("stableRS").and_then(Value::as_str);
        let sets: Api<ReplicaSet> = Api::namespaced(self.cluster.client().clone(), NAMESPACE);
        for set in sets.list(&ListParams::default()).await? {
            let hash = set.labels().get(VERSION_LABEL).map(String::as_str);
            let spec = if hash == stable {
                json!({})
            } else {
                json!({"replicas": 0})
            };
            let metadata = json!({"ownerReferences": null});
            let patch = Patch::Merge(json!({"metadata": metadata, "spec": spec}));
            sets.patch(&set.name_any(), &PatchParams::default(), &patch)
                .await?;
        }
        Ok(())
    }

    /// Reads the Rollout, its Pods and the tables.
    async fn read_objects(&mut self) -> Result<()> {
        self.objects_due = Instant::now() + OBJECTS_INTERVAL;
        if let Some(error) = self.workloads.failure().await {
            return Err(self.cluster.with_logs(error));
        }
        self.learn_versions();
        self.board.asked = 0;
        if !self.is_on(Switch::Deleted) {
            let rollout = self.canary.rollout().await?;
            self.rollout = rollout.data;
            let weight = self.rollout.pointer("/status/canary/weights/canary/weight");
            let weight = weight.and_then(Value::as_i64).unwrap_or_default();
            self.board.asked = weight.try_into()?;
        }
        let table = self.canary.table().await?;
        self.show_tables("plugin", "writes the tables", &table)
            .await
    }

    /// Shows the tables if they have changed, with an entry in the log.
    async fn show_tables(&mut self, who: &str, text: &str, table: &DynamicObject) -> Result<()> {
        let owners = file(&self.owners)?;
        let mut files = vec![(FILE.to_owned(), file(table)?)];
        for policy in self.list::<MirrorPolicy>().await? {
            files.push((format!("{}.yaml", policy.name_any()), file(&policy)?));
        }
        let tables = Tables::new(&owners, files);
        if tables == self.tables {
            return Ok(());
        }
        let changed = tables.changed_since(&self.tables)?;
        let is_first = self.tables == Tables::default();
        self.board.set_tables(&tables)?;
        self.tables = tables;
        if !is_first {
            self.board.entry(who, text, json!({"changed": changed}));
        }
        Ok(())
    }

    /// Reads the plugin's process, its metrics and the Events.
    async fn read_plugin(&mut self) -> Result<()> {
        self.plugin_due = Instant::now() + PLUGIN_INTERVAL;
        let id = self.cluster.plugin()?.map(i32::unsigned_abs);
        if id != self.plugin.id {
            self.plugin.id = id;
            if let Some(id) = id {
                let again = if self.plugin.starts == 0 {
                    ""
                } else {
                    " again"
                };
                self.plugin.starts += 1;
                let text = format!("the plugin is started{again}, process {id}");
                self.board.note("controller", &text);
                self.metrics.restart();
            }
        }
        for (series, increase) in self.metrics.increases().await {
            let code = label(&series, "code").unwrap_or_default();
            if increase > 0 && code != "ok" {
                let method = label(&series, "method").unwrap_or_default();
                let more = json!({"ok": false, "said": code});
                self.board.entry("call", method, more);
            }
        }
        self.plugin.calls = self.metrics.calls();
        self.show_events().await
    }

    async fn show_events(&mut self) -> Result<()> {
        let events: Api<Event> = Api::namespaced(self.cluster.client().clone(), NAMESPACE);
        let mut events = events.list(&ListParams::default()).await?.items;
        events.sort_by_key(|event| event.metadata.creation_timestamp.clone());
        for event in events {
            let count = event.count.unwrap_or(1);
            let reason = event.reason.unwrap_or_default();
            let text = format!("{reason}: {}", event.message.unwrap_or_default());
            // The Rollout and the table may have an Event with the same text.
            let known = self.events.entry(text.clone()).or_default();
            if count <= *known || NOT_SHOWN.contains(&reason.as_str()) {
                continue;
            }
            *known = count;
            let component = event.source.and_then(|source| source.component);
            let is_plugin = component.is_some_and(|it| it.contains("glooplatform"));
            let who = if is_plugin { "plugin" } else { "controller" };
            self.board.note(who, &text);
        }
        Ok(())
    }

    fn learn_versions(&mut self) {
        self.replicas = self.workloads.replicas();
        for replicas in &self.replicas {
            if let Ok(number) = replicas.version.parse() {
                let fails = self.newest.number == number && self.newest.fails;
                let version = Version { number, fails };
                let known = self.versions.entry(replicas.hash.clone());
                known.or_insert(version);
            }
        }
    }

    async fn list<K: Resource>(&self) -> Result<Vec<DynamicObject>> {
        let kind = GroupVersionKind::gvk(K::GROUP, K::VERSION, K::KIND);
        let resource = ApiResource::from_gvk(&kind);
        let client = self.cluster.client().clone();
        let api: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &resource);
        Ok(api.list(&ListParams::default()).await?.items)
    }

    fn is_on(&self, switch: Switch) -> bool {
        self.switches.get(&switch).copied().unwrap_or_default()
    }

    fn status(&self, key: &str) -> Option<&Value> {
        self.rollout.get("status")?.get(key)
    }

    /// Returns the version with the Pod template hash in this field of the Rollout's status.
    fn version(&self, key: &str) -> Version {
        let hash = self.status(key).and_then(Value::as_str);
        let known = hash.and_then(|hash| self.versions.get(hash));
        known.copied().unwrap_or(Version::FIRST)
    }

    fn is_paused(&self) -> bool {
        self.rollout.pointer("/spec/paused") == Some(&json!(true))
    }

    fn is_aborted(&self) -> bool {
        self.status("abort") == Some(&json!(true))
    }

    fn is_updating(&self) -> bool {
        self.status("stableRS") != self.status("currentPodHash") && !self.is_aborted()
    }

    fn allowed(&self) -> Vec<Action> {
        if self.is_on(Switch::Deleted) {
            return Vec::new();
        }
        let waits = self
            .status("pauseConditions")
            .is_some_and(|it| !it.is_null());
        let actions = Action::ALL.into_iter().map(|(_, action)| action);
        let makes_sense = |action: &Action| match action {
            Action::NewVersion { .. } => true,
            Action::Retry => self.is_aborted(),
            Action::Promote => self.is_updating() && (waits || self.is_paused()),
            Action::PromoteFully | Action::Abort | Action::Pause => self.is_updating(),
        };
        actions.filter(makes_sense).collect()
    }

    fn progress(&self) -> Progress {
        let text = |key: &str| self.status(key).and_then(Value::as_str).unwrap_or_default();
        let (stable, current) = (self.version("stableRS"), self.version("currentPodHash"));
        let step = self.status("currentStepIndex").and_then(Value::as_u64);
        let (phase, message) = if self.is_on(Switch::Deleted) {
            (
                "Deleted",
                "the Rollout is deleted; the stable version keeps serving",
            )
        } else {
            (text("phase"), text("message"))
        };
        Progress {
            phase: phase.to_owned(),
            message: message.to_owned(),
            step: step
                .filter(|_| self.is_updating() && !self.is_on(Switch::Deleted))
                .and_then(|step| step.try_into().ok()),
            stable,
            current,
            is_paused: self.is_paused(),
            is_aborted: self.is_aborted(),
        }
    }
}

impl Stage for ClusterStage {
    fn board(&mut self) -> &mut Board {
        &mut self.board
    }

    fn live(&self) -> Live {
        let pods = self.replicas.iter();
        let pods = pods.filter_map(|it| Some((it.version.parse().ok()?, it.pods)));
        Live {
            progress: self.progress(),
            allowed: self.allowed(),
            pods: pods.collect(),
            plugin: self.plugin,
            switches: self
                .switches
                .iter()
                .map(|(it, is_on)| (*it, *is_on))
                .collect(),
        }
    }

    async fn carry_out(&mut self, command: Command) -> Result<(), StageError> {
        Ok(self.execute(command).await?)
    }

    async fn tick(&mut self) -> Result<(), StageError> {
        self.learn_versions();
        let copies = self.replicas.iter();
        let copies = copies.filter_map(|it| Some((it.version.parse().ok()?, it.copies)));
        let (stable, current) = (self.version("stableRS"), self.version("currentPodHash"));
        let canary = (stable != current).then_some(current.number);
        self.board.count(copies, canary);
        let now = Instant::now();
        if now >= self.plugin_due {
            self.read_plugin().await?;
        }
        if now >= self.objects_due {
            self.read_objects().await?;
        }
        Ok(())
    }

    async fn close(self) -> Result<(), StageError> {
        Ok(self.cluster.stop().await?)
    }
}

impl Metrics {
    /// Returns the increase of each series since the last call; nothing if the plugin does not answer.
    async fn increases(&mut self) -> Vec<(String, u64)> {
        let Ok(reply) = send(&self.address, "GET /metrics HTTP/1.1", "").await else {
            return Vec::new();
        };
        let mut increases = Vec::new();
        for line in reply.body.lines().filter(|line| line.starts_with(CALLS)) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let value = value.parse().unwrap_or_default();
            let before = self.counts.insert(series.to_owned(), value);
            let before = before.unwrap_or_default();
            increases.push((series.to_owned(), value.saturating_sub(before)));
        }
        increases
    }

    /// Returns the number of the controller's calls to all processes.
    fn calls(&self) -> u64 {
        self.earlier_calls + self.counts.values().sum::<u64>()
    }

    /// Notes that a new process starts to count at 0.
    fn restart(&mut self) {
        self.earlier_calls = self.calls();
        self.counts.clear();
    }
}

/// Returns the value of a label of a series.
fn label<'a>(series: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = series.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

/// Returns the plugin's environment variables.
fn variables(proxy: &Proxy, metrics: &Metrics, guard_off: bool) -> Vec<(&'static str, PathBuf)> {
    let mut variables = vec![
        ("KUBECONFIG", proxy.kubeconfig().to_owned()),
        ("GLOO_PLUGIN_GC_AFTER", GC_AFTER.into()),
        (METRICS_ADDRESS, metrics.address.clone().into()),
    ];
    if guard_off {
        variables.push(("GLOO_PLUGIN_PROMOTION_GUARD", "off".into()));
    }
    variables
}

fn borrowed<'a>(variables: &'a [(&'static str, PathBuf)]) -> Vec<(&'a str, &'a Path)> {
    let variables = variables.iter();
    variables
        .map(|(name, value)| (*name, value.as_path()))
        .collect()
}

fn setup<'a>(variables: &'a [(&'a str, &'a Path)]) -> Setup<'a> {
    Setup {
        flags: &FLAGS,
        variables,
        ..Setup::default()
    }
}

fn image(version: Version) -> String {
    let name = if version.fails { "failing" } else { "reviews" };
    format!("registry.example.com/{name}:{}", version.number)
}

/// Returns the manifests of the Services, the owner's table and the Rollout.
fn manifests(version: Version) -> Result<String> {
    let service = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"selector": {"app": "reviews"}, "ports": [{"port": 8080}]},
        })
    };
    let steps: Vec<Value> = steps().into_iter().map(|(step, _)| step).collect();
    let rollout = json!({
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout",
        // The name that `Canary` expects.
        "metadata": {"name": "demo", "namespace": NAMESPACE},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "reviews"}},
            "template": {
                "metadata": {"labels": {"app": "reviews"}},
                "spec": {"containers": [{"name": "app", "image": image(version)}]},
            },
            "strategy": {"canary": {
                "stableService": "reviews",
                "canaryService": "reviews-canary",
                "scaleDownDelaySeconds": SCALE_DOWN,
                "abortScaleDownDelaySeconds": SCALE_DOWN,
                "steps": steps,
                "trafficRouting": {
                    "managedRoutes": [{"name": "testers"}, {"name": "beta"}, {"name": "copies"}],
                    "plugins": {"solo-io/glooplatform": {"routeTableSelector": {"name": TABLE}}},
                },
            }},
        },
    });
    let mut texts = vec![OWNERS.to_owned()];
    for object in [service("reviews"), service("reviews-canary"), rollout] {
        // JSON is valid YAML.
        texts.push(serde_json::to_string(&object)?);
    }
    Ok(texts.join("\n---\n"))
}

/// Returns an object as text, without the fields that the API server and Gloo add.
fn file(object: &DynamicObject) -> Result<String> {
    let types = object.types.as_ref().context("an object without a kind")?;
    let mut metadata = json!({"name": object.name_any(), "namespace": NAMESPACE});
    for (key, values) in [
        ("annotations", object.annotations()),
        ("labels", object.labels()),
    ] {
        if !values.is_empty()
            && let Some(metadata) = metadata.as_object_mut()
        {
            metadata.insert(key.to_owned(), serde_json::to_value(values)?);
        }
    }
    let text = serde_json::to_string(&json!({
        "apiVersion": types.api_version, "kind": types.kind,
        "metadata": metadata, "spec": object.data.get("spec"),
    }))?;
    Ok(text)
}
