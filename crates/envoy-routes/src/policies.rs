//! MirrorPolicies and RetryTimeoutPolicies: finds the routes to which they apply, and adds mirrors, timeouts and retries to
//! these.

use std::collections::BTreeMap;

use gloo_types::{DestinationSelector, MirrorConfig, PolicyRouteSelector, RetryTimeoutConfig};
use serde_json::{Map, Value, json};

use crate::backend::{Backend, Port};
use crate::delegation::Leaf;
use crate::{DefaultRetries, Objects, Reason, Refusal, Untranslated, action, fields};

/// The denominator of Envoy's fractions, and how many millionths one percent is.
const DENOMINATOR: &str = "MILLION";
const PER_PERCENT: f64 = 10_000.0;

/// The default retry conditions of Istio, and its default number of retries.
const ISTIO_RETRY_ON: &str =
    "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes";
const ISTIO_RETRIES: u32 = 2;

/// The policies whose spec could be decoded.
pub(crate) struct Policies {
    mirrors: Vec<Policy<Mirror>>,
    timeouts: Vec<Policy<Map<String, Value>>>,
    default_retries: DefaultRetries,
}

struct Policy<T> {
    name: String,
    /// Alternatives. Empty selects every route.
    selectors: Vec<PolicyRouteSelector>,
    effect: T,
}

struct Mirror {
    to: Backend,
    /// The fraction of copied requests, in millionths.
    numerator: u32,
}

impl Policies {
    pub(crate) fn read(objects: &Objects<'_>, untranslated: &mut Vec<Untranslated>) -> Self {
        let mut mirrors = Vec::new();
        for document in objects.mirror_policies {
            let name = format!("MirrorPolicy {}", document.key());
            let unknown = fields::unknown_in_mirror_policy(document.raw());
            let policy = match document.spec() {
                Ok(spec) => {
                    mirror(spec.config.as_ref(), &document.key().namespace).map(|effect| Policy {
                        name: name.clone(),
                        selectors: spec.apply_to_routes,
                        effect,
                    })
                }
                Err(error) => Err(Refusal::new("spec", Reason::Unreadable(error.to_string()))),
            };
            keep(policy, unknown, &name, &mut mirrors, untranslated);
        }
        let mut timeouts = Vec::new();
        for document in objects.retry_timeout_policies {
            let name = format!("RetryTimeoutPolicy {}", document.key());
            let unknown = fields::unknown_in_retry_timeout_policy(document.raw());
            let policy = match document.spec() {
                Ok(spec) => retry_timeout(spec.config.as_ref()).map(|effect| Policy {
                    name: name.clone(),
                    selectors: spec.apply_to_routes,
                    effect,
                }),
                Err(error) => Err(Refusal::new("spec", Reason::Unreadable(error.to_string()))),
            };
            keep(policy, unknown, &name, &mut timeouts, untranslated);
        }
        mirrors.sort_by(|a, b| a.name.cmp(&b.name));
        timeouts.sort_by(|a, b| a.name.cmp(&b.name));
        Self {
            mirrors,
            timeouts,
            default_retries: objects.retries,
        }
    }

    /// Adds the effects of the policies to Envoy's `route` action.
    pub(crate) fn apply(
        &self,
        leaf: &Leaf<'_>,
        action: &mut Map<String, Value>,
        clusters: &mut BTreeMap<String, Backend>,
        untranslated: &mut Vec<Untranslated>,
    ) {
        if self.default_retries == DefaultRetries::Istio {
            let retries = json!({"retry_on": ISTIO_RETRY_ON, "num_retries": ISTIO_RETRIES});
            action.insert("retry_policy".to_owned(), retries);
        }
        if let Some(policy) = first(&self.timeouts, leaf, clusters, untranslated) {
            action.extend(policy.effect.clone());
        }
        if let Some(policy) = first(&self.mirrors, leaf, clusters, untranslated) {
            let Mirror { to, numerator } = &policy.effect;
            let mirror = json!([{
                "cluster": action::add(clusters, to.clone()),
                "runtime_fraction": {
                    "default_value": {"numerator": numerator, "denominator": DENOMINATOR},
                },
            }]);
            action.insert("request_mirror_policies".to_owned(), mirror);
        }
    }
}

/// Adds a policy to `policies`, and what cannot be translated of it to `untranslated`.
fn keep<T>(
    policy: Result<Policy<T>, Refusal>,
    unknown: Vec<Refusal>,
    name: &str,
    policies: &mut Vec<Policy<T>>,
    untranslated: &mut Vec<Untranslated>,
) {
    let by_labels = |policy: &Policy<T>| {
        let selectors = policy.selectors.iter().enumerate();
        let refused = selectors.filter_map(|(index, selector)| {
            let to = selector.with_destinations.as_ref()?;
            let labels = !to.selector.as_ref()?.labels.is_empty();
            let path = format!("spec.applyToRoutes[{index}].withDestinations.selector.labels");
            labels.then(|| Refusal::new(path, Reason::NotModelled))
        });
        refused.collect::<Vec<_>>()
    };
    let mut refused = unknown;
    match policy {
        Ok(policy) => {
            refused.extend(by_labels(&policy));
            policies.push(policy);
        }
        Err(refusal) => refused.push(refusal),
    }
    untranslated.extend(refused.into_iter().map(|refusal| refusal.of(name)));
}

/// Returns the first policy that applies to the route, and adds others to `untranslated`.
fn first<'p, T>(
    policies: &'p [Policy<T>],
    leaf: &Leaf<'_>,
    clusters: &BTreeMap<String, Backend>,
    untranslated: &mut Vec<Untranslated>,
) -> Option<&'p Policy<T>> {
    let mut applied = policies.iter().filter(|it| it.applies(leaf, clusters));
    let first = applied.next()?;
    for second in applied {
        let refusal = Refusal::new("spec.applyToRoutes", Reason::SecondPolicy(leaf.name()));
        let named = refusal.of(&second.name);
        // This is called for each matcher of a route.
        if !untranslated.contains(&named) {
            untranslated.push(named);
        }
    }
    Some(first)
}

impl<T> Policy<T> {
    fn applies(&self, leaf: &Leaf<'_>, clusters: &BTreeMap<String, Backend>) -> bool {
        self.selectors.is_empty()
            || self.selectors.iter().any(|selector| {
                let namespace = &leaf.table.key.namespace;
                match (&selector.route, &selector.with_destinations) {
                    (Some(route), _) => {
                        route.may_select(&leaf.route.labels, &leaf.inherited, namespace)
                    }
                    (None, Some(to)) => routes_to(leaf, to, clusters),
                    (None, None) => true,
                }
            })
    }
}

/// Whether a route has a destination that `selector` selects. A selector by labels selects none, since the labels of
/// Services are not known here.
fn routes_to(
    leaf: &Leaf<'_>,
    selector: &DestinationSelector,
    clusters: &BTreeMap<String, Backend>,
) -> bool {
    let object = selector.selector.clone().unwrap_or_default();
    let fits = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
    let destinations = leaf.table.spec.destinations_of(leaf.route).iter();
    let mut backends = destinations
        .filter_map(|to| Backend::of(to, &leaf.table.key.namespace).ok())
        .filter(|backend| clusters.contains_key(&backend.to_string()));
    backends.any(|backend| {
        let number = selector.port.as_ref().and_then(|port| port.number);
        let port = number.map(Port::Number);
        object.labels.is_empty()
            && selector.kind == backend.kind
            && fits(&object.name, &backend.name)
            && fits(&object.namespace, &backend.namespace)
            && (port.is_none() || port == backend.port)
    })
}

fn mirror(config: Option<&MirrorConfig>, namespace: &str) -> Result<Mirror, Refusal> {
    let refuse = |field: &str, reason| Refusal::new(format!("spec.config.{field}"), reason);
    let config = config.cloned().unwrap_or_default();
    let destination = config
        .destination
        .ok_or_else(|| refuse("destination", Reason::NoDestination))?;
    let to = Backend::of(&destination, namespace)
        .map_err(|refusal| refusal.within("spec.config.destination"))?;
    let percentage = config.percentage.unwrap_or(100.0);
    if !(0.0..=100.0).contains(&percentage) {
        let value = percentage.to_string();
        return Err(refuse("percentage", Reason::Invalid(value)));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between 0 and a million"
    )]
    let numerator = (percentage * PER_PERCENT).round() as u32;
    Ok(Mirror { to, numerator })
}

/// The fields that a policy sets in Envoy's `route` action.
fn retry_timeout(config: Option<&RetryTimeoutConfig>) -> Result<Map<String, Value>, Refusal> {
    let config = config.cloned().unwrap_or_default();
    let mut action = Map::new();
    if let Some(timeout) = &config.request_timeout {
        let timeout = duration(timeout, "spec.config.requestTimeout")?;
        action.insert("timeout".to_owned(), timeout);
    }
    if let Some(retries) = &config.retries {
        let mut policy = Map::new();
        let retry_on = retries.retry_on.as_deref().unwrap_or(ISTIO_RETRY_ON);
        policy.insert("retry_on".to_owned(), json!(retry_on));
        let attempts = retries.attempts.unwrap_or(ISTIO_RETRIES);
        policy.insert("num_retries".to_owned(), json!(attempts));
        if let Some(timeout) = &retries.per_try_timeout {
            let timeout = duration(timeout, "spec.config.retries.perTryTimeout")?;
            policy.insert("per_try_timeout".to_owned(), timeout);
        }
        action.insert("retry_policy".to_owned(), Value::Object(policy));
    }
    Ok(action)
}

/// A duration in Envoy's JSON, whose only unit is seconds: `1s500ms` becomes `1.5s`. At least one millisecond, as in the API.
fn duration(text: &str, path: &str) -> Result<Value, Refusal> {
    match milliseconds(text) {
        Some(duration) if duration >= 1.0 => Ok(json!(format!("{}s", duration / 1000.0))),
        _ => Err(Refusal::new(path, Reason::Invalid(text.to_owned()))),
    }
}

/// Parses numbers with units: `1.5h`, `1s500ms`.
fn milliseconds(text: &str) -> Option<f64> {
    let units = [("ms", 1.0), ("s", 1e3), ("m", 60e3), ("h", 3600e3)];
    let mut rest = text;
    let mut sum = 0.0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at_checked(number)?;
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, after) = after.split_at_checked(unit.unwrap_or(after.len()))?;
        let (_, size) = units.iter().find(|(name, _)| *name == unit)?;
        sum += number.parse::<f64>().ok()? * size;
        rest = after;
    }
    Some(sum)
}
