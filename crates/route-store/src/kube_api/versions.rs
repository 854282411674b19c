//! The order of two versions of an object.
//!
//! Kubernetes documents since 1.35 that `metadata.resourceVersion` may be compared as an integer (KEP-5504), and Argo
//! Rollouts compares it so on every release (`utils/resourceversion/compare.go`). An API server that writes something
//! else gives no order.

use std::cmp::Ordering;

/// How `a` relates to `b`; `None` if one of them is not a decimal integer.
pub(crate) fn compare(a: &str, b: &str) -> Option<Ordering> {
    let (a, b) = (digits(a)?, digits(b)?);
    Some(a.len().cmp(&b.len()).then_with(|| a.cmp(b)))
}

/// The digits of a version without leading zeros, so that the longer of two is the greater one.
fn digits(version: &str) -> Option<&str> {
    let is_number = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| version.trim_start_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(a: &str, b: &str, expect: Option<Ordering>) {
        assert_eq!(compare(a, b), expect, "{a} {b}");
        assert_eq!(compare(b, a), expect.map(Ordering::reverse), "{b} {a}");
    }

    #[test]
    fn versions_are_compared_as_integers() {
        check("9", "10", Some(Ordering::Less));
        check("10", "10", Some(Ordering::Equal));
        check("0010", "9", Some(Ordering::Greater));
        check("0", "1", Some(Ordering::Less));
        // Longer than any integer type.
        check(&"9".repeat(50), &"8".repeat(50), Some(Ordering::Greater));
    }

    #[test]
    fn other_versions_have_no_order() {
        for version in ["", "abc", "12a", "-1", "1.5"] {
            check(version, "7", None);
        }
    }
}
