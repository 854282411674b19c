//! How a plugin says no.

use std::error::Error;
use std::fmt;

/// Why a plugin did not do what it was asked: any error, with its causes.
///
/// Made from any error by `?`, or from a text by [`PluginError::from`]. It becomes text only at the
/// wire: one line without `%`, the causes joined by `": "`.
pub struct PluginError(Box<dyn Error + Send + Sync>);

impl PluginError {
    /// The error itself; its causes are its sources.
    #[must_use]
    pub fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

// Like `anyhow::Error` this does not implement `Error`: that would forbid the conversion below.
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for PluginError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl fmt::Debug for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
