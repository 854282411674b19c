//! Checks the plugin's entries in the controller's ConfigMap, and that Rollouts use a name that is registered.

use clap::Parser as _;
use gloo_router::Policy;
use serde::Deserialize;

use super::super::input::wrong_yaml;
use super::super::world::{self, Subject};
use super::super::{CommandLine, PROGRAM};
use super::Finding;

pub(super) const SUBJECT: &str = "ConfigMap";
const NAMES: &str = "plugin names";

/// An entry of `trafficRouterPlugins` that is this plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) location: String,
    pub(super) sha256: String,
    pub(super) args: Vec<String>,
}

impl Entry {
    /// Returns the policy that these args set.
    pub(super) fn flags_policy(&self) -> Policy {
        self.flags()
            .map(|line| line.flags.policy())
            .unwrap_or_default()
    }

    fn flags(&self) -> Result<CommandLine, clap::Error> {
        let line = [PROGRAM.to_owned()].into_iter().chain(self.args.clone());
        CommandLine::try_parse_from(line)
    }

    fn is_ours(&self, policy: &Policy) -> bool {
        let file = self.location.rsplit('/').next().unwrap_or_default();
        policy.plugin_names.contains(&self.name) || file.starts_with(PROGRAM)
    }
}

/// Parses `trafficRouterPlugins` and returns the entries of this plugin.
pub(super) fn read(
    namespace: &str,
    text: Option<&str>,
    policy: &Policy,
) -> (Vec<Entry>, Vec<Finding>) {
    let place = format!("{namespace}/argo-rollouts-config");
    let parsed = text.map_or(Ok(Vec::new()), serde_saphyr::from_str::<Vec<Entry>>);
    let entries = match parsed {
        Ok(entries) => entries,
        Err(error) => {
            let reason = wrong_yaml(&error);
            let message = format!(
                "trafficRouterPlugins of {place} cannot be read, and the controller does not start: {reason}"
            );
            return (Vec::new(), vec![Finding::problem(SUBJECT, message)]);
        }
    };
    let ours = entries.into_iter().filter(|entry| entry.is_ours(policy));
    let ours: Vec<Entry> = ours.collect();
    let mut findings = Vec::new();
    if ours.is_empty() {
        let name = policy.plugin_names.first().cloned().unwrap_or_default();
        let message = format!(
            "{place} does not register the plugin: add {name} with its location to trafficRouterPlugins and restart the controller"
        );
        findings.push(Finding::problem(SUBJECT, message));
    }
    for entry in &ours {
        findings.push(Finding::ok(
            SUBJECT,
            format!("{place}: {} at {}", entry.name, entry.location),
        ));
        findings.extend(arguments(entry));
    }
    (ours, findings)
}

/// Checks that the plugin starts with the args of its entry, and reads the name under which it is registered.
fn arguments(entry: &Entry) -> Option<Finding> {
    let name = &entry.name;
    let message = match entry.flags() {
        Err(error) => {
            let reason = error.to_string();
            let reason = reason.lines().next().unwrap_or_default();
            format!("{name}: the plugin does not start with its args: {reason}")
        }
        Ok(line) if line.command.is_some() => {
            format!("{name}: its args contain a command for people: remove it")
        }
        Ok(line) if !line.flags.policy().plugin_names.contains(name) => format!(
            "{name}: the plugin does not read that name: add --plugin-name={name} to its args"
        ),
        Ok(_) => return None,
    };
    Some(Finding::problem(SUBJECT, message))
}

/// Checks that Rollouts use a name which the ConfigMap registers. Otherwise the controller reports "not configured".
pub(super) fn names(entries: &[Entry], rollouts: &[Subject]) -> Vec<Finding> {
    let policies: Vec<Policy> = entries.iter().map(Entry::flags_policy).collect();
    let mut users = 0;
    let mut findings = Vec::new();
    for rollout in rollouts {
        let key = &rollout.key;
        for name in world::plugin_names(&rollout.api) {
            let is_registered = entries.iter().any(|entry| entry.name == *name);
            let is_read = policies.iter().any(|it| it.plugin_names.contains(name));
            users += usize::from(is_registered);
            if is_read && !is_registered {
                let message = format!(
                    "Rollout {key} uses {name}, which the ConfigMap does not register: rename it there or in the Rollout"
                );
                findings.push(Finding::problem(NAMES, message));
            }
        }
    }
    if findings.is_empty() && !entries.is_empty() {
        findings.push(Finding::ok(
            NAMES,
            format!("Rollouts that use the plugin: {users}"),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &[(Verdict, &str)]) {
        let policy = Policy {
            plugin_names: vec!["solo-io/glooplatform".into()],
            ..Policy::default()
        };
        let (_, findings) = read("argo", Some(text), &policy);
        assert_eq!(findings.len(), expect.len(), "{findings:#?}");
        for (finding, (verdict, text)) in findings.iter().zip(expect) {
            assert_eq!(finding.verdict, *verdict, "{finding:?}");
            assert!(finding.message.contains(text), "{finding:?}");
        }
    }

    const REGISTERED: (Verdict, &str) = (Verdict::Ok, "argo/argo-rollouts-config: ");

    #[test]
    fn an_entry_is_found_by_its_name_or_its_file() {
        check(
            "[{name: solo-io/glooplatform, location: https://x/y}]",
            &[REGISTERED],
        );
        check(
            "[{name: acme/gloo, location: https://x/rollouts-plugin-trafficrouter-glooplatform-linux-amd64}]",
            &[
                REGISTERED,
                (Verdict::Problem, "add --plugin-name=acme/gloo to its args"),
            ],
        );
        check(
            "[{name: acme/gloo, location: https://x/rollouts-plugin-trafficrouter-glooplatform-linux-amd64, args: [--plugin-name=acme/gloo]}]",
            &[REGISTERED],
        );
        let absent = [(
            Verdict::Problem,
            "does not register the plugin: add solo-io/glooplatform",
        )];
        check(
            "[{name: argoproj-labs/sample, location: file:///x}]",
            &absent,
        );
        check("", &absent);
    }

    #[test]
    fn what_keeps_the_plugin_from_starting_is_reported() {
        check("{", &[(Verdict::Problem, "cannot be read")]);
        check(
            "[{name: solo-io/glooplatform, location: file:///nowhere, args: [--log-levle=debug]}]",
            &[
                REGISTERED,
                (Verdict::Problem, "unexpected argument '--log-levle'"),
            ],
        );
        check(
            "[{name: solo-io/glooplatform, location: file:///nowhere, args: [status]}]",
            &[
                REGISTERED,
                (Verdict::Problem, "contain a command for people"),
            ],
        );
    }
}
