//! Every message of this crate that a person sees, once, as a file to read from top to bottom.
//!
//! Each `after` matches all variants and returns the example that follows, so a new variant does not compile until it is listed.

use std::fmt;

use crate::NoSuchTable;
use crate::document::DocumentError;
use crate::validate::Rule;
use crate::wrong_type::WrongType;

fn list<M: fmt::Display>(first: M, after: impl Fn(&M) -> Option<M>) -> String {
    let all = std::iter::successors(Some(first), after);
    all.map(|it| format!("{it}\n")).collect()
}

fn after_rule(it: &Rule) -> Option<Rule> {
    Some(match it {
        Rule::NoRoutes => Rule::DuplicateName("reviews".to_owned()),
        Rule::DuplicateName(_) => Rule::Actions(2),
        Rule::Actions(_) => Rule::WeightSum(120),
        Rule::WeightSum(_) => Rule::NoRemainder {
            unset: "Service shop/reviews-canary".to_owned(),
            remainder: 0,
        },
        Rule::NoRemainder { .. } => Rule::NoDestination,
        Rule::NoDestination => Rule::TooLong {
            most: 100,
            found: 101,
        },
        Rule::TooLong { .. } => Rule::Target,
        Rule::Target => Rule::KindForTcp,
        Rule::KindForTcp => Rule::NoSniHost,
        Rule::NoSniHost => Rule::ResponseStatus(99),
        Rule::ResponseStatus(_) => Rule::Port {
            least: 1,
            found: 70_000,
        },
        Rule::Port { .. } => Rule::HeaderName("x user".to_owned()),
        Rule::HeaderName(_) => Rule::SeveralMatches,
        Rule::SeveralMatches => Rule::Contradiction("x-user".to_owned()),
        Rule::Contradiction(_) => Rule::NeedsHosts,
        Rule::NeedsHosts => Rule::OnlyKube,
        Rule::OnlyKube => Rule::DefaultWithoutRoute,
        Rule::DefaultWithoutRoute => Rule::Space,
        Rule::Space => Rule::Hidden {
            route: "reviews".to_owned(),
            by: "route all".to_owned(),
        },
        Rule::Hidden { .. } => return None,
    })
}

fn after_document(it: &DocumentError) -> Option<DocumentError> {
    Some(match it {
        DocumentError::Kind { .. } => DocumentError::Unnamed {
            kind: "RouteTable",
            path: "metadata.namespace",
        },
        DocumentError::Unnamed { .. } => DocumentError::Type {
            kind: "RouteTable",
            key: "shop/reviews".to_owned(),
            path: "spec.http[0].name".to_owned(),
            source: WrongType::new("invalid type: integer `7`, expected a string"),
        },
        DocumentError::Type { .. } => return None,
    })
}

#[test]
fn every_message() {
    let kind = DocumentError::Kind {
        expected: "RouteTable",
        found: "Service".to_owned(),
    };
    let table = NoSuchTable {
        what: "RouteTable edge/web or shop/web".to_owned(),
    };
    let parts = [
        (
            "A table breaks a rule of Gloo",
            list(Rule::NoRoutes, after_rule),
        ),
        ("An object cannot be read", list(kind, after_document)),
        ("A table does not exist", list(table, |_| None)),
    ];
    let text: String = parts
        .map(|(head, lines)| format!("# {head}\n\n{lines}\n"))
        .concat();
    insta::assert_snapshot!(text);
}
