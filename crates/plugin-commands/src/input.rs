//! Reads manifests from files and stdin. A [`Located`] document keeps the position of each of its values.

use std::error::Error;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use gloo_types::{Document, ObjectKey, Resource, WrongType};
use jsonptr::{Pointer, PointerBuf};
use rollouts_rpc::error_line;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_saphyr::{Location, MessageFormatter as _, Spanned, UserMessageFormatter};

use super::node::Node;
use super::without_os_number;

/// One object of a file.
#[derive(Clone, Debug)]
pub(super) struct Manifest {
    pub(super) file: String,
    pub(super) value: Value,
    /// `None` for an object of the cluster.
    located: Option<Located>,
}

/// A manifest that cannot be read, with its position.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{spot}: {reason}")]
pub(super) struct Unreadable {
    pub(super) spot: Spot,
    pub(super) reason: String,
}

/// A file and a position in it, printed as compilers do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Spot {
    pub(super) file: String,
    pub(super) line: Option<u64>,
    pub(super) column: Option<u64>,
}

impl Spot {
    pub(super) fn new(file: String, place: Option<Location>) -> Self {
        let place = place.filter(|it| it.line() > 0);
        Self {
            file,
            line: place.map(|it| it.line()),
            column: place.map(|it| it.column()),
        }
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        match (self.line, self.column) {
            (Some(line), Some(column)) => write!(f, ":{line}:{column}"),
            _ => Ok(()),
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

    /// Creates the manifest of an object of the cluster. Items of a list come without `apiVersion` and `kind`.
    pub(super) fn live<K: Resource>(object: Document<K>) -> Self {
        let file = format!("cluster {} {}", K::KIND, object.key());
        let mut value = object.into_raw();
        if let Some(fields) = value.as_object_mut() {
            let version = format!("{}/{}", K::GROUP, K::VERSION);
            fields.insert("apiVersion".to_owned(), version.into());
            fields.insert("kind".to_owned(), K::KIND.into());
        }
        Self {
            file,
            value,
            located: None,
        }
    }

    /// Returns `kind`; empty if it is missing.
    pub(super) fn kind(&self) -> &str {
        Node::root(&self.value).get("kind").text()
    }

    /// Returns namespace and name; `None` if it has no name.
    pub(super) fn key(&self) -> Option<ObjectKey> {
        let metadata = Node::root(&self.value).get("metadata");
        let name = metadata.get("name").value.as_str()?;
        Some(ObjectKey::new(metadata.get("namespace").text(), name))
    }

    /// Returns why this object cannot be read, with the position of the value at the dotted path `at`.
    pub(super) fn unreadable(&self, at: &str, error: &dyn Error) -> Unreadable {
        Unreadable {
            spot: self.spot(&path(at)),
            reason: error_line(error),
        }
    }

    /// Returns the position of a value.
    pub(super) fn spot(&self, at: &Pointer) -> Spot {
        let place = self.located.as_ref().map(|it| it.place(at));
        Spot::new(self.file.clone(), place)
    }
}

/// Reads files, the YAML and JSON files of directories, and stdin (`-`). An unreadable file does not stop the others.
/// `is_recursive` tells that directories in directories are read too.
pub(super) fn read(paths: &[PathBuf], is_recursive: bool) -> (Vec<Manifest>, Vec<Unreadable>) {
    let (mut manifests, mut unreadable) = (Vec::new(), Vec::new());
    let mut collect = |path: &Path| match read_file(path) {
        Ok(found) => manifests.extend(found),
        Err(error) => unreadable.push(error),
    };
    for path in paths {
        match files_in(path, is_recursive) {
            None => collect(path),
            Some(files) => files.iter().for_each(|file| collect(file)),
        }
    }
    (manifests, unreadable)
}

/// Returns the manifest files of a directory, sorted; `None` if the path is not a directory.
fn files_in(path: &Path, is_recursive: bool) -> Option<Vec<PathBuf>> {
    let entries = fs::read_dir(path).ok()?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|it| Some(it.ok()?.path())).collect();
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        // A link may lead back to a directory above.
        let is_directory = is_recursive && path.is_dir() && !path.is_symlink();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if is_directory {
            files.extend(files_in(&path, true).into_iter().flatten());
        } else if matches!(extension, Some("yaml" | "yml" | "json")) {
            files.push(path);
        }
    }
    Some(files)
}

/// Returns the name of a file in messages.
pub(super) fn name_of(path: &Path) -> String {
    match path == Path::new("-") {
        true => "stdin".to_owned(),
        false => path.display().to_string(),
    }
}

fn read_file(path: &Path) -> Result<Vec<Manifest>, Unreadable> {
    let is_stdin = path == Path::new("-");
    let file = name_of(path);
    let failed = |place, reason: String| Unreadable {
        spot: Spot::new(file.clone(), place),
        reason,
    };
    let text = if is_stdin {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(path)
    };
    let text = text.map_err(|error| {
        let reason = match error.kind() {
            io::ErrorKind::InvalidData => "it is not text in UTF-8".to_owned(),
            _ => without_os_number(&error.to_string()),
        };
        failed(None, format!("cannot be read: {reason}"))
    })?;
    let documents: Vec<Located> = serde_saphyr::from_multiple(&text)
        .map_err(|error| failed(error.location(), wrong_yaml(&error)))?;
    let mut manifests = Vec::new();
    for document in &documents {
        let manifest = Manifest::new(&file, document);
        let items = document.child("items").map(|(_, items)| &items.0.value);
        match items {
            Some(Content::List(items)) if manifest.kind() == "List" => {
                manifests.extend(items.iter().map(|item| Manifest::new(&file, item)));
            }
            _ if manifest.value.is_null() => {}
            _ => manifests.push(manifest),
        }
    }
    Ok(manifests)
}

/// Says why a text is not YAML that can be read, without its position.
pub(super) fn wrong_yaml(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    let message = UserMessageFormatter.format_message(error);
    // The parser has a limit of its own for the depth.
    let is_too_deep = message.starts_with("recursion limit exceeded");
    if is_too_deep || matches!(error, serde_saphyr::Error::Budget { .. }) {
        return "too many values, or nested too deeply: split the file".to_owned();
    }
    if let serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } = error {
        return format!("the key {key} is twice in one object: remove one of them");
    }
    // The parser's own errors end with their position.
    let text = message.split(" at line ").next().unwrap_or_default();
    format!("invalid YAML: {}", WrongType::new(text))
}

/// A value of a YAML document with its position.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Located(Spanned<Content>);

#[derive(Clone, Debug)]
enum Content {
    Scalar(Value),
    List(Vec<Located>),
    Map(Vec<(Spanned<String>, Located)>),
}

impl Located {
    /// Returns the document without positions.
    pub(super) fn value(&self) -> Value {
        match &self.0.value {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => items.iter().map(Self::value).collect(),
            Content::Map(fields) => fields
                .iter()
                .map(|(key, value)| (key.value.clone(), value.value()))
                .collect(),
        }
    }

    /// Returns the value under a key or an index, with the position of its key if it has one.
    fn child(&self, key: &str) -> Option<(Location, &Self)> {
        match &self.0.value {
            Content::Map(fields) => {
                let field = fields.iter().find(|(name, _)| name.value == key);
                field.map(|(name, value)| (name.referenced, value))
            }
            Content::List(items) => {
                let item = items.get(key.parse::<usize>().ok()?);
                item.map(|item| (item.0.referenced, item))
            }
            Content::Scalar(_) => None,
        }
    }

    /// Returns the position of a value, or of the nearest existing parent. For a field it is the position of its key.
    pub(super) fn place(&self, at: &Pointer) -> Location {
        let mut here = self;
        let mut place = self.0.referenced;
        for token in at {
            let Some((location, value)) = here.child(&token.decoded()) else {
                break;
            };
            if location.line() > 0 {
                place = location;
            }
            here = value;
        }
        place
    }
}

/// Reads a dotted path, such as `spec.http[0].name`.
pub(super) fn path(text: &str) -> PointerBuf {
    let tokens = text
        .split(['.', '['])
        .map(|token| token.trim_end_matches(']'));
    PointerBuf::from_tokens(tokens.filter(|token| !token.is_empty()))
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyContent)
    }
}

struct AnyContent;

impl<'de> Visitor<'de> for AnyContent {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value that JSON can hold")
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Content, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Content::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Content, A::Error> {
        let mut map = Vec::new();
        while let Some(field) = fields.next_entry()? {
            map.push(field);
        }
        Ok(Content::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# A comment.
spec:
  http:
  - name: list
    forwardTo: {destinations: [{weight: 80}]}
  \"a b\": x
";

    #[track_caller]
    fn check(at: &str, expect: (u64, u64)) {
        let located: Located = serde_saphyr::from_str(TEXT).unwrap();
        let place = located.place(&path(at));
        assert_eq!((place.line(), place.column()), expect, "{at}");
    }

    #[test]
    fn a_path_leads_to_its_key_or_to_the_nearest_existing_one() {
        check("", (2, 1));
        check("spec", (2, 1));
        check("spec.http", (3, 3));
        check("spec.http[0]", (4, 5));
        check("spec.http[0].name", (4, 5));
        check("spec.http[0].forwardTo.destinations[0].weight", (5, 33));
        check("spec.http[0].gone.weight", (4, 5));
        check("spec.http[7]", (3, 3));
        check("spec.a b", (6, 3));
    }

    #[test]
    fn what_is_no_yaml_is_said_in_words_of_people() {
        let check = |text: &str, expect: &str| {
            let read: Result<Vec<Located>, _> = serde_saphyr::from_multiple(text);
            assert_eq!(wrong_yaml(&read.unwrap_err()), expect);
        };
        let twice = "the key a is twice in one object: remove one of them";
        check("a: 1\na: 2", twice);
        let too_much = "too many values, or nested too deeply: split the file";
        check(&"[".repeat(1000), too_much);
        check(&"{}\n---\n".repeat(2000), too_much);
        check(
            "{a: [}",
            "invalid YAML: mismatched bracket '[' closed by '}'",
        );
    }

    #[test]
    fn directories_in_directories_are_read_on_request() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("b.yaml");
        fs::create_dir(&inner).unwrap();
        for file in [directory.path().join("c.json"), inner.join("d.yml")] {
            fs::write(file, "{kind: A}").unwrap();
        }
        fs::write(inner.join("e.txt"), "{kind: A}").unwrap();
        let read = |is_recursive| {
            let (manifests, unreadable) = read(&[directory.path().to_owned()], is_recursive);
            (manifests.len(), unreadable.len())
        };
        assert_eq!(read(true), (2, 0));
        // A directory cannot be read as a file.
        assert_eq!(read(false), (1, 1));
    }

    #[test]
    fn the_value_is_that_of_an_ordinary_reader() {
        let located: Located = serde_saphyr::from_str(TEXT).unwrap();
        let value: Value = serde_saphyr::from_str(TEXT).unwrap();
        assert_eq!(located.value(), value);
    }
}
