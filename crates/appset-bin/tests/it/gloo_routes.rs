//! Routes of tables in a directory.

use std::fs;

use serde_json::{Value, json};

use crate::generator::Generator;

const TABLE: &str = "
apiVersion: networking.gloo.solo.io/v2
kind: RouteTable
metadata: {name: web, namespace: shop, labels: {app: demo}}
spec:
  hosts: [shop.example.com]
  http:
  - name: demo
    forwardTo: {destinations: [{ref: {name: stable}}]}
";

#[test]
fn tables_are_read_or_the_call_fails() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("web.yaml"), TABLE).unwrap();
    let flag = format!("--objects-dir={}", dir.path().display());
    let config = "glooRoutes: {namespaces: [shop]}";
    let generator = Generator::start_with(config, &[("argocd", "t")], &[&flag]);
    let ask = |selector: Value| {
        let body = json!({"input": {"parameters": {"routeTableSelector": selector}}});
        generator.post("", Some("t"), &body.to_string())
    };
    let found = ask(json!({"labels": {"app": "demo"}}));
    assert!(
        found.body.contains(r#""slug":"in-cluster"#),
        "{}",
        found.body
    );
    let typo = ask(json!({"labels": {"app": "dmeo"}}));
    assert_eq!(typo.status, 409, "{}", typo.body);
    let one_missing = ask(json!({"names": ["web", "other"]}));
    assert_eq!(one_missing.status, 409, "{}", one_missing.body);

    // One file that cannot be read: the tables may be in it.
    fs::write(
        dir.path().join("bad.yaml"),
        TABLE.replace("[shop.example.com]", "{").as_bytes(),
    )
    .unwrap();
    let unread = ask(json!({"names": ["web"]}));
    assert_eq!(unread.status, 502, "{}", unread.body);
}
