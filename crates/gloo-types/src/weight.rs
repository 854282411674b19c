//! How Gloo reads the weights of one route.

use crate::destination::DestinationReference;

/// The share of traffic, in percent, that each destination of a route gets.
///
/// A set weight is taken as it is. Destinations without one, or with 0 (proto3 cannot tell them apart), share what is
/// left of 100 equally, rounded down, and get at least 1 each (Gloo API reference, `DestinationReference.weight`).
/// The sum is 100 for a table that Gloo calls valid and whose remainder divides evenly.
pub fn effective_weights(destinations: &[DestinationReference]) -> Vec<u32> {
    let unset = destinations
        .iter()
        .filter(|destination| destination.set_weight().is_none())
        .count();
    let set: u64 = destinations
        .iter()
        .filter_map(|destination| destination.set_weight().map(u64::from))
        .sum();
    let remainder = u32::try_from(100_u64.saturating_sub(set)).unwrap_or(0);
    let share = u32::try_from(unset)
        .ok()
        .and_then(|unset| remainder.checked_div(unset))
        .unwrap_or(0);
    destinations
        .iter()
        .map(|destination| destination.set_weight().unwrap_or(share.max(1)))
        .collect()
}
