//! Patterns with `*`, as administrators and Gloo write them.

/// Whether `text` is as `pattern` says, in which `*` stands for anything.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(text) = text.strip_prefix(start) else {
        return false;
    };
    // The first match leaves the longest rest for the next part.
    let after = middle.split('*').try_fold(text, |text, part| {
        let (_, after) = text.split_once(part)?;
        Some(after)
    });
    after.is_some_and(|text| text.ends_with(end))
}

/// Whether `text` is a pattern and not a name.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains('*')
}

#[cfg(test)]
mod tests {
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
    fn a_star_stands_for_anything() {
        check("web", &["web"], &["", "we", "webs"]);
        check("", &[""], &["a"]);
        check("*", &["", "web", "a/b"], &[]);
        check("a/*", &["a/b", "a/"], &["b/a"]);
        check("ns1*", &["ns1", "ns1-a"], &["ns2", "ans1"]);
        check("*-a", &["-a", "x-a", "-a-a"], &["x-b", "a"]);
        check(
            "a*b*c",
            &["abc", "a-b-c", "abbcc", "abcbc"],
            &["ab", "acb", "ac"],
        );
        check("a*a", &["aa", "aba"], &["a", "ab"]);
        check("**", &["", "x"], &[]);
    }
}
