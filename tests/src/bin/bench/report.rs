//! Tables for a person to read: a row for each figure, a column for each plugin.

#![expect(clippy::print_stdout, reason = "a person reads it")]

use std::path::PathBuf;
use std::time::Duration;

const NAME_WIDTH: usize = 44;
const COLUMN_WIDTH: usize = 12;

/// One table.
pub(crate) struct Report(String);

impl Report {
    pub(crate) fn new(title: &str) -> Self {
        Self(format!("\n{title}\n"))
    }

    /// A row with one figure of each plugin.
    pub(crate) fn row<T>(&mut self, name: &str, plugins: &[T], figure: impl Fn(&T) -> String) {
        self.0 += &format!("  {name:<NAME_WIDTH$}");
        for plugin in plugins {
            self.0 += &format!("{:>COLUMN_WIDTH$}", figure(plugin));
        }
        self.0.push('\n');
    }

    pub(crate) fn print(self) {
        print!("{}", self.0);
    }
}

/// Says what is compared.
pub(crate) fn title(plugins: &[PathBuf], delay: Duration) {
    for (index, plugin) in plugins.iter().enumerate() {
        println!("column {}: {}", index + 1, plugin.display());
    }
    if !delay.is_zero() {
        println!("every request is delayed by {} ms", delay.as_millis());
    }
}

/// In seconds.
pub(crate) fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort();
    let index = times.len().saturating_sub(1) * percent / 100;
    times.get(index).copied().unwrap_or_default().as_secs_f64()
}

/// Of seconds.
pub(crate) fn millis(seconds: f64) -> String {
    format!("{:.2}", seconds * 1000.0)
}

pub(crate) fn mean(sum: usize, count: usize) -> String {
    format!("{:.2}", sum as f64 / count as f64)
}
