//! What the name of a branch can be, and what only a broken ApplicationSet can send in its place.
//!
//! With `onInvalidTag: skip` a branch without a legal tag has no preview, so that its author cannot stop the others. A text that no
//! branch can be has another cause: a misspelt or cut-off template, which would empty the list for every pull request. It is an
//! error in any case.

use crate::keys::is_blank;

/// Whether Git allows a branch of this name, by the rules of `git check-ref-format`, and something of it can be seen.
///
/// The name may begin with a dash: `git branch` refuses that, but a push does not.
pub(crate) fn is_branch(text: &str) -> bool {
    let illegal = |c: char| {
        c.is_ascii_control() || matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\')
    };
    let is_part =
        |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    !text.contains(illegal)
        && !text.contains("..")
        && !text.contains("@{")
        && !text.ends_with('.')
        && !is_blank(text)
        && text.split('/').all(is_part)
}

/// Whether `text`, the name of a branch, has a template that Argo CD did not resolve, whole or cut off: a letter or digit between
/// `{{` and `}}`, or the end. Or it [has no value](lacks_value).
///
/// Git allows braces, so a branch can have such a name, and stops its ApplicationSet until it is renamed. The opposite mistake is
/// worse: an unresolved template would delete every preview.
pub(crate) fn has_template(text: &str) -> bool {
    let opened = text.split("{{").skip(1);
    let mut inner = opened.map(|rest| rest.split_once("}}").map_or(rest, |(inner, _)| inner));
    lacks_value(text) || inner.any(|inner| inner.contains(char::is_alphanumeric))
}

/// Whether `text` has what Go prints instead of a missing value or one of another type: `<no value>`, `<nil>`, or `%!` with a verb
/// and a bracket, such as `%!s(<nil>)` and `%!d(string=a)`.
pub(crate) fn lacks_value(text: &str) -> bool {
    let mut errors = text.split("%!").skip(1);
    let is_error = |rest: &str| {
        rest.trim_start_matches(char::is_alphabetic)
            .starts_with('(')
    };
    text.contains("<no value>") || text.contains("<nil>") || errors.any(is_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_are_those_that_git_allows() {
        for branch in [
            "main",
            "feature/x",
            "a.b",
            "a@b",
            "@",
            "-a",
            "日本",
            "{{",
            "a}}",
            "a.lockx",
            "a/lock",
            "a\u{200b}",
            "<x>",
            "'\"#%&$|;()!+,=",
        ] {
            assert!(is_branch(branch), "{branch}");
        }
        for text in [
            "",
            " ",
            "/",
            "/a",
            "a/",
            "a//b",
            "a b",
            " a",
            "a ",
            "pr-7\n",
            "a\tb",
            "a\u{7f}",
            ".a",
            "a/.b",
            "a.",
            "a..b",
            "a.lock",
            "a.lock/b",
            "a@{b",
            "a~b",
            "a^b",
            "a:b",
            "a?b",
            "a*",
            "a[b",
            "a\\b",
            "\u{85}",
            "\u{200b}",
            "\u{feff}\u{a0}",
        ] {
            assert!(!is_branch(text), "{text}");
        }
    }

    #[test]
    fn a_template_is_found_anywhere_in_a_text() {
        for text in [
            "{{branch}}",
            " {{ .branch }} ",
            "pr-{{.number}}",
            "{{ .branch }}-{{ .number }}",
            "{{1}}",
            "{{.bra",
            "{{number",
            "{{.branch}",
            "{{$x",
            "<nil>",
            "pr-%!s(<nil>)",
            "%!v(MISSING)",
            "%!(EXTRA string=a)",
            "a-{{-.b-}}-c",
            "{{{x}}}",
            "fix-<no value>",
        ] {
            assert!(has_template(text), "{text}");
        }
        for text in [
            "", "{{", "}}", "}}x{{", "{x}", "a{{}}b", "no value", "100%!", "%s", "<x>",
        ] {
            assert!(!has_template(text), "{text}");
        }
    }
}
