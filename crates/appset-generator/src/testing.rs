//! Helpers for the tests of several sources.

use std::sync::Arc;

use gloo_types::{Document, Resource};
use serde_json::{Value, json};

use crate::{ByCluster, Config, Failure, Namespaces, Place, Query, Request};

/// Resolves a request with `parameters` to `profile`.
pub(crate) fn query(config: &str, profile: &str, parameters: &Value) -> Result<Query, Failure> {
    let config = Config::from_yaml(config).unwrap();
    let body = json!({"input": {"parameters": parameters}}).to_string();
    let request = Request::from_body(body.as_bytes())?;
    config.query(Some(profile), Some("t"), request, &Namespaces::default())
}

/// Returns the `objects` in `places`. Every cluster has the same objects.
pub(crate) fn found<K: Resource>(places: &[Place], objects: &[Arc<Document<K>>]) -> ByCluster<K> {
    let places = places.iter().map(|place| {
        let objects = objects.iter().filter(|it| place.has(&it.key().namespace));
        (place.cluster.clone(), objects.cloned().collect())
    });
    places.collect()
}

/// Checks that the answer is a failure, whose code and message contain `expect`.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, Failure>, expect: &str) {
    let failure = answer.unwrap_err();
    let text = format!("{} {failure}", failure.code().name);
    assert!(text.contains(expect), "{text}");
}
