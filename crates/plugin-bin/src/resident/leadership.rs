//! The fence around writes between the calls: the controller that started this process must be the leader.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use route_store::{Controller, Leadership, LeaseReader, Priority, RequestContext, with_context};
use tracing::{debug, info};

use super::report::{Observer, Report};
use crate::router::Fence;

/// Reads the controller's Lease before each write.
pub(crate) struct LeaseFence<L> {
    leases: Arc<L>,
    controller: Mutex<Controller>,
    request_timeout: Duration,
    observer: Arc<dyn Observer>,
}

impl<L: LeaseReader> LeaseFence<L> {
    /// `request_timeout` is the longest time that the write takes.
    pub(crate) fn new(leases: Arc<L>, controller: Controller, request_timeout: Duration) -> Self {
        Self {
            leases,
            controller: Mutex::new(controller),
            request_timeout,
            observer: Arc::new(()),
        }
    }

    /// Tells `observer` whenever it asks who leads.
    pub(crate) fn telling(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// Remembers who holds the Lease, while this process has just been started by the leader.
    pub(crate) async fn meet(&self) {
        self.leadership(None).await;
    }

    /// `None` if the API server did not tell.
    async fn leadership(&self, instance: Option<&str>) -> Option<Leadership> {
        let leadership = self.ask(instance).await;
        let leads = match leadership {
            Some(Leadership::Leader) => Some(true),
            Some(Leadership::NotLeader) => Some(false),
            Some(Leadership::Unknown) | None => None,
        };
        self.observer.observe(&Report::Leads(leads));
        leadership
    }

    async fn ask(&self, instance: Option<&str>) -> Option<Leadership> {
        let controller = || {
            let controller = self.controller.lock();
            controller.unwrap_or_else(PoisonError::into_inner)
        };
        let names = controller().leases(instance);
        let mut leases = Vec::new();
        for name in names {
            match self.leases.lease(&name).await {
                Ok(lease) => leases.extend(lease),
                Err(error) => {
                    info!("the controller's Lease is not known: {error}");
                    return None;
                }
            }
        }
        let mut controller = controller();
        leases.iter().for_each(|lease| controller.meet(lease));
        Some(controller.leadership_now(&leases, self.request_timeout))
    }
}

impl<L: LeaseReader> Fence for LeaseFence<L> {
    async fn allows(&self, instance: Option<&str>) -> bool {
        let context = RequestContext {
            deadline: None,
            priority: Priority::Repair,
        };
        let leadership = with_context(context, self.leadership(instance)).await;
        debug!(?leadership, "before a write between the calls");
        match leadership {
            Some(Leadership::Leader | Leadership::Unknown) => true,
            Some(Leadership::NotLeader) => {
                info!(
                    "nothing is written between the calls: another controller is the leader, or the Lease is not renewed"
                );
                false
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use gloo_types::ObjectKey;
    use route_store::{Lease, StoreError};

    use super::*;

    /// Answers for the Lease of each name.
    struct Leases(fn(&str) -> Result<Option<&'static str>, StoreError>);

    impl LeaseReader for Leases {
        async fn lease(&self, key: &ObjectKey) -> Result<Option<Lease>, StoreError> {
            let holder = (self.0)(&key.name)?;
            Ok(holder.map(|holder| {
                let mut lease = serde_json::json!({"spec": {
                    "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00Z",
                }});
                lease["spec"]["leaseDurationSeconds"] = u32::MAX.into();
                Lease::from_object(&lease).unwrap()
            }))
        }
    }

    /// Who leads, as it is reported.
    #[derive(Default)]
    struct Told(Mutex<Vec<Option<bool>>>);

    impl Observer for Told {
        fn observe(&self, report: &Report) {
            if let Report::Leads(leads) = report {
                self.0.lock().unwrap().push(*leads);
            }
        }
    }

    async fn check(leases: Leases, expect: bool) {
        let controller = Controller {
            namespace: "argo-rollouts".into(),
            hostname: "pod-1".into(),
            identity: None,
        };
        let told = Arc::new(Told::default());
        let fence = LeaseFence::new(Arc::new(leases), controller, Duration::from_secs(3));
        let fence = fence.telling(told.clone());
        fence.meet().await;
        assert_eq!(fence.allows(Some("blue")).await, expect);
        let told = told.0.lock().unwrap();
        assert_eq!(told.len(), 2, "each look is reported");
        assert_ne!(told[1], Some(!expect));
    }

    #[tokio::test]
    async fn a_write_needs_a_lease_of_either_name_or_none_at_all() {
        check(Leases(|_| Ok(None)), true).await;
        check(Leases(|_| Ok(Some("pod-1_a"))), true).await;
        check(Leases(|_| Ok(Some("pod-2_a"))), false).await;
        let with_instance = |name: &str| Ok(name.ends_with("-blue").then_some("pod-1_a"));
        check(Leases(with_instance), true).await;
        let without = |name: &str| Ok((!name.ends_with("-blue")).then_some("pod-1_a"));
        check(Leases(without), true).await;
        let forbidden = |name: &str| {
            Err(StoreError::Forbidden {
                verb: "get",
                what: name.into(),
                resource: "leases".into(),
                reason: String::new(),
            })
        };
        check(Leases(forbidden), false).await;
    }

    #[tokio::test]
    async fn another_controller_of_the_same_host_is_not_ours() {
        // The Lease without the instance id was there first, and its holder is this process's controller.
        let other = |name: &str| {
            Ok(Some(if name.ends_with("-blue") {
                "pod-1_b"
            } else {
                "pod-1_a"
            }))
        };
        check(Leases(other), true).await;
        let only_other = |name: &str| Ok(name.ends_with("-blue").then_some("pod-2_b"));
        check(Leases(only_other), false).await;
    }
}
