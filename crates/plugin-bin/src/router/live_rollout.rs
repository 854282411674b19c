//! What a Rollout lost on its way to the plugin: Go's gob drops pointers to zero values, so that a mirror
//! step with `percentage: 0` arrives as one without, which copies all requests.

use std::borrow::Cow;

use rollouts_rpc::{Rollout, rollout::SetMirrorRoute};
use route_store::{RolloutReader, StoreError};
use tracing::warn;

use crate::from_rpc;

/// The Rollout with mirror steps that copy nothing as steps that remove their route.
///
/// The object is looked up only when a mirror step without percentage may be in force. Where it cannot be found, as
/// with RouteTables in another cluster, a step without percentage counts as it came.
pub(super) async fn with_zero_percentages<'r>(
    reader: &impl RolloutReader,
    rollout: &'r Rollout,
) -> Result<Cow<'r, Rollout>, StoreError> {
    let mut steps = rollout.steps().iter();
    let is_open = steps.any(|step| step.set_mirror_route.as_ref().is_some_and(is_undecided));
    if !is_open || from_rpc::is_ending(rollout) {
        return Ok(Cow::Borrowed(rollout));
    }
    let key = from_rpc::key(rollout);
    let zero = match reader.zero_mirrors(&key, rollout.metadata.generation).await {
        // Outside of the controller's own cluster there is no reason to grant it.
        Err(error @ StoreError::Forbidden { .. }) => {
            warn!(rollout = %key, "a mirror step without percentage copies all requests: {error}");
            None
        }
        read => read?,
    };
    let Some(zero) = zero else {
        return Ok(Cow::Borrowed(rollout));
    };
    let mut rollout = rollout.clone();
    for (index, step) in rollout.steps_mut().iter_mut().enumerate() {
        let route = step.set_mirror_route.as_mut();
        if let Some(route) = route.filter(|route| is_undecided(route))
            && zero.contains(index, &route.name)
        {
            route.matches.clear();
        }
    }
    Ok(Cow::Owned(rollout))
}

/// `route` of the current step, as [`with_zero_percentages`] left that step.
pub(super) fn current<'r>(rollout: &'r Rollout, route: &'r SetMirrorRoute) -> &'r SetMirrorRoute {
    let step = rollout.current_step();
    let step = step.and_then(|step| step.set_mirror_route.as_ref());
    let copies_nothing =
        |step: &&SetMirrorRoute| step.name == route.name && step.matches.is_empty();
    step.filter(|step| is_undecided(route) && copies_nothing(step))
        .unwrap_or(route)
}

fn is_undecided(route: &SetMirrorRoute) -> bool {
    route.percentage.is_none() && !route.matches.is_empty()
}
