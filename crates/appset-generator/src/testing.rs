//! What the tests of several sources need.

use std::sync::Arc;

use gloo_types::{Document, Resource};
use serde_json::{Value, json};

use crate::{ByCluster, Config, Failure, Namespaces, Place, Query, Request};

/// What a request with `parameters` asks `profile` for.
pub(crate) fn query(config: &str, profile: &str, parameters: &Value) -> Result<Query, Failure> {
    let config = Config::from_yaml(config).unwrap();
    let body = json!({"input": {"parameters": parameters}}).to_string();
    let request = Request::from_body(body.as_bytes())?;
    config.query(Some(profile), Some("t"), &request, &Namespaces::default())
}

/// Those of `objects` that are in `places`, the same objects in each cluster.
pub(crate) fn found<K: Resource>(places: &[Place], objects: &[Arc<Document<K>>]) -> ByCluster<K> {
    let places = places.iter().map(|place| {
        let objects = objects.iter().filter(|it| place.has(&it.key().namespace));
        (place.cluster.clone(), objects.cloned().collect())
    });
    places.collect()
}

/// Whether a refusal has the code and the words of `expect`.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, Failure>, expect: &str) {
    let failure = answer.unwrap_err();
    let text = format!("{} {failure}", failure.code().name);
    assert!(text.contains(expect), "{text}");
}
