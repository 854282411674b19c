//! The error type that a plugin returns, and the text of an error in a reply.

use std::error::Error;
use std::fmt;

/// Longest error text in characters; the rest is cut off. The text becomes the message of a Kubernetes event, which holds about
/// 1000 characters.
pub const MAX_ERROR: usize = 900;

/// Largest measurement, metadata of a metric, or result of a step, in bytes of its texts. The controller stores them in an AnalysisRun
/// or a Rollout, which holds several, and an API server accepts about 1.5 MB of it.
pub const MAX_RESULT: usize = 100 * 1024;

/// Replaces `%`, because the controller uses error texts as format strings (`TrafficRoutingError` in
/// `rollout/trafficrouting.go`). The full-width form reads the same.
const PERCENT: char = '\u{ff05}';

/// What a plugin's methods return.
pub type Result<T = (), E = PluginError> = std::result::Result<T, E>;

/// The error of a plugin's method: any error, with its causes.
///
/// `?` converts any error, and [`PluginError::from`] converts a text. The reply contains [`error_chain`] of it.
pub struct PluginError(Box<dyn Error + Send + Sync>);

impl PluginError {
    /// Returns the error itself; its sources are its causes.
    #[must_use]
    pub fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

// Like `anyhow::Error`, this type does not implement `Error`: the implementation would conflict with this conversion.
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for PluginError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl fmt::Debug for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns an error and its causes as the host receives them: one line without `%`, joined by `": "`, never empty, at most
/// [`MAX_ERROR`] characters.
pub fn error_chain(error: &dyn Error) -> String {
    let line = error_line(error).replace('%', PERCENT.encode_utf8(&mut [0; 4]));
    if line.is_empty() {
        // An empty text means success.
        return "an error without a text".to_owned();
    }
    if line.chars().nth(MAX_ERROR).is_none() {
        return line;
    }
    line.chars().take(MAX_ERROR).chain(['…']).collect()
}

/// Returns an error and its causes as a person reads them: one line, joined by `": "`.
pub fn error_line(error: &dyn Error) -> String {
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
    let words = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty());
    escaped(&words.collect::<Vec<_>>().join(" "))
}

/// Escapes control characters, and characters that change the direction or the lines of a text: names in manifests may have them.
#[must_use]
pub fn escaped(text: &str) -> String {
    let is_plain = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match is_plain(c) {
            true => escaped.push(c),
            false => escaped.extend(c.escape_default()),
        }
    }
    escaped
}

/// Refuses a result with more than [`MAX_RESULT`] bytes; `what` names its texts.
pub(crate) fn within_limit(what: &str, bytes: usize) -> Result {
    if bytes <= MAX_RESULT {
        return Ok(());
    }
    let text = format!(
        "the plugin's result is too large: {what} have {bytes} bytes, at most {MAX_RESULT} fit: return a summary"
    );
    Err(text.into())
}

/// Returns the name of a type without its modules.
pub(crate) fn short_name<T: ?Sized>() -> &'static str {
    let name = std::any::type_name::<T>();
    let name = name.split('<').next().unwrap_or(name);
    name.rsplit("::").next().unwrap_or(name)
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
    fn an_author_can_print_an_error_and_its_causes() {
        let error = PluginError::from(layers(&["cannot patch ns/t", "forbidden"]));
        assert_eq!(error.to_string(), "cannot patch ns/t");
        assert_eq!(
            error_chain(error.as_error()),
            "cannot patch ns/t: forbidden"
        );
    }

    #[test]
    fn a_repeated_cause_appears_once() {
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
    fn no_name_changes_the_direction_or_the_lines_of_a_text() {
        check(&["a\u{202e}b\u{2066}c"], "a\\u{202e}b\\u{2066}c");
        assert_eq!(
            escaped("a\nb\u{1b}[31m\u{85}\u{200f}é"),
            "a\\nb\\u{1b}[31m\\u{85}\\u{200f}é"
        );
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

    #[test]
    fn a_plugin_is_named_after_its_type() {
        assert_eq!(short_name::<PluginError>(), "PluginError");
        assert_eq!(short_name::<Option<PluginError>>(), "Option");
        assert_eq!(short_name::<u8>(), "u8");
    }
}
