//! RouteTables as YAML documents in a directory: the same routing without a cluster.
//!
//! A file is replaced as a whole (written beside it, then renamed), so a reader never sees half a
//! file. While a document differs from what its owner wrote it is in the form our YAML writer
//! gives it; once every document of a file is back to what it was, the owner's own text returns,
//! comments included. That text is remembered by the running store, not on disk.

use std::{
    collections::HashMap,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use gloo_types::{ObjectKey, RouteTableDoc, RouteTableSelector};
use json_patch::Patch;
use serde_json::{Value, json};

use crate::{RouteStore, StoreError, pick::pick};

/// Namespace of a document that names none.
const DEFAULT_NAMESPACE: &str = "default";

/// RouteTables in the `.yaml` and `.yml` files of one directory. Documents of other kinds are left alone.
#[derive(Debug, Clone)]
pub struct DirRouteStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    /// The owners' texts of files that are not as their owner wrote them; also the lock of all file access.
    originals: Mutex<HashMap<PathBuf, String>>,
}

impl DirRouteStore {
    /// A store over the files in `dir`, read anew on every call.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            inner: Arc::new(Inner {
                dir: dir.into(),
                originals: Mutex::default(),
            }),
        }
    }

    /// File access blocks, so it leaves the async threads.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        done.unwrap_or_else(|panicked| Err(unreachable_dir("use", &self.inner.dir, panicked)))
    }
}

impl RouteStore for DirRouteStore {
    async fn select(
        &self,
        selector: &RouteTableSelector,
    ) -> Result<Vec<RouteTableDoc>, StoreError> {
        let selector = selector.clone();
        self.blocking(move |inner| {
            let mut tables = inner.tables()?;
            tables.sort_by(|a, b| a.key().cmp(b.key()));
            pick(tables, &selector)
        })
        .await
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        let key = key.clone();
        self.blocking(move |inner| {
            let found = inner
                .tables()?
                .into_iter()
                .find(|table| *table.key() == key);
            found.ok_or_else(|| StoreError::table_not_found(&key))
        })
        .await
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        let (key, patch) = (key.clone(), patch.clone());
        self.blocking(move |inner| inner.patch(&key, &patch)).await
    }
}

impl Inner {
    fn tables(&self) -> Result<Vec<RouteTableDoc>, StoreError> {
        let mut tables = Vec::new();
        for file in self.files()? {
            for document in file
                .documents
                .iter()
                .filter(|document| is_route_table(document))
            {
                tables.push(parse(&file.path, with_version(document))?);
            }
        }
        Ok(tables)
    }

    fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        let mut originals = self
            .originals
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for mut file in self.files()? {
            for index in 0..file.documents.len() {
                let Some(document) = file.documents.get_mut(index) else {
                    continue;
                };
                if !is_route_table(document)
                    || parse(&file.path, with_version(document))?.key() != key
                {
                    continue;
                }
                let mut patched = with_version(document);
                json_patch::patch(&mut patched, patch)
                    .map_err(|_| StoreError::Conflict(key.clone()))?;
                *document = without_version(patched, document);
                let table = parse(&file.path, with_version(document))?;
                file.replace(&mut originals)?;
                return Ok(table);
            }
        }
        Err(StoreError::table_not_found(key))
    }

    fn files(&self) -> Result<Vec<File>, StoreError> {
        let mut paths = Vec::new();
        for entry in
            fs::read_dir(&self.dir).map_err(|error| unreachable_dir("list", &self.dir, error))?
        {
            let path = entry
                .map_err(|error| unreachable_dir("list", &self.dir, error))?
                .path();
            if path
                .extension()
                .is_some_and(|extension| extension == "yaml" || extension == "yml")
            {
                paths.push(path);
            }
        }
        paths.sort();
        paths.into_iter().map(File::read).collect()
    }
}

struct File {
    path: PathBuf,
    text: String,
    documents: Vec<Value>,
}

impl File {
    fn read(path: PathBuf) -> Result<Self, StoreError> {
        let text =
            fs::read_to_string(&path).map_err(|error| unreachable_dir("read", &path, error))?;
        let documents = documents(&text).map_err(|error| unreadable(&path, error))?;
        Ok(Self {
            path,
            text,
            documents,
        })
    }

    /// Writes `documents`, as the owner's text when they equal what the owner wrote.
    fn replace(self, originals: &mut HashMap<PathBuf, String>) -> Result<(), StoreError> {
        let original = originals
            .get(&self.path)
            .filter(|text| documents(text).is_ok_and(|was| was == self.documents));
        let text = match original {
            Some(original) => original.clone(),
            None => serde_saphyr::to_string_multiple(&self.documents)
                .map_err(|error| unreadable(&self.path, error))?,
        };
        let at_rest = original.is_some();
        write_atomically(&self.path, &text)
            .map_err(|error| unreachable_dir("write", &self.path, error))?;
        if at_rest {
            originals.remove(&self.path);
        } else {
            originals.entry(self.path).or_insert(self.text);
        }
        Ok(())
    }
}

fn documents(text: &str) -> Result<Vec<Value>, serde_saphyr::Error> {
    serde_saphyr::from_multiple(text)
}

fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().unwrap_or_else(|| Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.as_file()
        .set_permissions(fs::metadata(path)?.permissions())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn is_route_table(document: &Value) -> bool {
    document.get("kind").and_then(Value::as_str) == Some("RouteTable")
}

/// The document as a store hands it out: it has a namespace, and a version that changes with its content.
fn with_version(document: &Value) -> Value {
    let mut hasher = DefaultHasher::new();
    document.to_string().hash(&mut hasher);
    let mut versioned = document.clone();
    if let Some(metadata) = versioned.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert(
            "resourceVersion".into(),
            json!(format!("{:016x}", hasher.finish())),
        );
        metadata
            .entry("namespace")
            .or_insert_with(|| json!(DEFAULT_NAMESPACE));
    }
    versioned
}

/// Takes back what [`with_version`] added to `was`.
fn without_version(mut document: Value, was: &Value) -> Value {
    if let Some(metadata) = document.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in ["resourceVersion", "namespace"] {
            match was.pointer(&format!("/metadata/{key}")) {
                Some(value) => metadata.insert(key.into(), value.clone()),
                None => metadata.shift_remove(key),
            };
        }
    }
    document
}

fn parse(path: &Path, table: Value) -> Result<RouteTableDoc, StoreError> {
    RouteTableDoc::from_value(table).map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Unreadable {
        what: path.display().to_string(),
        source: Box::new(source),
    }
}

fn unreachable_dir(
    verb: &'static str,
    path: &Path,
    source: impl std::error::Error + Send + Sync + 'static,
) -> StoreError {
    StoreError::Unreachable {
        verb,
        what: path.display().to_string(),
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests;
