//! Whether the controller may do what the plugin does in its name.

use gloo_types::{MirrorPolicy, Resource, RouteTable};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use rollouts_rpc::error_chain;

use super::Finding;

const SUBJECT: &str = "rights";

/// A verb on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
}

/// Everything the plugin asks of the API server; policies are for Rollouts with mirror steps.
fn needed(mirrors: bool) -> Vec<Right> {
    let rights = |group, resource, verbs: &[&'static str]| {
        let right = |verb: &&'static str| Right {
            verb,
            group,
            resource,
        };
        verbs.iter().map(right).collect::<Vec<_>>()
    };
    let mut needed = rights(
        RouteTable::GROUP,
        RouteTable::PLURAL,
        &["get", "list", "watch", "patch"],
    );
    if mirrors {
        let verbs = ["get", "list", "watch", "create", "patch", "delete"];
        needed.extend(rights(MirrorPolicy::GROUP, MirrorPolicy::PLURAL, &verbs));
    }
    needed
}

/// Asks for every right: everywhere or, where that is denied, in each of `namespaces`.
pub(super) async fn examine(
    client: &Client,
    account: &str,
    mirrors: bool,
    namespaces: &[String],
) -> Finding {
    let user = format!("system:serviceaccount:{}", account.replace('/', ":"));
    let mut asker = Asker {
        client,
        user: Some(user),
    };
    let mut missing = Vec::new();
    for right in needed(mirrors) {
        let mut denied = match asker.is_denied(right, None).await {
            Ok(denied) => denied.then(|| "all namespaces".to_owned()),
            Err(error) => {
                let message = format!("cannot be asked for: {}", error_chain(&error));
                return Finding::warning(SUBJECT, message);
            }
        };
        if denied.is_some() && !namespaces.is_empty() && right.resource == RouteTable::PLURAL {
            let mut in_namespaces = Vec::new();
            for namespace in namespaces {
                if asker
                    .is_denied(right, Some(namespace))
                    .await
                    .unwrap_or(true)
                {
                    in_namespaces.push(namespace.as_str());
                }
            }
            denied = (!in_namespaces.is_empty())
                .then(|| format!("namespace {}", in_namespaces.join(", ")));
        }
        missing.extend(denied.map(|place| (right, place)));
    }
    judge(asker.user.as_deref(), &missing)
}

fn judge(user: Option<&str>, missing: &[(Right, String)]) -> Finding {
    let who = user.unwrap_or("you");
    if missing.is_empty() {
        return match user {
            Some(user) => Finding::ok(SUBJECT, format!("{user} may do all that the plugin does")),
            None => Finding::ok(
                SUBJECT,
                "you may do all that the plugin does; you may not ask for the rights of the controller",
            ),
        };
    }
    let missing = missing.iter().map(|(right, place)| {
        let Right {
            verb,
            group,
            resource,
        } = right;
        format!("{verb} {resource}.{group} in {place}")
    });
    let missing = missing.collect::<Vec<_>>().join("; ");
    Finding::problem(
        SUBJECT,
        format!("{who} may not {missing}: add that to ClusterRole argo-rollouts-gloo-platform"),
    )
}

/// Asks about the controller's account or, where nobody may ask that, about whoever asks.
struct Asker<'a> {
    client: &'a Client,
    user: Option<String>,
}

impl Asker<'_> {
    async fn is_denied(&mut self, right: Right, namespace: Option<&str>) -> Result<bool, Error> {
        let attributes = ResourceAttributes {
            verb: Some(right.verb.to_owned()),
            group: Some(right.group.to_owned()),
            resource: Some(right.resource.to_owned()),
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
