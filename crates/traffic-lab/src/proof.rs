//! Statistics: whether counts fit shares, and how many requests failed.
//!
//! Envoy chooses a destination for each request independently, so the count of a destination with share `p` in `n` requests
//! has the standard deviation `sqrt(n p (1 - p))`. With a correct share, a count is more than 5 standard deviations off once
//! in 1.7 million counts.
//!
//! Example: 10,000 requests and a share of 10 % give 1,000 expected requests with a standard deviation of 30, so counts from
//! 850 to 1,150 pass.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::Sent;

/// Maximum deviation of a count, in standard deviations.
pub const BOUND: f64 = 5.0;

/// Returns the deviation of `count` of `n` from the share `percent`, in standard deviations. For a share of 0 or 100, any
/// deviation is infinite.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub fn sigma(count: usize, n: usize, percent: f64) -> f64 {
    let (n, p) = (n as f64, percent / 100.0);
    let off = count as f64 - n * p;
    let deviation = (n * p * (1.0 - p)).sqrt();
    if off == 0.0 {
        return 0.0;
    }
    off / deviation
}

/// Counts of results: successes by version, failures by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Successes by the version of the Pod.
    pub versions: BTreeMap<String, usize>,
    /// Failures by kind.
    pub failures: BTreeMap<String, usize>,
}

impl Tally {
    /// Counts the results of requests.
    pub fn of<'a>(sent: impl IntoIterator<Item = &'a Sent>) -> Self {
        let mut tally = Self::default();
        for it in sent {
            let counter = match it.answer.failure() {
                Some(failure) => tally.failures.entry(failure),
                None => tally.versions.entry(it.answer.version.clone()),
            };
            *counter.or_default() += 1;
        }
        tally
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.versions.values().sum::<usize>() + self.failed()
    }

    /// Returns the number of failed requests.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.failures.values().sum()
    }

    /// Returns the number of successes of a version.
    #[must_use]
    pub fn version(&self, version: &str) -> usize {
        self.versions.get(version).copied().unwrap_or_default()
    }

    /// Compares the counts of versions with their shares in percent, and returns the deviations in standard deviations.
    ///
    /// # Errors
    /// Returns `Err` if a deviation is above [`BOUND`], a version without a share answered, a request failed, or there is no
    /// request.
    pub fn check(&self, shares: &[(&str, f64)]) -> Result<Vec<f64>, String> {
        let n = self.requests();
        let deviations: Vec<f64> = shares
            .iter()
            .map(|(version, percent)| sigma(self.version(version), n, *percent))
            .collect();
        let known = |version: &String| shares.iter().any(|(known, _)| known == version);
        let fits = deviations.iter().all(|deviation| deviation.abs() <= BOUND);
        if n > 0 && fits && self.failed() == 0 && self.versions.keys().all(known) {
            return Ok(deviations);
        }
        let mut text = format!("{n} requests, failures {:?}:", self.failures);
        for ((version, percent), deviation) in shares.iter().zip(&deviations) {
            let count = self.version(version);
            let _ = write!(
                text,
                " {version} {count} for {percent} % ({deviation:+.1} sigma)"
            );
        }
        let others = self.versions.keys().filter(|version| !known(version));
        for version in others {
            let _ = write!(text, " {version} {} unexpected", self.version(version));
        }
        Err(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(versions: &[(&str, usize)], failed: usize) -> Tally {
        let versions = versions
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count));
        let failures = (failed > 0).then(|| ("503 UH".to_owned(), failed));
        Tally {
            versions: versions.collect(),
            failures: failures.into_iter().collect(),
        }
    }

    #[track_caller]
    fn check(versions: &[(&str, usize)], failed: usize, shares: &[(&str, f64)], expect: &str) {
        let said = match tally(versions, failed).check(shares) {
            Ok(deviations) => deviations.iter().map(|it| format!("{it:+.1} ")).collect(),
            Err(text) => text,
        };
        assert_eq!(said.trim_end(), expect);
    }

    #[test]
    fn sigma_is_the_deviation_in_standard_deviations() {
        assert_eq!(sigma(1000, 10_000, 10.0), 0.0);
        assert_eq!(sigma(1030, 10_000, 10.0), 1.0);
        assert_eq!(sigma(970, 10_000, 10.0), -1.0);
        assert_eq!(sigma(0, 10_000, 0.0), 0.0);
        assert_eq!(sigma(1, 10_000, 0.0), f64::INFINITY);
        assert_eq!(sigma(9_999, 10_000, 100.0), f64::NEG_INFINITY);
    }

    #[test]
    fn counts_within_the_bound_pass() {
        check(
            &[("a", 1030), ("b", 8970)],
            0,
            &[("a", 10.0), ("b", 90.0)],
            "+1.0 -1.0",
        );
        check(&[("a", 7)], 0, &[("a", 100.0), ("b", 0.0)], "+0.0 +0.0");
    }

    #[test]
    fn a_wrong_share_a_failure_an_unexpected_version_and_no_requests_do_not_pass() {
        check(
            &[("a", 1160), ("b", 8840)],
            0,
            &[("a", 10.0), ("b", 90.0)],
            "10000 requests, failures {}: a 1160 for 10 % (+5.3 sigma) b 8840 for 90 % (-5.3 sigma)",
        );
        check(
            &[("a", 9999)],
            1,
            &[("a", 100.0)],
            "10000 requests, failures {\"503 UH\": 1}: a 9999 for 100 % (-inf sigma)",
        );
        check(
            &[("a", 50), ("b", 50), ("c", 1)],
            0,
            &[("a", 50.0), ("b", 50.0)],
            "101 requests, failures {}: a 50 for 50 % (-0.1 sigma) b 50 for 50 % (-0.1 sigma) c 1 unexpected",
        );
        check(&[], 0, &[], "0 requests, failures {}:");
    }
}
