//! The calls and replies of a traffic router (`rollout/trafficrouting/plugin/rpc/rpc.go` in Argo Rollouts).

use gob::{Decoder, WithRaw};
#[cfg(feature = "host")]
use gob::{EncodeError, Encoder};

#[cfg(feature = "host")]
use super::{Outcome, sent};
use super::{RpcError, other_argument, received};
use crate::methods::{RouterCall, RouterMethod};
use crate::netrpc::{Decoded, Fault};
use crate::rollout::{Rollout, SetHeaderRoute, SetMirrorRoute, WeightDestination};
use crate::traffic_router::{DesiredWeight, PodHashes, Verification};

gob::gob_struct! {
    struct UpdateHashArgs as "UpdateHashArgs" {
        rollout: WithRaw<Rollout> as "Rollout",
        canary_hash: String as "CanaryHash",
        stable_hash: String as "StableHash",
        additional_destinations: Vec<WeightDestination> as "AdditionalDestinations",
    }

    struct WeightArgs as "SetWeightAndVerifyWeightArgs" {
        rollout: WithRaw<Rollout> as "Rollout",
        desired_weight: i32 as "DesiredWeight",
        additional_destinations: Vec<WeightDestination> as "AdditionalDestinations",
    }

    struct SetHeaderArgs as "SetHeaderArgs" {
        rollout: WithRaw<Rollout> as "Rollout",
        set_header_route: SetHeaderRoute as "SetHeaderRoute",
    }

    struct SetMirrorArgs as "SetMirrorArgs" {
        rollout: WithRaw<Rollout> as "Rollout",
        set_mirror_route: SetMirrorRoute as "SetMirrorRoute",
    }

    struct RemoveManagedRoutesArgs as "RemoveManagedRoutesArgs" {
        rollout: WithRaw<Rollout> as "Rollout",
    }

    pub(crate) struct VerifyWeightResponse as "VerifyWeightResponse" {
        /// 0 not verified, 1 verified, 2 not implemented (`RpcVerified` in `utils/plugin/types`).
        verified: i32 as "Verified",
        err: RpcError as "Err",
    }
}

gob::gob_interface! {
    /// The argument of every method: a Go `any` under its registered name.
    enum RouterArgument {
        UpdateHash(UpdateHashArgs) as "UpdateHashArgs",
        Weight(WeightArgs) as "SetWeightAndVerifyWeightArgs",
        SetHeader(SetHeaderArgs) as "SetHeaderArgs",
        SetMirror(SetMirrorArgs) as "SetMirrorArgs",
        RemoveManagedRoutes(RemoveManagedRoutesArgs) as "RemoveManagedRoutesArgs",
    }
}

/// Decodes the argument of a call. `None` means that more bytes are needed.
///
/// It is not generic, so it is compiled with the optimisation level of this crate and not with that of the program.
pub(crate) fn decode_call(method: RouterMethod, stream: &mut Decoder) -> Decoded<RouterCall> {
    let args = stream.poll_value()?;
    Ok(args.map(|args| router_call(method, args)))
}

/// Converts the argument of a call; `None` is Go's nil.
fn router_call(method: RouterMethod, args: Option<RouterArgument>) -> Result<RouterCall, Fault> {
    match (method, args) {
        // The Go server ignores the argument of these two methods.
        (RouterMethod::InitPlugin, _) => Ok(RouterCall::InitPlugin),
        (RouterMethod::Type, _) => Ok(RouterCall::Type),
        (RouterMethod::UpdateHash, Some(RouterArgument::UpdateHash(args))) => {
            let hashes = PodHashes {
                canary: args.canary_hash,
                stable: args.stable_hash,
            };
            Ok(RouterCall::UpdateHash(
                received(args.rollout),
                hashes,
                args.additional_destinations,
            ))
        }
        (RouterMethod::SetWeight, Some(RouterArgument::Weight(args))) => {
            let (rollout, desired, additional) = weight(args);
            Ok(RouterCall::SetWeight(rollout, desired, additional))
        }
        (RouterMethod::VerifyWeight, Some(RouterArgument::Weight(args))) => {
            let (rollout, desired, additional) = weight(args);
            Ok(RouterCall::VerifyWeight(rollout, desired, additional))
        }
        (RouterMethod::SetHeaderRoute, Some(RouterArgument::SetHeader(args))) => Ok(
            RouterCall::SetHeaderRoute(received(args.rollout), args.set_header_route),
        ),
        (RouterMethod::SetMirrorRoute, Some(RouterArgument::SetMirror(args))) => Ok(
            RouterCall::SetMirrorRoute(received(args.rollout), args.set_mirror_route),
        ),
        (RouterMethod::RemoveManagedRoutes, Some(RouterArgument::RemoveManagedRoutes(args))) => {
            Ok(RouterCall::RemoveManagedRoutes(received(args.rollout)))
        }
        (_, args) => {
            let found = args.as_ref().map(RouterArgument::registered_name);
            Err(other_argument(method, found))
        }
    }
}

fn weight(args: WeightArgs) -> (Box<Rollout>, DesiredWeight, Vec<WeightDestination>) {
    let rollout = received(args.rollout);
    let desired = DesiredWeight::of(&rollout, args.desired_weight);
    (rollout, desired, args.additional_destinations)
}

impl From<Verification> for VerifyWeightResponse {
    fn from(verification: Verification) -> Self {
        let verified = match verification {
            Verification::NotVerified => 0,
            Verification::Verified => 1,
            Verification::NotImplemented => 2,
        };
        let err = RpcError::default();
        Self { verified, err }
    }
}

/// Encodes the argument of a call.
///
/// # Errors
///
/// Returns `Err` if gob cannot represent the argument.
#[cfg(feature = "host")]
pub(crate) fn encode_call(
    call: RouterCall,
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let args = match call {
        RouterCall::InitPlugin | RouterCall::Type => None,
        RouterCall::UpdateHash(rollout, hashes, additional_destinations) => {
            Some(RouterArgument::UpdateHash(UpdateHashArgs {
                rollout: sent(*rollout),
                canary_hash: hashes.canary,
                stable_hash: hashes.stable,
                additional_destinations,
            }))
        }
        RouterCall::SetWeight(rollout, desired, additional_destinations)
        | RouterCall::VerifyWeight(rollout, desired, additional_destinations) => {
            Some(RouterArgument::Weight(WeightArgs {
                rollout: sent(*rollout),
                desired_weight: desired.value,
                additional_destinations,
            }))
        }
        RouterCall::SetHeaderRoute(rollout, set_header_route) => {
            Some(RouterArgument::SetHeader(SetHeaderArgs {
                rollout: sent(*rollout),
                set_header_route,
            }))
        }
        RouterCall::SetMirrorRoute(rollout, set_mirror_route) => {
            Some(RouterArgument::SetMirror(SetMirrorArgs {
                rollout: sent(*rollout),
                set_mirror_route,
            }))
        }
        RouterCall::RemoveManagedRoutes(rollout) => Some(RouterArgument::RemoveManagedRoutes(
            RemoveManagedRoutesArgs {
                rollout: sent(*rollout),
            },
        )),
    };
    encoder.encode(&args, out)
}

#[cfg(feature = "host")]
impl VerifyWeightResponse {
    /// Converts the reply. A number that no released controller knows counts as not verified.
    pub(crate) fn into_outcome(self) -> Outcome<Verification> {
        self.err.into_outcome()?;
        Ok(match self.verified {
            1 => Verification::Verified,
            2 => Verification::NotImplemented,
            _ => Verification::NotVerified,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::{CanaryStrategy, TrafficRouting};

    #[test]
    fn the_maximum_weight_comes_from_the_rollout() {
        let mut args = WeightArgs {
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
    fn check_refused(method: RouterMethod, args: Option<RouterArgument>, expect: &str) {
        let fault = router_call(method, args).unwrap_err();
        assert!(fault.to_string().ends_with(expect), "{fault}");
    }

    #[test]
    fn an_argument_of_another_method_is_refused_by_name() {
        check_refused(RouterMethod::SetWeight, None, "it is nil");
        let args = RouterArgument::UpdateHash(Default::default());
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
    fn methods_without_arguments_accept_any_argument() {
        let args = RouterArgument::UpdateHash(Default::default());
        assert_eq!(router_call(RouterMethod::Type, None), Ok(RouterCall::Type));
        assert_eq!(
            router_call(RouterMethod::InitPlugin, Some(args)),
            Ok(RouterCall::InitPlugin)
        );
    }
}
