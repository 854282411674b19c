//! Checks regular expressions for RE2: Gloo passes patterns to Envoy, which compiles them with RE2.
//!
//! Reads a pattern as RE2 does (`google/re2`: `re2/parse.cc` with the flags `LikePerl`, and `doc/syntax.txt`), without recursion.
//! `tests/go/re2` compares the result with RE2's. One thing is stricter: RE2 accepts letters beyond ASCII in the name of a group.

use std::mem;

/// RE2's limit on counted repetitions; the counts of nested ones are multiplied (`maximum_repeat_count`, `RepetitionWalker`).
const MOST_REPEATED: u32 = 1000;

/// The general categories and scripts of `re2/unicode_groups.cc`.
const UNICODE_NAMES: &str = include_str!("re2_unicode.txt");
const CLASS_NAMES: &str =
    "alnum alpha ascii blank cntrl digit graph lower print punct space upper word xdigit";

type Checked<T> = Result<T, &'static str>;

/// What was read of a group, or of the whole pattern.
#[derive(Default)]
struct Group {
    /// The product of nested counts in the item to which a repetition would apply: 6 after `(a{2}b){3}`. `None` if there is none.
    last: Option<u32>,
    /// The largest `last`.
    most: u32,
}

impl Group {
    fn add(&mut self, repeated: u32) {
        self.last = Some(repeated);
        self.most = self.most.max(repeated);
    }
}

/// Checks that RE2 accepts a pattern.
///
/// # Errors
/// Returns `Err` with the problem, in one line.
pub fn check(pattern: &str) -> Checked<()> {
    let text = &mut &*pattern;
    let (mut group, mut outer) = (Group::default(), Vec::new());
    let mut was_repeated = false;
    let last_name = pattern.rfind(":]").map(|at| pattern.len() - at);
    while let Some(c) = next(text) {
        let times = match c {
            '*' | '+' | '?' => Some(1),
            '{' => count(text),
            _ => None,
        };
        if mem::replace(&mut was_repeated, times.is_some()) && times.is_some() {
            return Err("a repetition of a repetition without a group around it");
        }
        match (c, times) {
            (_, Some(times)) => {
                skip(text, "?");
                let last = group.last.ok_or("a repetition of nothing")?;
                group.add(last.saturating_mul(times.max(1)));
                if group.most > MOST_REPEATED {
                    return Err("more than 1000 repetitions, or a minimum above the maximum");
                }
            }
            ('(', _) if opens_group(text)? => outer.push(mem::take(&mut group)),
            ('(', _) => {}
            (')', _) => {
                let outer = outer.pop().ok_or("a ) without a (")?;
                let inner = mem::replace(&mut group, outer);
                group.add(inner.most.max(1));
            }
            ('|', _) => group.last = None,
            ('\\', _) if skip(text, "Q") => {
                let quoted = until(text, "\\E").unwrap_or_else(|| mem::take(text));
                if !quoted.is_empty() {
                    group.add(1);
                }
            }
            _ => {
                match c {
                    '[' => class(text, last_name)?,
                    '\\' if text.starts_with(['b', 'B', 'A', 'z', 'C']) => drop(next(text)),
                    '\\' => drop(escape(text)?),
                    _ => {}
                }
                group.add(1);
            }
        }
    }
    outer.is_empty().then_some(()).ok_or("a ( without a )")
}

/// Escapes a text, so that the pattern matches exactly that text.
pub(crate) fn quote(text: &str) -> String {
    let special = r"\.+*?()|[]{}^$#&-~";
    let escape = |c| if special.contains(c) { "\\" } else { "" };
    text.chars().map(|c| format!("{}{c}", escape(c))).collect()
}

/// Reads the rest of `{2}`, `{2,}` or `{2,3}`, and returns the count that is multiplied: above the limit if the counts are wrong.
/// Anything else after `{` is text, and nothing is read.
fn count(text: &mut &str) -> Option<u32> {
    let mut rest = *text;
    // RE2 does not read a number with ten digits, or with a zero before others.
    let number = |rest: &mut &str| digits(rest, 10, if rest.starts_with('0') { 1 } else { 9 });
    let least = number(&mut rest)?;
    let mut most = least;
    if skip(&mut rest, ",") && !rest.starts_with('}') {
        most = number(&mut rest)?;
    }
    *text = rest.strip_prefix('}')?;
    Some(if least > most { u32::MAX } else { most })
}

/// Reads the head of a group after `(`. Returns `false` for flags alone, as in `(?i)`.
fn opens_group(text: &mut &str) -> Checked<bool> {
    if !skip(text, "?") {
        return Ok(true);
    }
    if ["=", "!", "<=", "<!"].iter().any(|it| text.starts_with(it)) {
        return Err("look-ahead and look-behind are not supported");
    }
    if skip(text, "P<") || skip(text, "<") {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = until(text, ">").filter(|name| !name.is_empty() && name.chars().all(is_word));
        return name
            .map(|_| true)
            .ok_or("a group name with other characters than a-z, A-Z, 0-9 and _");
    }
    let (mut is_negated, mut is_complete) = (false, true);
    while let Some(c) = next(text) {
        match c {
            'i' | 'm' | 's' | 'U' => is_complete = true,
            '-' if !is_negated => (is_negated, is_complete) = (true, false),
            ':' | ')' if is_complete => return Ok(c == ':'),
            _ => break,
        }
    }
    Err("a group (?...) with something else than the flags i, m, s and U")
}

/// Reads the rest of a class after `[`. `last_name` is how far the last `:]` is from the end of the pattern.
fn class(text: &mut &str, last_name: Option<usize>) -> Checked<()> {
    skip(text, "^");
    let mut is_first = true;
    while mem::take(&mut is_first) || !skip(text, "]") {
        // Without `:]`, `[:` is text.
        if last_name.is_some_and(|end| text.len() >= end + 2) && skip(text, "[:") {
            check_name(until(text, ":]"), CLASS_NAMES, "an unknown class [:name:]")?;
        } else if let Some(low) = character(text)?
            && !text.starts_with("-]")
            && skip(text, "-")
            && character(text)?.is_none_or(|high| low > high)
        {
            return Err("a range that ends with a class, or before its beginning");
        }
    }
    Ok(())
}

/// Reads a character in a class; `None` for a class such as `\d`.
fn character(text: &mut &str) -> Checked<Option<u32>> {
    match next(text).ok_or("a [ without a ]")? {
        '\\' => escape(text),
        c => Ok(Some(u32::from(c))),
    }
}

/// Reads an escape after its backslash, and returns the character; `None` for a class such as `\d`.
fn escape(text: &mut &str) -> Checked<Option<u32>> {
    let start = *text;
    let is_octal = |c: char| c.is_digit(8);
    Ok(Some(match next(text).ok_or("a \\ at the end")? {
        'd' | 'D' | 's' | 'S' | 'w' | 'W' => return Ok(None),
        'p' | 'P' => {
            let name = if skip(text, "{") {
                until(text, "}")
            } else {
                next(text).and_then(|c| start.get(1..=c.len_utf8()))
            };
            let problem = "an unknown Unicode class: use a general category such as \\p{Lu}, or a script such as \\p{Greek}";
            return check_name(name, UNICODE_NAMES, problem).map(|()| None);
        }
        'x' => hexadecimal(text).ok_or("an escape \\x in another form than \\x41 or \\x{1F600}")?,
        'a' => 0x07,
        't' => 0x09,
        'n' => 0x0a,
        'v' => 0x0b,
        'f' => 0x0c,
        'r' => 0x0d,
        c if c == '0' || is_octal(c) && text.starts_with(is_octal) => {
            *text = start;
            digits(text, 8, 3).unwrap_or_default()
        }
        '1'..='9' => return Err("backreferences are not supported"),
        c if c.is_ascii() && !c.is_ascii_alphabetic() => u32::from(c),
        _ => return Err("an unknown escape"),
    }))
}

fn hexadecimal(text: &mut &str) -> Option<u32> {
    if skip(text, "{") {
        let code = digits(text, 16, usize::MAX)?;
        return (skip(text, "}") && code <= u32::from(char::MAX)).then_some(code);
    }
    Some(16 * next(text)?.to_digit(16)? + next(text)?.to_digit(16)?)
}

fn check_name(name: Option<&str>, known: &str, problem: &'static str) -> Checked<()> {
    let name = name.map(|name| name.strip_prefix('^').unwrap_or(name));
    let mut known = known.split_ascii_whitespace();
    known
        .any(|it| Some(it) == name)
        .then_some(())
        .ok_or(problem)
}

/// Reads a number of at most `most` digits; `None` if there is none.
fn digits(text: &mut &str, radix: u32, most: usize) -> Option<u32> {
    let next = text.chars().take(most);
    let (digits, rest) = text.split_at_checked(next.take_while(|c| c.is_digit(radix)).count())?;
    *text = rest;
    u32::from_str_radix(digits, radix).ok()
}

fn next(text: &mut &str) -> Option<char> {
    let mut chars = text.chars();
    let next = chars.next();
    *text = chars.as_str();
    next
}

/// Reads a text if it is next.
fn skip(text: &mut &str, expected: &str) -> bool {
    let rest = text.strip_prefix(expected);
    *text = rest.unwrap_or(text);
    rest.is_some()
}

/// Reads up to a text and the text itself; nothing if it does not occur.
fn until<'t>(text: &mut &'t str, end: &str) -> Option<&'t str> {
    let (before, rest) = text.split_once(end)?;
    *text = rest;
    Some(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_all(patterns: &[&str], expect: Checked<()>) {
        for pattern in patterns {
            assert_eq!(check(pattern), expect, "{pattern}");
        }
    }

    #[test]
    fn syntax_of_re2_is_accepted() {
        check_all(
            &[
                "",
                "v[0-9]+",
                "^(?:a|b)$",
                r"(?i)chrome/(\d+)\.\d*?",
                "(?P<major>[0-9]{1,3})(?<1>a)",
                r"\A[[:alpha:]_-]+\z",
                r"\pN\p{Lu}[^\P{L}]\p{^Greek}",
                r"\x41\x{1F600}\101\0\.\-\/",
                "a{1000}",
                r"[]a]\b.[\w-.][a&&b[][[:]",
                "(?ii-s:a)(?)",
                "a{x}{,3}a{01}a{1000000000}",
                r"a*\Q*\E*(?i)*\C\Q",
            ],
            Ok(()),
        );
        let deep = ["(".repeat(100_000), "a".to_owned(), ")".repeat(100_000)];
        check_all(&[&deep.concat()], Ok(()));
    }

    #[test]
    fn other_syntax_is_refused() {
        let refused: &[(&[&str], &str)] = &[
            (
                &["(?=a)", "(?!a)", "(?<=a)", "(?<!a)"],
                "look-ahead and look-behind are not supported",
            ),
            (&[r"(a)\1", r"\8"], "backreferences are not supported"),
            (&["(a"], "a ( without a )"),
            (&["a)"], "a ) without a ("),
            (&["[a", "[]", "[[:alpha:]", "[a-"], "a [ without a ]"),
            (&["*", "(*)", "a|*", "(?i){2}"], "a repetition of nothing"),
            (
                &["a**", "a{2}??", "a{0}{2}"],
                "a repetition of a repetition without a group around it",
            ),
            (
                &["a{1001}", "((a{50}){30}b)", "a{2,1}", "a{1001,}"],
                "more than 1000 repetitions, or a minimum above the maximum",
            ),
            (
                &["[z-a]", r"[a-\d]"],
                "a range that ends with a class, or before its beginning",
            ),
            (&["[[:x:]]", "[a[:x]:]]"], "an unknown class [:name:]"),
            (&[r"\u0041", r"[\b]", r"\Z", r"\é"], "an unknown escape"),
            (
                &[r"\x4", r"\x{}", r"\x{110000}", r"\x{+1}"],
                r"an escape \x in another form than \x41 or \x{1F600}",
            ),
            (&["\\"], "a \\ at the end"),
            (
                &["(?x)a", "(?i-)", "(?", "(?P=n)", "(?>a)"],
                "a group (?...) with something else than the flags i, m, s and U",
            ),
            (
                &["(?P<a-b>a)", "(?<>a)", "(?P<n", "(?P<é>a)"],
                "a group name with other characters than a-z, A-Z, 0-9 and _",
            ),
            (
                &[
                    r"\p{Letter}",
                    r"\pQ",
                    r"\p{Xx}",
                    r"\p{}",
                    r"[\p{L]",
                    r"\pé",
                    r"\p",
                ],
                r"an unknown Unicode class: use a general category such as \p{Lu}, or a script such as \p{Greek}",
            ),
        ];
        for (patterns, problem) in refused {
            check_all(patterns, Err(problem));
        }
    }

    #[test]
    fn quoted_text_matches_itself() {
        assert_eq!(quote("v2.x+[a]"), r"v2\.x\+\[a\]");
        check_all(&[&quote(r"a-b#c&d~e\f/g{h}|(i)^$*?")], Ok(()));
    }
}
