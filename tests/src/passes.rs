//! What the plugin counts of the controller's passes, over all its processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::Cluster;
use crate::controller::{METRICS_ADDRESS, plugins_below};
use crate::generator::send;

const SERIES: &str = "gloo_router_passes_total{result=\"";

/// The passes of a cluster's plugin, by result. A process that ends takes those since the last look with it.
pub struct Passes {
    directory: PathBuf,
    process: i32,
    of_process: BTreeMap<String, u64>,
    earlier: BTreeMap<String, u64>,
}

impl Passes {
    /// Those from now on.
    ///
    /// # Errors
    /// It has no controller.
    pub fn of(cluster: &Cluster) -> Result<Self> {
        Ok(Self {
            directory: cluster.controller()?.directory().to_owned(),
            process: 0,
            of_process: BTreeMap::new(),
            earlier: BTreeMap::new(),
        })
    }

    /// Asks the plugin. It is no error if there is none, or if it ends meanwhile.
    ///
    /// # Errors
    /// The processes cannot be listed.
    pub async fn look(&mut self) -> Result<()> {
        let Some(process) = plugins_below(&self.directory)?.pop() else {
            return Ok(());
        };
        let Ok(passes) = passes_of(process).await else {
            return Ok(());
        };
        if process != self.process {
            self.process = process;
            self.earlier = self.by_result();
        }
        self.of_process = passes;
        Ok(())
    }

    /// The passes so far, by result.
    pub fn by_result(&self) -> BTreeMap<String, u64> {
        let mut all = self.earlier.clone();
        for (result, count) in &self.of_process {
            *all.entry(result.clone()).or_default() += count;
        }
        all
    }
}

async fn passes_of(process: i32) -> Result<BTreeMap<String, u64>> {
    let variables = fs::read(Path::new("/proc").join(process.to_string()).join("environ"))?;
    let variables = String::from_utf8(variables)?;
    let mut variables = variables.split('\0').filter_map(|it| it.split_once('='));
    let address = variables.find(|(name, _)| *name == METRICS_ADDRESS);
    let (_, address) = address.context("it serves no metrics")?;
    let reply = send(address, "GET /metrics HTTP/1.1", "").await?;
    let series = reply.body.lines().filter_map(|line| {
        let (result, value) = line.strip_prefix(SERIES)?.split_once("\"} ")?;
        Some((result.to_owned(), value.parse().ok()?))
    });
    Ok(series.collect())
}

/// What a plugin that serves its metrics at `address` has counted for a series; 0 if it does not have it yet.
///
/// # Errors
/// It does not answer.
pub async fn count(address: &str, series: &str) -> Result<u64> {
    let reply = send(address, "GET /metrics HTTP/1.1", "").await?;
    let mut lines = reply.body.lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(value.map(str::parse).transpose()?.unwrap_or_default())
}
