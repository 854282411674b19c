//! The controller's Lease: whether the controller that started this process is the leader.
//!
//! A plugin ends when its controller loses the leadership. A frozen process does not notice the loss, and may resume while
//! another controller is the leader. Reading the Lease before a write detects that.
//!
//! Source: argo-rollouts `controller/controller.go`; the namespace by `utils/defaults/defaults.go`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use gloo_types::ObjectKey;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::StoreError;

/// Name of the Lease. Since release 1.10 a controller with an instance id appends `-<instance-id>`.
const NAME: &str = "argo-rollouts-controller-lock";
/// The default namespace.
const NAMESPACE: &str = "argo-rollouts";
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
const HOSTNAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Time between reading the Lease and the end of the write that it allows, in addition to the request's timeout.
const RESERVE: Duration = Duration::from_secs(2);
/// A Lease that was not renewed for this many of its durations is stale: the controller runs without leader election.
const ABANDONED_AFTER: u32 = 5;
/// How far `renewTime` may be in the future. Both clocks are of one node; more means that the clock was set back.
const AHEAD: Duration = Duration::from_secs(2);

/// Looks up Leases.
pub trait LeaseReader: Send + Sync + 'static {
    /// Returns the Lease; `None` if it does not exist or no one holds it.
    ///
    /// # Errors
    /// Returns `Err` if the API server does not answer or forbids the request.
    fn lease(
        &self,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<Option<Lease>, StoreError>> + Send;
}

/// The fields of a Lease that leadership depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// `spec.holderIdentity`: `<hostname>_<uuid>`, with a new uuid for each start of a controller.
    pub holder: String,
    /// `spec.renewTime`, from the clock of the holder's node.
    pub renewed: Timestamp,
    /// `spec.leaseDurationSeconds`.
    pub duration: Duration,
}

impl Lease {
    /// Reads a Lease object; `None` if the Lease was released or never held.
    #[must_use]
    pub fn from_object(object: &Value) -> Option<Self> {
        let spec = object.get("spec")?;
        let holder = spec.get("holderIdentity")?.as_str()?;
        let seconds = spec.get("leaseDurationSeconds")?.as_u64()?;
        (!holder.is_empty()).then_some(Self {
            holder: holder.to_owned(),
            renewed: spec.get("renewTime")?.as_str()?.parse().ok()?,
            duration: Duration::from_secs(seconds),
        })
    }
}

/// Whether the controller is the leader. Of what several Leases say the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leadership {
    /// No Lease exists, or the Lease is stale and this controller has never held one: it runs without leader election.
    Unknown,
    /// Another controller is the leader.
    NotLeader,
    /// The Lease names this controller, but does not say until when it remains the leader: it was not renewed in time, or the clock
    /// was changed.
    Late,
    /// The controller is the leader, and remains so for the duration of a request.
    Leader,
}

/// The controller that started this process: its Lease and its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Controller {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The host name, which this process shares with the controller because both run in one container.
    pub hostname: String,
    /// The first holder that was seen with this host name. Any other holder is another controller.
    pub identity: Option<String>,
}

impl Controller {
    /// The controller whose Pod has this host name, with its Lease in `namespace`. Its identity is found out later.
    #[must_use]
    pub fn new(namespace: impl Into<String>, hostname: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            hostname: hostname.into(),
            identity: None,
        }
    }

    /// Reads the controller that started this process from the environment and files of its container.
    #[must_use]
    pub fn of_this_process() -> Self {
        let read = |path: &str| fs::read_to_string(Path::new(path)).ok();
        let namespace = std::env::var("POD_NAMESPACE").ok();
        Self::from_parts(namespace, read(NAMESPACE_FILE), read(HOSTNAME_FILE))
    }

    fn from_parts(
        variable: Option<String>,
        file: Option<String>,
        hostname: Option<String>,
    ) -> Self {
        let trimmed = |text: Option<String>| {
            let text = text?.trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        let namespace = trimmed(variable).or_else(|| trimmed(file));
        let namespace = namespace.unwrap_or_else(|| NAMESPACE.to_owned());
        Self::new(namespace, trimmed(hostname).unwrap_or_default())
    }

    /// Returns the names of the Leases that the controller may hold. `instance` is the instance id of its Rollouts.
    #[must_use]
    pub fn leases(&self, instance: Option<&str>) -> Vec<ObjectKey> {
        let key = |name: &str| ObjectKey::new(&self.namespace, name);
        let with_instance = instance.map(|instance| key(&format!("{NAME}-{instance}")));
        with_instance.into_iter().chain([key(NAME)]).collect()
    }

    /// Remembers the first holder of a current Lease that has this controller's host name. Only a leader starts this process,
    /// so if this is called right after the start, that holder is this controller.
    fn meet(&mut self, lease: &Lease, now: Timestamp) {
        let is_current = now.duration_since(lease.renewed) <= signed(lease.duration);
        if self.identity.is_none() && is_current && self.has_hostname(&lease.holder) {
            self.identity = Some(lease.holder.clone());
        }
    }

    fn leadership(
        &self,
        leases: &[Lease],
        now: Timestamp,
        request_timeout: Duration,
    ) -> Leadership {
        let judged = leases.iter().map(|it| self.judge(it, now, request_timeout));
        judged.max().unwrap_or(Leadership::Unknown)
    }

    /// Remembers the identity, and computes the current leadership from all existing Leases of [`Controller::leases`].
    pub fn leadership_now(&mut self, leases: &[Lease], request_timeout: Duration) -> Leadership {
        let now = Timestamp::now();
        leases.iter().for_each(|lease| self.meet(lease, now));
        self.leadership(leases, now, request_timeout)
    }

    fn judge(&self, lease: &Lease, now: Timestamp, request_timeout: Duration) -> Leadership {
        let age = now.duration_since(lease.renewed);
        // A controller that has held a Lease runs with leader election: it has lost the connection, or the clock was changed.
        if age > signed(lease.duration * ABANDONED_AFTER) && self.identity.is_none() {
            return Leadership::Unknown;
        }
        let latest = lease.duration.saturating_sub(request_timeout + RESERVE);
        let is_ours = match &self.identity {
            Some(identity) => *identity == lease.holder,
            None => self.has_hostname(&lease.holder),
        };
        match is_ours {
            true if age <= signed(latest) && age >= -signed(AHEAD) => Leadership::Leader,
            true => Leadership::Late,
            false => Leadership::NotLeader,
        }
    }

    fn has_hostname(&self, holder: &str) -> bool {
        let hostname = holder.rsplit_once('_').map(|(hostname, _)| hostname);
        !self.hostname.is_empty() && hostname == Some(&self.hostname)
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-03-01T12:00:00Z";

    fn controller(identity: Option<&str>) -> Controller {
        Controller {
            namespace: "argo-rollouts".into(),
            hostname: "pod-1".into(),
            identity: identity.map(str::to_owned),
        }
    }

    /// A Lease of 15 s that was renewed `ago` seconds before [`NOW`].
    fn lease(holder: &str, ago: f64) -> Lease {
        let now: Timestamp = NOW.parse().unwrap();
        Lease {
            holder: holder.into(),
            renewed: now - SignedDuration::from_secs_f64(ago),
            duration: Duration::from_secs(15),
        }
    }

    #[track_caller]
    fn check(identity: Option<&str>, leases: &[(&str, f64)], expect: Leadership) {
        let leases: Vec<Lease> = leases
            .iter()
            .map(|(holder, ago)| lease(holder, *ago))
            .collect();
        let (now, timeout) = (NOW.parse().unwrap(), Duration::from_secs(3));
        let leadership = controller(identity).leadership(&leases, now, timeout);
        assert_eq!(leadership, expect, "{leases:?}");
    }

    #[test]
    fn the_leader_holds_a_fresh_lease_with_its_host_name() {
        use Leadership::{Late, Leader, NotLeader, Unknown};
        check(None, &[], Unknown);
        check(None, &[("pod-1_a", 0.0)], Leader);
        // 15 s less 3 s for the request and 2 s of reserve.
        check(None, &[("pod-1_a", 10.0)], Leader);
        check(None, &[("pod-1_a", 10.1)], Late);
        check(Some("pod-1_a"), &[("pod-1_a", 10.1)], Late);
        check(Some("pod-1_a"), &[("pod-1_b", 10.1)], NotLeader);
        check(None, &[("pod-1_a", 60.0)], Late);
        // The clock was set back after the last renewal.
        check(None, &[("pod-1_a", -1.0)], Leader);
        check(None, &[("pod-1_a", -3600.0)], Late);
        // A Lease that is not renewed: the controller runs without leader election.
        check(None, &[("pod-1_a", 75.1)], Unknown);
        check(None, &[("pod-2_a", 75.1)], Unknown);
        check(None, &[("pod-2_a", 1.0)], NotLeader);
        check(None, &[("pod-12_a", 1.0)], NotLeader);
        check(None, &[("pod-1", 1.0)], NotLeader);
        // Another controller on the same host, or a restarted container.
        check(Some("pod-1_a"), &[("pod-1_b", 1.0)], NotLeader);
        check(Some("pod-1_a"), &[("pod-1_a", 1.0)], Leader);
        // The clock of the node was set forward by an hour: whoever holds the Lease, it is not stale.
        check(Some("pod-1_a"), &[("pod-1_a", 3600.0)], Late);
        check(Some("pod-1_a"), &[("pod-2_a", 3600.0)], NotLeader);
        // Two Leases.
        check(None, &[("pod-1_a", 80.0), ("pod-1_a", 1.0)], Leader);
        check(None, &[("pod-2_b", 1.0), ("pod-1_a", 1.0)], Leader);
        check(None, &[("pod-1_a", 80.0), ("pod-2_a", 1.0)], NotLeader);
        check(None, &[("pod-2_a", 1.0), ("pod-1_a", 11.0)], Late);
    }

    #[test]
    fn the_identity_is_the_first_holder_with_the_same_host_name() {
        let mut controller = controller(None);
        for (holder, ago, expect) in [
            ("pod-2_x", 0.0, None),
            // Left by a controller that ran here before.
            ("pod-1_x", 15.1, None),
            ("pod-1_a", 2.0, Some("pod-1_a")),
            ("pod-1_b", 0.0, Some("pod-1_a")),
        ] {
            controller.meet(&lease(holder, ago), NOW.parse().unwrap());
            assert_eq!(controller.identity.as_deref(), expect);
        }
    }

    #[track_caller]
    fn check_parts(variable: Option<&str>, file: Option<&str>, expect: &str) {
        let text = |text: Option<&str>| text.map(str::to_owned);
        let controller = Controller::from_parts(text(variable), text(file), text(Some("pod-1\n")));
        assert_eq!(controller.hostname, "pod-1");
        assert_eq!(controller.namespace, expect);
    }

    #[test]
    fn the_namespace_comes_from_the_variable_or_the_file_or_the_default() {
        check_parts(Some("a"), Some("b\n"), "a");
        check_parts(None, Some("b\n"), "b");
        check_parts(Some(""), Some("b"), "b");
        check_parts(None, None, "argo-rollouts");
        let names = |instance| {
            let leases = controller(None).leases(instance).into_iter();
            leases.map(|lease| lease.to_string()).collect::<Vec<_>>()
        };
        let plain = "argo-rollouts/argo-rollouts-controller-lock";
        assert_eq!(names(None), [plain]);
        assert_eq!(names(Some("blue")), [&format!("{plain}-blue"), plain]);
    }

    #[test]
    fn reads_a_lease_that_client_go_wrote() {
        let mut object = json!({"spec": {
            "holderIdentity": "pod-1_a",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-03-01T11:00:00.000000Z",
            "renewTime": "2026-03-01T11:59:59.500000Z",
            "leaseTransitions": 3,
        }});
        assert_eq!(Lease::from_object(&object), Some(lease("pod-1_a", 0.5)));
        object["spec"]["holderIdentity"] = json!("");
        assert_eq!(Lease::from_object(&object), None);
        assert_eq!(Lease::from_object(&json!({})), None);
    }
}
