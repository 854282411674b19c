//! What identifies a set within an answer.

use crate::Field;

/// Longest slug: the name of an Application is the slug and some text of the template.
const MAX_SLUG: usize = 40;

/// A unique key, and a unique part of a DNS name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) key: String,
    slug: String,
}

impl Identity {
    /// The identity of the object that `parts` name together.
    pub(crate) fn of(parts: &[&str]) -> Self {
        Self {
            key: parts.join("/"),
            slug: slug(parts),
        }
    }

    /// The fields of a set.
    pub(crate) fn fields(&self) -> [(&'static str, Field); 2] {
        [
            ("key", self.key.as_str().into()),
            ("slug", self.slug.as_str().into()),
        ]
    }
}

/// `parts` as part of a DNS name. Where other parts could have the same slug, a hash is appended.
fn slug(parts: &[&str]) -> String {
    let plain = |part: &&str| {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        !part.is_empty() && part.chars().all(legal)
    };
    let text = parts.join("-");
    if text.len() <= MAX_SLUG && parts.iter().all(plain) {
        return text;
    }
    let hash = format!("-{:016x}", route_planner::fnv1a(&parts.join("/")));
    let mut words = String::new();
    for c in text.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_alphanumeric() {
            words.push(c);
        } else if !words.ends_with('-') {
            words.push('-');
        }
    }
    let words: String = words
        .trim_matches('-')
        .chars()
        .take(MAX_SLUG - hash.len())
        .collect();
    format!("{}{hash}", words.trim_end_matches('-'))
        .trim_start_matches('-')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_fit_and_differ() {
        assert_eq!(slug(&["c1", "shop", "web", "demo"]), "c1-shop-web-demo");
        let a = slug(&["c1", "shop", "web-demo"]);
        let b = slug(&["c1", "shop-web", "demo"]);
        assert!(a.starts_with("c1-shop-web-demo-") && b.starts_with("c1-shop-web-demo-") && a != b);
        for parts in [&["x"; 60][..], &["Ä", "/"], &["", ""], &["a.b_c"]] {
            let slug = slug(parts);
            assert!(slug.len() <= MAX_SLUG, "{slug}");
            let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(
                slug.chars().all(legal) && !slug.starts_with('-') && !slug.ends_with('-'),
                "{slug}"
            );
        }
    }
}
