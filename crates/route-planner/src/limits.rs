//! The limits of the API server, checked before the first request is moved.
//!
//! A rollout that cannot be finished must not start: a plan that makes a canary grow is refused if the table would exceed a
//! limit at this step or, as far as that can be foreseen, at a later one. A plan that moves traffic back to stable is never
//! refused here.

use std::io;

use serde::Serialize;
use serde_json::Value;

use crate::error::Refusal;
use crate::ownership::ANNOTATION;
use crate::plan::{Edit, Plan};
use crate::table_state::{Finding, Leads, Survey};

/// All annotations of an object, keys and values (k8s.io/apimachinery `TotalAnnotationSizeLimitB`).
const ANNOTATIONS: usize = 256 * 1024;
/// Operations of a JSON Patch (k8s.io/apiserver `maxJSONPatchOperations`).
const OPERATIONS: usize = 10_000;
/// Bytes of a request body (k8s.io/apiserver `MaxRequestBodyBytes`).
const REQUEST: usize = 3 * 1024 * 1024;
/// Bytes that the record of a later step may need beyond that of the first: a split for full weight, and one for an experiment.
const MARGIN: usize = 4 * 1024;

/// Checks a plan that makes the canary grow.
pub(crate) fn check(survey: &Survey<'_>, plan: &Plan) -> Result<(), Refusal> {
    let others = survey.table.annotations().into_iter().flatten();
    let others: usize = others
        .filter(|(key, _)| *key != ANNOTATION)
        .map(|(key, value)| key.len() + value.len())
        .sum();
    let own = plan.edits.iter().find_map(|edit| match edit {
        Edit::Annotation { value, .. } => value.as_ref().map(String::len),
        _ => None,
    });
    let old = survey.table.annotations();
    let old = old.and_then(|annotations| annotations.get(ANNOTATION));
    let record = own.or(old.map(String::len)).unwrap_or(0) + ANNOTATION.len();
    let split = || {
        let routes = survey.routes.iter();
        routes.filter(|it| {
            matches!(
                &it.finding,
                Finding::Forward {
                    leads: Leads::Here { .. },
                    ..
                }
            )
        })
    };
    let count = split().count();
    refuse(
        "bytes of annotations",
        others + record + MARGIN,
        ANNOTATIONS,
        count,
    )?;

    // The largest patch tests and changes each split route, and brings back each managed route in front of each. Per split
    // route that is one test and at most a weight, a removal and insertions.
    let managed = survey
        .intent
        .managed
        .order
        .len()
        .max(survey.intent.managed.in_force.len());
    let changes = 4;
    let http = || split().filter(|it| it.route.protocol.is_http());
    let operations = 4 + count * changes + http().count() * managed;
    refuse("operations of one patch", operations, OPERATIONS, count)?;

    if count < SMALL {
        return Ok(());
    }
    let forwards: usize = split()
        .filter_map(|it| it.route.forward())
        .map(length)
        .sum();
    let copies: usize = match managed {
        0 => 0,
        _ => http().map(|it| length(it.route.raw)).sum(),
    };
    let request = 3 * forwards
        + managed * (copies + count * PER_OPERATION)
        + 2 * record
        + operations * PER_OPERATION;
    refuse("bytes of one request", request, REQUEST, count)
}

/// With fewer split routes the bytes are not counted: each `forwardTo` would need about 16 KiB to reach the limit.
const SMALL: usize = 64;
/// Bytes of an operation beside its value: `{"op":"replace","path":"/spec/http/1234/forwardTo/destinations/0/weight","value":}`.
const PER_OPERATION: usize = 96;

fn refuse(what: &'static str, needed: usize, limit: usize, routes: usize) -> Result<(), Refusal> {
    if needed <= limit {
        return Ok(());
    }
    Err(Refusal::TooLarge {
        routes,
        what,
        needed,
        limit,
    })
}

/// Bytes of a value as JSON.
fn length(value: &Value) -> usize {
    struct Counter(usize);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    let written = value.serialize(&mut serde_json::Serializer::new(&mut counter));
    written.map_or(usize::MAX / 4, |()| counter.0)
}
