//! What the tests of several sources need.

use serde_json::{Value, json};

use crate::{Config, Failure, Query, Request};

/// What a request with `parameters` asks `profile` for.
pub(crate) fn query(config: &str, profile: &str, parameters: &Value) -> Result<Query, Failure> {
    let config = Config::from_yaml(config).unwrap();
    let body = json!({"input": {"parameters": parameters}}).to_string();
    let request = Request::from_body(body.as_bytes())?;
    config.query(Some(profile), Some("t"), &request)
}

/// Whether a refusal has the code and the words of `expect`.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, Failure>, expect: &str) {
    let failure = answer.unwrap_err();
    let text = format!("{} {failure}", failure.code().name);
    assert!(text.contains(expect), "{text}");
}
