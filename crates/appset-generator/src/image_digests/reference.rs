//! Names of images, checked before they go into a URL.

use strict_json::Problem;

/// One image to look up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Host, and port if there is one.
    pub registry: String,
    /// Whether the registry speaks http, not https.
    pub plain_http: bool,
    /// Path of the repository, as OCI's distribution specification has it.
    pub repository: String,
    /// The tag.
    pub tag: String,
    /// Whose manifest in an index; the index itself without one.
    pub platform: Option<Platform>,
    /// Whether an image only counts as missing when its repository can be read: some registries answer 404 to strangers.
    pub require_repository: bool,
}

impl Reference {
    /// Registry and repository.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }
}

/// An operating system and an architecture, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Platform {
    /// `linux`, for example.
    pub os: String,
    /// `amd64`, for example.
    pub architecture: String,
}

impl Platform {
    pub(super) fn parse(text: &str, path: &str) -> Result<Self, Problem> {
        match text.split_once('/') {
            Some((os, architecture)) if !os.is_empty() && !architecture.is_empty() => Ok(Self {
                os: os.to_owned(),
                architecture: architecture.to_owned(),
            }),
            _ => Err(Problem::Value {
                path: path.to_owned(),
                found: text.to_owned(),
                expected: "a system and an architecture, such as linux/amd64".into(),
            }),
        }
    }
}

/// A repository's path: parts that begin and end with a letter or digit (OCI distribution specification, "Pulling manifests").
pub(super) fn repository(text: &str, path: String) -> Result<String, Problem> {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let legal = |c: char| alphanumeric(c) || matches!(c, '.' | '_' | '-');
    let part = |part: &str| {
        part.starts_with(alphanumeric) && part.ends_with(alphanumeric) && part.chars().all(legal)
    };
    if text.len() > 255 || !text.split('/').all(part) {
        return Err(Problem::Value {
            path,
            found: text.to_owned(),
            expected: "the path of a repository, without registry and tag".into(),
        });
    }
    Ok(text.to_owned())
}

/// Whether `text` is a tag (OCI distribution specification, "Pulling manifests").
pub(crate) fn is_tag(text: &str) -> bool {
    let first = |c| is_tag_character(c) && !matches!(c, '.' | '-');
    text.len() <= 128 && text.starts_with(first) && text.chars().all(is_tag_character)
}

/// Whether a tag may have `c`, though not always as its first character.
pub(crate) const fn is_tag_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// Reads a tag.
pub(super) fn tag(text: &str) -> Result<String, Problem> {
    if !is_tag(text) {
        let expected = if text.contains('/') {
            "a tag, which has no '/': use branch_slug or head_short_sha_7, as the build does"
        } else {
            "a tag: letters, digits, '_', '.' and '-', at most 128"
        };
        return Err(Problem::Value {
            path: "tag".to_owned(),
            found: text.to_owned(),
            expected: expected.into(),
        });
    }
    Ok(text.to_owned())
}
