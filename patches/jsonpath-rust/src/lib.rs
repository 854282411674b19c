//! Replaces the crate `jsonpath-rust` in what is built here, as `[patch.crates-io]` in the workspace's `Cargo.toml` says.
//!
//! kube-client takes the token of a kubeconfig's auth provider `gcp` out of a command's output, by a path such as
//! `{.credential.access_token}`. The crate from the registry has the whole query language of RFC 9535, with regular
//! expressions and their Unicode tables, which no part of a shipped binary needs. kubectl dropped auth providers in 1.26.

use serde_json::Value;

/// A value in which paths lead to others.
pub trait JsonPath {
    /// The value at `path`, such as `$.credential.access_token`; empty if there is none.
    ///
    /// # Errors
    /// Returns `Err` for a path that is more than names after dots.
    fn query(&self, path: &str) -> Result<Vec<&Value>, UnsupportedPath>;
}

/// A path with filters, indices, wildcards or quotes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("path {0} is not supported: use names after dots, such as $.credential.access_token")]
pub struct UnsupportedPath(String);

impl JsonPath for Value {
    fn query(&self, path: &str) -> Result<Vec<&Value>, UnsupportedPath> {
        let unsupported = || UnsupportedPath(path.to_owned());
        let mut names = path.split('.');
        if names.next() != Some("$") {
            return Err(unsupported());
        }
        let mut found = Some(self);
        for name in names {
            let is_name = |it: char| it.is_alphanumeric() || matches!(it, '_' | '-');
            if name.is_empty() || !name.chars().all(is_name) {
                return Err(unsupported());
            }
            found = found.and_then(|value| value.get(name));
        }
        Ok(found.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expect: Result<&[&str], ()>) {
        let output = serde_json::json!({ "credential": { "access_token": "t", "id-token": "i" } });
        let found = output.query(path).map_err(|_| ());
        let found = found.map(|it| it.into_iter().filter_map(Value::as_str).collect::<Vec<_>>());
        assert_eq!(found.as_deref(), expect.as_deref(), "{path}");
    }

    #[test]
    fn a_path_of_names_leads_to_one_value() {
        check("$.credential.access_token", Ok(&["t"]));
        check("$.credential.id-token", Ok(&["i"]));
        check("$.credential.expiry", Ok(&[]));
        check("$.credential.access_token.more", Ok(&[]));
    }

    #[test]
    fn more_than_names_is_refused() {
        for path in [
            "",
            ".credential",
            "$..access_token",
            "$.a[0]",
            "$.*",
            "$.a[?(@.b=='c')]",
            "$.",
        ] {
            check(path, Err(()));
        }
    }
}
