//! The owner's RouteTable and the plugin's changes of it: the routes of the gateway, and the lines that the plugin added.

use envoy_routes::{DefaultRetries, Objects, Translation, translate};
use gloo_types::{DocumentError, MirrorPolicyDoc, RouteTableDoc, effective_weights};
use serde_json::{Value, json};
use similar::{ChangeTag, TextDiff};

/// The owner's RouteTable.
pub const OWNERS: &str = include_str!("shop.yaml");
/// The file of the owner's RouteTable.
pub const FILE: &str = "shop.yaml";
/// Name of the route that the plugin splits.
const ROUTE: &str = "reviews";
/// Name of the canary Service.
const CANARY: &str = "reviews-canary";
/// Maximum number of shown lines of a change.
const SHOWN: usize = 60;

/// Why tables cannot be shown or translated.
#[derive(Debug, thiserror::Error)]
pub enum TablesError {
    /// A file is not YAML.
    #[error("{file}: {reason}")]
    Yaml {
        /// The file.
        file: String,
        /// The error of the parser or the writer.
        reason: String,
    },
    /// A document is not an object of Gloo.
    #[error(transparent)]
    Gloo(#[from] DocumentError),
}

type Result<T> = std::result::Result<T, TablesError>;

/// A snapshot of all tables and policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tables {
    /// The owner's RouteTable, with keys in the order of [`FILE`].
    owners: String,
    /// Name and content of each file.
    files: Vec<(String, String)>,
}

impl Tables {
    /// A snapshot of `files`, by name. [`FILE`] comes first; `owners` is its content at the start.
    #[must_use]
    pub fn new(owners: &str, mut files: Vec<(String, String)>) -> Self {
        files.sort_by_key(|(name, _)| (name != FILE, name.clone()));
        Self {
            owners: owners.to_owned(),
            files,
        }
    }

    /// Returns whether the content is equal to the owner's.
    ///
    /// # Errors
    /// Returns `Err` if a file is not YAML.
    pub fn is_owners(&self) -> Result<bool> {
        Ok(self.uniform()? == uniform(FILE, &self.owners)?)
    }

    /// Translates the tables to the routes of the gateway.
    ///
    /// # Errors
    /// Returns `Err` if a file is not YAML or not an object of Gloo.
    pub fn translate(&self) -> Result<Translation> {
        let (mut tables, mut mirrors) = (Vec::new(), Vec::new());
        for document in self.documents()? {
            match document.get("kind").and_then(Value::as_str) {
                Some("MirrorPolicy") => mirrors.push(MirrorPolicyDoc::from_value(document)?),
                _ => tables.push(RouteTableDoc::from_value(document)?),
            }
        }
        Ok(translate(&Objects {
            tables: &tables,
            mirror_policies: &mirrors,
            // Retries would hide failed requests.
            retries: DefaultRetries::Off,
            ..Objects::default()
        }))
    }

    /// Returns the share of the canary Service in the table, in percent.
    ///
    /// # Errors
    /// Returns `Err` if a file is not YAML or not an object of Gloo.
    pub fn share(&self) -> Result<f64> {
        for document in self.documents()? {
            if document.get("kind").and_then(Value::as_str) != Some("RouteTable") {
                continue;
            }
            let table = RouteTableDoc::from_value(document)?;
            let routes = table.spec()?.http;
            let Some(route) = routes.into_iter().find(|route| route.name == ROUTE) else {
                continue;
            };
            let forward_to = route.forward_to.unwrap_or_default();
            let destinations = forward_to.destinations.unwrap_or_default();
            let shares = effective_weights(&destinations);
            let all: u64 = shares.iter().map(|it| u64::from(*it)).sum();
            let is_canary = |index: usize| {
                let reference = destinations.get(index).and_then(|it| it.reference.as_ref());
                reference.is_some_and(|reference| reference.name == CANARY)
            };
            let shares = shares.iter().enumerate();
            let its: u64 = shares
                .filter(|(index, _)| is_canary(*index))
                .map(|(_, share)| u64::from(*share))
                .sum();
            #[expect(clippy::cast_precision_loss, reason = "weights are small")]
            return Ok(if all == 0 {
                0.0
            } else {
                100.0 * its as f64 / all as f64
            });
        }
        Ok(0.0)
    }

    /// Returns the lines of each file, and whether the plugin added each line.
    ///
    /// # Errors
    /// Returns `Err` if a file is not YAML.
    pub fn lines(&self) -> Result<Value> {
        let owners = uniform(FILE, &self.owners)?;
        let files = self.files.iter().map(|(name, text)| {
            let before = if name == FILE { owners.as_str() } else { "" };
            let text = uniform(name, text)?;
            let diff = TextDiff::from_lines(before, &text);
            let lines: Vec<Value> = diff
                .iter_all_changes()
                .filter(|change| change.tag() != ChangeTag::Delete)
                .map(|change| {
                    let text = change.value().trim_end_matches('\n');
                    json!([text, change.tag() == ChangeTag::Insert])
                })
                .collect();
            Ok(json!({"file": name, "lines": lines}))
        });
        Ok(Value::Array(files.collect::<Result<_>>()?))
    }

    /// Returns the lines that differ from an earlier snapshot, with the prefix `+` or `-`.
    ///
    /// # Errors
    /// Returns `Err` if a file is not YAML.
    pub fn changed_since(&self, before: &Self) -> Result<Vec<String>> {
        let (before, after) = (before.uniform()?, self.uniform()?);
        let diff = TextDiff::from_lines(&before, &after);
        let changed = diff.iter_all_changes().filter_map(|change| {
            let sign = match change.tag() {
                ChangeTag::Equal => return None,
                ChangeTag::Insert => '+',
                ChangeTag::Delete => '-',
            };
            Some(format!("{sign} {}", change.value().trim_end()))
        });
        Ok(changed.take(SHOWN).collect())
    }

    fn uniform(&self) -> Result<String> {
        let texts = self.files.iter().map(|(name, text)| uniform(name, text));
        texts.collect()
    }

    fn documents(&self) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        for (name, text) in &self.files {
            let documents = serde_saphyr::from_multiple::<Value>(text);
            all.extend(documents.map_err(|error| yaml(name, &error))?);
        }
        Ok(all)
    }
}

/// Formats YAML uniformly, so that lines differ only by content.
fn uniform(file: &str, text: &str) -> Result<String> {
    let value: Value = serde_saphyr::from_str(text).map_err(|error| yaml(file, &error))?;
    serde_saphyr::to_string(&value).map_err(|error| yaml(file, &error))
}

fn yaml(file: &str, error: &dyn std::fmt::Display) -> TablesError {
    TablesError::Yaml {
        file: file.to_owned(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the owner's table with these destinations and weights.
    fn tables(destinations: &[(&str, u32)]) -> Tables {
        let mut table: Value = serde_saphyr::from_str(OWNERS).unwrap();
        if !destinations.is_empty() {
            let all = destinations.iter().map(|(name, weight)| {
                json!({"ref": {"name": name, "namespace": "shop"}, "port": {"number": 8080}, "weight": weight})
            });
            let at = "/spec/http/1/forwardTo/destinations";
            *table.pointer_mut(at).unwrap() = all.collect();
        }
        let text = serde_saphyr::to_string(&table).unwrap();
        Tables::new(OWNERS, vec![(FILE.to_owned(), text)])
    }

    #[test]
    fn the_share_is_that_of_the_canary_service() {
        assert_eq!(tables(&[]).share().unwrap(), 0.0);
        let split = tables(&[("reviews", 75), (CANARY, 25)]);
        assert_eq!(split.share().unwrap(), 25.0);
        assert_eq!(tables(&[(CANARY, 100)]).share().unwrap(), 100.0);
    }

    /// Checks the lines that are marked as added by the plugin.
    #[track_caller]
    fn check(tables: &Tables, expect: &[&str]) {
        let lines = tables.lines().unwrap();
        let lines = lines.pointer("/0/lines").unwrap().as_array().unwrap();
        let marked = lines.iter().filter(|line| line[1] == true);
        let marked: Vec<_> = marked
            .map(|line| line[0].as_str().unwrap().trim())
            .collect();
        assert_eq!(marked, expect);
    }

    #[test]
    fn lines_that_the_owner_did_not_write_are_marked() {
        check(&tables(&[]), &[]);
        check(
            &tables(&[("reviews", 75), (CANARY, 25)]),
            &[
                "weight: 75",
                "- ref:",
                "name: reviews-canary",
                "namespace: shop",
                "port:",
                "number: 8080",
                "weight: 25",
            ],
        );
    }

    #[test]
    fn a_change_is_shown_by_its_lines() {
        let (quarter, half) = (
            tables(&[("reviews", 75), (CANARY, 25)]),
            tables(&[("reviews", 50), (CANARY, 50)]),
        );
        let changed = half.changed_since(&quarter).unwrap().join("\n");
        let said = changed.replace("  ", "");
        assert_eq!(
            said,
            "- weight: 75\n+ weight: 50\n- weight: 25\n+ weight: 50"
        );
        assert!(half.changed_since(&half).unwrap().is_empty());
    }

    /// A plugin that is killed loses the owner's text. The next process writes the file in the form of our YAML writer.
    #[test]
    fn the_owners_file_has_the_format_of_the_writer() {
        assert_eq!(uniform(FILE, OWNERS).unwrap(), OWNERS);
    }
}
