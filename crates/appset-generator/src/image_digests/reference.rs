//! Names of images, checked before they go into a URL.

use strict_json::Problem;

use super::Platform;
use crate::pattern::matches;

/// One image to look up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Host, and port if there is one.
    pub registry: String,
    /// Whether the registry speaks http, not https.
    pub plain_http: bool,
    /// Path of the repository, in the form of OCI's distribution specification.
    pub repository: String,
    /// The tag.
    pub tag: String,
    /// Whose manifest in an index; the index itself without one.
    pub platform: Option<Platform>,
    /// What proves that the tag is not there.
    pub proof: Proof,
    /// Whether a missing repository is treated as a missing image: nothing was pushed to it yet.
    pub may_lack_repository: bool,
    /// Whether an image that is in no index is taken for any platform, without a look into its configuration.
    pub trusts_single: bool,
    /// Whether the registry has to have what its index names.
    pub verifies_child: bool,
}

/// What proves that a tag is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proof {
    /// The 404: the registry checks the permission to read before it looks, and looks in its own storage only.
    Authorized,
    /// The 404, and a list of tags that can be read: a stranger may get the same 404.
    TagList,
    /// Nothing: the registry fetches from another one, whose failures end as a 404.
    None,
}

impl Proof {
    /// What does for a registry by its name, unless the configuration says otherwise.
    pub(super) fn of_host(host: &str) -> Self {
        const EXACTLY: [&str; 5] = [
            "docker.io",
            "quay.io",
            "registry.gitlab.com",
            "public.ecr.aws",
            "gcr.io",
        ];
        const BELOW: [&str; 3] = [".azurecr.io", ".pkg.dev", ".gcr.io"];
        let is_ecr = [
            "*.dkr.ecr.*.amazonaws.com",
            "*.dkr.ecr-fips.*.amazonaws.com",
            "*.dkr.ecr.*.amazonaws.com.cn",
        ]
        .iter()
        .any(|pattern| matches(pattern, host));
        if EXACTLY.contains(&host) || BELOW.iter().any(|end| host.ends_with(end)) || is_ecr {
            Self::Authorized
        } else {
            Self::TagList
        }
    }
}

impl Reference {
    /// Registry and repository.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
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

/// Whether `text` can be a tag.
///
/// # Errors
/// If it cannot.
pub(super) fn check_tag(text: &str) -> Result<(), Problem> {
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_that_judge_rights_first_are_known_by_name() {
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
    fn tags_are_what_the_specification_allows() {
        for tag in ["v1", "_", "A.b-c_9", &"x".repeat(128)] {
            check_tag(tag).unwrap();
        }
        for tag in ["", "-a", ".a", "a/b", "a:b", "ä", &"x".repeat(129)] {
            check_tag(tag).unwrap_err();
        }
    }
}
