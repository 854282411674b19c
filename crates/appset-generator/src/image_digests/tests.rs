//! From a request for images to its answer, registries aside.

use super::*;
use crate::{Config, Request};

const CONFIG: &str = "
imageDigests:
  registry: ghcr.io
  registries:
    ghcr.io: {repositories: [myorg/*]}
    registry.local:5000: {plainHttp: true}
profiles:
  default: {}
  team-a: {images: [ghcr.io/myorg/a-*], fixed: {source: image-digests}}
  branches:
    tagFrom: {parameter: branch, rule: docker-metadata}
    fixed: {images: {front: myorg/front}}
";

fn digest(c: char) -> Digest {
    Digest::parse(&format!("sha256:{}", String::from(c).repeat(64))).unwrap()
}

/// The answer when the images in `found` are there.
fn answer(profile: &str, parameters: &str, found: &[(&str, char)]) -> Result<String, Failure> {
    let config = Config::from_yaml(CONFIG).unwrap();
    let body = format!(r#"{{"input":{{"parameters":{parameters}}}}}"#);
    let request = Request::from_body(body.as_bytes())?;
    let query = config.query(Some(profile), "t", &request)?;
    let SourceQuery::ImageDigests(images) = query.source else {
        panic!("another source");
    };
    let found = found
        .iter()
        .map(|(name, c)| ((*name).to_owned(), digest(*c)));
    let sets = images.sets(&found.collect())?;
    let body = String::from_utf8(query.output.answer(sets)?.to_body()?).unwrap();
    // 64 digits are hard to read.
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
fn columns_are_one_set() {
    insta::assert_snapshot!(answer("default", &images(""), BOTH).unwrap(), @r#"{"output":{"parameters":[{"digestBackEnd":"sha256:B","digestFront":"sha256:A","image":{"back-end":{"digest":"sha256:B","ref":"ghcr.io/myorg/back@sha256:B","repository":"ghcr.io/myorg/back","tag":"v1"},"front":{"digest":"sha256:A","ref":"ghcr.io/myorg/front@sha256:A","repository":"ghcr.io/myorg/front","tag":"v1"},"tag":"v1"}}]}}"#);
}

#[test]
fn rows_are_a_set_for_each_image() {
    let rows = images(r#","layout":"rows","outputKey":"built""#);
    insta::assert_snapshot!(answer("default", &rows, ONE).unwrap(), @r#"{"output":{"parameters":[{"app":"front","built":{"digest":"sha256:A","ref":"ghcr.io/myorg/front@sha256:A","repository":"ghcr.io/myorg/front","tag":"v1"},"digest":"sha256:A"}]}}"#);
}

#[test]
fn digests_are_one_set_with_nothing_else() {
    let digests = images(r#","layout":"digests""#);
    insta::assert_snapshot!(answer("default", &digests, BOTH).unwrap(), @r#"{"output":{"parameters":[{"digestBackEnd":"sha256:B","digestFront":"sha256:A"}]}}"#);
}

/// A pull request whose images are still to be built is no reason to fail, which would hold up all the others.
#[test]
fn images_that_are_not_built_yet() {
    let empty = r#"{"output":{"parameters":[]}}"#;
    assert_eq!(answer("default", &images(""), ONE).unwrap(), empty);
    let omit = answer("default", &images(r#","onMissing":"omit""#), ONE).unwrap();
    assert!(
        omit.contains("digestFront") && !omit.contains("back"),
        "{omit}"
    );
    let code = |more| {
        answer("default", &images(more), ONE)
            .unwrap_err()
            .code()
            .name
    };
    assert_eq!(code(r#","onMissing":"error""#), "missing_image");
    assert_eq!(code(r#","onEmpty":"error""#), "guard_empty");
}

#[test]
fn what_may_be_looked_up() {
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
    assert!(answer("default", &local, &[]).is_ok());
    assert!(answer("team-a", &image(r#""myorg/a-1""#), &[]).is_ok());
    for path in [
        "../x",
        "myorg/",
        "myorg//x",
        "myorg/a:v1",
        "myorg/a?n=1",
        "MyOrg/a",
        "",
    ] {
        refused(
            "default",
            &image(&format!("{path:?}")),
            "the path of a repository",
        );
    }
}

#[test]
fn tags_and_names() {
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

#[test]
fn a_profile_makes_the_tag_from_a_parameter() {
    insta::assert_snapshot!(answer("branches", r#"{"branch":"feature/{{x}}"}"#, ONE).unwrap(), @r#"{"output":{"parameters":[{"digestFront":"sha256:A","image":{"front":{"digest":"sha256:A","ref":"ghcr.io/myorg/front@sha256:A","repository":"ghcr.io/myorg/front","tag":"feature-x-"},"tag":"feature-x-"}}]}}"#);
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
fn what_registries_say() {
    let bearer = |realm: &str, service: Option<&str>| {
        Some(Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
        })
    };
    let parse = Challenge::parse;
    assert_eq!(
        parse(
            r#"Bearer realm="https://auth.io/token",service="reg,istry",scope="repository:a:pull""#
        ),
        bearer("https://auth.io/token", Some("reg,istry"))
    );
    assert_eq!(parse(r#"bearer scope="x", realm="r""#), bearer("r", None));
    assert_eq!(parse(r#"Basic realm="x""#), Some(Challenge::Basic));
    assert_eq!(parse("Bearer"), None);
    assert_eq!(parse("Negotiate"), None);

    assert!(is_unknown(br#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#));
    for other in [
        &b"{}"[..],
        b"<html>",
        br#"{"errors":[{"code":"DENIED"}]}"#,
        b"",
    ] {
        assert!(!is_unknown(other));
    }
    assert_eq!(Digest::parse("sha256:abc"), None);
    assert_eq!(Digest::from_sha256(&[0xaa; 32]), Some(digest('a')));

    let platform = Platform::parse("linux/arm64", "platform").unwrap();
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"digest":"{}","platform":{{"os":"linux","architecture":"amd64"}}}},
            {{"digest":"{}","platform":{{"os":"linux","architecture":"arm64"}}}}]}}"#,
        digest('a').as_str(),
        digest('b').as_str()
    );
    assert_eq!(
        platform_digest(index.as_bytes(), Some(&platform)),
        Ok(Some(digest('b')))
    );
    assert_eq!(platform_digest(index.as_bytes(), None), Ok(None));
    let one_platform = br#"{"schemaVersion":2,"config":{}}"#;
    assert_eq!(platform_digest(one_platform, Some(&platform)), Ok(None));
    let refused = |body: &[u8], platform| platform_digest(body, platform).unwrap_err().to_string();
    assert_eq!(
        refused(br#"{"schemaVersion":2,"manifests":[]}"#, Some(&platform)),
        "has no image for linux/arm64"
    );
    for page in [&b""[..], b"<html>", b"{}", b"[2]"] {
        assert_eq!(refused(page, None), "sent what is no manifest");
    }
}
