//! Why Events are posted, and to which cluster each goes.

use route_store::event_sink::{Event, EventObject, EventSink, Severity};

/// Why an Event is posted: its `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// A change that moved traffic was undone.
    TrafficDriftRepaired,
    /// Another writer keeps changing the weights.
    TrafficDriftFight,
    /// A header or mirror route could not be set or removed. The controller shows errors of weights only.
    ManagedRoutesError,
    /// Gloo does not accept the table as it is.
    GlooRejected,
    /// The stable Service does not lead to the promoted Pods yet.
    PromotionHeld,
    /// It does, or traffic could not stay on the canary Service.
    PromotionReleased,
    /// It took longer than `timeout`.
    PromotionGuardTimeout,
    /// A table has parts of a Rollout that is gone.
    OrphanedTraffic,
    /// What a Rollout that is gone had left in a table was removed.
    TrafficRestored,
    /// The annotation of a table cannot be read.
    UnreadableRecord,
}

impl Reason {
    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 10] = [
        Self::TrafficDriftRepaired,
        Self::TrafficDriftFight,
        Self::ManagedRoutesError,
        Self::GlooRejected,
        Self::PromotionHeld,
        Self::PromotionReleased,
        Self::PromotionGuardTimeout,
        Self::OrphanedTraffic,
        Self::TrafficRestored,
        Self::UnreadableRecord,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::TrafficDriftRepaired => "TrafficDriftRepaired",
            Self::TrafficDriftFight => "TrafficDriftFight",
            Self::ManagedRoutesError => "ManagedRoutesError",
            Self::GlooRejected => "GlooRejected",
            Self::PromotionHeld => "PromotionHeld",
            Self::PromotionReleased => "PromotionReleased",
            Self::PromotionGuardTimeout => "PromotionGuardTimeout",
            Self::OrphanedTraffic => "OrphanedTraffic",
            Self::TrafficRestored => "TrafficRestored",
            Self::UnreadableRecord => "UnreadableRecord",
        }
    }

    const fn severity(self) -> Severity {
        match self {
            Self::TrafficDriftRepaired
            | Self::PromotionHeld
            | Self::PromotionReleased
            | Self::TrafficRestored => Severity::Normal,
            Self::TrafficDriftFight
            | Self::PromotionGuardTimeout
            | Self::ManagedRoutesError
            | Self::GlooRejected
            | Self::OrphanedTraffic
            | Self::UnreadableRecord => Severity::Warning,
        }
    }
}

/// Posts Events. By default there is no cluster to post them to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    rollouts: Option<EventSink>,
    tables: Option<EventSink>,
}

impl Events {
    /// Events about Rollouts and about RouteTables, which may be in another cluster.
    pub(crate) fn to(rollouts: EventSink, tables: EventSink) -> Self {
        Self {
            rollouts: Some(rollouts),
            tables: Some(tables),
        }
    }

    /// An Event about a Rollout.
    pub(crate) fn on_rollout(&self, about: EventObject, reason: Reason, message: impl ToString) {
        record(self.rollouts.as_ref(), about, reason, message);
    }

    /// An Event about a RouteTable.
    pub(crate) fn on_table(&self, about: EventObject, reason: Reason, message: impl ToString) {
        record(self.tables.as_ref(), about, reason, message);
    }
}

fn record(sink: Option<&EventSink>, about: EventObject, reason: Reason, message: impl ToString) {
    if let Some(sink) = sink {
        sink.record(Event {
            about,
            severity: reason.severity(),
            reason: reason.as_str(),
            message: message.to_string(),
        });
    }
}
