//! From the sets of a source to the answer with status 200: renames, aliases, and the guards that refuse it.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;
use strict_json::{Block, Problem};

use crate::keys::count;
use crate::set::{check_alias, check_top_level};
use crate::{Failure, ParameterSet};

/// The permission to answer with an empty list, which deletes every Application of the ApplicationSet.
///
/// Only `onEmpty: allow` of a request or its profile creates one. Without it an empty answer is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EmptyAllowed(());

impl EmptyAllowed {
    /// Reads `onEmpty` of a request. It alone permits an empty answer, whatever else the request has.
    pub(crate) fn read(parameters: &Block<'_>) -> Result<Option<Self>, Problem> {
        let on_empty = parameters.one_of("onEmpty", &["allow", "error"])?;
        Ok((on_empty == Some("allow")).then_some(Self(())))
    }
}

/// The answer with status 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// One set or more.
    Sets(ParameterSet, Vec<ParameterSet>),
    /// No set, which the input allows.
    Empty(EmptyAllowed),
}

impl Answer {
    /// Returns the number of sets.
    #[must_use]
    pub const fn count(&self) -> usize {
        match self {
            Self::Sets(_, more) => 1 + more.len(),
            Self::Empty(_) => 0,
        }
    }

    /// Returns the size of the body in bytes, without making it: sets share what they have in common, so a body may be much
    /// larger than the answer.
    ///
    /// # Errors
    /// Returns `Err` if it is more than `most` bytes.
    pub fn size(&self, most: usize) -> Result<usize, Failure> {
        let mut counter = Counter { left: most };
        match serde_json::to_writer(&mut counter, &self.body()) {
            Ok(()) => Ok(most - counter.left),
            Err(error) if error.is_io() => Err(Failure::AnswerTooLarge(most)),
            Err(_) => Err(Failure::Internal),
        }
    }

    /// Returns the body of the response. `size` is the number of bytes to allocate for it.
    ///
    /// # Errors
    /// Returns `Err` if the sets cannot be serialised. The controller would read an empty body as an empty list.
    pub fn to_body(&self, size: usize) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::with_capacity(size);
        serde_json::to_writer(&mut body, &self.body()).map_err(|_| Failure::Internal)?;
        Ok(body)
    }

    fn body(&self) -> impl Serialize {
        let sets: Vec<_> = match self {
            Self::Sets(first, more) => std::iter::once(first).chain(more).collect(),
            Self::Empty(_) => Vec::new(),
        };
        BTreeMap::from([("output", BTreeMap::from([("parameters", sets)]))])
    }
}

/// Counts bytes, and fails when there are too many.
struct Counter {
    left: usize,
}

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left.checked_sub(bytes.len());
        self.left = left.ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The largest number of aliases. Each set has each of them.
pub(crate) const MAX_ALIASES: usize = 32;
/// The longest path of an alias, in bytes.
const MAX_PATH: usize = 512;

/// The parameters that every source has. They turn the sets of a source into an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    source: String,
    on_empty: Option<EmptyAllowed>,
    /// The limits on the number of sets.
    min: usize,
    max: Option<usize>,
    /// The source's top-level key, and its new name.
    rename: Option<(&'static str, String)>,
    /// Additional top-level keys, each with the dotted path of its value.
    alias: BTreeMap<String, String>,
}

impl Output {
    /// The parameters of every source.
    pub(crate) const KEYS: [&str; 5] = ["source", "onEmpty", "minItems", "maxItems", "alias"];

    /// Reads the parameters of a request. `own` is the source's top-level key, if it has one.
    pub(crate) fn read(
        source: &str,
        parameters: &Block<'_>,
        own: Option<&'static str>,
    ) -> Result<Self, Failure> {
        let mut rename = None;
        if let Some(own) = own
            && let Some(key) = parameters.string("outputKey")?
        {
            check_top_level(key)?;
            rename = Some((own, key.to_owned()));
        }
        let mut alias = BTreeMap::new();
        let aliases = parameters.object("alias")?;
        if let Some(many) = aliases.filter(|it| it.len() > MAX_ALIASES) {
            let expected = format!("at most {MAX_ALIASES} names");
            let found = format!("{} names", many.len());
            return Err(parameters.wrong("alias", found, expected).into());
        }
        for (key, path) in aliases.into_iter().flatten() {
            check_alias(key)?;
            let wrong = || Problem::wrong_type(format!("alias.{key}"), "a dotted path", path);
            alias.insert(key.clone(), path.as_str().ok_or_else(wrong)?.to_owned());
        }
        let min = count(parameters, "minItems")?.unwrap_or_default();
        let on_empty = EmptyAllowed::read(parameters)?;
        if on_empty.is_some() && min > 0 {
            return Err(parameters.conflict("onEmpty", "minItems").into());
        }
        let max = count(parameters, "maxItems")?;
        if max.is_some_and(|max| max < min) {
            return Err(parameters.conflict("minItems", "maxItems").into());
        }
        Ok(Self {
            source: source.to_owned(),
            on_empty,
            min,
            max,
            rename,
            alias,
        })
    }

    /// Returns the name of the source.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Makes the answer of the `sets` that the source found.
    ///
    /// # Errors
    /// Returns `Err` if there are fewer or more sets than the request allows, or if a set has nothing at the path of an alias.
    pub fn answer(&self, mut sets: Vec<ParameterSet>) -> Result<Answer, Failure> {
        for set in &mut sets {
            if let Some((from, to)) = &self.rename {
                set.rename(from, to)?;
            }
            let mut aliases = Vec::new();
            for (key, path) in &self.alias {
                let found = (path.len() <= MAX_PATH).then(|| set.at(path)).flatten();
                let expected = "the dotted path of a value in the output";
                let wrong = || Problem::value(format!("alias.{key}"), path, expected);
                aliases.push((key, found.cloned().ok_or_else(wrong)?));
            }
            for (key, field) in aliases {
                set.alias(key, field)?;
            }
        }
        let (found, min) = (sets.len(), self.min);
        // Before the case of no set, whose message advises what `minItems` forbids.
        if found < min {
            return Err(Failure::TooFew(found, min));
        }
        let mut sets = sets.into_iter();
        match (sets.next(), self.max) {
            (None, _) => {
                let empty = || Failure::Empty(format!("source {}", self.source));
                self.on_empty.map(Answer::Empty).ok_or_else(empty)
            }
            (Some(_), Some(max)) if found > max => Err(Failure::TooMany(found, max)),
            (Some(first), _) => Ok(Answer::Sets(first, sets.collect())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{hash_map, vec};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[track_caller]
    fn check(parameters: Value, sets: usize, expect: Result<&str, &str>) {
        let block = Block::root(&parameters, "parameters", &Output::KEYS).unwrap();
        let answer = Output::read("s", &block, None).and_then(|output| {
            assert_eq!(output.source(), "s");
            let sets = std::iter::repeat_with(ParameterSet::default).take(sets);
            output.answer(sets.collect())
        });
        match (answer, expect) {
            (Ok(answer), Ok(expect)) => {
                assert_eq!(
                    String::from_utf8(answer.to_body(0).unwrap()).unwrap(),
                    expect
                );
            }
            (Err(failure), Err(expect)) => assert_eq!(failure.code().name, expect, "{failure}"),
            (answer, _) => panic!("{answer:?}"),
        }
    }

    const EMPTY: Result<&str, &str> = Ok(r#"{"output":{"parameters":[]}}"#);
    const ONE: Result<&str, &str> = Ok(r#"{"output":{"parameters":[{}]}}"#);

    #[test]
    fn an_empty_list_needs_permission() {
        check(json!({}), 0, Err("guard_empty"));
        check(json!({"onEmpty": "error"}), 0, Err("guard_empty"));
        check(json!({"onEmpty": "allow"}), 0, EMPTY);
        // The message of `guard_empty` advises `onEmpty: allow`, which `minItems` forbids.
        check(json!({"minItems": 1}), 0, Err("guard_min_items"));
    }

    fn sets() -> impl Strategy<Value = Vec<ParameterSet>> {
        let fields = hash_map("[a-z]{1,4}x", "\\PC{0,20}", 0..3);
        let set = fields.prop_map(|fields| {
            let mut set = ParameterSet::default();
            for (key, text) in fields {
                set.insert(&key, text.into()).unwrap();
            }
            set
        });
        vec(set, 0..4)
    }

    proptest! {
        /// A body always has the envelope and all sets, and an empty list needs the permission.
        #[test]
        fn a_body_holds_every_set(sets in sets(), allow: bool, min in 0_usize..4) {
            let output = Output {
                source: "s".to_owned(),
                on_empty: allow.then_some(EmptyAllowed(())),
                min,
                max: None,
                rename: None,
                alias: BTreeMap::new(),
            };
            match output.answer(sets.clone()) {
                Ok(answer) => {
                    let body: Value =
                        serde_json::from_slice(&answer.to_body(0).unwrap()).unwrap();
                    let list = body["output"]["parameters"].as_array().unwrap();
                    prop_assert_eq!(list.len(), sets.len());
                    prop_assert!(!list.is_empty() || allow);
                }
                Err(failure) => {
                    prop_assert!(failure.code().status >= 400);
                    prop_assert!(!failure.to_body("").is_empty());
                }
            }
        }
    }

    #[test]
    fn a_size_is_that_of_the_body_up_to_a_limit() {
        let mut set = ParameterSet::default();
        set.insert("key1", "é\"\n".into()).unwrap();
        let answers = [
            Answer::Empty(EmptyAllowed(())),
            Answer::Sets(set.clone(), vec![set; 3]),
        ];
        for answer in answers {
            let size = answer.to_body(0).unwrap().len();
            for most in [size, size + 7] {
                assert_eq!(answer.size(most), Ok(size));
            }
            assert_eq!(
                answer.size(size - 1),
                Err(Failure::AnswerTooLarge(size - 1))
            );
        }
    }

    #[test]
    fn aliases_are_few() {
        let read = |count: usize| {
            let alias: Value = (0..count)
                .map(|n| (format!("a{n}"), "key1".into()))
                .collect::<serde_json::Map<_, _>>()
                .into();
            let given = json!({ "alias": alias });
            let block = Block::root(&given, "the parameters", &["alias"]).unwrap();
            Output::read("s", &block, None)
        };
        read(32).unwrap();
        assert_eq!(
            read(33).unwrap_err().to_string(),
            "parameters: alias is \"33 names\", it must be at most 32 names"
        );
    }

    #[test]
    fn counts_are_numbers_or_strings() {
        check(json!({"minItems": 2}), 1, Err("guard_min_items"));
        check(json!({"minItems": "1", "maxItems": "1"}), 1, ONE);
        check(json!({"maxItems": 0}), 1, Err("guard_max_items"));
        check(json!({"maxItems": -1}), 1, Err("invalid_input"));
        check(json!({"maxItems": "many"}), 1, Err("invalid_input"));
    }

    #[test]
    fn contradictory_guards_are_refused() {
        check(
            json!({"onEmpty": "allow", "minItems": 1}),
            0,
            Err("invalid_input"),
        );
        check(
            json!({"minItems": 3, "maxItems": 2}),
            3,
            Err("invalid_input"),
        );
        check(json!({"onEmpty": "alow"}), 0, Err("invalid_input"));
    }
}
