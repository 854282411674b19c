//! Checks the permissions that the plugin needs. A missing one is reported with the feature that does not work without it.

use gloo_types::{MirrorPolicy, Resource as _, RouteTable};
use http::Request;
use kube::{Client, Error};
use rollouts_rpc::error_chain;
use route_store::ClientError;
use serde_json::{Value, json};

use super::Finding;

pub(super) const SUBJECT: &str = "permissions";

/// Permissions that one feature needs on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// The verbs of an RBAC rule.
    pub verbs: &'static [&'static str],
    /// The API group.
    pub group: &'static str,
    /// The plural of the kind.
    pub resource: &'static str,
    /// The effect that `doctor` reports if they are missing.
    pub without: &'static str,
}

const fn need(
    verbs: &'static [&'static str],
    (group, resource): (&'static str, &'static str),
    without: &'static str,
) -> Permissions {
    Permissions {
        verbs,
        group,
        resource,
        without,
    }
}

const TABLES: (&str, &str) = (RouteTable::GROUP, RouteTable::PLURAL);
const POLICIES: (&str, &str) = (MirrorPolicy::GROUP, MirrorPolicy::PLURAL);
const ROLLOUTS: (&str, &str) = ("argoproj.io", "rollouts");
const SLICES: (&str, &str) = ("discovery.k8s.io", "endpointslices");
const EVENTS: (&str, &str) = ("", "events");

/// In the cluster of the RouteTables.
const OF_TABLES: [Permissions; 4] = [
    need(&["patch"], TABLES, "no traffic is shifted"),
    need(&["get"], TABLES, "no update is promoted"),
    need(
        &["list"],
        TABLES,
        "RouteTables are found by name only, every call reads them again, and drift waits for the next call",
    ),
    need(
        &["watch"],
        TABLES,
        "every call reads its RouteTables again, and drift waits for the next call",
    ),
];

/// In the same cluster, for Rollouts with mirror steps.
const OF_MIRRORS: [Permissions; 4] = [
    need(&["list", "create"], POLICIES, "setMirrorRoute steps fail"),
    need(
        &["patch"],
        POLICIES,
        "a MirrorPolicy keeps the percentage that it was created with",
    ),
    need(
        &["delete"],
        POLICIES,
        "unused MirrorPolicies are not deleted",
    ),
    need(
        &["watch"],
        POLICIES,
        "every call reads MirrorPolicies again",
    ),
];

/// In the cluster of the Rollouts.
const OF_ROLLOUTS: [Permissions; 6] = [
    need(
        &["get"],
        ROLLOUTS,
        "drift is not repaired, a promotion that waits for Pods continues only with a later call, and a mirror step with percentage 0 copies all requests",
    ),
    need(
        &["list", "watch"],
        ROLLOUTS,
        "tables of deleted Rollouts are not restored",
    ),
    need(
        &["list"],
        SLICES,
        "a promotion does not wait until the stable Service routes to the new Pods",
    ),
    need(
        &["list"],
        ("", "pods"),
        "a promotion does not wait until the stable Service routes to the new Pods",
    ),
    need(
        &["watch"],
        SLICES,
        "a promotion that waits for Pods continues only with a later call",
    ),
    need(
        &["get"],
        ("", "services"),
        "the destination of an experiment gets the port of the stable destination, also if its Service has another one",
    ),
];

/// In the namespace of the controller.
const OF_LEASES: Permissions = need(
    &["get"],
    ("coordination.k8s.io", "leases"),
    "the plugin does not know whether its controller is the leader, and writes nothing between the calls",
);

/// In both clusters.
const OF_EVENTS: [Permissions; 2] = [
    need(
        &["create"],
        EVENTS,
        "no Event reports what the plugin does between the calls",
    ),
    need(&["patch"], EVENTS, "repeated Events have no count"),
];

/// Returns all permissions that the plugin uses and `doctor` checks, each with one verb.
#[must_use]
pub fn permissions() -> Vec<Permissions> {
    let all: [&[Permissions]; 5] = [
        &OF_TABLES,
        &OF_MIRRORS,
        &OF_ROLLOUTS,
        &[OF_LEASES],
        &OF_EVENTS,
    ];
    let all = all.into_iter().flatten();
    all.flat_map(|need| {
        need.verbs
            .chunks(1)
            .map(|verbs| Permissions { verbs, ..*need })
    })
    .collect()
}

/// Permissions, and the namespaces in which they are enough; empty if they have to be for all.
type Check = (Permissions, Vec<String>);

/// Returns the checks in the cluster of the RouteTables, for all namespaces or for each of `namespaces`.
pub(super) fn of_tables(mirrors: bool, namespaces: &[String]) -> Vec<Check> {
    let of_mirrors: &[Permissions] = if mirrors { &OF_MIRRORS } else { &[] };
    in_each(&[&OF_TABLES, of_mirrors, &OF_EVENTS], namespaces)
}

/// Returns the checks in the cluster of the Rollouts, for all namespaces or for each of `namespaces`, and for the
/// controller's.
pub(super) fn of_rollouts(namespaces: &[String], controller: &str) -> Vec<Check> {
    let mut checks = in_each(&[&OF_ROLLOUTS, &OF_EVENTS], namespaces);
    checks.push((OF_LEASES, vec![controller.to_owned()]));
    checks
}

fn in_each(needs: &[&[Permissions]], namespaces: &[String]) -> Vec<Check> {
    let needs = needs.concat().into_iter();
    needs.map(|need| (need, namespaces.to_vec())).collect()
}

/// Permissions with missing verbs, each with its namespaces.
type Missing = (Permissions, Vec<(&'static str, String)>);

/// A cluster in which permissions are checked.
pub(super) struct Cluster<'a> {
    pub(super) client: &'a Client,
    /// The plugin's service account, as namespace/name; `None` if the caller has the plugin's identity.
    pub(super) account: Option<&'a str>,
    /// The role that has to grant missing permissions.
    pub(super) role: &'a str,
    /// Appended to a finding without problems: empty, or the name of the cluster.
    pub(super) place: &'static str,
}

/// Checks permissions. Returns one finding for each feature that lacks some.
pub(super) async fn examine(cluster: Cluster<'_>, checks: Vec<Check>) -> Vec<Finding> {
    let user = cluster
        .account
        .map(|it| format!("system:serviceaccount:{}", it.replace('/', ":")));
    let mut asker = Asker {
        client: cluster.client,
        user,
    };
    let mut missing = Vec::new();
    for (need, namespaces) in checks {
        match asker.missing(&need, &namespaces).await {
            Ok(verbs) if verbs.is_empty() => {}
            Ok(verbs) => missing.push((need, verbs)),
            Err(error) => {
                let error = ClientError::from(error);
                let message = format!("cannot be checked: {}", error_chain(&error));
                return vec![Finding::warning(SUBJECT, message)];
            }
        }
    }
    judge(asker.user.as_deref(), &cluster, &missing)
}

fn judge(user: Option<&str>, cluster: &Cluster<'_>, missing: &[Missing]) -> Vec<Finding> {
    let who = user.unwrap_or("you");
    if missing.is_empty() {
        let message = format!("{who} may do all that the plugin does{}", cluster.place);
        if cluster.account.is_some() && user.is_none() {
            let message = format!(
                "{message}; the permissions of the controller cannot be checked, because you may not create SubjectAccessReviews"
            );
            return vec![Finding::warning(SUBJECT, message)];
        }
        return vec![Finding::ok(SUBJECT, message)];
    }
    let findings = missing.iter().map(|(need, verbs)| {
        let resource = format!("{}.{}", need.resource, need.group);
        // The core group has an empty name.
        let resource = resource.trim_end_matches('.');
        let verbs = verbs
            .iter()
            .map(|(verb, place)| format!("{verb} {resource} in {place}"));
        let verbs = verbs.collect::<Vec<_>>().join("; ");
        let (without, role) = (need.without, cluster.role);
        Finding::problem(
            SUBJECT,
            format!("{who} may not {verbs}: {without}; add that to {role}"),
        )
    });
    findings.collect()
}

/// Asks the API server about the controller's account, or about the caller if that is not permitted.
struct Asker<'a> {
    client: &'a Client,
    user: Option<String>,
}

impl Asker<'_> {
    async fn missing(
        &mut self,
        need: &Permissions,
        namespaces: &[String],
    ) -> Result<Vec<(&'static str, String)>, Error> {
        let mut verbs = Vec::new();
        for verb in need.verbs {
            if self.is_allowed(need, verb, None).await? {
                continue;
            }
            let mut denied = Vec::new();
            for namespace in namespaces {
                if !self.is_allowed(need, verb, Some(namespace)).await? {
                    denied.push(namespace.as_str());
                }
            }
            if namespaces.is_empty() {
                verbs.push((*verb, "all namespaces".to_owned()));
            } else if !denied.is_empty() {
                verbs.push((*verb, format!("namespace {}", denied.join(", "))));
            }
        }
        Ok(verbs)
    }

    async fn is_allowed(
        &mut self,
        need: &Permissions,
        verb: &str,
        namespace: Option<&str>,
    ) -> Result<bool, Error> {
        let attributes = json!({"verb": verb, "group": need.group, "resource": need.resource, "namespace": namespace});
        if let Some(user) = &self.user {
            let spec = json!({"user": user, "resourceAttributes": attributes});
            match self.review("SubjectAccessReview", &spec).await {
                Err(Error::Api(status)) if status.code == 403 => self.user = None,
                answered => return answered,
            }
        }
        let spec = json!({"resourceAttributes": attributes});
        self.review("SelfSubjectAccessReview", &spec).await
    }

    async fn review(&self, kind: &str, spec: &Value) -> Result<bool, Error> {
        let api = "authorization.k8s.io/v1";
        let review = json!({"apiVersion": api, "kind": kind, "spec": spec});
        let request = Request::post(format!("/apis/{api}/{}s", kind.to_lowercase()))
            .header("content-type", "application/json")
            .body(review.to_string().into_bytes());
        let request = request.map_err(Error::HttpError)?;
        let review: Value = self.client.request(request).await?;
        Ok(review.pointer("/status/allowed") == Some(&Value::Bool(true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(user: Option<&str>, account: Option<&str>, missing: &[Missing]) -> Vec<String> {
        let config = kube::Config::new(http::Uri::from_static("http://nowhere"));
        let cluster = Cluster {
            client: &Client::try_from(config).unwrap(),
            account,
            role: "ClusterRole r",
            place: "",
        };
        let findings = judge(user, &cluster, missing);
        findings.into_iter().map(|it| it.message).collect()
    }

    #[tokio::test]
    async fn each_missing_permission_names_the_feature_that_is_off() {
        let account = Some("argo/r");
        assert_eq!(
            findings(Some("system:serviceaccount:argo:r"), account, &[]),
            ["system:serviceaccount:argo:r may do all that the plugin does"],
        );
        assert_eq!(
            findings(None, None, &[]),
            ["you may do all that the plugin does"]
        );
        assert_eq!(
            findings(None, account, &[]),
            [
                "you may do all that the plugin does; the permissions of the controller cannot be checked, because you may not create SubjectAccessReviews"
            ],
        );
        let all = |verb: &&'static str| (*verb, "all namespaces".to_owned());
        let missing = permissions().into_iter();
        let missing = missing.map(|need| (need, need.verbs.iter().map(all).collect()));
        let missing: Vec<Missing> = missing.collect();
        let messages = findings(None, account, &missing);
        assert_eq!(messages.len(), missing.len());
        let off = "you may not watch routetables.networking.gloo.solo.io in all namespaces: every call reads its \
            RouteTables again, and drift waits for the next call; add that to ClusterRole r";
        let core = "you may not create events in all namespaces: no Event";
        for expected in [off, core] {
            let is_there = messages.iter().any(|it| it.starts_with(expected));
            assert!(is_there, "{messages:#?}");
        }
    }
}
