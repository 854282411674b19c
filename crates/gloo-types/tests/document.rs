//! Documents: typed views, unchanged raw JSON, and errors.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic, also in its helpers"
)]

use gloo_types::{
    Approval, DestinationKind, Document, FailureMode, ObjectKey, RedirectCode, RouteTableDoc,
    SortMethod, Workspace,
};
use serde_json::{Value, json};

/// Every field of the API reference, and some unknown fields.
const FULL: &str = r#"
apiVersion: networking.gloo.solo.io/v2
kind: RouteTable
metadata:
  name: shop
  namespace: mesh
  resourceVersion: "42"
  generation: 7
  labels: {app: shop}
  annotations: {team: web}
  managedFields: [{manager: kubectl}]
spec:
  hosts: ["*.example.com"]
  virtualGateways: [{name: gw, namespace: gateways, cluster: c1}]
  workloadSelectors: [{selector: {labels: {app: a}, workspace: w}, kind: KUBE, port: {number: 1}}]
  applyToDestinations: [{selector: {name: svc, namespace: ns, cluster: c1}, kind: SERVICE}]
  defaultDestination: {ref: {name: reviews}}
  weight: -3
  failureMode: FREEZE_CONFIG
  virtualServiceAnnotations: {a: b}
  portalMetadata: {apiProductId: p, apiProductDisplayName: P, apiVersion: v1, title: t, customMetadata: {k: v}}
  newInGloo3: {deep: [1, {x: null}]}
  http:
  - name: forward
    labels: {route: api}
    surprise: true
    matchers:
    - name: m
      uri: {prefix: /a, ignoreCase: true}
      headers: [{name: x, value: "1", regex: false, invertMatch: true}, {name: z}]
      queryParameters: [{name: q, value: v, regex: true}]
      method: GET
      port: 8080
    forwardTo:
      regexRewrite: {pattern: {regex: ".*", googleRe2: {maxProgramSize: 9}}, substitution: /}
      autoHostRewrite: false
      destinations:
      - {ref: {name: reviews, namespace: shop, cluster: c1}, kind: SERVICE, port: {number: 80}, subset: {v: "1"}, weight: 0}
      - {ref: {name: vd}, kind: VIRTUAL_DESTINATION, port: {name: http}}
      - {ref: {name: x}, kind: BRAND_NEW_KIND, weight: 50}
      - awsLambda: {cloudProvider: {name: aws}, function: f, qualifier: q, options: {invocationStyle: ASYNC}}
  - {name: delegate, delegate: {routeTables: [{labels: {a: b}}], sortMethod: ROUTE_SPECIFICITY, allowedRoutes: [{cloudProvider: {aws: {regions: [x]}}}]}}
  - {name: redirect, redirect: {hostRedirect: h, pathRedirect: /, responseCode: FOUND}}
  - {name: direct, directResponse: {status: 404, body: gone}}
  - {name: graphql, graphql: {stitchedSchema: {name: st, namespace: ns, clusterName: c1}, options: {logSensitiveInfo: true}}}
  tcp: [{matchers: [{port: 3306}], forwardTo: {destinations: [{ref: {name: db}}]}}]
  tls: [{matchers: [{sniHosts: [db.example.com], port: 443}], forwardTo: {destinations: [{ref: {name: db}}]}}]
status:
  common:
    State: {observedGeneration: "7", approval: ACCEPTED, message: fine, ownedBy: x}
    workspaceConditions: {w: 1}
  numAppliedRoutePolicies: {a: 2}
  numParentRouteTables: 1
"#;

fn full() -> Value {
    serde_saphyr::from_str(FULL).unwrap()
}

#[test]
fn metadata_is_decoded_at_once() {
    let table = RouteTableDoc::from_value(full()).unwrap();
    assert_eq!(table.key(), &ObjectKey::new("mesh", "shop"));
    assert_eq!(table.key().to_string(), "mesh/shop");
    assert_eq!(table.resource_version(), Some("42"));
    assert_eq!(table.generation(), Some(7));
    assert_eq!(table.labels().get("app").map(String::as_str), Some("shop"));
    assert_eq!(
        table.annotations().unwrap().get("team").map(String::as_str),
        Some("web")
    );
}

#[test]
fn the_raw_document_is_untouched() {
    let table = RouteTableDoc::from_value(full()).unwrap();
    assert_eq!(table.raw().to_string(), full().to_string());
    assert_eq!(table.into_raw().to_string(), full().to_string());
}

#[test]
fn the_view_covers_the_api() {
    let spec = RouteTableDoc::from_value(full()).unwrap().spec().unwrap();
    assert_eq!(spec.failure_mode, FailureMode::FreezeConfig);
    assert_eq!(spec.weight, -3);
    assert_eq!(spec.virtual_gateways[0].to_string(), "c1/gateways/gw");
    assert_eq!(spec.portal_metadata.unwrap().api_product_id, "p");
    let [forward, delegate, redirect, direct, graphql] = spec.http.as_slice() else {
        panic!()
    };
    assert_eq!(forward.matchers[0].headers[1].value, None);
    assert_eq!(
        forward.matchers[0].uri.as_ref().unwrap().prefix.as_deref(),
        Some("/a")
    );
    assert_eq!(
        delegate.delegate.as_ref().unwrap().sort_method,
        SortMethod::RouteSpecificity
    );
    assert_eq!(
        redirect.redirect.as_ref().unwrap().response_code,
        RedirectCode::Found
    );
    assert_eq!(direct.direct_response.as_ref().unwrap().status, 404);
    assert!(graphql.graphql.as_ref().unwrap().stitched_schema.is_some());
    let forward = forward.forward_to.as_ref().unwrap();
    assert_eq!(forward.auto_host_rewrite, Some(false));
    assert_eq!(spec.tcp[0].matchers[0].port, Some(3306));
    assert_eq!(spec.tls[0].matchers[0].sni_hosts, ["db.example.com"]);

    let [service, virtual_destination, newer, lambda] = forward.destinations.as_deref().unwrap()
    else {
        panic!()
    };
    assert_eq!((service.weight, service.set_weight()), (Some(0), None));
    assert_eq!(
        (virtual_destination.weight, &virtual_destination.kind),
        (None, &DestinationKind::VirtualDestination)
    );
    assert_eq!(
        newer.kind,
        DestinationKind::Other("BRAND_NEW_KIND".to_owned())
    );
    assert_eq!(newer.to_string(), "BRAND_NEW_KIND x");
    assert_eq!(lambda.to_string(), "AWS Lambda f");
}

#[test]
fn absent_and_empty_destinations_differ() {
    let spec = json!({"http": [{"forwardTo": {}}, {"forwardTo": {"destinations": []}}]});
    let spec = RouteTableDoc::from_value(
        json!({"metadata": {"name": "a", "namespace": "b"}, "spec": spec}),
    )
    .unwrap()
    .spec()
    .unwrap();
    let lists: Vec<_> = spec
        .http
        .iter()
        .map(|route| route.forward_to.as_ref().unwrap().destinations.clone())
        .collect();
    assert_eq!(lists, [None, Some(vec![])]);
}

#[test]
fn status_is_decoded_in_every_form_that_gloo_may_write() {
    let approval = |status: Value| {
        let document = json!({"metadata": {"name": "a", "namespace": "b"}, "status": status});
        let status = RouteTableDoc::from_value(document)
            .unwrap()
            .status()
            .unwrap();
        status
            .state()
            .map(|state| (state.observed_generation, state.approval.clone()))
    };
    assert_eq!(
        approval(full()["status"].clone()),
        Some((7, Approval::Accepted))
    );
    assert_eq!(
        approval(json!({"common": {"state": {"observedGeneration": 7, "approval": "INVALID"}}})),
        Some((7, Approval::Invalid))
    );
    // proto3 omits zero values.
    assert_eq!(
        approval(json!({"common": {"State": {}}})),
        Some((0, Approval::Pending))
    );
    assert_eq!(
        approval(json!({"common": {"State": {"approval": "NEWER"}}})),
        Some((0, Approval::Other("NEWER".to_owned())))
    );
    for none in [
        json!(null),
        json!({}),
        json!({"common": {}}),
        json!({"common": null}),
    ] {
        assert_eq!(approval(none), None);
    }
}

#[track_caller]
fn refused(document: Value, expect: &str) {
    let error = RouteTableDoc::from_value(document)
        .and_then(|table| Ok((table.spec()?, table.status()?)))
        .unwrap_err();
    assert_eq!(error.to_string(), expect);
}

#[test]
fn a_null_is_an_absent_field() {
    let route = json!({"name": null, "labels": {"a": null}, "matchers": null, "forwardTo": {"destinations": [{"ref": {"name": "x", "cluster": null}}]}});
    let document = json!({"metadata": {"name": "a", "namespace": "b"}, "spec": {"http": [route], "weight": null}});
    let spec = RouteTableDoc::from_value(document).unwrap().spec().unwrap();
    assert_eq!((spec.weight, spec.http[0].labels["a"].as_str()), (0, ""));
    let document = json!({"metadata": {"name": "a", "namespace": "b"}, "spec": {"http": [null]}});
    let error = RouteTableDoc::from_value(document)
        .unwrap()
        .spec()
        .unwrap_err();
    assert_eq!(error.path(), "spec.http[0]");
}

#[test]
fn a_wrong_type_is_named_by_its_path() {
    let with = |field: &str, value: Value| json!({"metadata": {"name": "a", "namespace": "b"}, field: value});
    refused(
        with("spec", json!({"http": [{}, {"name": 1}]})),
        "RouteTable b/a: unexpected value at spec.http[1].name",
    );
    refused(
        with("spec", json!({"http": {}})),
        "RouteTable b/a: unexpected value at spec.http",
    );
    refused(
        with("spec", json!("x")),
        "RouteTable b/a: unexpected value at spec",
    );
    refused(
        with(
            "spec",
            json!({"http": [{"forwardTo": {"destinations": [{"weight": -1}]}}]}),
        ),
        "RouteTable b/a: unexpected value at spec.http[0].forwardTo.destinations[0].weight",
    );
    // A list is not decoded as the fields of a reference in order.
    refused(
        with(
            "spec",
            json!({"http": [{"forwardTo": {"destinations": [{"ref": ["reviews"]}]}}]}),
        ),
        "RouteTable b/a: unexpected value at spec.http[0].forwardTo.destinations[0].ref",
    );
    refused(
        with("spec", json!([])),
        "RouteTable b/a: unexpected value at spec",
    );
    refused(
        with("status", json!({"common": 1})),
        "RouteTable b/a: unexpected value at status.common",
    );
    refused(
        json!({"metadata": {"name": "a", "labels": []}}),
        "RouteTable (unnamed): unexpected value at metadata.labels",
    );
}

#[test]
fn other_documents_are_refused() {
    refused(
        json!({"kind": "Gateway"}),
        "expected an object of kind RouteTable, found kind Gateway",
    );
    refused(
        json!({"kind": 1}),
        "expected an object of kind RouteTable, found kind 1",
    );
    refused(json!({}), "RouteTable without metadata.name");
    refused(json!(null), "RouteTable without metadata.name");
    refused(
        json!({"kind": "RouteTable", "metadata": {"name": "a"}}),
        "RouteTable without metadata.namespace",
    );
}

#[test]
fn the_clusters_and_namespaces_of_a_workspace() {
    let workspace = serde_saphyr::from_str(
        "
apiVersion: admin.gloo.solo.io/v2
kind: Workspace
metadata: {name: web, namespace: gloo-mesh}
spec:
  workloadClusters:
  - {name: 'c*', configEnabled: false, namespaces: [{name: web, configEnabled: true}, {labels: {team: web}}]}
  - {selector: {region: east}}
",
    )
    .unwrap();
    let spec = Document::<Workspace>::from_value(workspace)
        .unwrap()
        .spec()
        .unwrap();
    let [named, labelled] = &spec.workload_clusters[..] else {
        panic!("{spec:?}");
    };
    assert_eq!(
        (named.name.as_str(), named.config_enabled),
        ("c*", Some(false))
    );
    assert_eq!(named.namespaces[0].config_enabled, Some(true));
    assert_eq!(named.namespaces[1].labels["team"], "web");
    assert_eq!(labelled.selector["region"], "east");
    assert_eq!(labelled.config_enabled, None);
}
