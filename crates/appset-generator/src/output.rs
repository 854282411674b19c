//! What every source has in common: parameters of a request, and what becomes of the sets that are found.

use std::collections::BTreeMap;

use serde_json::Value;
use strict_json::{Block, Problem};

use crate::answer::Guards;
use crate::field::check_top_level;
use crate::keys::{Key, names};
use crate::{Answer, Failure, ParameterSet};

/// What to make of what a source found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    source: String,
    guards: Guards,
    /// The source's key at the top, and what to call it instead.
    rename: Option<(&'static str, String)>,
    /// Further keys at the top, each with the dotted path to its value.
    alias: BTreeMap<String, String>,
}

impl Output {
    /// Parameters of every source.
    pub(crate) const KEYS: [Key; 5] = [
        Key::new("source", "which source", "the only one there is"),
        Guards::KEYS[0],
        Guards::KEYS[1],
        Guards::KEYS[2],
        Key::new(
            "alias",
            "further names: `{name: input.team}` puts what is there under a name at the top",
            "",
        ),
    ];

    /// The parameters of a source: its `own`, and those of every source.
    pub(crate) fn parameters<'a>(given: &'a Value, own: &[Key]) -> Result<Block<'a>, Problem> {
        Block::root(
            given,
            "the parameters",
            &names(&[&Self::KEYS, own].concat()),
        )
    }

    /// `own` is the source's key at the top, if it has one; for `skips` see [`Guards::read`].
    pub(crate) fn read(
        source: &str,
        parameters: &Block<'_>,
        own: Option<&'static str>,
        skips: bool,
    ) -> Result<Self, Failure> {
        let mut rename = None;
        if let Some(own) = own
            && let Some(key) = parameters.string("outputKey")?
        {
            check_top_level(key)?;
            rename = Some((own, key.to_owned()));
        }
        let mut alias = BTreeMap::new();
        for (key, path) in parameters.object("alias")?.into_iter().flatten() {
            let Some(path) = path.as_str() else {
                return Err(Problem::Type {
                    path: format!("alias.{key}"),
                    expected: "a dotted path",
                    found: strict_json::type_name(path),
                }
                .into());
            };
            alias.insert(key.clone(), path.to_owned());
        }
        Ok(Self {
            source: source.to_owned(),
            guards: Guards::read(parameters, skips)?,
            rename,
            alias,
        })
    }

    /// Name of the source.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The answer, once the source has found `sets`.
    ///
    /// # Errors
    /// When a guard trips, or an alias leads nowhere.
    pub fn answer(&self, mut sets: Vec<ParameterSet>) -> Result<Answer, Failure> {
        for set in &mut sets {
            if let Some((from, to)) = &self.rename {
                set.rename(from, to)?;
            }
            let mut aliases = Vec::new();
            for (key, path) in &self.alias {
                let found = set.at(path).cloned().ok_or_else(|| Problem::Value {
                    path: format!("alias.{key}"),
                    found: path.clone(),
                    expected: "the dotted path of something in the output".into(),
                })?;
                aliases.push((key, found));
            }
            for (key, field) in aliases {
                set.alias(key, field)?;
            }
        }
        self.guards.admit(sets, &format!("source {}", self.source))
    }
}
