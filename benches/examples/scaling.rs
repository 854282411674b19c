//! Doubles the size of what a caller or a tenant can make large, and prints the time and the allocated bytes with their ratio to the
//! previous size. `cargo xtask bench --scaling` runs it. Linear work doubles; a ratio above 2.5 is marked.
//!
//! Arguments: the first size, the number of sizes, and a part of the names of the cases.

#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use allocation_counter::AllocationInfo;
use benches::{CASES, Case};

/// The largest ratio of linear work, with some noise.
const LINEAR: f64 = 2.5;
/// A case that takes longer than this is not doubled again.
const LONG: Duration = Duration::from_secs(20);
/// Work that takes longer than this is left behind. It goes on until the program ends.
const PATIENCE: Duration = Duration::from_secs(120);
/// Work that allocates more than this at once is not doubled again: the next size may need four times as much.
const LARGE: u64 = 1 << 30;
/// Times below this are too short for a ratio.
const SHORT: f64 = 2.0;

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |default| {
        args.next()
            .map_or(Ok(default), |text| text.parse::<usize>())
    };
    let (Ok(first), Ok(sizes)) = (number(10_000), number(4)) else {
        println!("the first two arguments are numbers");
        return;
    };
    let part = args.next().unwrap_or_default();
    for case in CASES.iter().filter(|case| case.name.contains(&part)) {
        println!("{}:", case.name);
        let mut before: Option<(f64, f64)> = None;
        for doubled in 0..sizes {
            let size = (first << doubled) / case.share;
            let Some((took, counts)) = measure(case, size) else {
                println!("  {size:>7} not finished after {} s", PATIENCE.as_secs());
                break;
            };
            let ms = took.as_secs_f64() * 1000.0;
            let mib = counts.bytes_total as f64 / f64::from(1 << 20);
            let ratio = |now: f64, before: f64| {
                let mark = if now / before > LINEAR {
                    " MORE THAN LINEAR"
                } else {
                    ""
                };
                format!("{:.1} times{mark}", now / before)
            };
            let time = before
                .filter(|(ms, _)| *ms > SHORT)
                .map_or(String::new(), |(b, _)| ratio(ms, b));
            let bytes = before.map_or(String::new(), |(_, b)| ratio(mib, b));
            println!("  {size:>7} {ms:>9.1} ms {time:<30} {mib:>9.1} MiB {bytes}");
            if took > LONG || counts.bytes_max > LARGE {
                println!("          not doubled again");
                break;
            }
            before = Some((ms, mib));
        }
    }
}

/// Does the work once, on a thread that can be left behind.
fn measure(case: &'static Case, size: usize) -> Option<(Duration, AllocationInfo)> {
    let (done, measured) = mpsc::channel();
    std::thread::spawn(move || {
        let work = (case.prepare)(size);
        let started = Instant::now();
        let counts = allocation_counter::measure(work);
        // Sending fails if nobody waits any more.
        let _ = done.send((started.elapsed(), counts));
    });
    measured.recv_timeout(PATIENCE).ok()
}
