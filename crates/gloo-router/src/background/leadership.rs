//! The fence for writes outside of calls: the controller that started this process must be the leader.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use route_store::{Controller, Leadership, LeaseReader, Priority, StoreError, with_priority};
use tokio::time::sleep;
use tracing::info;

use crate::lock;
use crate::report::{Observer, Report};
use crate::router::{Fence, LONGEST_RETRY, RETRY};

/// Allows a write only after it has read the controller's Lease.
pub(crate) struct LeaseFence<L> {
    leases: Arc<L>,
    controller: Mutex<Controller>,
    /// The instance id of the controller.
    instance: Option<String>,
    request_timeout: Duration,
    observer: Arc<dyn Observer>,
}

impl<L: LeaseReader> LeaseFence<L> {
    /// Creates a fence. `request_timeout` is the longest time that a write takes. `observer` gets each result about the
    /// leadership.
    pub(crate) fn new(
        leases: Arc<L>,
        controller: Controller,
        request_timeout: Duration,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self {
            leases,
            controller: Mutex::new(controller),
            instance: None,
            request_timeout,
            observer,
        }
    }

    /// Sets the instance id of the controller, which is part of the Lease's name from release 1.10 on.
    pub(crate) fn set_instance(&mut self, instance: Option<String>) {
        self.instance = instance;
    }

    /// Reads the holder of the Lease at the start, when this process has just been started by the leader, until the API server
    /// answers. Until then another controller on the same host could pass for this one.
    pub(crate) async fn learn_holder(&self) {
        let mut pause = RETRY;
        loop {
            let read = with_priority(Priority::Repair, self.leadership()).await;
            if !read.is_err_and(|error| error.is_unavailable()) {
                return;
            }
            sleep(pause).await;
            pause = LONGEST_RETRY.min(pause * 2);
        }
    }

    /// Reads the leadership and reports it.
    async fn leadership(&self) -> Result<Leadership, StoreError> {
        let leadership = self.read_leadership().await;
        let leads = match leadership {
            Ok(Leadership::Leader) => Some(true),
            Ok(Leadership::NotLeader) => Some(false),
            Ok(Leadership::Unknown | Leadership::Late) | Err(_) => None,
        };
        self.observer.observe(&Report::Leads(leads));
        leadership
    }

    async fn read_leadership(&self) -> Result<Leadership, StoreError> {
        let names = lock(&self.controller).leases(self.instance.as_deref());
        let mut leases = Vec::new();
        for name in names {
            let lease = self.leases.lease(&name).await.inspect_err(|error| {
                info!("the controller's Lease cannot be read: {error}");
            })?;
            leases.extend(lease);
        }
        Ok(lock(&self.controller).leadership_now(&leases, self.request_timeout))
    }
}

impl<L: LeaseReader> Fence for LeaseFence<L> {
    async fn allows(&self) -> Option<bool> {
        match with_priority(Priority::Repair, self.leadership()).await {
            Ok(Leadership::Leader | Leadership::Unknown) => Some(true),
            Ok(Leadership::NotLeader) => {
                info!("nothing is written between the calls: another controller is the leader");
                Some(false)
            }
            Ok(Leadership::Late) => {
                info!("nothing is written between the calls until the controller renews its Lease");
                None
            }
            Err(error) if error.is_unavailable() => None,
            Err(_) => Some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::future::join;
    use gloo_types::ObjectKey;
    use route_store::Lease;
    use tokio::time::Instant;

    use super::*;

    type Holder = Result<Option<&'static str>, StoreError>;

    /// The holder of the Lease of each name, at the start and at the write.
    struct Leases {
        holder: [fn(&str) -> Holder; 2],
        is_later: AtomicBool,
    }

    impl LeaseReader for Leases {
        async fn lease(&self, key: &ObjectKey) -> Result<Option<Lease>, StoreError> {
            let moment = usize::from(self.is_later.load(Ordering::Relaxed));
            let holder = self.holder[moment](&key.name)?;
            Ok(holder.map(|holder| {
                let mut lease = serde_json::json!({"spec": {
                    "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00Z",
                }});
                lease["spec"]["leaseDurationSeconds"] = u32::MAX.into();
                Lease::from_object(&lease).unwrap()
            }))
        }
    }

    /// Records the reported leadership.
    #[derive(Default)]
    struct Reported(Mutex<Vec<Option<bool>>>);

    impl Observer for Reported {
        fn observe(&self, report: &Report) {
            if let Report::Leads(leads) = report {
                self.0.lock().unwrap().push(*leads);
            }
        }
    }

    /// Checks whether the controller with the instance id `blue` on host `pod-1` may write.
    async fn check_change(
        at_start: fn(&str) -> Holder,
        later: fn(&str) -> Holder,
        expect: Option<bool>,
    ) {
        let controller = Controller::new("argo-rollouts", "pod-1");
        let reported = Arc::new(Reported::default());
        let leases = Arc::new(Leases {
            holder: [at_start, later],
            is_later: AtomicBool::new(false),
        });
        let timeout = Duration::from_secs(3);
        let mut fence = LeaseFence::new(leases.clone(), controller, timeout, reported.clone());
        fence.set_instance(Some("blue".to_owned()));
        let _ = fence.leadership().await;
        leases.is_later.store(true, Ordering::Relaxed);
        assert_eq!(fence.allows().await, expect);
        let reported = reported.0.lock().unwrap();
        assert_eq!(reported.len(), 2, "each read is reported");
        assert!(reported[1].is_none() || reported[1] == expect);
    }

    async fn check(holder: fn(&str) -> Holder, expect: impl Into<Option<bool>>) {
        check_change(holder, holder, expect.into()).await;
    }

    fn with_instance(name: &str, holder: &'static str) -> Holder {
        Ok(name.ends_with("-blue").then_some(holder))
    }

    #[tokio::test]
    async fn a_write_needs_a_lease_of_either_name_or_none_at_all() {
        check(|_| Ok(None), true).await;
        check(|_| Ok(Some("pod-1_a")), true).await;
        check(|_| Ok(Some("pod-2_a")), false).await;
        check(|name| with_instance(name, "pod-1_a"), true).await;
        check(|name| with_instance(name, "pod-2_b"), false).await;
        let without = |name: &str| Ok((!name.ends_with("-blue")).then_some("pod-1_a"));
        check(without, true).await;
        let forbidden = |name: &str| {
            Err(StoreError::Forbidden {
                verb: "get",
                what: name.into(),
                resource: "leases".into(),
                reason: String::new(),
            })
        };
        check(forbidden, false).await;
        check(unanswered, None).await;
    }

    fn unanswered(name: &str) -> Holder {
        Err(StoreError::CallEnded {
            verb: "get",
            what: name.into(),
        })
    }

    /// The holder at the start is this controller, so it must be known before another one can be the holder.
    #[tokio::test(start_paused = true)]
    async fn the_holder_at_the_start_is_read_until_it_is_known() {
        let leases = Arc::new(Leases {
            holder: [unanswered, |_| Ok(Some("pod-1_a"))],
            is_later: AtomicBool::new(false),
        });
        let controller = Controller::new("argo-rollouts", "pod-1");
        let timeout = Duration::from_secs(3);
        let fence = LeaseFence::new(leases.clone(), controller, timeout, Arc::new(()));
        let answers = async {
            sleep(Duration::from_millis(2500)).await;
            leases.is_later.store(true, Ordering::Relaxed);
        };
        let begin = Instant::now();
        join(fence.learn_holder(), answers).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(3));
    }

    /// With `hostNetwork`, all controllers on a node have the same host name.
    #[tokio::test]
    async fn another_controller_on_the_same_host_is_not_the_leader() {
        check_change(
            |name| with_instance(name, "pod-1_b"),
            |name| with_instance(name, "pod-1_c"),
            Some(false),
        )
        .await;
        // The controller without an instance id has the other Lease.
        let beside = |name: &str| {
            Ok(Some(if name.ends_with("-blue") {
                "pod-1_b"
            } else {
                "pod-1_a"
            }))
        };
        check(beside, true).await;
        let deposed = |name: &str| {
            Ok(Some(if name.ends_with("-blue") {
                "pod-2_c"
            } else {
                "pod-1_a"
            }))
        };
        check_change(beside, deposed, Some(false)).await;
    }
}
