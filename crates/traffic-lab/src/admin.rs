//! A client of Envoy's admin interface, which shows the applied and the rejected configuration.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::LabError;

#[derive(Debug)]
pub(crate) struct Admin {
    address: SocketAddr,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Admin {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    /// Returns the address of the only listener.
    pub(crate) async fn listener(&self) -> Result<Option<SocketAddr>, LabError> {
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
    pub(crate) async fn route_version(&self) -> Result<Option<String>, LabError> {
        let dump = self
            .json("/config_dump?resource=dynamic_route_configs")
            .await?;
        let version = dump.pointer("/configs/0/version_info");
        Ok(version.and_then(Value::as_str).map(str::to_owned))
    }

    /// Returns the sorted ports of the endpoints of each cluster.
    pub(crate) async fn endpoints(&self) -> Result<BTreeMap<String, Vec<u16>>, LabError> {
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
    pub(crate) async fn refused(&self) -> Result<u64, LabError> {
        let text = self.get("/stats?filter=update_(rejected|failure)$").await?;
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
