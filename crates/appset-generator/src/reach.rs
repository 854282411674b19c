//! What the sources that read objects of a cluster have in common: where they may look, and which objects are meant.

use std::collections::BTreeMap;

use strict_json::Block;

use crate::Failure;
use crate::config::ConfigError;

/// The namespaces that a source may look into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    namespaces: Vec<String>,
    /// The configuration key that lists them.
    key: String,
}

impl Reach {
    pub(crate) const KEY: &str = "namespaces";

    pub(crate) fn new(namespaces: Vec<String>, key: String) -> Self {
        Self { namespaces, key }
    }

    pub(crate) fn from_config(source: &Block<'_>) -> Result<Self, ConfigError> {
        let namespaces = source.object_names(Self::KEY)?;
        if namespaces.is_empty() {
            return Err(source.empty(Self::KEY).into());
        }
        Ok(Self::new(namespaces, source.path(Self::KEY)))
    }

    pub(crate) fn namespaces(&self) -> &[String] {
        &self.namespaces
    }

    /// The namespaces that are `asked` for, or all of them, as far as the profile has them `allowed`.
    pub(crate) fn admit(
        &self,
        asked: &[String],
        allowed: Option<&[String]>,
    ) -> Result<Vec<String>, Failure> {
        let is_allowed = |namespace: &&String| {
            self.namespaces.contains(namespace)
                && allowed.is_none_or(|allowed| allowed.contains(namespace))
        };
        if let Some(namespace) = asked.iter().find(|namespace| !is_allowed(namespace)) {
            return Err(Failure::Forbidden(format!(
                "namespace {namespace} is not allowed: have it added to {} and to the namespaces of the profile",
                self.key
            )));
        }
        let all = if asked.is_empty() {
            &self.namespaces
        } else {
            asked
        };
        let mut admitted: Vec<String> = all.iter().filter(is_allowed).cloned().collect();
        if admitted.is_empty() {
            return Err(Failure::Forbidden(format!(
                "no namespace is allowed by both {} and the profile",
                self.key
            )));
        }
        admitted.sort();
        admitted.dedup();
        Ok(admitted)
    }
}

/// Whether an object with `labels` has all that are `needed`.
pub(crate) fn has_all(
    labels: &BTreeMap<String, String>,
    needed: &BTreeMap<String, String>,
) -> bool {
    needed
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}
