//! A dispensed metric provider, seen from the host: `metricproviders/plugin/rpc/rpc.go`.

use std::collections::BTreeMap;

use super::dispensed;
use crate::call::MetricMethod;
use crate::metric_provider::{AnalysisRun, Measurement, Metric};
use crate::netrpc::client::{CallError, RpcClient};
use crate::wire::{self, MetricArgs};

/// Calls a metric provider, with the arguments a controller would send.
///
/// An error of a provider arrives as a measurement in phase `Error`, and from
/// `GetMetadata` with the key `error`.
pub struct MetricClient {
    rpc: RpcClient,
}

impl MetricClient {
    pub(super) fn new(rpc: RpcClient) -> Self {
        Self { rpc }
    }

    /// `InitPlugin`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn init_plugin(&self) -> Result<(), CallError> {
        dispensed::perform(&self.rpc, MetricMethod::InitPlugin, None::<MetricArgs>).await
    }

    /// `Type`: the provider's name.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn type_name(&self) -> Result<String, CallError> {
        dispensed::call(&self.rpc, MetricMethod::Type, None::<MetricArgs>).await
    }

    /// `Run`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn run(&self, run: &AnalysisRun, metric: &Metric) -> Result<Measurement, CallError> {
        let args = MetricArgs::Run(wire::MetricRunArgs {
            analysis_run: run.into(),
            metric: metric.into(),
        });
        self.measure(MetricMethod::Run, args).await
    }

    /// `Resume`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn resume(
        &self,
        run: &AnalysisRun,
        metric: &Metric,
        measurement: &Measurement,
    ) -> Result<Measurement, CallError> {
        let args = resumed(run, metric, measurement);
        self.measure(MetricMethod::Resume, args).await
    }

    /// `Terminate`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn terminate(
        &self,
        run: &AnalysisRun,
        metric: &Metric,
        measurement: &Measurement,
    ) -> Result<Measurement, CallError> {
        let args = resumed(run, metric, measurement);
        self.measure(MetricMethod::Terminate, args).await
    }

    /// `GarbageCollect`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn garbage_collect(
        &self,
        run: &AnalysisRun,
        metric: &Metric,
        limit: i64,
    ) -> Result<(), CallError> {
        let args = MetricArgs::GarbageCollect(wire::GarbageCollectArgs {
            analysis_run: run.into(),
            metric: metric.into(),
            limit,
        });
        dispensed::perform(&self.rpc, MetricMethod::GarbageCollect, Some(args)).await
    }

    /// `GetMetadata`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn metadata(&self, metric: &Metric) -> Result<BTreeMap<String, String>, CallError> {
        let args = MetricArgs::GetMetadata(wire::GetMetadataArgs {
            metric: metric.into(),
        });
        dispensed::call(&self.rpc, MetricMethod::GetMetadata, Some(args)).await
    }

    async fn measure(
        &self,
        method: MetricMethod,
        args: MetricArgs,
    ) -> Result<Measurement, CallError> {
        let measurement: wire::Measurement = dispensed::call(&self.rpc, method, Some(args)).await?;
        Ok(measurement.into())
    }
}

fn resumed(run: &AnalysisRun, metric: &Metric, measurement: &Measurement) -> MetricArgs {
    MetricArgs::TerminateAndResume(wire::TerminateAndResumeArgs {
        analysis_run: run.into(),
        metric: metric.into(),
        measurement: measurement.into(),
    })
}
