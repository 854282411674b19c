//! What Argo CD's own client sends, byte by byte: recorded and explained by `tests/go/argocd`.

use crate::generator::Generator;

#[track_caller]
fn check(recording: &[u8], status: u16, body: &str) {
    let hello = "
static:
  hello:
    inputs: [key1, key2, list, boolean, map]
    sets: [{key1: val1}, {key1: val2}]
";
    let generator = Generator::start(hello, &[("argocd", "a-token-of-the-tests\n")]);
    let reply = generator.replay(recording);
    assert_eq!(reply.status, status, "{}", reply.body);
    assert!(reply.body.contains(body), "{}", reply.body);
}

#[test]
fn the_request_of_a_set_without_parameters() {
    let recording = include_bytes!("../data/argo-cd-3.5.7/no-parameters.http");
    check(recording, 200, r#"[{"key1":"val1"},{"key1":"val2"}]"#);
}

#[test]
fn the_request_of_a_set_that_names_its_source() {
    let recording = include_bytes!("../data/argo-cd-3.5.7/static.http");
    check(recording, 200, r#"[{"key1":"val1"},{"key1":"val2"}]"#);
}

#[test]
fn a_request_with_every_kind_of_input() {
    let recording = include_bytes!("../data/argo-cd-3.5.7/every-kind.http");
    check(
        recording,
        200,
        r#"{"input":{"boolean":true,"key1":"grün <b>&amp;</b>  ☸","key2":"8080","list":["a","b"],"map":{"nested":{"deep":"value"},"number":"1000000"}},"key1":"val1"}"#,
    );
}

#[test]
fn a_request_for_a_source_that_is_not_configured() {
    let recording = include_bytes!("../data/argo-cd-3.5.7/image-digests.http");
    check(recording, 400, "unknown source image-digests");
}
