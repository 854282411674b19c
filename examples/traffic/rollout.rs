//! The Rollout of the demo, and a model of the Argo Rollouts controller. It has no I/O and no clock.
//!
//! The model covers the traffic part of a reconcile, with the calls and the order of `rollout/trafficrouting.go`.

use std::fmt;
use std::time::Duration;

use rollouts_rpc::Rollout;
use rollouts_rpc::rollout::{SetHeaderRoute, SetMirrorRoute};
use serde_json::{Value, json};
use traffic_page::{Action, Version, steps};

/// A call of the controller.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    RemoveManagedRoutes,
    SetHeaderRoute(SetHeaderRoute),
    SetMirrorRoute(SetMirrorRoute),
    UpdateHash,
    SetWeight(i32),
    VerifyWeight(i32),
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemoveManagedRoutes => f.write_str("RemoveManagedRoutes"),
            Self::SetHeaderRoute(route) => write!(f, "SetHeaderRoute {}", route.name),
            Self::SetMirrorRoute(route) if route.matches.is_empty() => {
                write!(f, "SetMirrorRoute {} (remove)", route.name)
            }
            Self::SetMirrorRoute(route) => write!(f, "SetMirrorRoute {}", route.name),
            Self::UpdateHash => f.write_str("UpdateHash"),
            Self::SetWeight(weight) => write!(f, "SetWeight {weight}"),
            Self::VerifyWeight(weight) => write!(f, "VerifyWeight {weight}"),
        }
    }
}

/// The Rollout and its status.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) stable: Version,
    pub(crate) current: Version,
    pub(crate) step: usize,
    /// When the pause of the current step started.
    paused_since: Option<Duration>,
    pub(crate) is_paused: bool,
    pub(crate) is_aborted: bool,
    promotes_fully: bool,
    /// Number of the newest version.
    newest: u32,
    steps: Vec<(Value, String)>,
}

/// The calls of one reconcile, and the Rollout in their arguments.
pub(crate) struct Pass {
    pub(crate) rollout: Rollout,
    pub(crate) calls: Vec<Call>,
    pub(crate) weight: i32,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            stable: Version::FIRST,
            current: Version::FIRST,
            step: 0,
            paused_since: None,
            is_paused: false,
            is_aborted: false,
            promotes_fully: false,
            newest: 1,
            steps: steps(),
        }
    }

    /// Returns whether an update is in progress.
    pub(crate) fn is_updating(&self) -> bool {
        self.current != self.stable && !self.is_aborted
    }

    /// Returns `status.phase`, and what the Rollout waits for.
    pub(crate) fn phase(&self) -> (&'static str, String) {
        let (stable, current) = (self.stable.number, self.current.number);
        if self.is_aborted {
            let text = format!("version {current} was aborted, version {stable} has all requests");
            return ("Degraded", text);
        }
        if self.current == self.stable {
            return ("Healthy", format!("version {stable} has all requests"));
        }
        if self.is_paused {
            return ("Paused", "by you: press pause again to continue".to_owned());
        }
        let step = self.steps.get(self.step);
        match step.and_then(|(step, _)| step.get("pause")) {
            Some(pause) if pause.get("duration").is_some() => {
                ("Paused", "until the pause ends".to_owned())
            }
            Some(_) => ("Paused", "waits for promote or abort".to_owned()),
            None => ("Progressing", format!("to version {current}")),
        }
    }

    /// Carries out a user's action.
    ///
    /// # Errors
    /// Returns `Err` with the reason if it is not possible now.
    pub(crate) fn act(&mut self, action: Action) -> Result<(), &'static str> {
        match action {
            Action::NewVersion { fails } => {
                self.newest += 1;
                self.current = Version {
                    number: self.newest,
                    fails,
                };
                self.restart();
            }
            Action::Retry if self.is_aborted => self.restart(),
            Action::Retry => return Err("nothing was aborted"),
            _ if !self.is_updating() => return Err("there is no update: deploy a new version"),
            Action::Promote if self.is_paused => self.is_paused = false,
            Action::Promote if self.pause().is_some() => self.go_on(),
            Action::Promote => return Err("the Rollout is not paused"),
            Action::PromoteFully => {
                self.is_paused = false;
                self.promotes_fully = true;
            }
            Action::Abort => {
                self.is_aborted = true;
                self.is_paused = false;
                self.paused_since = None;
            }
            Action::Pause => self.is_paused = !self.is_paused,
        }
        Ok(())
    }

    /// Returns the controller's calls of one reconcile.
    ///
    /// # Errors
    /// Returns `Err` if a step does not match the API.
    pub(crate) fn pass(&self) -> serde_json::Result<Pass> {
        let rollout = self.rollout()?;
        let mut calls = Vec::new();
        let mut weight = 0;
        if self.is_updating() {
            let so_far = self.steps.iter().take(self.step + 1).rev();
            let mut weights = so_far.filter_map(|(step, _)| step.get("setWeight")?.as_i64());
            weight = weights
                .next()
                .and_then(|it| it.try_into().ok())
                .unwrap_or(0);
            if self.is_done() {
                weight = 100;
            }
            let step = rollout.steps().get(self.step);
            let header = step.and_then(|step| step.set_header_route.clone());
            let mirror = step.and_then(|step| step.set_mirror_route.clone());
            calls.extend(header.map(Call::SetHeaderRoute));
            calls.extend(mirror.map(Call::SetMirrorRoute));
        } else {
            calls.push(Call::RemoveManagedRoutes);
        }
        calls.extend([
            Call::UpdateHash,
            Call::SetWeight(weight),
            Call::VerifyWeight(weight),
        ]);
        Ok(Pass {
            rollout,
            calls,
            weight,
        })
    }

    /// Advances to the next step after a pass without errors. Returns whether another pass is due at once.
    pub(crate) fn advance(&mut self, now: Duration) -> bool {
        if !self.is_updating() || self.is_paused {
            return false;
        }
        if self.is_done() {
            self.stable = self.current;
            self.restart();
            return true;
        }
        let Some(duration) = self.pause() else {
            self.go_on();
            return true;
        };
        let since = *self.paused_since.get_or_insert(now);
        let is_over = duration.is_some_and(|duration| now >= since + duration);
        if is_over {
            self.go_on();
        }
        is_over
    }

    /// Returns the time until the current pause ends; `None` without a pause with a duration.
    pub(crate) fn wakes_in(&self, now: Duration) -> Option<Duration> {
        let since = self.paused_since.filter(|_| !self.is_paused)?;
        Some((since + self.pause()??).saturating_sub(now))
    }

    /// Returns the pause of the current step. Without a duration, it lasts until a user promotes.
    fn pause(&self) -> Option<Option<Duration>> {
        let (step, _) = self.steps.get(self.step)?;
        let duration = step.get("pause")?.get("duration").and_then(Value::as_u64);
        Some(duration.map(Duration::from_secs))
    }

    fn is_done(&self) -> bool {
        self.promotes_fully || self.step >= self.steps.len()
    }

    fn go_on(&mut self) {
        self.step += 1;
        self.paused_since = None;
    }

    fn restart(&mut self) {
        self.step = 0;
        self.paused_since = None;
        self.is_paused = false;
        self.is_aborted = false;
        self.promotes_fully = false;
    }

    /// Returns the Rollout as the controller sends it.
    fn rollout(&self) -> serde_json::Result<Rollout> {
        let steps: Vec<&Value> = self.steps.iter().map(|(step, _)| step).collect();
        serde_json::from_value(json!({
            "metadata": {
                "name": "reviews", "namespace": "shop", "uid": "demo",
                "annotations": {"rollout.argoproj.io/revision": self.newest.to_string()},
            },
            "spec": {"strategy": {"canary": {
                "stableService": "reviews",
                "canaryService": "reviews-canary",
                "steps": steps,
                "trafficRouting": {
                    "managedRoutes": [{"name": "testers"}, {"name": "beta"}, {"name": "copies"}],
                    "plugins": {"solo-io/glooplatform": {"routeTableSelector": {"name": "shop"}}},
                },
            }}},
            "status": {
                "stableRS": hash(self.stable),
                "currentPodHash": hash(self.current),
                "currentStepIndex": if self.promotes_fully { self.steps.len() } else { self.step },
                "abort": self.is_aborted,
                "promoteFull": self.promotes_fully,
                "updatedReplicas": if self.is_aborted { 0 } else { 3 },
            },
        }))
    }
}

/// Returns the Pod template hash of a version.
fn hash(version: Version) -> String {
    format!("v{}", version.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays actions and waiting times in seconds, and checks the calls of each reconcile that differ from the previous one.
    #[track_caller]
    fn check(history: &[&str], expect: &str) {
        let mut model = Model::new();
        let mut now = Duration::ZERO;
        let mut shown = Vec::new();
        for what in history {
            match Action::ALL.iter().find(|(name, _)| name == what) {
                Some((_, action)) => {
                    if let Err(refused) = model.act(*action) {
                        shown.push(refused.to_owned());
                    }
                }
                None => now += Duration::from_secs(what.parse().unwrap()),
            }
            loop {
                let pass = model.pass().unwrap();
                let calls = pass
                    .calls
                    .iter()
                    .filter(|it| !matches!(it, Call::UpdateHash | Call::VerifyWeight(_)));
                let calls: Vec<_> = calls.map(ToString::to_string).collect();
                let calls = calls.join(", ");
                if shown.last() != Some(&calls) {
                    shown.push(calls);
                }
                if !model.advance(now) {
                    break;
                }
            }
        }
        shown.push(format!("{} v{}", model.phase().0, model.stable.number));
        assert_eq!(shown.join("\n"), expect);
    }

    #[test]
    fn an_update_goes_through_its_steps_and_is_promoted() {
        check(
            &["new", "100", "promote", "6", "promote", "6", "4"],
            "SetWeight 0\n\
             SetHeaderRoute testers, SetWeight 0\n\
             SetHeaderRoute beta, SetWeight 0\n\
             SetMirrorRoute copies, SetWeight 0\n\
             SetWeight 0\n\
             SetMirrorRoute copies (remove), SetWeight 0\n\
             SetWeight 10\nSetWeight 25\nSetWeight 50\nSetWeight 100\n\
             RemoveManagedRoutes, SetWeight 0\n\
             Healthy v2",
        );
    }

    #[test]
    fn a_timed_pause_does_not_end_early() {
        check(
            &["new", "promote", "5"],
            "SetWeight 0\n\
             SetHeaderRoute testers, SetWeight 0\n\
             SetHeaderRoute beta, SetWeight 0\n\
             SetMirrorRoute copies, SetWeight 0\n\
             SetWeight 0\n\
             SetMirrorRoute copies (remove), SetWeight 0\n\
             SetWeight 10\n\
             Paused v1",
        );
    }

    #[test]
    fn an_abort_sets_weight_0_and_a_retry_starts_again() {
        let begin = "SetWeight 0\n\
             SetHeaderRoute testers, SetWeight 0\n\
             SetHeaderRoute beta, SetWeight 0\n\
             SetMirrorRoute copies, SetWeight 0\n\
             SetWeight 0\n";
        check(
            &["bad", "abort", "retry"],
            &format!("{begin}RemoveManagedRoutes, SetWeight 0\n{begin}Paused v1"),
        );
        check(
            &["bad", "full", "abort"],
            &format!(
                "{begin}SetWeight 100\nRemoveManagedRoutes, SetWeight 0\n\
                 there is no update: deploy a new version\n\
                 RemoveManagedRoutes, SetWeight 0\nHealthy v2"
            ),
        );
    }

    #[test]
    fn impossible_deeds_are_refused() {
        let rest = "RemoveManagedRoutes, SetWeight 0\nHealthy v1";
        let nothing = "there is no update: deploy a new version";
        check(&["promote"], &format!("{nothing}\n{rest}"));
        check(&["abort"], &format!("{nothing}\n{rest}"));
        check(&["pause"], &format!("{nothing}\n{rest}"));
        check(&["retry"], &format!("nothing was aborted\n{rest}"));
    }
}
