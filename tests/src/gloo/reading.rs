//! What we read of an object, in the form in which the judge says what it read.

use anyhow::Result;
use gloo_types::{
    DestinationReference, DestinationSelector, HttpRequestMatcher, MirrorPolicyDoc,
    MirrorPolicySpec, ObjectReference, ObjectSelector, PolicyRouteSelector, PortSelector,
    RouteTableDoc, RouteTableSpec,
};
use serde_json::{Value, json};

use super::Judgement;

/// What we read of a RouteTable or of a MirrorPolicy.
///
/// # Errors
/// Returns `Err` if we cannot read it.
pub fn of(object: &Value) -> Result<Value> {
    let (spec, labels, annotations) = if object["kind"] == "MirrorPolicy" {
        let policy = MirrorPolicyDoc::from_value(object.clone())?;
        let annotations = policy.annotations().cloned();
        (
            of_policy(&policy.spec()?),
            policy.labels().clone(),
            annotations,
        )
    } else {
        let table = RouteTableDoc::from_value(object.clone())?;
        let annotations = table.annotations().cloned();
        (
            of_table(&table.spec()?),
            table.labels().clone(),
            annotations,
        )
    };
    Ok(without_defaults(
        &json!({"spec": spec, "labels": labels, "annotations": annotations}),
    ))
}

/// The parts of a judgement that [`of`] has.
#[must_use]
pub fn of_gloo(judgement: &Judgement) -> Value {
    let forward_to = json!({"destinations": null});
    let parts = json!({
        "defaultDestination": null,
        "http": {"name": null, "labels": null, "matchers": null, "forwardTo": forward_to},
        "tcp": {"matchers": null, "forwardTo": forward_to},
        "tls": {"matchers": null, "forwardTo": forward_to},
        "applyToRoutes": null,
        "config": null,
    });
    let part = |pointer| judgement.read.pointer(pointer).unwrap_or(&Value::Null);
    without_defaults(&json!({
        "spec": only(&parts, part("/spec")),
        "labels": part("/metadata/Labels"),
        "annotations": part("/metadata/Annotations"),
    }))
}

/// Keeps the keys of `parts`. A null keeps all.
fn only(parts: &Value, value: &Value) -> Value {
    match (parts, value) {
        (Value::Object(parts), Value::Object(fields)) => {
            let kept = parts.iter().filter_map(|(key, parts)| {
                let value = fields.get(key)?;
                Some((key.clone(), only(parts, value)))
            });
            kept.collect()
        }
        (Value::Object(_), Value::Array(items)) => {
            items.iter().map(|item| only(parts, item)).collect()
        }
        _ => value.clone(),
    }
}

/// Removes fields that have their default, which proto3 does not write.
fn without_defaults(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, value)| (key.clone(), without_defaults(value)));
            let set = fields.filter(|(_, value)| match value {
                Value::Null => false,
                Value::Bool(value) => *value,
                Value::Number(number) => number.as_f64() != Some(0.0),
                Value::String(text) => !text.is_empty() && text != "SERVICE",
                Value::Array(items) => !items.is_empty(),
                Value::Object(fields) => !fields.is_empty(),
            });
            set.collect()
        }
        Value::Array(items) => items.iter().map(without_defaults).collect(),
        // A percentage may be a whole number.
        Value::Number(number) => json!(number.as_f64()),
        _ => value.clone(),
    }
}

fn of_table(spec: &RouteTableSpec) -> Value {
    let forward = |to: Option<&[DestinationReference]>| json!({"destinations": destinations(to)});
    let http = spec.http.iter().map(|route| {
        let to = route.forward_to.as_ref().and_then(|it| it.destinations.as_deref());
        let matchers: Vec<Value> = route.matchers.iter().map(matcher).collect();
        json!({"name": route.name, "labels": route.labels, "matchers": matchers, "forwardTo": forward(to)})
    });
    let tcp = spec.tcp.iter().map(|route| {
        let to = route
            .forward_to
            .as_ref()
            .and_then(|it| it.destinations.as_deref());
        let matchers = route.matchers.iter().map(|it| json!({"port": it.port}));
        json!({"matchers": matchers.collect::<Value>(), "forwardTo": forward(to)})
    });
    let tls = spec.tls.iter().map(|route| {
        let to = route
            .forward_to
            .as_ref()
            .and_then(|it| it.destinations.as_deref());
        let matchers = route.matchers.iter();
        let matchers = matchers.map(|it| json!({"port": it.port, "sniHosts": it.sni_hosts}));
        json!({"matchers": matchers.collect::<Value>(), "forwardTo": forward(to)})
    });
    json!({
        "defaultDestination": spec.default_destination.as_ref().map(destination),
        "http": http.collect::<Value>(),
        "tcp": tcp.collect::<Value>(),
        "tls": tls.collect::<Value>(),
    })
}

fn of_policy(spec: &MirrorPolicySpec) -> Value {
    let selector = |it: &PolicyRouteSelector| {
        let route = it.route.as_ref().map(|it| {
            json!({"labels": it.labels, "namespace": it.namespace, "cluster": it.cluster, "workspace": it.workspace})
        });
        json!({"route": route, "withDestinations": it.with_destinations.as_ref().map(selected)})
    };
    let config = spec.config.as_ref().map(|it| {
        json!({"destination": it.destination.as_ref().map(destination), "percentage": it.percentage})
    });
    let routes: Vec<Value> = spec.apply_to_routes.iter().map(selector).collect();
    json!({"applyToRoutes": routes, "config": config})
}

fn selected(it: &DestinationSelector) -> Value {
    let object = |it: &ObjectSelector| json!({"labels": it.labels, "name": it.name, "namespace": it.namespace, "cluster": it.cluster, "workspace": it.workspace});
    json!({"selector": it.selector.as_ref().map(object), "kind": it.kind.as_str(), "port": it.port.as_ref().map(port)})
}

fn destinations(to: Option<&[DestinationReference]>) -> Value {
    to.unwrap_or_default().iter().map(destination).collect()
}

fn destination(to: &DestinationReference) -> Value {
    let reference = |it: &ObjectReference| json!({"name": it.name, "namespace": it.namespace, "cluster": it.cluster});
    let lambda = to.aws_lambda.as_ref().map(|it| {
        let options = it.options.as_ref().map(|it| {
            json!({"requestTransformation": it.request_transformation, "responseTransformation": it.response_transformation, "invocationStyle": it.invocation_style})
        });
        json!({"cloudProvider": it.cloud_provider.as_ref().map(reference), "function": it.function, "qualifier": it.qualifier, "options": options})
    });
    json!({
        "ref": to.reference.as_ref().map(reference),
        "awsLambda": lambda,
        "kind": to.kind.as_str(),
        "port": to.port.as_ref().map(port),
        "subset": to.subset,
        "weight": to.weight,
    })
}

fn port(port: &PortSelector) -> Value {
    json!({"number": port.number, "name": port.name})
}

fn matcher(it: &HttpRequestMatcher) -> Value {
    let uri = it.uri.as_ref().map(|it| {
        json!({"exact": it.exact, "prefix": it.prefix, "regex": it.regex, "suffix": it.suffix, "ignoreCase": it.ignore_case})
    });
    let headers = it.headers.iter().map(|it| {
        json!({"name": it.name, "value": it.value, "regex": it.regex, "invertMatch": it.invert_match})
    });
    let parameters = it.query_parameters.iter();
    let parameters =
        parameters.map(|it| json!({"name": it.name, "value": it.value, "regex": it.regex}));
    json!({
        "name": it.name,
        "uri": uri,
        "headers": headers.collect::<Value>(),
        "queryParameters": parameters.collect::<Value>(),
        "method": it.method,
        "port": it.port,
    })
}
