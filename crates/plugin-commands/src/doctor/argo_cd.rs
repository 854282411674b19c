//! Finds Argo CD Applications that would revert the plugin's changes.

use gloo_types::{Resource as _, RouteTable, RouteTableDoc};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use route_store::FIELD_MANAGER;
use serde_json::Value;

use super::super::node::Node;
use super::Finding;

pub(super) const SUBJECT: &str = "Argo CD";

/// How Argo CD marks the objects that it applies (`util/argo/resource_tracking.go`).
const TRACKING_ID: &str = "argocd.argoproj.io/tracking-id";
const TRACKING_LABEL: &str = "app.kubernetes.io/instance";

/// Checks the Applications that apply one of the `selected` tables.
pub(super) fn examine(selected: &[RouteTableDoc], applications: &[DynamicObject]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut applied = 0;
    for table in selected {
        let Some(application) = applications.iter().find(|it| applies(it, table)) else {
            continue;
        };
        applied += 1;
        if is_ignored(&application.data) {
            continue;
        }
        let policy = Node::root(&application.data).get("spec.syncPolicy");
        let when = match policy.get("automated.selfHeal").is_true() {
            true => "at once (selfHeal)",
            false => "with its next sync",
        };
        let message = format!(
            "Application {} reverts the weights of RouteTable {} {when}: give it ignoreDifferences of RouteTables with \
             managedFieldsManagers [{FIELD_MANAGER}], and the sync option RespectIgnoreDifferences=true",
            application.name_any(),
            table.key()
        );
        findings.push(Finding::problem(SUBJECT, message));
    }
    if findings.is_empty() {
        let message = format!(
            "no Application reverts the tables; Argo CD applies {applied} of {}",
            selected.len()
        );
        findings.push(Finding::ok(SUBJECT, message));
    }
    findings
}

fn applies(application: &DynamicObject, table: &RouteTableDoc) -> bool {
    let name = application.name_any();
    let qualified = format!("{}_{name}", application.namespace().unwrap_or_default());
    let annotations = table.annotations();
    let id = annotations.and_then(|annotations| annotations.get(TRACKING_ID));
    let tracked = id.and_then(|id| id.split(':').next());
    let label = table.labels().get(TRACKING_LABEL).map(String::as_str);
    tracked
        .or(label)
        .is_some_and(|owner| owner == name || owner == qualified)
}

/// Whether the Application ignores differences of RouteTables, also when it syncs.
fn is_ignored(application: &Value) -> bool {
    let spec = Node::root(application).get("spec");
    let options = spec.get("syncPolicy.syncOptions").items();
    let respects = |it: &Node<'_>| it.text() == "RespectIgnoreDifferences=true";
    let is_of_tables = |it: &Node<'_>| {
        matches!(it.get("kind").text(), "*" | RouteTable::KIND)
            && matches!(it.get("group").text(), "*" | RouteTable::GROUP)
    };
    let ignored = spec.get("ignoreDifferences").items();
    options.iter().any(respects) && ignored.iter().any(is_of_tables)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Verdict;
    use super::*;

    fn table(metadata: Value) -> RouteTableDoc {
        let mut table = json!({"kind": "RouteTable", "metadata": {"name": "shop", "namespace": "mesh"}, "spec": {}});
        json_patch::merge(&mut table, &json!({"metadata": metadata}));
        RouteTableDoc::from_value(table).unwrap()
    }

    #[track_caller]
    fn check(metadata: Value, spec: Value, expect: Verdict) {
        let application =
            json!({"metadata": {"name": "shop-app", "namespace": "argocd"}, "spec": spec});
        let application = serde_json::from_value(application).unwrap();
        let findings = examine(&[table(metadata)], &[application]);
        assert_eq!(findings[0].verdict, expect, "{findings:?}");
    }

    #[test]
    fn an_application_that_applies_the_table_has_to_ignore_it() {
        let by_annotation = json!({"annotations": {TRACKING_ID: "shop-app:networking.gloo.solo.io/RouteTable:mesh/shop"}});
        let by_label = json!({"labels": {TRACKING_LABEL: "argocd_shop-app"}});
        let ignored = json!([{"group": "networking.gloo.solo.io", "kind": "RouteTable", "jsonPointers": ["/spec/http"]}]);
        let respected = json!({"syncOptions": ["RespectIgnoreDifferences=true"]});
        for metadata in [by_annotation, by_label] {
            check(metadata.clone(), json!({}), Verdict::Problem);
            check(
                metadata.clone(),
                json!({"ignoreDifferences": ignored}),
                Verdict::Problem,
            );
            check(
                metadata.clone(),
                json!({"syncPolicy": respected}),
                Verdict::Problem,
            );
            let spec = json!({"ignoreDifferences": ignored, "syncPolicy": respected});
            check(metadata, spec, Verdict::Ok);
        }
        check(json!({}), json!({}), Verdict::Ok);
        check(
            json!({"labels": {TRACKING_LABEL: "other"}}),
            json!({}),
            Verdict::Ok,
        );
    }
}
