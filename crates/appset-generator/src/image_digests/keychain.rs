//! Credentials as `docker login`, podman and Kubernetes' image pull Secrets keep them, and which of them are for an image.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use crate::matching::{is_pattern, matches};

/// The names by which files and images call Docker Hub.
const DOCKER_HUB: [&str; 4] = [
    "docker.io",
    "index.docker.io",
    "registry-1.docker.io",
    "registry.hub.docker.com",
];
/// The keys that tell `config.json` from the older `.dockercfg`, which has registries at its top.
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

/// No secret is in any log.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// User and password of the header `Authorization: Basic`.
    #[must_use]
    pub fn basic(&self) -> String {
        let (user, password) = match self {
            Self::Basic { user, password } => (user.as_str(), password),
            Self::Identity(token) | Self::Registry(token) => ("", token),
        };
        base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"))
    }
}

/// Why a file's credentials cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeychainError {
    /// It is no such file.
    #[error("it is neither a Docker configuration nor a .dockercfg")]
    Format,
    /// An entry cannot be read. Its text is in no message.
    #[error("the entry for {0} is not base64 of user:password")]
    Auth(String),
    /// The credentials are kept by a program on the machine where the file was written.
    #[error(
        "dockerConfig names a credential helper for {0}, and no program is started for a lookup: let External Secrets write a dockerconfigjson Secret, by its generator ECRAuthorizationToken, GCRAccessToken or ACRAccessToken"
    )]
    Helper(String),
}

/// The credentials of some files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keychain {
    entries: Vec<(String, Credentials)>,
    /// Keys for which a helper is configured.
    helpers: BTreeSet<String>,
}

impl Keychain {
    /// Adds what is in a file. Of equal keys, the earlier file's come first.
    ///
    /// # Errors
    /// If it is none, or holds what cannot be read.
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
                // docker writes an empty entry for what its store has.
                None if has_store => drop(self.helpers.insert(key.clone())),
                None => {}
            }
        }
        Ok(())
    }

    /// The credentials for a repository of a registry, the best first: those for the repository itself, then for what it is
    /// below, then for the registry, then by pattern.
    ///
    /// # Errors
    /// If there are none but those that a helper has.
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

/// How well a key fits, the lower the better: patterns after names, and then the longer the better.
type Rank = (bool, std::cmp::Reverse<usize>);

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
    let is_pattern = !is_host && is_pattern(host);
    let fits = is_host || (is_pattern && matches_host(host, registry));
    if !fits {
        return None;
    }
    let rest = repository.strip_prefix(path)?;
    let is_below = path.is_empty() || rest.is_empty() || rest.starts_with('/');
    is_below.then_some((is_pattern, std::cmp::Reverse(path.len())))
}

/// Label by label, as the kubelet does: `*.example.com` is neither `example.com` nor `a.b.example.com`.
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

/// What one entry holds, if it holds anything.
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
            let decoded = decode(auth).ok_or_else(|| KeychainError::Auth(key.to_owned()))?;
            let (user, password) = decoded
                .split_once(':')
                .ok_or_else(|| KeychainError::Auth(key.to_owned()))?;
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

/// Base64, padded or not.
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

    /// What files have for `registry/repository`.
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
    fn an_entry_has_many_forms() {
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
            (json!({"auth": "%%"}), &["the entry for r.io is not base64"]),
            (
                json!({"auth": "dXA="}),
                &["the entry for r.io is not base64"],
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

    /// The first of the keys that is for the image.
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
    fn the_key_nearest_to_the_image_wins() {
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
    fn several_files_are_tried_in_turn() {
        let of = |user: &str| json!({"auths": {"r.io": {"username": user, "password": "p"}}});
        check(&[of("a"), of("b")], "r.io", "x", &["a:p", "b:p"]);
        let old = json!({"r.io": {"username": "c", "password": "p"}});
        check(&[of("a"), old], "r.io", "x", &["a:p", "c:p"]);
    }

    #[test]
    fn a_helper_is_named_and_never_run() {
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
    fn no_secret_is_in_what_is_printed() {
        let mut keychain = Keychain::default();
        keychain
            .add(br#"{"auths": {"r.io": {"auth": "dTpodXNo"}}}"#)
            .unwrap();
        assert!(!format!("{keychain:?}").contains("hush"));
        assert_eq!(keychain.find("r.io", "x").unwrap()[0].basic(), "dTpodXNo");
    }
}
