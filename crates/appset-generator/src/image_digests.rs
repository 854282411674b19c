//! The source that turns image tags into digests: what to ask registries, and what to make of their answers.

mod reference;
mod registry;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use strict_json::{Block, Problem};

pub use self::reference::{Platform, Reference};
pub(crate) use self::reference::{is_tag, is_tag_character};
pub use self::registry::{ACCEPT, Challenge, Digest, RegistryError, is_unknown, platform_digest};
use crate::config::ConfigError;
use crate::parameters::{self, flag};
use crate::pattern::matches;
use crate::query::{Output, Query, SourceQuery};
use crate::{Failure, Field, ParameterSet};

/// The name by which requests choose this source.
pub(crate) const NAME: &str = "image-digests";
/// The source's key at the top.
const OWN: &str = "image";
/// Most images in one request.
const MAX_IMAGES: usize = 20;

/// Where images may be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageDigests {
    /// The registry of images that name none.
    default: Option<String>,
    registries: BTreeMap<String, Registry>,
    docker_config: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Registry {
    plain_http: bool,
    /// Patterns; every repository without a list.
    repositories: Option<Vec<String>>,
}

/// The images of one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageQuery {
    images: BTreeMap<String, Reference>,
    /// The tag that counts for all that name none.
    tag: Option<String>,
    layout: Layout,
    digest_prefix: String,
    on_missing: OnMissing,
}

/// How images become sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Layout {
    /// One set has them all.
    Columns,
    /// One set has the digests of all, and nothing else.
    Digests,
    /// A set for each.
    Rows,
}

/// What becomes of a set whose image is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OnMissing {
    /// There is no such set: the image has not been built yet.
    Skip,
    /// The set has no keys for the image.
    Omit,
    Refuse,
}

impl ImageDigests {
    pub(crate) const KEYS: &[&str] = &["dockerConfig", "registries", "registry"];

    pub(crate) fn from_config(source: &Block<'_>) -> Result<Self, ConfigError> {
        let mut registries = BTreeMap::new();
        for (host, registry) in source.named_blocks("registries", &["plainHttp", "repositories"])? {
            let repositories = match registry.value("repositories") {
                None => None,
                Some(_) => Some(registry.strings("repositories")?),
            };
            let plain_http = flag(&registry, "plainHttp")?.unwrap_or_default();
            registries.insert(
                host.to_owned(),
                Registry {
                    plain_http,
                    repositories,
                },
            );
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
            docker_config: source.string("dockerConfig")?.map(PathBuf::from),
            registries,
        })
    }

    /// The file with credentials, in the format of `docker login`.
    #[must_use]
    pub fn docker_config(&self) -> Option<&Path> {
        self.docker_config.as_deref()
    }

    /// What a request to this source asks for. `allowed` are the profile's patterns.
    pub(crate) fn query(
        &self,
        given: &Value,
        allowed: Option<&[String]>,
    ) -> Result<Query, Failure> {
        let keys = [
            "digestPrefix",
            "images",
            "layout",
            "onMissing",
            "platform",
            "registry",
            "requireRepository",
            "tag",
        ];
        let parameters = parameters::of_source(given, &keys)?;

        let on_missing = match parameters.one_of("onMissing", &["skip", "omit", "error"])? {
            Some("omit") => OnMissing::Omit,
            Some("error") => OnMissing::Refuse,
            _ => OnMissing::Skip,
        };
        let platform = parameters
            .string("platform")?
            .map(|text| Platform::parse(text, "platform"))
            .transpose()?;
        let require_repository = flag(&parameters, "requireRepository")?.unwrap_or(true);
        let mut images = BTreeMap::new();
        for (name, image) in parameters.object("images")?.into_iter().flatten() {
            let path = format!("images.{name}");
            let reference = self.reference(&parameters, image, path)?;
            self.admit(&reference, allowed)?;
            images.insert(
                name.clone(),
                Reference {
                    platform: platform.clone(),
                    require_repository,
                    ..reference
                },
            );
        }
        check_names(&images)?;
        let query = ImageQuery {
            images,
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
        };
        Ok(Query {
            source: SourceQuery::ImageDigests(query),
            output: Output::read(NAME, &parameters, Some(OWN), on_missing == OnMissing::Skip)?,
        })
    }

    /// What one entry of `images` means: a repository, or an object that has more.
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
                "set, since several registries are configured",
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
            tag: reference::tag(tag)?,
            platform: None,
            require_repository: true,
        })
    }

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
    /// What to look up, each by the name that the request gives it.
    pub fn references(&self) -> impl Iterator<Item = (&str, &Reference)> {
        self.images
            .iter()
            .map(|(name, reference)| (name.as_str(), reference))
    }

    /// The sets, from the digests that were `found`; an image without one is not there.
    ///
    /// # Errors
    /// When an image is not there and the request takes that for an error.
    pub fn sets(&self, found: &BTreeMap<String, Digest>) -> Result<Vec<ParameterSet>, Failure> {
        let missing = self
            .images
            .iter()
            .find(|(name, _)| !found.contains_key(*name));
        if let (Some((_, image)), OnMissing::Refuse) = (missing, self.on_missing) {
            return Err(Failure::MissingImage(format!(
                "{}:{}",
                image.name(),
                image.tag
            )));
        }
        let there = self
            .images
            .iter()
            .filter_map(|(name, image)| Some((name, image, found.get(name)?)));
        if self.layout == Layout::Rows {
            let row = |(name, image, digest): (&String, &Reference, &Digest)| {
                let mut set = ParameterSet::default();
                set.insert("app", name.as_str().into())?;
                set.insert(&self.digest_prefix, digest.as_str().into())?;
                set.insert(OWN, fields(image, digest))?;
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
        for (name, image, digest) in there {
            let key = format!("{}{}", self.digest_prefix, upper_camel(name));
            set.insert(&key, digest.as_str().into())?;
            own.insert(name.clone(), fields(image, digest));
        }
        if self.layout == Layout::Columns {
            set.insert(OWN, Field::Map(own))?;
        }
        Ok(vec![set])
    }
}

/// What a template may want to know of one image.
fn fields(image: &Reference, digest: &Digest) -> Field {
    Field::from([
        ("digest", digest.as_str().into()),
        (
            "ref",
            format!("{}@{}", image.name(), digest.as_str()).into(),
        ),
        ("repository", image.name().into()),
        ("tag", image.tag.as_str().into()),
    ])
}

/// Names become keys, on their own and in `digestFront`.
fn check_names(images: &BTreeMap<String, Reference>) -> Result<(), Failure> {
    if images.is_empty() || images.len() > MAX_IMAGES {
        return Err(Problem::Value {
            path: "images".to_owned(),
            found: format!("{} images", images.len()),
            expected: "1 to 20 of them, each a name and a repository".into(),
        }
        .into());
    }
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

/// `front-end` as in `digestFrontEnd`.
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
