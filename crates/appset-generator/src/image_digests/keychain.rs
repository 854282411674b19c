//! Credentials from the files of `docker login`, podman and Kubernetes' image pull Secrets, and their lookup for an image.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use crate::matching::matches;

/// The names of Docker Hub in files and images.
const DOCKER_HUB: [&str; 4] = [
    "docker.io",
    "index.docker.io",
    "registry-1.docker.io",
    "registry.hub.docker.com",
];
/// The keys that distinguish `config.json` from the older `.dockercfg`, which has registries at the top level.
const CONFIG_KEYS: [&str; 4] = ["auths", "credHelpers", "credsStore", "HttpHeaders"];

/// The credentials of a client.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Credentials {
    /// A user and a password.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// A refresh token for the token server.
    Identity(String),
    /// A token for the registry itself.
    Registry(String),
}

/// Prints no secret, so that none can be in a log.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// Returns the value for the header `Authorization: Basic`: user and password in base64.
    #[must_use]
    pub fn basic(&self) -> String {
        let (user, password) = match self {
            Self::Basic { user, password } => (user.as_str(), password),
            Self::Identity(token) | Self::Registry(token) => ("", token),
        };
        base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"))
    }
}

/// The reason why credentials cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeychainError {
    /// The file has another format.
    #[error("it is neither a Docker configuration nor a .dockercfg")]
    Format,
    /// An entry is invalid. The message does not have its text, which may be a secret.
    #[error("auth of the entry for {0} is not user:password in base64")]
    Auth(String),
    /// The credentials are in a credential helper, a program on the machine where the file was written.
    #[error(
        "dockerConfig names a credential helper for {0}, which the generator does not run: let External Secrets write a dockerconfigjson Secret with its generator ECRAuthorizationToken, GCRAccessToken or ACRAccessToken"
    )]
    Helper(String),
}

/// The credentials of several files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keychain {
    entries: Vec<(String, Credentials)>,
    /// The keys for which a credential helper is configured.
    helpers: BTreeSet<String>,
}

impl Keychain {
    /// Adds the entries of a file. For equal keys, entries of earlier files come first.
    ///
    /// # Errors
    /// Returns `Err` if the file has another format, or has an invalid entry.
    pub fn add(&mut self, file: &[u8]) -> Result<(), KeychainError> {
        let Ok(Value::Object(file)) = serde_json::from_slice(file) else {
            return Err(KeychainError::Format);
        };
        let is_config = file.is_empty() || CONFIG_KEYS.iter().any(|key| file.contains_key(*key));
        let none = Map::new();
        let object = |key| file.get(key).and_then(Value::as_object).unwrap_or(&none);
        let auths = if is_config { object("auths") } else { &file };
        let has_store = is_config && file.get("credsStore").and_then(Value::as_str).is_some();
        if is_config {
            self.helpers.extend(object("credHelpers").keys().cloned());
        }
        for (key, entry) in auths {
            let Value::Object(entry) = entry else {
                return Err(KeychainError::Format);
            };
            match credentials(key, entry)? {
                Some(credentials) => self.entries.push((key.clone(), credentials)),
                // docker writes an empty entry for credentials that are in its store.
                None if has_store => drop(self.helpers.insert(key.clone())),
                None => {}
            }
        }
        Ok(())
    }

    /// Returns the credentials for a repository of a registry, the most specific first.
    ///
    /// The order is: the repository itself, a path above it, the registry, a pattern. For `r.io/org/app` that is
    /// `r.io/org/app`, `r.io/org`, `r.io`, `*.io`.
    ///
    /// # Errors
    /// Returns `Err` if only a credential helper has credentials for it.
    pub fn find(
        &self,
        registry: &str,
        repository: &str,
    ) -> Result<Vec<Credentials>, KeychainError> {
        let mut found = BTreeMap::new();
        for (order, (key, credentials)) in self.entries.iter().enumerate() {
            if let Some(rank) = rank(key, registry, repository) {
                found.insert((rank, order), credentials.clone());
            }
        }
        let mut helpers = self.helpers.iter();
        if found.is_empty() && helpers.any(|key| rank(key, registry, repository).is_some()) {
            return Err(KeychainError::Helper(registry.to_owned()));
        }
        Ok(found.into_values().collect())
    }
}

/// How specific a key is; the lowest is the most specific. Names come before patterns, then longer paths before shorter.
type Rank = (bool, std::cmp::Reverse<usize>);

/// Returns the rank of `key` for a repository, or `None` if it does not match.
fn rank(key: &str, registry: &str, repository: &str) -> Option<Rank> {
    let key = key
        .strip_prefix("https://")
        .or_else(|| key.strip_prefix("http://"))
        .unwrap_or(key);
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let path = match path.trim_end_matches('/') {
        "v1" | "v2" => "",
        path => path,
    };
    let hub = |host: &str| DOCKER_HUB.contains(&host);
    let is_host = host == registry || (hub(host) && hub(registry));
    if !is_host && !matches_host(host, registry) {
        return None;
    }
    let rest = repository.strip_prefix(path)?;
    let is_below = path.is_empty() || rest.is_empty() || rest.starts_with('/');
    is_below.then_some((!is_host, std::cmp::Reverse(path.len())))
}

/// Matches a host label by label, as the kubelet does: `*.example.com` matches neither `example.com` nor `a.b.example.com`.
fn matches_host(pattern: &str, host: &str) -> bool {
    let (pattern, port) = pattern.split_once(':').unwrap_or((pattern, ""));
    let (host, own_port) = host.split_once(':').unwrap_or((host, ""));
    port == own_port
        && pattern.split('.').count() == host.split('.').count()
        && pattern
            .split('.')
            .zip(host.split('.'))
            .all(|(pattern, label)| matches(pattern, label))
}

/// Reads one entry. Returns `None` if it has no credentials.
fn credentials(
    key: &str,
    entry: &Map<String, Value>,
) -> Result<Option<Credentials>, KeychainError> {
    let text = |name: &str| {
        let text = entry.get(name).and_then(Value::as_str);
        text.filter(|text| !text.is_empty())
    };
    if let Some(token) = text("registrytoken") {
        return Ok(Some(Credentials::Registry(token.to_owned())));
    }
    if let Some(token) = text("identitytoken") {
        return Ok(Some(Credentials::Identity(token.to_owned())));
    }
    let (user, password) = match (text("auth"), text("username"), text("password")) {
        (Some(auth), _, _) => {
            let decoded = decode(auth);
            let pair = decoded.as_ref().and_then(|text| text.split_once(':'));
            let (user, password) = pair.ok_or_else(|| KeychainError::Auth(key.to_owned()))?;
            (user.to_owned(), password.trim_end_matches('\0').to_owned())
        }
        (None, user, Some(password)) => (user.unwrap_or_default().to_owned(), password.to_owned()),
        (None, _, None) => return Ok(None),
    };
    Ok(Some(match user.as_str() {
        "<token>" => Credentials::Identity(password),
        _ => Credentials::Basic { user, password },
    }))
}

/// Decodes base64 with or without padding.
fn decode(text: &str) -> Option<String> {
    const LENIENT: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let decoded = GeneralPurpose::new(&STANDARD, LENIENT)
        .decode(text.trim())
        .ok()?;
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(credentials: &Credentials) -> String {
        match credentials {
            Credentials::Basic { user, password } => format!("{user}:{password}"),
            Credentials::Identity(token) => format!("identity {token}"),
            Credentials::Registry(token) => format!("registry {token}"),
        }
    }

    /// Checks the credentials in `files` for `registry/repository`, or the error.
    #[track_caller]
    fn check(files: &[Value], registry: &str, repository: &str, expect: &[&str]) {
        let mut keychain = Keychain::default();
        let added = files
            .iter()
            .try_for_each(|file| keychain.add(file.to_string().as_bytes()));
        let found = added.and_then(|()| keychain.find(registry, repository));
        let shown: Vec<_> = match &found {
            Ok(found) => found.iter().map(shown).collect(),
            Err(error) => vec![error.to_string()],
        };
        assert_eq!(shown.len(), expect.len(), "{shown:?}");
        for (shown, expect) in shown.iter().zip(expect) {
            assert!(shown.starts_with(expect), "{shown} is not {expect}");
        }
    }

    #[test]
    fn all_forms_of_an_entry_are_read() {
        for (entry, expect) in [
            (json!({"auth": "dTpwOnE="}), &["u:p:q"][..]),
            (json!({"auth": "dTpwOnE"}), &["u:p:q"]),
            (json!({"auth": "dTpwAAA="}), &["u:p"]),
            (
                json!({"auth": "dTpw", "username": "other", "password": "x"}),
                &["u:p"],
            ),
            (
                json!({"username": "u", "password": "a:b", "email": "x"}),
                &["u:a:b"],
            ),
            (
                json!({"username": "<token>", "password": "t"}),
                &["identity t"],
            ),
            (
                json!({"identitytoken": "i", "auth": "dTpw"}),
                &["identity i"],
            ),
            (json!({"registrytoken": "r"}), &["registry r"]),
            (json!({}), &[]),
            (
                json!({"auth": "%%"}),
                &["auth of the entry for r.io is not user:password in base64"],
            ),
            (
                json!({"auth": "dXA="}),
                &["auth of the entry for r.io is not user:password in base64"],
            ),
        ] {
            let config = json!({"auths": {"r.io": entry}});
            check(&[config], "r.io", "a", expect);
            let old = json!({"r.io": entry});
            check(&[old], "r.io", "a", expect);
        }
        check(&[json!([])], "r.io", "a", &["it is neither"]);
        check(&[json!({})], "r.io", "a", &[]);
        check(&[json!({"r.io": "x"})], "r.io", "a", &["it is neither"]);
    }

    /// Checks which of the keys is preferred for the image.
    #[track_caller]
    fn first(keys: &[&str], registry: &str, repository: &str, expect: Option<&str>) {
        let auths: Map<String, Value> = keys
            .iter()
            .map(|key| ((*key).to_owned(), json!({"username": key, "password": "p"})))
            .collect();
        let mut keychain = Keychain::default();
        keychain
            .add(json!({"auths": auths}).to_string().as_bytes())
            .unwrap();
        let found = keychain.find(registry, repository).unwrap();
        let first = found.first().map(|found| shown(found).replace(":p", ""));
        assert_eq!(first.as_deref(), expect, "{registry}/{repository}");
    }

    #[test]
    fn the_most_specific_key_is_preferred() {
        let keys = [
            "*.io",
            "r.io",
            "r.io/org",
            "https://r.io/org/app",
            "r.io:5000",
        ];
        first(&keys, "r.io", "org/app", Some("https://r.io/org/app"));
        first(&keys, "r.io", "org/app/x", Some("https://r.io/org/app"));
        first(&keys, "r.io", "org/application", Some("r.io/org"));
        first(&keys, "r.io", "organisation", Some("r.io"));
        first(&keys, "r.io:5000", "org/app", Some("r.io:5000"));
        first(&keys, "q.io", "org/app", Some("*.io"));
        first(&keys, "a.q.io", "org/app", None);
        first(&keys, "io", "org/app", None);
        first(&keys, "q.io:5000", "org/app", None);
        for key in ["https://r.io/v1/", "http://r.io/v2", "r.io/v1", "r.io/"] {
            first(&[key], "r.io", "org/app", Some(key));
        }
        for key in [
            "https://index.docker.io/v1/",
            "docker.io",
            "index.docker.io",
            "registry-1.docker.io",
        ] {
            first(&[key], "docker.io", "library/alpine", Some(key));
            first(&[key], "quay.io", "library/alpine", None);
        }
        first(
            &["*.kubernetes.io/team"],
            "abc.kubernetes.io",
            "team/a",
            Some("*.kubernetes.io/team"),
        );
        first(&["*.kubernetes.io"], "kubernetes.io", "a", None);
    }

    #[test]
    fn entries_of_several_files_are_in_their_order() {
        let of = |user: &str| json!({"auths": {"r.io": {"username": user, "password": "p"}}});
        check(&[of("a"), of("b")], "r.io", "x", &["a:p", "b:p"]);
        let old = json!({"r.io": {"username": "c", "password": "p"}});
        check(&[of("a"), old], "r.io", "x", &["a:p", "c:p"]);
    }

    #[test]
    fn a_credential_helper_is_reported() {
        let helper = json!({"credHelpers": {"r.io": "ecr-login"}});
        check(
            std::slice::from_ref(&helper),
            "r.io",
            "x",
            &["dockerConfig names a credential helper for r.io"],
        );
        check(std::slice::from_ref(&helper), "q.io", "x", &[]);
        let with = json!({"auths": {"r.io": {"auth": "dTpw"}}});
        check(&[helper, with], "r.io", "x", &["u:p"]);
        let store = json!({"auths": {"r.io": {}}, "credsStore": "desktop"});
        check(
            std::slice::from_ref(&store),
            "r.io",
            "x",
            &["dockerConfig names a credential helper"],
        );
        check(&[store], "q.io", "x", &[]);
    }

    #[test]
    fn debug_output_has_no_secret() {
        let mut keychain = Keychain::default();
        keychain
            .add(br#"{"auths": {"r.io": {"auth": "dTpodXNo"}}}"#)
            .unwrap();
        assert!(!format!("{keychain:?}").contains("hush"));
        assert_eq!(keychain.find("r.io", "x").unwrap()[0].basic(), "dTpodXNo");
    }
}
