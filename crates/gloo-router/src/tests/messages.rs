//! Every message of this crate that a person sees, once, as a file to read from top to bottom.
//!
//! Each `after` matches all variants and returns the example that follows, so a new variant does not compile until it is listed.

use std::fmt;
use std::time::Duration;

use gloo_types::ObjectKey;
use rollouts_rpc::rollout::Outdated;
use route_planner::{ConfigError, ConfigProblem, PlanError, Refusal};
use route_store::StoreError;

use crate::error::{Failure, Failures, ShiftError};
use crate::report::{About, Behind, HoldEnd, Lack, OrphanCause, RepairOutcome, Report};

fn list<M: fmt::Display>(first: M, after: impl Fn(&M) -> Option<M>) -> String {
    let all = std::iter::successors(Some(first), after);
    all.map(|it| format!("{it}\n")).collect()
}

fn rollout() -> ObjectKey {
    ObjectKey::new("shop", "reviews")
}

fn table() -> ObjectKey {
    ObjectKey::new("gloo-mesh", "shop")
}

fn gone() -> StoreError {
    StoreError::NotFound {
        what: format!("RouteTable {}", table()),
    }
}

fn after_shift(it: &ShiftError) -> Option<ShiftError> {
    use ShiftError as E;
    Some(match it {
        E::NoCanary(_) => E::NoTrafficRouting(rollout()),
        E::NoTrafficRouting(_) => E::NamespaceNotAllowed {
            rollout: rollout(),
            namespace: "gloo-mesh".to_owned(),
        },
        E::NamespaceNotAllowed { .. } => E::Config(ConfigError {
            rollout: rollout(),
            problem: ConfigProblem::NoSelector,
        }),
        E::Config(_) => E::Unusable {
            block: Box::new(E::NoTrafficRouting(rollout())),
            restored: Vec::new(),
            failures: None,
        },
        E::Unusable { restored, .. } if restored.is_empty() => E::Unusable {
            block: Box::new(E::NoTrafficRouting(rollout())),
            restored: vec![table()],
            failures: Some(Failure::Store(gone()).into()),
        },
        E::Unusable { .. } => E::InvalidName {
            of: "a Service",
            name: "Not A Name".to_owned(),
        },
        E::InvalidName { .. } => E::NotAPercentage(101),
        E::NotAPercentage(_) => E::Partial(Failure::Store(gone()).into()),
        E::Partial(_) => return None,
    })
}

fn after_failure(it: &Failure) -> Option<Failure> {
    use Failure as F;
    let object = format!("RouteTable {}", table());
    Some(match it {
        F::Plan(_) => F::Store(gone()),
        F::Store(_) => F::NotWritten(object),
        F::NotWritten(_) => F::NotRead(object),
        F::NotRead(_) => F::NotAccepted(format!("{object}: not yet accepted by Gloo (PENDING)")),
        F::NotAccepted(_) => F::Outdated {
            rollout: rollout(),
            why: Outdated::Abort,
        },
        F::Outdated { .. } => F::NothingSelected {
            rollout: rollout(),
            selector: "names shop; namespaces gloo-mesh".to_owned(),
        },
        F::NothingSelected { .. } => F::Read {
            rollout: rollout(),
            source: Box::new(gone()),
        },
        F::Read { .. } => F::Policies {
            rollout: rollout(),
            source: Box::new(gone()),
        },
        F::Policies { .. } => F::NotRestored {
            table: table(),
            source: Box::new(F::Store(gone())),
        },
        F::NotRestored { .. } => return None,
    })
}

/// A failure as a call returns it.
fn line(failure: Failure) -> String {
    Failures::from(failure).to_string()
}

fn about(key: ObjectKey) -> About {
    About {
        key,
        uid: String::new(),
    }
}

fn repair(outcome: RepairOutcome) -> Report {
    Report::Repair {
        rollout: about(rollout()),
        table: about(table()),
        outcome,
        delay: Duration::from_secs(1),
    }
}

fn orphaned(why: OrphanCause) -> Report {
    Report::Orphaned {
        rollout: rollout(),
        table: about(table()),
        why,
        after: (why != OrphanCause::NeverSeen).then_some(Duration::from_secs(30)),
    }
}

fn released(end: HoldEnd) -> Report {
    Report::Released {
        rollout: about(rollout()),
        end,
        after: Duration::from_secs(9),
    }
}

fn behind(lack: Lack) -> Report {
    let reason = "RouteTable gloo-mesh/shop: no watch".to_owned();
    Report::Behind {
        rollout: about(rollout()),
        behind: Behind { lack, reason },
    }
}

fn caught_up(lack: Lack) -> Report {
    Report::CaughtUp {
        rollout: rollout(),
        lack,
    }
}

fn next_lack(lack: Lack) -> Option<Lack> {
    Some(match lack {
        Lack::Weight => Lack::Acceptance,
        Lack::Acceptance => Lack::Watch,
        Lack::Watch => return None,
    })
}

fn after_report(it: &Report) -> Option<Report> {
    use Report as R;
    let (about_rollout, about_table) = (about(rollout()), about(table()));
    let error = "RouteTable gloo-mesh/shop: the API server answered 500".to_owned();
    Some(match it {
        R::Repair { outcome, .. } => match outcome {
            RepairOutcome::Written => repair(RepairOutcome::FencedLease),
            RepairOutcome::FencedLease => repair(RepairOutcome::FencedRollout),
            RepairOutcome::FencedRollout => repair(RepairOutcome::Conflict),
            RepairOutcome::Conflict => repair(RepairOutcome::Unanswered),
            RepairOutcome::Unanswered => repair(RepairOutcome::Failed),
            RepairOutcome::Failed => R::Fight {
                rollout: about_rollout,
                table: about_table,
                with: None,
            },
        },
        R::Fight { .. } => R::Fights(2),
        R::Fights(_) => orphaned(OrphanCause::Deleted),
        R::Orphaned { why, .. } => match why {
            OrphanCause::Deleted => orphaned(OrphanCause::NeverSeen),
            OrphanCause::NeverSeen => orphaned(OrphanCause::PluginRemoved),
            OrphanCause::PluginRemoved => orphaned(OrphanCause::Deselected),
            OrphanCause::Deselected => R::Unreadable {
                table: about_table,
                error,
            },
        },
        R::Unreadable { .. } => R::Orphans(2),
        R::Orphans(_) => R::Restored {
            rollout: rollout(),
            table: about_table,
            why: OrphanCause::Deleted,
        },
        R::Restored { .. } => R::ManagedRoutesFailed {
            rollout: about_rollout,
            error,
        },
        R::ManagedRoutesFailed { .. } => R::GlooRejected {
            rollout: about_rollout,
            table: about_table,
            reason: "RouteTable gloo-mesh/shop: Gloo refuses it (INVALID): no such Service"
                .to_owned(),
        },
        R::GlooRejected { .. } => R::Held {
            rollout: about_rollout,
        },
        R::Held { .. } => R::HeldTooLong {
            rollout: about_rollout,
            service: "reviews".to_owned(),
            ready: 3,
            wanted: 5,
        },
        R::HeldTooLong { .. } => released(HoldEnd::Complete),
        R::Released { end, .. } => match end {
            HoldEnd::Complete => released(HoldEnd::TimedOut),
            HoldEnd::TimedOut => released(HoldEnd::Broken),
            HoldEnd::Broken => released(HoldEnd::Ended),
            HoldEnd::Ended => R::Unmatched {
                rollout: about_rollout,
                entries: vec!["routeSelector name: typo".to_owned()],
            },
        },
        R::Unmatched { .. } => behind(Lack::Weight),
        R::Behind { behind: it, .. } => {
            next_lack(it.lack).map_or_else(|| caught_up(Lack::Weight), behind)
        }
        R::CaughtUp { lack, .. } => {
            next_lack(*lack).map_or(R::RolloutsBehind(Lack::Weight, 2), caught_up)
        }
        R::RolloutsBehind(lack, _) => {
            next_lack(*lack).map_or(R::Holds(1), |lack| R::RolloutsBehind(lack, 2))
        }
        R::Holds(_) => R::Leads(Some(true)),
        R::Leads(Some(true)) => R::Leads(Some(false)),
        R::Leads(Some(false)) => R::Leads(None),
        R::Leads(None) => R::Deferred,
        R::Deferred => R::Confirming,
        R::Confirming => return None,
    })
}

#[test]
fn every_message() {
    let plan = Failure::Plan(PlanError::Refused {
        table: table(),
        rollout: rollout(),
        refusal: Box::new(Refusal::TopPlacement),
    });
    let failures = std::iter::successors(Some(plan), after_failure);
    let failures: String = failures.map(|failure| line(failure) + "\n").collect();
    let no_canary = ShiftError::NoCanary(rollout());
    let parts = [
        ("A call fails", list(no_canary, after_shift)),
        ("A part of a call fails", failures),
        (
            "Events and the log",
            list(repair(RepairOutcome::Written), after_report),
        ),
    ];
    let text: String = parts
        .map(|(head, lines)| format!("# {head}\n\n{lines}\n"))
        .concat();
    insta::assert_snapshot!(text);
}
