//! A metric provider's methods, and how each reaches the provider.

use std::collections::BTreeMap;

use gob::{Decoder, EncodeError, Encoder};

use super::{Answers, methods};
use crate::error::PluginError;
use crate::from_wire;
use crate::goplugin::handshake::PluginKind;
use crate::metric_provider::{AnalysisRun, Measurement, Metric, MetricProvider};
use crate::netrpc::{Body, Decoded, Fault};
use crate::to_wire;
use crate::wire;

methods! {
    /// `metricproviders/plugin/rpc/rpc.go` in Argo Rollouts.
    MetricMethod {
        InitPlugin,
        Type,
        Run,
        Resume,
        Terminate,
        GarbageCollect,
        GetMetadata,
    }
}

/// Everything a host can ask of a metric provider, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetricCall {
    InitPlugin,
    Type,
    Run(Box<AnalysisRun>, Box<Metric>),
    Resume(Box<AnalysisRun>, Box<Metric>, Box<Measurement>),
    Terminate(Box<AnalysisRun>, Box<Metric>, Box<Measurement>),
    GarbageCollect(Box<AnalysisRun>, Box<Metric>, usize),
    GetMetadata(Box<Metric>),
}

/// What a metric provider answers.
#[derive(Debug)]
pub(crate) enum MetricReply {
    Type(String),
    Done(Result<(), PluginError>),
    Measured(Box<Result<Measurement, PluginError>>),
    Metadata(Result<BTreeMap<String, String>, PluginError>),
}

/// A metric provider to serve.
#[derive(Clone, Copy, Debug, Default)]
pub struct Metrics<P>(pub P);

impl<P: MetricProvider> Answers for Metrics<P> {
    const KIND: PluginKind = PluginKind::MetricProvider;
    type Method = MetricMethod;
    type Call = MetricCall;
    type Reply = MetricReply;

    fn decode(method: MetricMethod, stream: &mut Decoder) -> Decoded<MetricCall> {
        from_wire::decode_metric_call(method, stream)
    }

    fn method(call: &MetricCall) -> MetricMethod {
        match call {
            MetricCall::InitPlugin => MetricMethod::InitPlugin,
            MetricCall::Type => MetricMethod::Type,
            MetricCall::Run(..) => MetricMethod::Run,
            MetricCall::Resume(..) => MetricMethod::Resume,
            MetricCall::Terminate(..) => MetricMethod::Terminate,
            MetricCall::GarbageCollect(..) => MetricMethod::GarbageCollect,
            MetricCall::GetMetadata(_) => MetricMethod::GetMetadata,
        }
    }

    fn object(call: &MetricCall) -> Option<(&str, &str)> {
        match call {
            MetricCall::InitPlugin | MetricCall::Type | MetricCall::GetMetadata(_) => None,
            MetricCall::Run(run, ..)
            | MetricCall::Resume(run, ..)
            | MetricCall::Terminate(run, ..)
            | MetricCall::GarbageCollect(run, ..) => Some((&run.namespace, &run.name)),
        }
    }

    async fn answer(&self, call: MetricCall) -> MetricReply {
        use MetricReply::{Done, Measured, Metadata, Type};
        let provider = &self.0;
        match call {
            MetricCall::InitPlugin => Done(provider.init().await),
            MetricCall::Type => Type(provider.type_name().to_owned()),
            MetricCall::Run(run, metric) => Measured(Box::new(provider.run(&run, &metric).await)),
            MetricCall::Resume(run, metric, measurement) => {
                Measured(Box::new(provider.resume(&run, &metric, *measurement).await))
            }
            MetricCall::Terminate(run, metric, measurement) => Measured(Box::new(
                provider.terminate(&run, &metric, *measurement).await,
            )),
            MetricCall::GarbageCollect(run, metric, limit) => {
                Done(provider.garbage_collect(&run, &metric, limit).await)
            }
            MetricCall::GetMetadata(metric) => Metadata(provider.metadata(&metric).await),
        }
    }

    fn late(method: MetricMethod, late: Fault) -> Result<MetricReply, Fault> {
        Ok(match method {
            MetricMethod::Type => return Err(late),
            MetricMethod::InitPlugin | MetricMethod::GarbageCollect => {
                MetricReply::Done(Err(late.into()))
            }
            MetricMethod::Run | MetricMethod::Resume | MetricMethod::Terminate => {
                MetricReply::Measured(Box::new(Err(late.into())))
            }
            MetricMethod::GetMetadata => MetricReply::Metadata(Err(late.into())),
        })
    }

    fn refusal(reply: &MetricReply) -> Option<&PluginError> {
        match reply {
            MetricReply::Type(_) => None,
            MetricReply::Done(outcome) => outcome.as_ref().err(),
            MetricReply::Measured(outcome) => outcome.as_ref().as_ref().err(),
            MetricReply::Metadata(outcome) => outcome.as_ref().err(),
        }
    }
}

impl Body for MetricReply {
    fn encode(&self, encoder: &mut Encoder, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Type(name) => encoder.encode(name, out),
            Self::Done(outcome) => encoder.encode(&wire::RpcError::from(outcome), out),
            Self::Measured(outcome) => {
                encoder.encode(&wire::Measurement::from(outcome.as_ref()), out)
            }
            Self::Metadata(outcome) => encoder.encode(&to_wire::metadata(outcome), out),
        }
    }
}
