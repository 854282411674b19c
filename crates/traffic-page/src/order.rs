//! What the buttons of the page ask for.

/// A version of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Counted from 1.
    pub number: u32,
    /// Whether a part of its answers are errors.
    pub fails: bool,
}

impl Version {
    /// The one that is there at first.
    pub const FIRST: Self = Self {
        number: 1,
        fails: false,
    };
}

/// What a person does to the Rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Another image.
    NewVersion {
        /// Whether it is a bad one.
        fails: bool,
    },
    /// `kubectl argo rollouts promote`
    Promote,
    /// `kubectl argo rollouts promote --full`
    PromoteFully,
    /// `kubectl argo rollouts abort`
    Abort,
    /// `kubectl argo rollouts retry rollout`
    Retry,
    /// `kubectl argo rollouts pause`, and again to go on.
    Pause,
}

impl Deed {
    /// All of them, by the name that the page uses.
    pub const ALL: [(&'static str, Self); 7] = [
        ("new", Self::NewVersion { fails: false }),
        ("bad", Self::NewVersion { fails: true }),
        ("promote", Self::Promote),
        ("full", Self::PromoteFully),
        ("abort", Self::Abort),
        ("retry", Self::Retry),
        ("pause", Self::Pause),
    ];

    /// What the log says of it. `new` is the version that is deployed now, `before` the one that was until then.
    #[must_use]
    pub fn describe(self, new: Version, before: Version, is_paused: bool) -> String {
        match self {
            Self::NewVersion { fails: false } => format!("deploy version {}", new.number),
            Self::NewVersion { fails: true } => {
                format!(
                    "deploy version {}, which fails every third request",
                    new.number
                )
            }
            Self::Promote => format!("promote version {}", before.number),
            Self::PromoteFully => format!("promote version {}, skip the steps", before.number),
            Self::Abort => format!("abort version {}", before.number),
            Self::Retry => format!("retry version {}", before.number),
            Self::Pause if is_paused => "pause".to_owned(),
            Self::Pause => "go on".to_owned(),
        }
    }
}

/// Something that can be wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Switch {
    /// Nobody can read or write RouteTables.
    Away,
    /// The gateway hears of endpoints late.
    Late,
    /// Old Pods end as soon as they are not needed.
    AtOnce,
    /// Promotions do not wait for Pods.
    GuardOff,
    /// The Rollout is deleted.
    Deleted,
}

impl Switch {
    /// All of them, by the name that the page uses.
    pub const ALL: [(&'static str, Self); 5] = [
        ("away", Self::Away),
        ("late", Self::Late),
        ("at_once", Self::AtOnce),
        ("guard_off", Self::GuardOff),
        ("deleted", Self::Deleted),
    ];
}

/// What the page asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Something that a person does to the Rollout.
    Act(Deed),
    /// Kill the plugin.
    Kill,
    /// Write the RouteTable as its owner has it.
    Revert,
    /// Turn a switch on or off.
    Turn(Switch),
}

impl Order {
    /// The order of this name; `None` if there is none.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let deeds = Deed::ALL.map(|(name, deed)| (name, Self::Act(deed)));
        let switches = Switch::ALL.map(|(name, switch)| (name, Self::Turn(switch)));
        let others = [("kill", Self::Kill), ("revert", Self::Revert)];
        let mut all = deeds.into_iter().chain(switches).chain(others);
        all.find(|(known, _)| *known == name)
            .map(|(_, order)| order)
    }
}
