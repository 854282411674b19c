//! How Gloo reads the weights of one route.

use crate::destination::DestinationReference;

/// The share of traffic, in percent, that each destination of a route gets.
///
/// A set weight is taken as it is. Destinations without one, or with 0 (proto3 cannot tell them apart), share what is
/// left of 100 equally, rounded down, and get at least 1 each (Gloo API reference, `DestinationReference.weight`).
/// The sum is 100 for a table that Gloo calls valid and whose remainder divides evenly.
pub fn effective_weights(destinations: &[DestinationReference]) -> Vec<u32> {
    let weights: Vec<Option<u32>> = destinations.iter().map(|to| to.weight).collect();
    weight_shares(&weights)
}

/// [`effective_weights`] of destinations of which only the weights are known.
pub fn weight_shares(weights: &[Option<u32>]) -> Vec<u32> {
    let set = |weight: &Option<u32>| weight.filter(|weight| *weight > 0);
    let sum: u64 = weights.iter().filter_map(set).map(u64::from).sum();
    let unset = weights
        .iter()
        .filter(|weight| set(weight).is_none())
        .count();
    let remainder = u32::try_from(100_u64.saturating_sub(sum)).unwrap_or(0);
    let share = u32::try_from(unset)
        .ok()
        .and_then(|unset| remainder.checked_div(unset))
        .unwrap_or(0);
    let weights = weights.iter();
    weights
        .map(|weight| set(weight).unwrap_or(share.max(1)))
        .collect()
}
