//! Files that may change while they are in use.
//!
//! They are read at each use, and parsed when their bytes have changed. So a change counts at once, however it was made (a mounted
//! ConfigMap changes by a swap of symbolic links), and no watcher can miss it. Readiness probes read them too, so an invalid file
//! is reported within seconds.

use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, path::PathBuf};

use anyhow::Context as _;

/// The value of the last valid content of some files.
pub(crate) struct Live<T> {
    files: Vec<PathBuf>,
    parse: Parse<T>,
    state: Mutex<State<T>>,
}

/// Parses the contents of the files, in their order.
type Parse<T> = Box<dyn Fn(&[Vec<u8>]) -> anyhow::Result<T> + Send + Sync>;

struct State<T> {
    value: Arc<T>,
    /// The bytes that were last judged.
    seen: Vec<Vec<u8>>,
    /// Why they are not in use, if so.
    problem: Option<String>,
}

impl<T> Live<T> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// When they cannot be used.
    pub(crate) fn new(
        files: Vec<PathBuf>,
        parse: impl Fn(&[Vec<u8>]) -> anyhow::Result<T> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let seen = read(&files)?;
        let value = Arc::new(parse(&seen).with_context(|| names(&files))?);
        Ok(Self {
            files,
            parse: Box::new(parse),
            state: Mutex::new(State {
                value,
                seen,
                problem: None,
            }),
        })
    }

    /// The value of the files as they are, or as they were when they were last valid.
    pub(crate) fn current(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let problem = match read(&self.files) {
            Ok(bytes) if bytes == state.seen => state.problem.clone(),
            Ok(bytes) => {
                let parsed = (self.parse)(&bytes);
                state.seen = bytes;
                match parsed {
                    Ok(value) => {
                        state.value = Arc::new(value);
                        tracing::info!(files = names(&self.files), "read again");
                        None
                    }
                    Err(error) => Some(format!("{error:#}")),
                }
            }
            Err(error) => {
                // The next content is parsed, even if it is the same.
                state.seen.clear();
                Some(format!("{error:#}"))
            }
        };
        if let Some(problem) = problem.as_ref().filter(|_| state.problem != problem) {
            tracing::error!(
                files = names(&self.files),
                problem,
                "a changed file cannot be used; what it held before still counts"
            );
        }
        state.problem = problem;
        Arc::clone(&state.value)
    }

    /// Whether the current content of the files is valid, and so in use.
    pub(crate) fn is_good(&self) -> bool {
        self.current();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.problem.is_none()
    }
}

fn read(files: &[PathBuf]) -> anyhow::Result<Vec<Vec<u8>>> {
    let contents = files
        .iter()
        .map(|file| fs::read(file).with_context(|| format!("{} cannot be read", file.display())));
    contents.collect()
}

fn names(files: &[PathBuf]) -> String {
    let names: Vec<_> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_file_keeps_what_was_good() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("number");
        let write = |text: &str| fs::write(&file, text).unwrap();
        let parse = |bytes: &[Vec<u8>]| -> anyhow::Result<i32> {
            Ok(std::str::from_utf8(&bytes[0])?.parse()?)
        };
        write("x");
        assert!(Live::new(vec![file.clone()], parse).is_err());

        write("1");
        let live = Live::new(vec![file.clone()], parse).unwrap();
        assert_eq!((*live.current(), live.is_good()), (1, true));
        write("y");
        assert_eq!((*live.current(), live.is_good()), (1, false));
        // Still bad though nothing changed.
        assert_eq!((*live.current(), live.is_good()), (1, false));
        fs::remove_file(&file).unwrap();
        assert_eq!((*live.current(), live.is_good()), (1, false));
        write("2");
        assert_eq!((*live.current(), live.is_good()), (2, true));
        // The content that is in use makes it valid again.
        fs::remove_file(&file).unwrap();
        assert!(!live.is_good());
        write("2");
        assert_eq!((*live.current(), live.is_good()), (2, true));
    }
}
