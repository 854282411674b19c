//! The reconciles of the controller: the plugin's metric of its passes, and the controller's log.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};

use crate::Cluster;
use crate::cluster::{METRICS_ADDRESS, plugins_below};
use crate::generator::send;

const SERIES: &str = "gloo_router_passes_total{result=\"";

/// The passes of a cluster's plugin, by result. The passes between the last [`Passes::scrape`] and the end of a process are not
/// counted.
pub struct Passes {
    directory: PathBuf,
    process: i32,
    of_process: BTreeMap<String, u64>,
    earlier: BTreeMap<String, u64>,
    scrapes: Option<PathBuf>,
}

impl Passes {
    /// Counts the passes from now on.
    ///
    /// # Errors
    /// Returns `Err` if the cluster has no controller.
    pub fn of(cluster: &Cluster) -> Result<Self> {
        Ok(Self {
            directory: cluster.controller()?.directory().to_owned(),
            process: 0,
            of_process: BTreeMap::new(),
            earlier: BTreeMap::new(),
            scrapes: None,
        })
    }

    /// Writes each scrape to a file, named by the Unix time in seconds.
    ///
    /// # Errors
    /// Returns `Err` if the directory cannot be created.
    pub fn save_scrapes_to(&mut self, directory: PathBuf) -> Result<()> {
        fs::create_dir_all(&directory)?;
        self.scrapes = Some(directory);
        Ok(())
    }

    /// Reads the plugin's metrics. Does nothing if there is no plugin, or it ends meanwhile.
    ///
    /// # Errors
    /// Returns `Err` if the processes cannot be listed, or an answer cannot be written.
    pub async fn scrape(&mut self) -> Result<()> {
        let Some(process) = plugins_below(&self.directory)?.pop() else {
            return Ok(());
        };
        let Ok(text) = metrics_of(process).await else {
            return Ok(());
        };
        if let Some(directory) = &self.scrapes {
            let second = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
            fs::write(directory.join(format!("{second}.txt")), &text)?;
        }
        if process != self.process {
            self.process = process;
            self.earlier = self.by_result();
        }
        self.of_process = passes_in(&text);
        Ok(())
    }

    /// Returns the passes so far, by result.
    pub fn by_result(&self) -> BTreeMap<String, u64> {
        let mut all = self.earlier.clone();
        for (result, count) in &self.of_process {
            *all.entry(result.clone()).or_default() += count;
        }
        all
    }
}

async fn metrics_of(process: i32) -> Result<String> {
    let variables = fs::read(Path::new("/proc").join(process.to_string()).join("environ"))?;
    let variables = String::from_utf8(variables)?;
    let mut variables = variables.split('\0').filter_map(|it| it.split_once('='));
    let address = variables.find(|(name, _)| *name == METRICS_ADDRESS);
    let (_, address) = address.context("it serves no metrics")?;
    Ok(send(address, "GET /metrics HTTP/1.1", "").await?.body)
}

fn passes_in(metrics: &str) -> BTreeMap<String, u64> {
    let series = metrics.lines().filter_map(|line| {
        let (result, value) = line.strip_prefix(SERIES)?.split_once("\"} ")?;
        Some((result.to_owned(), value.parse().ok()?))
    });
    series.collect()
}

/// Reads a series from the metrics at `address`; 0 if the plugin does not have it yet.
///
/// # Errors
/// Returns `Err` if the plugin does not answer.
pub async fn count(address: &str, series: &str) -> Result<u64> {
    let reply = send(address, "GET /metrics HTTP/1.1", "").await?;
    let mut lines = reply.body.lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(value.map(str::parse).transpose()?.unwrap_or_default())
}

/// The reconciles of one Rollout in the log of a controller. Only new lines are read, because a log grows to hundreds of
/// megabytes in some hours.
#[derive(Debug)]
pub(super) struct Reconciles {
    log: PathBuf,
    /// Texts in a line about the Rollout.
    about: [String; 2],
    /// Number of bytes that were read.
    read: u64,
    last: String,
}

impl Reconciles {
    /// The reconciles of a Rollout in the log of its controller.
    pub(super) fn new(log: &Path, namespace: &str, rollout: &str) -> Self {
        Self {
            log: log.to_owned(),
            about: [
                format!(" namespace={namespace} "),
                format!(" rollout={rollout} "),
            ],
            read: 0,
            last: String::new(),
        }
    }

    /// Returns the line of the last completed reconcile; empty before the first.
    ///
    /// # Errors
    /// Returns `Err` if the log cannot be read.
    pub(super) fn last(&mut self) -> Result<&str> {
        let mut file = File::open(&self.log)?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut new = Vec::new();
        file.read_to_end(&mut new)?;
        // The last line may be incomplete.
        let whole = new.iter().rposition(|byte| *byte == b'\n');
        new.truncate(whole.map_or(0, |end| end + 1));
        self.read += u64::try_from(new.len())?;
        let new = String::from_utf8_lossy(&new);
        let last = new.lines().rfind(|line| {
            line.contains("\"Reconciliation completed\"")
                && self.about.iter().all(|it| line.contains(it))
        });
        if let Some(last) = last {
            last.clone_into(&mut self.last);
        }
        Ok(&self.last)
    }
}
