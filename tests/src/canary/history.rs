//! The split of a RouteTable, as text: of one revision, and of all revisions since a watch has started.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use kube::Api;
use kube::api::DynamicObject;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::eventually;

/// The splits of all revisions of a RouteTable, in the format of [`split`].
#[derive(Debug)]
pub struct History {
    splits: Arc<Mutex<Vec<String>>>,
    watch: JoinHandle<()>,
}

impl History {
    /// Returns the splits so far.
    pub fn splits(&self) -> Vec<String> {
        self.splits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits until the watch has delivered exactly these splits, in this order.
    ///
    /// # Errors
    /// Returns `Err` if it has not before the deadline.
    pub async fn equals(&self, expected: &[&str]) -> Result<()> {
        eventually("the watch has delivered the last revision", async || {
            let splits = self.splits();
            ensure!(splits == expected, "{splits:#?}");
            Ok(())
        })
        .await
    }

    pub(super) fn of(tables: Api<DynamicObject>, name: &str) -> Self {
        let splits = Arc::default();
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let watch = tokio::spawn(Self::record(tables, only, Arc::clone(&splits)));
        Self { splits, watch }
    }

    async fn record(
        tables: Api<DynamicObject>,
        only: watcher::Config,
        splits: Arc<Mutex<Vec<String>>>,
    ) {
        let mut revisions = pin!(watcher(tables, only).default_backoff().applied_objects());
        while let Some(revision) = revisions.next().await {
            if let Ok(table) = revision {
                splits
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(split(&table));
            }
        }
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// Describes the destinations of each route: `route: service=weight ...; ...`. A destination without a weight is only its
/// name.
pub fn split(table: &DynamicObject) -> String {
    let routes = table.data["spec"]["http"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let described = routes.iter().filter_map(|route| {
        let destinations = route["forwardTo"]["destinations"].as_array()?;
        let weights: BTreeSet<_> = destinations
            .iter()
            .map(|destination| {
                let name = destination["ref"]["name"].as_str().unwrap_or("?");
                match &destination["weight"] {
                    Value::Null => name.to_owned(),
                    weight => format!("{name}={weight}"),
                }
            })
            .collect();
        let weights = Vec::from_iter(weights).join(" ");
        Some(format!(
            "{}: {weights}",
            route["name"].as_str().unwrap_or("?")
        ))
    });
    described.collect::<Vec<_>>().join("; ")
}
