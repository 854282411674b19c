//! Manifests from files and stdin.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use gloo_types::ObjectKey;
use serde_json::Value;

use super::located::{Located, Place, Step};

/// One object of a file.
#[derive(Clone, Debug)]
pub(super) struct Manifest {
    pub(super) file: String,
    pub(super) value: Value,
    /// Absent for an object of the cluster.
    located: Option<Located>,
}

/// What could not be read, and where.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{spot}: {reason}")]
pub(super) struct Unreadable {
    pub(super) spot: Spot,
    pub(super) reason: String,
}

/// A place in a file, as compilers write it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) file: String,
    pub(super) place: Option<Place>,
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        match self.place {
            Some(Place { line, column }) => write!(f, ":{line}:{column}"),
            None => Ok(()),
        }
    }
}

impl Manifest {
    fn new(file: &str, located: &Located) -> Self {
        Self {
            file: file.to_owned(),
            value: located.value(),
            located: Some(located.clone()),
        }
    }

    /// An object of the cluster. Items of a list come without `kind`.
    pub(super) fn live(kind: &str, mut value: Value) -> Self {
        let text = |pointer| {
            value
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let key = ObjectKey::new(text("/metadata/namespace"), text("/metadata/name"));
        if let Some(fields) = value.as_object_mut() {
            fields.insert("kind".to_owned(), kind.into());
        }
        Self {
            file: format!("cluster {kind} {key}"),
            value,
            located: None,
        }
    }

    /// `kind`, empty when there is none.
    pub(super) fn kind(&self) -> &str {
        self.value
            .get("kind")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Where `path` leads to.
    pub(super) fn spot(&self, path: &[Step]) -> Spot {
        Spot {
            file: self.file.clone(),
            place: self.located.as_ref().and_then(|it| it.place(path)),
        }
    }
}

/// Reads files, the YAML and JSON files of directories, and stdin (`-`). One that cannot be read hides none of the others.
pub(super) fn read(paths: &[PathBuf]) -> (Vec<Manifest>, Vec<Unreadable>) {
    let (mut manifests, mut unreadable) = (Vec::new(), Vec::new());
    let mut collect = |path: &Path| match read_file(path) {
        Ok(found) => manifests.extend(found),
        Err(error) => unreadable.push(error),
    };
    for path in paths {
        match files_in(path) {
            None => collect(path),
            Some(files) => files.iter().for_each(|file| collect(file)),
        }
    }
    (manifests, unreadable)
}

/// The manifests of a directory, sorted; `None` if the path is not a directory.
fn files_in(path: &Path) -> Option<Vec<PathBuf>> {
    let entries = fs::read_dir(path).ok()?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_manifest = |file: &PathBuf| {
        let extension = file.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("yaml" | "yml" | "json"))
    };
    let mut files: Vec<PathBuf> = files.filter(is_manifest).collect();
    files.sort();
    Some(files)
}

fn read_file(path: &Path) -> Result<Vec<Manifest>, Unreadable> {
    let is_stdin = path == Path::new("-");
    let file = if is_stdin {
        "stdin".to_owned()
    } else {
        path.display().to_string()
    };
    let failed = |place, reason: String| Unreadable {
        spot: Spot {
            file: file.clone(),
            place,
        },
        reason,
    };
    let text = if is_stdin {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(path)
    };
    let text = text.map_err(|error| failed(None, format!("cannot be read: {error}")))?;
    let documents: Vec<Located> = serde_saphyr::from_multiple(&text).map_err(|error| {
        let place = error.location().and_then(Place::of);
        let text = error.without_snippet().to_string();
        let reason = text.lines().next().unwrap_or_default();
        failed(place, format!("no YAML: {reason}"))
    })?;
    let mut manifests = Vec::new();
    for document in &documents {
        let manifest = Manifest::new(&file, document);
        match document.list("items") {
            Some(items) if manifest.kind() == "List" => {
                manifests.extend(items.iter().map(|item| Manifest::new(&file, item)));
            }
            _ if manifest.value.is_null() => {}
            _ => manifests.push(manifest),
        }
    }
    Ok(manifests)
}
