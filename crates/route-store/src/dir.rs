//! RouteTables and MirrorPolicies as YAML documents in a directory, for routing without a cluster.
//!
//! A file is written to a temporary file and renamed, so a reader never sees a partial file. While a document differs from
//! its owner's content, the whole file is in the form of our YAML writer. Once all documents are equal to the owner's
//! content again, the owner's text is restored, with its comments. The running store keeps that text in memory, not on disk.

use std::{
    collections::HashMap,
    error::Error,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use gloo_types::{
    Document, MirrorPolicyDoc, ObjectKey, Resource, RouteTable, RouteTableDoc, RouteTableSelector,
    ServicePort,
};
use json_patch::Patch;
use serde_json::{Value, json};

use crate::{
    Freshness, RolloutDoc, RolloutReader, RouteStore, Selection, StoreError, error::label, lock,
    resources::Service,
};

/// Namespace of a document without one.
const DEFAULT_NAMESPACE: &str = "default";

/// A store over the `.yaml` and `.yml` files of one directory. It ignores documents of other kinds.
///
/// A file that it writes loses its comments and its style, in all its documents. The text of a restored file has them again, if the
/// same store or a clone of it has read the file before it was changed; a later process does not have that text.
#[derive(Debug, Clone)]
pub struct DirRouteStore {
    dir: Arc<Path>,
    /// The owner's text of each changed file. Its lock also serialises writes.
    originals: Arc<Mutex<Originals>>,
}

type Originals = HashMap<PathBuf, String>;

impl DirRouteStore {
    /// A store over the files in `dir`. Every call reads them again.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into().into(),
            originals: Arc::default(),
        }
    }

    /// Returns all objects of one kind.
    ///
    /// # Errors
    /// Returns `Err` if the directory or one of its files cannot be read.
    pub async fn objects<K: Resource>(&self) -> Result<Vec<Document<K>>, StoreError> {
        self.blocking(|store| store.all()?.map(|found| Ok(found?.object)).collect())
            .await
    }

    async fn object<K: Resource>(&self, key: &ObjectKey) -> Result<Document<K>, StoreError> {
        let key = key.clone();
        self.blocking(move |store| Ok(store.find(&key)?.object))
            .await
    }

    async fn change<K: Resource>(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<Document<K>, StoreError> {
        let (key, patch) = (key.clone(), patch.clone());
        self.blocking(move |store| store.change_now(&key, &patch))
            .await
    }

    /// Runs `work` on a thread for blocking calls, because it accesses files.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        done.unwrap_or_else(|panicked| Err(unreachable_dir("use", &self.dir)(panicked)))
    }
}

impl RouteStore for DirRouteStore {
    async fn select(&self, selector: &RouteTableSelector, _freshness: Freshness) -> Selection {
        let tables = self.blocking(|store| {
            let tables = store.all()?.map(|found| Ok(found?.object));
            Ok(tables.collect::<Selection>())
        });
        match tables.await {
            Ok(tables) => tables.selected_by(selector),
            Err(error) => Selection::of_all(Err(error)),
        }
    }

    async fn marked(&self, _rollout: &ObjectKey) -> Selection {
        Selection::of_all(self.objects().await)
    }

    async fn read(&self, key: &ObjectKey) -> Result<RouteTableDoc, StoreError> {
        self.object(key).await
    }

    async fn patch(&self, key: &ObjectKey, patch: &Patch) -> Result<RouteTableDoc, StoreError> {
        self.change(key, patch).await
    }

    async fn policies(&self) -> Result<Vec<MirrorPolicyDoc>, StoreError> {
        self.objects().await
    }

    async fn create_policy(&self, policy: &Value) -> Result<MirrorPolicyDoc, StoreError> {
        let policy = policy.clone();
        self.blocking(move |store| store.create(&policy)).await
    }

    async fn patch_policy(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<MirrorPolicyDoc, StoreError> {
        self.change(key, patch).await
    }

    async fn delete_policy(&self, policy: &MirrorPolicyDoc) -> Result<(), StoreError> {
        let policy = policy.clone();
        self.blocking(move |store| store.delete(&policy)).await
    }
}

impl RolloutReader for DirRouteStore {
    async fn rollout(&self, key: &ObjectKey) -> Result<Option<RolloutDoc>, StoreError> {
        StoreError::or_none(self.object(key).await)
    }

    async fn service_ports(&self, key: &ObjectKey) -> Result<Option<Vec<ServicePort>>, StoreError> {
        let service = StoreError::or_none(self.object::<Service>(key).await)?;
        Ok(service.map(|it| ServicePort::all(it.raw())))
    }
}

/// An object, and its place.
struct Found<K> {
    file: Arc<File>,
    /// Its position in the documents of the file.
    at: usize,
    /// With the version and the namespace that [`with_version`] adds.
    object: Document<K>,
}

impl DirRouteStore {
    /// Reads all objects of one kind, each with its own error. A file that cannot be read is one error.
    fn all<K: Resource>(
        &self,
    ) -> Result<impl Iterator<Item = Result<Found<K>, StoreError>>, StoreError> {
        let entries = fs::read_dir(&self.dir);
        let paths = entries.and_then(|it| it.map(|it| Ok(it?.path())).collect());
        let mut paths: Vec<PathBuf> = paths.map_err(unreachable_dir("list", &self.dir))?;
        paths.retain(|path| {
            path.extension()
                .is_some_and(|it| it == "yaml" || it == "yml")
        });
        paths.sort();
        Ok(paths.into_iter().flat_map(|path| {
            let (found, error) = match File::read(path) {
                Ok(file) => (file.objects(), None),
                Err(error) => (Vec::new(), Some(Err(error))),
            };
            found.into_iter().chain(error)
        }))
    }

    fn change_now<K: Resource>(
        &self,
        key: &ObjectKey,
        patch: &Patch,
    ) -> Result<Document<K>, StoreError> {
        let mut originals = lock(&self.originals);
        let Found { file, at, object } = self.find::<K>(key)?;
        let changed = gloo_types::patched(object.into_raw(), patch);
        let changed = changed.map_err(|_| StoreError::conflict::<K>(key))?;
        let mut documents = file.documents.clone();
        let Some(document) = documents.get_mut(at) else {
            return Err(StoreError::not_found::<K>(key));
        };
        *document = without_version(changed, document);
        let object = parse(&file.path, with_version(document))?;
        file.replace(&documents, &mut originals)?;
        Ok(object)
    }

    fn create<K: Resource>(&self, object: &Value) -> Result<Document<K>, StoreError> {
        let _originals = lock(&self.originals);
        let created: Document<K> = parse(&self.dir, with_version(object))?;
        let key = created.key();
        let name = format!("{}.{}.{}.yaml", key.namespace, key.name, K::PLURAL);
        let path = self.dir.join(name);
        if !matches!(self.find::<K>(key), Err(StoreError::NotFound { .. })) || path.exists() {
            return Err(StoreError::conflict::<K>(key));
        }
        let text = serde_saphyr::to_string(object)
            .map_err(|error| StoreError::unreadable::<K>(label::<K>(key), error))?;
        write_atomically(&path, &text).map_err(unreachable_dir("create", &path))?;
        Ok(created)
    }

    fn delete<K: Resource>(&self, object: &Document<K>) -> Result<(), StoreError> {
        let mut originals = lock(&self.originals);
        let found = self.find::<K>(object.key())?;
        if found.object.resource_version() != object.resource_version() {
            return Err(StoreError::conflict::<K>(object.key()));
        }
        let file = found.file;
        let mut documents = file.documents.clone();
        documents.remove(found.at);
        if documents.is_empty() {
            originals.remove(&file.path);
            return fs::remove_file(&file.path).map_err(unreachable_dir("delete", &file.path));
        }
        file.replace(&documents, &mut originals)
    }

    /// Returns an object. An unreadable file or document is an error only if no other one is the object.
    fn find<K: Resource>(&self, key: &ObjectKey) -> Result<Found<K>, StoreError> {
        let mut unreadable = None;
        for found in self.all::<K>()? {
            match found {
                Ok(found) if found.object.key() == key => return Ok(found),
                Ok(_) => {}
                Err(error) => {
                    unreadable.get_or_insert(error);
                }
            }
        }
        Err(unreadable.unwrap_or_else(|| StoreError::not_found::<K>(key)))
    }
}

struct File {
    path: PathBuf,
    text: String,
    documents: Vec<Value>,
}

impl File {
    fn read(path: PathBuf) -> Result<Arc<Self>, StoreError> {
        let text = fs::read_to_string(&path).map_err(unreachable_dir("read", &path))?;
        let documents = documents(&text).map_err(|error| StoreError::Unreadable {
            what: path.display().to_string(),
            // A file may have objects of any kind.
            kind: "Kubernetes object",
            source: Box::new(error),
        })?;
        Ok(Arc::new(Self {
            path,
            text,
            documents,
        }))
    }

    /// Decodes the documents of one kind.
    fn objects<K: Resource>(self: Arc<Self>) -> Vec<Result<Found<K>, StoreError>> {
        let documents = self.documents.iter().enumerate();
        let of_kind = documents.filter(|(_, it)| it.get("kind").is_some_and(|it| it == K::KIND));
        let found = of_kind.map(|(at, document)| {
            Ok(Found {
                file: Arc::clone(&self),
                at,
                object: parse(&self.path, with_version(document))?,
            })
        });
        found.collect()
    }

    /// Writes `changed`, or the owner's text if it is equal to the owner's content.
    fn replace(&self, changed: &[Value], originals: &mut Originals) -> Result<(), StoreError> {
        let original = originals.get(&self.path);
        let original = original.filter(|text| documents(text).is_ok_and(|was| was == changed));
        let is_at_rest = original.is_some();
        let text = match original {
            Some(original) => original.clone(),
            None => serde_saphyr::to_string_multiple(changed).map_err(|error| {
                StoreError::unreadable::<RouteTable>(self.path.display(), error)
            })?,
        };
        write_atomically(&self.path, &text).map_err(unreachable_dir("write", &self.path))?;
        if is_at_rest {
            originals.remove(&self.path);
        } else if !originals.contains_key(&self.path) {
            originals.insert(self.path.clone(), self.text.clone());
        }
        Ok(())
    }
}

fn documents(text: &str) -> Result<Vec<Value>, serde_saphyr::Error> {
    serde_saphyr::from_multiple(text)
}

fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    // A link stays a link, and the file that it names is replaced.
    let target = fs::canonicalize(path);
    let path = target.as_deref().unwrap_or(path);
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

fn unreachable_dir<E: Error + Send + Sync + 'static>(
    verb: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> StoreError {
    move |source| StoreError::Unreachable {
        verb,
        what: path.display().to_string(),
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests;
