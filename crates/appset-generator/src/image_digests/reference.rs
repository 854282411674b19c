//! References to images, checked before they become parts of a URL, and the platforms of images.

use std::fmt;
use std::net::Ipv6Addr;
use std::num::NonZeroU16;

use serde_json::Value;
use strict_json::Problem;

use crate::matching::matches;

/// An image to look up, and the settings of its registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// The host of the registry, with the port if it has one.
    pub registry: String,
    /// Whether the registry uses http instead of https.
    pub plain_http: bool,
    /// The path of the repository, as the OCI distribution specification defines it.
    pub repository: String,
    /// The tag.
    pub tag: String,
    /// The platform whose manifest in an index is looked up. Without one it is the index itself.
    pub platform: Option<Platform>,
    /// What proves that the tag is missing.
    pub proof: Proof,
    /// Whether a missing repository counts as a missing image, because nothing was pushed to it yet.
    pub may_lack_repository: bool,
    /// Whether an image without an index is accepted for any platform, without reading its configuration.
    pub trusts_single: bool,
    /// Whether to check that the registry has the image that an index names.
    pub verifies_child: bool,
}

/// What proves that a tag is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proof {
    /// A 404. The registry checks the permission to read before it looks up the tag, and fetches from no other registry.
    Authorized,
    /// A 404, and a list of tags that can be read. A client without permission may get the same 404.
    TagList,
    /// Nothing. The registry fetches from another one, whose failures also become a 404.
    None,
}

impl Proof {
    /// Returns the default for the registry `host`.
    pub(super) fn of_host(host: &str) -> Self {
        const HOSTS: [&str; 11] = [
            "docker.io",
            "quay.io",
            "registry.gitlab.com",
            "public.ecr.aws",
            "gcr.io",
            "*.gcr.io",
            "*.azurecr.io",
            "*.pkg.dev",
            "*.dkr.ecr.*.amazonaws.com",
            "*.dkr.ecr-fips.*.amazonaws.com",
            "*.dkr.ecr.*.amazonaws.com.cn",
        ];
        match HOSTS.iter().any(|pattern| matches(pattern, host)) {
            true => Self::Authorized,
            false => Self::TagList,
        }
    }
}

impl Reference {
    /// Returns registry and repository.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// Returns the path of the repository in the API. The short names of Docker Hub's official images omit `library/`.
    #[must_use]
    pub fn full_repository(&self) -> String {
        let library = match self.registry == "docker.io" && !self.repository.contains('/') {
            true => "library/",
            false => "",
        };
        format!("{library}{}", self.repository)
    }
}

/// Checks the host of a registry, which becomes a part of a URL.
pub(super) fn check_host(text: &str, path: String) -> Result<(), Problem> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, port),
        _ => (text, "443"),
    };
    let is_port =
        port.starts_with(|c: char| c.is_ascii_digit()) && port.parse::<NonZeroU16>().is_ok();
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let is_name = host
        .split('.')
        .all(|label| !label.is_empty() && label.chars().all(legal));
    let literal = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_literal = literal.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    if is_port && (is_name || is_literal) {
        return Ok(());
    }
    let expected = "hosts, each with a port if needed, without scheme, user and path";
    Err(Problem::value(path, text, expected))
}

/// Checks the path of a repository: each part begins and ends with a letter or digit (OCI distribution specification, "Pulling
/// manifests").
pub(super) fn repository(text: &str, path: String) -> Result<String, Problem> {
    if is_repository(text) {
        return Ok(text.to_owned());
    }
    let expected = "the path of a repository, without registry and tag";
    Err(Problem::value(path, text, expected))
}

/// Whether `text` is the path of a repository.
pub(super) fn is_repository(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let legal = |c: char| alphanumeric(c) || matches!(c, '.' | '_' | '-');
    let part = |part: &str| {
        part.starts_with(alphanumeric) && part.ends_with(alphanumeric) && part.chars().all(legal)
    };
    text.len() <= 255 && text.split('/').all(part)
}

/// Whether `text` is a legal tag (OCI distribution specification, "Pulling manifests").
pub(crate) fn is_tag(text: &str) -> bool {
    let first = |c| is_tag_character(c) && !matches!(c, '.' | '-');
    text.len() <= 128 && text.starts_with(first) && text.chars().all(is_tag_character)
}

/// Whether a tag may contain `c`. Not all of these characters may be the first.
pub(crate) const fn is_tag_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// Checks that `text` is a legal tag.
pub(super) fn check_tag(text: &str) -> Result<(), Problem> {
    if is_tag(text) {
        return Ok(());
    }
    let expected = if text.contains('/') {
        "a tag, which cannot contain '/': use branch_slug or head_short_sha_7, as the build does"
    } else {
        "a tag: letters, digits, '_', '.' and '-', at most 128"
    };
    Err(Problem::value("tag", text, expected))
}

/// The longest platform, in bytes. It stays in the caches of digests.
const MAX_PLATFORM: usize = 64;

/// An operating system, an architecture and an optional variant, by Go's names and in the normal form of
/// `github.com/containerd/platforms`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Platform {
    os: String,
    architecture: String,
    /// Empty if the architecture has no variant, or if it is the default one.
    variant: String,
}

impl Platform {
    /// Parses a platform such as `linux/arm64` or `linux/arm/v7`.
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let parts: Vec<_> = text.split('/').collect();
        let legal = text.len() <= MAX_PLATFORM && !parts.iter().any(|part| part.is_empty());
        match parts.as_slice() {
            [os, architecture] if legal => Ok(Self::new(os, architecture, "")),
            [os, architecture, variant] if legal => Ok(Self::new(os, architecture, variant)),
            _ => {
                let expected = "a system and an architecture, such as linux/amd64 or linux/arm/v7";
                Err(Problem::value("platform", text, expected))
            }
        }
    }

    /// Reads the platform of an entry of an index, or of the configuration of an image.
    pub(super) fn read(object: &Value) -> Option<Self> {
        let text = |key| object.get(key).and_then(Value::as_str);
        let variant = text("variant").unwrap_or_default();
        Some(Self::new(text("os")?, text("architecture")?, variant))
    }

    fn new(os: &str, architecture: &str, variant: &str) -> Self {
        let [os, architecture, variant] = [os, architecture, variant].map(str::to_ascii_lowercase);
        let os = if os == "macos" { "darwin" } else { &os };
        let numbered = format!("v{variant}");
        let variant = match variant.as_str() {
            "5" | "6" | "7" | "8" => numbered.as_str(),
            other => other,
        };
        let (architecture, variant) = match (architecture.as_str(), variant) {
            ("aarch64" | "arm64", "" | "v8") => ("arm64", ""),
            ("aarch64" | "arm64", variant) => ("arm64", variant),
            ("x86_64" | "x86-64" | "amd64", "" | "v1") => ("amd64", ""),
            ("x86_64" | "x86-64" | "amd64", variant) => ("amd64", variant),
            ("i386", _) => ("386", ""),
            ("armhf", _) | ("arm", "") => ("arm", "v7"),
            ("armel", _) => ("arm", "v6"),
            other => other,
        };
        Self {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.to_owned(),
        }
    }

    /// Returns how far `other` is from this platform, or `None` if an image for `other` does not run here.
    ///
    /// 0 is the same platform, and a lower variant is farther: for `arm/v7`, `arm/v6` is 1 and `arm/v5` is 2. On `arm64` an image
    /// for 32-bit `arm` is farther than any for `arm64`. On `amd64` an image for 32 bits is never accepted.
    pub(super) fn distance(&self, other: &Self) -> Option<u32> {
        if self.os != other.os {
            return None;
        }
        if self.architecture == other.architecture && self.variant == other.variant {
            return Some(0);
        }
        let (mine, theirs) = (self.level()?, other.level()?);
        let runs = match (self.architecture.as_str(), other.architecture.as_str()) {
            // Farther than any image for 64-bit ARM.
            ("arm64", "arm") => return Some(100 + 8_u32.checked_sub(theirs)?),
            (mine, theirs) => mine == theirs,
        };
        let lower = mine.checked_sub(theirs).filter(|lower| *lower > 0);
        lower.filter(|_| runs)
    }

    /// Returns the number of the variant, if the architecture has numbered variants.
    fn level(&self) -> Option<u32> {
        match (self.architecture.as_str(), self.variant.strip_prefix('v')) {
            ("amd64", None) if self.variant.is_empty() => Some(1),
            ("arm64", None) if self.variant.is_empty() => Some(8),
            ("amd64" | "arm64" | "arm", Some(number)) => number.parse().ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() {
            return Ok(());
        }
        write!(f, "/{}", self.variant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_that_check_permissions_first_are_known_by_name() {
        for host in [
            "docker.io",
            "quay.io",
            "registry.gitlab.com",
            "public.ecr.aws",
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com",
            "123456789012.dkr.ecr-fips.us-east-1.amazonaws.com",
            "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn",
            "shop.azurecr.io",
            "europe-docker.pkg.dev",
            "gcr.io",
            "eu.gcr.io",
        ] {
            assert_eq!(Proof::of_host(host), Proof::Authorized, "{host}");
        }
        for host in [
            "ghcr.io",
            "harbor.example.com",
            "quay.io.example.com",
            "evilgcr.io",
            "pkg.dev",
            "docker.io:5000",
        ] {
            assert_eq!(Proof::of_host(host), Proof::TagList, "{host}");
        }
    }

    #[test]
    fn tags_are_legal_by_the_specification() {
        for tag in ["v1", "_", "A.b-c_9", &"x".repeat(128)] {
            check_tag(tag).unwrap();
        }
        for tag in ["", "-a", ".a", "a/b", "a:b", "ä", &"x".repeat(129)] {
            check_tag(tag).unwrap_err();
        }
    }

    fn platform(text: &str) -> Platform {
        Platform::parse(text).unwrap()
    }

    #[test]
    fn a_platform_has_a_normal_form() {
        for (text, normal) in [
            ("linux/arm64", "linux/arm64"),
            ("linux/arm64/v8", "linux/arm64"),
            ("linux/aarch64", "linux/arm64"),
            ("Linux/X86_64", "linux/amd64"),
            ("linux/amd64/v1", "linux/amd64"),
            ("linux/amd64/v3", "linux/amd64/v3"),
            ("linux/arm", "linux/arm/v7"),
            ("linux/arm/6", "linux/arm/v6"),
            ("linux/armhf", "linux/arm/v7"),
            ("linux/armel", "linux/arm/v6"),
            ("linux/i386", "linux/386"),
            ("macos/arm64", "darwin/arm64"),
            ("linux/s390x", "linux/s390x"),
        ] {
            assert_eq!(platform(text).to_string(), normal, "{text}");
        }
        let long = format!("linux/{}", "x".repeat(60));
        for text in ["linux", "linux/", "/amd64", "linux/arm/v7/x", "", &long] {
            assert!(Platform::parse(text).is_err(), "{text}");
        }
    }

    /// Checks the order of platforms by distance, and those that do not run.
    #[track_caller]
    fn check(wanted: &str, nearest_first: &[&str], never: &[&str]) {
        let distance = |other: &&str| platform(wanted).distance(&platform(other));
        let distances: Vec<_> = nearest_first.iter().map(distance).collect();
        assert!(distances.iter().all(Option::is_some), "{distances:?}");
        assert!(distances.is_sorted_by(|a, b| a < b), "{distances:?}");
        for other in never {
            assert_eq!(distance(other), None, "{other}");
        }
    }

    #[test]
    fn lower_variants_run_and_higher_variants_do_not() {
        check(
            "linux/arm",
            &["linux/arm/v7", "linux/arm/v6", "linux/arm/v5"],
            &["linux/arm/v8", "linux/arm64"],
        );
        check(
            "linux/arm64/v8",
            &[
                "linux/arm64",
                "linux/arm/v8",
                "linux/arm/v7",
                "linux/arm/v6",
            ],
            &["linux/arm64/v9", "linux/amd64", "windows/arm64"],
        );
        check(
            "linux/arm64/v9",
            &["linux/arm64/v9", "linux/arm64", "linux/arm/v7"],
            &["linux/arm64/other"],
        );
        check(
            "linux/amd64/v3",
            &["linux/amd64/v3", "linux/amd64/v2", "linux/amd64"],
            &["linux/386", "linux/amd64/v4", "linux/amd64/other"],
        );
        check(
            "linux/amd64",
            &["linux/amd64"],
            &["linux/386", "linux/amd64/v2"],
        );
        check("linux/s390x", &["linux/s390x"], &["linux/ppc64le"]);
    }
}
