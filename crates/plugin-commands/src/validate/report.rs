//! Problems, and how they are printed.

use std::fmt::Display;

use jsonptr::Pointer;
use serde::Serialize;

use crate::input::{Manifest, Spot, Unreadable};
use crate::output::{BOLD, GREEN, RED, YELLOW, line, styled};

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

/// The problems of one object.
#[derive(Debug)]
pub(super) struct Problems<'m> {
    pub(super) manifest: &'m Manifest,
    /// Names the object at the start of each message.
    label: String,
    pub(super) found: Vec<Problem>,
}

impl<'m> Problems<'m> {
    pub(super) fn new(manifest: &'m Manifest, label: String) -> Self {
        let found = Vec::new();
        Self {
            manifest,
            label,
            found,
        }
    }

    pub(super) fn error(&mut self, at: &Pointer, text: impl Display) {
        let message = format!("{}: {text}", self.label);
        self.named(at, message);
    }

    /// Adds an error whose message names the object already.
    pub(super) fn named(&mut self, at: &Pointer, message: String) {
        let spot = self.manifest.spot(at);
        self.found.push(Problem::error(spot, message));
    }

    pub(super) fn warn(&mut self, at: &Pointer, text: impl Display) {
        let message = format!("{}: {text}", self.label);
        let spot = self.manifest.spot(at);
        self.found.push(Problem::warning(spot, message));
    }
}

impl Severity {
    const fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    let (mut errors, mut warnings) = (0, 0);
    for problem in &report.problems {
        let (style, count) = match problem.severity {
            Severity::Error => (RED, &mut errors),
            Severity::Warning => (YELLOW, &mut warnings),
        };
        *count += 1;
        text += &format!("{}: ", styled(BOLD, &problem.spot.to_string()));
        text += &line(style, problem.severity.word(), &problem.message);
    }
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
    for problem in &report.problems {
        let (spot, kind) = (&problem.spot, problem.severity.word());
        text += &format!("::{kind} file={}", property(&spot.file));
        if let (Some(line), Some(column)) = (spot.line, spot.column) {
            text += &format!(",line={line},col={column}");
        }
        text += &format!("::{}\n", escaped(&problem.message));
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
