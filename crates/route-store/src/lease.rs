//! The controller's Lease: whether the controller that started this process is the leader.
//!
//! A plugin runs beside the leader, and ends when its controller loses the leadership. A frozen process does not notice the loss,
//! and resumes while another controller is the leader. The Lease shows that.
//!
//! Source: argo-rollouts `controller/controller.go`; the namespace by `utils/defaults/defaults.go`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use gloo_types::ObjectKey;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::StoreError;

/// Name of the Lease; from release 1.10 on with `-<instance-id>` behind it, if the controller has one.
const NAME: &str = "argo-rollouts-controller-lock";
/// The default namespace.
const NAMESPACE: &str = "argo-rollouts";
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
const HOSTNAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Time from the last look at the Lease to the end of the write that it allows, beside the request itself.
const RESERVE: Duration = Duration::from_secs(2);
/// A Lease that was not renewed for so many of its durations is left over: the controller runs without leader election.
const ABANDONED_AFTER: u32 = 5;
/// Clocks of one node do not differ; what was renewed later than now was renewed before the clock was set back.
const AHEAD: Duration = Duration::from_secs(2);

/// Where Leases can be looked up.
pub trait LeaseReader: Send + Sync + 'static {
    /// The Lease; `None` when there is none of that name.
    ///
    /// # Errors
    /// Whatever kept the API server from answering.
    fn lease(
        &self,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<Option<Lease>, StoreError>> + Send;
}

/// What a Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// `spec.holderIdentity`: `<hostname>_<uuid>`, with another uuid for each start of a controller.
    pub holder: String,
    /// `spec.renewTime`, by the clock of the holder's node.
    pub renewed: Timestamp,
    /// `spec.leaseDurationSeconds`.
    pub duration: Duration,
}

impl Lease {
    /// Reads a Lease; `None` if it was released, or never held.
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

/// Where the controller's Lease is, and who the controller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The host name, which a process in the same container shares.
    pub hostname: String,
    /// The holder that was seen first with this host name: another one is another controller.
    pub identity: Option<String>,
}

/// Whether the controller is the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// It is, and stays so for the length of a request.
    Leader,
    /// There is no current Lease: the controller runs without leader election.
    Unknown,
    /// Another controller is, or this one has not renewed the Lease in time.
    NotLeader,
}

impl Controller {
    /// The controller that started this process, by its environment and its files.
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
            let text = text.map(|text| text.trim().to_owned());
            text.filter(|text| !text.is_empty())
        };
        let namespace = trimmed(variable).or_else(|| trimmed(file));
        Self {
            namespace: namespace.unwrap_or_else(|| NAMESPACE.to_owned()),
            hostname: trimmed(hostname).unwrap_or_default(),
            identity: None,
        }
    }

    /// The Leases that the controller may hold. `instance` is the instance id of its Rollouts, if they have one.
    #[must_use]
    pub fn leases(&self, instance: Option<&str>) -> Vec<ObjectKey> {
        let key = |name: &str| ObjectKey::new(&self.namespace, name);
        let with_instance = instance.map(|instance| key(&format!("{NAME}-{instance}")));
        with_instance.into_iter().chain([key(NAME)]).collect()
    }

    /// Remembers the holder of a Lease if it is this controller, which it is as long as this process has just been started.
    pub fn meet(&mut self, lease: &Lease) {
        if self.identity.is_none() && self.has_hostname(&lease.holder) {
            self.identity = Some(lease.holder.clone());
        }
    }

    /// Judges by all the Leases that there are.
    #[must_use]
    pub fn leadership(
        &self,
        leases: &[Lease],
        now: Timestamp,
        request_timeout: Duration,
    ) -> Leadership {
        let mut leadership = Leadership::Unknown;
        for lease in leases {
            match self.judge(lease, now, request_timeout) {
                Leadership::Leader => return Leadership::Leader,
                Leadership::NotLeader => leadership = Leadership::NotLeader,
                Leadership::Unknown => {}
            }
        }
        leadership
    }

    /// The same, judged now.
    #[must_use]
    pub fn leadership_now(&self, leases: &[Lease], request_timeout: Duration) -> Leadership {
        self.leadership(leases, Timestamp::now(), request_timeout)
    }

    fn judge(&self, lease: &Lease, now: Timestamp, request_timeout: Duration) -> Leadership {
        let age = now.duration_since(lease.renewed);
        let signed =
            |duration: Duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        if age > signed(lease.duration * ABANDONED_AFTER) {
            return Leadership::Unknown;
        }
        let latest = lease.duration.saturating_sub(request_timeout + RESERVE);
        let is_ours = match &self.identity {
            Some(identity) => *identity == lease.holder,
            None => self.has_hostname(&lease.holder),
        };
        if is_ours && age <= signed(latest) && age >= -signed(AHEAD) {
            Leadership::Leader
        } else {
            Leadership::NotLeader
        }
    }

    fn has_hostname(&self, holder: &str) -> bool {
        let hostname = holder.rsplit_once('_').map(|(hostname, _)| hostname);
        !self.hostname.is_empty() && hostname == Some(&self.hostname)
    }
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

    /// A Lease of 15 s that was renewed so many seconds ago.
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
    fn a_fresh_lease_of_the_own_host_is_needed() {
        use Leadership::{Leader, NotLeader, Unknown};
        check(None, &[], Unknown);
        check(None, &[("pod-1_a", 0.0)], Leader);
        // 15 s less 3 s for the request and 2 s of reserve.
        check(None, &[("pod-1_a", 10.0)], Leader);
        check(None, &[("pod-1_a", 10.1)], NotLeader);
        check(None, &[("pod-1_a", 60.0)], NotLeader);
        // The clock was set back after the last renewal.
        check(None, &[("pod-1_a", -1.0)], Leader);
        check(None, &[("pod-1_a", -3600.0)], NotLeader);
        // A Lease that is not renewed: the controller runs without leader election.
        check(None, &[("pod-1_a", 75.1)], Unknown);
        check(None, &[("pod-2_a", 75.1)], Unknown);
        check(None, &[("pod-2_a", 1.0)], NotLeader);
        check(None, &[("pod-12_a", 1.0)], NotLeader);
        check(None, &[("pod-1", 1.0)], NotLeader);
        // Another controller on the same host, or the container was started again.
        check(Some("pod-1_a"), &[("pod-1_b", 1.0)], NotLeader);
        check(Some("pod-1_a"), &[("pod-1_a", 1.0)], Leader);
        // One of two names.
        check(None, &[("pod-1_a", 80.0), ("pod-1_a", 1.0)], Leader);
        check(None, &[("pod-2_b", 1.0), ("pod-1_a", 1.0)], Leader);
        check(None, &[("pod-1_a", 80.0), ("pod-2_a", 1.0)], NotLeader);
    }

    #[test]
    fn the_identity_is_the_first_one_of_the_own_host() {
        let mut controller = controller(None);
        for (holder, expect) in [
            ("pod-2_x", None),
            ("pod-1_a", Some("pod-1_a")),
            ("pod-1_b", Some("pod-1_a")),
        ] {
            controller.meet(&lease(holder, 0.0));
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
    fn the_namespace_is_found_as_the_controller_finds_it() {
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
    fn a_lease_is_read_as_client_go_writes_it() {
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
