//! Finds Argo CD Applications that would revert the plugin's changes.

use gloo_types::{Resource as _, RouteTable, RouteTableDoc};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use route_planner::PluginConfig;
use route_store::FIELD_MANAGER;
use serde_json::Value;

use super::super::node::Node;
use super::Finding;

pub(super) const SUBJECT: &str = "Argo CD";

/// How Argo CD marks the objects that it applies (`util/argo/resource_tracking.go`).
const TRACKING_ID: &str = "argocd.argoproj.io/tracking-id";
const TRACKING_LABEL: &str = "app.kubernetes.io/instance";

/// A table that Rollouts select.
pub(super) struct Selected {
    table: RouteTableDoc,
    /// The lists under `spec` that the plugin may change.
    lists: Vec<&'static str>,
}

impl Selected {
    /// Returns those of the `tables` that one of the Rollouts with these `configs` selects.
    pub(super) fn all(tables: Vec<RouteTableDoc>, configs: &[&PluginConfig]) -> Vec<Self> {
        let selected = tables.into_iter().filter_map(|table| {
            let configs = configs.iter().map(|it| (it.route_tables(), it.routes()));
            let mut selectors = configs.filter(|(it, _)| it.matches(table.key(), table.labels()));
            let first = selectors.next()?.1;
            let selectors: Vec<_> = selectors.map(|(_, routes)| routes).chain([first]).collect();
            // A table whose routes cannot be read is never changed.
            let spec = table.spec().unwrap_or_default();
            let is_changed = [
                ("http", !spec.http.is_empty()),
                (
                    "tcp",
                    selectors
                        .iter()
                        .any(|it| spec.tcp.iter().any(|route| it.matches_tcp(route))),
                ),
                (
                    "tls",
                    selectors
                        .iter()
                        .any(|it| spec.tls.iter().any(|route| it.matches_tls(route))),
                ),
            ];
            let lists = is_changed
                .into_iter()
                .filter_map(|(list, is_changed)| is_changed.then_some(list));
            let lists = lists.collect();
            Some(Self { table, lists })
        });
        selected.collect()
    }
}

/// Checks the Applications that apply one of the `selected` tables.
pub(super) fn examine(selected: &[Selected], applications: &[DynamicObject]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut applied = 0;
    for Selected { table, lists } in selected {
        let Some(application) = applications.iter().find(|it| applies(it, table)) else {
            continue;
        };
        applied += 1;
        let (name, key) = (application.name_any(), table.key());
        let policy = Node::root(&application.data).get("spec.syncPolicy");
        let ignored = Ignored::of(&application.data, table);
        let kept: Vec<_> = lists
            .iter()
            .filter_map(|list| ignored.path_of(list))
            .collect();
        if !ignored.at_syncs || !ignored.by_manager && kept.len() < lists.len() {
            let when = match policy.get("automated.selfHeal").is_true() {
                true => "at once (selfHeal)",
                false => "with its next sync",
            };
            let message = format!(
                "Application {name} reverts the weights of RouteTable {key} {when}: give it ignoreDifferences of RouteTables with \
                 managedFieldsManagers [{FIELD_MANAGER}], and the sync option RespectIgnoreDifferences=true"
            );
            findings.push(Finding::problem(SUBJECT, message));
        } else if !kept.is_empty() {
            let paths = kept.join(", ");
            let message = format!(
                "Application {name} ignores {paths} of RouteTable {key} also at rest, so no edit of its routes in Git arrives: \
                 replace the path in ignoreDifferences with managedFieldsManagers [{FIELD_MANAGER}]"
            );
            findings.push(Finding::warning(SUBJECT, message));
        }
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

/// What an Application ignores of one table. Argo CD merges all entries that select an object
/// (`util/argo/diff/ignore.go`, `util/argo/normalizers/diff_normalizer.go`).
struct Ignored {
    /// Whether a sync keeps what is ignored.
    at_syncs: bool,
    /// Whether it is what the plugin's field manager owns, which is something only while a canary has a share.
    by_manager: bool,
    /// JSON pointers and jq paths, which are ignored at rest too.
    paths: Vec<String>,
}

impl Ignored {
    fn of(application: &Value, table: &RouteTableDoc) -> Self {
        let spec = Node::root(application).get("spec");
        let key = table.key();
        let is_or_unset = |it: Node<'_>, name: &str| it.text().is_empty() || it.text() == name;
        let mut entries = spec.get("ignoreDifferences").items();
        entries.retain(|it| {
            matches(it.get("group").text(), RouteTable::GROUP)
                && matches(it.get("kind").text(), RouteTable::KIND)
                && is_or_unset(it.get("name"), &key.name)
                && is_or_unset(it.get("namespace"), &key.namespace)
        });
        let texts = |field: &str| {
            let items = entries.iter().flat_map(|it| it.get(field).items());
            items.map(|it| it.text().to_owned()).collect::<Vec<_>>()
        };
        let options = spec.get("syncPolicy.syncOptions").items();
        Self {
            at_syncs: options
                .iter()
                .any(|it| it.text() == "RespectIgnoreDifferences=true"),
            by_manager: texts("managedFieldsManagers")
                .iter()
                .any(|it| it == FIELD_MANAGER),
            paths: [texts("jsonPointers"), texts("jqPathExpressions")].concat(),
        }
    }

    /// Returns a path that covers a whole list under `spec`. A path to a part of the list does not protect the weights: Argo CD
    /// applies a list as a whole, and takes that of Git if it does not have this part.
    fn path_of(&self, list: &str) -> Option<&str> {
        let covers = |path: &str| match path.strip_prefix('/') {
            Some(pointer) => pointer == "spec" || pointer.strip_prefix("spec/") == Some(list),
            None => {
                path == ".spec" || path.trim_end_matches("[]").strip_prefix(".spec.") == Some(list)
            }
        };
        let paths = self.paths.iter().map(String::as_str);
        paths.map(str::trim).find(|path| covers(path))
    }
}

/// Whether a text matches a pattern in which `*` stands for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let mut parts: Vec<_> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    let inside = text
        .strip_prefix(start)
        .and_then(|text| text.strip_suffix(end));
    let after = inside.and_then(|text| {
        let mut parts = parts.into_iter();
        parts.try_fold(text, |text, part| Some(text.split_once(part)?.1))
    });
    after.is_some()
}

#[cfg(test)]
mod tests {
    use gloo_types::ObjectKey;
    use serde_json::json;

    use super::super::Verdict;
    use super::*;

    const BY_LABEL: &str =
        r#"{"metadata": {"labels": {"app.kubernetes.io/instance": "argocd_shop-app"}}}"#;

    /// Checks a table with these changes, in a Rollout with this block of the plugin, and an Application with this `spec`.
    #[track_caller]
    fn check_table(changes: Value, block: Value, spec: Value, expect: Verdict) -> String {
        let mut table = json!({
            "kind": "RouteTable",
            "metadata": {"name": "shop", "namespace": "mesh"},
            "spec": {"http": [{"name": "reviews"}]},
        });
        json_patch::merge(&mut table, &changes);
        let table = RouteTableDoc::from_value(table).unwrap();
        let rollout = ObjectKey::new("mesh", "reviews");
        let config = PluginConfig::from_json(block.to_string().as_bytes(), &rollout, &[]).unwrap();
        let selected = Selected::all(vec![table], &[&config]);
        let application =
            json!({"metadata": {"name": "shop-app", "namespace": "argocd"}, "spec": spec});
        let application = serde_json::from_value(application).unwrap();
        let findings = examine(&selected, &[application]);
        assert_eq!(findings[0].verdict, expect, "{findings:?}");
        findings[0].message.clone()
    }

    #[track_caller]
    fn check(changes: Value, spec: Value, expect: Verdict) {
        let block = json!({"routeTableSelector": {"name": "shop"}});
        check_table(changes, block, spec, expect);
    }

    /// Checks the entry of `ignoreDifferences` with these fields.
    #[track_caller]
    fn check_entry(fields: Value, expect: Verdict) {
        let mut entry = json!({"group": RouteTable::GROUP, "kind": RouteTable::KIND});
        json_patch::merge(&mut entry, &fields);
        let respected = json!({"syncOptions": ["RespectIgnoreDifferences=true"]});
        let spec = json!({"ignoreDifferences": [entry], "syncPolicy": respected});
        check(serde_json::from_str(BY_LABEL).unwrap(), spec, expect);
    }

    #[test]
    fn an_application_that_applies_the_table_has_to_ignore_it() {
        let by_annotation = json!({"annotations": {TRACKING_ID: "shop-app:networking.gloo.solo.io/RouteTable:mesh/shop"}});
        let by_label = json!({"labels": {TRACKING_LABEL: "argocd_shop-app"}});
        let ignored = json!([{"group": RouteTable::GROUP, "kind": "RouteTable", "managedFieldsManagers": [FIELD_MANAGER]}]);
        let respected = json!({"syncOptions": ["RespectIgnoreDifferences=true"]});
        for metadata in [by_annotation, by_label] {
            let changes = json!({"metadata": metadata});
            check(changes.clone(), json!({}), Verdict::Problem);
            check(
                changes.clone(),
                json!({"ignoreDifferences": ignored}),
                Verdict::Problem,
            );
            check(
                changes.clone(),
                json!({"syncPolicy": respected}),
                Verdict::Problem,
            );
            let spec = json!({"ignoreDifferences": ignored, "syncPolicy": respected});
            check(changes, spec, Verdict::Ok);
        }
        check(json!({}), json!({}), Verdict::Ok);
        check(
            json!({"metadata": {"labels": {TRACKING_LABEL: "other"}}}),
            json!({}),
            Verdict::Ok,
        );
    }

    #[test]
    fn an_entry_counts_if_it_selects_the_table_and_names_the_field_manager() {
        let managers = "managedFieldsManagers";
        for (mut fields, expect) in [
            (json!({}), Verdict::Ok),
            (json!({"name": "shop", "namespace": "mesh"}), Verdict::Ok),
            (json!({"group": "*", "kind": "*"}), Verdict::Ok),
            (json!({"group": "*.solo.io", "kind": "Route*"}), Verdict::Ok),
            (json!({"group": "n*.gloo.*o"}), Verdict::Ok),
            (json!({"group": "*.gloo.*.gloo.*"}), Verdict::Problem),
            (json!({"group": null}), Verdict::Problem),
            (json!({"kind": "VirtualGateway"}), Verdict::Problem),
            (json!({"name": "cart"}), Verdict::Problem),
            (json!({"namespace": "other"}), Verdict::Problem),
            (json!({managers: ["kubectl"]}), Verdict::Problem),
            (json!({managers: null}), Verdict::Problem),
        ] {
            if fields.get(managers).is_none() {
                fields[managers] = json!(["kubectl", FIELD_MANAGER]);
            }
            check_entry(fields, expect);
        }
    }

    /// Argo CD would take the list from the cluster for ever, so edits of the owner in Git would not arrive.
    #[test]
    fn a_path_that_covers_the_routes_is_a_warning() {
        for path in ["/spec/http", "/spec", "/metadata/labels"] {
            let expect = if path.starts_with("/spec") {
                Verdict::Warning
            } else {
                Verdict::Problem
            };
            check_entry(json!({"jsonPointers": [path]}), expect);
        }
        for path in [".spec.http", ".spec", ".spec.http[]"] {
            check_entry(json!({"jqPathExpressions": [path]}), Verdict::Warning);
        }
        // Both are ignored.
        check_entry(
            json!({"jsonPointers": ["/spec/http"], "managedFieldsManagers": [FIELD_MANAGER]}),
            Verdict::Warning,
        );
        // Other fields, and a part of the list.
        check_entry(
            json!({"jsonPointers": ["/spec/hosts", "/spec/http/0/labels"]}),
            Verdict::Problem,
        );
        let weights = ".spec.http[].forwardTo.destinations[].weight";
        check_entry(json!({"jqPathExpressions": [weights]}), Verdict::Problem);
    }

    #[test]
    fn a_path_has_to_cover_each_list_that_an_update_changes() {
        let mut changes: Value = serde_json::from_str(BY_LABEL).unwrap();
        changes["spec"] = json!({"tcp": [{"matchers": [{"port": 9000}]}]});
        let http = json!({"routeTableSelector": {"name": "shop"}});
        let tcp = json!({"routeTableSelector": {"name": "shop"}, "tcpRoutes": [{"port": 9000}]});
        let spec = |paths: &[&str]| {
            let entry = json!({"group": RouteTable::GROUP, "kind": "*", "jsonPointers": paths});
            let respected = json!({"syncOptions": ["RespectIgnoreDifferences=true"]});
            json!({"ignoreDifferences": [entry], "syncPolicy": respected})
        };
        let message = check_table(
            changes.clone(),
            http,
            spec(&["/spec/http"]),
            Verdict::Warning,
        );
        assert!(
            message.contains("ignores /spec/http of RouteTable mesh/shop also at rest"),
            "{message}"
        );
        check_table(
            changes.clone(),
            tcp.clone(),
            spec(&["/spec/http"]),
            Verdict::Problem,
        );
        check_table(
            changes.clone(),
            tcp.clone(),
            spec(&["/spec/http", "/spec/tcp"]),
            Verdict::Warning,
        );
        check_table(changes, tcp, spec(&["/spec"]), Verdict::Warning);
    }
}
