//! From domain to wire: outcomes become replies, errors become text.

#[cfg(feature = "host")]
mod analysis;
mod metric;
mod step;

pub(crate) use metric::metadata;

use std::error::Error;

use crate::error::PluginError;
use crate::traffic_router::Verification;
use crate::wire::{RpcError, VerifyWeightResponse};

/// Characters of an error text; what is longer is cut off at its end. The text becomes the message of a Kubernetes event,
/// which holds about 1000.
pub const MAX_ERROR: usize = 900;

/// `%` as Go must not see it: the controller uses error texts as format strings
/// (`TrafficRoutingError` in `rollout/trafficrouting.go`). The full-width form reads the same.
const PERCENT: char = '\u{ff05}';

impl From<&Result<(), PluginError>> for RpcError {
    fn from(outcome: &Result<(), PluginError>) -> Self {
        Self {
            error_string: outcome
                .as_ref()
                .err()
                .map_or_else(String::new, plugin_error),
        }
    }
}

impl From<Verification> for VerifyWeightResponse {
    fn from(verification: Verification) -> Self {
        // `RpcVerified` in Argo Rollouts `utils/plugin/types`.
        let verified = match verification {
            Verification::NotVerified => 0,
            Verification::Verified => 1,
            Verification::NotImplemented => 2,
        };
        let err = RpcError {
            error_string: String::new(),
        };
        Self { verified, err }
    }
}

/// Every element in its wire form.
pub(crate) fn all<'d, D: 'd, W: From<&'d D>>(domain: &'d [D]) -> Vec<W> {
    domain.iter().map(W::from).collect()
}

/// An error and its causes as the host gets them: one line without `%`, never empty.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        // Some libraries repeat a cause in their own text.
        if !text.contains(&reason) {
            text.push_str(": ");
            text.push_str(&reason);
        }
        cause = error.source();
    }
    one_line(&text)
}

fn plugin_error(error: &PluginError) -> String {
    error_chain(error.as_error())
}

fn one_line(text: &str) -> String {
    let words = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty());
    let line = words
        .collect::<Vec<_>>()
        .join(" ")
        .replace('%', PERCENT.encode_utf8(&mut [0; 4]));
    if line.is_empty() {
        // An empty text means success.
        return "an error without a text".to_owned();
    }
    if line.chars().nth(MAX_ERROR).is_none() {
        return line;
    }
    line.chars().take(MAX_ERROR).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: String,
        source: Option<Box<Self>>,
    }

    fn layers(texts: &[&str]) -> Layer {
        let (first, rest) = texts.split_first().unwrap();
        let source = (!rest.is_empty()).then(|| Box::new(layers(rest)));
        Layer {
            text: (*first).to_owned(),
            source,
        }
    }

    #[track_caller]
    fn check(texts: &[&str], expect: &str) {
        assert_eq!(error_chain(&layers(texts)), expect);
    }

    #[test]
    fn causes_are_joined() {
        check(&["cannot patch ns/t"], "cannot patch ns/t");
        check(
            &["cannot patch ns/t", "forbidden", "no role"],
            "cannot patch ns/t: forbidden: no role",
        );
    }

    #[test]
    fn a_cause_that_is_repeated_is_said_once() {
        check(
            &["cannot patch ns/t: forbidden", "forbidden"],
            "cannot patch ns/t: forbidden",
        );
    }

    #[test]
    fn the_text_is_one_line() {
        check(&["a\nb\r\n\tc ", " d\u{7f}e"], "a b c : d e");
    }

    #[test]
    fn go_finds_nothing_to_format() {
        check(&["50% of %s, %!v(MISSING)"], "50％ of ％s, ％!v(MISSING)");
    }

    #[test]
    fn an_error_is_never_empty_since_that_means_success() {
        check(&[""], "an error without a text");
        check(&["\n", " "], ":");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = error_chain(&layers(&[&"ü".repeat(2000)]));
        assert_eq!(text.chars().count(), MAX_ERROR + 1);
        assert!(text.ends_with("ü…"));
    }
}
