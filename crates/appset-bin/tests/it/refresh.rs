//! Push refresh: ApplicationSets are annotated when their answer has changed.

use std::fs;

use crate::harness::{FakeServer, Generator, kubeconfig};

const BODY: &str = r#"{"applicationSetName":"shop","input":{"parameters":{"source":"hello"}}}"#;
const SET: &str = "PATCH /apis/argoproj.io/v1alpha1/namespaces/argocd/applicationsets/shop";

/// A generator with push refresh, and an API server that responds with `status`.
struct Fixture {
    generator: Generator,
    api: FakeServer,
    refresh: String,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn start(status: u16) -> Self {
        let api = FakeServer::start(move |_, _| {
            let body = match status {
                200 => {
                    r#"{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{}}"#
                        .to_owned()
                }
                code => format!(
                    r#"{{"kind":"Status","status":"Failure","message":"no","reason":"x","code":{code}}}"#
                ),
            };
            // The fake server does not read bodies, so the connection cannot be used again.
            Some((status, vec![("connection", "close".to_owned())], body))
        });
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = kubeconfig(dir.path(), &api.host);
        let refresh = format!(
            "refresh: {{namespaces: [argocd], interval: 1s, kubeconfig: '{}'}}\n",
            kubeconfig.display()
        );
        let generator = Generator::start(&config("val1", &refresh), &[("argocd", "t")]);
        Self {
            generator,
            api,
            refresh,
            _dir: dir,
        }
    }

    fn ask(&self) {
        let reply = self.generator.post("", Some("t"), BODY);
        assert_eq!(reply.status, 200, "{}", reply.body);
    }

    /// Changes the value in the source.
    fn change(&self, value: &str) {
        let file = self.generator.dir().join("config.yaml");
        fs::write(file, config(value, &self.refresh)).unwrap();
    }
}

fn config(value: &str, refresh: &str) -> String {
    format!("static: {{hello: {{sets: [{{key1: {value}}}]}}}}\n{refresh}")
}

#[test]
fn a_set_with_a_changed_answer_is_annotated_once() {
    let fixture = Fixture::start(200);
    fixture.ask();
    fixture
        .generator
        .wait_for("gloo_appset_remembered_requests 1");
    fixture.change("val2");
    let requested = |count: usize| {
        let line = format!("gloo_appset_refreshes_total{{outcome=\"requested\"}} {count}");
        fixture.generator.wait_for(&line);
    };
    requested(1);
    fixture.ask();
    fixture.change("val3");
    requested(2);
    // The fake server also records lines of the bodies.
    let requests = fixture.api.requests();
    let patches = requests.iter().filter(|line| line.starts_with(SET));
    assert_eq!(patches.count(), 2, "{requests:?}");
}

#[test]
fn the_outcome_of_an_annotation_is_counted() {
    for (status, outcome) in [(403, "failed"), (404, "unknown")] {
        let fixture = Fixture::start(status);
        fixture.ask();
        fixture.change("val2");
        let line = format!("gloo_appset_refreshes_total{{outcome=\"{outcome}\"}} 1");
        fixture.generator.wait_for(&line);
        let remembered = usize::from(status == 403);
        fixture
            .generator
            .wait_for(&format!("gloo_appset_remembered_requests {remembered}"));
    }
}

/// Requests are recorded only with push refresh, and only for a legal name, since the name is part of a URL.
#[test]
fn requests_are_recorded_only_if_their_set_can_be_annotated() {
    let plain = Generator::start(&config("val1", ""), &[("argocd", "t")]);
    assert_eq!(plain.post("", Some("t"), BODY).status, 200);
    plain.wait_for("gloo_appset_remembered_requests 0");

    let fixture = Fixture::start(200);
    for name in ["", "../../secrets/x", "a b"] {
        let body = BODY.replace("shop", name);
        assert_eq!(fixture.generator.post("", Some("t"), &body).status, 200);
    }
    fixture
        .generator
        .wait_for("gloo_appset_remembered_requests 0");
}
