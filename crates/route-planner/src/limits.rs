//! The size limits of the API server, checked before a canary gets more traffic.
//!
//! A rollout that cannot be completed must not start. So a plan that increases a canary's share is refused if the table
//! exceeds a limit with it, or would exceed one at a later step as far as that can be computed now. A plan that moves
//! traffic back to stable is never refused.

use std::io;

use serde_json::Value;

use crate::error::Refusal;
use crate::ownership::ANNOTATION;
use crate::plan::{Edit, Plan};
use crate::table_state::{Relation, TableState};

/// Most bytes of all annotations of an object, keys and values (k8s.io/apimachinery `TotalAnnotationSizeLimitB`).
const ANNOTATIONS: usize = 256 * 1024;
/// Most operations of a JSON Patch (k8s.io/apiserver `maxJSONPatchOperations`).
const OPERATIONS: usize = 10_000;
/// Most bytes of a request body (k8s.io/apiserver `MaxRequestBodyBytes`).
const REQUEST: usize = 3 * 1024 * 1024;
/// Bytes by which the record may grow after the first step: a split for full weight, and one for an experiment.
const MARGIN: usize = 4 * 1024;

/// Checks a plan that increases the canary's share.
///
/// # Errors
/// Returns `Err` if the table exceeds a limit.
pub(crate) fn check(state: &TableState<'_>, plan: &Plan) -> Result<(), Refusal> {
    let others = state.table.annotations().into_iter().flatten();
    let others: usize = others
        .filter(|(key, _)| *key != ANNOTATION)
        .map(|(key, value)| key.len() + value.len())
        .sum();
    let own = plan.edits.iter().find_map(|edit| match edit {
        Edit::Annotation { value, .. } => value.as_ref().map(String::len),
        _ => None,
    });
    let old = state.table.annotations();
    let old = old.and_then(|annotations| annotations.get(ANNOTATION));
    let record = own.or(old.map(String::len)).unwrap_or(0) + ANNOTATION.len();
    let split = || {
        let routes = state.routes.iter();
        routes.filter(|it| matches!(it.relation(), Some(Relation::Managed { .. })))
    };
    let count = split().count();
    refuse(
        "bytes of annotations",
        others + record + MARGIN,
        ANNOTATIONS,
        count,
    )?;

    // The largest patch tests and changes each split route, and inserts each managed route before each of them. For a split
    // route these are one test and at most a weight, a removal and an insertion.
    let managed = state
        .intent
        .managed
        .order
        .len()
        .max(state.intent.managed.in_force.len());
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

/// With fewer split routes the bytes of a request are not counted: to reach the limit, each `forwardTo` would need about 16
/// KiB.
const SMALL: usize = 64;
/// Bytes of an operation without its value:
/// `{"op":"replace","path":"/spec/http/1234/forwardTo/destinations/0/weight","value":}`.
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

/// Bytes of a value as JSON. A text for each route would be most of what a plan allocates.
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
    let written = serde_json::to_writer(&mut counter, value);
    written.map_or(usize::MAX / 4, |()| counter.0)
}
