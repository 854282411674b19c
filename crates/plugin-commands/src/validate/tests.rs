//! A table of mistakes: what a person wrote, and what `validate` says.

use clap::Parser;
use serde_json::{Value, json};

use super::shape::{self, Misfit};
use super::{Args, Severity, check as validate};
use crate::controller::ControllerRelease;
use crate::invalid_spec::{of_pods, of_strategy};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// Returns the problems of the objects of one file, without the names of the Rollout `web` and the table `front`.
async fn problems(objects: &[Value], flags: &[&str]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("all.json");
    let list = json!({"kind": "List", "items": objects});
    std::fs::write(&file, list.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let words = [&["validate", "-f", file], flags].concat();
    let command = Command::try_parse_from(words).unwrap();
    let report = validate(&command.args).await.unwrap();
    let shown = report.problems.iter().map(|problem| {
        let severity = match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let message = problem.message.replace(file, "all.json");
        let message = message.trim_start_matches("Rollout shop/web: ");
        let message = message.trim_start_matches("RouteTable shop/front: ");
        format!("{severity}: {message}")
    });
    let mut shown: Vec<String> = shown.collect();
    shown.sort();
    shown
}

fn rollout(name: &str, change: impl Fn(&mut Value)) -> Value {
    let mut rollout = json!({
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "replicas": 4,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "web:1"}]},
            },
            "strategy": {"canary": {
                "stableService": "web", "canaryService": "web-canary",
                "trafficRouting": {
                    "managedRoutes": [{"name": "r"}],
                    "plugins": {"solo-io/glooplatform": {"routeTableSelector": {"name": "front"}}},
                },
                "steps": [{"setWeight": 10}, {"pause": {}}],
            }},
        },
    });
    change(&mut rollout["spec"]["strategy"]["canary"]);
    rollout
}

fn table(spec: Value) -> Value {
    json!({
        "apiVersion": "networking.gloo.solo.io/v2", "kind": "RouteTable",
        "metadata": {"name": "front", "namespace": "shop"}, "spec": spec,
    })
}

fn to(service: &str) -> Value {
    json!({"destinations": [{"ref": {"name": service, "namespace": "shop"}}]})
}

fn good_table() -> Value {
    table(json!({"hosts": ["a.example"], "http": [{"name": "main", "forwardTo": to("web")}]}))
}

/// Checks the problems of the objects of one file.
async fn check_all(objects: &[Value], expect: &[&str]) {
    assert_eq!(problems(objects, &[]).await, expect);
}

/// Checks the problems of a Rollout whose strategy is changed, with a good table.
async fn check(change: impl Fn(&mut Value), expect: &[&str]) {
    check_all(&[rollout("web", change), good_table()], expect).await;
}

/// Checks the problems of a table, with a good Rollout.
async fn check_table(spec: Value, expect: &[&str]) {
    check_all(&[rollout("web", |_| {}), table(spec)], expect).await;
}

/// Checks the problems of a Rollout with this plugin block.
async fn check_block(block: Value, http: Value, expect: &[&str]) {
    let rollout = rollout("web", |canary| {
        canary["trafficRouting"]["plugins"]["solo-io/glooplatform"] = block.clone();
    });
    let table = table(json!({"hosts": ["a.example"], "http": http}));
    check_all(&[rollout, table], expect).await;
}

fn steps(steps: Value) -> impl Fn(&mut Value) {
    move |canary| canary["steps"] = steps.clone()
}

#[tokio::test]
async fn what_the_controller_refuses_in_steps() {
    check(|_| {}, &[]).await;
    check(
        steps(json!([{"setWeight": 10, "pause": {}}, {"setWeight": 101}, {"pause": {"duration": "5 minutes"}}])),
        &[
            "error: \"5 minutes\" is no duration: write seconds, or h, m and s, such as 90s, 5m or 1h30m",
            "error: a step cannot have both setWeight and pause: make it two steps",
            "error: setWeight is 101: it must be a whole number from 0 to 100",
        ],
    )
    .await;
    check(
        steps(json!([{"setWieght": 10}])),
        &[
            "error: the step does nothing: set one of setWeight, pause, experiment, analysis, setCanaryScale, setHeaderRoute, setMirrorRoute, plugin in it",
            "warning: the API server drops unknown key spec.strategy.canary.steps[0].setWieght, did you mean setWeight?",
        ],
    )
    .await;
    check(
        steps(json!([{"setWeight": null}])),
        &["error: the step does nothing: set one of setWeight, pause, experiment, analysis, setCanaryScale, setHeaderRoute, setMirrorRoute, plugin in it"],
    )
    .await;
    check(
        |canary| {
            canary["canaryService"] = json!("web");
            canary["abortScaleDownDelaySeconds"] = json!("30");
        },
        &[
            "error: spec.strategy.canary.abortScaleDownDelaySeconds must be a whole number, found a string",
            "error: stableService and canaryService are the same: name two Services",
        ],
    )
    .await;
    check(
        |canary| {
            canary["abortScaleDownDelaySeconds"] = json!(-5);
            canary["steps"] = json!([{"setCanaryScale": {"replicas": 1, "weight": 10}}]);
        },
        &[
            "warning: abortScaleDownDelaySeconds is -5: it must be 0 or more",
            "warning: setCanaryScale has replicas, so the controller ignores weight: remove one of them",
        ],
    )
    .await;
}

#[tokio::test]
async fn thresholds_and_rollbacks() {
    let with = |threshold: Value| {
        move |canary: &mut Value| {
            canary["replicaProgressThreshold"] = threshold.clone();
            canary["steps"] = json!([{"setWeight": 25}, {"pause": {}}]);
        }
    };
    check(with(json!({"type": "Percent", "value": 50})), &[]).await;
    check(with(json!({"type": "Pods", "value": 1})), &[]).await;
    check(with(json!({"type": "Pods", "value": 2})), &[
        "error: replicaProgressThreshold: an update does not get past step 0, because the canary has fewer Pods: lower the value",
    ]).await;
    check(with(json!({"type": "Percent", "value": 101})), &[
        "error: replicaProgressThreshold: an update does not get past step 0, because the canary has fewer Pods: lower the value",
    ]).await;
    check(with(json!({"type": "percent", "value": 0})), &[
        "warning: replicaProgressThreshold 0: steps and the promotion do not wait for Pods: use 1 or more",
        "warning: setWeight 25 has no effect, because the canary has no Pods: change setCanaryScale or replicas",
        "warning: type percent: the controller takes it for Pods: use Percent or Pods",
    ]).await;
    check(
        with(json!({"type": "Pods", "value": -1})),
        &["warning: value is -1: it must be 0 or more"],
    )
    .await;
    let mut rollout = rollout("web", |canary| {
        canary["steps"] = json!([{"setWeight": 75}, {"pause": {}}]);
    });
    rollout["spec"]["rollbackWindow"] = json!({"revisions": 1});
    check_all(&[rollout, good_table()], &[
            "warning: rollbackWindow skips the steps: the canary gets 75 of 100 as soon as one of its Pods is available (argo-rollouts#3941): a longer scaleDownDelaySeconds keeps its Pods",
        ]).await;
}

#[tokio::test]
async fn what_an_older_controller_refuses() {
    let rollout = rollout("web", |canary| {
        canary["steps"] = json!([{"setCanaryScale": {"replicas": 1}}, {"setMirrorRoute": {"name": "r", "match": [{"path": {"prefix": "/"}}]}}]);
    });
    let objects = [rollout, good_table()];
    let found = problems(&objects, &["--controller-release", "1.9.1"]).await;
    let refused =
        "error: controller 1.9.1 refuses setMirrorRoute with a plugin: upgrade it, or remove this";
    assert_eq!(found, [refused]);
    assert_eq!(problems(&objects, &[]).await, [""; 0]);
}

#[tokio::test]
async fn every_step_with_a_bad_match() {
    let header = |name: &str, value: Value| json!({"setHeaderRoute": {"name": "r", "match": [{"headerName": name, "headerValue": value}]}});
    check(
        steps(json!([
            {"setCanaryScale": {"replicas": 1}},
            header("a", json!({"regex": "(?=x)y"})),
            header("a", json!({})),
            header("bad header", json!({"exact": "x"})),
            {"setMirrorRoute": {"name": "r", "percentage": 101, "match": [{"path": {"prefix": "/"}}]}},
            {"setMirrorRoute": {"name": "r", "percentage": 200, "match": [{"path": {"prefix": "/"}}]}},
            {"setMirrorRoute": {"name": "r", "match": [{"method": {"prefix": "G"}}, {}]}},
        ])),
        &[
            "error: headerValue has none of exact, prefix and regex: set exactly one",
            "error: managed route r: header a: RE2 does not accept its regex: look-ahead and look-behind are not supported; correct the match of the step",
            "error: managed route r: header bad header: its name has a character that no header name has; correct the match of the step",
            "error: managed route r: match: an entry is empty; to match any request, set path prefix /; correct the match of the step",
            "error: managed route r: method: a RouteTable matches it by exact only; correct the match of the step",
            "error: managed route r: percentage is 101: use 1 to 100 (Rollout shop/web)",
            "error: managed route r: percentage is 200: use 1 to 100 (Rollout shop/web)",
        ],
    )
    .await;
}

#[tokio::test]
async fn several_objects_together() {
    let pair = |service: [&str; 2], name: &str| {
        let other = rollout("web2", |canary| {
            canary["stableService"] = json!(service[0]);
            canary["canaryService"] = json!(service[1]);
            canary["trafficRouting"]["plugins"]["solo-io/glooplatform"]["stableDestination"] =
                json!({"name": name});
        });
        [rollout("web", |_| {}), other, good_table()]
    };
    let first = "error: Rollout shop/web2: Rollout shop/web in all.json:1:";
    for (objects, expect) in [
        (
            pair(["web2", "web2-canary"], "web"),
            "splits the same destination Service shop/web in route main of RouteTable shop/front: give each Rollout a stable Service of its own, or other routes",
        ),
        (
            pair(["web", "web2-canary"], "web"),
            "has the same Service web, and the controller refuses the second one: give each Rollout Services of its own",
        ),
        (
            pair(["web2", "web-canary"], "other"),
            "has the same Service web-canary, and the controller refuses the second one: give each Rollout Services of its own",
        ),
    ] {
        let mut found = problems(&objects, &[]).await;
        found.retain(|it| it.starts_with(first));
        assert!(found.len() == 1 && found[0].ends_with(expect), "{found:?}");
    }
    let four = ["web", "web2", "web3", "web4"].map(|name| rollout(name, |_| {}));
    let mut found = problems(&four, &[]).await;
    found.retain(|it| it.contains("has the same Service"));
    assert_eq!(found.len(), 3, "{found:?}");
    let other = rollout("web2", |canary| {
        canary["stableService"] = json!("web2");
        canary["canaryService"] = json!("web2-canary");
    });
    let both =
        json!([{"ref": {"name": "web"}, "weight": 60}, {"ref": {"name": "web2"}, "weight": 40}]);
    let shared = table(json!({"http": [{"name": "main", "forwardTo": {"destinations": both}}]}));
    check_all(&[rollout("web", |_| {}), other, shared], &[]).await;
    let twice = [rollout("web", |_| {}), good_table(), rollout("web", |_| {})];
    let found = problems(&twice, &[]).await;
    let also = "error: Rollout shop/web is also in all.json:1:";
    assert!(found.len() == 1 && found[0].starts_with(also), "{found:?}");
    let service = |app: &str| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"selector": {"app": app}, "ports": [{"port": 80}]}});
    check_all(&[rollout("web", |_| {}), good_table(), service("web")], &[]).await;
    check_all(
        &[rollout("web", |_| {}), good_table(), service("other")], &[
            "error: Service shop/web: the Pods of Rollout shop/web do not have the label app of its selector, and the controller refuses the Rollout: make them equal"
        ]).await;
}

#[tokio::test]
async fn a_service_of_another_rollout() {
    let service = |name: &str| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop", "annotations": {"argo-rollouts.argoproj.io/managed-by-rollouts": name}}, "spec": {"ports": [{"port": 80}]}});
    let with = |name: &str| [rollout("web", |_| {}), good_table(), service(name)];
    check_all(&with("web"), &[]).await;
    check_all(&with("other"), &[
        "error: Service shop/web: annotation argo-rollouts.argoproj.io/managed-by-rollouts gives it to Rollout other, and the controller refuses Rollout shop/web: remove the annotation, or use another Service",
    ]).await;
}

#[tokio::test]
async fn labels_of_the_pods_of_another_workload() {
    let with = |kind: &str, selector: Value, label: &str, service: &str| {
        let mut rollout = rollout("web", |_| {});
        let is_template = kind == "PodTemplate";
        let version = if is_template { "v1" } else { "apps/v1" };
        let spec = &mut rollout["spec"];
        spec["template"] = Value::Null;
        spec["selector"] = selector;
        spec["workloadRef"] = json!({"apiVersion": version, "kind": kind, "name": "pods"});
        let template = json!({"metadata": {"labels": {"app": label}}});
        let mut workload = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "pods", "namespace": "shop"}});
        match is_template {
            true => workload["template"] = template,
            false => workload["spec"] = json!({"template": template}),
        }
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"selector": {"app": service}, "ports": [{"port": 80}]}});
        [rollout, good_table(), workload, service]
    };
    let selector = json!({"matchLabels": {"app": "web"}});
    let not_selected =
        "error: selector does not select the labels of the Pods of workloadRef: make them equal";
    let of_others = "error: Service shop/web: the Pods of Rollout shop/web do not have the label app of its selector, and the controller refuses the Rollout: make them equal";
    for kind in ["Deployment", "ReplicaSet", "PodTemplate"] {
        check_all(&with(kind, selector.clone(), "web", "web"), &[]).await;
        let objects = with(kind, selector.clone(), "other", "other");
        check_all(&objects, &[not_selected]).await;
        let objects = with(kind, selector.clone(), "web", "other");
        check_all(&objects, &[of_others]).await;
        // Without the workload the labels are not known.
        let [rollout, table, _, service] = with(kind, selector.clone(), "web", "other");
        check_all(&[rollout, table, service], &[]).await;
    }
    let objects = with("Deployment", Value::Null, "web", "other");
    check_all(&objects, &[of_others]).await;
}

#[tokio::test]
async fn a_maximum_below_1_is_reported_once_at_its_place() {
    let with = |max: i64, steps: Value| {
        rollout("web", |canary| {
            canary["trafficRouting"]["maxTrafficWeight"] = json!(max);
            canary["steps"] = steps.clone();
        })
    };
    for max in [0, -5] {
        for steps in [
            json!([{"pause": {}}]),
            json!([{"setWeight": 0}]),
            json!([{"setWeight": 10}]),
        ] {
            let objects = [with(max, steps), good_table()];
            let expected = format!("error: maxTrafficWeight is {max}: it must be at least 1");
            check_all(&objects, &[&expected]).await;
            // An older release does not have the key.
            let found = problems(&objects, &["--controller-release", "1.6.6"]).await;
            assert_eq!(
                found,
                [
                    "warning: controller 1.6.6 does not have maxTrafficWeight, and setWeight is a percentage: upgrade it, or remove this"
                ]
            );
        }
    }
}

#[tokio::test]
async fn names_of_other_objects_that_are_misspelt() {
    let object = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "shop"}});
    let rollout = rollout("web", |canary| {
        let templates = |name: &str| json!({"templates": [{"templateName": name}]});
        canary["analysis"] = templates("success-rate");
        canary["steps"] = json!([{"setWeight": 10}, {"analysis": templates("latency")}]);
    });
    let with = |others: [Value; 2]| [&[rollout.clone(), good_table()][..], &others].concat();
    check_all(
        &with([
            object("Service", "web-cannary"),
            object("AnalysisTemplate", "succes-rate"),
        ]),
        &[
            "warning: the files have no AnalysisTemplate success-rate: did you mean succes-rate?",
            "warning: the files have no Service web-canary: did you mean web-cannary?",
        ],
    )
    .await;
    // Other names may be those of objects in the cluster, and each object has one kind.
    check_all(
        &with([
            object("Service", "latencies"),
            object("AnalysisTemplate", "web-canary2"),
        ]),
        &[],
    )
    .await;
}

#[tokio::test]
async fn mistakes_in_tables() {
    check_table(
        json!({"hosts": ["a"], "http": [{"name": "main", "matcher": [], "forwardTo": {"destinations": [{"ref": {"name": "web"}, "wieght": 100}]}}]}),
        &[
            "warning: Gloo ignores unknown key spec.http[0].forwardTo.destinations[0].wieght, did you mean weight?",
            "warning: Gloo ignores unknown key spec.http[0].matcher, did you mean matchers?",
        ],
    )
    .await;
    check_table(
        json!({"hosts": ["a"], "http": [{"name": "main", "matchers": [{"port": 70000, "headers": [{"name": "a b"}], "uri": {"regex": "(?=a)"}}], "forwardTo": to("web")}]}),
        &[
            "error: spec.http[0].matchers[0].headers[0].name: \"a b\" is not the name of a header: it may have letters, digits, - and _",
            "error: spec.http[0].matchers[0].port: a port must be between 0 and 65535, found 70000",
            "error: spec.http[0].matchers[0].uri.regex: RE2 does not accept the pattern: look-ahead and look-behind are not supported",
        ],
    )
    .await;
    check_table(
        json!({"hosts": ["a"], "http": [
            {"name": "all", "matchers": [{"uri": {"prefix": "/"}}], "forwardTo": to("web")},
            {"name": "api", "matchers": [{"uri": {"prefix": "/api"}, "headers": [{"name": "x", "value": "1"}, {"name": "X", "value": "2"}]}], "forwardTo": to("other")},
        ]}),
        &[
            "warning: spec.http[1].matchers[0].headers: no request matches, because header x cannot have both values: use a matcher for each value",
            "warning: spec.http[1]: no request reaches route api, because route all before it matches all of them: move route api up, or restrict route all",
        ],
    )
    .await;
    let other = json!({"name": "main", "forwardTo": to("web")});
    check_table(
        json!({
            "http": [other],
            "virtualGateways": [],
            "applyToDestinations": [{"kind": "SERVICE"}],
            "failureMode": "FREEZE_CONFIG",
            "workloadSelectors": [{"kind": "VM"}, {"kind": null}],
            "portalMetadata": {"apiProductId": "my shop"},
        }),
        &[
            "error: spec.applyToDestinations: only a table with hosts may have this: add hosts, or remove it",
            "error: spec.applyToDestinations[0].kind: only KUBE is allowed here: remove the kind",
            "error: spec.failureMode: only a table with hosts may have this: add hosts, or remove it",
            "error: spec.portalMetadata.apiProductId: spaces are not allowed: remove them",
            "error: spec.portalMetadata.apiVersion is missing: set it",
            "error: spec.virtualGateways: only a table with hosts may have this: add hosts, or remove it",
            "error: spec.workloadSelectors[0].kind: only KUBE is allowed here: remove the kind",
        ],
    )
    .await;
    let tls = json!({"matchers": [{"sniHosts": ["a"]}], "forwardTo": to("web")});
    check_table(
        json!({"hosts": ["a"], "tls": [tls, {"matchers": [{"sniHosts": ["a"]}]}], "defaultDestination": {"ref": {"name": "web"}, "kind": "POD"}}),
        &[
            "error: no selected route forwards to Service shop/web: check stableService, stableDestination, routeTableSelector and tlsRoutes; found route tls[0] is not selected by tlsRoutes; route tls[1] is a route without action (Rollout shop/web)",
            "error: spec.defaultDestination.kind is \"POD\": use one of SERVICE, VIRTUAL_DESTINATION, EXTERNAL_SERVICE",
            "error: spec.defaultDestination: no http route has a forwardTo that could use it: add one, or remove it",
            "error: spec.tls[1].forwardTo is missing: set it",
            "error: spec.tls[1].forwardTo.destinations: a forwardTo without destinations needs a defaultDestination of the table: add one of the two",
        ],
    )
    .await;
    check_table(
        json!({"http": [{"name": 1, "forwardTo": {"destinations": {}}}]}),
        &[
            "error: spec.http[0].forwardTo.destinations must be a list, found an object",
            "error: spec.http[0].name must be a string, found a number",
        ],
    )
    .await;
}

#[tokio::test]
async fn entries_of_the_block_that_do_little() {
    let http = json!([{"name": "main", "forwardTo": to("web")}, {"name": "other", "forwardTo": to("other")}]);
    let block = |more: Value| {
        let mut block = json!({"routeTableSelector": {"name": "front"}});
        block
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        block
    };
    check_block(block(json!({"routeSelector": {"name": "main"}})), http.clone(), &[
        "warning: spec.http[1]: no request reaches route other, because route main before it matches all of them: move route other up, or restrict route main",
    ]).await;
    let apart = json!([{"name": "main", "matchers": [{"uri": {"prefix": "/a"}}], "forwardTo": to("web")}, {"name": "other", "forwardTo": to("other")}]);
    check_block(block(json!({"routeSelector": {"names": ["main", "other"]}})), apart.clone(), &[
        "warning: no route that routeSelector name: other selects forwards to the stable destination: correct or remove the entry",
    ]).await;
    check_block(block(json!({"routeSelector": {"names": ["main", "typo"]}, "zeroWeight": "keep"})), apart.clone(), &[
        "error: no route of the selected tables matches routeSelector name: typo: correct the entry",
        "warning: zeroWeight: keep leaves stable in the route with weight 0 while the canary has 100, and Gloo's reference takes 0 for unset and refuses that: remove the key, unless your Gloo accepts it",
    ]).await;
    let by_label = json!({"name": "front", "labels": {"app": "none"}});
    check_block(json!({"routeTableSelector": by_label}), apart.clone(), &[
        "warning: no route of the selected tables matches routeTableSelector labels: app=none: correct the entry, unless another table has it",
    ]).await;
    check_block(block(json!({"routeSelector": {"names": [], "labels": {}}})), apart.clone(), &[
        "warning: routeSelector is empty, which selects all HTTP routes: remove it, or name routes in it",
    ]).await;
    // Every problem in one run.
    check_block(block(json!({"routeSelector": {"names": ["typo"]}, "headerMatch": "some"})), json!([{"name": "main", "forwardTo": {}}]), &[
        "error: no route of the selected tables matches routeSelector name: typo: correct the entry",
        "error: no selected route forwards to Service shop/web: check stableService, stableDestination, routeTableSelector and routeSelector; found route main has no destinations (Rollout shop/web)",
        "error: plugin configuration: headerMatch is \"some\", it must be any or all",
        "error: spec.http[0].forwardTo.destinations: a forwardTo without destinations needs a defaultDestination of the table: add one of the two",
    ]).await;
}

/// The routes are checked as if the administrator allowed the namespace, so that the one cause is not reported again for them.
#[tokio::test]
async fn a_namespace_that_is_not_allowed_is_one_error() {
    let elsewhere = json!({"destinations": [{"ref": {"name": "web", "namespace": "other"}}]});
    let http = json!([{"name": "main", "forwardTo": elsewhere}]);
    let not_allowed = |path: &str| {
        format!(
            "error: plugin configuration: {path} is other, which is not the Rollout's namespace: use the Rollout's namespace, or ask your administrator to allow destinations in other"
        )
    };
    for (path, keys) in [
        (
            "stableDestination.namespace",
            json!({"stableDestination": {"namespace": "other"}}),
        ),
        (
            "destinationNamespace",
            json!({"destinationNamespace": "other"}),
        ),
    ] {
        let mut block = json!({"routeTableSelector": {"name": "front"}});
        let keys = keys.as_object().unwrap().clone();
        block.as_object_mut().unwrap().extend(keys);
        check_block(block, http.clone(), &[&not_allowed(path)]).await;
    }
}

#[tokio::test]
async fn one_fault_is_one_line() {
    let name = json!({"name": "front"});
    let main = json!([{"name": "main", "forwardTo": to("web")}]);
    let by = |operator: &str| json!([{"key": "a", "operator": operator, "values": ["x"]}]);
    check_block(json!({"routeTableSelector": {"name": "front", "matchExpressions": by("in")}}), main.clone(), &[
        "error: plugin configuration: routeTableSelector.matchExpressions[0].operator is \"in\", it must be In, NotIn, Exists or DoesNotExist",
    ]).await;
    let port = json!({"number": 8080, "name": "http"});
    check_block(json!({"routeTableSelector": name, "stableDestination": {"port": port}}), main.clone(), &[
        "error: plugin configuration: stableDestination.port.number contradicts name: remove one of them",
    ]).await;
    check_block(json!({"routeTableSelector": name, "subset": {"service": "x", "label": "bad label!"}}), main.clone(), &[
        "error: plugin configuration: subset.label is \"bad label!\", it must be made of letters, digits, '-', '_', '.' and '/'",
    ]).await;
    check_block(
        json!({"routeTableSelector": name, "routeSelector": {"names": "main"}}),
        main.clone(),
        &["error: plugin configuration: routeSelector.names must be a list, found a string"],
    )
    .await;
    check_block(json!({"routeTableSelector": name, "destinationKind": "VIRTUAL_DESTINATION", "stableDestination": {"kind": "SERVICE"}}), main, &[
        "error: plugin configuration: destinationKind contradicts stableDestination.kind: remove one of them",
    ]).await;
    check(
        steps(json!([{"setWeight": 10}, null])),
        &["error: spec.strategy.canary.steps[1] must be an object, found null"],
    )
    .await;
    let header = |value: Value| {
        let header = json!({"name": "r", "match": [{"headerName": "x", "headerValue": value}]});
        steps(json!([{"setCanaryScale": {"replicas": 1}}, {"setHeaderRoute": header}]))
    };
    check(header(json!("yes")), &[
        "error: spec.strategy.canary.steps[1].setHeaderRoute.match[0].headerValue must be an object, found a string",
    ]).await;
    check(header(json!({"exact": 1})), &[
        "error: spec.strategy.canary.steps[1].setHeaderRoute.match[0].headerValue.exact must be a string, found a number",
    ]).await;
    let mut weights = to("web");
    weights["destinations"][0]["weight"] = json!(90);
    check_table(json!({"http": [{"name": "main", "forwardTo": weights}]}), &[
        "error: spec.http[0].forwardTo.destinations: weights of a route must sum to 100, found 90: correct them",
    ]).await;
}

#[tokio::test]
async fn objects_of_the_cluster_during_an_update() {
    let labels = json!({
        "rollouts-plugin-trafficrouter-glooplatform/namespace": "shop",
        "rollouts-plugin-trafficrouter-glooplatform/rollout": "web",
        "rollouts-plugin-trafficrouter-glooplatform/managed-route": "r",
    });
    let mirror = json!({"rollouts-plugin-trafficrouter-glooplatform/mirror": "1"});
    let mut copy = json!({"name": "r", "labels": labels, "forwardTo": to("web")});
    merge(&mut copy["labels"], &mirror);
    let policy = json!({
        "apiVersion": "trafficcontrol.policy.gloo.solo.io/v2", "kind": "MirrorPolicy",
        "metadata": {"name": "rollouts-mirror-1", "namespace": "shop", "labels": labels},
        "spec": {"applyToRoutes": [{"route": {"labels": mirror}}], "config": {"percentage": 20}},
    });
    let own = json!({"name": "main", "forwardTo": to("web")});
    let table = table(json!({"hosts": ["a.example"], "http": [copy, own]}));
    let steps = steps(json!([
        {"setCanaryScale": {"replicas": 1}},
        {"setMirrorRoute": {"name": "r", "percentage": 20, "match": [{"path": {"prefix": "/"}}]}},
        {"setWeight": 10},
    ]));
    check_all(&[rollout("web", steps), table, policy], &[]).await;
}

#[tokio::test]
async fn weights_of_destinations_that_the_block_names() {
    let to = |name: &str, kind: &str, weight: u32| json!({"ref": {"name": name}, "kind": kind, "port": {"number": 8080}, "weight": weight});
    let shared = |own: Value, share: u32| {
        let mut own = own;
        own["weight"] = json!(share);
        let other = to("other", "SERVICE", 100 - share);
        json!([{"name": "main", "forwardTo": {"destinations": [own, other]}}])
    };
    let block = |more: Value| {
        let mut block = more;
        block["routeTableSelector"] = json!({"name": "front"});
        block
    };
    let mesh = to("mesh", "VIRTUAL_DESTINATION", 80);
    let stable = json!({"kind": "VIRTUAL_DESTINATION", "name": "mesh"});
    let one = block(json!({"stableDestination": stable}));
    check_block(one, shared(mesh.clone(), 80), &[]).await;
    let two = json!({"stableDestination": stable, "canaryDestination": {"name": "mesh-canary"}});
    check_block(block(two), shared(mesh, 3), &[
        "warning: route main: the controller asks for 10 % of the traffic, and the canary gets 33 %: the Rollout has 3 % of the route, and weights are whole numbers: give it a larger share, or choose other weights",
    ]).await;
    // The other port is not the Rollout's.
    let web = to("web", "SERVICE", 50);
    let mut other_port = shared(web.clone(), 50);
    let other = &mut other_port[0]["forwardTo"]["destinations"][1];
    other["ref"]["name"] = json!("web");
    other["port"]["number"] = json!(9090);
    let by_port = block(json!({"stableDestination": {"port": {"number": 8080}}}));
    check_block(by_port, other_port, &[]).await;
    let mut east = web;
    east["ref"]["cluster"] = json!("east");
    let by_cluster = block(json!({"stableDestination": {"cluster": "east"}}));
    check_block(by_cluster, shared(east, 80), &[]).await;
}

#[tokio::test]
async fn objects_that_are_not_what_they_should_be() {
    let misspelt = rollout("web", |canary| {
        canary["trafficRouting"]["plugins"] =
            json!({"solo-io/gloplatform": {"routeTableSelector": {"name": "front"}}});
    });
    let found = problems(&[misspelt, good_table()], &[]).await;
    let is_not_read = |at: &str| {
        format!(
            "error: {at} is not read: did you mean spec.strategy.canary.trafficRouting.plugins.solo-io/glooplatform? Without it the controller does not call the plugin, and the Rollout is not checked"
        )
    };
    let at = "spec.strategy.canary.trafficRouting.plugins.solo-io/gloplatform";
    assert_eq!(found, [is_not_read(at)]);
    // The name of a plugin that is ours by a flag, and one that is not near.
    let objects = |name: &str| {
        let rollout = rollout("web", |canary| {
            canary["trafficRouting"]["plugins"] =
                json!({name: {"routeTableSelector": {"name": "front"}}});
        });
        [rollout, good_table()]
    };
    let flags = ["--plugin-name=solo-io/gloplatform"];
    assert_eq!(
        problems(&objects("solo-io/gloplatform"), &flags).await,
        [""; 0]
    );
    check_all(&objects("argoproj-labs/gatewayAPI"), &[
            "warning: plugin configuration: trafficRouting.plugins has no solo-io/glooplatform or solo-io/glooplatformAPI; it has argoproj-labs/gatewayAPI"
        ]).await;
    // A misspelt key, also when there are other problems.
    let mut strategi = rollout("web", |_| {});
    let spec = strategi["spec"].as_object_mut().unwrap();
    let strategy = spec.shift_remove("strategy").unwrap();
    spec.insert("strategi".to_owned(), strategy);
    let bad_table = table(json!({"http": [{"name": 1}]}));
    let found = problems(&[strategi, bad_table], &[]).await;
    let at = "spec.strategi.canary.trafficRouting.plugins.solo-io/glooplatform";
    let name = "error: spec.http[0].name must be a string, found a number";
    assert_eq!(found, [name.to_owned(), is_not_read(at)]);
    let singular = rollout("web", |canary| {
        canary["trafficRouting"] = json!({"plugin": {"solo-io/glooplatform": {}}});
    });
    let found = problems(&[singular, good_table()], &[]).await;
    let at = "spec.strategy.canary.trafficRouting.plugin.solo-io/glooplatform";
    assert_eq!(found, [is_not_read(at)]);
    let mut nameless = rollout("web", |_| {});
    nameless["metadata"] = json!({"namespace": "shop"});
    check_all(
        &[nameless, good_table()],
        &["error: Rollout without metadata.name: name it"],
    )
    .await;
    check(steps(json!([])), &["warning: there are no steps, so all traffic moves to a new version as soon as its Pods are available: add steps"]).await;
    let mut kind = good_table();
    kind["kind"] = json!("RoutTable");
    check_all(
        &[rollout("web", |_| {}), kind],
        &[
            "warning: kind RoutTable is not known: did you mean RouteTable? The object is ignored",
            "warning: the files do not have RouteTable shop/front: its routes are not checked",
        ],
    )
    .await;
    let mut kind = good_table();
    kind.as_object_mut().unwrap().shift_remove("kind");
    check_all(
        &[rollout("web", |_| {}), kind],
        &[
            "warning: object shop/front has no kind and is ignored: set it",
            "warning: the files do not have RouteTable shop/front: its routes are not checked",
        ],
    )
    .await;
    let mut misspelt = good_table();
    misspelt["metadata"]["name"] = json!("forn");
    check_all(&[rollout("web", |_| {}), misspelt], &[
        "warning: the files do not have RouteTable shop/front: its routes are not checked; did you mean forn?"
    ]).await;
    let mut version = rollout("web", |_| {});
    version["apiVersion"] = json!("argoproj.io/v1");
    check_all(
        &[version, good_table()],
        &["error: apiVersion must be argoproj.io/v1alpha1"],
    )
    .await;
    let mut elsewhere = good_table();
    elsewhere["metadata"]["namespace"] = json!("gloo-mesh");
    check_all(&[rollout("web", |_| {}), elsewhere], &[
            "warning: the files do not have RouteTable shop/front: its routes are not checked; RouteTable gloo-mesh/front needs routeTableSelector.namespace: gloo-mesh"
        ]).await;
    // The one that is there needs nothing.
    let both = rollout("web", |canary| {
        canary["trafficRouting"]["plugins"]["solo-io/glooplatform"] =
            json!({"routeTableSelector": {"names": ["front", "gone"]}});
    });
    check_all(
        &[both, good_table()],
        &["warning: the files do not have RouteTable shop/gone: its routes are not checked"],
    )
    .await;
}

/// The specs of which the Go tests ask the released controllers.
const CORPUS: &str = include_str!("../../../../tests/go/rollouts/testdata/validation.yaml");

/// Sets the values of a patch.
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        value.clone_from(patch);
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (key, patch) in fields {
        merge(&mut value[key.as_str()], patch);
    }
}

/// What `validate` says about a spec.
fn said(rollout: &Value) -> Vec<String> {
    let misfits = shape::of_rollout(rollout).into_iter();
    let misfits = misfits.map(|it| match it {
        Misfit::Wrong(_, text) => text,
        Misfit::Unknown(_, text) => format!("(warning) {text}"),
    });
    let strategy = of_strategy(rollout, ControllerRelease::NEWEST);
    let refusals = strategy.into_iter().chain(of_pods(rollout, None));
    misfits.chain(refusals.map(|it| it.text)).collect()
}

#[test]
fn each_spec_of_the_corpus_has_its_messages() {
    let corpus: Value = serde_saphyr::from_str(CORPUS).unwrap();
    let mut shown = String::new();
    for (group, wrap) in [
        ("spec", (|patch| patch) as fn(Value) -> Value),
        ("canary", |patch| json!({"strategy": {"canary": patch}})),
        (
            "steps",
            |step| json!({"strategy": {"canary": {"steps": [step]}}}),
        ),
    ] {
        for (name, patch) in corpus[group].as_object().unwrap() {
            let mut rollout = corpus["base"].clone();
            merge(&mut rollout["spec"], &wrap(patch.clone()));
            let said = said(&rollout).join("\n  ");
            shown += &format!("{name}: {}\n", if said.is_empty() { "-" } else { &said });
        }
    }
    insta::assert_snapshot!(shown);
}
