//! Manifests: an index of several images, or one image. Also the body of a 404 and lists of tags.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use super::Platform;

/// The `Accept` header: an index or a manifest, of OCI or Docker. A registry returns 404 for an image of another media type.
pub const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// The media types of indexes. An index may contain indexes.
const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
/// The media types of images.
const IMAGES: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// A digest that an image can be pulled by: `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Digest(String);

impl Digest {
    /// Parses a digest. Returns `None` for other algorithms.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("sha256:")?;
        let legal = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        (hex.len() == 64 && hex.chars().all(legal)).then(|| Self(text.to_owned()))
    }

    /// Returns the digest with this SHA-256 hash.
    #[must_use]
    pub fn from_sha256(hash: &[u8]) -> Option<Self> {
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self::parse(&format!("sha256:{hex}"))
    }

    /// Returns the digest as it is written in a reference.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The maximum number of values of a manifest or a configuration, each of which takes much more memory than its text.
const MAX_VALUES: usize = 20_000;
/// Why a body has no digest: it is not a manifest, but perhaps a page of a proxy.
const NO_MANIFEST: &str = "did not send an image manifest";
/// Why a body has no platform.
const NO_CONFIGURATION: &str = "did not send an image configuration";

/// The image for a platform in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The manifest is one image. Its configuration has the platform.
    Image {
        /// The digest of the configuration.
        configuration: Digest,
    },
    /// The manifest is an index with this image for the platform.
    Child(Digest),
    /// The manifest is an index without an image for the platform. A nested index may have one.
    None {
        /// The indexes in the index.
        nested: Vec<Digest>,
        /// The platforms of the images in the index.
        there: Vec<Platform>,
    },
}

/// Checks that `manifest` is a manifest, which must have a `schemaVersion` (OCI image specification).
///
/// # Errors
/// Returns `Err` if it has none.
pub fn check_manifest(manifest: &[u8]) -> Result<(), &'static str> {
    parse(manifest).map(drop)
}

/// Chooses the image for `platform` in `manifest`: the exact platform, else the nearest lower variant, else the only image if it
/// has no platform.
///
/// # Errors
/// Returns `Err` if it is not a manifest.
pub fn choose(manifest: &[u8], platform: &Platform) -> Result<Choice, &'static str> {
    let manifest = parse(manifest)?;
    let Some(entries) = manifest.get("manifests").and_then(Value::as_array) else {
        let configuration = manifest.get("config").and_then(digest);
        let configuration = configuration.ok_or(NO_MANIFEST)?;
        return Ok(Choice::Image { configuration });
    };
    let mut nested = Vec::new();
    let mut images = Vec::new();
    for entry in entries {
        let media_type = entry.get("mediaType").and_then(Value::as_str);
        let Some(digest) = digest(entry).filter(|_| !is_attestation(entry)) else {
            continue;
        };
        match media_type {
            Some(index) if INDEXES.contains(&index) => nested.push(digest),
            Some(other) if !IMAGES.contains(&other) => {}
            _ => images.push((entry.get("platform").and_then(Platform::read), digest)),
        }
    }
    if let [(None, only)] = images.as_slice() {
        return Ok(Choice::Child(only.clone()));
    }
    let distances = images.iter().filter_map(|(other, digest)| {
        let distance = platform.distance(other.as_ref()?)?;
        Some((distance, digest))
    });
    if let Some((_, nearest)) = distances.min_by_key(|(distance, _)| *distance) {
        return Ok(Choice::Child(nearest.clone()));
    }
    let there = images.into_iter().filter_map(|(platform, _)| platform);
    Ok(Choice::None {
        nested,
        there: there.collect(),
    })
}

/// Reads the platform of an image from its configuration.
///
/// # Errors
/// Returns `Err` if it is not a configuration.
pub fn platform_of(configuration: &[u8]) -> Result<Platform, &'static str> {
    let configuration = strict_json::from_slice(configuration, MAX_VALUES).unwrap_or_default();
    Platform::read(&configuration).ok_or(NO_CONFIGURATION)
}

impl Platform {
    /// Whether an image for `other` runs on this platform.
    #[must_use]
    pub fn runs(&self, other: &Self) -> bool {
        self.distance(other).is_some()
    }
}

/// What is unknown to a registry according to a 404.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// The manifest. The repository may exist.
    Manifest,
    /// The repository.
    Repository,
}

/// Reads the body of a 404. Returns `None` without a known code, since the 404 may then be of a proxy.
#[must_use]
pub fn unknown(body: &[u8]) -> Option<Unknown> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let errors = body.get("errors").and_then(Value::as_array)?;
    let mut found = None;
    for error in errors {
        match error.get("code").and_then(Value::as_str) {
            Some("NAME_UNKNOWN") => return Some(Unknown::Repository),
            // Harbor sends NOT_FOUND. Quay sends TAG_EXPIRED for a deleted tag.
            Some("MANIFEST_UNKNOWN" | "NOT_FOUND" | "TAG_EXPIRED") => {
                found = Some(Unknown::Manifest);
            }
            _ => {}
        }
    }
    found
}

/// Whether the body of a 200 is a list of tags, which may be empty. GHCR sends `null` for an empty list, and GAR sends more keys.
#[must_use]
pub fn is_tag_list(body: &[u8]) -> bool {
    // The tags stay text: there may be very many.
    let body: BTreeMap<String, &RawValue> = serde_json::from_slice(body).unwrap_or_default();
    let tags = body.get("tags").map(|tags| tags.get());
    tags.is_some_and(|tags| tags.starts_with('[') || tags == "null")
}

fn parse(manifest: &[u8]) -> Result<Value, &'static str> {
    let manifest = strict_json::from_slice(manifest, MAX_VALUES).unwrap_or_default();
    match manifest.get("schemaVersion") {
        Some(_) => Ok(manifest),
        None => Err(NO_MANIFEST),
    }
}

fn digest(descriptor: &Value) -> Option<Digest> {
    Digest::parse(descriptor.get("digest")?.as_str()?)
}

/// Whether `entry` is an attestation, which BuildKit adds to an index.
fn is_attestation(entry: &Value) -> bool {
    let annotation = entry.get("annotations");
    let is_annotated = annotation.is_some_and(|it| it.get("vnd.docker.reference.type").is_some());
    let platform = entry.get("platform").and_then(Platform::read);
    is_annotated || platform.is_some_and(|platform| platform.to_string() == "unknown/unknown")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn name(c: char) -> Digest {
        Digest::parse(&format!("sha256:{}", String::from(c).repeat(64))).unwrap()
    }

    /// Returns an entry of an index. `c` is the digit of its digest.
    fn entry(c: char, platform: &str, media_type: &str) -> Value {
        let mut entry = json!({"digest": name(c).as_str(), "mediaType": media_type});
        let mut parts = platform.split('/');
        if let (Some(os), Some(architecture)) = (parts.next(), parts.next()) {
            entry["platform"] = json!({"os": os, "architecture": architecture});
            if let Some(variant) = parts.next() {
                entry["platform"]["variant"] = json!(variant);
            }
        }
        entry
    }

    #[track_caller]
    fn check(entries: &[Value], platform: &str, expect: &str) {
        let index = json!({"schemaVersion": 2, "manifests": entries}).to_string();
        let platform = Platform::parse(platform).unwrap();
        let shown = match choose(index.as_bytes(), &platform).unwrap() {
            Choice::Image { .. } => "image".to_owned(),
            Choice::Child(digest) => digest.as_str()[7..8].to_owned(),
            Choice::None { nested, there } => {
                let nested = nested.iter().map(|digest| digest.as_str()[7..8].to_owned());
                let there = there.iter().map(ToString::to_string);
                let all: Vec<_> = nested.chain(there).collect();
                format!("none: {}", all.join(" "))
            }
        };
        assert_eq!(shown, expect);
    }

    #[test]
    fn the_nearest_platform_of_an_index_is_chosen() {
        let image = IMAGES[0];
        let arms = [
            entry('5', "linux/arm/v5", image),
            entry('6', "linux/arm/v6", image),
            entry('7', "linux/arm/v7", image),
            entry('a', "linux/amd64", image),
        ];
        check(&arms, "linux/arm", "7");
        check(&arms, "linux/arm/v6", "6");
        check(&arms, "linux/arm64", "7");
        check(&arms, "linux/aarch64/v8", "7");
        check(&arms, "linux/amd64/v3", "a");
        check(
            &arms,
            "linux/s390x",
            "none: linux/arm/v5 linux/arm/v6 linux/arm/v7 linux/amd64",
        );
        check(
            &[entry('3', "linux/386", image)],
            "linux/amd64",
            "none: linux/386",
        );
    }

    /// BuildKit writes an index with a provenance attestation even for one platform.
    #[test]
    fn only_images_are_chosen() {
        let image = IMAGES[0];
        let mut annotated = entry('b', "linux/amd64", image);
        annotated["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
        let beside = [
            entry('c', "unknown/unknown", image),
            annotated,
            entry('d', "linux/amd64", "application/vnd.example.signature+json"),
        ];
        check(&beside, "linux/amd64", "none: ");
        let with = |one: Value| [&beside[..], &[one]].concat();
        check(&with(entry('a', "linux/amd64", image)), "linux/amd64", "a");
        // An image without a platform is chosen only if it is the only one.
        check(&with(entry('a', "", image)), "linux/amd64", "a");
        let two = [entry('a', "", image), entry('b', "linux/arm64", image)];
        check(&two, "linux/amd64", "none: linux/arm64");
        let nested = [
            entry('e', "", INDEXES[0]),
            entry('f', "linux/arm64", IMAGES[1]),
        ];
        check(&nested, "linux/amd64", "none: e linux/arm64");
        check(&nested, "linux/arm64", "f");
    }

    #[test]
    fn the_configuration_of_a_single_image_has_its_platform() {
        let platform = Platform::parse("linux/arm64").unwrap();
        let image =
            json!({"schemaVersion": 2, "config": {"digest": name('c').as_str()}}).to_string();
        let configuration = name('c');
        assert_eq!(
            choose(image.as_bytes(), &platform),
            Ok(Choice::Image { configuration })
        );
        for page in [&b""[..], b"<html>", b"{}", b"[2]"] {
            assert_eq!(choose(page, &platform), Err(NO_MANIFEST));
            assert_eq!(check_manifest(page), Err(NO_MANIFEST));
            assert_eq!(platform_of(page), Err(NO_CONFIGURATION));
        }
        let of = platform_of(br#"{"os":"linux","architecture":"arm64","variant":"v8"}"#).unwrap();
        assert!(platform.runs(&of));
        assert!(!Platform::parse("linux/amd64").unwrap().runs(&of));
    }

    #[test]
    fn the_code_of_a_404_is_read() {
        let code = |code: &str| unknown(json!({"errors": [{"code": code}]}).to_string().as_bytes());
        for manifest in ["MANIFEST_UNKNOWN", "NOT_FOUND", "TAG_EXPIRED"] {
            assert_eq!(code(manifest), Some(Unknown::Manifest));
        }
        assert_eq!(code("NAME_UNKNOWN"), Some(Unknown::Repository));
        for other in ["DENIED", "UNAUTHORIZED", "BLOB_UNKNOWN", ""] {
            assert_eq!(code(other), None);
        }
        // zot sends no list, and a proxy sends a page.
        for other in [
            r#"{"errors":null}"#,
            r#"{"code":"MANIFEST_UNKNOWN"}"#,
            "{}",
            "<html>",
            "",
        ] {
            assert_eq!(unknown(other.as_bytes()), None, "{other}");
        }
    }

    /// A megabyte of empty values would take a hundred.
    #[test]
    fn a_manifest_and_a_configuration_have_a_limited_number_of_values() {
        let body = |values: usize| {
            json!({"schemaVersion": 2, "os": "linux", "architecture": "amd64", "x": vec![0; values]})
                .to_string()
        };
        assert!(parse(body(1000).as_bytes()).is_ok());
        assert!(platform_of(body(1000).as_bytes()).is_ok());
        let large = body(MAX_VALUES);
        assert_eq!(parse(large.as_bytes()), Err(NO_MANIFEST));
        assert_eq!(platform_of(large.as_bytes()), Err(NO_CONFIGURATION));
    }

    #[test]
    fn a_list_of_tags_may_be_empty() {
        for list in [
            r#"{"tags":null}"#,
            r#"{"tags":[]}"#,
            r#"{"tags":["v1"],"child":[],"manifest":{}}"#,
        ] {
            assert!(is_tag_list(list.as_bytes()), "{list}");
        }
        for other in ["{}", "", "<html>", r#"{"tags":"v1"}"#, "[]"] {
            assert!(!is_tag_list(other.as_bytes()), "{other}");
        }
    }
}
