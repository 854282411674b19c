//! The header route of one source route: the same route for requests with certain headers, to the canary alone.

use serde_json::{Map, Value, json};

use crate::config::HeaderMatchMode;
use crate::error::Refusal;
use crate::intent::{HeaderMatch, HeaderRoute, TextMatch};
use crate::re2;

/// The sets of header matchers of which a request must meet one.
pub(crate) fn alternatives(
    route: &HeaderRoute,
    mode: HeaderMatchMode,
) -> Result<Vec<Vec<Value>>, Refusal> {
    let headers = route.matches.iter().map(|header| matcher(route, header));
    let headers: Vec<Value> = headers.collect::<Result<_, _>>()?;
    Ok(match mode {
        HeaderMatchMode::Any => headers.into_iter().map(|header| vec![header]).collect(),
        HeaderMatchMode::All => vec![headers],
    })
}

/// The matchers of a source route, each narrowed to each of the `alternatives`.
///
/// Matchers of a route are alternatives, and what one matcher holds must all be met, so both conditions hold exactly for
/// the product of the two lists. A source without matchers takes any request.
pub(crate) fn narrowed(matchers: Option<&Value>, alternatives: &[Vec<Value>]) -> Vec<Value> {
    let any = [json!({})];
    let matchers = match matchers.and_then(Value::as_array) {
        Some(matchers) if !matchers.is_empty() => matchers.as_slice(),
        _ => &any,
    };
    let product = matchers
        .iter()
        .flat_map(|matcher| alternatives.iter().map(move |headers| (matcher, headers)));
    product
        .map(|(matcher, headers)| {
            let mut matcher = matcher.as_object().cloned().unwrap_or_default();
            // Listed in the API, not supported by Gloo.
            matcher.shift_remove("name");
            let own = matcher.get("headers").and_then(Value::as_array);
            let all: Vec<Value> = own.into_iter().flatten().chain(headers).cloned().collect();
            matcher.insert("headers".to_owned(), json!(all));
            Value::Object(matcher)
        })
        .collect()
}

/// The `forwardTo` of a source route with `destination` alone.
pub(crate) fn leading_to(forward: &Value, destination: &Value) -> Value {
    let mut forward: Map<String, Value> = forward.as_object().cloned().unwrap_or_default();
    forward.insert("destinations".to_owned(), json!([destination]));
    Value::Object(forward)
}

fn matcher(route: &HeaderRoute, header: &HeaderMatch) -> Result<Value, Refusal> {
    let refused = |problem: String| Refusal::Match {
        managed: route.name.clone(),
        part: format!("header {}", header.name),
        problem,
    };
    let HeaderMatch { name, value } = header;
    if name.is_empty() {
        return Err(refused("it has no name".to_owned()));
    }
    let TextMatch {
        exact,
        prefix,
        regex,
    } = value;
    match (exact.as_str(), prefix.as_str(), regex.as_str()) {
        (exact, "", "") if !exact.is_empty() => Ok(json!({"name": name, "value": exact})),
        // Envoy's regular expressions match the whole value.
        ("", prefix, "") if !prefix.is_empty() => {
            let pattern = format!("{}.*", re2::quote(prefix));
            Ok(json!({"name": name, "value": pattern, "regex": true}))
        }
        ("", "", regex) if !regex.is_empty() => {
            re2::check(regex).map_err(|problem| {
                refused(format!("its regex is not what RE2 takes: {problem}"))
            })?;
            Ok(json!({"name": name, "value": regex, "regex": true}))
        }
        _ => Err(refused(
            "set exactly one of exact, prefix and regex in its value".to_owned(),
        )),
    }
}
