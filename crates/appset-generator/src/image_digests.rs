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
    ACCEPT, Choice, Digest, Unknown, check_manifest, choose, is_tag_list, platform_of, unknown,
};
use self::reference::is_repository;
pub use self::reference::{Platform, Proof, Reference};
pub(crate) use self::reference::{is_tag, is_tag_character};
use crate::answer::EmptyAllowed;
use crate::branch::is_branch;
use crate::clusters::Allowed;
use crate::error::ConfigError;
use crate::failure::shown;
use crate::keys::{Schema, flag, has_blanks, is_second};
use crate::matching::{example, matches};
use crate::{Failure, Field, ParameterSet};

/// The largest number of images in one request.
pub(crate) const MAX_IMAGES: usize = 20;
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
    on_empty: Option<EmptyAllowed>,
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
    pub(crate) const REGISTRY_KEYS: &[&str] = &[
        "repositories",
        "plainHttp",
        "proof",
        "pullThrough",
        "platformOfSingle",
        "verify",
    ];
    pub(crate) const SCHEMA: Schema = Schema {
        name: "image-digests",
        key: "imageDigests",
        keys: &["registries", "registry", "dockerConfig", "staleFor"],
        parameters: &[
            "images",
            "tag",
            "registry",
            "layout",
            "platform",
            "onMissing",
            "onMissingRepository",
            "onInvalidTag",
            "digestPrefix",
            "outputKey",
        ],
        output_key: "image",
    };

    pub(crate) fn from_config(source: &Block<'_>) -> Result<Self, ConfigError> {
        let mut registries = BTreeMap::new();
        for (host, registry) in source.named_blocks("registries", Self::REGISTRY_KEYS)? {
            reference::check_host(host, source.path("registries"))?;
            registries.insert(host.to_owned(), Registry::from_config(host, &registry)?);
        }
        if registries.is_empty() {
            return Err(source.empty("registries").into());
        }
        let mut default = source.string("registry")?.map(str::to_owned);
        let mut unlisted = default
            .iter()
            .filter(|host| !registries.contains_key(*host));
        if let Some(host) = unlisted.next() {
            let problem = source.wrong("registry", host, "one of registries");
            return Err(problem.into());
        }
        if registries.len() == 1 {
            default = registries.keys().next().cloned();
        }
        let files = match source.value("dockerConfig") {
            Some(Value::Array(_)) => source.strings("dockerConfig")?,
            _ => Vec::from_iter(source.string("dockerConfig")?.map(str::to_owned)),
        };
        let is_none = files.is_empty() && source.value("dockerConfig").is_some();
        if is_none || files.iter().any(|file| has_blanks(file)) {
            let expected = "the path of a file, or a list of them";
            return Err(source
                .wrong("dockerConfig", files.join(", "), expected)
                .into());
        }
        let stale_for = source.duration("staleFor")?;
        if let Some(time) = stale_for.filter(|time| *time > MAX_STALE) {
            let found = format!("{} s", time.as_secs());
            return Err(source.wrong("staleFor", found, "24h at most").into());
        }
        Ok(Self {
            default,
            registries,
            docker_config: files.into_iter().map(PathBuf::from).collect(),
            stale_for,
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
        let platform = parameters.string("platform")?;
        let platform = platform.map(Platform::parse).transpose()?;
        let may_lack_repository =
            is_second(parameters, "onMissingRepository", ["error", "missing"])?;
        let skips_invalid = is_second(parameters, "onInvalidTag", ["error", "skip"])?;
        let listed = parameters.object("images")?;
        let count = listed.map_or(0, Map::len);
        // Counted before they are read: each image has a copy of the tag.
        if !(1..=MAX_IMAGES).contains(&count) {
            let expected = "1 to 20 of them, each a name and a repository";
            let problem = parameters.wrong("images", format!("{count} images"), expected);
            return Err(problem.into());
        }
        let (mut illegal, mut images) = (BTreeSet::new(), BTreeMap::new());
        for (name, image) in listed.into_iter().flatten() {
            let path = format!("images.{name}");
            let mut reference = self.reference(parameters, image, path, allowed.images)?;
            reference.platform.clone_from(&platform);
            reference.may_lack_repository = may_lack_repository;
            match reference::check_tag(&reference.tag) {
                // An author of a branch can cause any other illegal tag.
                Err(_) if skips_invalid && is_branch(&reference.tag) => {
                    illegal.insert(name.clone());
                }
                checked => checked?,
            }
            images.insert(name.clone(), reference);
        }
        check_names(images.keys())?;
        let prefix = parameters.string("digestPrefix")?;
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
            digest_prefix: prefix.unwrap_or("digest").to_owned(),
            on_missing,
            on_empty: EmptyAllowed::read(parameters)?,
        })
    }

    /// Reads one entry of `images`: a repository, or an object with repository, registry and tag. The configuration and the
    /// patterns of the profile, `allowed`, must allow it.
    fn reference(
        &self,
        parameters: &Block<'_>,
        image: &Value,
        path: String,
        allowed: Option<&[String]>,
    ) -> Result<Reference, Failure> {
        let (repository, registry, tag) = match image {
            Value::String(repository) => (Some(repository.as_str()), None, None),
            _ => {
                let known = ["registry", "repository", "tag"];
                let own = parameters.nested(path.clone(), image, &known)?;
                let own = |key| own.string(key);
                (own("repository")?, own("registry")?, own("tag")?)
            }
        };
        let or_common = |own: Option<_>, key| match own {
            None => parameters.string(key),
            own => Ok(own),
        };
        let missing = |key: &str, expected| Problem::value(key, "", expected);
        let key = format!("{path}.repository");
        let repository = repository.ok_or_else(|| missing(&key, "the path of a repository"))?;
        let registry = or_common(registry, "registry")?.or(self.default.as_deref());
        let several = "set, because several registries are configured";
        let registry = registry.ok_or_else(|| missing("registry", several))?;
        let tag = or_common(tag, "tag")?;
        let tag = tag.ok_or_else(|| missing("tag", "set, here or for each image"))?;
        let settings = self.registries.get(registry).ok_or_else(|| {
            Failure::Forbidden(format!(
                "registry {registry} is not allowed: have it added to imageDigests.registries"
            ))
        })?;
        let reference = Reference {
            plain_http: settings.plain_http,
            registry: registry.to_owned(),
            repository: reference::repository(repository, path)?,
            tag: tag.to_owned(),
            platform: None,
            proof: settings.proof_for(repository),
            may_lack_repository: false,
            trusts_single: settings.trusts_single,
            verifies_child: settings.verifies_child,
        };
        let name = reference.name();
        let repositories = settings.repositories.as_deref();
        let lists =
            |patterns: Option<&[String]>, text| patterns.is_none_or(|it| any_matches(it, text));
        let full = reference.full_repository();
        let is_listed = lists(repositories, repository) || lists(repositories, &full);
        if is_listed && (lists(allowed, &name) || lists(allowed, &format!("{registry}/{full}"))) {
            return Ok(reference);
        }
        Err(Failure::Forbidden(format!(
            "image {name} is not allowed: have it added to the repositories of its registry and to the images of the profile"
        )))
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
}

impl ImageQuery {
    /// Returns the images to look up, each with its name in the request.
    pub fn references(&self) -> impl Iterator<Item = (&str, &Reference)> {
        let images = self.images.iter();
        let legal = images.filter(|(name, _)| !self.illegal.contains(*name));
        legal.map(|(name, reference)| (name.as_str(), reference))
    }

    /// Computes the sets from the digests in `found`. An image that is not in it counts as missing.
    ///
    /// # Errors
    /// Returns `Err` if an image is missing and `onMissing` is `error`, or if nothing is left and `onEmpty` does not allow that.
    pub fn sets(&self, found: &BTreeMap<String, Found>) -> Result<Vec<ParameterSet>, Failure> {
        let mut images = self.images.iter();
        let missing = images.find(|(name, _)| !found.contains_key(*name));
        let is_nothing_left = match self.layout {
            Layout::Rows => found.is_empty(),
            Layout::Columns | Layout::Digests => self.on_missing == OnMissing::Skip,
        };
        let must_exist =
            self.on_missing == OnMissing::Refuse || (is_nothing_left && self.on_empty.is_none());
        if let Some((_, image)) = missing.filter(|_| must_exist) {
            let tag = shown(&image.tag);
            return Err(Failure::MissingImage(format!("{}:{tag}", image.name())));
        }
        let there = self.images.iter();
        let there = there.filter_map(|(name, image)| Some((name, image, found.get(name)?)));
        let output_key = ImageDigests::SCHEMA.output_key;
        if self.layout == Layout::Rows {
            let row = |(name, image, found): (&String, &Reference, &Found)| {
                let mut set = ParameterSet::default();
                set.insert("app", name.into())?;
                set.insert(&self.digest_prefix, found.digest.as_str().into())?;
                set.insert(output_key, self.fields(image, found))?;
                Ok(set)
            };
            return there.map(row).collect();
        }
        if missing.is_some() && self.on_missing == OnMissing::Skip {
            return Ok(Vec::new());
        }
        let mut set = ParameterSet::default();
        let tag = self.tag.iter().map(|tag| ("tag".to_owned(), tag.into()));
        let mut own = BTreeMap::from_iter(tag);
        for (name, image, found) in there {
            let key = format!("{}{}", self.digest_prefix, upper_camel(name));
            set.insert(&key, found.digest.as_str().into())?;
            own.insert(name.clone(), self.fields(image, found));
        }
        if self.layout == Layout::Columns {
            set.insert(output_key, Field::Map(own.into()))?;
        }
        Ok(vec![set])
    }

    /// Returns the fields of one image.
    fn fields(&self, image: &Reference, found: &Found) -> Field {
        let digest = found.digest.as_str();
        let own = [
            ("digest", digest.into()),
            ("ref", format!("{}@{digest}", image.name()).into()),
            ("repository", image.name().into()),
            ("tag", (&image.tag).into()),
        ];
        let stale = || ("stale", found.is_stale.into());
        let stale = self.tells_stale.then(stale);
        own.into_iter().chain(stale).collect()
    }
}

impl Registry {
    fn from_config(host: &str, registry: &Block<'_>) -> Result<Self, Problem> {
        let patterns = |key| {
            let patterns = registry.strings(key)?;
            // A pattern with its registry is legal as a path, but no repository is called so.
            let is_wrong = |pattern: &&String| {
                let rest = pattern.strip_prefix(host);
                rest.is_some_and(|rest| rest.starts_with('/'))
                    || example("", pattern, "**", is_repository).is_none()
            };
            if let Some(pattern) = patterns.iter().find(is_wrong) {
                let expected = "a pattern of the paths of repositories, without registry and tag, such as myorg/*";
                return Err(registry.wrong(key, pattern, expected));
            }
            Ok(patterns)
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
        let repositories = registry.value("repositories");
        let repositories = repositories.map(|_| patterns("repositories"));
        Ok(Self {
            plain_http: flag(registry, "plainHttp")?.unwrap_or_default(),
            repositories: repositories.transpose()?,
            proof,
            pull_through,
            trusts_single: is_second(registry, "platformOfSingle", ["check", "trust"])?,
            verifies_child: is_second(registry, "verify", ["index", "child"])?,
        })
    }

    /// Returns what proves that a tag of `repository` is missing.
    fn proof_for(&self, repository: &str) -> Proof {
        match any_matches(&self.pull_through, repository) {
            true => Proof::None,
            false => self.proof,
        }
    }
}

fn any_matches(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, text))
}

/// Checks the names of images. Each becomes two keys of a set: unchanged under `image`, and in upper camel case after the prefix,
/// such as `front` in `digestFront`.
pub(crate) fn check_names<'a>(names: impl Iterator<Item = &'a String>) -> Result<(), Problem> {
    let mut keys = BTreeSet::new();
    for name in names {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let is_key = !name.is_empty() && name.chars().all(legal) && name != "tag";
        if !is_key || !keys.insert(upper_camel(name)) {
            let expected = "a name of letters, digits, '-' and '_', other than tag, that differs from the others by more than case and dashes";
            return Err(Problem::value("images", name, expected));
        }
    }
    Ok(())
}

/// Converts `front-end` to `FrontEnd`.
fn upper_camel(name: &str) -> String {
    let capitals = name.split(['-', '_']).flat_map(|word| {
        let mut chars = word.chars();
        let first = chars.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(chars)
    });
    capitals.collect()
}

#[cfg(test)]
mod tests;
