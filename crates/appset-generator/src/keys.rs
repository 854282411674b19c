//! A key that somebody may write: its name, and what its page says of it.

/// A key of the configuration, or a parameter of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it holds and does, in Markdown.
    pub about: &'static str,
    /// What counts where it is unset, in Markdown; empty if that is nothing.
    pub default: &'static str,
}

impl Key {
    pub(crate) const fn new(
        name: &'static str,
        about: &'static str,
        default: &'static str,
    ) -> Self {
        Self {
            name,
            about,
            default,
        }
    }
}

/// The names of keys, as [`strict_json::Block`] takes them.
pub(crate) fn names(keys: &[Key]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}
