//! The report of the checks, as a table and as JSON.

use std::fmt;

use serde::Serialize;
use serde_json::json;

use crate::Args;
use crate::process::{Frames, Seen, Serving};

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
    /// The plugin does not follow the rule; the text is the observation. Its further lines are of the plugin's log.
    Failed(String),
    /// The check did not run, because of an earlier failure.
    #[serde(rename = "not run")]
    NotRun,
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
    /// Whether the printed table also has the checks that passed.
    verbose: bool,
    /// The connection of the checks that run.
    watched: Option<Frames>,
    /// The failure after which nothing else can be checked.
    cause: Option<usize>,
}

/// Whether a text is the number of a repeated check.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('#');
    digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

impl Report {
    pub(crate) fn new(args: &Args) -> Self {
        Self {
            plugin: args.binary.display().to_string(),
            findings: Vec::new(),
            only: args.only.clone(),
            verbose: args.verbose,
            watched: None,
            cause: None,
        }
    }

    pub(crate) fn must(&mut self, check: impl Into<String>, rule: impl Into<String>, seen: Seen) {
        self.add(Level::Must, check.into(), rule.into(), seen, false);
    }

    /// Adds a check that the later ones build on. They do not run after its failure.
    pub(crate) fn essential(
        &mut self,
        check: impl Into<String>,
        rule: impl Into<String>,
        seen: Seen,
    ) {
        self.add(Level::Must, check.into(), rule.into(), seen, true);
    }

    pub(crate) fn should(&mut self, check: impl Into<String>, rule: impl Into<String>, seen: Seen) {
        self.add(Level::Should, check.into(), rule.into(), seen, false);
    }

    pub(crate) fn judge(&mut self, level: Level, check: String, rule: String, seen: Seen) {
        self.add(level, check, rule, seen, false);
    }

    /// Runs a check if it was selected.
    pub(crate) async fn run(
        &mut self,
        level: Level,
        check: &str,
        rule: impl Into<String>,
        seen: impl Future<Output = Seen>,
    ) {
        if !self.is_selected(check) {
            return;
        }
        let seen = match self.cause {
            None => seen.await,
            Some(_) => Ok(()),
        };
        self.add(level, check.to_owned(), rule.into(), seen, false);
    }

    /// Returns whether to run a section of the checks. After the failure of an essential check it lists the section as not run.
    pub(crate) fn starts(&mut self, section: &str) -> bool {
        let wants = self.wants(&[section]);
        if wants && self.cause.is_some() {
            self.not_run(section.to_owned(), "the checks of this section".to_owned());
        }
        wants && self.cause.is_none()
    }

    pub(crate) fn not_run(&mut self, check: String, rule: String) {
        self.findings.push(Finding {
            check,
            rule,
            level: Level::Must,
            outcome: Outcome::NotRun,
        });
    }

    /// From now on, a failure on a connection that the plugin closed is the cause of all that follow it.
    pub(crate) fn watch(&mut self, serving: &Serving) {
        self.watched = Some(serving.frames.clone());
    }

    /// Ends a [`watch`](Self::watch). If the plugin closed the connection, the cause gets its exit code and the end of its log.
    pub(crate) async fn unwatch(&mut self, serving: Serving) {
        let ended_by_plugin = self.watched.take().is_some_and(|it| it.is_closed());
        let Some(cause) = self.cause.filter(|_| ended_by_plugin) else {
            return;
        };
        if let Some(finding) = self.findings.get_mut(cause)
            && let Outcome::Failed(what) = &mut finding.outcome
        {
            what.push_str(&serving.plugin.last_words().await);
            // The other sections can still run.
            if finding.level == Level::Should {
                self.cause = None;
            }
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

    fn add(&mut self, level: Level, check: String, rule: String, seen: Seen, essential: bool) {
        let closed = || self.watched.as_ref().is_some_and(Frames::is_closed);
        let is_cause = self.cause.is_none() && seen.is_err() && (essential || closed());
        // A cause is shown in any case: the selected checks depend on it.
        if !is_cause && !self.is_selected(&check) {
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
            _ if self.cause.is_some() => Outcome::NotRun,
            Ok(()) => Outcome::Passed,
            Err(what) => Outcome::Failed(what),
        };
        if is_cause {
            self.cause = Some(self.findings.len());
        }
        self.findings.push(Finding {
            check,
            rule,
            level,
            outcome,
        });
    }

    /// Returns whether the plugin passes all checks of level `must`. One that did not run is not passed.
    #[must_use]
    pub fn is_conformant(&self) -> bool {
        let passes = |it: &Finding| it.level == Level::Should || it.outcome == Outcome::Passed;
        self.findings.iter().all(passes) && self.count(&Outcome::Passed) > 0
    }

    /// Returns the checks that the plugin fails.
    pub fn failed(&self) -> impl Iterator<Item = &Finding> {
        let findings = self.findings.iter();
        findings.filter(|finding| matches!(finding.outcome, Outcome::Failed(_)))
    }

    fn count(&self, outcome: &Outcome) -> usize {
        let outcomes = self.findings.iter().map(|finding| &finding.outcome);
        outcomes.filter(|it| *it == outcome).count()
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
        let is_shown = |it: &&Finding| self.verbose || matches!(it.outcome, Outcome::Failed(_));
        let shown = || self.findings.iter().filter(is_shown);
        let widths = shown().map(|finding| finding.check.len());
        let width = widths.max().unwrap_or_default();
        for finding in shown() {
            let Finding {
                check,
                rule,
                level,
                outcome,
            } = finding;
            let (mark, detail) = match (outcome, level) {
                (Outcome::Passed, _) => ("ok  ", String::new()),
                (Outcome::NotRun, _) => ("-   ", ": not run".to_owned()),
                (Outcome::Failed(what), Level::Must) => ("FAIL", format!(": {what}")),
                (Outcome::Failed(what), Level::Should) => ("warn", format!(": {what}")),
            };
            let detail = detail.replace('\n', "\n      | ");
            writeln!(f, "{mark}  {check:width$}  {rule}{detail}")?;
        }
        let passed = self.count(&Outcome::Passed);
        let not_run = match self.count(&Outcome::NotRun) {
            0 => String::new(),
            number => format!(", {number} not run"),
        };
        let verdict = if self.is_conformant() {
            "conformant"
        } else {
            "not conformant"
        };
        write!(
            f,
            "{}: {passed} of {} checks passed{not_run}, {verdict}",
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
                false,
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

    /// The connection was closed at a check of level `should`, so nobody knows what the plugin does after it.
    #[test]
    fn what_must_hold_and_did_not_run_is_not_conformant() {
        let mut report = report(&[(Level::Must, Ok(())), (Level::Should, Err("no".to_owned()))]);
        assert!(report.is_conformant());
        report.cause = Some(1);
        report.should("a.c", "it may answer", Ok(()));
        assert!(report.is_conformant());
        report.must("a.d", "it answers", Ok(()));
        assert!(!report.is_conformant());
        let verdict = "1 of 4 checks passed, 2 not run, not conformant";
        assert!(report.to_string().ends_with(verdict), "{report}");
    }

    #[test]
    fn what_follows_a_cause_is_not_run() {
        let mut report = report(&[]);
        report.only.push("c".to_owned());
        report.essential("b", "it opens", Err("no\nlog".to_owned()));
        report.must("c.d", "it answers", Err("no".to_owned()));
        assert!(!report.starts("c"));
        report.verbose = false;
        assert_eq!(
            report.to_string(),
            "FAIL  b  it opens: no\n      | log\nplugin: 0 of 3 checks passed, 2 not run, not conformant"
        );
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
