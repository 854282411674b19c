//! Checks the permissions that the plugin needs. A missing one is reported with the feature that does not work without it.

use gloo_types::{MirrorPolicy, Resource, RouteTable};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use rollouts_rpc::error_chain;
use route_store::ClientError;

use super::Finding;

/// Permissions that one feature needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Need {
    verbs: &'static [&'static str],
    group: &'static str,
    resource: &'static str,
    /// The effect if they are missing.
    without: &'static str,
}

/// Returns the permissions in the cluster of the RouteTables. Those on MirrorPolicies are for Rollouts with mirror steps.
fn in_tables_cluster(mirrors: bool) -> Vec<Need> {
    let tables = |verbs, without| Need {
        verbs,
        group: RouteTable::GROUP,
        resource: RouteTable::PLURAL,
        without,
    };
    let policies = |verbs, without| Need {
        verbs,
        group: MirrorPolicy::GROUP,
        resource: MirrorPolicy::PLURAL,
        without,
    };
    let mut needs = vec![
        tables(&["patch"], "no traffic is shifted"),
        tables(&["get"], "no update is promoted"),
        tables(
            &["list"],
            "RouteTables are found by name only, every call reads them again, and drift waits for the next call",
        ),
        tables(
            &["watch"],
            "every call reads its RouteTables again, and drift waits for the next call",
        ),
    ];
    if mirrors {
        needs.push(policies(&["list", "create"], "setMirrorRoute steps fail"));
        needs.push(policies(
            &["patch"],
            "a MirrorPolicy keeps the percentage that it was created with",
        ));
        needs.push(policies(
            &["delete"],
            "unused MirrorPolicies are not deleted",
        ));
        needs.push(policies(
            &["watch"],
            "every call reads MirrorPolicies again",
        ));
    }
    needs
}

/// Returns the permissions in the cluster of the Rollouts, except those on Leases.
fn in_local_cluster(mirrors: bool) -> Vec<Need> {
    let need = |verbs, group, resource, without| Need {
        verbs,
        group,
        resource,
        without,
    };
    let rollouts = |verbs, without| need(verbs, "argoproj.io", "rollouts", without);
    let without_zero = if mirrors {
        "drift is not repaired, a promotion that waits for Pods continues only with a later call, and a mirror step with \
         percentage 0 copies all requests"
    } else {
        "drift is not repaired, and a promotion that waits for Pods continues only with a later call"
    };
    let without_pods = "a promotion does not wait until the stable Service leads to the new Pods";
    vec![
        rollouts(&["get"], without_zero),
        rollouts(
            &["list", "watch"],
            "tables of deleted Rollouts are not restored",
        ),
        need(
            &["list"],
            "discovery.k8s.io",
            "endpointslices",
            without_pods,
        ),
        need(&["list"], "", "pods", without_pods),
        need(
            &["watch"],
            "discovery.k8s.io",
            "endpointslices",
            "a promotion that waits for Pods continues only with a later call",
        ),
    ]
}

/// The controller's Lease is in the controller's namespace.
const LEASES: Need = Need {
    verbs: &["get"],
    group: "coordination.k8s.io",
    resource: "leases",
    without: "the plugin does not know whether its controller is the leader, and writes nothing between the calls",
};

const EVENTS: [Need; 2] = [
    Need {
        verbs: &["create"],
        group: "",
        resource: "events",
        without: "no Event reports what the plugin does between the calls",
    },
    Need {
        verbs: &["patch"],
        group: "",
        resource: "events",
        without: "repeated Events have no count",
    },
];

/// A permission that the plugin uses and `doctor` checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The verb of an RBAC rule.
    pub verb: &'static str,
    /// The API group.
    pub group: &'static str,
    /// The plural of the kind.
    pub resource: &'static str,
    /// The effect that `doctor` reports if it is missing.
    pub without: &'static str,
}

/// Returns all permissions that the plugin uses and `doctor` checks.
#[must_use]
pub fn permissions() -> Vec<Permission> {
    let needs = in_tables_cluster(true).into_iter();
    let needs = needs
        .chain(in_local_cluster(true))
        .chain([LEASES])
        .chain(EVENTS);
    let permissions = needs.flat_map(|need| {
        need.verbs.iter().map(move |verb| Permission {
            verb,
            group: need.group,
            resource: need.resource,
            without: need.without,
        })
    });
    permissions.collect()
}

/// A cluster in which permissions are checked.
pub(super) struct Cluster<'a> {
    pub(super) subject: &'static str,
    pub(super) client: &'a Client,
    /// The plugin's service account, as namespace/name; `None` if the caller has the plugin's identity.
    pub(super) account: Option<&'a str>,
    /// The role that has to grant missing permissions.
    pub(super) role: &'a str,
    /// Appended to a finding without problems: empty, or the name of the cluster.
    pub(super) place: &'static str,
}

/// Returns the checks in the cluster of the RouteTables, for all namespaces or for each of `namespaces`.
pub(super) fn of_tables(mirrors: bool, namespaces: &[String]) -> Vec<Check> {
    let needs = in_tables_cluster(mirrors).into_iter().chain(EVENTS);
    needs
        .map(|need| Check::anywhere(need, namespaces))
        .collect()
}

/// Returns the checks in the cluster of the Rollouts, for all namespaces or for each of `namespaces`, and for the
/// controller's.
pub(super) fn of_rollouts(mirrors: bool, namespaces: &[String], controller: &str) -> Vec<Check> {
    let needs = in_local_cluster(mirrors).into_iter().chain(EVENTS);
    let needs = needs.map(|need| Check::anywhere(need, namespaces));
    let leases = Check {
        need: LEASES,
        everywhere: false,
        namespaces: vec![controller.to_owned()],
    };
    needs.chain([leases]).collect()
}

/// A need, and the namespaces in which it is checked.
pub(super) struct Check {
    need: Need,
    /// Whether permission for all namespaces is checked first.
    everywhere: bool,
    namespaces: Vec<String>,
}

impl Check {
    fn anywhere(need: Need, namespaces: &[String]) -> Self {
        Self {
            need,
            everywhere: true,
            namespaces: namespaces.to_vec(),
        }
    }
}

/// The missing verbs of a need, each with its namespaces.
struct Missing {
    need: Need,
    verbs: Vec<(&'static str, String)>,
}

/// Checks permissions. Returns one finding for each feature that lacks some.
pub(super) async fn examine(cluster: Cluster<'_>, checks: Vec<Check>) -> Vec<Finding> {
    let Cluster {
        subject,
        client,
        account,
        role,
        place,
    } = cluster;
    let user = account.map(|it| format!("system:serviceaccount:{}", it.replace('/', ":")));
    let is_account = user.is_some();
    let mut asker = Asker { client, user };
    let mut missing = Vec::new();
    for check in checks {
        match asker.missing(check).await {
            Ok(found) => missing.extend(found),
            Err(error) => {
                let error = ClientError::from(error);
                let message = format!("cannot be checked: {}", error_chain(&error));
                return vec![Finding::warning(subject, message)];
            }
        }
    }
    let who = asker.user.as_deref();
    judge(subject, who, is_account, role, place, &missing)
}

fn judge(
    subject: &'static str,
    user: Option<&str>,
    is_account: bool,
    role: &str,
    place: &str,
    missing: &[Missing],
) -> Vec<Finding> {
    let who = user.unwrap_or("you");
    if missing.is_empty() {
        let message = format!("{who} may do all that the plugin does{place}");
        if is_account && user.is_none() {
            let message = format!(
                "{message}; the permissions of the controller cannot be checked, because you may not create SubjectAccessReviews"
            );
            return vec![Finding::warning(subject, message)];
        }
        return vec![Finding::ok(subject, message)];
    }
    let findings = missing.iter().map(|Missing { need, verbs }| {
        let resource = format!("{}.{}", need.resource, need.group);
        // The core group has an empty name.
        let resource = resource.trim_end_matches('.');
        let verbs = verbs
            .iter()
            .map(|(verb, place)| format!("{verb} {resource} in {place}"));
        let verbs = verbs.collect::<Vec<_>>().join("; ");
        let message = format!(
            "{who} may not {verbs}: {}; add that to {role}",
            need.without
        );
        Finding::problem(subject, message)
    });
    findings.collect()
}

/// Asks the API server about the controller's account, or about the caller if that is not permitted.
struct Asker<'a> {
    client: &'a Client,
    user: Option<String>,
}

impl Asker<'_> {
    async fn missing(&mut self, check: Check) -> Result<Option<Missing>, Error> {
        let Check {
            need,
            everywhere,
            namespaces,
        } = check;
        let mut verbs = Vec::new();
        for verb in need.verbs {
            if everywhere && !self.is_denied(need, verb, None).await? {
                continue;
            }
            if namespaces.is_empty() {
                verbs.push((*verb, "all namespaces".to_owned()));
                continue;
            }
            let mut denied = Vec::new();
            for namespace in &namespaces {
                if self.is_denied(need, verb, Some(namespace)).await? {
                    denied.push(namespace.as_str());
                }
            }
            if !denied.is_empty() {
                verbs.push((*verb, format!("namespace {}", denied.join(", "))));
            }
        }
        Ok((!verbs.is_empty()).then_some(Missing { need, verbs }))
    }

    async fn is_denied(
        &mut self,
        need: Need,
        verb: &str,
        namespace: Option<&str>,
    ) -> Result<bool, Error> {
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            group: Some(need.group.to_owned()),
            resource: Some(need.resource.to_owned()),
            namespace: namespace.map(str::to_owned),
            ..ResourceAttributes::default()
        };
        if let Some(user) = self.user.clone() {
            match self.review(user, attributes.clone()).await {
                Err(Error::Api(status)) if status.code == 403 => self.user = None,
                answered => return answered,
            }
        }
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await?;
        Ok(!review.status.is_some_and(|status| status.allowed))
    }

    async fn review(&self, user: String, attributes: ResourceAttributes) -> Result<bool, Error> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await?;
        Ok(!review.status.is_some_and(|status| status.allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(user: Option<&str>, is_account: bool, missing: &[Missing], expect: &[&str]) {
        let findings = judge(
            "permissions",
            user,
            is_account,
            "ClusterRole r",
            "",
            missing,
        );
        let messages: Vec<&str> = findings.iter().map(|it| it.message.as_str()).collect();
        assert_eq!(messages, expect);
    }

    #[test]
    fn each_missing_permission_names_the_feature_that_is_off() {
        check(
            Some("system:serviceaccount:argo:r"),
            true,
            &[],
            &["system:serviceaccount:argo:r may do all that the plugin does"],
        );
        check(None, false, &[], &["you may do all that the plugin does"]);
        check(
            None,
            true,
            &[],
            &[
                "you may do all that the plugin does; the permissions of the controller cannot be checked, because you may not create SubjectAccessReviews",
            ],
        );
        let all = || "all namespaces".to_owned();
        let missing = in_tables_cluster(true)
            .into_iter()
            .chain(EVENTS)
            .chain([LEASES]);
        let missing: Vec<Missing> = missing
            .map(|need| Missing {
                need,
                verbs: need.verbs.iter().map(|verb| (*verb, all())).collect(),
            })
            .collect();
        let off = "you may not watch routetables.networking.gloo.solo.io in all namespaces: every call reads its \
            RouteTables again, and drift waits for the next call; add that to ClusterRole r";
        let findings = judge("permissions", None, true, "ClusterRole r", "", &missing);
        assert_eq!(findings.len(), missing.len());
        assert_eq!(findings[3].message, off);
        let core = "you may not create events in all namespaces: no Event";
        let events = &findings[8].message;
        assert!(events.starts_with(core), "{events}");
    }
}
