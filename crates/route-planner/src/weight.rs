//! Splits a share of traffic between stable, canary and the Services of an experiment.

/// The parts of the managed share, in percent of the route's traffic. Their sum is the managed share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) stable: u32,
    pub(crate) canary: u32,
    /// In the order of the requested weights.
    pub(crate) additional: Vec<u32>,
}

/// Splits `managed` (percent of a route's traffic) by the weights `desired` and `additional`, which are out of `max`.
///
/// The parts of the canary and of each additional Service are rounded half up, and the stable Service gets the rest. A
/// destination with a weight gets at least 1, if `managed` is large enough for that. If the sum of the weights is larger
/// than `max`, which the controller does not prevent for experiments, stable gets nothing and the others get parts in
/// proportion to their weights.
///
/// ```text
/// managed 80, canary 25 of 100                    canary 20, stable 60
/// managed 80, canary 25, experiment 25 of 100     canary 20, experiment 20, stable 40
/// managed 20, canary 1 of 100                     canary 1 (0.2 rounded up), stable 19
/// ```
pub(crate) fn split(managed: u32, desired: u32, max: u32, additional: &[u32]) -> Shares {
    let desired = desired.min(max);
    let wanted: Vec<u64> = std::iter::once(desired)
        .chain(additional.iter().copied())
        .map(u64::from)
        .collect();
    let wanted_sum: u64 = wanted.iter().sum();
    let total = wanted_sum.max(u64::from(max)).max(1);
    let stable_wanted = wanted_sum < total;

    let managed = u64::from(managed);
    let participants =
        wanted.iter().filter(|weight| **weight > 0).count() + usize::from(stable_wanted);
    let least =
        u64::from(u64::try_from(participants).is_ok_and(|participants| participants <= managed));

    let mut parts: Vec<u64> = wanted
        .iter()
        .map(|weight| {
            let rounded = (2 * managed * weight + total) / (2 * total);
            if *weight > 0 { rounded.max(least) } else { 0 }
        })
        .collect();
    let available = managed.saturating_sub(if stable_wanted { least } else { 0 });
    let mut sum: u64 = parts.iter().sum();
    // Rounding up and the minimum of 1 can make the sum too large. Without stable, rounding down can make it too small.
    while let Some(largest) = parts
        .iter_mut()
        .zip(&wanted)
        .filter(|(_, wanted)| **wanted > 0)
        .map(|(part, _)| part)
        .rev()
        .max()
    {
        if sum > available {
            *largest -= 1;
            sum -= 1;
        } else if !stable_wanted && sum < available {
            *largest += 1;
            sum += 1;
        } else {
            break;
        }
    }

    let mut parts = parts
        .into_iter()
        .map(|part| u32::try_from(part).unwrap_or(u32::MAX));
    Shares {
        stable: u32::try_from(managed - sum).unwrap_or(u32::MAX),
        canary: parts.next().unwrap_or(0),
        additional: parts.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(managed: u32, desired: u32, max: u32, additional: &[u32], expect: &[u32]) {
        let shares = split(managed, desired, max, additional);
        let mut parts = vec![shares.stable, shares.canary];
        parts.extend(shares.additional);
        assert_eq!(parts, expect);
        assert_eq!(parts.iter().sum::<u32>(), managed);
    }

    #[test]
    fn canary_is_rounded_half_up_and_stable_gets_the_rest() {
        check(100, 25, 100, &[], &[75, 25]);
        check(80, 25, 100, &[], &[60, 20]);
        check(50, 25, 100, &[], &[37, 13]);
        check(90, 250, 1000, &[], &[67, 23]);
        check(99, 50, 100, &[], &[49, 50]);
    }

    #[test]
    fn at_the_ends_of_the_range_one_gets_all() {
        check(100, 0, 100, &[], &[100, 0]);
        check(100, 100, 100, &[], &[0, 100]);
        check(90, 2000, 1000, &[], &[0, 90]);
    }

    #[test]
    fn between_the_ends_both_get_at_least_one() {
        check(100, 1, 1000, &[], &[99, 1]);
        check(100, 999, 1000, &[], &[1, 99]);
        check(2, 1, 100, &[], &[1, 1]);
        // One percent cannot be shared.
        check(1, 49, 100, &[], &[1, 0]);
        check(1, 50, 100, &[], &[0, 1]);
    }

    #[test]
    fn additional_destinations_are_rounded_like_the_canary() {
        check(90, 250, 1000, &[50, 50], &[57, 23, 5, 5]);
        check(100, 0, 100, &[5, 0, 5], &[90, 0, 5, 0, 5]);
        check(100, 98, 100, &[1, 1], &[0, 98, 1, 1]);
        check(4, 97, 100, &[1, 1], &[1, 1, 1, 1]);
    }

    #[test]
    fn weights_above_max_are_shared_in_proportion() {
        check(100, 100, 100, &[100], &[0, 50, 50]);
        check(99, 50, 100, &[50], &[0, 49, 50]);
        check(100, 1, 3, &[1, 1], &[0, 34, 33, 33]);
        check(1, 0, 3, &[1, 1, 1], &[0, 0, 1, 0, 0]);
    }

    #[test]
    fn largest_numbers_do_not_overflow() {
        check(
            100,
            u32::MAX,
            u32::MAX,
            &[u32::MAX, u32::MAX],
            &[0, 34, 33, 33],
        );
    }
}
