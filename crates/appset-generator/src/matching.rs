//! Selectors of objects: patterns of names with `*`, and label selectors.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gloo_types::{LabelRequirement, is_label_key, is_label_value};
use strict_json::{Block, Problem};

/// Whether `text` matches `pattern`.
///
/// This is the meaning of every pattern: `*` stands for any characters within a segment, which a slash ends, and `**` for any
/// characters. The keys of a file with credentials also end a segment of a host at each dot (see `keychain`).
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.as_bytes(), text.as_bytes());
    // After a mismatch the last star takes one more character: the rest of the pattern, and the rest of the text. Earlier stars
    // need no second try, because the first match of each part leaves the most text for the next part.
    let (mut within, mut across) = (None, None);
    loop {
        match (pattern, text) {
            ([b'*', b'*', rest @ ..], _) => {
                (within, across) = (None, Some((rest, text)));
                pattern = rest;
            }
            ([b'*', rest @ ..], _) => {
                within = Some((rest, text));
                pattern = rest;
            }
            ([one, rest @ ..], [other, more @ ..]) if one == other => {
                (pattern, text) = (rest, more);
            }
            ([], []) => return true,
            _ => match (within, across) {
                (Some((rest, [taken, more @ ..])), _) if *taken != b'/' => {
                    within = Some((rest, more));
                    (pattern, text) = (rest, more);
                }
                (_, Some((rest, [_, more @ ..]))) => {
                    (within, across) = (None, Some((rest, more)));
                    (pattern, text) = (rest, more);
                }
                _ => return false,
            },
        }
    }
}

/// Returns a text that `pattern` matches, and that `whole` matches after `prefix`. `is_legal` must accept it, and all its
/// beginnings with an `a` behind them.
pub(crate) fn example(
    prefix: &str,
    pattern: &str,
    whole: &str,
    is_legal: impl Fn(&str) -> bool,
) -> Option<String> {
    let mut beginnings = vec![whole.as_bytes()];
    for c in prefix.bytes() {
        beginnings = beginnings
            .into_iter()
            .flat_map(|rest| after(rest, c))
            .collect();
        // All are ends of one pattern, so equal lengths are equal.
        beginnings.sort_unstable_by_key(|rest| rest.len());
        beginnings.dedup_by_key(|rest| rest.len());
    }
    let mut letters: Vec<u8> = [pattern, whole, "a"].concat().into_bytes();
    letters.retain(|c| c.is_ascii() && *c != b'*');
    letters.sort_unstable();
    letters.dedup();
    let is_end = |pattern: &[u8]| pattern.iter().all(|c| *c == b'*');
    let beginnings = beginnings.into_iter();
    let mut queue: VecDeque<_> = beginnings
        .map(|rest| (String::new(), pattern.as_bytes(), rest))
        .collect();
    // What can follow depends on the last letter and on what is left of the two patterns.
    let mut seen = BTreeSet::new();
    while let Some((text, one, other)) = queue.pop_front() {
        if is_end(one) && is_end(other) && is_legal(&text) {
            return Some(text);
        }
        for c in letters.iter().copied() {
            let text = format!("{text}{}", char::from(c));
            if !is_legal(&format!("{text}a")) {
                continue;
            }
            for one in after(one, c) {
                for other in after(other, c) {
                    if seen.insert((c, one.len(), other.len())) {
                        queue.push_back((text.clone(), one, other));
                    }
                }
            }
        }
    }
    None
}

/// Returns what is left of `pattern` after the character `c`, which has several answers because of stars.
fn after(pattern: &[u8], c: u8) -> Vec<&[u8]> {
    match pattern {
        [b'*', b'*', rest @ ..] => [vec![pattern], after(rest, c)].concat(),
        [b'*', rest @ ..] if c != b'/' => [vec![pattern], after(rest, c)].concat(),
        [b'*', rest @ ..] => after(rest, c),
        [one, rest @ ..] if *one == c => vec![rest],
        _ => Vec::new(),
    }
}

/// Whether `text` is a pattern rather than a name.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains('*')
}

/// Labels with their values.
pub(crate) type Labels = BTreeMap<String, String>;

/// A label selector with the keys of a Rollout's `routeTableSelector`. An empty one selects every object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector {
    /// Labels that must be present with these values.
    pub(crate) labels: Labels,
    /// Requirements that must all be met.
    pub(crate) match_expressions: Vec<LabelRequirement>,
}

impl LabelSelector {
    pub(crate) const KEYS: [&'static str; 2] = ["labels", "matchExpressions"];

    /// Reads the two keys of `selector`, which may have other keys.
    pub(crate) fn read(selector: &Block<'_>) -> Result<Self, Problem> {
        let expressions = selector.blocks("matchExpressions", &["key", "operator", "values"])?;
        let expressions = expressions.iter().map(requirement);
        let read = Self {
            labels: selector.labels("labels")?,
            match_expressions: expressions.collect::<Result<_, _>>()?,
        };
        for (key, value) in &read.labels {
            if !is_label_key(key) || value.is_empty() || !is_label_value(value) {
                let expected = "a value that a label can have, for a legal key";
                return Err(selector.wrong(&format!("labels.{key}"), value, expected));
            }
        }
        Ok(read)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.match_expressions.is_empty()
    }

    pub(crate) fn matches(&self, labels: &Labels) -> bool {
        let mut expressions = self.match_expressions.iter();
        has_all(labels, &self.labels) && expressions.all(|expression| expression.matches(labels))
    }
}

/// Whether `labels` contain all labels in `needed`.
pub(crate) fn has_all(labels: &Labels, needed: &Labels) -> bool {
    let mut needed = needed.iter();
    needed.all(|(key, value)| labels.get(key) == Some(value))
}

fn requirement(expression: &Block<'_>) -> Result<LabelRequirement, Problem> {
    let key = expression.label_text("key")?.unwrap_or_default();
    let values = expression.label_texts("values")?;
    let operators = ["In", "NotIn", "Exists", "DoesNotExist"];
    let operator = expression.one_of("operator", &operators)?;
    let operator = operator.unwrap_or_default();
    LabelRequirement::new(key, operator, values)
        .map_err(|invalid| expression.wrong(invalid.key, invalid.found, invalid.expected))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        for text in matching {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for text in others {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn a_star_ends_at_a_slash_and_two_stars_do_not() {
        check("web", &["web"], &["", "we", "webs"]);
        check("", &[""], &["a"]);
        check("*", &["", "web"], &["/", "a/b"]);
        check("a/*", &["a/b", "a/"], &["b/a", "a/b/c"]);
        check("a/b-*", &["a/b-c"], &["a/b-c/secret", "a/b"]);
        check("*/x", &["a/x", "/x"], &["x", "a/b/x"]);
        check("*/*x/c", &["a/bx/c", "a/xx/c"], &["a/b/c", "a/bx/d/c"]);
        check("**/x", &["a/x", "a/b/x"], &["x", "a/xy"]);
        check("a/**", &["a/", "a/b", "a/b/c"], &["a", "b/a"]);
        check(
            "**a*b/c",
            &["ab/c", "x/a-b/c", "a/ab/c"],
            &["a/b/c", "ab/c/d"],
        );
        check("a**b*", &["ab", "a/b/b", "a/b-c"], &["a/c", "a/b/c"]);
        check("ns1*", &["ns1", "ns1-a"], &["ns2", "ans1"]);
        check("*-a", &["-a", "x-a", "-a-a"], &["x-b", "a"]);
        check(
            "a*b*c",
            &["abc", "a-b-c", "abbcc", "abcbc"],
            &["ab", "acb", "ac"],
        );
        check("a*a", &["aa", "aba"], &["a", "ab"]);
        check("**", &["", "x", "x/y"], &[]);
        check("***", &["", "x", "x/y"], &[]);
    }

    proptest! {
        #[test]
        fn an_example_matches_both_patterns(one in "[ab*/]{0,6}", other in "[ab*/]{0,6}", text in "[ab/]{0,5}") {
            let found = example("b/", &one, &other, |_| true);
            let is_example = |text: &str| matches(&one, text) && matches(&other, &format!("b/{text}"));
            match found {
                Some(found) => prop_assert!(is_example(&found), "{found}"),
                None => prop_assert!(!is_example(&text)),
            }
        }

        /// A slow second opinion, which tries every split.
        #[test]
        fn matching_tries_every_split(pattern in "[ab*/]{0,8}", text in "[ab/]{0,8}") {
            fn slow(pattern: &str, text: &str) -> bool {
                let Some(c) = pattern.chars().next() else {
                    return text.is_empty();
                };
                let (rest, mut ends) = (&pattern[1..], 0..=text.len());
                match c {
                    '*' if rest.starts_with('*') => ends.any(|end| slow(&rest[1..], &text[end..])),
                    '*' => ends.any(|end| !text[..end].contains('/') && slow(rest, &text[end..])),
                    c => text.strip_prefix(c).is_some_and(|text| slow(rest, text)),
                }
            }
            prop_assert_eq!(matches(&pattern, &text), slow(&pattern, &text));
        }
    }

    #[track_caller]
    fn read(selector: &Value) -> Result<LabelSelector, String> {
        let block = Block::root(selector, "the selector", &LabelSelector::KEYS).unwrap();
        LabelSelector::read(&block).map_err(|problem| problem.to_string())
    }

    #[track_caller]
    fn check_selector(selector: Value, labels: Value, expect: bool) {
        let labels = serde_json::from_value(labels).unwrap();
        assert_eq!(read(&selector).unwrap().matches(&labels), expect);
    }

    #[test]
    fn all_labels_and_expressions_must_match() {
        let team = |operator: &str, values: Value| json!({"labels": {"env": "prod"}, "matchExpressions": [{"key": "team", "operator": operator, "values": values}]});
        let shop = json!({"env": "prod", "team": "shop"});
        check_selector(json!({}), json!({}), true);
        check_selector(team("In", json!(["shop"])), shop.clone(), true);
        check_selector(team("In", json!(["cart"])), shop.clone(), false);
        check_selector(team("In", json!(["shop"])), json!({"team": "shop"}), false);
        check_selector(team("NotIn", json!(["shop"])), shop.clone(), false);
        check_selector(team("NotIn", json!(["cart"])), json!({"env": "prod"}), true);
        check_selector(team("Exists", json!([])), shop.clone(), true);
        check_selector(team("DoesNotExist", json!([])), shop, false);
        check_selector(
            team("DoesNotExist", json!([])),
            json!({"env": "prod"}),
            true,
        );
    }

    #[test]
    fn invalid_expressions_are_refused() {
        for (expression, expect) in [
            (
                json!({"operator": "Exists"}),
                r#"matchExpressions[0].key is "", it must be the key of a label"#,
            ),
            (
                json!({"key": "a"}),
                r#"matchExpressions[0].operator is "", it must be In, NotIn, Exists or DoesNotExist"#,
            ),
            (
                json!({"key": "a", "operator": "In"}),
                r#"matchExpressions[0].values is "", it must be a list of at least one label value"#,
            ),
            (
                json!({"key": "a", "operator": "Exists", "values": ["b"]}),
                r#"matchExpressions[0].values is "b", it must be absent with Exists and DoesNotExist"#,
            ),
            (
                json!({"key": "a", "operator": "in"}),
                "matchExpressions[0].operator is \"in\"",
            ),
        ] {
            let error = read(&json!({ "matchExpressions": [expression] })).unwrap_err();
            assert!(error.contains(expect), "{error}");
        }
    }
}
