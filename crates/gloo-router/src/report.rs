//! Reports, as values, of work outside of calls and of what replies to the controller do not show. An [`Observer`] turns them
//! into Events and metrics.

mod reason;

use std::fmt;
use std::time::Duration;

use gloo_types::{Document, ObjectKey, Resource, RouteTableDoc};
use rollouts_rpc::{Rollout, error_chain};
use route_planner::{Observation, observe};

pub use self::reason::Reason;
pub use crate::fights::FieldManager;
use crate::from_rpc::{self, Request};

/// Receives reports. It must return at once.
pub trait Observer: Send + Sync + 'static {
    /// Receives one report.
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

/// The object of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`; empty if unknown.
    pub uid: String,
}

impl About {
    /// Refers to the Rollout of a call.
    pub(crate) fn of_call(rollout: &Rollout) -> Self {
        Self {
            key: from_rpc::key(rollout),
            uid: rollout.metadata.uid.clone(),
        }
    }

    /// Refers to an object that was read.
    pub(crate) fn of<K: Resource>(document: &Document<K>) -> Self {
        Self {
            key: document.key().clone(),
            uid: document.uid().to_owned(),
        }
    }
}

/// Something that was done outside of calls, or found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "`rollout` and `table` are what the report is about; what other names do not say is documented"
)]
#[non_exhaustive]
pub enum Report {
    /// The outcome of a repair, after another client has moved traffic.
    Repair {
        rollout: About,
        table: About,
        outcome: RepairOutcome,
        /// Time from the change until the repair was written or given up.
        delay: Duration,
    },
    /// Another client repeatedly reverts the weights of a table.
    Fight {
        rollout: About,
        table: About,
        /// The last writer of the routes, if the table names it.
        with: Option<FieldManager>,
    },
    /// Number of tables in a fight.
    Fights(usize),
    /// A table has changes that the plugin made for a Rollout that was deleted or does not use the plugin.
    Orphaned {
        rollout: ObjectKey,
        table: About,
        why: OrphanCause,
        /// When the table will be restored; `None` if a person has to do it.
        after: Option<Duration>,
    },
    /// The plugin's annotation of a table cannot be read.
    Unreadable {
        table: About,
        /// The table and the reason.
        error: String,
    },
    /// Number of tables with orphaned parts.
    Orphans(usize),
    /// What a Rollout had left in a table was removed.
    Restored {
        rollout: ObjectKey,
        table: About,
        why: OrphanCause,
    },
    /// A header or mirror route could not be set or removed.
    ManagedRoutesFailed { rollout: About, error: String },
    /// Gloo rejects a table.
    GlooRejected {
        rollout: About,
        table: About,
        /// The table and Gloo's message.
        reason: String,
    },
    /// A hold of a promotion begins.
    Held { rollout: About },
    /// A promotion has been held for longer than its `timeout`, and the hold continues.
    HeldTooLong {
        rollout: About,
        /// The stable Service.
        service: String,
        /// Ready Pods behind it, and the Pods that are expected.
        ready: usize,
        wanted: usize,
    },
    /// A hold has ended.
    Released {
        rollout: About,
        end: HoldEnd,
        /// How long it was held.
        after: Duration,
    },
    /// Entries of a Rollout's plugin block select no route.
    Unmatched {
        rollout: About,
        /// The entries.
        entries: Vec<String>,
    },
    /// The tables of a Rollout have been behind its last weight for a minute.
    Behind { rollout: About, behind: Behind },
    /// They are no longer.
    CaughtUp { rollout: ObjectKey, lack: Lack },
    /// Number of Rollouts whose tables have been behind for a minute, by what they lack.
    RolloutsBehind(Lack, usize),
    /// Number of held promotions.
    Holds(usize),
    /// Whether the controller of this process is the leader; `None` if unknown.
    Leads(Option<bool>),
    /// The call of this task is answered from the cache, and the tables are checked later.
    Deferred,
    /// The call of this task is VerifyWeight at full weight. It always reads from the API server, because the controller
    /// promotes on its answer.
    Confirming,
}

/// Says which entries of a plugin block select no route.
pub fn unmatched(entries: &[String]) -> String {
    let entries = entries.join("; ");
    format!("no route of the selected tables matches {entries}: correct the entry")
}

/// What a table lacks that is behind the last weight of a Rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lack {
    /// The table does not have the weight.
    Weight,
    /// Gloo has not accepted the table with the weight.
    Acceptance,
    /// Changes of the table are not seen, so that drift waits for the next call.
    Watch,
}

impl Lack {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Weight, Self::Acceptance, Self::Watch];

    /// Returns the value of the metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Weight => "not_in_force",
            Self::Acceptance => "not_accepted",
            Self::Watch => "not_seen",
        }
    }
}

/// A table that is behind the last weight of a Rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Behind {
    /// What the table lacks.
    pub lack: Lack,
    /// The table and what is missing, in one line.
    pub reason: String,
}

impl Behind {
    /// Compares a table with the request of the last SetWeight.
    pub(crate) fn of(request: &Request, table: &RouteTableDoc) -> Option<Self> {
        match observe(&request.config, &request.intent, table) {
            Ok(Observation::Verified | Observation::NotApplicable { .. }) => None,
            Ok(Observation::NotApplied { reason }) => Some(Self::not_in_force(reason)),
            Ok(Observation::NotAccepted { reason } | Observation::Refused { reason }) => {
                let lack = Lack::Acceptance;
                Some(Self { lack, reason })
            }
            Err(error) => Some(Self::not_in_force(error_chain(&error))),
        }
    }

    fn not_in_force(reason: String) -> Self {
        let lack = Lack::Weight;
        Self { lack, reason }
    }
}

/// Why a hold has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldEnd {
    /// The stable Service routes to the new Pods.
    Complete,
    /// The `timeout` has passed, and enough new Pods are ready.
    TimedOut,
    /// Traffic could not stay on the canary Service.
    Broken,
    /// The table already routes to the stable Service.
    Ended,
}

impl HoldEnd {
    /// Returns the value of the metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::TimedOut => "timeout",
            Self::Broken => "broken",
            Self::Ended => "ended",
        }
    }
}

/// The outcome of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RepairOutcome {
    /// The weights are in force again, or that part of them that may be written now.
    Written,
    /// Another controller is the leader, or the Lease may not be read.
    FencedLease,
    /// The Rollout no longer admits the weight of its last call.
    FencedRollout,
    /// Another client wrote the table at the same time.
    Conflict,
    /// Something could not be read or written in time, or the controller was late to renew its Lease. The repair is tried again.
    Unanswered,
    /// A table could not be planned, or the API server refused a request. The repair is tried again if that is about another object.
    Failed,
}

impl RepairOutcome {
    /// Returns the value of the metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::FencedLease => "fenced_lease",
            Self::FencedRollout => "fenced_rollout",
            Self::Conflict => "conflict",
            Self::Unanswered => "unanswered",
            Self::Failed => "failed",
        }
    }
}

/// Says why a repair was not written.
impl fmt::Display for RepairOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Written => "it was written",
            Self::FencedLease => "another controller is the leader, or its Lease may not be read",
            Self::FencedRollout => "the Rollout has changed since its last call",
            Self::Conflict => "another client wrote it at the same time",
            Self::Unanswered => {
                "something could not be read or written in time; the plugin tries again"
            }
            Self::Failed => "it cannot be planned or written, and the plugin's log says why",
        })
    }
}

/// Why a part of a table is an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrphanCause {
    /// The Rollout was deleted or renamed while this process ran.
    Deleted,
    /// The Rollout does not exist, and this process has never seen it.
    NeverSeen,
    /// The Rollout exists and no longer uses this plugin.
    PluginRemoved,
    /// The Rollout exists and no longer selects the table.
    Deselected,
}

impl OrphanCause {
    /// Returns the value of the metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::NeverSeen => "never_seen",
            Self::PluginRemoved => "plugin_removed",
            Self::Deselected => "deselected",
        }
    }
}

impl fmt::Display for OrphanCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deleted => "was deleted",
            Self::NeverSeen => "does not exist",
            Self::PluginRemoved => "no longer uses this plugin",
            Self::Deselected => "no longer selects the table",
        })
    }
}

/// Writes one sentence for an Event and for the log.
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
                "RouteTable {} was changed by another client and was repaired for Rollout {}; to send all traffic to \
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
                "RouteTable {} was changed by another client and is not repaired for Rollout {}: {outcome}",
                table.key, rollout.key
            ),
            Self::Fight {
                rollout,
                table,
                with,
            } => {
                write!(
                    f,
                    "the weights of Rollout {} in RouteTable {} are reverted repeatedly",
                    rollout.key, table.key
                )?;
                match with {
                    Some(manager) => write!(f, " by {manager}"),
                    None => f.write_str("; metadata.managedFields does not name the other writer"),
                }
            }
            Self::Fights(count) => write!(f, "tables in a fight with another writer: {count}"),
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
                        "it is not restored automatically: run rollouts-plugin-trafficrouter-glooplatform restore {rollout}"
                    ),
                }
            }
            Self::Unreadable { error, .. } => write!(
                f,
                "{error}; nothing is repaired or restored from it until it is corrected or removed"
            ),
            Self::Orphans(count) => {
                write!(f, "tables with orphaned parts: {count}")
            }
            Self::Restored {
                rollout,
                table,
                why,
            } => write!(
                f,
                "RouteTable {} was restored: Rollout {rollout} {why}",
                table.key
            ),
            Self::ManagedRoutesFailed { error, .. } => f.write_str(error),
            Self::GlooRejected { reason, .. } => f.write_str(reason),
            Self::Held { .. } => f.write_str(
                "traffic stays on the canary Service until the stable Service routes to the new Pods",
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
                    "traffic goes to the stable Service, which routes to the new Pods"
                }
                HoldEnd::TimedOut => {
                    "traffic goes to the stable Service, which routes to at least half of the new Pods"
                }
                HoldEnd::Broken => {
                    "traffic goes to the stable Service, as the Pods behind the canary Service are no longer those that \
                     were promoted"
                }
                HoldEnd::Ended => "traffic goes to the stable Service already",
            }),
            Self::Unmatched { entries, .. } => f.write_str(&unmatched(entries)),
            Self::Behind { behind, .. } => {
                f.write_str(match behind.lack {
                    Lack::Weight => "the last weight is not in force",
                    Lack::Acceptance => "Gloo has not accepted the last weight",
                    Lack::Watch => "drift is repaired only by the next call",
                })?;
                write!(f, ": {}", behind.reason)
            }
            Self::CaughtUp { lack, .. } => f.write_str(match lack {
                Lack::Weight => "the last weight is in force",
                Lack::Acceptance => "Gloo has accepted the last weight",
                Lack::Watch => "drift is repaired between the calls",
            }),
            Self::RolloutsBehind(lack, count) => {
                let what = match lack {
                    Lack::Weight => "their last weight is not in force",
                    Lack::Acceptance => "Gloo has not accepted their last weight",
                    Lack::Watch => "changes of their tables are not seen",
                };
                write!(f, "Rollouts that are behind because {what}: {count}")
            }
            Self::Holds(count) => write!(f, "held promotions: {count}"),
            Self::Leads(leads) => f.write_str(match leads {
                Some(true) => "the controller is the leader",
                Some(false) => "the controller is not the leader",
                None => "it is unknown whether the controller is the leader",
            }),
            Self::Deferred => f.write_str("answered before the tables are known"),
            Self::Confirming => f.write_str("checks a promotion"),
        }
    }
}
