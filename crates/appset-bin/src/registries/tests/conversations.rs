//! `tests/data/registries`: one file for each kind of registry, with its documented responses. The lookup must send exactly the
//! requests in the file.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use appset_generator::ACCEPT;
use ring::digest::{SHA256, digest};
use serde::Deserialize;
use serde_json::Value;

use super::{Reply, TestClient};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// `imageDigests` of the configuration without credentials.
    config: Value,
    /// A Docker configuration.
    #[serde(default)]
    docker: Option<Value>,
    /// The parameters of the request, for one image called `app`.
    request: Value,
    /// The exchanges with which every conversation begins.
    #[serde(default)]
    login: Vec<Exchange>,
    /// Bodies by name. The name in angle brackets stands for the digest of the body.
    #[serde(default)]
    bodies: Vec<(String, String)>,
    cases: BTreeMap<String, Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// Replacements for `config` and `docker`, and additional keys of `request`.
    #[serde(default)]
    config: Option<Value>,
    #[serde(default)]
    docker: Option<Value>,
    #[serde(default)]
    request: BTreeMap<String, Value>,
    /// Whether the conversation begins with the file's `login`.
    #[serde(default = "yes")]
    login: bool,
    talk: Vec<Exchange>,
    /// A digest, `missing`, or a part of the message of the failure.
    answer: String,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exchange {
    ask: String,
    /// The Authorization header.
    #[serde(default)]
    with: String,
    /// The body of a POST.
    #[serde(default)]
    form: String,
    status: u16,
    #[serde(default)]
    headers: Vec<(String, String)>,
    /// The name of a body, or its text.
    #[serde(default)]
    body: String,
}

fn hash(body: &str) -> String {
    let hash = digest(&SHA256, body.as_bytes());
    let hex: String = hash
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

/// Replaces names of bodies in angle brackets with their digests, and `<1>` with the digest of 64 times `1`.
fn with_digests(text: &str, bodies: &[(String, String)]) -> String {
    let mut text = text.to_owned();
    for (name, body) in bodies {
        text = text.replace(&format!("<{name}>"), &hash(body));
    }
    for digit in '0'..='9' {
        let digest = format!("sha256:{}", String::from(digit).repeat(64));
        text = text.replace(&format!("<{digit}>"), &digest);
    }
    text
}

async fn run(file: &File, case: &Case, bodies: &[(String, String)]) -> Result<(), String> {
    let login = if case.login {
        file.login.as_slice()
    } else {
        &[]
    };
    let script: VecDeque<_> = login.iter().chain(&case.talk).cloned().collect();
    let script = Arc::new(Mutex::new(script));
    let problem = Arc::new(Mutex::new(None::<String>));
    let (left, found) = (Arc::clone(&script), Arc::clone(&problem));
    let named = bodies.to_vec();
    let client = TestClient::new(move |received| {
        let Some(expected) = left.lock().unwrap().pop_front() else {
            found
                .lock()
                .unwrap()
                .get_or_insert(format!("{} was not expected", received.asked));
            return None;
        };
        let ask = with_digests(&expected.ask, &named);
        let same = received.asked == ask
            && received.with == expected.with
            && received.form == expected.form;
        if !same || received.accept != ACCEPT {
            let (with, form) = (&expected.with, &expected.form);
            let text = format!("{received:?} instead of {ask} with {with:?} and {form:?}");
            found.lock().unwrap().get_or_insert(text);
            return None;
        }
        let body = named.iter().find(|(name, _)| *name == expected.body);
        let body = body.map_or(with_digests(&expected.body, &named), |(_, body)| {
            body.clone()
        });
        let reply = Reply::new(expected.status, &body);
        let headers = expected.headers.iter();
        Some(headers.fold(reply, |reply, (name, value)| {
            reply.header(name, &with_digests(value, &named))
        }))
    });

    let dir = tempfile::tempdir().unwrap();
    let mut config = case.config.clone().unwrap_or_else(|| file.config.clone());
    if let Some(docker) = case.docker.as_ref().or(file.docker.as_ref()) {
        let path = dir.path().join("config.json");
        std::fs::write(&path, docker.to_string()).unwrap();
        config["dockerConfig"] = path.display().to_string().into();
    }
    let mut request = file.request.clone();
    request
        .as_object_mut()
        .unwrap()
        .extend(case.request.clone());
    let answer = client.look_up(&config, &request, 25).await;
    if let Some(problem) = problem.lock().unwrap().take() {
        return Err(problem);
    }
    let shown = match &answer {
        Ok(found) => found
            .get("app")
            .map_or("missing", |found| found.digest.as_str())
            .to_owned(),
        Err(failure) => failure.to_string(),
    };
    let expected = with_digests(&case.answer, bodies);
    let is_expected = if answer.is_ok() {
        shown == expected
    } else {
        shown.contains(&expected)
    };
    if !is_expected {
        return Err(format!("{shown}, not {expected}"));
    }
    match script.lock().unwrap().pop_front() {
        Some(left) => Err(format!("{} was not asked", left.ask)),
        None => Ok(()),
    }
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_registry_talks_as_documented() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/registries");
    let mut kinds = Vec::new();
    let mut problems = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.file_stem().unwrap().to_string_lossy().into_owned();
        let file: File = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
        let mut bodies: Vec<(String, String)> = Vec::new();
        for (name, body) in &file.bodies {
            let body = with_digests(body.trim_end(), &bodies);
            bodies.push((name.clone(), body));
        }
        assert!(!file.cases.is_empty(), "{kind}");
        for (name, case) in &file.cases {
            if let Err(problem) = run(&file, case, &bodies).await {
                problems.push(format!("{kind}, {name}: {problem}"));
            }
        }
        kinds.push(kind);
    }
    kinds.sort();
    let expected = [
        "acr",
        "artifactory",
        "distribution",
        "docker-hub",
        "ecr",
        "ecr-public",
        "gar",
        "ghcr",
        "gitlab",
        "harbor",
        "nexus",
        "platforms",
        "quay",
        "zot",
    ];
    assert_eq!(kinds, expected);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
