//! Our informers and kube-runtime's reflectors watch the same objects while the API server is restarted and etcd is compacted.
//! In the end both must have the objects of the API server.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::{Cluster, Release, eventually};
use futures::{StreamExt as _, future::join_all};
use gloo_types::{Resource, RouteTable};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::core::GroupVersionKind;
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client, ResourceExt as _};
use libtest_mimic::{Arguments, Trial};
use rollout_types::Rollout;
use route_store::{
    Informer, Keep, Kept as _, KubeRouteStore, PluginBlock, RolloutKeeper, TableKeeper,
    WholeDocuments,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;

const NAMESPACES: [&str; 2] = ["informers-a", "informers-b"];
const NAMES: u64 = 15;
/// Restarts of the API server.
const ROUNDS: u64 = 4;
/// Changes between two restarts.
const CHANGES: u64 = 60;
const TIMEOUT: Duration = Duration::from_secs(3);

/// `namespace/name` and version of each object.
type Objects = BTreeMap<String, String>;

/// A kind whose objects the test changes and lists.
struct Kind {
    client: Client,
    resource: ApiResource,
    object: fn(u64) -> Value,
}

impl Kind {
    fn new<R: Resource>(client: &Client, object: fn(u64) -> Value) -> Self {
        Self {
            client: client.clone(),
            resource: resource::<R>(),
            object,
        }
    }

    fn all_namespaces(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &self.resource)
    }

    /// Creates, changes or deletes an object.
    async fn change(&self, random: u64) -> Result<()> {
        let namespace = if random.is_multiple_of(2) {
            NAMESPACES[0]
        } else {
            NAMESPACES[1]
        };
        let name = format!("o{}", random / 2 % NAMES);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &self.resource);
        let exists = api.get_opt(&name).await?.is_some();
        if !exists {
            let mut object: DynamicObject = serde_json::from_value((self.object)(random))?;
            object.metadata.name = Some(name);
            api.create(&PostParams::default(), &object).await?;
        } else if (random / 64).is_multiple_of(3) {
            api.delete(&name, &DeleteParams::default()).await?;
        } else {
            let labels = json!({"metadata": {"labels": {"change": random.to_string()}}});
            let patch = Patch::Merge(labels);
            api.patch(&name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    async fn listed(&self) -> Result<Objects> {
        let objects = self.all_namespaces().list(&ListParams::default()).await?;
        Ok(objects.iter().map(key_and_version).collect())
    }
}

fn key_and_version(object: &DynamicObject) -> (String, String) {
    let namespace = object.namespace().unwrap_or_default();
    let version = object.resource_version().unwrap_or_default();
    (format!("{namespace}/{}", object.name_any()), version)
}

fn resource<R: Resource>() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk(R::GROUP, R::VERSION, R::KIND),
        R::PLURAL,
    )
}

fn table(number: u64) -> Value {
    json!({
        "apiVersion": "networking.gloo.solo.io/v2", "kind": "RouteTable", "metadata": {},
        "spec": {"hosts": [format!("h{number}.example.com")], "http": [{"name": "r", "forwardTo": {
            "destinations": [{"ref": {"name": "web"}, "port": {"number": 80}}],
        }}]},
    })
}

fn rollout(number: u64) -> Value {
    json!({
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": {},
        "spec": {
            "replicas": number % 9, "selector": {"matchLabels": {"app": "a"}}, "strategy": {"canary": {}},
            "template": {"metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{"name": "a", "image": "registry.example.com/a:1"}]}},
        },
    })
}

/// Returns the objects of an informer.
fn of_informer<K: Keep>(informer: &Informer<K>) -> Objects {
    let objects = informer.all();
    let versions = objects
        .iter()
        .map(|it| (it.key().to_string(), it.version().to_owned()));
    versions.collect()
}

/// Starts a reflector of kube-runtime for a kind.
fn reflect<R: Resource>(
    client: &Client,
    tasks: &mut JoinSet<()>,
) -> reflector::Store<DynamicObject> {
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource::<R>());
    let writer = reflector::store::Writer::new(resource::<R>());
    let store = writer.as_reader();
    let events = watcher(api, watcher::Config::default()).default_backoff();
    let reflected = reflector(writer, events);
    tasks.spawn(async move { reflected.for_each(async |_| {}).await });
    store
}

/// Returns the objects of a reflector.
fn of_reflector(store: &reflector::Store<DynamicObject>) -> Objects {
    store
        .state()
        .iter()
        .map(|object| key_and_version(object))
        .collect()
}

/// Compacts etcd: discards all versions before `revision`.
async fn compact(cluster: &Cluster, revision: &str) -> Result<()> {
    let body = json!({"revision": revision, "physical": true}).to_string();
    let mut etcd = TcpStream::connect(("127.0.0.1", cluster.etcd())).await?;
    let request = format!(
        "POST /v3/kv/compaction HTTP/1.1\r\nHost: etcd\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    etcd.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    etcd.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Ok(())
}

/// D-11
async fn informers_and_reflectors_have_equal_objects_after_restarts(
    cluster: &mut Cluster,
) -> Result<()> {
    for namespace in NAMESPACES {
        cluster.create_namespace(namespace).await?;
    }
    let client = cluster.client().clone();
    let kinds = [
        Kind::new::<RouteTable>(&client, table),
        Kind::new::<Rollout>(&client, rollout),
    ];
    let store = Arc::new(KubeRouteStore::with_client(client.clone(), TIMEOUT));
    // Informers with the scopes and the content of the router and of the generator.
    let tables = Informer::new(Arc::clone(&store), TableKeeper::new(|_| Ok(Vec::new())));
    tables.watch_all();
    let rollouts = RolloutKeeper::new(Box::new(|_| PluginBlock::Absent));
    let rollouts = Informer::new(Arc::clone(&store), rollouts);
    rollouts.watch_all();
    let documents = Informer::new(store, WholeDocuments::<RouteTable>::default());
    documents.watch_only(&NAMESPACES.map(str::to_owned).into());
    let mut tasks = JoinSet::new();
    let reflectors = [
        reflect::<RouteTable>(&client, &mut tasks),
        reflect::<Rollout>(&client, &mut tasks),
    ];

    let mut random = 7_u64;
    for round in 0..ROUNDS {
        for _ in 0..CHANGES {
            // Knuth's linear congruential generator.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let changes = kinds.iter().map(|kind| kind.change(random >> 33));
            for change in join_all(changes).await {
                change.with_context(|| format!("round {round}"))?;
            }
        }
        let listed = kinds[0]
            .all_namespaces()
            .list(&ListParams::default())
            .await?;
        let version = listed
            .metadata
            .resource_version
            .context("a list without version")?;
        // The first compaction happens while all watches are open, the others while the API server is down.
        if round == 0 {
            compact(cluster, &version).await?;
        } else {
            cluster.stop_api_server();
            compact(cluster, &version).await?;
            sleep(Duration::from_secs(1)).await;
            cluster.start_api_server().await?;
        }
    }
    ensure!(
        tables.status().scopes.iter().any(|it| it.restarts > 0),
        "no watch was restarted"
    );
    eventually("all have the objects of the API server", async || {
        let (listed_tables, listed_rollouts) = (kinds[0].listed().await?, kinds[1].listed().await?);
        ensure!(
            !listed_tables.is_empty() && !listed_rollouts.is_empty(),
            "no object is left"
        );
        ensure!(
            of_informer(&tables) == listed_tables,
            "tables: {:?}",
            of_informer(&tables)
        );
        ensure!(
            of_informer(&documents) == listed_tables,
            "documents: {:?}",
            of_informer(&documents)
        );
        ensure!(
            of_informer(&rollouts) == listed_rollouts,
            "rollouts: {:?}",
            of_informer(&rollouts)
        );
        let [tables, rollouts] = &reflectors;
        ensure!(
            of_reflector(tables) == listed_tables,
            "reflected: {:?}",
            of_reflector(tables)
        );
        ensure!(
            of_reflector(rollouts) == listed_rollouts,
            "reflected: {:?}",
            of_reflector(rollouts)
        );
        Ok(())
    })
    .await?;
    Ok(())
}

fn main() -> ExitCode {
    let name = "informers_and_reflectors_have_equal_objects_after_restarts";
    let trial = Trial::test(name, || {
        let run = async {
            let mut cluster = Cluster::start_without_controller(Release::V1_9).await?;
            let outcome =
                informers_and_reflectors_have_equal_objects_after_restarts(&mut cluster).await;
            let outcome = outcome.map_err(|error| cluster.with_logs(error));
            cluster.stop().await?;
            outcome
        };
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        runtime
            .block_on(run)
            .map_err(|error| format!("{error:#}").into())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}
