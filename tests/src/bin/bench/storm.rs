//! A storm: all Rollouts get another weight at once, with the limit of requests and without it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::time::sleep;

use crate::measure::{Bench, Report, SETTLE, median, millis, percentile};
use crate::world::State;

/// The limits that are compared.
const LIMITS: [(&str, &[(&str, &str)]); 2] =
    [("none", &[]), ("--qps 50", &[("GLOO_PLUGIN_QPS", "50")])];
/// How often another client reads meanwhile.
const READS: Duration = Duration::from_millis(50);

struct Storm {
    weights: Vec<Duration>,
    took: Duration,
    requests: usize,
    /// Answers with status 429.
    refused: usize,
    /// Reads of another client.
    others: Vec<Duration>,
}

impl Bench {
    pub(crate) async fn storm(&mut self, plugins: &[PathBuf]) -> Result<()> {
        let everything: Vec<usize> = (0..self.world.rollouts()).collect();
        for (name, limits) in LIMITS {
            let mut all = Vec::new();
            for binary in plugins {
                all.push(self.storm_with(binary, limits, &everything).await?);
            }
            let mut report = Report::new(&format!(
                "a storm: {} weights at once, limit of requests: {name}",
                everything.len()
            ));
            report.row("s until all are answered", &all, |it| {
                format!("{:.1}", it.took.as_secs_f64())
            });
            report.row("changed SetWeight: median ms", &all, |it| {
                millis(median(&it.weights))
            });
            report.row("changed SetWeight: p99 ms", &all, |it| {
                millis(percentile(&it.weights, 99))
            });
            report.row("requests", &all, |it| it.requests.to_string());
            report.row("answers 429", &all, |it| it.refused.to_string());
            report.row("GET of another client: median ms", &all, |it| {
                millis(median(&it.others))
            });
            report.row("GET of another client: p99 ms", &all, |it| {
                millis(percentile(&it.others, 99))
            });
            report.print();
        }
        Ok(())
    }

    async fn storm_with(
        &mut self,
        binary: &Path,
        limits: &[(&str, &str)],
        everything: &[usize],
    ) -> Result<Storm> {
        self.world.set_states(everything, State::Updating).await?;
        let plugin = self.start_with(binary, limits).await?;
        sleep(SETTLE).await;
        // The first weight adds the canary.
        self.each(everything, async |it| plugin.change(it, 25).await)
            .await?;
        sleep(SETTLE).await;
        self.proxy.take_requests();
        let refused = self.proxy.refused();
        let begin = Instant::now();
        let storm = self.each(everything, async |it| plugin.change(it, 50).await);
        let (weights, others) = {
            let mut others = Vec::new();
            let read = async {
                loop {
                    let begin = Instant::now();
                    self.world.table_size(0).await?;
                    others.push(begin.elapsed());
                    sleep(READS).await;
                }
            };
            tokio::select! {
                weights = storm => (weights?, others),
                never = read => return never,
            }
        };
        let took = begin.elapsed();
        let seen = self.proxy.take_requests();
        let refused = self.proxy.refused() - refused;
        self.each(everything, async |it| plugin.set_weight(it, 0).await)
            .await?;
        self.world.set_states(everything, State::Resting).await?;
        plugin.quit().await?;
        Ok(Storm {
            weights,
            took,
            requests: seen.len(),
            refused,
            others,
        })
    }
}
