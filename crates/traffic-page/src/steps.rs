//! The steps of the demo's Rollout.

use serde_json::{Value, json};

/// Returns the manifest of each step, and its short text in the page.
#[must_use]
pub fn steps() -> Vec<(Value, String)> {
    let tester = json!([{"headerName": "x-tester", "headerValue": {"exact": "yes"}}]);
    let cookie = json!({"regex": "(.*; *)?beta=1(;.*)?"});
    let beta = json!([{"headerName": "cookie", "headerValue": cookie}]);
    let step = |manifest: Value, words: &str| (manifest, words.to_owned());
    vec![
        step(
            json!({"setCanaryScale": {"replicas": 3}}),
            "setCanaryScale 3",
        ),
        step(
            json!({"setHeaderRoute": {"name": "testers", "match": tester}}),
            "setHeaderRoute testers",
        ),
        step(
            json!({"setHeaderRoute": {"name": "beta", "match": beta}}),
            "setHeaderRoute beta",
        ),
        step(
            json!({"setMirrorRoute": {
                "name": "copies", "percentage": 20, "match": [{"path": {"prefix": "/reviews"}}],
            }}),
            "setMirrorRoute 20 %",
        ),
        step(json!({"pause": {}}), "pause"),
        step(
            json!({"setMirrorRoute": {"name": "copies"}}),
            "setMirrorRoute off",
        ),
        step(json!({"setWeight": 10}), "setWeight 10"),
        step(json!({"pause": {"duration": 6}}), "pause 6 s"),
        step(json!({"setWeight": 25}), "setWeight 25"),
        step(json!({"pause": {}}), "pause"),
        step(json!({"setWeight": 50}), "setWeight 50"),
        step(json!({"pause": {"duration": 6}}), "pause 6 s"),
        step(json!({"setWeight": 100}), "setWeight 100"),
        step(json!({"pause": {"duration": 4}}), "pause 4 s"),
    ]
}
