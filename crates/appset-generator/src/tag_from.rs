//! `tagFrom` of a profile: makes the tag of an image from a parameter such as a branch.
//!
//! A caller may know only the branch, while the build derives the tag from the branch. Each [`Rule`] does what one common build
//! tool does, so that both get the same tag.

use std::borrow::Cow;

use serde_json::{Map, Value};
use strict_json::{Block, Problem};

use crate::Failure;
use crate::branch::is_branch;
use crate::failure::shown;
use crate::image_digests::{is_tag, is_tag_character};
use crate::keys::text;
use crate::set::dashed_runs;

/// The parameter with the tag, which the source of image digests reads.
const TAG: &str = "tag";
/// The parameter that decides what happens with an illegal tag.
const ON_INVALID: &str = "onInvalidTag";

/// Which parameter becomes the tag, and how.
#[derive(Clone, Debug)]
pub(crate) struct TagFrom {
    /// The name of the parameter that becomes the tag.
    pub(crate) parameter: String,
    rule: Rule,
    prefix: String,
    suffix: String,
}

/// How a branch becomes a tag: the name in the configuration, and what the tool does. The result may be an illegal tag, and there
/// is none if that of the tool is unknown.
type Rule = (&'static str, fn(&str) -> Option<String>);

const RULES: [Rule; 5] = [
    ("docker-metadata", |text| Some(docker_metadata(text))),
    ("gitlab-ref-slug", |text| Some(gitlab_ref_slug(text))),
    ("github-slug-action", |text| Some(github_slug_action(text))),
    ("argo-branch-slug", argo_branch_slug),
    ("verbatim", |text| Some(text.to_owned())),
];

/// The longest label of a DNS name, to which GitLab and `github-slug-action` shorten.
const DNS_LABEL: usize = 63;
/// The length to which Argo CD shortens (`applicationset/generators/pull_request.go`).
const ARGO_SLUG: usize = 50;

impl TagFrom {
    pub(crate) const KEYS: &[&str] = &["parameter", "rule", "prefix", "suffix"];

    pub(crate) fn from_config(block: &Block<'_>) -> Result<Self, Problem> {
        let parameter = text(block, "parameter")?.unwrap_or_default();
        if parameter.is_empty() {
            return Err(block.wrong("parameter", "", "the name of a parameter, such as branch"));
        }
        let names = RULES.map(|(name, _)| name);
        let name = block.one_of("rule", &names)?;
        let rule = RULES.iter().find(|(known, _)| Some(*known) == name);
        let rule = rule.ok_or_else(|| {
            let expected = format!("the rule of your build: {}", names.join(", "));
            block.wrong("rule", "", expected)
        })?;
        let text = |key| Ok(block.string(key)?.unwrap_or_default().to_owned());
        let made = Self {
            parameter: parameter.to_owned(),
            rule: *rule,
            prefix: text("prefix")?,
            suffix: text("suffix")?,
        };
        // Otherwise no branch at all has a legal tag.
        let affixes = [
            ("prefix", format!("{}a", made.prefix)),
            ("suffix", format!("a{}", made.suffix)),
        ];
        match affixes.iter().find(|(_, tag)| !is_tag(tag)) {
            None => Ok(made),
            Some((key, _)) => {
                let found = block.string(key)?.unwrap_or_default();
                let expected =
                    "letters, digits, '_', '.' and '-' with which a tag can begin or end";
                Err(block.wrong(key, found, expected))
            }
        }
    }

    /// Replaces the parameter in `parameters` with the tag.
    ///
    /// With `onInvalidTag: skip` a branch without a legal tag gets an illegal one, whose image counts as missing. So the author
    /// of a branch cannot make the whole ApplicationSet fail.
    ///
    /// # Errors
    /// Returns `Err` if the parameter is missing or not a branch, if it has no legal tag, or if the request also has a tag.
    pub(crate) fn apply(&self, parameters: &mut Map<String, Value>) -> Result<(), Failure> {
        let text = match parameters.remove(&self.parameter) {
            Some(Value::String(text)) => text,
            None | Some(Value::Null) => {
                return Err(self.invalid("", "set: the tag is made from it").into());
            }
            Some(other) => {
                let path = self.parameter.clone();
                return Err(Problem::wrong_type(path, "a string", &other).into());
            }
        };
        if parameters.contains_key(TAG) {
            return Err(Failure::Forbidden(format!(
                "parameter {TAG} is made from {}: remove it",
                self.parameter
            )));
        }
        if !is_branch(&text) {
            let expected =
                "a name that Git allows for a branch: correct the template that makes it";
            return Err(self.invalid(&text, expected).into());
        }
        let skips = parameters.get(ON_INVALID).and_then(Value::as_str) == Some("skip");
        let tag = match self.tag(&text) {
            // The dash makes it an illegal tag, even if the branch itself is a legal one.
            Err(_) if skips => format!("-{text}"),
            tag => tag?,
        };
        parameters.insert(TAG.to_owned(), Value::String(tag));
        Ok(())
    }

    fn tag(&self, text: &str) -> Result<String, Problem> {
        let (rule, slug) = self.rule;
        let slug = slug(text).ok_or_else(|| {
            let expected =
                "in Latin letters for rule argo-branch-slug: send branch_slug, with rule verbatim";
            self.invalid(text, expected)
        })?;
        let tag = format!("{}{slug}{}", self.prefix, self.suffix);
        if !is_tag(&tag) {
            let expected = format!(
                "a text that rule {rule} turns into a tag, not into \"{}\"",
                shown(&tag).escape_debug()
            );
            return Err(self.invalid(text, expected));
        }
        Ok(tag)
    }

    fn invalid(&self, found: &str, expected: impl Into<Cow<'static, str>>) -> Problem {
        Problem::value(&self.parameter, found, expected)
    }
}

/// As `docker/metadata-action`: each run of characters other than letters, digits, `.`, `_` and `-` becomes a dash.
fn docker_metadata(text: &str) -> String {
    dashed_runs(text, is_tag_character)
}

/// As GitLab's `CI_COMMIT_REF_SLUG`: lower case, each character except letters and digits becomes a dash, at most 63 characters.
fn gitlab_ref_slug(text: &str) -> String {
    let lower = text.to_lowercase();
    let slug = lower.chars().take(DNS_LABEL);
    let slug = slug.map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    slug.collect::<String>().trim_matches('-').to_owned()
}

/// As `rlespinasse/github-slug-action`: like `docker-metadata`, but in lower case, with at most 63 characters and no dash at either
/// end.
fn github_slug_action(text: &str) -> String {
    let slug = docker_metadata(&text.to_lowercase());
    let slug = slug.trim_start_matches('-').chars().take(DNS_LABEL);
    slug.collect::<String>().trim_end_matches('-').to_owned()
}

/// As `branch_slug` of Argo CD's pull request generator, which uses `gosimple/slug`: ASCII in lower case, dashes for everything else,
/// at most 50 characters and cut at a dash.
///
/// Returns `None` for a letter that is not Latin. Its transliteration may differ, and the image of a different tag would count
/// as not built yet.
fn argo_branch_slug(text: &str) -> Option<String> {
    let mut ascii = String::new();
    for c in text.trim().chars() {
        match c {
            '&' => ascii.push_str("and"),
            '@' => ascii.push_str("at"),
            '\'' | '"' | '\u{2019}' => {}
            // Dashes.
            '_' | '\u{2012}'..='\u{2015}' => ascii.push('-'),
            '\0'..='\x7f' => ascii.push(c.to_ascii_lowercase()),
            // Latin letters. The table of `gosimple/slug` lacks two newer ones.
            '\u{241}' | '\u{242}' => return None,
            '\u{80}'..='\u{24f}' => {
                ascii.push_str(&deunicode::deunicode_char(c)?.to_ascii_lowercase());
            }
            // The table of `gosimple/slug` ends before these characters, such as emoji, so it drops them.
            '\u{10000}'.. => {}
            _ => return None,
        }
    }
    let mut slug = dashed_runs(&ascii, |c| c.is_ascii_alphanumeric());
    slug = slug.trim_matches('-').to_owned();
    if slug.len() > ARGO_SLUG {
        let end = slug.get(..=ARGO_SLUG).and_then(|start| start.rfind('-'));
        slug.truncate(end.unwrap_or(ARGO_SLUG));
    }
    Some(slug)
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, sample};
    use serde_json::json;

    use super::*;

    /// Checks the tag that `tagFrom` with these settings makes of the parameter `branch`.
    #[track_caller]
    fn check(settings: &Value, branch: Value, expect: Result<&str, &str>) {
        let mut config = json!({"parameter": "branch", "rule": "docker-metadata"});
        let object = config.as_object_mut().unwrap();
        object.extend(settings.as_object().unwrap().clone());
        let block = Block::root(&config, "tagFrom", TagFrom::KEYS).unwrap();
        let mut parameters = Map::from_iter([("branch".to_owned(), branch)]);
        let made = TagFrom::from_config(&block)
            .map_err(Failure::from)
            .and_then(|tag_from| tag_from.apply(&mut parameters));
        match (made, expect) {
            (Ok(()), Ok(tag)) => assert_eq!(Value::Object(parameters), json!({"tag": tag})),
            (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
            (made, _) => panic!("{made:?} {parameters:?}"),
        }
    }

    /// Checks the tag of each rule: `docker-metadata`, `gitlab-ref-slug`, `github-slug-action`, `argo-branch-slug`.
    #[track_caller]
    fn rules(branch: &str, expect: [&str; 4]) {
        for ((rule, _), tag) in RULES.iter().zip(expect) {
            check(&json!({"rule": rule}), json!(branch), Ok(tag));
        }
    }

    #[test]
    fn each_rule_does_what_its_tool_does() {
        rules("feature-branch-1", ["feature-branch-1"; 4]);
        rules("feature/x", ["feature-x"; 4]);
        rules(
            "feature/ABC-12_new.login",
            [
                "feature-ABC-12_new.login",
                "feature-abc-12-new-login",
                "feature-abc-12_new.login",
                "feature-abc-12-new-login",
            ],
        );
        rules(
            "Fix/Ünïcode",
            ["Fix-n-code", "fix--n-code", "fix-n-code", "fix-unicode"],
        );
        rules("a/b@c&d", ["a-b-c-d", "a-b-c-d", "a-b-c-d", "a-batcandd"]);
        rules(
            "release/2026.10+rc1",
            [
                "release-2026.10-rc1",
                "release-2026-10-rc1",
                "release-2026.10-rc1",
                "release-2026-10-rc1",
            ],
        );
        rules(
            "dependabot/npm_and_yarn/types/node-22.1.0",
            [
                "dependabot-npm_and_yarn-types-node-22.1.0",
                "dependabot-npm-and-yarn-types-node-22-1-0",
                "dependabot-npm_and_yarn-types-node-22.1.0",
                "dependabot-npm-and-yarn-types-node-22-1-0",
            ],
        );
        // A dash of the branch does not join the run beside it.
        rules("a(/)-b", ["a--b", "a----b", "a--b", "a-b"]);
        rules("fix-{x}", ["fix--x-", "fix--x", "fix--x", "fix-x"]);
        rules(
            "don't-🚀-it",
            ["don-t---it", "don-t---it", "don-t---it", "dont-it"],
        );
    }

    #[test]
    fn long_branches_are_shortened_as_each_tool_does() {
        let x = |count| "x".repeat(count);
        rules(
            &format!("{}/yyyy", x(60)),
            [
                &format!("{}-yyyy", x(60)),
                &format!("{}-yy", x(60)),
                &format!("{}-yy", x(60)),
                &x(50),
            ],
        );
        rules(
            &format!("{}/{}/y", x(49), x(12)),
            [
                &format!("{}-{}-y", x(49), x(12)),
                &format!("{}-{}", x(49), x(12)),
                &format!("{}-{}", x(49), x(12)),
                &x(49),
            ],
        );
        // Argo CD also cuts at a dash right after the last character that fits.
        let argo = json!({"rule": "argo-branch-slug"});
        check(
            &argo,
            json!(format!("a-{}/y", x(48))),
            Ok(&format!("a-{}", x(48))),
        );
    }

    #[test]
    fn a_prefix_and_a_suffix_are_added_unchanged() {
        let settings = json!({"prefix": "pr_", "suffix": ".1"});
        check(&settings, json!("a/b"), Ok("pr_a-b.1"));
    }

    #[test]
    fn branches_without_a_legal_tag_are_refused() {
        let rule = |name| json!({"rule": name});
        check(
            &rule("verbatim"),
            json!("feature/x"),
            Err(
                r#"branch is "feature/x", it must be a text that rule verbatim turns into a tag, not into "feature/x""#,
            ),
        );
        check(
            &rule("gitlab-ref-slug"),
            json!("日本"),
            Err(r#"not into """#),
        );
        check(
            &rule("docker-metadata"),
            json!("日本"),
            Err(r#"not into "-""#),
        );
        check(
            &rule("docker-metadata"),
            json!("x".repeat(129)),
            Err("it must be a text"),
        );
        check(
            &json!({"prefix": "x/"}),
            json!("a"),
            Err(r#"prefix is "x/", it must be letters"#),
        );
        check(
            &json!({"suffix": ":a"}),
            json!("a"),
            Err(r#"suffix is ":a", it must be letters"#),
        );
        // The result must never differ from Argo CD's.
        for branch in ["日本", "Ɂ", "фикс"] {
            check(
                &rule("argo-branch-slug"),
                json!(branch),
                Err("send branch_slug"),
            );
        }
        check(
            &json!({}),
            json!(null),
            Err("branch is \"\", it must be set"),
        );
        check(
            &json!({}),
            json!(7),
            Err("branch must be a string, found a number"),
        );
    }

    /// A template that prints nothing or too much would otherwise empty the list for every pull request.
    #[test]
    fn what_no_branch_can_be_is_refused_even_if_illegal_tags_are_skipped() {
        for (name, _) in RULES {
            let mut parameters = Map::new();
            let config = json!({"parameter": "branch", "rule": name});
            let block = Block::root(&config, "tagFrom", TagFrom::KEYS).unwrap();
            let tag_from = TagFrom::from_config(&block).unwrap();
            for text in ["", " ", "/", "a/", "pr-7\n", "\tpr-7", "{{ .a }}-{{ .b }}"] {
                parameters.insert("branch".to_owned(), json!(text));
                parameters.insert(ON_INVALID.to_owned(), json!("skip"));
                let failure = tag_from.apply(&mut parameters).unwrap_err().to_string();
                assert!(failure.contains("a name that Git allows"), "{failure}");
            }
        }
    }

    #[test]
    fn invalid_settings_are_refused() {
        check(
            &json!({"rule": "gitlab"}),
            json!("a"),
            Err(r#"rule is "gitlab", it must be docker-metadata, gitlab-ref-slug"#),
        );
        check(
            &json!({"rule": null}),
            json!("a"),
            Err("the rule of your build"),
        );
        check(
            &json!({"parameter": null}),
            json!("a"),
            Err("the name of a parameter, such as branch"),
        );
    }

    proptest! {
        /// Every tag can be part of a URL of a registry.
        #[test]
        fn a_tag_is_legal_or_refused(
            branch in "(\\PC|[-/_.a-zA-Z]){0,200}",
            rule in sample::select(RULES.to_vec()),
        ) {
            let (parameter, affix) = ("branch".to_owned(), String::new());
            let tag_from = TagFrom { parameter, rule, prefix: affix.clone(), suffix: affix };
            if let Ok(tag) = tag_from.tag(&branch) {
                prop_assert!(is_tag(&tag), "{tag:?}");
            }
        }
    }
}
