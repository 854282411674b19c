//! Checks regular expressions for RE2: Gloo passes patterns to Envoy, which compiles them with RE2.
//!
//! The parser of `regex-syntax` accepts nearly the same language. Syntax that only this parser supports is refused here.
//! Syntax that only RE2 supports (`\Q..\E`, `\C`, octal escapes, a literal `{`) is refused by the parser. Source: RE2's
//! syntax page (`google/re2`, `doc/syntax.txt`).

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{
    AssertionKind, Ast, ClassSet, ClassSetItem, ClassUnicode, ClassUnicodeKind, Flag, Flags,
    FlagsItemKind, GroupKind, HexLiteralKind, Literal, LiteralKind, Repetition, RepetitionKind,
    RepetitionRange,
};

/// RE2's limit on counted repetitions; the counts of nested ones are multiplied (`re2/parse.cc`, `maximum_repeat_count`).
const MOST_REPEATED: u32 = 1000;

/// Checks a pattern.
///
/// # Errors
/// Returns `Err` with the problem, in one line.
pub(crate) fn check(pattern: &str) -> Result<(), String> {
    let ast = Parser::new()
        .parse(pattern)
        .map_err(|error| error.kind().to_string())?;
    if repeated(&ast)? > MOST_REPEATED {
        return Err(format!("more than {MOST_REPEATED} repetitions"));
    }
    Ok(())
}

/// Escapes a text, so that the pattern matches exactly that text.
pub(crate) fn quote(text: &str) -> String {
    regex_syntax::escape(text)
}

/// The largest product of nested counted repetitions: 6 for `(a{2}b){3}`. Also checks every part of the pattern.
fn repeated(ast: &Ast) -> Result<u32, String> {
    let most = |parts: &[Ast]| {
        let mut counts = parts.iter().map(repeated);
        counts.try_fold(1, |most, count| count.map(|count| most.max(count)))
    };
    match ast {
        Ast::Empty(_) | Ast::Dot(_) | Ast::ClassPerl(_) => Ok(1),
        Ast::Flags(set) => flags(&set.flags).map(|()| 1),
        Ast::Literal(one) => literal(one).map(|()| 1),
        Ast::Assertion(assertion) => match assertion.kind {
            AssertionKind::StartLine
            | AssertionKind::EndLine
            | AssertionKind::StartText
            | AssertionKind::EndText
            | AssertionKind::WordBoundary
            | AssertionKind::NotWordBoundary => Ok(1),
            _ => Err("a word boundary other than \\b and \\B".to_owned()),
        },
        Ast::ClassUnicode(class) => unicode(class).map(|()| 1),
        Ast::ClassBracketed(class) => class_set(&class.kind).map(|()| 1),
        Ast::Repetition(repetition) => {
            let inner = repeated(&repetition.ast)?;
            Ok(inner.saturating_mul(count(repetition)?))
        }
        Ast::Group(group) => {
            match &group.kind {
                GroupKind::CaptureIndex(_) => {}
                GroupKind::CaptureName {
                    starts_with_p: true,
                    name,
                } if is_word(&name.name) => {}
                GroupKind::CaptureName { .. } => {
                    return Err("a group name in another form than (?P<name>...)".to_owned());
                }
                GroupKind::NonCapturing(set) => flags(set)?,
            }
            repeated(&group.ast)
        }
        Ast::Alternation(alternation) => most(&alternation.asts),
        Ast::Concat(concat) => most(&concat.asts),
    }
}

/// The count of one repetition.
fn count(repetition: &Repetition) -> Result<u32, String> {
    if matches!(*repetition.ast, Ast::Repetition(_)) {
        return Err("a repetition of a repetition without a group around it".to_owned());
    }
    Ok(match repetition.op.kind {
        RepetitionKind::Range(
            RepetitionRange::Exactly(most)
            | RepetitionRange::AtLeast(most)
            | RepetitionRange::Bounded(_, most),
        ) => most.max(1),
        _ => 1,
    })
}

fn literal(literal: &Literal) -> Result<(), String> {
    match &literal.kind {
        LiteralKind::HexFixed(kind) | LiteralKind::HexBrace(kind) if *kind != HexLiteralKind::X => {
            Err("an escape \\u or \\U".to_owned())
        }
        _ => Ok(()),
    }
}

fn flags(flags: &Flags) -> Result<(), String> {
    let unknown = flags.items.iter().any(|item| {
        let FlagsItemKind::Flag(flag) = item.kind else {
            return false;
        };
        matches!(flag, Flag::Unicode | Flag::CRLF | Flag::IgnoreWhitespace)
    });
    if unknown {
        return Err("a flag other than i, m, s and U".to_owned());
    }
    Ok(())
}

fn unicode(class: &ClassUnicode) -> Result<(), String> {
    match &class.kind {
        ClassUnicodeKind::OneLetter(_) => Ok(()),
        ClassUnicodeKind::Named(name) if name.len() <= 2 => Ok(()),
        _ => Err("a Unicode class other than a general category of one or two letters".to_owned()),
    }
}

fn class_set(set: &ClassSet) -> Result<(), String> {
    match set {
        ClassSet::Item(item) => class_item(item),
        ClassSet::BinaryOp(_) => Err("an operation between classes".to_owned()),
    }
}

fn class_item(item: &ClassSetItem) -> Result<(), String> {
    match item {
        ClassSetItem::Literal(one) => literal(one),
        ClassSetItem::Range(range) => literal(&range.start).and_then(|()| literal(&range.end)),
        ClassSetItem::Unicode(class) => unicode(class),
        ClassSetItem::Union(union) => union.items.iter().try_for_each(class_item),
        ClassSetItem::Bracketed(_) => Err("a class inside a class".to_owned()),
        ClassSetItem::Empty(_) | ClassSetItem::Ascii(_) | ClassSetItem::Perl(_) => Ok(()),
    }
}

fn is_word(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn takes(patterns: &[&str]) {
        for pattern in patterns {
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
    }

    #[track_caller]
    fn refuses(pattern: &str, expect: &str) {
        assert_eq!(check(pattern), Err(expect.to_owned()), "{pattern}");
    }

    #[test]
    fn syntax_of_re2_is_accepted() {
        takes(&[
            "",
            "v[0-9]+",
            "^(?:a|b)$",
            r"(?i)chrome/(\d+)\.\d*?",
            "(?P<major>[0-9]{1,3})",
            r"\A[[:alpha:]_-]+\z",
            r"\pN\p{Lu}[^\P{L}]",
            r"\x41\x{1F600}\.\-\/",
            "a{1000}",
            r"[]a]\b.",
        ]);
    }

    #[test]
    fn other_syntax_is_refused() {
        refuses(
            "(?=a)",
            "look-around, including look-ahead and look-behind, is not supported",
        );
        refuses(r"(a)\1", "backreferences are not supported");
        refuses("(a", "unclosed group");
        refuses(
            "a**",
            "a repetition of a repetition without a group around it",
        );
        refuses("a{1001}", "more than 1000 repetitions");
        refuses("((a{50}){30}b)", "more than 1000 repetitions");
        refuses("a{,3}", "repetition quantifier expects a valid decimal");
        refuses("[a-z&&[^x]]", "an operation between classes");
        refuses("[a[b]]", "a class inside a class");
        refuses(r"\<a", "a word boundary other than \\b and \\B");
        refuses("(?x)a", "a flag other than i, m, s and U");
        refuses("(?<n>a)", "a group name in another form than (?P<name>...)");
        refuses(r"[\u0041]", "an escape \\u or \\U");
        refuses(
            r"\p{Letter}",
            "a Unicode class other than a general category of one or two letters",
        );
    }

    #[test]
    fn quoted_text_matches_itself() {
        assert_eq!(quote("v2.x+[a]"), r"v2\.x\+\[a\]");
        takes(&[&quote(r"a-b#c&d~e\f/g{h}|(i)^$*?")]);
    }
}
