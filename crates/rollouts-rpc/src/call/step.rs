//! A step plugin's methods, and how each reaches the plugin.

use gob::{Decoder, EncodeError, Encoder};

use super::{Answers, methods};
use crate::error::PluginError;
use crate::from_wire;
use crate::goplugin::handshake::PluginKind;
use crate::netrpc::{Body, Decoded, Fault};
use crate::rollout::Rollout;
use crate::step_plugin::{StepContext, StepPlugin, StepResult};
use crate::wire;

methods! {
    /// `rollout/steps/plugin/rpc/rpc.go` in Argo Rollouts.
    StepMethod { InitPlugin, Type, Run, Terminate, Abort }
}

/// Everything a host can ask of a step plugin, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StepCall {
    InitPlugin,
    Type,
    Run(Box<Rollout>, StepContext),
    Terminate(Box<Rollout>, StepContext),
    Abort(Box<Rollout>, StepContext),
}

/// What a step plugin answers.
#[derive(Debug)]
pub(crate) enum StepReply {
    Type(String),
    Ready(Result<(), PluginError>),
    Done(Result<StepResult, PluginError>),
}

/// A step plugin to serve.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<P>(pub P);

impl<P: StepPlugin> Answers for Step<P> {
    const KIND: PluginKind = PluginKind::Step;
    type Method = StepMethod;
    type Call = StepCall;
    type Reply = StepReply;

    fn decode(method: StepMethod, stream: &mut Decoder) -> Decoded<StepCall> {
        from_wire::decode_step_call(method, stream)
    }

    fn method(call: &StepCall) -> StepMethod {
        match call {
            StepCall::InitPlugin => StepMethod::InitPlugin,
            StepCall::Type => StepMethod::Type,
            StepCall::Run(..) => StepMethod::Run,
            StepCall::Terminate(..) => StepMethod::Terminate,
            StepCall::Abort(..) => StepMethod::Abort,
        }
    }

    fn object(call: &StepCall) -> Option<(&str, &str)> {
        match call {
            StepCall::InitPlugin | StepCall::Type => None,
            StepCall::Run(rollout, _)
            | StepCall::Terminate(rollout, _)
            | StepCall::Abort(rollout, _) => {
                Some((&rollout.metadata.namespace, &rollout.metadata.name))
            }
        }
    }

    async fn answer(&self, call: StepCall) -> StepReply {
        use StepReply::{Done, Ready, Type};
        let step = &self.0;
        match call {
            StepCall::InitPlugin => Ready(step.init().await),
            StepCall::Type => Type(step.type_name().to_owned()),
            StepCall::Run(rollout, context) => Done(step.run(&rollout, &context).await),
            StepCall::Terminate(rollout, context) => Done(step.terminate(&rollout, &context).await),
            StepCall::Abort(rollout, context) => Done(step.abort(&rollout, &context).await),
        }
    }

    fn late(method: StepMethod, late: Fault) -> Result<StepReply, Fault> {
        match method {
            StepMethod::Type => Err(late),
            StepMethod::InitPlugin => Ok(StepReply::Ready(Err(late.into()))),
            StepMethod::Run | StepMethod::Terminate | StepMethod::Abort => {
                Ok(StepReply::Done(Err(late.into())))
            }
        }
    }

    fn refusal(reply: &StepReply) -> Option<&PluginError> {
        match reply {
            StepReply::Type(_) => None,
            StepReply::Ready(outcome) => outcome.as_ref().err(),
            StepReply::Done(outcome) => outcome.as_ref().err(),
        }
    }
}

impl Body for StepReply {
    fn encode(&self, encoder: &mut Encoder, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Type(name) => encoder.encode(name, out),
            Self::Ready(outcome) => encoder.encode(&wire::RpcError::from(outcome), out),
            Self::Done(outcome) => encoder.encode(&wire::StepResponse::from(outcome), out),
        }
    }
}
