//! The tested releases of the controller.

/// A release of the Rollouts controller.
pub(crate) struct Release {
    pub(crate) version: &'static str,
    /// Below [`crate::go::MODULE`]; it pins the release and its dependencies.
    pub(crate) go_mod: &'static str,
    /// Build tags that exclude tests of features that the release does not have.
    pub(crate) tags: &'static str,
    /// Whether every run tests it, also with a cluster. True for the oldest and the two newest.
    pub(crate) always: bool,
}

/// Oldest first.
pub(crate) const RELEASES: &[Release] = &[
    Release::always("1.5.1", "versions/1.5.1.mod", "before_1_8"),
    Release::in_matrix("1.6.6", "versions/1.6.6.mod", "before_1_8"),
    Release::in_matrix("1.7.2", "versions/1.7.2.mod", "before_1_8"),
    Release::in_matrix("1.8.5", "versions/1.8.5.mod", ""),
    Release::always("1.9.3", "go.mod", ""),
    Release::always("1.10.2", "versions/1.10.2.mod", ""),
];

impl Release {
    const fn always(version: &'static str, go_mod: &'static str, tags: &'static str) -> Self {
        Self {
            always: true,
            ..Self::in_matrix(version, go_mod, tags)
        }
    }

    const fn in_matrix(version: &'static str, go_mod: &'static str, tags: &'static str) -> Self {
        Self {
            version,
            go_mod,
            tags,
            always: false,
        }
    }
}
