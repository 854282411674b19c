//! The action of a route: Envoy's `route`, `redirect` or `direct_response`.

use std::collections::BTreeMap;

use gloo_types::{
    DirectResponseAction, ForwardToAction, HttpRequestMatcher, RedirectAction, RedirectCode,
    RegexRewrite, effective_weights,
};
use serde_json::{Map, Value, json};

use crate::backend::Backend;
use crate::delegation::Leaf;
use crate::matcher::{self, Path};
use crate::{Reason, Refusal};

/// Translates the action of a route, for the requests of one of its matchers. Returns the key and the value in Envoy's
/// route, and adds the clusters to which it leads to `clusters`.
pub(crate) fn action(
    leaf: &Leaf<'_>,
    matcher: &HttpRequestMatcher,
    clusters: &mut BTreeMap<String, Backend>,
) -> Result<(&'static str, Map<String, Value>), Refusal> {
    let route = leaf.route;
    if route.graphql.is_some() {
        return Err(Refusal::new("graphql", Reason::NotModelled));
    }
    match (&route.forward_to, &route.redirect, &route.direct_response) {
        (Some(forward), None, None) if route.delegate.is_none() => {
            let action = forward_to(leaf, forward, matcher, clusters)
                .map_err(|refusal| refusal.within("forwardTo"))?;
            Ok(("route", action))
        }
        (None, Some(to), None) if route.delegate.is_none() => {
            let raw = leaf.raw().and_then(|route| route.get("redirect"));
            let action = redirect(to, raw).map_err(|refusal| refusal.within("redirect"))?;
            Ok(("redirect", action))
        }
        (None, None, Some(response)) if route.delegate.is_none() => {
            let action =
                direct_response(response).map_err(|refusal| refusal.within("directResponse"))?;
            Ok(("direct_response", action))
        }
        _ => Err(Refusal::new(
            "",
            Reason::NotOne("forwardTo, delegate, redirect, directResponse, graphql"),
        )),
    }
}

fn forward_to(
    leaf: &Leaf<'_>,
    forward: &ForwardToAction,
    matcher: &HttpRequestMatcher,
    clusters: &mut BTreeMap<String, Backend>,
) -> Result<Map<String, Value>, Refusal> {
    let destinations = leaf.table.spec.destinations_of(leaf.route);
    let mut names = Vec::new();
    for (index, to) in destinations.iter().enumerate() {
        let backend = Backend::of(to, &leaf.table.key.namespace)
            .map_err(|refusal| refusal.within(&format!("destinations[{index}]")))?;
        names.push(add(clusters, backend));
    }
    let mut action = Map::new();
    let mut set = |key: &str, value: Value| drop(action.insert(key.to_owned(), value));
    match names.as_slice() {
        [] => return Err(Refusal::new("destinations", Reason::NoDestination)),
        [one] => set("cluster", json!(one)),
        several => {
            let weights = effective_weights(destinations);
            let clusters: Vec<Value> = several
                .iter()
                .zip(weights)
                .map(|(name, weight)| json!({"name": name, "weight": weight}))
                .collect();
            set("weighted_clusters", json!({"clusters": clusters}));
        }
    }
    // Envoy's default is 15 s; Istio sets no timeout.
    set("timeout", json!("0s"));

    match (&forward.path_rewrite, &forward.regex_rewrite) {
        (Some(_), Some(_)) => {
            return Err(Refusal::new(
                "",
                Reason::NotOne("pathRewrite, regexRewrite"),
            ));
        }
        // In Envoy, an empty rewrite is none.
        (Some(path), None) if path.is_empty() => {}
        (Some(path), None) => match matcher::path(matcher)? {
            Path::Regex(_) => return Err(Refusal::new("pathRewrite", Reason::Unsupported)),
            Path::Exact(_) | Path::Prefix(_) => set("prefix_rewrite", json!(path)),
        },
        (None, Some(rewrite)) => {
            let pattern = pattern(rewrite).ok_or_else(|| {
                Refusal::new(
                    "regexRewrite.pattern.regex",
                    Reason::Invalid("null".to_owned()),
                )
            })?;
            let substitution = rewrite.substitution.as_deref().unwrap_or_default();
            set("regex_rewrite", regex_rewrite(pattern, substitution));
        }
        (None, None) => {}
    }
    match (&forward.host_rewrite, forward.auto_host_rewrite) {
        (Some(_), Some(true)) => {
            return Err(Refusal::new(
                "",
                Reason::NotOne("hostRewrite, autoHostRewrite"),
            ));
        }
        (Some(host), _) => set("host_rewrite_literal", json!(host)),
        (None, Some(true)) => set("auto_host_rewrite", json!(true)),
        (None, _) => {}
    }
    Ok(action)
}

/// Adds a backend to the clusters, and returns the name of its cluster.
pub(crate) fn add(clusters: &mut BTreeMap<String, Backend>, backend: Backend) -> String {
    let name = backend.to_string();
    clusters.insert(name.clone(), backend);
    name
}

fn pattern(rewrite: &RegexRewrite) -> Option<&str> {
    rewrite.pattern.as_ref()?.regex.as_deref()
}

fn regex_rewrite(pattern: &str, substitution: &str) -> Value {
    json!({"pattern": {"regex": pattern}, "substitution": substitution})
}

/// Translates a redirect. `raw` is its JSON, for the fields that Gloo accepts although its API reference does not list them.
fn redirect(to: &RedirectAction, raw: Option<&Value>) -> Result<Map<String, Value>, Refusal> {
    let mut action = Map::new();
    let mut set = |key: &str, value: Value| drop(action.insert(key.to_owned(), value));
    if let RedirectCode::Other(code) = &to.response_code {
        return Err(Refusal::new("responseCode", Reason::Invalid(code.clone())));
    }
    set("response_code", json!(to.response_code.as_str()));
    if let Some(host) = &to.host_redirect {
        set("host_redirect", json!(host));
    }
    if let Some(path) = &to.path_redirect {
        set("path_redirect", json!(path));
    }
    for (field, key) in [
        ("httpsRedirect", "https_redirect"),
        ("stripQuery", "strip_query"),
    ] {
        match raw.and_then(|raw| raw.get(field)) {
            None => {}
            Some(Value::Bool(value)) => set(key, json!(value)),
            Some(other) => return Err(Refusal::new(field, Reason::Invalid(other.to_string()))),
        }
    }
    Ok(action)
}

fn direct_response(response: &DirectResponseAction) -> Result<Map<String, Value>, Refusal> {
    if !(200..600).contains(&response.status) {
        let status = response.status.to_string();
        return Err(Refusal::new("status", Reason::Invalid(status)));
    }
    let status = ("status".to_owned(), json!(response.status));
    let body = response.body.iter();
    let body = body.map(|body| ("body".to_owned(), json!({"inline_string": body})));
    Ok([status].into_iter().chain(body).collect())
}
