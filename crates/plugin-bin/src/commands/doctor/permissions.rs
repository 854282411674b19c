//! Whether the controller may do what the plugin does in its name, and which feature is off where it may not.

use gloo_types::{MirrorPolicy, Resource, RouteTable};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use rollouts_rpc::error_chain;

use super::Finding;

/// Permissions that one feature needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Need {
    verbs: &'static [&'static str],
    group: &'static str,
    resource: &'static str,
    /// What happens without them.
    without: &'static str,
}

/// Permissions in the cluster of the RouteTables; those on MirrorPolicies are for Rollouts with mirror steps.
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
            "MirrorPolicies stay where they are not wanted any more",
        ));
        needs.push(policies(
            &["watch"],
            "every call reads MirrorPolicies again",
        ));
    }
    needs
}

/// Permissions in the cluster of the Rollouts, beside those on Leases.
fn in_local_cluster(mirrors: bool) -> Vec<Need> {
    let need = |verbs, group, resource, without| Need {
        verbs,
        group,
        resource,
        without,
    };
    let rollouts = |verbs, without| need(verbs, "argoproj.io", "rollouts", without);
    let without_zero = if mirrors {
        "drift is not repaired, a promotion that waits for Pods goes on with a later call only, and a mirror step with \
         percentage 0 copies all requests"
    } else {
        "drift is not repaired, and a promotion that waits for Pods goes on with a later call only"
    };
    let without_look = "a promotion does not wait until the stable Service leads to the new Pods";
    vec![
        rollouts(&["get"], without_zero),
        rollouts(&["list", "watch"], "what a deleted Rollout leaves stays"),
        need(
            &["list"],
            "discovery.k8s.io",
            "endpointslices",
            without_look,
        ),
        need(&["list"], "", "pods", without_look),
        need(
            &["watch"],
            "discovery.k8s.io",
            "endpointslices",
            "a promotion that waits for Pods goes on with a later call only",
        ),
    ]
}

/// The controller renews its Lease in its own namespace.
const LEASES: Need = Need {
    verbs: &["get"],
    group: "coordination.k8s.io",
    resource: "leases",
    without: "it is not known whether this controller is the leader, and nothing is written between the calls",
};

const EVENTS: [Need; 2] = [
    Need {
        verbs: &["create"],
        group: "",
        resource: "events",
        without: "what the plugin does between the calls is not shown as Events",
    },
    Need {
        verbs: &["patch"],
        group: "",
        resource: "events",
        without: "Events do not tell how often the same was done",
    },
];

/// A permission that the plugin uses, and that `doctor` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// As RBAC rules call it.
    pub verb: &'static str,
    /// The API group.
    pub group: &'static str,
    /// The plural of the kind.
    pub resource: &'static str,
    /// What the doctor says happens without it.
    pub without: &'static str,
}

/// All permissions that the plugin uses, and that `doctor` asks for.
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

/// Where permissions are asked for.
pub(super) struct Place<'a> {
    pub(super) subject: &'static str,
    pub(super) client: &'a Client,
    /// The account that the plugin has there, as namespace/name; `None` if the caller has it.
    pub(super) account: Option<&'a str>,
    /// The role that lacks what is missing.
    pub(super) role: &'static str,
}

/// What the plugin needs where the RouteTables are, in all namespaces or in each of `namespaces`.
pub(super) fn of_tables(mirrors: bool, namespaces: &[String]) -> Vec<Asked> {
    let needs = in_tables_cluster(mirrors).into_iter().chain(EVENTS);
    needs
        .map(|need| Asked::anywhere(need, namespaces))
        .collect()
}

/// What it needs where the Rollouts are, in all namespaces or in each of `namespaces`, and in that of the controller.
pub(super) fn of_rollouts(mirrors: bool, namespaces: &[String], controller: &str) -> Vec<Asked> {
    let needs = in_local_cluster(mirrors).into_iter().chain(EVENTS);
    let needs = needs.map(|need| Asked::anywhere(need, namespaces));
    let leases = Asked {
        need: LEASES,
        everywhere: false,
        namespaces: vec![controller.to_owned()],
    };
    needs.chain([leases]).collect()
}

/// A need, and where it may be met.
pub(super) struct Asked {
    need: Need,
    /// Whether all namespaces are asked for first.
    everywhere: bool,
    namespaces: Vec<String>,
}

impl Asked {
    fn anywhere(need: Need, namespaces: &[String]) -> Self {
        Self {
            need,
            everywhere: true,
            namespaces: namespaces.to_vec(),
        }
    }
}

/// What is missing for a need: verbs, each with the namespaces.
struct Missing {
    need: Need,
    verbs: Vec<(&'static str, String)>,
}

/// Asks for permissions. One finding for each feature that lacks some.
pub(super) async fn examine(place: Place<'_>, asked: Vec<Asked>) -> Vec<Finding> {
    let Place {
        subject,
        client,
        account,
        role,
    } = place;
    let user = account.map(|it| format!("system:serviceaccount:{}", it.replace('/', ":")));
    let is_account = user.is_some();
    let mut asker = Asker { client, user };
    let mut missing = Vec::new();
    for asked in asked {
        match asker.missing(asked).await {
            Ok(found) => missing.extend(found),
            Err(error) => {
                let message = format!("cannot be asked for: {}", error_chain(&error));
                return vec![Finding::warning(subject, message)];
            }
        }
    }
    let who = asker.user.as_deref();
    judge(subject, who, is_account, role, &missing)
}

fn judge(
    subject: &'static str,
    user: Option<&str>,
    is_account: bool,
    role: &str,
    missing: &[Missing],
) -> Vec<Finding> {
    let who = user.unwrap_or("you");
    if missing.is_empty() {
        let other = if is_account && user.is_none() {
            "; you may not ask for the rights of the controller"
        } else {
            ""
        };
        let message = format!("{who} may do all that the plugin does{other}");
        return vec![Finding::ok(subject, message)];
    }
    let findings = missing.iter().map(|Missing { need, verbs }| {
        let resource = format!("{}.{}", need.resource, need.group);
        // The core group has no name.
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

/// Asks about the controller's account or, where nobody may ask that, about whoever asks.
struct Asker<'a> {
    client: &'a Client,
    user: Option<String>,
}

impl Asker<'_> {
    async fn missing(&mut self, asked: Asked) -> Result<Option<Missing>, Error> {
        let Asked {
            need,
            everywhere,
            namespaces,
        } = asked;
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
        let findings = judge("rights", user, is_account, "ClusterRole r", missing);
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
                "you may do all that the plugin does; you may not ask for the rights of the controller",
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
        let findings = judge("rights", None, true, "ClusterRole r", &missing);
        assert_eq!(findings.len(), missing.len());
        assert_eq!(findings[3].message, off);
        let core = "you may not create events in all namespaces: what";
        let events = &findings[8].message;
        assert!(events.starts_with(core), "{events}");
    }
}
