//! Requests to the source `image-digests` and their answers, without registries.

use proptest::prelude::*;
use proptest::sample;

use super::*;
use crate::{Config, Request, SourceQuery};

const CONFIG: &str = "
imageDigests:
  registry: ghcr.io
  registries:
    ghcr.io: {repositories: [myorg/*]}
    registry.local:5000: {plainHttp: true}
    docker.io: {repositories: [library/*]}
profiles:
  default: {}
  team-a: {images: [ghcr.io/myorg/a-*], fixed: {source: image-digests}}
  branches:
    tagFrom: {parameter: branch, rule: docker-metadata}
    fixed: {images: {front: myorg/front}}
  previews: {fixed: {onMissing: skip, onEmpty: allow}}
";

fn digest(c: char) -> Digest {
    Digest::parse(&format!("sha256:{}", String::from(c).repeat(64))).unwrap()
}

/// Returns the answer if the images in `found` exist.
fn answer(profile: &str, parameters: &str, found: &[(&str, char)]) -> Result<String, Failure> {
    let config = Config::from_yaml(CONFIG).unwrap();
    let body = format!(r#"{{"input":{{"parameters":{parameters}}}}}"#);
    let request = Request::from_body(body.as_bytes())?;
    let query = config.query(
        Some(profile),
        Some("t"),
        request,
        &crate::Namespaces::default(),
    )?;
    let SourceQuery::ImageDigests(images) = query.source else {
        panic!("another source");
    };
    let found = found
        .iter()
        .map(|(name, c)| ((*name).to_owned(), digest(*c).into()));
    let sets = images.sets(&found.collect())?;
    let body = String::from_utf8(query.output.answer(sets)?.to_body(0)?).unwrap();
    // Shortens the digests.
    Ok(body
        .replace(&"a".repeat(64), "A")
        .replace(&"b".repeat(64), "B"))
}

#[track_caller]
fn refused(profile: &str, parameters: &str, expect: &str) {
    let error = answer(profile, parameters, &[]).unwrap_err();
    assert!(error.to_string().contains(expect), "{error}");
}

const BOTH: &[(&str, char)] = &[("front", 'a'), ("back-end", 'b')];
const ONE: &[(&str, char)] = &[("front", 'a')];

fn images(more: &str) -> String {
    format!(r#"{{"tag":"v1","images":{{"front":"myorg/front","back-end":"myorg/back"}}{more}}}"#)
}

#[test]
fn columns_is_one_set() {
    insta::assert_snapshot!(answer("default", &images(""), BOTH).unwrap(), @r#"{"output":{"parameters":[{"digestBackEnd":"sha256:B","digestFront":"sha256:A","image":{"back-end":{"digest":"sha256:B","ref":"ghcr.io/myorg/back@sha256:B","repository":"ghcr.io/myorg/back","tag":"v1"},"front":{"digest":"sha256:A","ref":"ghcr.io/myorg/front@sha256:A","repository":"ghcr.io/myorg/front","tag":"v1"},"tag":"v1"}}]}}"#);
}

#[test]
fn rows_is_a_set_for_each_image() {
    let rows = images(r#","layout":"rows","outputKey":"built","onMissing":"omit""#);
    insta::assert_snapshot!(answer("default", &rows, ONE).unwrap(), @r#"{"output":{"parameters":[{"app":"front","built":{"digest":"sha256:A","ref":"ghcr.io/myorg/front@sha256:A","repository":"ghcr.io/myorg/front","tag":"v1"},"digest":"sha256:A"}]}}"#);
}

#[test]
fn digests_is_one_set_with_digests_only() {
    let digests = images(r#","layout":"digests""#);
    insta::assert_snapshot!(answer("default", &digests, BOTH).unwrap(), @r#"{"output":{"parameters":[{"digestBackEnd":"sha256:B","digestFront":"sha256:A"}]}}"#);
}

#[test]
fn missing_images_are_handled_as_requested() {
    let empty = r#"{"output":{"parameters":[]}}"#;
    // An error for a pull request without images would also stop the updates of all others.
    assert_eq!(answer("previews", &images(""), ONE).unwrap(), empty);
    for layout in ["columns", "digests", "rows"] {
        // A mistyped tag deletes no Application, and neither does a request that skips without allowing an empty list.
        for (more, found) in [
            ("", ONE),
            ("", &[]),
            (r#","onEmpty":"allow""#, ONE),
            (r#","onMissing":"skip""#, &[]),
            (r#","onMissing":"skip","minItems":1"#, &[]),
            (r#","onMissing":"skip","onEmpty":"error""#, &[]),
        ] {
            let asked = images(&format!(r#"{more},"layout":"{layout}""#));
            let failure = answer("default", &asked, found).unwrap_err();
            let named = "image ghcr.io/myorg/back:v1 not found: correct the image or its tag; for a preview that waits for its build, set onMissing: skip and onEmpty: allow";
            assert_eq!(failure.to_string(), named, "{asked}");
            assert_eq!(failure.code().name, "missing_image");
        }
    }
    let rows = images(r#","layout":"rows","onMissing":"skip""#);
    let rows = answer("default", &rows, ONE).unwrap();
    assert!(rows.contains("front") && !rows.contains("back"), "{rows}");
    let omit = answer("default", &images(r#","onMissing":"omit""#), ONE).unwrap();
    assert!(
        omit.contains("digestFront") && !omit.contains("back"),
        "{omit}"
    );
}

#[test]
fn registries_and_repositories_must_be_allowed() {
    let image = |image: &str| format!(r#"{{"tag":"v1","images":{{"a":{image}}}}}"#);
    refused(
        "default",
        &image(r#""other/a""#),
        "image ghcr.io/other/a is not allowed",
    );
    refused(
        "default",
        &image(r#"{"repository":"myorg/a","registry":"169.254.169.254"}"#),
        "registry 169.254.169.254 is not allowed",
    );
    refused(
        "team-a",
        &image(r#""myorg/b""#),
        "image ghcr.io/myorg/b is not allowed",
    );
    let local = image(r#"{"repository":"any","registry":"registry.local:5000"}"#);
    assert!(answer("default", &local, &[("a", 'a')]).is_ok());
    assert!(answer("team-a", &image(r#""myorg/a-1""#), &[("a", 'a')]).is_ok());
    // Docker Hub's short name of library/alpine.
    let short = image(r#"{"repository":"alpine","registry":"docker.io"}"#);
    assert!(answer("default", &short, &[("a", 'a')]).is_ok());
    refused(
        "default",
        &image(r#"{"repository":"myorg/a","registry":"docker.io"}"#),
        "image docker.io/myorg/a is not allowed",
    );
    for path in [
        "../x",
        "myorg/",
        "myorg//x",
        "myorg/a:v1",
        "myorg/a?n=1",
        "MyOrg/a",
    ] {
        refused(
            "default",
            &image(&format!("{path:?}")),
            "the path of a repository",
        );
    }
}

#[test]
fn invalid_tags_and_names_are_refused() {
    let tag = |tag: &str| format!(r#"{{"tag":"{tag}","images":{{"a":"myorg/a"}}}}"#);
    refused(
        "default",
        &tag("feature/x"),
        "use branch_slug or head_short_sha_7",
    );
    refused("default", &tag("-x"), "a tag: letters");
    refused("default", &tag("<no value>"), "unresolved template");
    refused("default", r#"{"images":{"a":"myorg/a"}}"#, "tag is");
    refused("default", r#"{"tag":"v1"}"#, "1 to 20 of them");
    refused(
        "default",
        r#"{"tag":"v1","images":{"tag":"myorg/a"}}"#,
        "other than tag",
    );
    refused(
        "default",
        r#"{"tag":"v1","images":{"a-b":"myorg/a","aB":"myorg/b"}}"#,
        "differs from the others",
    );
    refused(
        "default",
        r#"{"tag":"v1","images":{"a":{"repo":"myorg/a"}}}"#,
        "unknown key images.a.repo, did you mean repository?",
    );
    refused(
        "default",
        r#"{"tga":"v1"}"#,
        "unknown key tga, did you mean tag?",
    );
    refused(
        "default",
        r#"{"tag":"v1","platform":"linux"}"#,
        "such as linux/amd64",
    );
}

/// Terraform can send only strings.
#[test]
fn objects_may_be_texts_that_hold_them() {
    let expect = answer("default", &images(""), BOTH).unwrap();
    let text = r#"{"tag":"v1","images":"{\"front\":{\"repository\":\"myorg/front\",\"tag\":\"v1\"},\"back-end\":\"myorg/back\"}"}"#;
    assert_eq!(answer("default", text, BOTH).unwrap(), expect);
    let nested = r#"{"tag":"v1","images":"{\"front\":{\"tag\":{}}}"}"#;
    refused("default", nested, "images.front.tag must be a string");
    refused(
        "default",
        r#"{"tag":"v1","images":"{\"a\": \"myorg"}"#,
        "it must be JSON, which it begins as: EOF while parsing a string",
    );
    refused(
        "default",
        r#"{"tag":"v1","images":" [\"a\"]"}"#,
        "images must be an object, found a list",
    );
    refused(
        "default",
        r#"{"images":"{\"a\":\"{{b}}\"}"}"#,
        "images.a is \"{{b}}\", an unresolved template",
    );
    // The name of a branch stays a text.
    refused("branches", r#"{"branch":"{}"}"#, "not into \"-\"");
}

#[test]
fn a_profile_makes_the_tag_from_a_parameter() {
    insta::assert_snapshot!(answer("branches", r#"{"branch":"feature/{x}"}"#, ONE).unwrap(), @r#"{"output":{"parameters":[{"digestFront":"sha256:A","image":{"front":{"digest":"sha256:A","ref":"ghcr.io/myorg/front@sha256:A","repository":"ghcr.io/myorg/front","tag":"feature-x-"},"tag":"feature-x-"}}]}}"#);
    refused(
        "branches",
        r#"{"branch":"a","tag":"v1"}"#,
        "parameter tag is made from branch: remove it",
    );
    refused(
        "branches",
        r#"{"branch":"{{branch}}"}"#,
        "unresolved template",
    );
    refused("branches", "{}", "the tag is made from it");
    refused(
        "branches",
        r#"{"branch":"a","brnch":"b"}"#,
        "unknown key brnch",
    );
}

#[test]
fn an_illegal_tag_may_count_as_missing() {
    let tag =
        |tag: &str, more: &str| format!(r#"{{"tag":"{tag}","images":{{"a":"myorg/a"}}{more}}}"#);
    let skip = r#","onInvalidTag":"skip""#;
    // A template that printed nothing or too much: no branch can be the cause.
    for bad in ["", " ", "pr-7\\n", " a"] {
        refused("previews", &tag(bad, skip), "a text without blanks");
    }
    for bad in ["/", "a b", "a/", ".a"] {
        refused("previews", &tag(bad, skip), "a tag");
    }
    refused("previews", &tag("a-{{x}}", skip), "unresolved template");
    for bad in ["feature/x", "-a", "ä", &"x".repeat(129)] {
        refused("default", &tag(bad, ""), "a tag");
        let answered = answer("previews", &tag(bad, skip), &[]).unwrap();
        assert_eq!(answered, r#"{"output":{"parameters":[]}}"#);
        refused("default", &tag(bad, skip), "not found");
        let asked = asked(CONFIG, &tag(bad, skip));
        assert_eq!(asked.references().count(), 0);
    }
}

/// Returns the query of a request with `parameters`, which are JSON.
#[track_caller]
fn asked(config: &str, parameters: &str) -> ImageQuery {
    let config = Config::from_yaml(config).unwrap();
    let body = format!(r#"{{"input":{{"parameters":{parameters}}}}}"#);
    let request = Request::from_body(body.as_bytes()).unwrap();
    let known = crate::Namespaces::default();
    let query = config.query(None, Some("t"), request, &known).unwrap();
    match query.source {
        SourceQuery::ImageDigests(images) => images,
        other => panic!("{other:?}"),
    }
}

/// Returns the reference to an image of a registry with these settings.
#[track_caller]
fn settings(registry: &str, repository: &str) -> Reference {
    let config = format!("imageDigests: {{registries: {{{registry}}}}}");
    let parameters = format!(r#"{{"tag":"v1","images":{{"a":"{repository}"}}}}"#);
    let images = asked(&config, &parameters);
    let (_, reference) = images.references().next().unwrap();
    reference.clone()
}

#[test]
fn the_proof_depends_on_host_and_settings() {
    let proof = |registry, repository| settings(registry, repository).proof;
    assert_eq!(proof("quay.io: {}", "a"), Proof::Authorized);
    assert_eq!(proof("quay.io: {proof: tag-list}", "a"), Proof::TagList);
    assert_eq!(proof("harbor.io: {}", "a"), Proof::TagList);
    assert_eq!(
        proof("harbor.io: {proof: authorized}", "a"),
        Proof::Authorized
    );
    assert_eq!(proof("harbor.io: {proof: none}", "a"), Proof::None);
    assert_eq!(proof("quay.io: {pullThrough: true}", "a"), Proof::None);
    let some = "quay.io: {pullThrough: [hub/*]}";
    assert_eq!(proof(some, "hub/a"), Proof::None);
    assert_eq!(proof(some, "own/a"), Proof::Authorized);
}

#[test]
fn invalid_settings_are_refused() {
    let refused = |config: &str, expect: &str| {
        let config = format!("imageDigests: {{{config}}}");
        let error = Config::from_yaml(&config).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    };
    refused("registries: {a: {}}, staleFor: 25h", "24h at most");
    refused(
        "registries: {a: {}}, onFailure: omit",
        "unknown key imageDigests.onFailure",
    );
    refused(
        "registries: {a: {proof: maybe}}",
        "authorized, tag-list or none",
    );
    let config = Config::from_yaml(
        "imageDigests: {registries: {a: {}}, staleFor: 24h, dockerConfig: [a, b]}",
    );
    let config = config.unwrap();
    let source = config.image_digests().unwrap();
    assert_eq!(source.stale_for(), Some(Duration::from_secs(86_400)));
    assert_eq!(source.docker_config().len(), 2);
}

/// Names of branches that Git allows, and other strings.
fn branches() -> impl Strategy<Value = String> {
    prop_oneof![
        "\\PC{1,200}",
        "[-._/a-zA-Z0-9{}\"'#%&@$<>|;()!+,=]{1,250}",
        sample::select(vec![
            "日本", "фикс", "Ɂ", "-", "--", "{{", "}}", "fix-{x}", "a{{}}b", "null", "true", "7",
            "1.10",
        ])
        .prop_map(str::to_owned),
    ]
}

proptest! {
    /// The author of a branch cannot make the whole ApplicationSet fail. A name with a template is refused by intent, since it
    /// looks like one that Argo CD did not resolve.
    #[test]
    fn no_branch_name_makes_the_call_fail(
        branch in branches(),
        rule in sample::select(vec!["docker-metadata", "gitlab-ref-slug", "github-slug-action", "argo-branch-slug", "verbatim"]),
    ) {
        prop_assume!(is_branch(&branch) && !crate::branch::has_template(&branch));
        let config = format!("
imageDigests: {{registries: {{ghcr.io: {{}}}}}}
profiles:
  p:
    tagFrom: {{parameter: branch, rule: {rule}}}
    fixed: {{images: {{front: myorg/front, back: {{repository: myorg/back}}}}, onInvalidTag: skip, onMissing: skip, onEmpty: allow}}
");
        let config = Config::from_yaml(&config).unwrap();
        let body = serde_json::json!({"input": {"parameters": {"branch": branch}}}).to_string();
        let query = Request::from_body(body.as_bytes())
            .and_then(|request| config.query(Some("p"), Some("t"), request, &crate::Namespaces::default()));
        let query = query.map_err(|failure| TestCaseError::fail(failure.to_string()))?;
        let SourceQuery::ImageDigests(images) = query.source else {
            panic!("another source");
        };
        for (_, image) in images.references() {
            prop_assert!(is_tag(&image.tag), "{:?}", image.tag);
        }
        let answer = query.output.answer(images.sets(&BTreeMap::new()).unwrap()).unwrap();
        prop_assert_eq!(answer.count(), 0);
    }
}
