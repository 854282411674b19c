//! The methods that a controller calls on each kind of plugin: their names, arguments and replies, in domain types.

use std::collections::BTreeMap;

use crate::error::PluginError;
use crate::metric_provider::{AnalysisRun, Measurement, Metric};
use crate::rollout::{ObjectMeta, Rollout, SetHeaderRoute, SetMirrorRoute, WeightDestination};
use crate::step_plugin::{StepContext, StepResult};
use crate::traffic_router::{DesiredWeight, PodHashes, Verification};

/// The methods of one kind of plugin.
pub(crate) trait Method: Copy + Send + Sync + 'static {
    const ALL: &[Self];

    /// The calls of these methods.
    type Call;

    /// Returns the method of a call.
    fn of_call(call: &Self::Call) -> Self;

    /// Returns the method's name in Go, without the service.
    fn name(self) -> &'static str;

    /// Returns the reply with an error of the plugin, or `None` if the method's reply has no field for one.
    fn failed(self, error: PluginError) -> Option<Reply>;

    /// Returns the method that a host calls as `Plugin.<name>`.
    fn of_service_method(service_method: &str) -> Option<Self> {
        let name = service_method.strip_prefix("Plugin.")?;
        let mut all = Self::ALL.iter().copied();
        all.find(|method| method.name() == name)
    }
}

/// A call with its arguments.
pub(crate) trait Call: Send + Sized + 'static {
    type Method: Method<Call = Self>;

    fn method(&self) -> Self::Method {
        Method::of_call(self)
    }

    /// Returns the namespace and name of the Rollout or AnalysisRun in the arguments.
    fn object(&self) -> Option<(&str, &str)>;
}

/// Declares a [`Method`] whose variants have the names of the methods in Go and of the calls, each with the reply that can hold an error.
macro_rules! methods {
    ($(#[$attribute:meta])* $name:ident of $call:ident { $($method:ident $(=> $reply:ident)?),* $(,)? }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($method),* }

        impl Method for $name {
            const ALL: &[Self] = &[$(Self::$method),*];

            type Call = $call;

            fn of_call(call: &$call) -> Self {
                // Braces match a variant of any form.
                match call { $($call::$method { .. } => Self::$method),* }
            }

            fn name(self) -> &'static str {
                match self { $(Self::$method => stringify!($method)),* }
            }

            fn failed(self, error: PluginError) -> Option<Reply> {
                match self { $(Self::$method => methods!(@failed error $($reply)?)),* }
            }
        }
    };
    (@failed $error:ident) => { None };
    (@failed $error:ident $reply:ident) => { Some(Reply::$reply(Err($error))) };
}

methods! {
    /// The methods of a traffic router (`rollout/trafficrouting/plugin/rpc/rpc.go` in Argo Rollouts).
    RouterMethod of RouterCall {
        InitPlugin => Done,
        Type,
        UpdateHash => Done,
        SetWeight => Done,
        VerifyWeight,
        SetHeaderRoute => Done,
        SetMirrorRoute => Done,
        RemoveManagedRoutes => Done,
    }
}

methods! {
    /// The methods of a metric provider (`metricproviders/plugin/rpc/rpc.go` in Argo Rollouts).
    MetricMethod of MetricCall {
        InitPlugin => Done,
        Type,
        Run => Measured,
        Resume => Measured,
        Terminate => Measured,
        GarbageCollect => Done,
        GetMetadata => Metadata,
    }
}

methods! {
    /// The methods of a step plugin (`rollout/steps/plugin/rpc/rpc.go` in Argo Rollouts).
    StepMethod of StepCall {
        InitPlugin => Done,
        Type,
        Run => Stepped,
        Terminate => Stepped,
        Abort => Stepped,
    }
}

/// A reply of a plugin of any kind.
#[derive(Debug)]
pub(crate) enum Reply {
    Type(String),
    Done(Result<(), PluginError>),
    /// Never an error: after an error the controller does not ask again, and promotes without verification.
    Verified(Verification),
    Measured(Result<Box<Measurement>, PluginError>),
    Metadata(Result<BTreeMap<String, String>, PluginError>),
    Stepped(Result<StepResult, PluginError>),
}

impl Reply {
    /// Returns the error that the plugin returned, if any.
    pub(crate) fn error(&self) -> Option<&PluginError> {
        match self {
            Self::Type(_) | Self::Verified(_) => None,
            Self::Done(outcome) => outcome.as_ref().err(),
            Self::Measured(outcome) => outcome.as_ref().err(),
            Self::Metadata(outcome) => outcome.as_ref().err(),
            Self::Stepped(outcome) => outcome.as_ref().err(),
        }
    }
}

/// A call to a traffic router, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouterCall {
    /// [`TrafficRouter::init`](crate::TrafficRouter::init).
    InitPlugin,
    /// [`TrafficRouter::type_name`](crate::TrafficRouter::type_name).
    Type,
    /// [`TrafficRouter::update_hash`](crate::TrafficRouter::update_hash).
    UpdateHash(Box<Rollout>, PodHashes, Vec<WeightDestination>),
    /// [`TrafficRouter::set_weight`](crate::TrafficRouter::set_weight).
    SetWeight(Box<Rollout>, DesiredWeight, Vec<WeightDestination>),
    /// [`TrafficRouter::verify_weight`](crate::TrafficRouter::verify_weight).
    VerifyWeight(Box<Rollout>, DesiredWeight, Vec<WeightDestination>),
    /// [`TrafficRouter::set_header_route`](crate::TrafficRouter::set_header_route).
    SetHeaderRoute(Box<Rollout>, SetHeaderRoute),
    /// [`TrafficRouter::set_mirror_route`](crate::TrafficRouter::set_mirror_route).
    SetMirrorRoute(Box<Rollout>, SetMirrorRoute),
    /// [`TrafficRouter::remove_managed_routes`](crate::TrafficRouter::remove_managed_routes).
    RemoveManagedRoutes(Box<Rollout>),
}

/// A call to a metric provider, with its arguments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MetricCall {
    InitPlugin,
    Type,
    Run(Box<RunArgs>),
    Resume(Box<TerminateAndResumeArgs>),
    Terminate(Box<TerminateAndResumeArgs>),
    GarbageCollect(Box<GarbageCollectArgs>),
    GetMetadata(Box<GetMetadataArgs>),
}

gob::gob_struct! {
    pub(crate) struct RunArgs as "RunArgs" {
        pub(crate) analysis_run: AnalysisRun as "AnalysisRun",
        pub(crate) metric: Metric as "Metric",
    }

    pub(crate) struct TerminateAndResumeArgs as "TerminateAndResumeArgs" {
        pub(crate) analysis_run: AnalysisRun as "AnalysisRun",
        pub(crate) metric: Metric as "Metric",
        pub(crate) measurement: Measurement as "Measurement",
    }

    pub(crate) struct GarbageCollectArgs as "GarbageCollectArgs" {
        pub(crate) analysis_run: AnalysisRun as "AnalysisRun",
        pub(crate) metric: Metric as "Metric",
        pub(crate) limit: i64 as "Limit",
    }

    pub(crate) struct GetMetadataArgs as "GetMetadataArgs" {
        pub(crate) metric: Metric as "Metric",
    }
}

/// A call to a step plugin, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StepCall {
    InitPlugin,
    Type,
    Run(Box<Rollout>, StepContext),
    Terminate(Box<Rollout>, StepContext),
    Abort(Box<Rollout>, StepContext),
}

impl Call for RouterCall {
    type Method = RouterMethod;

    fn object(&self) -> Option<(&str, &str)> {
        match self {
            Self::InitPlugin | Self::Type => None,
            Self::UpdateHash(rollout, ..)
            | Self::SetWeight(rollout, ..)
            | Self::VerifyWeight(rollout, ..)
            | Self::SetHeaderRoute(rollout, ..)
            | Self::SetMirrorRoute(rollout, ..)
            | Self::RemoveManagedRoutes(rollout) => Some(key(&rollout.metadata)),
        }
    }
}

impl Call for MetricCall {
    type Method = MetricMethod;

    fn object(&self) -> Option<(&str, &str)> {
        match self {
            Self::InitPlugin | Self::Type | Self::GetMetadata(_) => None,
            Self::Run(args) => Some(key(&args.analysis_run.metadata)),
            Self::Resume(args) | Self::Terminate(args) => Some(key(&args.analysis_run.metadata)),
            Self::GarbageCollect(args) => Some(key(&args.analysis_run.metadata)),
        }
    }
}

impl Call for StepCall {
    type Method = StepMethod;

    fn object(&self) -> Option<(&str, &str)> {
        match self {
            Self::InitPlugin | Self::Type => None,
            Self::Run(rollout, _) | Self::Terminate(rollout, _) | Self::Abort(rollout, _) => {
                Some(key(&rollout.metadata))
            }
        }
    }
}

fn key(metadata: &ObjectMeta) -> (&str, &str) {
    (&metadata.namespace, &metadata.name)
}
