//! The table of mistakes in `docs/appset.md`: each example has the answer of its row.

use std::collections::BTreeMap;

use appset_generator::{Config, Failure, Namespaces, Request, SourceQuery};
use serde_json::{Value, json};

const PAGE: &str = include_str!("../../../docs/appset.md");

/// Returns the texts in backticks.
fn codes(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Answers a request with no image in any registry, and no object in any cluster. A request with a branch is for the previews.
fn answer(config: &Config, parameters: &Value) -> Result<usize, Failure> {
    let body = json!({"input": {"parameters": parameters}}).to_string();
    let request = Request::from_body(body.as_bytes())?;
    let profile = parameters.get("branch").map(|_| "previews");
    let query = config.query(profile, None, request, &Namespaces::default())?;
    let sets = match query.source {
        SourceQuery::Static(source) => source.into_sets(),
        SourceQuery::ImageDigests(images) => images.sets(&BTreeMap::new())?,
        SourceQuery::GlooRoutes(routes) => routes.sets(&BTreeMap::new(), &|| Ok(()))?,
        SourceQuery::Rollouts(rollouts) => {
            rollouts.sets(&BTreeMap::new(), &BTreeMap::new(), &|| Ok(()))?
        }
        SourceQuery::GlooWorkspaces(workspaces) => {
            workspaces.sets(&BTreeMap::new(), &BTreeMap::new(), &|| Ok(()))?
        }
    };
    query.output.answer(sets).map(|answer| answer.count())
}

#[test]
fn every_mistake_has_the_answer_of_its_row() {
    let (_, section) = PAGE.split_once("\n## Mistakes\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let (_, yaml) = section.split_once("```yaml\n").unwrap();
    let config = Config::from_yaml(yaml.split_once("```").unwrap().0).unwrap();
    let rows = section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let mut examples = 0;
    for row in rows.skip(1) {
        let cells: Vec<_> = row.split(" | ").collect();
        let expect = codes(cells[2]).next().unwrap();
        for example in codes(cells[1]) {
            examples += 1;
            let given = if example.starts_with("{\"") {
                let parameters = serde_json::from_str(example).unwrap();
                answer(&config, &parameters).map_or_else(
                    |failure| failure.code().name.to_owned(),
                    |count| format!("{count} sets"),
                )
            } else {
                match Config::from_yaml(example) {
                    Err(_) => "error".to_owned(),
                    Ok(next) => {
                        let warnings = [next.warnings(), config.shrunk_to(&next)].concat();
                        if warnings.is_empty() {
                            "nothing"
                        } else {
                            "warning"
                        }
                        .to_owned()
                    }
                }
            };
            assert_eq!(given, expect, "{row}: {example}");
        }
    }
    assert!(examples > 30, "{examples}");
}
