//! What registries say, as OCI's distribution specification and Docker's token authentication have it.

use serde_json::Value;

use super::Platform;

/// What to accept: an index or a manifest, of OCI or of Docker.
pub const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// A digest that an image can be pulled by: `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Digest(String);

impl Digest {
    /// Reads one; other algorithms are none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("sha256:")?;
        let legal = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        (hex.len() == 64 && hex.chars().all(legal)).then(|| Self(text.to_owned()))
    }

    /// That of a manifest with this hash.
    #[must_use]
    pub fn from_sha256(hash: &[u8]) -> Option<Self> {
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self::parse(&format!("sha256:{hex}"))
    }

    /// As it is written in a reference.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// How a registry wants to be asked, from its `WWW-Authenticate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// With the credentials themselves.
    Basic,
    /// With a token from somewhere else.
    Bearer {
        /// URL that has tokens.
        realm: String,
        /// Whom the token is for.
        service: Option<String>,
    },
}

impl Challenge {
    /// Reads a header.
    #[must_use]
    pub fn parse(header: &str) -> Option<Self> {
        let (scheme, parameters) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let parameter = |name: &str| {
            let mut quoted = parameters.split('"');
            while let (Some(before), Some(value)) = (quoted.next(), quoted.next()) {
                let before = before.trim_start_matches([',', ' ']);
                if before
                    .strip_suffix('=')
                    .is_some_and(|key| key.eq_ignore_ascii_case(name))
                {
                    return Some(value.to_owned());
                }
            }
            None
        };
        Some(Self::Bearer {
            realm: parameter("realm")?,
            service: parameter("service"),
        })
    }
}

/// Why an answer does not lead to a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// It is something else, such as the page of a proxy.
    #[error("sent what is no manifest")]
    NoManifest,
    /// The index has no manifest for the platform.
    #[error("has no image for {os}/{architecture}")]
    Platform {
        /// The system.
        os: String,
        /// The architecture.
        architecture: String,
    },
}

/// Whether the body of a 404 says that the manifest or the repository is not there. Anything else may be another fault.
#[must_use]
pub fn is_unknown(body: &[u8]) -> bool {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let errors = body.get("errors").and_then(Value::as_array);
    errors.into_iter().flatten().any(|error| {
        let code = error.get("code").and_then(Value::as_str);
        matches!(code, Some("MANIFEST_UNKNOWN" | "NAME_UNKNOWN"))
    })
}

/// The digest for `platform` in an index; nothing when the manifest itself is meant: it is no index, and so is for one
/// platform only, or no platform is asked for.
///
/// # Errors
/// When it is no manifest (all have a `schemaVersion`, by the OCI image specification), or has none for the platform.
pub fn platform_digest(
    manifest: &[u8],
    platform: Option<&Platform>,
) -> Result<Option<Digest>, RegistryError> {
    let manifest: Value = serde_json::from_slice(manifest).unwrap_or_default();
    if manifest.get("schemaVersion").is_none() {
        return Err(RegistryError::NoManifest);
    }
    let manifests = manifest.get("manifests").and_then(Value::as_array);
    let (Some(platform), Some(manifests)) = (platform, manifests) else {
        return Ok(None);
    };
    let is_for = |entry: &&Value| {
        let text = |key| entry.get("platform")?.get(key)?.as_str();
        text("os") == Some(&platform.os) && text("architecture") == Some(&platform.architecture)
    };
    let digest = manifests
        .iter()
        .find(is_for)
        .and_then(|entry| Digest::parse(entry.get("digest")?.as_str()?));
    digest.map(Some).ok_or_else(|| RegistryError::Platform {
        os: platform.os.clone(),
        architecture: platform.architecture.clone(),
    })
}
