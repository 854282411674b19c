//! The commands that the buttons of the page send.

/// A version of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Number, from 1.
    pub number: u32,
    /// Whether some of its answers are errors.
    pub fails: bool,
}

impl Version {
    /// The version at the start.
    pub const FIRST: Self = Self {
        number: 1,
        fails: false,
    };
}

/// What a user does to the Rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sets another image.
    NewVersion {
        /// Whether the version fails.
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
    /// `kubectl argo rollouts pause`; a second time resumes.
    Pause,
}

impl Action {
    /// All actions, by their name in the page.
    pub const ALL: [(&'static str, Self); 7] = [
        ("new", Self::NewVersion { fails: false }),
        ("bad", Self::NewVersion { fails: true }),
        ("promote", Self::Promote),
        ("full", Self::PromoteFully),
        ("abort", Self::Abort),
        ("retry", Self::Retry),
        ("pause", Self::Pause),
    ];

    /// Returns the text in the log. `new` is the version that is deployed by the action, `before` the version before it.
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
            Self::Pause => "resume".to_owned(),
        }
    }
}

/// A fault that can be turned on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Switch {
    /// RouteTables cannot be read or written.
    Away,
    /// The gateway receives endpoints late.
    Late,
    /// Old Pods end as soon as they are not needed.
    AtOnce,
    /// Promotions do not wait for Pods.
    GuardOff,
    /// The Rollout is deleted.
    Deleted,
}

impl Switch {
    /// All switches, by their name in the page.
    pub const ALL: [(&'static str, Self); 5] = [
        ("away", Self::Away),
        ("late", Self::Late),
        ("at_once", Self::AtOnce),
        ("guard_off", Self::GuardOff),
        ("deleted", Self::Deleted),
    ];
}

/// A command of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Changes the Rollout.
    Act(Action),
    /// Kills the plugin.
    Kill,
    /// Restores the owner's RouteTable.
    Revert,
    /// Turns a switch on or off.
    Turn(Switch),
}

impl Command {
    /// Returns the command with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let actions = Action::ALL.map(|(name, action)| (name, Self::Act(action)));
        let switches = Switch::ALL.map(|(name, switch)| (name, Self::Turn(switch)));
        let others = [("kill", Self::Kill), ("revert", Self::Revert)];
        let mut all = actions.into_iter().chain(switches).chain(others);
        all.find(|(known, _)| *known == name)
            .map(|(_, command)| command)
    }
}
