//! Label selectors, with the keys that a Rollout's `routeTableSelector` has.

use std::collections::BTreeMap;

use gloo_types::{LabelOperator, LabelRequirement};
use strict_json::{Block, Problem};

/// A label selector. Without labels and expressions it selects every object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector {
    /// Labels that must all be present and equal.
    pub(crate) labels: BTreeMap<String, String>,
    /// Requirements that must all hold.
    pub(crate) match_expressions: Vec<LabelRequirement>,
}

impl LabelSelector {
    pub(crate) const KEYS: [&'static str; 2] = ["labels", "matchExpressions"];

    /// Reads the two keys of `selector`, which may have others.
    pub(crate) fn read(selector: &Block<'_>) -> Result<Self, Problem> {
        let expressions = selector.blocks("matchExpressions", &["key", "operator", "values"])?;
        let expressions = expressions.iter().map(requirement);
        Ok(Self {
            labels: selector.labels("labels")?,
            match_expressions: expressions.collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.match_expressions.is_empty()
    }

    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let mut expressions = self.match_expressions.iter();
        has_all(labels, &self.labels) && expressions.all(|expression| expression.matches(labels))
    }
}

/// Whether an object with `labels` has all that are `needed`.
pub(crate) fn has_all(
    labels: &BTreeMap<String, String>,
    needed: &BTreeMap<String, String>,
) -> bool {
    needed
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

fn requirement(expression: &Block<'_>) -> Result<LabelRequirement, Problem> {
    let key = expression.label_text("key")?.unwrap_or_default();
    if key.is_empty() {
        return Err(expression.empty("key"));
    }
    let values = expression.label_texts("values")?;
    let operators = ["In", "NotIn", "Exists", "DoesNotExist"];
    let operator = match expression.one_of("operator", &operators)? {
        None => return Err(expression.empty("operator")),
        Some("In" | "NotIn") if values.is_empty() => return Err(expression.empty("values")),
        Some("In") => LabelOperator::In(values),
        Some("NotIn") => LabelOperator::NotIn(values),
        Some(_) if !values.is_empty() => {
            return Err(Problem::Conflict {
                path: expression.path("values"),
                other: "operator",
            });
        }
        Some("Exists") => LabelOperator::Exists,
        Some(_) => LabelOperator::DoesNotExist,
    };
    Ok(LabelRequirement { key, operator })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn read(selector: &Value) -> Result<LabelSelector, String> {
        let block = Block::root(selector, "the selector", &LabelSelector::KEYS).unwrap();
        LabelSelector::read(&block).map_err(|problem| problem.to_string())
    }

    #[track_caller]
    fn check(selector: Value, labels: Value, expect: bool) {
        let labels = serde_json::from_value(labels).unwrap();
        assert_eq!(read(&selector).unwrap().matches(&labels), expect);
    }

    #[test]
    fn all_labels_and_expressions_have_to_hold() {
        let team = |operator: &str, values: Value| json!({"labels": {"env": "prod"}, "matchExpressions": [{"key": "team", "operator": operator, "values": values}]});
        let shop = json!({"env": "prod", "team": "shop"});
        check(json!({}), json!({}), true);
        check(team("In", json!(["shop"])), shop.clone(), true);
        check(team("In", json!(["cart"])), shop.clone(), false);
        check(team("In", json!(["shop"])), json!({"team": "shop"}), false);
        check(team("NotIn", json!(["shop"])), shop.clone(), false);
        check(team("NotIn", json!(["cart"])), json!({"env": "prod"}), true);
        check(team("Exists", json!([])), shop.clone(), true);
        check(team("DoesNotExist", json!([])), shop, false);
        check(
            team("DoesNotExist", json!([])),
            json!({"env": "prod"}),
            true,
        );
    }

    #[test]
    fn what_is_no_selector() {
        for (expression, expect) in [
            (
                json!({"operator": "Exists"}),
                "matchExpressions[0] is empty: set key in it",
            ),
            (
                json!({"key": "a"}),
                "matchExpressions[0] is empty: set operator in it",
            ),
            (
                json!({"key": "a", "operator": "In"}),
                "matchExpressions[0] is empty: set values in it",
            ),
            (
                json!({"key": "a", "operator": "Exists", "values": ["b"]}),
                "matchExpressions[0].values contradicts operator",
            ),
            (
                json!({"key": "a", "operator": "in"}),
                "matchExpressions[0].operator is \"in\"",
            ),
        ] {
            let error = read(&json!({ "matchExpressions": [expression] })).unwrap_err();
            assert!(error.contains(expect), "{error}");
        }
    }
}
