//! `docs/appset.md` and `docs/appset-sources.md`: their examples work, and what they list is there.

use std::collections::BTreeSet;
use std::process::Command;

use crate::generator::Generator;
use crate::registry::Registry;

const PAGE: &str = include_str!("../../../../docs/appset.md");
const SOURCES: &str = include_str!("../../../../docs/appset-sources.md");
const FAILURES: &str = include_str!("../../../appset-generator/src/failure.rs");

/// The first block of a language that has `part` in it.
fn block(language: &str, part: &str) -> &'static str {
    let fence = format!("```{language}\n");
    let pages = [PAGE, SOURCES].into_iter();
    let mut blocks = pages.flat_map(|page| page.split(&fence).skip(1));
    let ends = |rest: &'static str| rest.split_once("```").map(|(block, _)| block);
    blocks
        .find_map(|rest| ends(rest).filter(|block| block.contains(part)))
        .unwrap()
}

#[test]
fn the_hello_example_answers_what_the_page_shows() {
    let generator = Generator::start(block("yaml", "hello:"), &[("argocd", "strong-password")]);
    let (_, data) = block("sh", "--data").split_once("--data '").unwrap();
    let (data, _) = data.split_once('\'').unwrap();
    let reply = generator.post("", Some("strong-password"), data);
    assert_eq!(reply.body, block("json", "output").trim_end());
}

#[test]
fn the_profiles_of_the_page_admit_their_own_token() {
    let tokens = [("team-a", "a"), ("team-b", "b")];
    let generator = Generator::start(block("yaml", "profiles:"), &tokens);
    let status = |token| {
        let body = r#"{"input":{}}"#;
        generator.post("/profiles/team-a", Some(token), body).status
    };
    assert_eq!((status("a"), status("b")), (200, 403));
}

#[test]
fn the_page_lists_every_code() {
    let listed = PAGE.lines().filter_map(|line| {
        let (status, rest) = line.strip_prefix("| ")?.split_once(" | `")?;
        let (code, _) = rest.split_once("` | ")?;
        Some((status.parse::<u16>().ok()?, code))
    });
    let known = FAILURES.lines().filter_map(|line| {
        let (_, pair) = line.split_once("=> (")?;
        let (status, rest) = pair.split_once(", \"")?;
        Some((status.parse::<u16>().ok()?, rest.split_once('"')?.0))
    });
    let known: BTreeSet<_> = known.collect();
    assert!(!known.is_empty());
    assert_eq!(listed.collect::<BTreeSet<_>>(), known);
}

#[test]
fn the_page_shows_the_help() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gloo-appset-generator"));
    let output = command
        .arg("--help")
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert_eq!(help, block("text", "Usage:"));
}

#[test]
fn the_page_configures_image_digests() {
    let generator = Generator::start(block("yaml", "imageDigests:"), &[("argocd", "a")]);
    let post = |images: &str| {
        let body = format!(
            r#"{{"input":{{"parameters":{{"source":"image-digests","tag":"v1","images":{images}}}}}}}"#
        );
        generator.post("", Some("a"), &body).status
    };
    assert_eq!(post(r#"{"front":"other/front"}"#), 403);
    assert_eq!(post(r#"{"front":7}"#), 400);
}

#[test]
fn the_page_shows_the_tag_that_each_rule_makes() {
    let (_, table) = SOURCES.split_once("| rule | is that of |").unwrap();
    let cells = |row: &'static str| row.split('|').map(str::trim).collect::<Vec<_>>();
    let code = |cell: &'static str| cell.trim_matches('`');
    let mut rows = table.lines().map(cells);
    let mut branches = rows.next().unwrap();
    branches.pop();
    let rules: Vec<_> = rows.skip(1).take_while(|row| row.len() > 1).collect();
    assert!(!rules.is_empty());
    for rule in rules {
        let registry = Registry::start(|_, _| Some((500, Vec::new(), String::new())));
        let host = format!("'{}': {{plainHttp: true, ", registry.host);
        let config = block("yaml", "tagFrom:").replace("ghcr.io: {", &host);
        // Of two images, the second may be asked for when the call has failed already.
        let config = config.replace(", back: myorg/back", "");
        let config = config.replace("docker-metadata", code(rule[1]));
        let generator = Generator::start(&config, &[("argocd", "a")]);
        for (branch, tag) in branches.iter().zip(&rule[3..]) {
            let seen = registry.requests().len();
            let body = format!(
                r#"{{"input":{{"parameters":{{"branch":"{}"}}}}}}"#,
                code(branch)
            );
            generator.post("", Some("a"), &body);
            let requests = registry.requests();
            let asked = requests.get(seen).and_then(|path| path.rsplit('/').next());
            let shown = Some(code(tag)).filter(|tag| *tag != "refused");
            assert_eq!(asked, shown, "{branch} with {rule:?}");
        }
    }
}

#[test]
fn the_page_lists_parameters_that_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let flag = format!("--objects-dir={}", dir.path().display());
    let parts = [
        "imageDigests:",
        "glooRoutes:",
        "rollouts:",
        "glooWorkspaces:",
    ];
    let config = parts.map(|part| block("yaml", part)).concat();
    let generator = Generator::start_with(&config, &[("argocd", "a")], &[&flag]);
    let mut listed = BTreeSet::new();
    for section in SOURCES.split("\nThe source `").skip(1) {
        let (source, rest) = section.split_once('`').unwrap();
        let (_, table) = rest
            .split_once("| parameter | value | default |\n")
            .unwrap();
        for row in table.lines().skip(1).take_while(|row| row.starts_with('|')) {
            let parameter = row.split('`').nth(1).unwrap();
            // No parameter is a list of numbers.
            let body = format!(
                r#"{{"input":{{"parameters":{{"source":"{source}","{parameter}":[7]}}}}}}"#
            );
            let reply = generator.post("", Some("a"), &body);
            assert_eq!(reply.status, 400, "{row}: {}", reply.body);
            assert!(!reply.body.contains("unknown key"), "{row}: {}", reply.body);
            listed.insert((source, parameter));
        }
    }
    assert!(
        listed.contains(&("gloo-workspaces", "expandNamespaces")),
        "{listed:?}"
    );
}
