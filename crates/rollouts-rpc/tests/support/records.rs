//! The log records of a test.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use rollouts_rpc::goplugin::log::{HclogLayer, LogFormat};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt as _;

/// The records of the current thread, one JSON object per line.
#[derive(Clone, Default)]
pub(crate) struct Records(Arc<Mutex<Vec<u8>>>);

impl Records {
    /// Records until the guard is dropped.
    pub(crate) fn start() -> (Self, DefaultGuard) {
        let records = Self::default();
        let layer = HclogLayer::new(LogFormat::Json, records.clone());
        let subscriber = tracing_subscriber::registry().with(layer);
        (records, tracing::subscriber::set_default(subscriber))
    }

    /// Checks that there is exactly one error record, which contains `expect`, or none if `expect` is empty.
    #[track_caller]
    pub(crate) fn check_errors(&self, expect: &str) {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let is_error = |line: &&str| line.contains(r#""@level":"error""#);
        let errors: Vec<&str> = text.lines().filter(is_error).collect();
        match errors.as_slice() {
            [] => assert_eq!(expect, "", "{text}"),
            [error] => assert!(!expect.is_empty() && error.contains(expect), "{error}"),
            errors => panic!("{errors:?}"),
        }
    }
}

impl Write for Records {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
