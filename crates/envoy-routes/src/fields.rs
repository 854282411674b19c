//! The fields that this model supports. All others are reported, so that no field is ignored silently.

use serde_json::Value;

use crate::{Reason, Refusal};

/// How the model treats a value.
enum Shape {
    /// Supported. The value is checked where it is used.
    Any,
    /// Ignored, because it has no effect on a request at a gateway. Each use has a comment with the reason.
    NoEffect,
    /// A field of Gloo that the model does not support.
    NotModelled,
    Object(&'static [(&'static str, Self)]),
    List(&'static Self),
}

use Shape::{Any, List, NoEffect, NotModelled, Object};

const TABLE: Shape = Object(&[
    ("hosts", Any),
    // The model has one gateway, which serves every table.
    ("virtualGateways", NoEffect),
    // These two select requests between Pods of the mesh.
    ("workloadSelectors", NotModelled),
    ("applyToDestinations", NotModelled),
    ("defaultDestination", DESTINATION),
    ("http", List(&ROUTE)),
    ("tcp", NotModelled),
    ("tls", NotModelled),
    ("weight", Any),
    // Descriptions for people.
    ("portalMetadata", NoEffect),
    ("failureMode", NotModelled),
    // Annotations of an object that the model does not create.
    ("virtualServiceAnnotations", NoEffect),
]);

const ROUTE: Shape = Object(&[
    ("name", Any),
    ("labels", Any),
    ("matchers", List(&MATCHER)),
    ("forwardTo", FORWARD_TO),
    ("delegate", DELEGATE),
    ("redirect", REDIRECT),
    ("directResponse", Object(&[("status", Any), ("body", Any)])),
    ("graphql", Any),
]);

const MATCHER: Shape = Object(&[
    ("name", Any),
    ("uri", URI),
    (
        "headers",
        List(&Object(&[
            ("name", Any),
            ("value", Any),
            ("regex", Any),
            ("invertMatch", Any),
        ])),
    ),
    (
        "queryParameters",
        List(&Object(&[("name", Any), ("value", Any), ("regex", Any)])),
    ),
    ("method", Any),
    ("port", Any),
]);

const URI: Shape = Object(&[
    ("exact", Any),
    ("prefix", Any),
    ("regex", Any),
    ("suffix", Any),
    ("ignoreCase", Any),
]);

const FORWARD_TO: Shape = Object(&[
    ("destinations", List(&DESTINATION)),
    ("pathRewrite", Any),
    (
        "regexRewrite",
        Object(&[
            // `googleRe2` limits the size of the pattern's program.
            (
                "pattern",
                Object(&[("regex", Any), ("googleRe2", NoEffect)]),
            ),
            ("substitution", Any),
        ]),
    ),
    ("hostRewrite", Any),
    ("autoHostRewrite", Any),
]);

const DESTINATION: Shape = Object(&[
    (
        "ref",
        Object(&[("name", Any), ("namespace", Any), ("cluster", Any)]),
    ),
    ("awsLambda", Any),
    ("kind", Any),
    ("port", Object(&[("number", Any), ("name", Any)])),
    ("subset", Any),
    ("weight", Any),
]);

const DELEGATE: Shape = Object(&[
    ("routeTables", List(&OBJECT_SELECTOR)),
    ("allowedRoutes", Any),
    ("sortMethod", Any),
]);

/// The last two are not in the API reference, but tables in use have them.
const REDIRECT: Shape = Object(&[
    ("hostRedirect", Any),
    ("pathRedirect", Any),
    ("responseCode", Any),
    ("httpsRedirect", Any),
    ("stripQuery", Any),
]);

const OBJECT_SELECTOR: Shape = Object(&[
    ("labels", Any),
    ("name", Any),
    ("namespace", Any),
    ("cluster", Any),
    ("workspace", Any),
]);

const APPLY_TO_ROUTES: Shape = List(&Object(&[
    (
        "route",
        Object(&[
            ("labels", Any),
            ("namespace", Any),
            ("cluster", Any),
            ("workspace", Any),
        ]),
    ),
    (
        "withDestinations",
        Object(&[
            ("selector", OBJECT_SELECTOR),
            ("kind", Any),
            ("port", Object(&[("number", Any), ("name", NotModelled)])),
        ]),
    ),
]));

const MIRROR_POLICY: Shape = Object(&[
    ("applyToRoutes", APPLY_TO_ROUTES),
    (
        "config",
        Object(&[("destination", DESTINATION), ("percentage", Any)]),
    ),
]);

const RETRY_TIMEOUT_POLICY: Shape = Object(&[
    ("applyToRoutes", APPLY_TO_ROUTES),
    (
        "config",
        Object(&[
            ("requestTimeout", Any),
            (
                "retries",
                Object(&[
                    ("attempts", Any),
                    ("perTryTimeout", Any),
                    ("retryOn", Any),
                    ("retryRemoteLocalities", NotModelled),
                ]),
            ),
        ]),
    ),
]);

/// Returns the fields of a RouteTable that the model does not support.
pub(crate) fn unknown_in_table(document: &Value) -> Vec<Refusal> {
    unknown(document, &TABLE)
}

/// Returns the fields of a MirrorPolicy that the model does not support.
pub(crate) fn unknown_in_mirror_policy(document: &Value) -> Vec<Refusal> {
    unknown(document, &MIRROR_POLICY)
}

/// Returns the fields of a RetryTimeoutPolicy that the model does not support.
pub(crate) fn unknown_in_retry_timeout_policy(document: &Value) -> Vec<Refusal> {
    unknown(document, &RETRY_TIMEOUT_POLICY)
}

fn unknown(document: &Value, spec: &Shape) -> Vec<Refusal> {
    let mut found = Vec::new();
    if let Some(value) = document.get("spec") {
        walk(value, spec, "spec", &mut found);
    }
    found
}

fn walk(value: &Value, shape: &Shape, path: &str, found: &mut Vec<Refusal>) {
    match (shape, value) {
        (NotModelled, value) if !is_empty(value) => {
            found.push(Refusal::new(path, Reason::NotModelled));
        }
        (Object(known), Value::Object(fields)) => {
            for (field, value) in fields {
                let path = format!("{path}.{field}");
                match known.iter().find(|(name, _)| name == field) {
                    Some((_, shape)) => walk(value, shape, &path, found),
                    None => found.push(Refusal::new(path, Reason::Unknown)),
                }
            }
        }
        (List(shape), Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                walk(item, shape, &format!("{path}[{index}]"), found);
            }
        }
        // A value of another type is an error where it is decoded.
        _ => {}
    }
}

/// Whether a value is the default: null, an empty list, or the default of `failureMode`.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text == "ROUTE_REPLACEMENT",
        _ => false,
    }
}
