//! Text conditions of steps: exact, prefix, or one of a few patterns, which the judge evaluates without a regex engine.

use serde_json::{Value, json};

/// A condition on a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Exact(String),
    Prefix(String),
    Pattern(Pattern),
}

/// A pattern of RE2 with a function that matches the same texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    pub(super) regex: &'static str,
    matches: fn(&str) -> bool,
    /// Texts that match.
    pub(super) samples: &'static [&'static str],
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.regex == other.regex
    }
}

impl Eq for Pattern {}

impl Text {
    pub(super) fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => text == exact,
            Self::Prefix(prefix) => text.starts_with(prefix),
            Self::Pattern(pattern) => (pattern.matches)(text),
        }
    }

    /// The form of a step in a Rollout.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Exact(exact) => json!({"exact": exact}),
            Self::Prefix(prefix) => json!({"prefix": prefix}),
            Self::Pattern(pattern) => json!({"regex": pattern.regex}),
        }
    }

    /// Texts that match.
    pub(super) fn samples(&self) -> Vec<String> {
        match self {
            Self::Exact(text) => vec![text.clone()],
            Self::Prefix(text) => vec![text.clone(), format!("{text}/items")],
            Self::Pattern(pattern) => owned(pattern.samples),
        }
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Patterns of paths.
pub(super) const PATHS: &[Pattern] = &[
    Pattern {
        regex: "/shop/[a-z]+",
        matches: |text| {
            let rest = text.strip_prefix("/shop/").unwrap_or_default();
            !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_lowercase())
        },
        samples: &["/shop/legacy", "/shop/abc"],
    },
    Pattern {
        regex: "/reviews/v[0-9]+(/.*)?",
        matches: |text| {
            let rest = text.strip_prefix("/reviews/v").unwrap_or_default();
            let tail = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            tail.len() < rest.len() && (tail.is_empty() || tail.starts_with('/'))
        },
        samples: &["/reviews/v2", "/reviews/v2/items"],
    },
    Pattern {
        regex: "/(shop|reviews).*",
        matches: |text| text.starts_with("/shop") || text.starts_with("/reviews"),
        samples: &["/shop/legacy/orders", "/reviewsx"],
    },
];

/// Patterns of the values of headers.
pub(super) const VALUES: &[Pattern] = &[
    Pattern {
        regex: "y(es|ep)",
        matches: |text| text == "yes" || text == "yep",
        samples: &["yes", "yep"],
    },
    Pattern {
        regex: "v[0-9]+",
        matches: |text| {
            let digits = text.strip_prefix('v').unwrap_or_default();
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
        },
        samples: &["v1", "v20"],
    },
];

/// Returns the pattern with this text.
pub(super) fn pattern(regex: &str) -> Option<Pattern> {
    let mut all = PATHS.iter().chain(VALUES);
    all.find(|pattern| pattern.regex == regex).copied()
}
