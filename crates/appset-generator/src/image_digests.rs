//! The source `image-digests`, which resolves image tags to digests: what to ask registries, and the sets from their answers.

mod challenge;
mod keychain;
mod manifest;
mod reference;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};
use strict_json::{Block, Problem};

pub use self::challenge::{Bearer, Challenge, Token};
pub use self::keychain::{Credentials, Keychain, KeychainError};
pub use self::manifest::{
    ACCEPT, Choice, Digest, RegistryError, Unknown, check_manifest, choose, is_tag_list,
    platform_of, unknown,
};
use self::reference::is_repository;
pub use self::reference::{Platform, Proof, Reference};
pub(crate) use self::reference::{is_tag, is_tag_character};
use crate::answer::OnEmpty;
use crate::branch::is_branch;
use crate::clusters::Allowed;
use crate::error::ConfigError;
use crate::failure::shown;
use crate::keys::Schema;
use crate::keys::{Key, flag, names};
use crate::matching::{example, matches};
use crate::{Failure, Field, ParameterSet};

/// The largest number of images in one request.
const MAX_IMAGES: usize = 20;
/// The limit of `staleFor`.
const MAX_STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// The settings of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageDigests {
    /// The registry of images without one.
    default: Option<String>,
    registries: BTreeMap<String, Registry>,
    docker_config: Vec<PathBuf>,
    stale_for: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Registry {
    plain_http: bool,
    /// Patterns of allowed repositories. Without a list every repository is allowed.
    repositories: Option<Vec<String>>,
    proof: Proof,
    /// Patterns of repositories that the registry fetches from another one.
    pull_through: Vec<String>,
    trusts_single: bool,
    verifies_child: bool,
}

/// The digest that was found for one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The digest.
    pub digest: Digest,
    /// Whether the digest is from before its registry failed.
    pub is_stale: bool,
}

impl From<Digest> for Found {
    fn from(digest: Digest) -> Self {
        Self {
            digest,
            is_stale: false,
        }
    }
}

/// The images of one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageQuery {
    images: BTreeMap<String, Reference>,
    /// Names of the images with an illegal tag. They count as missing and are not looked up.
    illegal: BTreeSet<String>,
    /// Whether each image has the key `stale`.
    tells_stale: bool,
    /// The tag of images without their own tag.
    tag: Option<String>,
    layout: Layout,
    digest_prefix: String,
    on_missing: OnMissing,
    on_empty: OnEmpty,
}

/// How images are arranged in sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Layout {
    /// One set with all images.
    Columns,
    /// One set with the digests of all images and nothing else.
    Digests,
    /// One set for each image.
    Rows,
}

/// What to do if an image does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OnMissing {
    /// Omit the whole set, because the image is not built yet.
    Skip,
    /// Omit the keys of the image.
    Omit,
    /// Return an error.
    Refuse,
}

impl ImageDigests {
    pub(crate) const REGISTRY_KEYS: &[Key] = &[
        Key::new(
            "repositories",
            "patterns of the allowed repositories",
            "all",
        ),
        Key::new("plainHttp", "`true`: use http instead of https", "`false`"),
        Key::new(
            "proof",
            "what proves that a tag is missing: [`authorized`, `tag-list` or `none`](appset-registries.md#what-proves-that-a-tag-is-missing)",
            "by host",
        ),
        Key::new(
            "pullThrough",
            "`true`, or patterns of repositories that the registry fetches from another one: nothing proves that a tag is missing in them",
            "none",
        ),
        Key::new(
            "platformOfSingle",
            "for an image without an index: `check` reads its configuration, `trust` accepts it for any platform",
            "`check`",
        ),
        Key::new(
            "verify",
            "`child`: also check that the registry has the image that an index names",
            "`index`",
        ),
    ];
    pub(crate) const SCHEMA: Schema = Schema {
        name: "image-digests",
        key: "imageDigests",
        keys: &[
            Key::new("registries", "the allowed registries, by host", "required"),
            Key::new(
                "registry",
                "the registry of images without one",
                "the only registry, if there is one",
            ),
            Key::new(
                "dockerConfig",
                "a file with credentials, or a list of files: from `docker login`, podman, or [image pull Secrets](appset-registries.md#credentials)",
                "",
            ),
            Key::new(
                "staleFor",
                "how long the last digest of an image is used while its registry fails, such as `6h`; at most 24 hours",
                "never",
            ),
        ],
        parameters: &[
            Key::new(
                "images",
                "up to 20: a name, and a repository or `{repository, tag, registry}`",
                "required",
            ),
            Key::new("tag", "the tag of images without their own tag", ""),
            Key::new(
                "registry",
                "the registry of images without their own registry",
                "`imageDigests.registry`",
            ),
            Key::new(
                "layout",
                "`columns`: one set with all images; `digests`: one set with the digests only; `rows`: a set for each image",
                "`columns`",
            ),
            Key::new(
                "platform",
                "such as `linux/amd64` or `linux/arm/v7`: the digest of the image for this platform, with or without an index; a lower variant is accepted",
                "the digest of the index",
            ),
            Key::new(
                "onMissing",
                "if an image does not exist: `error`, `skip` the whole set, or `omit` the image; without any set left, `onEmpty` decides",
                "`error`",
            ),
            Key::new(
                "onMissingRepository",
                "if the repository does not exist: `error`, or `missing`: the image counts as missing, because nothing was pushed yet",
                "`error`",
            ),
            Key::new(
                "onInvalidTag",
                "if a tag is illegal: `error`, or `skip`: its image counts as missing, and is not looked up",
                "`error`",
            ),
            Key::new(
                "digestPrefix",
                "the prefix of the keys at the top",
                "`digest`",
            ),
            Key::new("outputKey", "another name for the key `image`", "`image`"),
        ],
        output_key: "image",
    };

    pub(crate) fn from_config(source: &Block<'_>) -> Result<Self, ConfigError> {
        let mut registries = BTreeMap::new();
        for (host, registry) in source.named_blocks("registries", &names(Self::REGISTRY_KEYS))? {
            reference::check_host(host, source.path("registries"))?;
            registries.insert(host.to_owned(), Registry::from_config(host, &registry)?);
        }
        if registries.is_empty() {
            return Err(source.empty("registries").into());
        }
        let default = source.string("registry")?.map(str::to_owned);
        if let Some(unlisted) = default
            .as_ref()
            .filter(|host| !registries.contains_key(*host))
        {
            return Err(Problem::Value {
                path: source.path("registry"),
                found: unlisted.clone(),
                expected: "one of registries".into(),
            }
            .into());
        }
        let only = || match registries.len() {
            1 => registries.keys().next().cloned(),
            _ => None,
        };
        Ok(Self {
            default: default.or_else(only),
            docker_config: match source.value("dockerConfig") {
                Some(Value::Array(_)) => source.strings("dockerConfig")?,
                _ => source
                    .string("dockerConfig")?
                    .map(str::to_owned)
                    .into_iter()
                    .collect(),
            }
            .into_iter()
            .map(PathBuf::from)
            .collect(),
            stale_for: stale_for(source)?,
            registries,
        })
    }

    /// Returns the files with credentials, from `docker login` or image pull Secrets.
    #[must_use]
    pub fn docker_config(&self) -> &[PathBuf] {
        &self.docker_config
    }

    /// Returns how long the last digest of an image is served while its registry fails.
    #[must_use]
    pub const fn stale_for(&self) -> Option<Duration> {
        self.stale_for
    }

    /// Reads the parameters of a request.
    pub(crate) fn query(
        &self,
        parameters: &Block<'_>,
        allowed: &Allowed<'_>,
    ) -> Result<ImageQuery, Failure> {
        let on_missing = match parameters.one_of("onMissing", &["skip", "omit", "error"])? {
            Some("omit") => OnMissing::Omit,
            Some("skip") => OnMissing::Skip,
            // A mistyped tag must not delete an Application.
            _ => OnMissing::Refuse,
        };
        let platform = parameters
            .string("platform")?
            .map(|text| Platform::parse(text, "platform"))
            .transpose()?;
        let missing = parameters.one_of("onMissingRepository", &["error", "missing"])?;
        let may_lack_repository = missing == Some("missing");
        let invalid = parameters.one_of("onInvalidTag", &["error", "skip"])?;
        let skips_invalid = invalid == Some("skip");
        let mut illegal = BTreeSet::new();
        let mut images = BTreeMap::new();
        let listed = parameters.object("images")?;
        // Counted before they are read: each image has a copy of the tag.
        check_count(listed.map_or(0, Map::len))?;
        for (name, image) in listed.into_iter().flatten() {
            let path = format!("images.{name}");
            let reference = self.reference(parameters, image, path)?;
            self.admit(&reference, allowed.images)?;
            match reference::check_tag(&reference.tag) {
                // An author of a branch can cause any other illegal tag.
                Err(_) if skips_invalid && is_branch(&reference.tag) => {
                    illegal.insert(name.clone());
                }
                checked => checked?,
            }
            images.insert(
                name.clone(),
                Reference {
                    platform: platform.clone(),
                    may_lack_repository,
                    ..reference
                },
            );
        }
        check_names(&images)?;
        Ok(ImageQuery {
            images,
            illegal,
            tells_stale: self.stale_for.is_some(),
            tag: parameters.string("tag")?.map(str::to_owned),
            layout: match parameters.one_of("layout", &["columns", "digests", "rows"])? {
                Some("digests") => Layout::Digests,
                Some("rows") => Layout::Rows,
                _ => Layout::Columns,
            },
            digest_prefix: parameters
                .string("digestPrefix")?
                .unwrap_or("digest")
                .to_owned(),
            on_missing,
            on_empty: OnEmpty::read(parameters)?,
        })
    }

    /// Reads one entry of `images`: a repository, or an object with repository, registry and tag.
    fn reference(
        &self,
        parameters: &Block<'_>,
        image: &Value,
        path: String,
    ) -> Result<Reference, Failure> {
        let nested;
        let (repository, registry, tag) = match image {
            Value::String(repository) => (Some(repository.as_str()), None, None),
            _ => {
                let known = ["registry", "repository", "tag"];
                nested = parameters.nested(path.clone(), image, &known)?;
                (
                    nested.string("repository")?,
                    nested.string("registry")?,
                    nested.string("tag")?,
                )
            }
        };
        let missing = |path: String, expected: &'static str| Problem::Value {
            path,
            found: String::new(),
            expected: expected.into(),
        };
        let repository = repository
            .ok_or_else(|| missing(format!("{path}.repository"), "the path of a repository"))?;
        let registry = match registry {
            Some(registry) => Some(registry),
            None => parameters.string("registry")?.or(self.default.as_deref()),
        };
        let registry = registry.ok_or_else(|| {
            missing(
                "registry".to_owned(),
                "set, because several registries are configured",
            )
        })?;
        let tag = match tag {
            Some(tag) => Some(tag),
            None => parameters.string("tag")?,
        };
        let tag = tag.ok_or_else(|| missing("tag".to_owned(), "set, here or for each image"))?;
        let settings = self.registries.get(registry).ok_or_else(|| {
            Failure::Forbidden(format!(
                "registry {registry} is not allowed: have it added to imageDigests.registries"
            ))
        })?;
        Ok(Reference {
            plain_http: settings.plain_http,
            registry: registry.to_owned(),
            repository: reference::repository(repository, path)?,
            tag: tag.to_owned(),
            platform: None,
            proof: settings.proof_for(repository),
            may_lack_repository: false,
            trusts_single: settings.trusts_single,
            verifies_child: settings.verifies_child,
        })
    }

    /// Returns the hosts of the registries, with that of images without one first.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &String> {
        self.default.iter().chain(self.registries.keys())
    }

    /// Returns an image, as an entry of `images`, that the registries and the patterns in `allowed` allow.
    pub(crate) fn example(&self, allowed: Option<&[String]>) -> Option<Value> {
        let any = ["**".to_owned()];
        let mut registries = self.registries.iter();
        registries.find_map(|(host, registry)| {
            let mut patterns = registry.repositories.as_deref().unwrap_or(&any).iter();
            patterns.find_map(|pattern| {
                let mut images = allowed.unwrap_or(&any).iter();
                let both =
                    |image: &String| example(&format!("{host}/"), pattern, image, is_repository);
                let repository = images.find_map(both)?;
                Some(json!({"registry": host, "repository": repository}))
            })
        })
    }

    /// Checks that the configuration and the profile allow `image`.
    fn admit(&self, image: &Reference, allowed: Option<&[String]>) -> Result<(), Failure> {
        let repositories = self.registries.get(&image.registry);
        let repositories = repositories.and_then(|registry| registry.repositories.as_deref());
        let name = image.name();
        let listed = |patterns: Option<&[String]>, text: &str| {
            patterns.is_none_or(|patterns| patterns.iter().any(|p| matches(p, text)))
        };
        if listed(repositories, &image.repository) && listed(allowed, &name) {
            return Ok(());
        }
        Err(Failure::Forbidden(format!(
            "image {name} is not allowed: have it added to the repositories of its registry and to the images of the profile"
        )))
    }
}

impl ImageQuery {
    /// Returns the images to look up, each with its name in the request.
    pub fn references(&self) -> impl Iterator<Item = (&str, &Reference)> {
        let legal = self
            .images
            .iter()
            .filter(|(name, _)| !self.illegal.contains(*name));
        legal.map(|(name, reference)| (name.as_str(), reference))
    }

    /// Computes the sets from the digests in `found`. An image without a digest does not exist.
    ///
    /// # Errors
    /// Returns `Err` if an image does not exist and `onMissing` is `error`, or if nothing is left and `onEmpty` does not allow that.
    pub fn sets(&self, found: &BTreeMap<String, Found>) -> Result<Vec<ParameterSet>, Failure> {
        let missing = self
            .images
            .iter()
            .find(|(name, _)| !found.contains_key(*name));
        let is_nothing_left = match self.layout {
            Layout::Rows => found.is_empty(),
            Layout::Columns | Layout::Digests => self.on_missing == OnMissing::Skip,
        };
        let must_exist = self.on_missing == OnMissing::Refuse
            || (is_nothing_left && self.on_empty == OnEmpty::Refuse);
        if let Some((_, image)) = missing.filter(|_| must_exist) {
            let tag = shown(&image.tag);
            return Err(Failure::MissingImage(format!("{}:{tag}", image.name())));
        }
        let there = self
            .images
            .iter()
            .filter_map(|(name, image)| Some((name, image, found.get(name)?)));
        if self.layout == Layout::Rows {
            let row = |(name, image, found): (&String, &Reference, &Found)| {
                let mut set = ParameterSet::default();
                set.insert("app", name.as_str().into())?;
                set.insert(&self.digest_prefix, found.digest.as_str().into())?;
                set.insert(ImageDigests::SCHEMA.output_key, self.fields(image, found))?;
                Ok(set)
            };
            return there.map(row).collect();
        }
        if missing.is_some() && self.on_missing == OnMissing::Skip {
            return Ok(Vec::new());
        }
        let mut set = ParameterSet::default();
        let mut own = BTreeMap::new();
        if let Some(tag) = &self.tag {
            own.insert("tag".to_owned(), tag.as_str().into());
        }
        for (name, image, found) in there {
            let key = format!("{}{}", self.digest_prefix, upper_camel(name));
            set.insert(&key, found.digest.as_str().into())?;
            own.insert(name.clone(), self.fields(image, found));
        }
        if self.layout == Layout::Columns {
            set.insert(ImageDigests::SCHEMA.output_key, Field::Map(own.into()))?;
        }
        Ok(vec![set])
    }

    /// Returns the fields of one image.
    fn fields(&self, image: &Reference, found: &Found) -> Field {
        let digest = found.digest.as_str();
        let mut fields = vec![
            ("digest", Field::from(digest)),
            ("ref", format!("{}@{digest}", image.name()).into()),
            ("repository", image.name().into()),
            ("tag", image.tag.as_str().into()),
        ];
        if self.tells_stale {
            fields.push(("stale", found.is_stale.to_string().into()));
        }
        fields.into_iter().collect()
    }
}

impl Registry {
    fn from_config(host: &str, registry: &Block<'_>) -> Result<Self, ConfigError> {
        let patterns = |key| {
            let patterns = registry.strings(key)?;
            // A pattern with its registry is legal as a path, but no repository is called so.
            let is_wrong = |pattern: &&String| {
                let below = pattern
                    .strip_prefix(host)
                    .is_some_and(|rest| rest.starts_with('/'));
                below || example("", pattern, "**", is_repository).is_none()
            };
            match patterns.iter().find(is_wrong) {
                None => Ok(patterns),
                Some(pattern) => Err(Problem::Value {
                    path: registry.path(key),
                    found: pattern.clone(),
                    expected: "a pattern of the paths of repositories, without registry and tag, such as myorg/*".into(),
                }),
            }
        };
        let pull_through = match registry.value("pullThrough") {
            Some(Value::Array(_)) => patterns("pullThrough")?,
            _ if flag(registry, "pullThrough")?.unwrap_or_default() => vec!["**".to_owned()],
            _ => Vec::new(),
        };
        let proof = match registry.one_of("proof", &["authorized", "tag-list", "none"])? {
            Some("authorized") => Proof::Authorized,
            Some("tag-list") => Proof::TagList,
            Some(_) => Proof::None,
            None => Proof::of_host(host),
        };
        let single = registry.one_of("platformOfSingle", &["check", "trust"])?;
        let verify = registry.one_of("verify", &["index", "child"])?;
        Ok(Self {
            plain_http: flag(registry, "plainHttp")?.unwrap_or_default(),
            repositories: registry
                .value("repositories")
                .map(|_| patterns("repositories"))
                .transpose()?,
            proof,
            pull_through,
            trusts_single: single == Some("trust"),
            verifies_child: verify == Some("child"),
        })
    }

    /// Returns what proves that a tag of `repository` is missing.
    fn proof_for(&self, repository: &str) -> Proof {
        if self
            .pull_through
            .iter()
            .any(|pattern| matches(pattern, repository))
        {
            return Proof::None;
        }
        self.proof
    }
}

fn stale_for(source: &Block<'_>) -> Result<Option<Duration>, Problem> {
    match source.duration("staleFor")? {
        Some(time) if time > MAX_STALE => Err(Problem::Value {
            path: source.path("staleFor"),
            found: format!("{} s", time.as_secs()),
            expected: "24h at most".into(),
        }),
        time => Ok(time),
    }
}

fn check_count(images: usize) -> Result<(), Problem> {
    if (1..=MAX_IMAGES).contains(&images) {
        return Ok(());
    }
    Err(Problem::Value {
        path: "images".to_owned(),
        found: format!("{images} images"),
        expected: "1 to 20 of them, each a name and a repository".into(),
    })
}

/// Checks the names of images. Each is a key of a set as it is, and in upper camel case in `digestFront`.
fn check_names(images: &BTreeMap<String, Reference>) -> Result<(), Failure> {
    let mut keys = BTreeSet::new();
    for name in images.keys() {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let is_key = !name.is_empty() && name.chars().all(legal) && name != "tag";
        if !is_key || !keys.insert(upper_camel(name)) {
            return Err(Problem::Value {
                path: "images".to_owned(),
                found: name.clone(),
                expected: "a name of letters, digits, '-' and '_', other than tag, that differs from the others by more than case and dashes".into(),
            }
            .into());
        }
    }
    Ok(())
}

/// Converts `front-end` to `FrontEnd`.
fn upper_camel(name: &str) -> String {
    let words = name.split(['-', '_']);
    let capitals = words.flat_map(|word| {
        let mut chars = word.chars();
        let first = chars.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(chars)
    });
    capitals.collect()
}

#[cfg(test)]
mod tests;
