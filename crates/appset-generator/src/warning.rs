//! What an administrator should know about a valid configuration.

use crate::error::joined;
use crate::{ParameterSet, StaticSource};

/// A warning about a static source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// A set has other keys than the first one.
    #[error(
        "static.{source_name}.sets[{index}] has other keys than the first set ({keys}): templates with missingkey=error fail, so add them"
    )]
    Keys {
        /// The name of the source.
        source_name: String,
        /// The position of the set.
        index: usize,
        /// The dotted paths of the keys that only one of the two sets has.
        keys: String,
    },
    /// A static source lost more than half of its sets.
    #[error("static.{source_name} had {before} sets and {}: write a complete file and rename it, so that no part of it is read alone, or set minItems", left(*after))]
    Shrunk {
        /// The name of the source.
        source_name: String,
        /// The number of sets before.
        before: usize,
        /// The number of sets now, if there still is such a source.
        after: Option<usize>,
    },
}

fn left(after: Option<usize>) -> String {
    match after {
        Some(after) => format!("now has {after}"),
        None => "was removed".to_owned(),
    }
}

impl Warning {
    /// Returns the warning for the first set of `source` whose keys are not those of the first one.
    pub(crate) fn of_keys(name: &str, source: &StaticSource) -> Option<Self> {
        let mut sets = source.sets.iter().map(ParameterSet::paths).enumerate();
        let (_, first) = sets.next()?;
        let (index, other) = sets.find(|(_, other)| *other != first)?;
        Some(Self::Keys {
            source_name: name.to_owned(),
            index,
            keys: joined(first.symmetric_difference(&other)),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    fn config(sources: &str) -> Config {
        Config::from_yaml(&format!("static: {{other: {{}}, {sources}}}")).unwrap()
    }

    #[test]
    fn sets_of_different_keys_are_reported() {
        for (sets, expect) in [
            ("", None),
            ("{a: 1}", None),
            ("{a: 1, m: {x: 1}}, {m: {x: 2}, a: [3]}", None),
            (
                "{a: 1}, {a: 2}, {b: 2}",
                Some("sets[2] has other keys than the first set (a, b)"),
            ),
            ("{m: {x: 1}}, {m: {y: 1}}", Some("(m.x, m.y)")),
            ("{m: 1}, {m: {y: 1}}", Some("(m, m.y)")),
        ] {
            let warnings = config(&format!("s: {{sets: [{sets}]}}")).warnings();
            let shown: Vec<_> = warnings.iter().map(ToString::to_string).collect();
            assert_eq!(shown.len(), usize::from(expect.is_some()), "{shown:?}");
            assert!(
                shown
                    .iter()
                    .zip(expect)
                    .all(|(shown, expect)| shown.contains(expect)),
                "{shown:?}"
            );
        }
    }

    #[test]
    fn a_source_that_loses_more_than_half_is_reported() {
        let sets = |count: usize| {
            let sets: Vec<_> = (0..count).map(|index| format!("{{a: a{index}}}")).collect();
            config(&format!("s: {{sets: [{}]}}", sets.join(", ")))
        };
        for (before, after, expect) in [
            (0, 0, ""),
            (3, 3, ""),
            (1, 2, ""),
            (4, 2, ""),
            (2, 1, ""),
            (3, 1, "had 3 sets and now has 1: "),
            (1, 0, "had 1 sets and now has 0: "),
        ] {
            let warnings = sets(before).shrunk_to(&sets(after));
            let shown: String = warnings.iter().map(ToString::to_string).collect();
            assert_eq!(shown.is_empty(), expect.is_empty(), "{shown}");
            assert!(shown.contains(expect), "{shown}");
        }
        let removed = sets(3).shrunk_to(&config("t: {}"));
        assert!(
            removed[0]
                .to_string()
                .starts_with("static.s had 3 sets and was removed: "),
            "{removed:?}"
        );
    }
}
