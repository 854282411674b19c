//! What the name of a branch can be, and what only a broken ApplicationSet can send in its place.
//!
//! With `onInvalidTag: skip` a branch without a legal tag has no preview, so that its author cannot stop the others. A text that no
//! branch can be has another cause: a misspelt or cut-off template, which would empty the list for every pull request. It is an
//! error in any case.

/// The text that Go templates print for a missing value.
pub(crate) const NO_VALUE: &str = "<no value>";

/// Whether Git allows a branch of this name, by the rules of `git check-ref-format`.
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
        && text.split('/').all(is_part)
}

/// Whether `text`, the name of a branch, has a template that Argo CD did not resolve: [`NO_VALUE`], or a letter between `{{` and
/// `}}`.
///
/// Git allows braces, so a branch can have such a name, and stops its ApplicationSet until it is renamed. The opposite mistake is
/// worse: an unresolved template would delete every preview.
pub(crate) fn has_template(text: &str) -> bool {
    let mut opened = text.split("{{").skip(1);
    let is_expression = |(inner, _): (&str, &str)| inner.contains(char::is_alphabetic);
    text.contains(NO_VALUE) || opened.any(|rest| rest.split_once("}}").is_some_and(is_expression))
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
            "\u{85}",
            "<x>",
            "'\"#%&$|;()!+,=",
        ] {
            assert!(is_branch(branch), "{branch}");
        }
        for text in [
            "", " ", "/", "/a", "a/", "a//b", "a b", " a", "a ", "pr-7\n", "a\tb", "a\u{7f}", ".a",
            "a/.b", "a.", "a..b", "a.lock", "a.lock/b", "a@{b", "a~b", "a^b", "a:b", "a?b", "a*",
            "a[b", "a\\b",
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
            "{{1}}{{x}}",
            "a-{{-.b-}}-c",
            "{{{x}}}",
            "fix-<no value>",
        ] {
            assert!(has_template(text), "{text}");
        }
        for text in [
            "", "{{", "}}", "}}x{{", "{x}", "a{{}}b", "{{1}}x", "no value",
        ] {
            assert!(!has_template(text), "{text}");
        }
    }
}
