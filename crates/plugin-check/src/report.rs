//! What the checks found, for people and for programs.

use std::fmt;

use serde::Serialize;
use serde_json::json;

use crate::Args;

/// How bad it is to fail a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Level {
    /// It breaks a controller, a rollout or a call.
    Must,
    /// A controller survives it.
    Should,
}

/// What came of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "outcome", content = "detail")]
#[non_exhaustive]
pub enum Outcome {
    /// All is well.
    Passed,
    /// What was seen instead.
    Failed(String),
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Its name, which stays the same from release to release.
    pub check: String,
    /// What a plugin does that passes.
    pub rule: String,
    /// How bad it is to fail.
    pub level: Level,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// All findings about one plugin.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The plugin.
    pub plugin: String,
    /// The checks, in the order in which they ran.
    pub findings: Vec<Finding>,
    only: Vec<String>,
    /// Whether checks are carried out that were not asked for, because a later one depends on their calls.
    pub(crate) carries_out_all: bool,
}

/// What a check saw; an error is what was wrong.
pub(crate) type Seen<T = ()> = Result<T, String>;

impl Report {
    pub(crate) fn new(args: &Args) -> Self {
        Self {
            plugin: args.binary.display().to_string(),
            findings: Vec::new(),
            only: args.only.clone(),
            carries_out_all: false,
        }
    }

    pub(crate) fn must(&mut self, check: impl Into<String>, rule: impl Into<String>, seen: Seen) {
        self.add(Level::Must, check.into(), rule.into(), seen);
    }

    pub(crate) fn should(&mut self, check: impl Into<String>, rule: impl Into<String>, seen: Seen) {
        self.add(Level::Should, check.into(), rule.into(), seen);
    }

    /// Carries out a check only if it was asked for.
    pub(crate) async fn carry_out(
        &mut self,
        level: Level,
        check: &str,
        rule: impl Into<String>,
        seen: impl Future<Output = Seen>,
    ) {
        if self.carries_out_all || self.is_asked(check) {
            self.add(level, check.to_owned(), rule.into(), seen.await);
        }
    }

    /// Whether a check whose name begins with one of these may have been asked for.
    pub(crate) fn wants(&self, sections: &[&str]) -> bool {
        let overlaps =
            |only: &str, section: &str| only.starts_with(section) || section.starts_with(only);
        let is_in = |only: &String| sections.iter().any(|section| overlaps(only, section));
        self.only.is_empty() || self.only.iter().any(is_in)
    }

    /// Whether this check was asked for.
    pub(crate) fn is_asked(&self, check: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| check.starts_with(only))
    }

    fn add(&mut self, level: Level, check: String, rule: String, seen: Seen) {
        if !self.is_asked(&check) {
            return;
        }
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

    /// Whether the plugin does all that it must.
    #[must_use]
    pub fn is_conformant(&self) -> bool {
        let mut failed = self.failed();
        !self.findings.is_empty() && !failed.any(|finding| finding.level == Level::Must)
    }

    /// The checks that the plugin fails.
    pub fn failed(&self) -> impl Iterator<Item = &Finding> {
        let findings = self.findings.iter();
        findings.filter(|finding| finding.outcome != Outcome::Passed)
    }

    /// The report for a program.
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
        let widths = self.findings.iter().map(|finding| finding.check.len());
        let width = widths.max().unwrap_or_default();
        for finding in &self.findings {
            let Finding {
                check,
                rule,
                level,
                outcome,
            } = finding;
            let (mark, detail) = match (outcome, level) {
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
        let args = Args::parse_from(["check", "plugin", "--kind", "step"]);
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
    fn only_what_a_plugin_must_do_decides() {
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
            "ok    a.b  it works\nwarn  a.b  it works: no\nplugin: 1 of 2 checks passed, conformant"
        );
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(
            json["findings"][1],
            json!({
                "check": "a.b", "rule": "it works", "level": "should", "outcome": "failed", "detail": "no",
            })
        );
    }
}
