//! The answer with status 200, and the guards in front of it.

use serde::Serialize;
use strict_json::{Block, Problem};

use crate::parameters::count;
use crate::{Failure, ParameterSet};

/// Leave to answer with an empty list, which deletes every Application of the ApplicationSet.
///
/// Only [`OnEmpty`] holds one, and that is read from the input of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EmptyAllowed(());

/// What to do when nothing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnEmpty {
    /// Refuse: every Application stays.
    Refuse,
    /// Answer with an empty list.
    Allow(EmptyAllowed),
}

/// How many sets an answer may have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Guards {
    on_empty: OnEmpty,
    min: usize,
    max: Option<usize>,
}

/// The answer with status 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// One set or more.
    Sets(ParameterSet, Vec<ParameterSet>),
    /// None, as the input allows.
    Empty(EmptyAllowed),
}

impl Guards {
    pub(crate) const KEYS: [&'static str; 3] = ["onEmpty", "minItems", "maxItems"];

    /// Reads the keys. `skips` tells that by its other parameters the request takes nothing found for an answer, unless
    /// `onEmpty` says otherwise.
    pub(crate) fn read(parameters: &Block<'_>, skips: bool) -> Result<Self, Problem> {
        let min = count(parameters, "minItems")?.unwrap_or_default();
        let asked = parameters.one_of("onEmpty", &["allow", "error"])?;
        let allow = match asked {
            Some("allow") if min > 0 => {
                return Err(Problem::Conflict {
                    path: "onEmpty".to_owned(),
                    other: "minItems",
                });
            }
            Some(word) => word == "allow",
            None => skips && min == 0,
        };
        let max = count(parameters, "maxItems")?;
        if max.is_some_and(|max| max < min) {
            return Err(Problem::Conflict {
                path: "minItems".to_owned(),
                other: "maxItems",
            });
        }
        Ok(Self {
            on_empty: if allow {
                OnEmpty::Allow(EmptyAllowed(()))
            } else {
                OnEmpty::Refuse
            },
            min,
            max,
        })
    }

    /// Lets `sets` pass, or says why not. `source` is what was asked.
    pub(crate) fn admit(&self, sets: Vec<ParameterSet>, source: &str) -> Result<Answer, Failure> {
        let found = sets.len();
        let mut sets = sets.into_iter();
        let Some(first) = sets.next() else {
            return match self.on_empty {
                OnEmpty::Allow(allowed) => Ok(Answer::Empty(allowed)),
                OnEmpty::Refuse => Err(Failure::Empty(source.to_owned())),
            };
        };
        if found < self.min {
            return Err(Failure::TooFew {
                found,
                min: self.min,
            });
        }
        match self.max {
            Some(max) if found > max => Err(Failure::TooMany { found, max }),
            _ => Ok(Answer::Sets(first, sets.collect())),
        }
    }
}

impl Answer {
    /// How many sets there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        match self {
            Self::Sets(_, more) => 1 + more.len(),
            Self::Empty(_) => 0,
        }
    }

    /// The body of the response.
    #[must_use]
    pub fn to_body(&self) -> Vec<u8> {
        let parameters = match self {
            Self::Sets(first, more) => std::iter::once(first).chain(more).collect(),
            Self::Empty(_) => Vec::new(),
        };
        // Texts, booleans, and maps with texts for keys can always be written.
        serde_json::to_vec(&Body {
            output: Parameters { parameters },
        })
        .unwrap_or_default()
    }
}

#[derive(Serialize)]
struct Body<'a> {
    output: Parameters<'a>,
}

#[derive(Serialize)]
struct Parameters<'a> {
    parameters: Vec<&'a ParameterSet>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(parameters: serde_json::Value, skips: bool, sets: usize, expect: Result<&str, &str>) {
        let block = Block::root(&parameters, "parameters", &Guards::KEYS).unwrap();
        let answer = Guards::read(&block, skips)
            .map_err(Failure::from)
            .and_then(|guards| {
                let sets = std::iter::repeat_with(ParameterSet::default).take(sets);
                guards.admit(sets.collect(), "s")
            });
        match (answer, expect) {
            (Ok(answer), Ok(expect)) => {
                assert_eq!(String::from_utf8(answer.to_body()).unwrap(), expect);
            }
            (Err(failure), Err(expect)) => assert_eq!(failure.code().name, expect, "{failure}"),
            (answer, _) => panic!("{answer:?}"),
        }
    }

    const EMPTY: Result<&str, &str> = Ok(r#"{"output":{"parameters":[]}}"#);
    const ONE: Result<&str, &str> = Ok(r#"{"output":{"parameters":[{}]}}"#);

    #[test]
    fn an_empty_list_takes_leave() {
        check(json!({}), false, 0, Err("guard_empty"));
        check(json!({"onEmpty": "error"}), false, 0, Err("guard_empty"));
        check(json!({"onEmpty": "allow"}), false, 0, EMPTY);
        check(json!({}), true, 0, EMPTY);
        check(json!({"onEmpty": "error"}), true, 0, Err("guard_empty"));
        check(json!({"minItems": 1}), true, 0, Err("guard_empty"));
    }

    #[test]
    fn counts_are_numbers_or_their_texts() {
        check(json!({"minItems": 2}), false, 1, Err("guard_min_items"));
        check(json!({"minItems": "1", "maxItems": "1"}), false, 1, ONE);
        check(json!({"maxItems": 0}), false, 1, Err("guard_max_items"));
        check(json!({"maxItems": -1}), false, 1, Err("invalid_input"));
        check(json!({"maxItems": "many"}), false, 1, Err("invalid_input"));
    }

    #[test]
    fn guards_that_contradict_each_other() {
        check(
            json!({"onEmpty": "allow", "minItems": 1}),
            false,
            0,
            Err("invalid_input"),
        );
        check(
            json!({"minItems": 3, "maxItems": 2}),
            false,
            3,
            Err("invalid_input"),
        );
        check(json!({"onEmpty": "alow"}), false, 0, Err("invalid_input"));
    }
}
