//! The protos of Gloo's vendor judge every version of a table and of a policy that the router writes, our definitions, and what
//! `validate` says about random tables. `go/gloo` is the judge.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test may panic, also in its helpers, and prints what it found"
)]

// The model of the router's tests plays histories here, too.
#[path = "../../crates/gloo-router/tests/model/api.rs"]
mod api;
#[path = "../../crates/gloo-router/tests/model/controller.rs"]
mod controller;
#[path = "../../crates/gloo-router/tests/model/documents.rs"]
mod documents;
#[path = "../../crates/gloo-router/tests/model/edit.rs"]
mod edit;
#[expect(dead_code, reason = "recorded histories are played elsewhere")]
#[path = "../../crates/gloo-router/tests/model/history.rs"]
mod history;
#[path = "../../crates/gloo-router/tests/model/oracle.rs"]
mod oracle;
#[path = "../../crates/gloo-router/tests/model/owner.rs"]
mod owner;
#[path = "../../crates/gloo-router/tests/model/play.rs"]
mod play;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;
use e2e_tests::gloo::{Judge, Judgement, random, reading};
use e2e_tests::{meaning, plugin_binary};
use gloo_types::crd;
use plugin_commands::CommandLine;
use plugin_scenarios::{Memory, scenarios};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestRunner};
use proptest_state_machine::ReferenceStateMachine as _;
use route_store::MemoryRouteStore;
use serde_json::{Value, json};

use crate::history::History;

const SCENARIOS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../crates/gloo-router/tests/scenarios"
);
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/manifests");
/// Random histories of the model, and actions in each.
const HISTORIES: usize = 12;
const ACTIONS: usize = 60;
/// Worlds of the proof by requests.
const WORLDS: u64 = 100;
/// Tables for `validate`.
const TABLES: u64 = 1500;

/// The versions of objects, each with the one before it if it was patched.
static VERSIONS: Mutex<BTreeSet<(Option<String>, String)>> = Mutex::new(BTreeSet::new());

fn note(before: Option<&Value>, after: &Value) {
    let text = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        object.to_string()
    };
    let is_judged = ["RouteTable", "MirrorPolicy"].map(Value::from);
    if is_judged.contains(&after["kind"]) {
        let version = (before.map(text), text(after));
        VERSIONS.lock().unwrap().insert(version);
    }
}

/// Plays everything that writes tables.
fn write_tables() -> Result<()> {
    MemoryRouteStore::observe(note);
    let said = |after: &str| println!("{} pairs after {after}", VERSIONS.lock().unwrap().len());
    let runtime = tokio::runtime::Runtime::new()?;
    for (name, text) in scenarios(Path::new(SCENARIOS))? {
        let played = runtime.block_on(plugin_scenarios::play(&text, &Memory::default()));
        played.context(name)?;
    }
    said("the scenarios");
    for seed in 0..WORLDS {
        runtime.block_on(meaning::play(&meaning::world(seed)))?;
    }
    drop(runtime);
    said("the worlds");
    for folder in fs::read_dir(EXAMPLES)? {
        // It simulates the Rollout.
        let folder = folder?.path();
        let command = ["plugin", "validate", "-f", &folder.to_string_lossy()];
        let validate = CommandLine::try_parse_from(command)?;
        let code = validate.run(|_| ExitCode::FAILURE);
        ensure!(code == ExitCode::SUCCESS, "{}", folder.display());
    }
    said("the examples");
    let mut runner = TestRunner::new(Config {
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(39),
        failure_persistence: None,
        ..Config::default()
    });
    let histories = History::sequential_strategy(ACTIONS);
    for _ in 0..HISTORIES {
        let tree = histories.new_tree(&mut runner);
        let (setup, actions, _) = tree.map_err(anyhow::Error::msg)?.current();
        let played = play::play(&History { setup, actions }, &|| {});
        played.map_err(anyhow::Error::msg)?;
    }
    said("the random histories");
    Ok(())
}

/// Judges an object, and compares what was read.
fn judged(judge: &mut Judge, object: &Value) -> Result<Judgement> {
    let judgement = judge.judge(object)?;
    if judgement.refused.is_empty() {
        let ours = reading::of(object).with_context(|| format!("only we refuse {object}"))?;
        let gloos = reading::of_gloo(&judgement);
        ensure!(
            ours == gloos,
            "read differently: {object}\nours {ours}\nGloo {gloos}"
        );
    }
    Ok(judgement)
}

#[test]
fn gloo_accepts_what_we_write_and_reads_it_as_we_do() -> Result<()> {
    write_tables()?;
    let versions = std::mem::take(&mut *VERSIONS.lock().unwrap());
    let mut judge = Judge::start()?;
    let mut known: BTreeMap<&str, Judgement> = BTreeMap::new();
    let mut writes = 0;
    for version in versions
        .iter()
        .flat_map(|(before, after)| before.iter().chain([after]))
    {
        if !known.contains_key(version.as_str()) {
            let object: Value = serde_json::from_str(version)?;
            known.insert(version, judged(&mut judge, &object)?);
        }
    }
    let owners = versions.iter().filter(|(before, _)| before.is_none());
    let owners = owners.filter(|(_, after)| !is_policy(after));
    let owners: BTreeSet<_> = owners
        .flat_map(|(_, it)| reasons(&known[it.as_str()]))
        .collect();
    for (before, after) in &versions {
        // What an owner wrote may be refused, and stays so, also in a copy.
        let old = match before {
            Some(before) => reasons(&known[before.as_str()]),
            None if is_policy(after) => owners.clone(),
            None => continue,
        };
        let mut refused = reasons(&known[after.as_str()]);
        refused.retain(|it| !old.contains(it));
        ensure!(refused.is_empty(), "{refused:?}\n{before:?}\n{after}");
        writes += 1;
    }
    let policies = known.keys().filter(|it| is_policy(it)).count();
    println!(
        "{} versions, {policies} of policies; {writes} of our writes",
        known.len()
    );
    println!("refused before our writes: {owners:?}");
    ensure!(writes > 500 && policies > 10, "too little was judged");
    Ok(())
}

fn is_policy(version: &str) -> bool {
    version.contains(r#""kind":"MirrorPolicy""#)
}

/// Why an object was refused, without the paths.
fn reasons(judgement: &Judgement) -> BTreeSet<&str> {
    let reasons = judgement.refused.iter();
    reasons
        .filter_map(|reason| reason.rsplit(": ").next())
        .collect()
}

/// A table, and one change that makes Gloo refuse it.
#[track_caller]
fn check_fault(judge: &mut Judge, path: &str, value: Option<Value>, expect: &str) {
    let destination = json!({"ref": {"name": "web"}, "port": {"number": 80}, "weight": 100});
    let route = json!({"name": "main", "forwardTo": {"destinations": [destination]}});
    let response = json!({"name": "no", "directResponse": {"status": 404}});
    let mut table = json!({
        "kind": "RouteTable",
        "metadata": {"name": "front", "namespace": "shop"},
        "spec": {"hosts": ["www.example.com"], "http": [route, response]},
    });
    let judgement = judged(judge, &table).unwrap();
    assert_eq!(judgement.refused, [""; 0]);
    let (above, key) = path.rsplit_once('/').unwrap();
    let above = table.pointer_mut(above).unwrap().as_object_mut().unwrap();
    match value {
        Some(value) => above.insert(key.to_owned(), value),
        None => above.remove(key),
    };
    let refused = judged(judge, &table).unwrap().refused;
    assert!(
        refused.iter().any(|it| it.contains(expect)),
        "{path}: {refused:?}"
    );
}

#[test]
fn the_judge_refuses_planted_faults() {
    let judge = &mut Judge::start().unwrap();
    let destination = "/spec/http/0/forwardTo/destinations/0";
    let mut check = |path: &str, value, expect: &str| check_fault(judge, path, value, expect);
    check(
        &format!("{destination}/wieght"),
        Some(json!(1)),
        "unknown field",
    );
    check(
        &format!("{destination}/weight"),
        Some(json!("a quarter")),
        "invalid character",
    );
    check(
        &format!("{destination}/weight"),
        Some(json!("75")),
        "must be integer, is string",
    );
    check(
        &format!("{destination}/weight"),
        Some(json!(-1)),
        "out of range",
    );
    check(
        &format!("{destination}/kind"),
        Some(json!("POD")),
        "unknown value POD",
    );
    check(
        &format!("{destination}/port/number"),
        Some(json!(0)),
        "out of range",
    );
    check(
        "/spec/http/1/directResponse/status",
        None,
        "status is required",
    );
    check("/spec/http", None, "At least one of http, tcp, or tls");
}

/// The types and the rules of a schema, by path. Texts for people do not count.
fn rules(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (key, value) in schema.as_object().into_iter().flatten() {
        match key.as_str() {
            "description" | "format" => {}
            "properties" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    rules(value, &format!("{path}.{key}"), found);
                }
            }
            "items" | "additionalProperties" => rules(value, &format!("{path}[]"), found),
            "x-kubernetes-validations" => {
                for rule in value.as_array().into_iter().flatten() {
                    found.insert(format!("{path}: {}", rule["rule"]));
                }
            }
            "limits" => rules(value, path, found),
            _ if value.is_number() => {
                found.insert(format!("{path}: {key} {:?}", value.as_f64()));
            }
            _ => {
                found.insert(format!("{path}: {key} {value}"));
            }
        }
    }
}

#[test]
fn our_definitions_have_the_fields_and_the_rules_of_the_protos() {
    let judge = Judge::start().unwrap();
    for definition in [crd::route_table(), crd::mirror_policy()] {
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        let ours = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        for (part, message) in [("spec", "Spec"), ("status", "Status")] {
            let (mut expected, mut found) = (BTreeSet::new(), BTreeSet::new());
            let message = format!("{kind}{message}");
            rules(&judge.definitions[message.as_str()], part, &mut expected);
            rules(&ours[part], part, &mut found);
            let missing: Vec<_> = expected.difference(&found).collect();
            let own: Vec<_> = found.difference(&expected).collect();
            assert!(
                missing.is_empty() && own.is_empty(),
                "{kind}: {missing:#?} {own:#?}"
            );
            let is_rule =
                |it: &&String| !it.contains(": type ") && !it.ends_with("minimum Some(0.0)");
            println!(
                "{kind} {part}: {} rules",
                expected.iter().filter(is_rule).count()
            );
        }
    }
}

/// What `validate` says about tables, by file.
fn validated(tables: &[Value]) -> Result<BTreeMap<String, Vec<String>>> {
    let directory = tempfile::tempdir()?;
    for table in tables {
        let name = table["metadata"]["name"].as_str().context("a name")?;
        let path = directory.path().join(format!("{name}.json"));
        fs::write(path, table.to_string())?;
    }
    let validate = Command::new(plugin_binary()?)
        .args(["validate", "-o", "json", "-f"])
        .arg(directory.path())
        .env("KUBECONFIG", "/dev/null")
        .output()?;
    let report: Value = serde_json::from_slice(&validate.stdout)
        .with_context(|| String::from_utf8_lossy(&validate.stderr).into_owned())?;
    let mut said = BTreeMap::<String, Vec<String>>::new();
    for problem in report["problems"].as_array().into_iter().flatten() {
        let message = problem["message"].as_str().unwrap_or_default();
        // A route that no request reaches is advice.
        if problem["severity"] == "error" || message.contains("Gloo ignores") {
            let file = Path::new(problem["file"].as_str().unwrap_or_default()).file_stem();
            let name = file.unwrap_or_default().to_string_lossy().into_owned();
            said.entry(name).or_default().push(message.to_owned());
        }
    }
    Ok(said)
}

/// What only `validate` refuses. Gloo refuses it too, but when it translates the table, of which the protos say little.
const ONLY_OURS: [&str; 11] = [
    "weights of a route must sum to 100",
    "destinations with weight 0 or none share the rest of 100",
    "a route needs exactly one action",
    "a destination needs exactly one of ref and awsLambda",
    "a forwardTo without destinations needs a defaultDestination",
    "a RouteTable needs at least one http, tcp or tls route",
    "a tcp route cannot send traffic to an ExternalService",
    "a tls matcher needs at least one entry of sniHosts",
    "is not the name of a header",
    "is used more than once",
    "set only one of exact, prefix, regex and suffix",
];

/// What only Gloo refuses: `validate` says nothing about a key that is no misspelt one, because a newer Gloo may have it.
const ONLY_GLOOS: [&str; 1] = ["futureField"];

#[test]
fn validate_refuses_what_gloo_refuses() -> Result<()> {
    let tables: Vec<Value> = (0..TABLES).map(random::table).collect();
    let said = validated(&tables)?;
    let mut judge = Judge::start()?;
    let mut unused: BTreeSet<&str> = ONLY_OURS.into_iter().chain(ONLY_GLOOS).collect();
    let mut unknown = Vec::new();
    let (mut both, mut neither) = (0, 0);
    for table in &tables {
        let name = table["metadata"]["name"].as_str().unwrap();
        let gloos = judge.judge(table)?.refused;
        let ours = said.get(name).cloned().unwrap_or_default();
        let (known, reasons) = match (ours.is_empty(), gloos.is_empty()) {
            (false, false) => {
                both += 1;
                continue;
            }
            (true, true) => {
                neither += 1;
                continue;
            }
            (false, true) => (&ONLY_OURS[..], ours),
            (true, false) => (&ONLY_GLOOS[..], gloos),
        };
        for reason in reasons {
            match known.iter().find(|text| reason.contains(**text)) {
                Some(text) => drop(unused.remove(text)),
                None => unknown.push(reason),
            }
        }
    }
    println!("{both} refused by both, {neither} by neither");
    unknown.sort();
    ensure!(unknown.is_empty(), "{unknown:#?}");
    ensure!(unused.is_empty(), "no longer different: {unused:?}");
    Ok(())
}
