//! The rules of the model, and those that the code is known to break.

/// A rule of the plugin's behaviour over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Down is per table; up is all or nothing.
    T1,
    /// Down is per route.
    T2,
    /// An error names everything that was left.
    T3,
    /// An annotation that cannot be read does not stop weight 0.
    T4,
    /// RemoveManagedRoutes never keeps SetWeight from being called.
    T5,
    /// A slow table does not use up the time of the others.
    T6,
    /// A record is matched to a route by its content.
    T8,
    /// An original comes back although the owner removed the plugin's destination or labels, or changed the matchers.
    Bare,
    /// An owner's own route to the canary's Service is not taken for one that the plugin has split.
    Preview,
    /// A record whose route is not found stays.
    T9,
    /// Without the annotation, stable is made from the canary.
    T10,
    /// Without the annotation, weights that the status tells are taken back.
    T11,
    /// What the owner changes in the stable destination reaches the canary's.
    T12,
    /// An owner who replaced stable keeps the replacement.
    T13,
    /// A destination with weight 0 gets nothing.
    T14,
    /// With ping-pong both Services are anchors.
    T15,
    /// A route is split by one Rollout.
    T16,
    /// Subsets stay until the pods of the other version are gone.
    T17,
}

/// Rules that the code does not keep yet: their actions are not tried, and what they promise is not checked.
const KNOWN_VIOLATIONS: &[Rule] = &[Rule::T6, Rule::Bare, Rule::T15, Rule::T17];

/// Whether a rule is tried and checked. `MODEL_RULES` names rules to try although they are known to be broken.
pub(crate) fn is_enforced(rule: Rule) -> bool {
    let tried = || {
        std::env::var("MODEL_RULES")
            .is_ok_and(|rules| rules.split(',').any(|name| name == format!("{rule:?}")))
    };
    !KNOWN_VIOLATIONS.contains(&rule) || tried()
}
