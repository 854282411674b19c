//! One parameter set, from which the controller renders one Application.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::field::{Field, FieldError, check_key, check_top_level};

/// What one Application is rendered from. Keys are sorted, so the same answer is the same bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct ParameterSet(BTreeMap<String, Field>);

impl ParameterSet {
    /// Inserts `field` at the top of the set.
    ///
    /// # Errors
    /// When `key` may not stand there.
    pub fn insert(&mut self, key: &str, field: Field) -> Result<(), FieldError> {
        check_top_level(key)?;
        self.0.insert(key.to_owned(), field);
        Ok(())
    }

    /// Whether `key` is at the top.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// What a dotted path leads to.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<&Field> {
        let (top, rest) = match path.split_once('.') {
            Some((top, rest)) => (top, Some(rest)),
            None => (path, None),
        };
        let steps = rest.into_iter().flat_map(|rest| rest.split('.'));
        steps.fold(self.0.get(top), |field, step| match field? {
            Field::Map(fields) => fields.get(step),
            Field::Text(_) | Field::Flag(_) | Field::List(_) => None,
        })
    }

    /// Inserts `field` at the top under a key that the request chose: a merge needs the name that the other generator uses.
    pub(crate) fn alias(&mut self, key: &str, field: Field) -> Result<(), FieldError> {
        check_key(key)?;
        self.0.insert(key.to_owned(), field);
        Ok(())
    }

    /// Renames the key `from`.
    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Result<(), FieldError> {
        match self.0.remove(from) {
            Some(field) => self.insert(to, field),
            None => Ok(()),
        }
    }
}
