//! What the sources that read objects of a cluster have in common: where they may look, and which objects are meant.

use std::collections::BTreeMap;

use strict_json::Block;

use crate::Failure;
use crate::error::ConfigError;

/// Stands for all namespaces.
pub(crate) const ALL: &str = "*";

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
        let all = source
            .strings(Self::KEY)?
            .iter()
            .any(|namespace| namespace == ALL);
        let namespaces = if all {
            vec![ALL.to_owned()]
        } else {
            source.object_names(Self::KEY)?
        };
        if namespaces.is_empty() {
            return Err(source.empty(Self::KEY).into());
        }
        Ok(Self::new(namespaces, source.path(Self::KEY)))
    }

    fn is_all(&self) -> bool {
        is_all(&self.namespaces)
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
            (self.is_all() || self.namespaces.contains(namespace))
                && allowed.is_none_or(|allowed| allowed.contains(namespace))
        };
        if let Some(namespace) = asked.iter().find(|namespace| !is_allowed(namespace)) {
            return Err(Failure::Forbidden(format!(
                "namespace {namespace} is not allowed: have it added to {} and to the namespaces of the profile",
                self.key
            )));
        }
        let all = match (asked.is_empty(), allowed) {
            (false, _) => asked,
            (true, Some(allowed)) if self.is_all() => allowed,
            (true, None) if self.is_all() => return Ok(self.namespaces.clone()),
            (true, _) => &self.namespaces,
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

/// Whether `namespaces` stands for all of them.
pub(crate) fn is_all(namespaces: &[String]) -> bool {
    namespaces.iter().any(|namespace| namespace == ALL)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        configured: &[&str],
        asked: &[&str],
        allowed: Option<&[&str]>,
        expect: Option<&[&str]>,
    ) {
        let owned = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>()
        };
        let configured = serde_json::json!({ "namespaces": configured });
        let block = Block::root(&configured, "the source", &["namespaces"]).unwrap();
        let reach = Reach::from_config(&block).unwrap();
        let allowed = allowed.map(owned);
        let admitted = reach.admit(&owned(asked), allowed.as_deref());
        assert_eq!(admitted.ok(), expect.map(owned));
    }

    #[test]
    fn a_star_is_every_namespace_that_the_profile_allows() {
        check(&["b", "a"], &[], None, Some(&["a", "b"]));
        check(&["a"], &["b"], None, None);
        check(&["*"], &[], None, Some(&["*"]));
        check(&["*", "a"], &[], None, Some(&["*"]));
        check(&["*"], &["b"], None, Some(&["b"]));
        check(&["*"], &[], Some(&["b", "a"]), Some(&["a", "b"]));
        check(&["*"], &["c"], Some(&["a"]), None);
        check(&["a"], &[], Some(&["b"]), None);
        // What a request asks for is a name.
        check(&["a"], &["*"], None, None);
    }
}
