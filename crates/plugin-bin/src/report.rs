//! What was done between the calls, and what answers to the controller do not show, as values. Events and metrics are made of
//! them by an [`Observer`].

use std::fmt;
use std::time::Duration;

use gloo_types::{Document, ObjectKey, Resource};
use rollouts_rpc::Rollout;
use serde_json::Value;

use crate::fights::FieldManager;
use crate::from_rpc;

/// Is told what was done between the calls. It returns at once.
pub(crate) trait Observer: Send + Sync + 'static {
    /// Something was done, or found.
    fn observe(&self, report: &Report);
}

impl fmt::Debug for dyn Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// Reports are discarded.
impl Observer for () {
    fn observe(&self, _report: &Report) {}
}

/// An object that a report is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) key: ObjectKey,
    /// `metadata.uid`; empty where it is not known.
    pub(crate) uid: String,
}

impl About {
    /// The Rollout of a call.
    pub(crate) fn of_call(rollout: &Rollout) -> Self {
        Self {
            key: from_rpc::key(rollout),
            uid: rollout.metadata.uid.clone(),
        }
    }

    /// An object that was read.
    pub(crate) fn of<K: Resource>(document: &Document<K>) -> Self {
        let uid = document.raw().pointer("/metadata/uid");
        Self {
            key: document.key().clone(),
            uid: uid.and_then(Value::as_str).unwrap_or_default().to_owned(),
        }
    }
}

/// Something that was done between the calls, or found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The outcome of a repair, after another client had moved traffic.
    Repair {
        rollout: About,
        table: About,
        outcome: RepairOutcome,
        /// From the change until the repair was carried out or given up.
        delay: Duration,
    },
    /// Another client undoes the weights of a table again and again.
    Fight {
        rollout: About,
        table: About,
        /// Who wrote the routes last, as far as the table tells.
        with: Option<FieldManager>,
    },
    /// Number of tables with a fight.
    Fights(usize),
    /// A table has parts of a Rollout that is gone or does not use the plugin.
    Orphaned {
        rollout: ObjectKey,
        table: About,
        why: Orphanage,
        /// When the table will be restored; `None` if it is left to people.
        after: Option<Duration>,
    },
    /// What this plugin has noted in a table cannot be read.
    Unreadable {
        table: About,
        /// The table and the reason.
        error: String,
    },
    /// Number of tables with such parts.
    Orphans(usize),
    /// What a Rollout left in a table is removed, and the table as its owner wrote it.
    Restored {
        rollout: ObjectKey,
        table: About,
        why: Orphanage,
    },
    /// A header or mirror route could not be set or removed.
    ManagedRoutesFailed { rollout: About, error: String },
    /// Gloo does not accept a table as it is.
    GlooRejected {
        rollout: About,
        table: About,
        /// The table and Gloo's words.
        reason: String,
    },
    /// A promotion is held from now on.
    Held { rollout: About },
    /// A promotion has been held for longer than its `timeout`, and is held on.
    HeldTooLong {
        rollout: About,
        /// The stable Service.
        service: String,
        /// Pods that are ready behind it, and those that should be.
        ready: usize,
        wanted: usize,
    },
    /// A promotion is no longer held.
    Released {
        rollout: About,
        end: HoldEnd,
        /// How long it was held.
        after: Duration,
    },
    /// Number of promotions that are held.
    Holds(usize),
    /// Whether the controller of this process is the leader, as far as its Lease tells.
    Leads(Option<bool>),
}

/// Why a promotion is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HoldEnd {
    /// The stable Service leads to the new Pods.
    Complete,
    /// The `timeout` is over, and enough of them are ready.
    TimedOut,
    /// Traffic could not stay on the canary Service.
    Broken,
    /// The table leads to the stable Service already.
    Ended,
}

impl HoldEnd {
    /// Its value in a metric's label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::TimedOut => "timeout",
            Self::Broken => "broken",
            Self::Ended => "ended",
        }
    }
}

/// What became of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RepairOutcome {
    /// The weights are in force again.
    Written,
    /// Another controller may be the leader.
    FencedLease,
    /// The Rollout no longer asks for what its last call asked for.
    FencedRollout,
    /// Another client wrote the table at the same time.
    Conflict,
    /// The table could not be planned, read or written.
    Failed,
}

impl RepairOutcome {
    /// Its value in a metric's label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::FencedLease => "fenced_lease",
            Self::FencedRollout => "fenced_rollout",
            Self::Conflict => "conflict",
            Self::Failed => "failed",
        }
    }
}

/// Why no Rollout owns its parts of a table any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Orphanage {
    /// The Rollout was deleted or renamed while this process ran.
    Deleted,
    /// There is no such Rollout, and this process has never seen it.
    NeverSeen,
    /// The Rollout is there and no longer shifts traffic with this plugin.
    PluginRemoved,
    /// The Rollout is there and no longer selects the table.
    Deselected,
}

impl Orphanage {
    /// Its value in a metric's label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::NeverSeen => "never_seen",
            Self::PluginRemoved => "plugin_removed",
            Self::Deselected => "deselected",
        }
    }
}

impl fmt::Display for Orphanage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deleted => "was deleted",
            Self::NeverSeen => "does not exist",
            Self::PluginRemoved => "no longer uses this plugin",
            Self::Deselected => "no longer selects the table",
        })
    }
}

/// One sentence, for an Event and for the log.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repair {
                rollout,
                table,
                outcome: RepairOutcome::Written,
                ..
            } => write!(
                f,
                "RouteTable {} was changed by another client and has the weights of Rollout {} again; to send all traffic to \
                 stable, abort the Rollout",
                table.key, rollout.key
            ),
            Self::Repair {
                rollout,
                table,
                outcome,
                ..
            } => write!(
                f,
                "RouteTable {} was changed by another client and is not repaired for Rollout {}: {}",
                table.key,
                rollout.key,
                outcome.as_str()
            ),
            Self::Fight {
                rollout,
                table,
                with,
            } => {
                write!(
                    f,
                    "the weights of Rollout {} in RouteTable {} are undone again and again",
                    rollout.key, table.key
                )?;
                match with {
                    Some(manager) => write!(f, " by {manager}"),
                    None => f.write_str("; its metadata.managedFields do not tell by whom"),
                }
            }
            Self::Fights(count) => write!(f, "{count} tables are fought about"),
            Self::Orphaned {
                rollout,
                table,
                why,
                after,
            } => {
                write!(
                    f,
                    "RouteTable {} still splits traffic for Rollout {rollout}, which {why}; ",
                    table.key
                )?;
                match after {
                    Some(after) => write!(f, "it is restored in {} s", after.as_secs()),
                    None => write!(
                        f,
                        "it is not restored by itself: run rollouts-plugin-trafficrouter-glooplatform restore {rollout}"
                    ),
                }
            }
            Self::Unreadable { error, .. } => write!(
                f,
                "{error}; until it is corrected, or removed, nothing is repaired or restored from it"
            ),
            Self::Orphans(count) => {
                write!(f, "{count} tables have parts of Rollouts that are gone")
            }
            Self::Restored {
                rollout,
                table,
                why,
            } => write!(
                f,
                "RouteTable {} is as its owner wrote it: Rollout {rollout} {why}",
                table.key
            ),
            Self::ManagedRoutesFailed { error, .. } => f.write_str(error),
            Self::GlooRejected { reason, .. } => f.write_str(reason),
            Self::Held { .. } => f.write_str(
                "traffic stays on the canary Service until the stable Service leads to the new Pods",
            ),
            Self::HeldTooLong {
                service,
                ready,
                wanted,
                ..
            } => write!(
                f,
                "traffic still stays on the canary Service: {ready} of {wanted} Pods are ready behind Service {service}; \
                 check its selector and the Pods"
            ),
            Self::Released { end, .. } => f.write_str(match end {
                HoldEnd::Complete => {
                    "traffic goes to the stable Service, which leads to the new Pods"
                }
                HoldEnd::TimedOut => {
                    "traffic goes to the stable Service, which leads to at least half of the new Pods"
                }
                HoldEnd::Broken => {
                    "traffic goes to the stable Service, as the Pods behind the canary Service are no longer those that \
                     were promoted"
                }
                HoldEnd::Ended => "traffic goes to the stable Service already",
            }),
            Self::Holds(count) => write!(f, "{count} promotions are held"),
            Self::Leads(leads) => write!(f, "the controller is the leader: {leads:?}"),
        }
    }
}
