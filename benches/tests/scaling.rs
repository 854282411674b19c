//! Twice the work may allocate at most 2.5 times as much. Comparisons are not counted: `cargo xtask bench --scaling` measures times.

use benches::{CASES, Case};

/// The smaller size. Small enough for quadratic work in a debug build.
const SIZE: usize = 1_000;
/// The cases that allocate more. The list can only become shorter.
const WORSE: &[&str] = &[];

/// Whether twice the size allocates at most 2.5 times as many bytes, and as often.
fn is_linear(case: &Case) -> bool {
    let size = SIZE / case.share.min(SIZE / 4);
    let count = |size| {
        let work = (case.prepare)(size);
        allocation_counter::measure(work)
    };
    let (once, twice) = (count(size), count(2 * size));
    let at_most = |once: u64, twice: u64| twice * 2 <= once * 5;
    at_most(once.bytes_total, twice.bytes_total) && at_most(once.count_total, twice.count_total)
}

#[test]
fn twice_the_work_allocates_twice_as_much() {
    let worse: Vec<&str> = CASES
        .iter()
        .filter(|case| !is_linear(case))
        .map(|case| case.name)
        .collect();
    assert_eq!(worse, WORSE);
}
