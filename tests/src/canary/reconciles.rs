//! The reconciles of one Rollout in the log of a controller. Only new lines are read, because a log grows to hundreds of
//! megabytes in some hours.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::Result;

/// The reconciles of one Rollout in the log of a controller.
#[derive(Debug)]
pub(super) struct Reconciles {
    log: PathBuf,
    /// Texts in a line about the Rollout.
    about: [String; 2],
    /// Number of bytes that were read.
    read: u64,
    last: String,
}

impl Reconciles {
    /// The reconciles of a Rollout in the log of its controller.
    pub(super) fn new(log: &Path, namespace: &str, rollout: &str) -> Self {
        Self {
            log: log.to_owned(),
            about: [
                format!(" namespace={namespace} "),
                format!(" rollout={rollout} "),
            ],
            read: 0,
            last: String::new(),
        }
    }

    /// Returns the line of the last completed reconcile; empty before the first.
    ///
    /// # Errors
    /// Returns `Err` if the log cannot be read.
    pub(super) fn last(&mut self) -> Result<&str> {
        let mut file = File::open(&self.log)?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut new = Vec::new();
        file.read_to_end(&mut new)?;
        // The last line may be incomplete.
        let whole = new.iter().rposition(|byte| *byte == b'\n');
        new.truncate(whole.map_or(0, |end| end + 1));
        self.read += u64::try_from(new.len())?;
        let new = String::from_utf8_lossy(&new);
        let last = new.lines().rfind(|line| {
            line.contains("\"Reconciliation completed\"")
                && self.about.iter().all(|it| line.contains(it))
        });
        if let Some(last) = last {
            last.clone_into(&mut self.last);
        }
        Ok(&self.last)
    }
}
