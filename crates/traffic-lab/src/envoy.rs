//! Envoy's process, its configuration files and its admin interface.
//!
//! Envoy reads the route configuration, the list of clusters, and one file of endpoints for each cluster. It reads a file
//! again when another one is renamed over it, but not when the file is written in place. It reports a rejected file only in
//! counters, so every wait checks them.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::LabError;

/// How long to wait for a change. It is far longer than a change takes on a busy machine, and only ends a failing test.
const DEADLINE: Duration = Duration::from_secs(90);
const INTERVAL: Duration = Duration::from_millis(3);
/// Number of lines of Envoy's log in an error.
const TAIL_LINES: usize = 15;
/// The name of the listener, its statistics and its route configuration.
const NAME: &str = "gateway";
const V3: &str = "type.googleapis.com/envoy";
/// The limit of Istio's circuit breakers. Envoy's defaults are low.
const NO_LIMIT: u32 = u32::MAX;

/// Returns the path in `$ENVOY_BINARY`.
///
/// # Errors
/// Returns `Err` if there is no such file. The error says how to get an Envoy.
pub fn envoy_binary() -> Result<PathBuf, LabError> {
    let path = env::var_os("ENVOY_BINARY").unwrap_or_default();
    let path = PathBuf::from(path);
    if path.is_file() {
        return Ok(path);
    }
    Err(LabError::NoEnvoy(path.display().to_string()))
}

/// A running Envoy with one listener on loopback. Dropping it kills the process.
#[derive(Debug)]
pub struct Envoy {
    child: Child,
    admin: Admin,
    address: SocketAddr,
    files: Files,
    /// The active routes.
    routes: Value,
}

/// The files that Envoy reads and writes.
#[derive(Debug)]
struct Files {
    directory: TempDir,
    /// Version of the last written file. All files share the counter.
    version: u64,
    /// The clusters, in the order of their files.
    clusters: Vec<String>,
}

impl Envoy {
    /// Starts the program without clusters and routes, and waits until it listens.
    ///
    /// # Errors
    /// Returns `Err` with the end of Envoy's log if it does not start.
    pub async fn start(program: &Path) -> Result<Self, LabError> {
        let directory = TempDir::new().map_err(LabError::io("a directory for Envoy"))?;
        let mut files = Files {
            directory,
            version: 0,
            clusters: Vec::new(),
        };
        files.write_clusters()?;
        let routes = json!({"virtual_hosts": []});
        files.write_routes(&routes)?;
        let bootstrap = files.path("bootstrap.json");
        replace(&bootstrap, &files.bootstrap())?;
        let admin_file = files.path("admin");
        let log = File::create(files.log()).map_err(LabError::io("Envoy's log"))?;
        let mut child = Command::new(program)
            .arg("--config-path")
            .arg(&bootstrap)
            .arg("--admin-address-path")
            .arg(&admin_file)
            // With hot restart, two Envoys on one machine conflict.
            .args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(LabError::io(format!("cannot start {}", program.display())))?;

        let deadline = Instant::now() + DEADLINE;
        let (admin, address) = loop {
            if let Some(status) = child.try_wait().map_err(LabError::io("Envoy"))? {
                return Err(LabError::Ended(format!("{status}\n{}", files.log_tail())));
            }
            if let Some(found) = listening(&admin_file).await {
                break found;
            }
            if Instant::now() > deadline {
                return Err(files.late("the start"));
            }
            sleep(INTERVAL).await;
        };
        let envoy = Self {
            child,
            admin,
            address,
            files,
            routes,
        };
        // Envoy also listens if it rejected the file of routes, so wait for their version.
        envoy.wait_for_routes().await?;
        Ok(envoy)
    }

    /// The address of the listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The id of the process.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Replaces the routes, and waits until they are active.
    ///
    /// # Errors
    /// Returns `Err` with Envoy's log if Envoy rejects them.
    pub async fn set_routes(&mut self, configuration: &Value) -> Result<(), LabError> {
        // With equal content Envoy keeps the old version, so the wait would never end.
        if *configuration != self.routes {
            self.files.write_routes(configuration)?;
            self.wait_for_routes().await?;
            self.routes = configuration.clone();
        }
        Ok(())
    }

    /// Writes the routes in place, which Envoy does not notice: a control for tests of [`Envoy::set_routes`].
    ///
    /// # Errors
    /// Returns `Err` if the file cannot be written.
    pub fn write_routes_in_place(&mut self, configuration: &Value) -> Result<(), LabError> {
        let file = self.files.path("rds.json");
        let content = self.files.routes(configuration);
        fs::write(file, content.to_string()).map_err(LabError::io("rds.json"))
    }

    /// Returns the version of the active routes.
    ///
    /// # Errors
    /// Returns `Err` if the admin interface does not answer.
    pub async fn route_version(&self) -> Result<Option<String>, LabError> {
        self.admin.route_version().await
    }

    /// Sets the endpoints of clusters, adds new clusters, and waits until they are active. Clusters are never removed,
    /// because a gateway has clusters for Services without routes too.
    ///
    /// # Errors
    /// Returns `Err` with Envoy's log if Envoy rejects one.
    pub async fn set_endpoints(
        &mut self,
        clusters: &BTreeMap<String, Vec<SocketAddr>>,
    ) -> Result<(), LabError> {
        let mut is_new = false;
        for (name, endpoints) in clusters {
            is_new |= self.files.write_endpoints(name, endpoints)?;
        }
        if is_new {
            self.files.write_clusters()?;
        }
        let ports = |endpoints: &Vec<SocketAddr>| {
            let mut ports: Vec<u16> = endpoints.iter().map(SocketAddr::port).collect();
            ports.sort_unstable();
            ports
        };
        let clusters = clusters.iter();
        let expected = clusters.map(|(name, endpoints)| (name.clone(), ports(endpoints)));
        self.wait(Change::Endpoints(expected.collect())).await
    }

    async fn wait_for_routes(&self) -> Result<(), LabError> {
        self.wait(Change::Routes(self.files.version.to_string()))
            .await
    }

    async fn wait(&self, change: Change) -> Result<(), LabError> {
        let deadline = Instant::now() + DEADLINE;
        while !self.has(&change).await? {
            if self.admin.refused().await? > 0 {
                return Err(LabError::Refused(self.files.log_tail()));
            }
            if Instant::now() > deadline {
                return Err(self.files.late(change.what()));
            }
            sleep(INTERVAL).await;
        }
        self.wait_for_workers(deadline).await
    }

    /// Waits until the worker has received what the main thread has: on a busy machine, it routes by the old configuration for
    /// some time after the admin interface shows the new one.
    ///
    /// A flush of statistics goes through the worker's queue, in which all earlier changes come first. A query starts a flush, or
    /// is counted as dropped if the last flush has not ended. So if two queries one after the other are not dropped, the flush of
    /// the first one has ended.
    async fn wait_for_workers(&self, deadline: Instant) -> Result<(), LabError> {
        let mut before = self.admin.dropped_flushes().await?;
        let mut not_dropped = 0;
        while not_dropped < 2 {
            if Instant::now() > deadline {
                return Err(self.files.late("the change in the worker"));
            }
            let now = self.admin.dropped_flushes().await?;
            not_dropped = if now == before { not_dropped + 1 } else { 0 };
            before = now;
        }
        Ok(())
    }

    async fn has(&self, change: &Change) -> Result<bool, LabError> {
        match change {
            Change::Routes(version) => {
                Ok(self.admin.route_version().await?.as_ref() == Some(version))
            }
            Change::Endpoints(expected) => {
                let found = self.admin.endpoints().await?;
                let mut expected = expected.iter();
                Ok(expected.all(|(name, ports)| found.get(name) == Some(ports)))
            }
        }
    }
}

/// A change that Envoy must apply.
enum Change {
    /// Routes with this version.
    Routes(String),
    /// Endpoints with these ports, by cluster.
    Endpoints(BTreeMap<String, Vec<u16>>),
}

impl Change {
    fn what(&self) -> &'static str {
        match self {
            Self::Routes(_) => "the change of routes",
            Self::Endpoints(_) => "the change of endpoints",
        }
    }
}

/// Returns the admin interface and the address of the listener; `None` before both exist.
async fn listening(admin_file: &Path) -> Option<(Admin, SocketAddr)> {
    let admin = Admin::new(fs::read_to_string(admin_file).ok()?.trim().parse().ok()?);
    let address = admin.listener().await.ok()??;
    Some((admin, address))
}

impl Files {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn log(&self) -> PathBuf {
        self.path("envoy.log")
    }

    fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_else(|error| error.to_string());
        let lines: Vec<&str> = text.lines().collect();
        let start = lines.len().saturating_sub(TAIL_LINES);
        lines.get(start..).unwrap_or_default().join("\n")
    }

    fn late(&self, what: &str) -> LabError {
        LabError::Late {
            what: what.to_owned(),
            seconds: DEADLINE.as_secs(),
            log: self.log_tail(),
        }
    }

    /// Returns the `ConfigSource` of a file.
    fn source(&self, name: &str) -> Value {
        json!({"resource_api_version": "V3", "path_config_source": {"path": self.path(name)}})
    }

    fn bootstrap(&self) -> Value {
        let loopback = json!({"socket_address": {"address": "127.0.0.1", "port_value": 0}});
        let router = format!("{V3}.extensions.filters.http.router.v3.Router");
        let manager = format!(
            "{V3}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
        );
        let connections = json!({
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": manager,
                "stat_prefix": NAME,
                "rds": {"route_config_name": NAME, "config_source": self.source("rds.json")},
                "http_filters": [
                    {"name": "envoy.filters.http.router", "typed_config": {"@type": router}},
                ],
            },
        });
        json!({
            "node": {"id": NAME, "cluster": NAME},
            "admin": {"address": loopback},
            "stats_flush_on_admin": true,
            "dynamic_resources": {"cds_config": self.source("cds.json")},
            "static_resources": {"listeners": [{
                "name": NAME,
                "address": loopback,
                "filter_chains": [{"filters": [connections]}],
            }]},
        })
    }

    /// Returns the content of the file of routes. It adds response headers with the route and the cluster of each answer.
    fn routes(&mut self, configuration: &Value) -> Value {
        let sources = [
            ("x-route", "%ROUTE_NAME%"),
            ("x-cluster", "%UPSTREAM_CLUSTER%"),
            ("x-flags", "%RESPONSE_FLAGS%"),
        ];
        let headers = sources.map(|(key, value)| {
            json!({"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"})
        });
        let mut resource = json!({
            "@type": format!("{V3}.config.route.v3.RouteConfiguration"),
            "name": NAME,
            "response_headers_to_add": headers,
        });
        if let (Some(resource), Some(routes)) =
            (resource.as_object_mut(), configuration.as_object())
        {
            resource.extend(routes.clone());
        }
        self.response(vec![resource])
    }

    fn write_routes(&mut self, configuration: &Value) -> Result<(), LabError> {
        let content = self.routes(configuration);
        replace(&self.path("rds.json"), &content)
    }

    fn write_clusters(&mut self) -> Result<(), LabError> {
        let limits = json!({"thresholds": [{
            "max_connections": NO_LIMIT,
            "max_pending_requests": NO_LIMIT,
            "max_requests": NO_LIMIT,
            "max_retries": NO_LIMIT,
        }]});
        let clusters = self.clusters.iter().enumerate().map(|(index, name)| {
            json!({
                "@type": format!("{V3}.config.cluster.v3.Cluster"),
                "name": name,
                "type": "EDS",
                "connect_timeout": "5s",
                "circuit_breakers": limits,
                "eds_cluster_config": {"eds_config": self.source(&endpoint_file(index))},
            })
        });
        let content = clusters.collect();
        let content = self.response(content);
        replace(&self.path("cds.json"), &content)
    }

    /// Writes the endpoints of a cluster. Returns whether the cluster is new.
    fn write_endpoints(
        &mut self,
        cluster: &str,
        endpoints: &[SocketAddr],
    ) -> Result<bool, LabError> {
        let known = self.clusters.iter().position(|name| name == cluster);
        let index = known.unwrap_or(self.clusters.len());
        if known.is_none() {
            self.clusters.push(cluster.to_owned());
        }
        let endpoints: Vec<Value> = endpoints
            .iter()
            .map(|address| {
                let (address, port) = (address.ip().to_string(), address.port());
                let socket = json!({"socket_address": {"address": address, "port_value": port}});
                json!({"endpoint": {"address": socket}})
            })
            .collect();
        let content = self.response(vec![json!({
            "@type": format!("{V3}.config.endpoint.v3.ClusterLoadAssignment"),
            "cluster_name": cluster,
            "endpoints": [{"lb_endpoints": endpoints}],
        })]);
        replace(&self.path(&endpoint_file(index)), &content)?;
        Ok(known.is_none())
    }

    fn response(&mut self, resources: Vec<Value>) -> Value {
        self.version += 1;
        json!({"version_info": self.version.to_string(), "resources": resources})
    }
}

/// Returns the file name of a cluster's endpoints. Envoy reads one cluster from each such file.
fn endpoint_file(index: usize) -> String {
    format!("eds-{index}.json")
}

/// Replaces a file by a rename, which Envoy notices.
fn replace(path: &Path, content: &Value) -> Result<(), LabError> {
    let write = || -> io::Result<()> {
        let directory = path.parent().unwrap_or_else(|| Path::new("."));
        let mut file = NamedTempFile::new_in(directory)?;
        // At once: each token would be a system call.
        file.write_all(&serde_json::to_vec(content)?)?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(LabError::io(path.display().to_string()))
}

/// A client of Envoy's admin interface, which shows the applied and the rejected configuration.
#[derive(Debug)]
struct Admin {
    address: SocketAddr,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Admin {
    fn new(address: SocketAddr) -> Self {
        Self {
            address,
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    /// Returns the address of the only listener.
    async fn listener(&self) -> Result<Option<SocketAddr>, LabError> {
        let listeners = self.json("/listeners?format=json").await?;
        let socket = listeners.pointer("/listener_statuses/0/local_address/socket_address");
        let Some(socket) = socket else {
            return Ok(None);
        };
        let address = socket.get("address").and_then(Value::as_str);
        let port = socket.get("port_value").and_then(Value::as_u64);
        let (Some(address), Some(port)) = (address, port) else {
            return Err(LabError::Admin(format!("no address in {listeners}")));
        };
        let address = format!("{address}:{port}").parse();
        let address = address.map_err(|error| LabError::Admin(format!("{socket}: {error}")))?;
        Ok(Some(address))
    }

    /// Returns the version of the active route configuration; `None` before the first.
    async fn route_version(&self) -> Result<Option<String>, LabError> {
        let dump = self
            .json("/config_dump?resource=dynamic_route_configs&mask=version_info")
            .await?;
        let version = dump.pointer("/configs/0/version_info");
        Ok(version.and_then(Value::as_str).map(str::to_owned))
    }

    /// Returns the sorted ports of the endpoints of each cluster.
    async fn endpoints(&self) -> Result<BTreeMap<String, Vec<u16>>, LabError> {
        let all = self.json("/clusters?format=json").await?;
        let clusters = list(&all, "cluster_statuses").map(|cluster| {
            let name = cluster.get("name").and_then(Value::as_str);
            let ports = list(cluster, "host_statuses").filter_map(|host| {
                let port = host.pointer("/address/socket_address/port_value")?;
                u16::try_from(port.as_u64()?).ok()
            });
            let mut ports: Vec<u16> = ports.collect();
            ports.sort_unstable();
            (name.unwrap_or_default().to_owned(), ports)
        });
        Ok(clusters.collect())
    }

    /// Returns the number of updates that Envoy rejected or could not read.
    async fn refused(&self) -> Result<u64, LabError> {
        self.sum("update_(rejected|failure)$").await
    }

    /// Returns the number of queries of statistics that started no flush, because another one had not ended.
    async fn dropped_flushes(&self) -> Result<u64, LabError> {
        self.sum("^server.dropped_stat_flushes$").await
    }

    /// Returns the sum of the counters whose names match `filter`.
    async fn sum(&self, filter: &str) -> Result<u64, LabError> {
        let text = self.get(&format!("/stats?filter={filter}")).await?;
        let counters = text.lines().filter_map(|line| line.rsplit_once(": "));
        Ok(counters
            .filter_map(|(_, count)| count.parse::<u64>().ok())
            .sum())
    }

    async fn json(&self, path: &str) -> Result<Value, LabError> {
        let text = self.get(path).await?;
        serde_json::from_str(&text).map_err(|error| LabError::Admin(format!("{path}: {error}")))
    }

    async fn get(&self, path: &str) -> Result<String, LabError> {
        let refuse = |error: &dyn std::fmt::Display| LabError::Admin(format!("{path}: {error}"));
        let uri = format!("http://{}{path}", self.address).parse();
        let uri: http::Uri = uri.map_err(|error| refuse(&error))?;
        let response = self.client.get(uri).await.map_err(|error| refuse(&error))?;
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| refuse(&error))?.to_bytes();
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    let items = value.get(key).and_then(Value::as_array);
    items.into_iter().flatten()
}
