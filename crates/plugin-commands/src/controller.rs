//! The release of the Argo Rollouts controller, and the advice that depends on it.
//!
//! [`ABORTS_STALL`] is the only place that says which releases have the fault. `validate` and `doctor` ask here; tests compare
//! docs/compatibility.md with it, and an abort by the oldest and the newest tested controller.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use gloo_types::ObjectKey;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, Error};
use rollouts_rpc::Rollout;
use rollouts_rpc::rollout::RolloutStatus;
use serde_json::Value;

use super::node::Node;

/// The releases in which `abortScaleDownDelaySeconds` and `dynamicStableScale` together stall an abort (argo-rollouts#4898).
///
/// The controller gives the Pods of an aborted version their deadline once all stable Pods are available. Since 1.9.0 it lowers
/// the weight step by step, and waits before each step until the canary has no more Pods than the step needs. But these Pods stay
/// until their deadline. So an update with more canary Pods than its lowest `setWeight` needs waits forever. #4900 mends it after 1.10.2.
const ABORTS_STALL: RangeInclusive<ControllerRelease> =
    ControllerRelease::new(1, 9, 0)..=ControllerRelease::new(1, 10, 2);

/// The namespace of the controller in the released manifests.
pub(super) const NAMESPACE: &str = "argo-rollouts";
/// The service account of the controller in the released manifests.
pub(super) const ACCOUNT: &str = "argo-rollouts";
/// The label of Pods, and of the selectors of Services, with the version.
pub(super) const HASH_LABEL: &str = "rollouts-pod-template-hash";

const ABORT_DELAY: &str = "abortScaleDownDelaySeconds";

/// A release of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ControllerRelease([u32; 3]);

/// The effect of `abortScaleDownDelaySeconds` on aborts with `dynamicStableScale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortDelay {
    /// Fewer requests fail, and none in an abort below full weight.
    Needed,
    /// An abort past the lowest `setWeight` never ends. Without the setting it ends, and some requests fail.
    Stalls,
    /// The release is later than the tested ones.
    Untested,
}

impl FromStr for ControllerRelease {
    type Err = String;

    /// Parses `1.10.2`, `v1.10.2`, `1.10`, and the tags of vendors: `v1.10.2-3`.
    fn from_str(text: &str) -> Result<Self, String> {
        let release = text.strip_prefix('v').unwrap_or(text);
        let release = release.split(['-', '+']).next().unwrap_or(release);
        let numbers: Result<Vec<u32>, _> = release.split('.').map(str::parse).collect();
        let release = match numbers.as_deref() {
            Ok([major, minor]) => Self([*major, *minor, 0]),
            Ok([major, minor, patch]) => Self([*major, *minor, *patch]),
            _ => return Err("not a release of Argo Rollouts, such as 1.10.2".to_owned()),
        };
        match release < Self::OLDEST {
            true => Err(format!(
                "controller {release} cannot load the plugin: it needs {} or later",
                Self::OLDEST
            )),
            false => Ok(release),
        }
    }
}

impl fmt::Display for ControllerRelease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([major, minor, patch]) = self;
        write!(formatter, "{major}.{minor}.{patch}")
    }
}

impl ControllerRelease {
    /// The first release that loads traffic routers from plugins.
    const OLDEST: Self = Self([1, 5, 0]);

    /// The newest release that the tests compare with `simulate`.
    pub(super) const NEWEST: Self = Self([1, 10, 2]);

    pub(super) const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self([major, minor, patch])
    }

    /// Returns the release in the tag of an image; `None` if it has a digest only, or a tag of another form.
    pub(super) fn of_image(image: &str) -> Option<Self> {
        let image = image.split('@').next().unwrap_or(image);
        let (_, tag) = image.rsplit('/').next()?.split_once(':')?;
        tag.parse().ok()
    }

    /// Returns what `abortScaleDownDelaySeconds` does in this release.
    #[must_use]
    pub fn abort_delay(self) -> AbortDelay {
        if self < *ABORTS_STALL.start() {
            AbortDelay::Needed
        } else if ABORTS_STALL.contains(&self) {
            AbortDelay::Stalls
        } else {
            AbortDelay::Untested
        }
    }
}

/// The controller of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deployed {
    pub(super) image: String,
    /// Its service account.
    pub(super) account: ObjectKey,
    /// The namespace of its Rollouts; `None` for all.
    pub(super) only: Option<String>,
}

/// Returns the controller that runs in a namespace, if there is one.
///
/// # Errors
/// Returns `Err` if the Deployments cannot be listed.
pub(super) async fn deployed(client: &Client, namespace: &str) -> Result<Option<Deployed>, Error> {
    // A typed Deployment would link every kind of volume and probe into the binary.
    let resource = ApiResource::erase::<Deployment>(&());
    let deployments: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &resource);
    let listed = deployments.list(&ListParams::default()).await?;
    let mut found = listed.items.iter();
    Ok(found.find_map(|it| in_deployment(&it.data, namespace)))
}

/// Returns the controller that a Deployment runs, if it runs one.
fn in_deployment(deployment: &Value, namespace: &str) -> Option<Deployed> {
    let pod = Node::root(deployment).get("spec.template.spec");
    let containers = pod.get("containers").items();
    let container = containers.iter().find(|container| {
        // The image has this name in every registry; `kubectl-argo-rollouts` is the dashboard.
        let name = container.get("image").text().rsplit('/').next();
        name.is_some_and(|name| name.starts_with("argo-rollouts"))
    })?;
    let account = match pod.get("serviceAccountName").text() {
        "" => "default",
        account => account,
    };
    Some(Deployed {
        image: container.get("image").text().to_owned(),
        account: ObjectKey::new(namespace, account),
        only: only_namespace(container.value, namespace),
    })
}

/// Returns the namespace to which the flags of a controller's container restrict it. By default it is the controller's own.
fn only_namespace(container: &Value, own: &str) -> Option<String> {
    let args = container.get("args")?.as_array()?;
    let mut args = args.iter().filter_map(Value::as_str);
    let (mut is_restricted, mut namespace) = (false, own);
    while let Some(arg) = args.next() {
        match arg.split_once('=').unwrap_or((arg, "")) {
            ("--namespaced", value) => is_restricted = value != "false",
            ("--namespace" | "-n", "") => namespace = args.next().unwrap_or(own),
            ("--namespace" | "-n", value) => namespace = value,
            _ => {}
        }
    }
    is_restricted.then(|| namespace.to_owned())
}

/// Returns what to change in a Rollout with `dynamicStableScale`, so that its aborts end and lose as few requests as possible.
/// `release` is that of its controller, if it is known.
pub(super) fn abort_advice(release: Option<ControllerRelease>, rollout: &Value) -> Option<String> {
    let canary = Node::root(rollout).get("spec.strategy.canary");
    if !canary.get("dynamicStableScale").is_true() {
        return None;
    }
    // With 0 the controller scales by the weight, as without the setting.
    let delay = canary.get(ABORT_DELAY).number();
    let is_set = delay.is_some_and(|it| it != 0);
    let stalls = format!(
        "with abortScaleDownDelaySeconds, controllers {} to {} never end an abort past the lowest setWeight (argo-rollouts#4898)",
        ABORTS_STALL.start(),
        ABORTS_STALL.end(),
    );
    let release = release.map(|it| (it, it.abort_delay()));
    match (release, is_set) {
        (Some((_, AbortDelay::Needed)), false) => Some(
            "set abortScaleDownDelaySeconds to more than 0, without which requests fail in an abort, because the canary's Pods end at once"
                .to_owned(),
        ),
        (Some((_, AbortDelay::Needed)), true)
        | (Some((_, AbortDelay::Stalls | AbortDelay::Untested)), false) => None,
        (Some((_, AbortDelay::Stalls)), true) => {
            Some(format!("{stalls}: remove abortScaleDownDelaySeconds"))
        }
        (Some((release, AbortDelay::Untested)), true) => Some(format!(
            "{stalls}, and {release} is not tested: remove abortScaleDownDelaySeconds, or test an abort after the last step"
        )),
        (None, true) => Some(format!(
            "{stalls}: remove abortScaleDownDelaySeconds, or run validate with --controller-release if yours is another one"
        )),
        (None, false) => Some(
            "the release of the controller decides whether abortScaleDownDelaySeconds must be set: run validate with --controller-release"
                .to_owned(),
        ),
    }
}

/// Says how to prepare a Service before the next update of a Rollout with the given live status, if its selector is not right yet.
pub(super) async fn unprepared_pong(
    client: &Client,
    rollout: &Rollout,
    status: &RolloutStatus,
) -> Option<String> {
    let (name, hash) = new_pong(rollout, status)?;
    let resource = ApiResource::erase::<Service>(&());
    let namespace = &rollout.metadata.namespace;
    let services: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let service = services.get(name).await.ok();
    let selected = service.as_ref().and_then(|it| {
        let selector = it.data.pointer("/spec/selector")?;
        selector.get(HASH_LABEL)?.as_str()
    });
    (selected != Some(hash)).then(|| format!(
        "pingPong is new for this Rollout: its next update takes Service {name} for stable, but the controller does not make it select only stable Pods (argo-rollouts#5006): add {HASH_LABEL}: {hash} to its selector first"
    ))
}

/// Returns the `pongService` and the stable hash of a Rollout for which ping-pong was switched on, and which has promoted no version
/// since. The controller takes this Service for stable, but lets it select only stable Pods after the next promotion (argo-rollouts#5006).
fn new_pong<'a>(rollout: &'a Rollout, status: &'a RolloutStatus) -> Option<(&'a str, &'a str)> {
    let is_existing = !status.stable_rs.is_empty();
    let has_promoted = !status.canary.stable_ping_pong.is_empty();
    let services = rollout.canary()?.services(status);
    (rollout.is_ping_pong() && is_existing && !has_promoted)
        .then_some((services.stable, &status.stable_rs))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_only(args: &[&str], expect: Option<&str>) {
        let container = serde_json::json!({ "args": args });
        assert_eq!(only_namespace(&container, "argo").as_deref(), expect);
    }

    #[test]
    fn flags_restrict_a_controller_to_a_namespace() {
        check_only(&[], None);
        check_only(&["--namespace=shop"], None);
        check_only(&["--namespaced"], Some("argo"));
        check_only(&["--namespaced=false"], None);
        check_only(&["--namespace", "shop", "--namespaced"], Some("shop"));
        check_only(&["--namespaced", "--namespace=shop"], Some("shop"));
    }

    #[test]
    fn a_controller_is_found_by_its_image_with_its_account() {
        let deployment = |account: Value, image: &str| {
            let proxy = json!({"image": "istio/proxyv2:1.30"});
            let pod =
                json!({"serviceAccountName": account, "containers": [proxy, {"image": image}]});
            json!({"spec": {"template": {"spec": pod}}})
        };
        let image = "quay.io/argoproj/argo-rollouts:v1.10.2";
        for (account, expected) in [
            (json!("rollouts"), "argo/rollouts"),
            (Value::Null, "argo/default"),
        ] {
            let found = in_deployment(&deployment(account, image), "argo").unwrap();
            assert_eq!(
                (found.image.as_str(), found.account.to_string().as_str()),
                (image, expected)
            );
        }
        let dashboard = deployment(
            Value::Null,
            "quay.io/argoproj/kubectl-argo-rollouts:v1.10.2",
        );
        assert_eq!(in_deployment(&dashboard, "argo"), None);
    }

    const COMPATIBILITY: &str = include_str!("../../../docs/compatibility.md");
    const BETWEEN_THE_CALLS: &str = include_str!("../../../docs/between-the-calls.md");

    fn release(text: &str) -> Option<ControllerRelease> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn a_release_is_read_from_flags_and_images() {
        for (text, expected) in [
            ("1.10.2", "1.10.2"),
            ("v1.9.3", "1.9.3"),
            ("1.10", "1.10.0"),
            ("v1.8.5-3+fips", "1.8.5"),
        ] {
            let parsed: ControllerRelease = text.parse().unwrap();
            assert_eq!(parsed.to_string(), expected);
        }
        for text in ["0.9", "1.4.9"] {
            let error = text.parse::<ControllerRelease>().unwrap_err();
            assert!(error.contains("it needs 1.5.0 or later"), "{error}");
        }
        for text in ["", "1", "latest", "1.x.2", "1.2.3.4", "1..2"] {
            let error = text.parse::<ControllerRelease>().unwrap_err();
            assert!(error.contains("such as 1.10.2"), "{error}");
        }
        let of_image = ControllerRelease::of_image;
        let expected = release("1.9.1");
        assert_eq!(of_image("quay.io/argoproj/argo-rollouts:v1.9.1"), expected);
        assert_eq!(
            of_image("host:5000/argo-rollouts:v1.9.1@sha256:00ff"),
            expected
        );
        assert_eq!(of_image("host:5000/argo-rollouts"), None);
        assert_eq!(of_image("quay.io/argoproj/argo-rollouts@sha256:00ff"), None);
        assert_eq!(of_image("quay.io/argoproj/argo-rollouts:latest"), None);
    }

    #[test]
    fn the_advice_about_aborts_depends_on_the_release() {
        let advice = |release, delay: Value| {
            let canary = json!({"dynamicStableScale": true, ABORT_DELAY: delay});
            let rollout = json!({"spec": {"strategy": {"canary": canary}}});
            abort_advice(release, &rollout).unwrap_or_default()
        };
        for (name, is_set, expected) in [
            ("1.5.1", false, "set abortScaleDownDelaySeconds"),
            ("1.5.1", true, ""),
            ("1.8.5", false, "set abortScaleDownDelaySeconds"),
            (
                "1.9.0",
                true,
                "(argo-rollouts#4898): remove abortScaleDownDelaySeconds",
            ),
            ("1.9.0", false, ""),
            (
                "1.10.2",
                true,
                "(argo-rollouts#4898): remove abortScaleDownDelaySeconds",
            ),
            ("1.10.2", false, ""),
            ("1.10.3", true, "1.10.3 is not tested"),
            ("1.10.3", false, ""),
            ("", true, "or run validate with --controller-release"),
            ("", false, "run validate with --controller-release"),
        ] {
            let release = name.parse().ok();
            let delay = if is_set { json!(30) } else { Value::Null };
            let said = advice(release, delay);
            assert!(said.contains(expected), "{name} {is_set}: {said}");
            assert_eq!(
                said.is_empty(),
                expected.is_empty(),
                "{name} {is_set}: {said}"
            );
        }
        // 0 has the same effect as no value.
        assert_eq!(advice(release("1.10.2"), json!(0)), "");
        let plain = json!({"spec": {"strategy": {"canary": {ABORT_DELAY: 30}}}});
        assert_eq!(abort_advice(None, &plain), None);
    }

    #[test]
    fn the_documents_say_the_same_about_aborts() {
        let cells = |line: &str| -> Vec<String> {
            let cells = line.trim_matches('|').split('|').skip(1);
            cells.map(|cell| cell.trim().to_owned()).collect()
        };
        let row = |start: &str| {
            let row = COMPATIBILITY.lines().find(|line| line.starts_with(start));
            cells(row.unwrap())
        };
        let releases = row("| | 1.5.1 ");
        let advice = row(&format!("| `{ABORT_DELAY}` with"));
        assert_eq!(releases.len(), advice.len());
        for (release, advice) in releases.iter().zip(advice) {
            let expected = match release.parse::<ControllerRelease>().unwrap().abort_delay() {
                AbortDelay::Needed => "set it",
                AbortDelay::Stalls => "do not set it",
                AbortDelay::Untested => panic!("{release} is tested"),
            };
            assert_eq!(advice, expected, "{release}");
        }
        let (first, last) = (ABORTS_STALL.start(), ABORTS_STALL.end());
        let range = format!("{first} to {last}");
        assert!(BETWEEN_THE_CALLS.contains(&range), "{range}");
    }

    #[test]
    fn ping_pong_is_new_until_a_version_is_promoted() {
        let check = |canary: Value, status: Value| {
            let rollout = json!({"spec": {"strategy": {"canary": canary}}, "status": status});
            let rollout: Rollout = serde_json::from_value(rollout).unwrap();
            let pong = new_pong(&rollout, &rollout.status);
            pong.map(|(service, hash)| (service.to_owned(), hash.to_owned()))
        };
        let pair = json!({"pingPong": {"pingService": "ping", "pongService": "pong"}});
        let existing = json!({"stableRS": "5d4f"});
        let expected = Some(("pong".to_owned(), "5d4f".to_owned()));
        assert_eq!(check(pair.clone(), existing.clone()), expected);
        // A new Rollout, and one that has promoted a version since.
        assert_eq!(check(pair.clone(), json!({})), None);
        let promoted = json!({"stableRS": "5d4f", "canary": {"stablePingPong": "ping"}});
        assert_eq!(check(pair, promoted), None);
        let canary = json!({"stableService": "stable", "canaryService": "canary"});
        assert_eq!(check(canary, existing), None);
    }
}
