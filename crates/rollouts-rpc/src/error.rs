//! The error type that a plugin returns.

use std::error::Error;
use std::fmt;

/// What a plugin's methods return.
pub type Result<T = (), E = PluginError> = std::result::Result<T, E>;

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

/// The name of a type without the modules it is in.
pub(crate) fn short_name<T: ?Sized>() -> &'static str {
    let name = std::any::type_name::<T>();
    let name = name.split('<').next().unwrap_or(name);
    name.rsplit("::").next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_named_after_its_type() {
        assert_eq!(short_name::<PluginError>(), "PluginError");
        assert_eq!(short_name::<Option<PluginError>>(), "Option");
        assert_eq!(short_name::<u8>(), "u8");
    }
}
