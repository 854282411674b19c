//! The report of the checks, as a table and as JSON.

use std::fmt;

use serde::Serialize;
use serde_json::json;

use crate::Args;

/// The severity of a failed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Level {
    /// The failure breaks a controller, a rollout or a call.
    Must,
    /// A controller survives the failure.
    Should,
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "outcome", content = "detail")]
#[non_exhaustive]
pub enum Outcome {
    /// The plugin follows the rule.
    Passed,
    /// The plugin does not follow the rule; the text is the observation.
    Failed(String),
}

/// One check and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Name of the check, which is stable between releases.
    pub check: String,
    /// The behaviour of a plugin that passes.
    pub rule: String,
    /// Severity of a failure.
    pub level: Level,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// All findings about one plugin.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Path of the plugin.
    pub plugin: String,
    /// The checks, in the order in which they ran.
    pub findings: Vec<Finding>,
    only: Vec<String>,
    /// Whether the table has the checks that the plugin passes.
    verbose: bool,
    /// Whether checks run that were not selected, because a selected check depends on their calls.
    pub(crate) runs_all: bool,
}

/// Whether a text is the number of a repeated check.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('#');
    digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The observation of a check; `Err` is the reason of the failure.
pub(crate) type Seen<T = ()> = Result<T, String>;

impl Report {
    pub(crate) fn new(args: &Args) -> Self {
        Self {
            plugin: args.binary.display().to_string(),
            findings: Vec::new(),
            only: args.only.clone(),
            verbose: args.verbose,
            runs_all: false,
        }
    }

    pub(crate) fn must(&mut self, check: impl Into<String>, rule: impl Into<String>, seen: Seen) {
        self.add(Level::Must, check.into(), rule.into(), seen);
    }

    pub(crate) fn should(&mut self, check: impl Into<String>, rule: impl Into<String>, seen: Seen) {
        self.add(Level::Should, check.into(), rule.into(), seen);
    }

    /// Runs a check if it was selected.
    pub(crate) async fn run(
        &mut self,
        level: Level,
        check: &str,
        rule: impl Into<String>,
        seen: impl Future<Output = Seen>,
    ) {
        if self.runs_all || self.is_selected(check) {
            self.add(level, check.to_owned(), rule.into(), seen.await);
        }
    }

    /// Returns whether a check in one of these sections may have been selected.
    pub(crate) fn wants(&self, sections: &[&str]) -> bool {
        let overlaps =
            |only: &str, section: &str| only.starts_with(section) || section.starts_with(only);
        let is_in = |only: &String| sections.iter().any(|section| overlaps(only, section));
        self.only.is_empty() || self.only.iter().any(is_in)
    }

    /// Returns whether this check was selected.
    pub(crate) fn is_selected(&self, check: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| check.starts_with(only))
    }

    fn add(&mut self, level: Level, check: String, rule: String, seen: Seen) {
        if !self.is_selected(&check) {
            return;
        }
        // A recording has most methods several times.
        let is_repeat = |it: &Finding| {
            it.check == check || it.check.strip_prefix(&check).is_some_and(is_number)
        };
        let check = match self.findings.iter().filter(|it| is_repeat(it)).count() {
            0 => check,
            before => format!("{check}#{}", before + 1),
        };
        let outcome = match seen {
            Ok(()) => Outcome::Passed,
            Err(what) => Outcome::Failed(what),
        };
        self.findings.push(Finding {
            check,
            rule,
            level,
            outcome,
        });
    }

    /// Returns whether the plugin passes all checks of level `must`.
    #[must_use]
    pub fn is_conformant(&self) -> bool {
        let mut failed = self.failed();
        !self.findings.is_empty() && !failed.any(|finding| finding.level == Level::Must)
    }

    /// Returns the checks that the plugin fails.
    pub fn failed(&self) -> impl Iterator<Item = &Finding> {
        let findings = self.findings.iter();
        findings.filter(|finding| finding.outcome != Outcome::Passed)
    }

    /// Returns the report as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let report = json!({
            "plugin": self.plugin,
            "conformant": self.is_conformant(),
            "findings": self.findings,
        });
        format!("{report:#}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.findings.iter();
        let shown = shown.filter(|it| self.verbose || it.outcome != Outcome::Passed);
        let widths = shown.map(|finding| finding.check.len());
        let width = widths.max().unwrap_or_default();
        for finding in &self.findings {
            let Finding {
                check,
                rule,
                level,
                outcome,
            } = finding;
            let (mark, detail) = match (outcome, level) {
                (Outcome::Passed, _) if !self.verbose => continue,
                (Outcome::Passed, _) => ("ok  ", String::new()),
                (Outcome::Failed(what), Level::Must) => ("FAIL", format!(": {what}")),
                (Outcome::Failed(what), Level::Should) => ("warn", format!(": {what}")),
            };
            writeln!(f, "{mark}  {check:width$}  {rule}{detail}")?;
        }
        let passed = self.findings.len() - self.failed().count();
        let verdict = if self.is_conformant() {
            "conformant"
        } else {
            "not conformant"
        };
        write!(
            f,
            "{}: {passed} of {} checks passed, {verdict}",
            self.plugin,
            self.findings.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn report(findings: &[(Level, Seen)]) -> Report {
        let args = Args::parse_from(["check", "plugin", "--kind", "step", "--verbose"]);
        let mut report = Report::new(&args);
        for (level, seen) in findings {
            report.add(
                *level,
                "a.b".to_owned(),
                "it works".to_owned(),
                seen.clone(),
            );
        }
        report
    }

    #[test]
    fn only_failures_of_level_must_are_not_conformant() {
        let failed = || Err("it did not".to_owned());
        assert!(report(&[(Level::Must, Ok(())), (Level::Should, failed())]).is_conformant());
        assert!(!report(&[(Level::Must, failed())]).is_conformant());
        assert!(!report(&[]).is_conformant());
    }

    #[test]
    fn a_report_is_a_table_and_json() {
        let report = report(&[(Level::Must, Ok(())), (Level::Should, Err("no".to_owned()))]);
        assert_eq!(
            report.to_string(),
            "ok    a.b    it works\nwarn  a.b#2  it works: no\nplugin: 1 of 2 checks passed, conformant"
        );
        let mut short = report.clone();
        short.verbose = false;
        assert_eq!(
            short.to_string(),
            "warn  a.b#2  it works: no\nplugin: 1 of 2 checks passed, conformant"
        );
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(
            json["findings"][1],
            json!({
                "check": "a.b#2", "rule": "it works", "level": "should", "outcome": "failed", "detail": "no",
            })
        );
    }
}
