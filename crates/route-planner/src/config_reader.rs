//! Reads the plugin block by the table of its keys.

use std::ops::Deref;

use serde_json::Value;
use strict_json::Problem;

use crate::config::keys::{Key, Shape};
use crate::error::ConfigProblem;

/// An object of the plugin block, whose keys are all in the table.
pub(crate) struct Block<'a> {
    keys: strict_json::Block<'a>,
    known: &'static [Key],
}

/// Parses the text of a whole block.
pub(crate) fn root(raw: &[u8]) -> Result<Value, ConfigProblem> {
    serde_json::from_slice(raw).map_err(|error| ConfigProblem::Json(error.to_string()))
}

impl<'a> Block<'a> {
    pub(crate) fn root(value: &'a Value, known: &'static [Key]) -> Result<Self, Problem> {
        let keys = strict_json::Block::root(value, "the plugin block", &names(known))?;
        Ok(Self { keys, known })
    }

    /// One of the words in the table.
    pub(crate) fn one_of(&self, key: &str) -> Result<Option<&'a str>, Problem> {
        let choices = match self.shape(key) {
            Some(Shape::OneOf(choices)) => *choices,
            _ => &[],
        };
        self.keys.one_of(key, choices)
    }

    /// The object under `key`; one without keys when absent.
    pub(crate) fn block(&self, key: &str) -> Result<Self, Problem> {
        let known = self.known_in(key);
        let keys = self.keys.block(key, &names(known))?;
        Ok(Self { keys, known })
    }

    /// The objects in the list under `key`.
    pub(crate) fn blocks(&self, key: &str) -> Result<Vec<Self>, Problem> {
        let known = self.known_in(key);
        let blocks = self.keys.blocks(key, &names(known))?.into_iter();
        Ok(blocks.map(|keys| Self { keys, known }).collect())
    }

    fn shape(&self, key: &str) -> Option<&'static Shape> {
        let known = self.known.iter().find(|known| known.name == key);
        known.map(|known| &known.value)
    }

    /// The keys of the objects under `key`.
    fn known_in(&self, key: &str) -> &'static [Key] {
        match self.shape(key) {
            Some(Shape::Object(keys) | Shape::Objects(keys)) => keys,
            _ => &[],
        }
    }
}

impl<'a> Deref for Block<'a> {
    type Target = strict_json::Block<'a>;

    fn deref(&self) -> &Self::Target {
        &self.keys
    }
}

fn names(keys: &[Key]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}
