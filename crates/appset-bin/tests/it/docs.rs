//! The pages `docs/appset*.md`: their examples work, and their tables are complete.

use std::collections::BTreeSet;
use std::process::Command;

use crate::harness::{FakeServer, Generator};

const PAGE: &str = include_str!("../../../../docs/appset.md");
const SOURCES: &str = include_str!("../../../../docs/appset-sources.md");
const REGISTRIES: &str = include_str!("../../../../docs/appset-registries.md");
const PREVIEWS: &str = include_str!("../../../../docs/appset-previews.md");
const INSTALL: &str = include_str!("../../../../docs/appset-install.md");
const METRICS: &str = include_str!("../../src/metrics.rs");
const FAILURES: &str = include_str!("../../../appset-generator/src/failure.rs");

/// Returns the first block of a language that contains `part`.
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
fn the_hello_example_has_the_answer_of_the_page() {
    let generator = Generator::start(block("yaml", "hello:"), &[("argocd", "strong-password")]);
    let (_, data) = block("sh", "--data").split_once("--data '").unwrap();
    let (data, _) = data.split_once('\'').unwrap();
    let reply = generator.post("", Some("strong-password"), data);
    assert_eq!(reply.body, block("json", "output").trim_end());
}

#[test]
fn the_profiles_of_the_page_accept_only_their_own_token() {
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

/// `tests/go/prometheus` checks alerts and dashboard against this table.
#[test]
fn the_page_lists_every_metric() {
    let registered = METRICS.split("register.").skip(1);
    let known = registered.filter_map(|rest| rest.split('"').nth(1));
    let known: BTreeSet<_> = known.collect();
    assert!(known.contains("calls"), "{known:?}");
    let listed = PAGE.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("| `gloo_appset_")?.split_once("` | ")?;
        // OpenMetrics appends it to counters.
        let name = match rest.split_once(" | ")?.0 {
            "counter" => name.strip_suffix("_total")?,
            _ => name,
        };
        Some(name)
    });
    assert_eq!(listed.collect::<BTreeSet<_>>(), known);
}

/// Each kind of registry with a recorded conversation has a section.
#[test]
fn the_page_has_a_section_for_each_kind_of_registry() {
    let kinds = [
        "Docker Hub",
        "GHCR",
        "GitLab",
        "Quay",
        "Harbor",
        "ECR",
        "Artifact Registry",
        "ACR",
        "Nexus",
        "Artifactory",
        "zot",
        "CNCF distribution",
    ];
    let (_, sections) = REGISTRIES.split_once("## Each kind of registry\n").unwrap();
    let (sections, _) = sections.split_once("\n## ").unwrap();
    let headings = sections
        .lines()
        .filter_map(|line| line.strip_prefix("### "));
    assert_eq!(headings.collect::<Vec<_>>(), kinds);
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/registries");
    let recorded = std::fs::read_dir(directory).unwrap().count();
    assert!(recorded >= kinds.len(), "{recorded} conversations");
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
fn the_image_digests_example_restricts_repositories() {
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
    let (_, table) = SOURCES.split_once("| rule | tool |").unwrap();
    let cells = |row: &'static str| row.split('|').map(str::trim).collect::<Vec<_>>();
    let code = |cell: &'static str| cell.trim_matches('`');
    let mut rows = table.lines().map(cells);
    let mut branches = rows.next().unwrap();
    branches.pop();
    let rules: Vec<_> = rows.skip(1).take_while(|row| row.len() > 1).collect();
    assert!(!rules.is_empty());
    for rule in rules {
        let registry = FakeServer::start(|_, _| Some((500, Vec::new(), String::new())));
        let host = format!("'{}': {{plainHttp: true, ", registry.host);
        let config = block("yaml", "back: myorg/back").replace("ghcr.io: {", &host);
        // With two images, the second may be requested after the call has already failed.
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

/// Returns the configurations of the generator among the YAML blocks of a page.
fn configurations(page: &'static str) -> Vec<&'static str> {
    let blocks = page.split("```yaml\n").skip(1);
    let blocks = blocks.filter_map(|rest| rest.split_once("```").map(|(block, _)| block));
    let keys = [
        "imageDigests:",
        "glooRoutes:",
        "rollouts:",
        "glooWorkspaces:",
        "static:",
    ];
    blocks
        .filter(|block| keys.iter().any(|key| block.starts_with(key)))
        .collect()
}

#[test]
fn every_configuration_of_the_pages_is_valid() {
    let pages = [PAGE, SOURCES, REGISTRIES, PREVIEWS, INSTALL];
    let all: Vec<_> = pages.into_iter().flat_map(configurations).collect();
    assert!(all.len() >= 8, "{}", all.len());
    for configuration in all {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        std::fs::write(&file, configuration).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gloo-appset-generator"));
        let output = command
            .arg("validate")
            .arg("--config")
            .arg(&file)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{error}: {configuration}");
    }
}

/// The pages have the facts that decide whether a preview is deleted, and name no unknown option.
#[test]
fn the_pages_have_the_facts_about_deletion() {
    for (page, text) in [
        (
            PREVIEWS,
            "`requestTimeout` must be longer than the generator's `--deadline`, which is 25 s",
        ),
        (PREVIEWS, "argocd.argoproj.io/application-set-refresh=true"),
        (PREVIEWS, "DOCKER_METADATA_PR_HEAD_SHA"),
        (REGISTRIES, "ECRAuthorizationToken"),
        (REGISTRIES, "pullThrough: true"),
    ] {
        assert!(page.contains(text), "{text}");
    }
    let config = |keys: &str| {
        format!(
            "imageDigests: {{registries: {{r.io: {{{keys}}}}}, staleFor: 6h, dockerConfig: [a, b]}}"
        )
    };
    let all = config(
        "plainHttp: true, repositories: [a], proof: none, pullThrough: [a], platformOfSingle: trust, verify: child",
    );
    let generator = Generator::start(&all, &[("argocd", "a")]);
    let rows = PAGE
        .lines()
        .filter_map(|row| row.strip_prefix("| `imageDigests."));
    for row in rows {
        let key = row.split_once('`').unwrap().0.rsplit('.').next().unwrap();
        assert!(
            all.contains(&format!("{key}:")) || key == "registry",
            "{row}"
        );
    }
    drop(generator);
}
