//! Problems, and how they are printed.

use serde::Serialize;

use crate::input::{Spot, Unreadable};
use crate::output::{BOLD, GREEN, RED, YELLOW, styled};

/// The result of the checks.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) rollouts: usize,
    pub(super) route_tables: usize,
    pub(super) problems: Vec<Problem>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Problem {
    #[serde(flatten)]
    pub(super) spot: Spot,
    pub(super) severity: Severity,
    pub(super) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    Error,
    Warning,
}

impl From<Unreadable> for Problem {
    fn from(Unreadable { spot, reason }: Unreadable) -> Self {
        Self::error(spot, reason)
    }
}

impl Problem {
    pub(super) fn error(spot: Spot, message: String) -> Self {
        Self {
            spot,
            severity: Severity::Error,
            message,
        }
    }

    pub(super) fn warning(spot: Spot, message: String) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(spot, message)
        }
    }
}

pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    for problem in &report.problems {
        let severity = match problem.severity {
            Severity::Error => styled(RED, "error"),
            Severity::Warning => styled(YELLOW, "warning"),
        };
        let spot = styled(BOLD, &problem.spot.to_string());
        text += &format!(
            "{spot}: {severity}: {}\n",
            rollouts_rpc::escaped(&problem.message)
        );
    }
    let count = |severity| {
        let problems = report.problems.iter();
        problems.filter(|it| it.severity == severity).count()
    };
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let checked = format!(
        "Rollouts: {}, RouteTables: {}, errors: {errors}, warnings: {warnings}",
        report.rollouts, report.route_tables
    );
    let style = if errors == 0 { GREEN } else { RED };
    text + &styled(style, &checked) + "\n"
}

/// Formats problems as workflow commands of GitHub Actions.
pub(super) fn github(report: &Report) -> String {
    let mut text = String::new();
    for Problem {
        spot,
        severity,
        message,
    } in &report.problems
    {
        let kind = match severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        text += &format!("::{kind} file={}", property(&spot.file));
        if let (Some(line), Some(column)) = (spot.line, spot.column) {
            text += &format!(",line={line},col={column}");
        }
        text += &format!("::{}\n", escaped(message));
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

fn property(text: &str) -> String {
    escaped(text).replace(':', "%3A").replace(',', "%2C")
}
