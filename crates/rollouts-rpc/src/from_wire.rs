//! From wire to domain. What gob's dropping of zero values leaves open is decided here, once.

mod metric;
mod step;

pub(crate) use metric::decode_metric_call;
pub(crate) use step::decode_step_call;

use gob::{Decoder, WithRaw};

use crate::call::{RouterCall, RouterMethod, other_argument};
use crate::netrpc::{Decoded, Fault};
use crate::rollout::{RawRollout, Rollout, WeightDestination};
use crate::traffic_router::{DesiredWeight, PodHashes};
use crate::wire::{self, RouterArgs};

/// Reads the argument of a call.
///
/// Not generic, so that it is compiled with the optimisation level of this crate and not with that of the program.
pub(crate) fn decode_router_call(
    method: RouterMethod,
    stream: &mut Decoder,
) -> Decoded<RouterCall> {
    let args = stream.poll_value()?;
    Ok(args.map(|args| router_call(method, args)))
}

/// A call with the argument that belongs to its method. `None` is Go's nil.
fn router_call(method: RouterMethod, args: Option<RouterArgs>) -> Result<RouterCall, Fault> {
    match (method, args) {
        // Both ignore their argument.
        (RouterMethod::InitPlugin, _) => Ok(RouterCall::InitPlugin),
        (RouterMethod::Type, _) => Ok(RouterCall::Type),
        (RouterMethod::UpdateHash, Some(RouterArgs::UpdateHash(args))) => {
            let hashes = PodHashes {
                canary: args.canary_hash,
                stable: args.stable_hash,
            };
            Ok(RouterCall::UpdateHash(
                boxed(args.rollout),
                hashes,
                args.additional_destinations,
            ))
        }
        (RouterMethod::SetWeight, Some(RouterArgs::Weight(args))) => {
            let (rollout, desired, additional) = weight(args);
            Ok(RouterCall::SetWeight(rollout, desired, additional))
        }
        (RouterMethod::VerifyWeight, Some(RouterArgs::Weight(args))) => {
            let (rollout, desired, additional) = weight(args);
            Ok(RouterCall::VerifyWeight(rollout, desired, additional))
        }
        (RouterMethod::SetHeaderRoute, Some(RouterArgs::SetHeader(args))) => Ok(
            RouterCall::SetHeaderRoute(boxed(args.rollout), args.set_header_route),
        ),
        (RouterMethod::SetMirrorRoute, Some(RouterArgs::SetMirror(args))) => Ok(
            RouterCall::SetMirrorRoute(boxed(args.rollout), args.set_mirror_route),
        ),
        (RouterMethod::RemoveManagedRoutes, Some(RouterArgs::RemoveManagedRoutes(args))) => {
            Ok(RouterCall::RemoveManagedRoutes(boxed(args.rollout)))
        }
        (_, args) => {
            let found = args.as_ref().map(RouterArgs::registered_name);
            Err(other_argument(method, found))
        }
    }
}

fn weight(
    args: wire::SetWeightAndVerifyWeightArgs,
) -> (Box<Rollout>, DesiredWeight, Vec<WeightDestination>) {
    let rollout = boxed(args.rollout);
    let desired = DesiredWeight {
        value: args.desired_weight,
        max: rollout.max_traffic_weight(),
    };
    (rollout, desired, args.additional_destinations)
}

/// Bytes of a Rollout that are kept as they arrived: more than the API server stores of one, and few enough to keep of each call in
/// flight.
const MAX_RAW: usize = 2 << 20;

fn boxed(arrived: WithRaw<Rollout>) -> Box<Rollout> {
    let mut rollout = arrived.value.restore_zeros();
    rollout.raw = RawRollout(arrived.raw.filter(|raw| raw.size() <= MAX_RAW));
    Box::new(rollout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::{CanaryStrategy, TrafficRouting};

    #[test]
    fn the_maximum_weight_comes_from_the_rollout() {
        let mut args = wire::SetWeightAndVerifyWeightArgs {
            desired_weight: 7,
            ..Default::default()
        };
        let routing = TrafficRouting {
            max_traffic_weight: Some(1000),
            ..Default::default()
        };
        args.rollout.value.spec.strategy.canary = Some(CanaryStrategy {
            traffic_routing: Some(routing),
            ..Default::default()
        });
        assert_eq!(
            weight(args).1,
            DesiredWeight {
                value: 7,
                max: 1000
            }
        );
        assert_eq!(
            weight(Default::default()).1,
            DesiredWeight { value: 0, max: 100 }
        );
    }

    #[track_caller]
    fn check_refused(method: RouterMethod, args: Option<RouterArgs>, expect: &str) {
        let fault = router_call(method, args).unwrap_err();
        assert!(fault.to_string().ends_with(expect), "{fault}");
    }

    #[test]
    fn an_argument_of_another_method_is_refused_by_name() {
        check_refused(RouterMethod::SetWeight, None, "it is nil");
        let args = RouterArgs::UpdateHash(Default::default());
        check_refused(
            RouterMethod::SetWeight,
            Some(args.clone()),
            "it is UpdateHashArgs",
        );
        check_refused(
            RouterMethod::RemoveManagedRoutes,
            Some(args),
            "it is UpdateHashArgs",
        );
    }

    #[test]
    fn methods_without_arguments_take_anything() {
        let args = RouterArgs::UpdateHash(Default::default());
        assert_eq!(router_call(RouterMethod::Type, None), Ok(RouterCall::Type));
        assert_eq!(
            router_call(RouterMethod::InitPlugin, Some(args)),
            Ok(RouterCall::InitPlugin)
        );
    }
}
