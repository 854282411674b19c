//! Which Service is stable and which is the canary's.

use crate::{CanaryStrategy, PingPong, Rollout, RolloutStatus};

/// The two Services that a canary moves traffic between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Services<'a> {
    /// The Service of the stable Pods; may be empty.
    pub stable: &'a str,
    /// The Service of the canary's Pods; may be empty.
    pub canary: &'a str,
}

impl Rollout {
    /// The Services in their present roles; `None` without a canary strategy. See [`CanaryStrategy::services`].
    #[must_use]
    pub fn services(&self) -> Option<Services<'_>> {
        Some(self.canary()?.services(&self.status))
    }

    /// Whether the Services exchange their roles at each promotion.
    #[must_use]
    pub fn is_ping_pong(&self) -> bool {
        self.canary().is_some_and(|it| it.ping_pong().is_some())
    }
}

impl CanaryStrategy {
    /// The Services in their present roles: with ping-pong the status says which is stable
    /// (`rollout/trafficrouting/service_helper.go` in Argo Rollouts).
    #[must_use]
    pub fn services<'a>(&'a self, status: &RolloutStatus) -> Services<'a> {
        let (stable, canary) = match self.ping_pong() {
            Some(PingPong {
                ping_service: ping,
                pong_service: pong,
            }) if status.canary.stable_ping_pong == "ping" => (ping, pong),
            Some(PingPong {
                ping_service: ping,
                pong_service: pong,
            }) => (pong, ping),
            None => (&self.stable_service, &self.canary_service),
        };
        Services { stable, canary }
    }

    /// `pingPong`, unless `stableService` or `canaryService` are set as well and take precedence.
    fn ping_pong(&self) -> Option<&PingPong> {
        let is_named = !self.stable_service.is_empty() || !self.canary_service.is_empty();
        self.ping_pong.as_ref().filter(|_| !is_named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(stable: &str, canary: &str, stable_ping_pong: Option<&str>, expect: (&str, &str)) {
        let mut rollout = Rollout::default();
        rollout.status.canary.stable_ping_pong = stable_ping_pong.unwrap_or_default().to_owned();
        rollout.spec.strategy.canary = Some(CanaryStrategy {
            stable_service: stable.to_owned(),
            canary_service: canary.to_owned(),
            ping_pong: stable_ping_pong.map(|_| PingPong {
                ping_service: "ping-svc".to_owned(),
                pong_service: "pong-svc".to_owned(),
            }),
            ..CanaryStrategy::default()
        });
        let (stable, canary) = expect;
        assert_eq!(rollout.services(), Some(Services { stable, canary }));
        assert_eq!(rollout.is_ping_pong(), stable.ends_with("-svc"));
    }

    #[test]
    fn services_are_the_named_ones() {
        check("s", "c", None, ("s", "c"));
        check("", "", None, ("", ""));
        assert_eq!(Rollout::default().services(), None);
    }

    #[test]
    fn with_ping_pong_the_status_says_which_service_is_stable() {
        check("", "", Some("ping"), ("ping-svc", "pong-svc"));
        check("", "", Some("pong"), ("pong-svc", "ping-svc"));
        check("", "", Some(""), ("pong-svc", "ping-svc"));
    }

    #[test]
    fn a_named_service_takes_precedence_over_ping_pong() {
        check("s", "", Some("ping"), ("s", ""));
        check("", "c", Some("ping"), ("", "c"));
    }
}
