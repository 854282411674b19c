//! The `static` sources, whose sets are in the configuration.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};
use strict_json::{Block, Problem};

use crate::answer::Output;
use crate::error::ConfigError;
use crate::{Failure, Field, ParameterSet};

/// The key of a set that holds the input of the request.
///
/// The controller offers the input under `generator.input.parameters`, but Go templates print that as a list of bytes, and
/// templates in the default language do not substitute it (`applicationset/generators/plugin.go`).
const INPUT: &str = "input";

/// A source whose sets are in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaticSource {
    /// The parameters that a request may have besides those of every source. Without a list any is allowed.
    inputs: Option<BTreeSet<String>>,
    pub(crate) sets: Vec<ParameterSet>,
}

/// The sets that answer one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StaticQuery {
    sets: Vec<ParameterSet>,
}

impl StaticSource {
    pub(crate) const KEYS: &[&str] = &["sets", "inputs"];

    pub(crate) fn from_config(source: &Block<'_>) -> Result<Self, ConfigError> {
        let inputs = source.optional_strings("inputs")?.map(BTreeSet::from_iter);
        let mut named = inputs.iter().flatten();
        if let Some(input) = named.find(|input| Output::KEYS.contains(&input.as_str())) {
            let expected = "other than the parameters of every source";
            return Err(source.wrong("inputs", input, expected).into());
        }
        let echoes = inputs.as_ref().is_none_or(|inputs| !inputs.is_empty());
        let path = |index: usize| source.path(&format!("sets[{index}]"));
        let mut sets = Vec::new();
        for (index, value) in source.array("sets")?.iter().enumerate() {
            let set = Self::set(value, &path(index))?;
            if echoes && set.contains(INPUT) {
                return Err(ConfigError::InputKey(path(index)));
            }
            sets.push(set);
        }
        let mut earlier = HashSet::new();
        if let Some(twice) = sets.iter().position(|set| !earlier.insert(set)) {
            return Err(ConfigError::Twice(path(twice)));
        }
        Ok(Self { inputs, sets })
    }

    fn set(value: &Value, path: &str) -> Result<ParameterSet, ConfigError> {
        let wrong = || Problem::wrong_type(path.to_owned(), "an object", value);
        let fields = value.as_object().ok_or_else(wrong)?;
        let mut set = ParameterSet::default();
        for (key, value) in fields {
            let field = Field::from_json(value.clone(), key);
            let inserted = field.and_then(|field| set.insert(key, field));
            inserted.map_err(|error| error.at(&format!("{path}.")))?;
        }
        Ok(set)
    }

    /// Reads a request to this source, which is called `name`.
    pub(crate) fn query(
        &self,
        name: &str,
        given: Map<String, Value>,
    ) -> Result<(StaticQuery, Output), Failure> {
        // Only the other parameters are compared with the known ones, since there may be as many inputs as fit into a request.
        let (echoed, others): (Map<_, _>, Map<_, _>) =
            given.into_iter().partition(|(key, _)| self.is_input(key));
        let inputs = self.inputs.iter().flatten().map(String::as_str);
        let known: Vec<&str> = inputs.chain(Output::KEYS).collect();
        let others = Value::Object(others);
        let parameters = Block::root(&others, "the parameters", &known)?;

        let mut sets = self.sets.clone();
        if !echoed.is_empty() {
            let echo = Field::from_json(Value::Object(echoed), "parameters")?;
            for set in &mut sets {
                set.insert(INPUT, echo.clone())?;
            }
        }
        Ok((StaticQuery { sets }, Output::read(name, &parameters, None)?))
    }

    /// Whether the parameter `key` is an input, which the sets echo.
    ///
    /// Without a list of inputs, a key that resembles a parameter of every source is not: a misspelt `minItems` would
    /// otherwise be ignored.
    pub(crate) fn is_input(&self, key: &str) -> bool {
        match &self.inputs {
            Some(inputs) => inputs.contains(key),
            None => !strict_json::resembles(key, &Output::KEYS),
        }
    }
}

impl StaticQuery {
    /// Returns the sets in the order of the configuration.
    #[must_use]
    pub fn into_sets(self) -> Vec<ParameterSet> {
        self.sets
    }
}
