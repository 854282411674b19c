//! A metric provider's answers.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use gob::Time;

use super::plugin_error;
use crate::error::PluginError;
use crate::metric_provider::{AnalysisPhase, Measurement};
use crate::wire;

impl From<&Result<Measurement, PluginError>> for wire::Measurement {
    /// An error is what the controller itself makes of one: a measurement that begins and ends now
    /// (`MarkMeasurementError` in `utils/metric`).
    fn from(outcome: &Result<Measurement, PluginError>) -> Self {
        match outcome {
            Ok(measurement) => measurement.into(),
            Err(error) => {
                let now = SystemTime::now();
                Self {
                    phase: phase(AnalysisPhase::Error).to_owned(),
                    message: plugin_error(error),
                    started_at: time(now),
                    finished_at: time(now),
                    ..Self::default()
                }
            }
        }
    }
}

impl From<&Measurement> for wire::Measurement {
    fn from(measurement: &Measurement) -> Self {
        Self {
            phase: phase(measurement.phase).to_owned(),
            message: measurement.message.clone(),
            started_at: measurement.started_at.and_then(time),
            finished_at: measurement.finished_at.and_then(time),
            value: measurement.value.clone(),
            metadata: measurement.metadata.clone(),
            resume_at: measurement.resume_at.and_then(time),
        }
    }
}

/// The reply to GetMetadata, in which the key `error` reports a failure.
pub(crate) fn metadata(
    outcome: &Result<BTreeMap<String, String>, PluginError>,
) -> BTreeMap<String, String> {
    match outcome {
        Ok(metadata) => metadata.clone(),
        Err(error) => BTreeMap::from([("error".to_owned(), plugin_error(error))]),
    }
}

pub(super) const fn phase(phase: AnalysisPhase) -> &'static str {
    match phase {
        AnalysisPhase::Pending => "Pending",
        AnalysisPhase::Running => "Running",
        AnalysisPhase::Successful => "Successful",
        AnalysisPhase::Failed => "Failed",
        AnalysisPhase::Error => "Error",
        AnalysisPhase::Inconclusive => "Inconclusive",
    }
}

/// Whole seconds, which is what Kubernetes stores; `None` for a time before 1970.
pub(super) fn time(time: SystemTime) -> Option<Time> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    Some(Time::from_unix(i64::try_from(since.as_secs()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_measurement_that_has_begun_and_ended() {
        let measured = wire::Measurement::from(&Err("no data\nin 5%".into()));
        assert_eq!(measured.phase, "Error");
        assert_eq!(measured.message, "no data in 5\u{ff05}");
        assert!(measured.started_at.is_some() && measured.finished_at.is_some());
    }

    #[test]
    fn metadata_that_failed_says_so_under_the_key_error() {
        let expect = BTreeMap::from([("error".to_owned(), "no".to_owned())]);
        assert_eq!(metadata(&Err("no".into())), expect);
    }
}
