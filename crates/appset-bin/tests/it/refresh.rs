//! ApplicationSets are annotated when an answer that they got would now be another.

use std::fs;

use crate::harness::{Generator, Registry, kubeconfig};

const BODY: &str = r#"{"applicationSetName":"shop","input":{"parameters":{"source":"hello"}}}"#;
const SET: &str = "PATCH /apis/argoproj.io/v1alpha1/namespaces/argocd/applicationsets/shop";

/// A generator whose ApplicationSets are in an API server that answers with `status`.
struct World {
    generator: Generator,
    api: Registry,
    refresh: String,
    _dir: tempfile::TempDir,
}

impl World {
    fn start(status: u16) -> Self {
        let api = Registry::start(move |_, _| {
            let body = match status {
                200 => {
                    r#"{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{}}"#
                        .to_owned()
                }
                code => format!(
                    r#"{{"kind":"Status","status":"Failure","message":"no","reason":"x","code":{code}}}"#
                ),
            };
            // The body of a request is not read, so nothing can follow it.
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

    /// The source has this value from now on.
    fn becomes(&self, value: &str) {
        let file = self.generator.dir().join("config.yaml");
        fs::write(file, config(value, &self.refresh)).unwrap();
    }
}

fn config(value: &str, refresh: &str) -> String {
    format!("static: {{hello: {{sets: [{{key1: {value}}}]}}}}\n{refresh}")
}

#[test]
fn a_set_whose_answer_has_changed_is_annotated_once() {
    let world = World::start(200);
    world.ask();
    world
        .generator
        .wait_for("gloo_appset_remembered_requests 1");
    world.becomes("val2");
    let requested = |count: usize| {
        let line = format!("gloo_appset_refreshes_total{{outcome=\"requested\"}} {count}");
        world.generator.wait_for(&line);
    };
    requested(1);
    world.ask();
    world.becomes("val3");
    requested(2);
    // The fake takes what follows a request for another one.
    let requests = world.api.requests();
    let patches = requests.iter().filter(|line| line.starts_with(SET));
    assert_eq!(patches.count(), 2, "{requests:?}");
}

#[test]
fn what_became_of_an_annotation_is_counted() {
    for (status, outcome) in [(403, "failed"), (404, "unknown")] {
        let world = World::start(status);
        world.ask();
        world.becomes("val2");
        let line = format!("gloo_appset_refreshes_total{{outcome=\"{outcome}\"}} 1");
        world.generator.wait_for(&line);
        let remembered = usize::from(status == 403);
        world
            .generator
            .wait_for(&format!("gloo_appset_remembered_requests {remembered}"));
    }
}

/// No API server is asked for what no configuration wants, nor for a name that would lead elsewhere in its paths.
#[test]
fn nothing_is_remembered_unless_it_can_be_annotated() {
    let plain = Generator::start(&config("val1", ""), &[("argocd", "t")]);
    assert_eq!(plain.post("", Some("t"), BODY).status, 200);
    plain.wait_for("gloo_appset_remembered_requests 0");

    let world = World::start(200);
    for name in ["", "../../secrets/x", "a b"] {
        let body = BODY.replace("shop", name);
        assert_eq!(world.generator.post("", Some("t"), &body).status, 200);
    }
    world
        .generator
        .wait_for("gloo_appset_remembered_requests 0");
}
