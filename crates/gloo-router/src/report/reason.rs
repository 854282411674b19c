//! The reasons of Events, and how severe each is.

use route_store::event_sink::Severity;

/// The `reason` of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A change that moved traffic was repaired.
    TrafficDriftRepaired,
    /// Another writer repeatedly changes the weights.
    TrafficDriftFight,
    /// A header or mirror route could not be set or removed. The controller reports errors of SetWeight only.
    ManagedRoutesError,
    /// Gloo rejects the table.
    GlooRejected,
    /// The stable Service does not route to the promoted Pods yet.
    PromotionHeld,
    /// The stable Service routes to the promoted Pods, or traffic could not stay on the canary Service.
    PromotionReleased,
    /// A promotion is held for longer than `timeout`.
    PromotionGuardTimeout,
    /// A table has changes that the plugin made for a Rollout that was deleted or no longer uses the plugin.
    OrphanedTraffic,
    /// Such changes were removed from a table.
    TrafficRestored,
    /// The annotation of a table cannot be read.
    UnreadableRecord,
    /// The last weight is not in force or not accepted, or changes of a table are not seen.
    TrafficBehind,
    /// An entry of the plugin block selects no route.
    NothingSelected,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 12] = [
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
        Self::TrafficBehind,
        Self::NothingSelected,
    ];

    /// Returns the value of `reason`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
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
            Self::TrafficBehind => "TrafficBehind",
            Self::NothingSelected => "NothingSelected",
        }
    }

    /// Returns the `type` of the Event.
    #[must_use]
    pub const fn severity(self) -> Severity {
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
            | Self::UnreadableRecord
            | Self::TrafficBehind
            | Self::NothingSelected => Severity::Warning,
        }
    }
}
