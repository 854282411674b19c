//! A stand-in for the kubelet, the EndpointSlice controller and Gloo in one namespace.
//!
//! Each ReplicaSet gets Pods, as objects and as HTTP servers, and each Service an EndpointSlice. The gateway of the namespace
//! receives endpoints and RouteTables with the delays of its [`World`]. Once it serves a RouteTable, the table's status becomes
//! `ACCEPTED`, like Gloo's: the plugin waits for it before it lets the controller scale down Pods.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use envoy_routes::{DefaultRetries, Objects, translate};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use gloo_types::{MirrorPolicy, MirrorPolicyDoc, Resource, RouteTable, RouteTableDoc};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod as PodObject, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::core::GroupVersionKind;
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use traffic_lab::{Endpoint, Pod, ServiceName, World};

use crate::kubelet::all_available;
use crate::{Cluster, manifest};

/// The label of a Pod with its Pod template hash, for subsets and the promotion guard.
pub(super) const VERSION_LABEL: &str = "rollouts-pod-template-hash";

/// Pause before a retry if the API server is not reachable.
const AGAIN: Duration = Duration::from_millis(200);
/// Longest time to wait for a list. Far above the usual milliseconds, so that a busy machine does not repeat lists forever.
const HELD: Duration = Duration::from_millis(500);
/// How long the objects are also polled after a watch has failed.
const POLLED: Duration = Duration::from_secs(10);

/// Part of the name of a failing image, and the number of requests of which one fails.
const FAILING: (&str, u32) = ("/failing:", 3);

/// The Pods that run, by the uid of their ReplicaSet.
type Pods = Arc<Mutex<BTreeMap<String, Vec<Running>>>>;

/// The workloads of one namespace. Dropping it ends all Pods.
pub struct Workloads {
    task: JoinHandle<Result<()>>,
    pods: Pods,
}

/// The Pods of one ReplicaSet.
#[derive(Clone, Debug)]
pub struct Replicas {
    /// The version in their answers: the tag of their image.
    pub version: String,
    /// Their Pod template hash.
    pub hash: String,
    /// Number of Pods.
    pub pods: usize,
    /// Number of mirrored requests since the last call.
    pub copies: usize,
}

impl Workloads {
    /// Creates the namespace and runs its Pods until it is dropped. A deleted Pod serves for `pre_stop` before it ends
    /// gracefully, as with a preStop hook that sleeps. With `reports`, RouteTables get a status.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects the request.
    pub async fn start(
        cluster: &Cluster,
        namespace: &str,
        world: Arc<World>,
        pre_stop: Duration,
        reports: bool,
    ) -> Result<Self> {
        cluster.create_namespace(namespace).await?;
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": namespace},
        });
        manifest::apply(cluster.client(), &[serde_json::from_value(account)?]).await?;
        let state = State::new(cluster.client(), namespace, world, pre_stop, reports);
        Ok(Self {
            pods: Arc::clone(&state.pods),
            task: tokio::spawn(state.run()),
        })
    }

    /// Returns the Pods of each ReplicaSet that has any.
    #[must_use]
    pub fn replicas(&self) -> Vec<Replicas> {
        let all = lock(&self.pods);
        let all = all.values().filter_map(|pods| {
            let first = pods.first()?;
            let copies = pods.iter().map(|pod| pod.server.take_ids().copies.len());
            Some(Replicas {
                version: first.version.clone(),
                hash: first.labels.get(VERSION_LABEL)?.clone(),
                pods: pods.len(),
                copies: copies.sum(),
            })
        });
        all.collect()
    }

    /// Returns the error that stopped it; `None` while it runs.
    pub async fn failure(&mut self) -> Option<anyhow::Error> {
        if self.task.is_finished() {
            return Some(self.stopped().await);
        }
        None
    }

    /// Waits until an error stops it, and returns the error.
    pub async fn stopped(&mut self) -> anyhow::Error {
        match (&mut self.task).await {
            Ok(Ok(())) => anyhow!("the watches have ended"),
            Ok(Err(error)) => error,
            Err(error) => error.into(),
        }
    }
}

impl Drop for Workloads {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Names and generations of objects.
type Generations = Vec<(String, i64)>;

/// A Pod, as an object and as a server.
struct Running {
    /// Name and uid of the object.
    name: String,
    uid: String,
    version: String,
    labels: BTreeMap<String, String>,
    /// The address in the EndpointSlice, where loopback addresses are not allowed.
    address: String,
    server: Pod,
}

struct State {
    client: Client,
    namespace: String,
    world: Arc<World>,
    pre_stop: Duration,
    pods: Pods,
    started: u32,
    /// The last published Pod names of each Service.
    endpoints: BTreeMap<String, Vec<String>>,
    /// The last published RouteTables and MirrorPolicies.
    published: (Generations, Generations),
    /// Pods that are ending, and tables that wait for their status.
    pending: JoinSet<Result<()>>,
    reports: bool,
}

impl State {
    fn new(
        client: &Client,
        namespace: &str,
        world: Arc<World>,
        pre_stop: Duration,
        reports: bool,
    ) -> Self {
        Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            world,
            pre_stop,
            pods: Arc::default(),
            started: 0,
            endpoints: BTreeMap::new(),
            published: Default::default(),
            pending: JoinSet::new(),
            reports,
        }
    }

    /// Watches the objects, and updates Pods, endpoints and routes. Retries while the API server is not reachable.
    async fn run(mut self) -> Result<()> {
        let mut events = stream::select_all([
            changes(self.api::<ReplicaSet>()),
            changes(self.api::<Service>()),
            gloo_changes(self.gloo::<RouteTable>()),
            gloo_changes(self.gloo::<MirrorPolicy>()),
        ]);
        let mut poll_until = Instant::now();
        loop {
            let is_polling = Instant::now() < poll_until;
            tokio::select! {
                Some(is_ok) = events.next() => if !is_ok {
                    poll_until = Instant::now() + POLLED;
                },
                () = sleep(AGAIN), if is_polling => {}
                else => return Ok(()),
            }
            while let Some(done) = self.pending.try_join_next() {
                done??;
            }
            while let Err(error) = self.step().await {
                if !error.downcast_ref().is_some_and(is_away) {
                    return Err(error.context("Pods, Services and routes"));
                }
                sleep(AGAIN).await;
            }
        }
    }

    async fn step(&mut self) -> Result<()> {
        let everything = ListParams::default();
        let sets = self.api::<ReplicaSet>().list(&everything).await?.items;
        for set in &sets {
            self.scale(set).await?;
        }
        // Endpoints before the status: the controller continues as soon as it sees available Pods.
        let services = self.api::<Service>().list(&everything).await?.items;
        for service in &services {
            self.publish_endpoints(service).await?;
        }
        for set in &sets {
            let Some(status) = all_available(set) else {
                continue;
            };
            let (name, patch) = (set.name_any(), Patch::Merge(json!({"status": status})));
            let params = PatchParams::default();
            let sets = self.api::<ReplicaSet>();
            let patched = sets.patch_status(&name, &params, &patch);
            match patched.await {
                Err(kube::Error::Api(refusal)) if refusal.is_not_found() => {}
                result => drop(result?),
            }
        }
        self.publish_routes().await
    }

    /// Starts or ends Pods until the ReplicaSet has the desired number.
    async fn scale(&mut self, set: &ReplicaSet) -> Result<()> {
        let uid = set.uid().context("a ReplicaSet without uid")?;
        let wanted = usize::try_from(set.spec.replicas.unwrap_or(1))?;
        while lock(&self.pods).get(&uid).map_or(0, Vec::len) < wanted {
            let pod = self.start_pod(set).await?;
            lock(&self.pods).entry(uid.clone()).or_default().push(pod);
        }
        let surplus = match lock(&self.pods).get_mut(&uid) {
            Some(pods) => pods.split_off(wanted),
            None => Vec::new(),
        };
        for pod in surplus {
            let now = DeleteParams::default().grace_period(0);
            self.api::<PodObject>().delete(&pod.name, &now).await?;
            let pre_stop = self.pre_stop;
            self.pending.spawn(async move {
                sleep(pre_stop).await;
                pod.server.end().await;
                Ok(())
            });
        }
        Ok(())
    }

    async fn start_pod(&mut self, set: &ReplicaSet) -> Result<Running> {
        let template = set.spec.template.clone().context("no Pod template")?;
        let labels = template
            .metadata
            .and_then(|it| it.labels)
            .unwrap_or_default();
        ensure!(labels.contains_key(VERSION_LABEL), "{labels:?}");
        let mut spec = template.spec.context("no spec of Pods")?;
        let image = spec.containers.first().and_then(|it| it.image.as_deref());
        let image = image.context("no image")?;
        let version = image.rsplit(':').next().unwrap_or(image).to_owned();
        let (failing, rate) = FAILING;
        let fails = image.contains(failing).then_some(rate);
        let server = Pod::start_failing(&version, labels.clone(), fails).await?;

        self.started += 1;
        let name = format!("{}-{}", set.name_any(), self.started);
        // A Pod with a node does not need the scheduler.
        spec.node_name = Some("node".to_owned());
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
            "spec": spec,
        });
        let pods = self.api::<PodObject>();
        let created = pods
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?;
        let [high, low] = u16::try_from(self.started)?.to_be_bytes();
        Ok(Running {
            name,
            uid: created.uid().context("a Pod without uid")?,
            version,
            labels,
            address: format!("10.1.{high}.{low}"),
            server,
        })
    }

    /// Writes the EndpointSlice of a Service, and publishes its endpoints to the gateway.
    async fn publish_endpoints(&mut self, service: &Service) -> Result<()> {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone());
        let selector = selector.unwrap_or_default();
        let is_selected = |pod: &&Running| {
            let mut selector = selector.iter();
            selector.all(|(key, value)| pod.labels.get(key) == Some(value))
        };
        let (service, namespace) = (service.name_any(), self.namespace.clone());
        let (names, listed, endpoints) = {
            let pods = lock(&self.pods);
            let pods: Vec<&Running> = pods.values().flatten().filter(is_selected).collect();
            let names: Vec<String> = pods.iter().map(|pod| pod.name.clone()).collect();
            let listed = pods.iter().map(|pod| {
                json!({
                    "addresses": [pod.address],
                    "conditions": {"ready": true},
                    "targetRef": {"kind": "Pod", "name": pod.name, "namespace": namespace, "uid": pod.uid},
                })
            });
            let endpoints: Vec<Endpoint> = pods.iter().map(|pod| pod.server.endpoint()).collect();
            (names, listed.collect::<Vec<_>>(), endpoints)
        };
        if self.endpoints.get(&service) == Some(&names) {
            return Ok(());
        }
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": service, "namespace": namespace,
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4",
            "endpoints": listed,
            "ports": [{"port": 8080}],
        });
        let slices = self.api::<EndpointSlice>();
        let force = PatchParams::apply("endpoints").force();
        slices.patch(&service, &force, &Patch::Apply(slice)).await?;
        let name = ServiceName::new(namespace.as_str(), service.as_str());
        self.world.publish_endpoints(name, endpoints)?;
        self.endpoints.insert(service, names);
        Ok(())
    }

    /// Publishes the RouteTables and MirrorPolicies to the gateway if one has changed.
    async fn publish_routes(&mut self) -> Result<()> {
        let tables = listed(&self.gloo::<RouteTable>()).await?;
        let mirrors = listed(&self.gloo::<MirrorPolicy>()).await?;
        // Changes of the status do not raise the generation.
        let generations = |objects: &[DynamicObject]| {
            let objects = objects.iter();
            let objects = objects.map(|it| (it.name_any(), it.metadata.generation.unwrap_or(0)));
            objects.collect::<Vec<_>>()
        };
        let published = (generations(&tables), generations(&mirrors));
        if published == self.published {
            return Ok(());
        }
        let tables = tables
            .into_iter()
            .map(|it| Ok(RouteTableDoc::from_value(serde_json::to_value(it)?)?));
        let mirrors = mirrors
            .into_iter()
            .map(|it| Ok(MirrorPolicyDoc::from_value(serde_json::to_value(it)?)?));
        let served = self.world.publish_routes(translate(&Objects {
            tables: &tables.collect::<Result<Vec<_>>>()?,
            mirror_policies: &mirrors.collect::<Result<Vec<_>>>()?,
            // Retries would hide failed requests.
            retries: DefaultRetries::Off,
            ..Objects::default()
        }))?;
        self.published.clone_from(&published);
        if self.reports {
            let (tables, _) = published;
            let verdict = accept(self.gloo::<RouteTable>(), tables, served);
            self.pending.spawn(verdict);
        }
        Ok(())
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn gloo<K: Resource>(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(K::GROUP, K::VERSION, K::KIND);
        let resource = ApiResource::from_gvk(&kind);
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }
}

fn lock(pods: &Pods) -> MutexGuard<'_, BTreeMap<String, Vec<Running>>> {
    pods.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists objects. A request that takes long is sent again: an API server that starts may hold a list or a watch of custom
/// resources for seconds, and answer a later list at once. Tests would measure this stand-in instead of the plugin.
async fn listed(api: &Api<DynamicObject>) -> kube::Result<Vec<DynamicObject>> {
    loop {
        let everything = ListParams::default();
        if let Ok(listed) = timeout(HELD, api.list(&everything)).await {
            return Ok(listed?.items);
        }
    }
}

/// Returns whether a request failed because the API server is not reachable.
fn is_away(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(_) | kube::Error::HyperError(_))
}

/// Writes the status of tables, like Gloo, once the gateway serves them.
async fn accept(
    api: Api<DynamicObject>,
    tables: Vec<(String, i64)>,
    served: oneshot::Receiver<()>,
) -> Result<()> {
    if served.await.is_err() {
        // The next publication returns the error.
        return Ok(());
    }
    for (name, generation) in tables {
        let state = json!({"approval": "ACCEPTED", "observedGeneration": generation});
        let patch = Patch::Merge(json!({"status": {"common": {"State": state}}}));
        let params = PatchParams::default();
        while let Err(error) = api.patch_status(&name, &params, &patch).await {
            if !is_away(&error) {
                return Err(error.into());
            }
            sleep(AGAIN).await;
        }
    }
    Ok(())
}

fn changes<K>(api: Api<K>) -> BoxStream<'static, bool>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static,
{
    restarting(watcher(api, watcher::Config::default()))
}

fn gloo_changes(api: Api<DynamicObject>) -> BoxStream<'static, bool> {
    restarting(watcher(api, watcher::Config::default()))
}

/// Continues a watch after an error. Yields whether an event is a change, and not an error.
fn restarting<T: Send + 'static>(
    watch: impl Stream<Item = watcher::Result<watcher::Event<T>>> + Send + 'static,
) -> BoxStream<'static, bool> {
    watch.backoff(Steady).map(|event| event.is_ok()).boxed()
}

/// A constant backoff. With growing pauses, a test that restarts the API server would measure this stand-in instead of the
/// plugin.
struct Steady;

impl Iterator for Steady {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(AGAIN)
    }
}

impl Backoff for Steady {
    fn reset(&mut self) {}
}
