//! RouteTables and MirrorPolicies as YAML documents in a directory, for routing without a cluster.
//!
//! A file is written to a temporary file and renamed, so a reader never sees a partial file. While a document differs from
//! its owner's content, the whole file is in the form of our YAML writer. Once all documents are equal to the owner's
//! content again, the owner's text is restored, with its comments. The running store keeps that text in memory, not on disk.

use std::{
    collections::HashMap,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use gloo_types::{
    Document, MirrorPolicyDoc, ObjectKey, Resource, RouteTable, RouteTableDoc, RouteTableSelector,
    ServicePort,
};
use json_patch::Patch;
use rollout_types::Rollout;
use serde_json::{Value, json};

use crate::{
    EndpointReader, Freshness, PolicyStore, RolloutDoc, RolloutReader, RouteStore, Selection,
    ServiceReader, StoreError, error::label, resources::Service,
};

/// Namespace of a document without one.
const DEFAULT_NAMESPACE: &str = "default";

/// A store over the `.yaml` and `.yml` files of one directory. It ignores documents of other kinds.
#[derive(Debug, Clone)]
pub struct DirRouteStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    /// The owner's text of each changed file. Its lock also serialises writes.
    originals: Mutex<HashMap<PathBuf, String>>,
}

impl DirRouteStore {
    /// A store over the files in `dir`. Every call reads them again.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            inner: Arc::new(Inner {
                dir: dir.into(),
                originals: Mutex::default(),
            }),
        }
    }

    /// Returns all objects of one kind.
    ///
    /// # Errors
    /// Returns `Err` if the directory or one of its files cannot be read.
    pub async fn objects<K: Resource>(&self) -> Result<Vec<Document<K>>, StoreError> {
        self.blocking(Inner::all).await
    }

    /// Runs `work` on a thread for blocking calls, because it accesses files.
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
    async fn select(&self, selector: &RouteTableSelector, _freshness: Freshness) -> Selection {
        let selector = selector.clone();
        let selected = self.blocking(move |inner| inner.select(&selector)).await;
        selected.unwrap_or_else(Selection::failed)
    }

    async fn marked(&self, _rollout: &ObjectKey) -> Selection {
        Selection::of_all(self.objects().await)
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        let key = key.clone();
        self.blocking(move |inner| Ok(inner.find(&key)?.2)).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        let (key, patch) = (key.clone(), patch.clone());
        self.blocking(move |inner| inner.patch(&key, &patch)).await
    }
}

impl PolicyStore for DirRouteStore {
    async fn policies(&self) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
        self.objects().await
    }

    async fn create_policy(&self, policy: &Value) -> Result<MirrorPolicyDoc, StoreError> {
        let policy = policy.clone();
        self.blocking(move |inner| inner.create(policy)).await
    }

    async fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<MirrorPolicyDoc, StoreError> {
        let (key, patch) = (key.clone(), patch.clone());
        self.blocking(move |inner| inner.patch(&key, &patch)).await
    }

    async fn delete_policy(&self, policy: &MirrorPolicyDoc) -> Result<(), StoreError> {
        let policy = policy.clone();
        self.blocking(move |inner| inner.delete(&policy)).await
    }
}

impl RolloutReader for DirRouteStore {
    async fn rollout(&self, key: &ObjectKey) -> Result<Option<RolloutDoc>, StoreError> {
        let key = key.clone();
        self.blocking(move |inner| match inner.find::<Rollout>(&key) {
            Ok((_, _, rollout)) => Ok(Some(rollout)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }
}

/// A directory has no endpoints.
impl EndpointReader for DirRouteStore {}

impl ServiceReader for DirRouteStore {
    async fn service_ports(&self, key: &ObjectKey) -> Result<Option<Vec<ServicePort>>, StoreError> {
        let key = key.clone();
        self.blocking(move |inner| match inner.find::<Service>(&key) {
            Ok((_, _, service)) => Ok(Some(ServicePort::all(service.raw()))),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }
}

impl Inner {
    fn all<K: Resource>(&self) -> Result<Vec<Document<K>>, StoreError> {
        let mut objects = Vec::new();
        for file in self.files()? {
            let file = file?;
            for document in &file.documents {
                objects.extend(file.parse(document)?);
            }
        }
        Ok(objects)
    }

    fn select(&self, selector: &RouteTableSelector) -> Result<Selection, StoreError> {
        let (mut tables, mut errors) = (Vec::new(), Vec::new());
        for file in self.files()? {
            match file {
                Ok(file) => {
                    for document in &file.documents {
                        match file.parse(document) {
                            Ok(table) => tables.extend(table),
                            Err(error) => errors.push(error),
                        }
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        Ok(Selection::of(selector, tables, errors))
    }

    fn patch<K: Resource>(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<Document<K>, StoreError> {
        let mut originals = self.originals();
        let (mut file, at, _) = self.find::<K>(key)?;
        let Some(document) = file.documents.get_mut(at) else {
            return Err(StoreError::not_found::<K>(key));
        };
        let changed = gloo_types::patched(with_version(document), patch);
        let changed = changed.map_err(|_| StoreError::conflict::<K>(key))?;
        *document = without_version(changed, document);
        let object = parse(&file.path, with_version(document))?;
        file.replace(&mut originals)?;
        Ok(object)
    }

    fn create<K: Resource>(&self, object: Value) -> Result<Document<K>, StoreError> {
        let _originals = self.originals();
        let created: Document<K> = parse(&self.dir, with_version(&object))?;
        let key = created.key();
        let path = self
            .dir
            .join(format!("{}.{}.{}.yaml", key.namespace, key.name, K::PLURAL));
        let unwritable = |error| unreachable_dir("create", &path, error);
        if !matches!(self.find::<K>(key), Err(StoreError::NotFound { .. })) || path.exists() {
            return Err(StoreError::conflict::<K>(key));
        }
        let text = serde_saphyr::to_string(&object)
            .map_err(|error| StoreError::unreadable::<K>(label::<K>(key), error))?;
        write_atomically(&path, &text).map_err(unwritable)?;
        Ok(created)
    }

    fn delete<K: Resource>(&self, object: &Document<K>) -> Result<(), StoreError> {
        let mut originals = self.originals();
        let (mut file, at, found) = self.find::<K>(object.key())?;
        if found.resource_version() != object.resource_version() {
            return Err(StoreError::conflict::<K>(object.key()));
        }
        file.documents.remove(at);
        if file.documents.is_empty() {
            originals.remove(&file.path);
            return fs::remove_file(&file.path)
                .map_err(|error| unreachable_dir("delete", &file.path, error));
        }
        file.replace(&mut originals)
    }

    /// Returns the file that contains an object, and the object's position in it. An unreadable file is an error only if no
    /// other file contains the object.
    fn find<K: Resource>(&self, key: &ObjectKey) -> Result<(File, usize, Document<K>), StoreError> {
        let mut unreadable = None;
        for file in self.files()? {
            let file = match file {
                Ok(file) => file,
                Err(error) => {
                    unreadable.get_or_insert(error);
                    continue;
                }
            };
            for (at, document) in file.documents.iter().enumerate() {
                match file.parse::<K>(document) {
                    Ok(Some(object)) if object.key() == key => return Ok((file, at, object)),
                    Ok(_) => {}
                    Err(error) => {
                        unreadable.get_or_insert(error);
                    }
                }
            }
        }
        Err(unreadable.unwrap_or_else(|| StoreError::not_found::<K>(key)))
    }

    fn originals(&self) -> MutexGuard<'_, HashMap<PathBuf, String>> {
        self.originals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads all files, each with its own error.
    fn files(&self) -> Result<Vec<Result<File, StoreError>>, StoreError> {
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
        Ok(paths.into_iter().map(File::read).collect())
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
        let documents = documents(&text).map_err(|error| StoreError::Unreadable {
            what: path.display().to_string(),
            // A file may have objects of any kind.
            kind: "Kubernetes object",
            source: Box::new(error),
        })?;
        Ok(Self {
            path,
            text,
            documents,
        })
    }

    /// Decodes one of the documents; `None` if it is of another kind.
    fn parse<K: Resource>(&self, document: &Value) -> Result<Option<Document<K>>, StoreError> {
        let is_one = document.get("kind").and_then(Value::as_str) == Some(K::KIND);
        is_one
            .then(|| parse(&self.path, with_version(document)))
            .transpose()
    }

    /// Writes `documents`, or the owner's text if they are equal to the owner's content.
    fn replace(self, originals: &mut HashMap<PathBuf, String>) -> Result<(), StoreError> {
        let original = originals
            .get(&self.path)
            .filter(|text| documents(text).is_ok_and(|was| was == self.documents));
        let text = match original {
            Some(original) => original.clone(),
            None => serde_saphyr::to_string_multiple(&self.documents).map_err(|error| {
                StoreError::unreadable::<RouteTable>(self.path.display(), error)
            })?,
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
    if let Ok(replaced) = fs::metadata(path) {
        file.as_file().set_permissions(replaced.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Adds a namespace, if there is none, and a version that is a hash of the content.
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

/// Removes from `document` what [`with_version`] added to `was`.
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

fn parse<K: Resource>(path: &Path, object: Value) -> Result<Document<K>, StoreError> {
    Document::from_value(object).map_err(|error| StoreError::unreadable::<K>(path.display(), error))
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
