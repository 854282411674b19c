//! The picture in ARCHITECTURE.md: who may know whom, asked of `cargo tree`.

use std::collections::BTreeSet;

use xshell::{Shell, cmd};

use super::Violation;
use crate::plugin::PLUGIN;

/// What one crate must know and must not know.
///
/// The known edge is the positive control: without it a misspelt package would pass every rule.
struct Rule {
    package: &'static str,
    knows: &'static [&'static str],
    must_not_know: &'static [&'static str],
}

const RULES: &[Rule] = &[
    Rule {
        package: "go-gob",
        knows: &["serde"],
        must_not_know: &[
            "tokio",
            "futures",
            "tracing",
            "kube-core",
            "kube-client",
            "rollouts-rpc",
            "gloo-types",
        ],
    },
    Rule {
        package: "rollout-types",
        knows: &["go-gob", "serde_json"],
        must_not_know: &[
            "tokio",
            "futures",
            "kube-core",
            "kube-client",
            "rollouts-rpc",
        ],
    },
    Rule {
        package: "rollouts-rpc",
        knows: &["go-gob", "rollout-types", "yamux"],
        must_not_know: &[
            "gloo-types",
            "route-planner",
            "route-store",
            "kube-core",
            "kube-client",
            "k8s-openapi",
        ],
    },
    Rule {
        package: "rollouts-plugin-check",
        knows: &["go-gob", "rollouts-rpc"],
        must_not_know: &[
            "gloo-types",
            "route-planner",
            "route-store",
            "kube-core",
            "kube-client",
        ],
    },
    Rule {
        package: "gloo-types",
        knows: &["serde_json"],
        must_not_know: &[
            "tokio",
            "kube-core",
            "kube-client",
            "go-gob",
            "rollouts-rpc",
            "route-planner",
            "route-store",
        ],
    },
    Rule {
        package: "strict-json",
        knows: &["serde_json"],
        must_not_know: &["tokio", "gloo-types", "route-planner", "appset-generator"],
    },
    Rule {
        package: "route-planner",
        knows: &["gloo-types", "json-patch", "strict-json"],
        must_not_know: &[
            "tokio",
            "futures",
            "tracing",
            "kube-core",
            "kube-client",
            "k8s-openapi",
            "go-gob",
            "rollouts-rpc",
            "route-store",
        ],
    },
    Rule {
        package: "route-store",
        knows: &["gloo-types", "kube-client", "rollout-types"],
        must_not_know: &["route-planner", "rollouts-rpc"],
    },
    Rule {
        package: "appset-generator",
        knows: &[
            "gloo-types",
            "rollout-types",
            "route-planner",
            "strict-json",
        ],
        must_not_know: &[
            "axum",
            "hyper",
            "tokio",
            "futures",
            "tracing",
            "kube-core",
            "kube-client",
            "rollouts-rpc",
            "route-store",
        ],
    },
    Rule {
        package: "gloo-appset-generator",
        knows: &["appset-generator", "axum", "route-store"],
        must_not_know: &[PLUGIN, "rollouts-rpc", "xtask", "openssl-sys", "native-tls"],
    },
    Rule {
        package: PLUGIN,
        knows: &["rollouts-rpc", "route-planner", "route-store"],
        must_not_know: &[
            "appset-generator",
            "envoy-routes",
            "traffic-lab",
            "xtask",
            "openssl-sys",
            "native-tls",
        ],
    },
    Rule {
        package: "envoy-routes",
        knows: &["gloo-types", "serde_json"],
        must_not_know: &[
            "tokio",
            "futures",
            "tracing",
            "kube-core",
            "kube-client",
            "rollouts-rpc",
            "route-planner",
            "route-store",
        ],
    },
    Rule {
        package: "traffic-lab",
        knows: &["envoy-routes", "hyper", "tokio"],
        must_not_know: &[
            "kube-core",
            "kube-client",
            "k8s-openapi",
            "rollouts-rpc",
            "route-planner",
            "route-store",
            PLUGIN,
        ],
    },
    Rule {
        package: "xtask",
        knows: &["xshell"],
        must_not_know: &[
            "go-gob",
            "rollout-types",
            "rollouts-rpc",
            "gloo-types",
            "route-planner",
            "route-store",
            "strict-json",
            "envoy-routes",
            "traffic-lab",
            "appset-generator",
            PLUGIN,
        ],
    },
];

/// Asks cargo for each crate's dependencies, all features on.
pub(super) fn check(sh: &Shell) -> anyhow::Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for rule in RULES {
        let package = rule.package;
        let tree = cmd!(
            sh,
            "cargo tree --locked --package {package} --all-features --edges normal,build --prefix none"
        );
        violations.extend(judge(rule, &tree.quiet().read()?));
    }
    Ok(violations)
}

/// `tree` has one `name version ...` line per package; the first is the crate itself.
fn judge(rule: &Rule, tree: &str) -> Vec<Violation> {
    let known: BTreeSet<&str> = tree
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next())
        .collect();
    let missing = rule
        .knows
        .iter()
        .filter(|name| !known.contains(*name))
        .map(|name| {
            Violation::new(
                rule.package,
                format!("does not depend on {name}, though the picture says so"),
            )
        });
    let forbidden = rule
        .must_not_know
        .iter()
        .filter(|name| known.contains(*name))
        .map(|name| {
            Violation::new(
                rule.package,
                format!("depends on {name}, which it must not know"),
            )
        });
    missing.chain(forbidden).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule {
        package: "pure",
        knows: &["serde"],
        must_not_know: &["tokio"],
    };

    #[track_caller]
    fn check(tree: &str, expect: &[&str]) {
        let found: Vec<String> = judge(&RULE, tree)
            .into_iter()
            .map(|violation| violation.what)
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn known_edge_present_and_forbidden_edge_absent() {
        check("pure v0.1.0\nserde v1.0.0\n", &[]);
    }

    #[test]
    fn planted_forbidden_edge() {
        check(
            "pure v0.1.0\nserde v1.0.0\ntokio v1.0.0 (*)\n",
            &["depends on tokio, which it must not know"],
        );
    }

    #[test]
    fn planted_missing_edge() {
        check(
            "pure v0.1.0\nserde_json v1\n",
            &["does not depend on serde, though the picture says so"],
        );
    }
}
