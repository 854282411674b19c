//! Memory and CPU of this process, under the names that every Prometheus client uses.

use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Linux counts CPU time for user space in hundredths of a second (`USER_HZ`), on every architecture that is built for.
const TICKS: f64 = 100.0;

/// Reads `/proc/self` whenever it is asked; without one there are no series.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        if let Some(bytes) = resident_bytes(&read("/proc/self/status")) {
            let gauge = ConstGauge::new(bytes);
            let help = "Resident memory size in bytes";
            let name = "process_resident_memory";
            let metric =
                encoder.encode_descriptor(name, help, Some(&Unit::Bytes), gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        if let Some(seconds) = cpu_seconds(&read("/proc/self/stat")) {
            let counter = ConstCounter::new(seconds);
            let help = "Total user and system CPU time spent in seconds";
            let name = "process_cpu";
            let metric = encoder.encode_descriptor(
                name,
                help,
                Some(&Unit::Seconds),
                counter.metric_type(),
            )?;
            counter.encode(metric)?;
        }
        Ok(())
    }
}

/// `VmRSS` of `/proc/self/status`, which is in KiB.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// `utime` and `stime` of `/proc/self/stat`: fields 14 and 15. The name of the program, field 2, may contain anything.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let mut time = || times.next()?.parse::<f64>().ok();
    Some((time()? + time()?) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_bytes() {
        let status = "Name:\tplugin\nVmHWM:\t    9000 kB\nVmRSS:\t    8192 kB\nThreads:\t3\n";
        assert_eq!(resident_bytes(status), Some(8192 * 1024));
        assert_eq!(resident_bytes("VmRSS:\tmuch\n"), None);
        assert_eq!(resident_bytes(""), None);
    }

    #[test]
    fn cpu_time_is_that_of_user_and_kernel() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 99 0 0 0 250 50 9 9 20 0 3 0 100 0\n";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("7 (plugin) S 1"), None);
        assert_eq!(cpu_seconds(""), None);
    }
}
