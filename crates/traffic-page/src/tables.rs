//! The owner's RouteTable and what a plugin made of it: what the gateway serves, and which lines are the plugin's.

use envoy_routes::{DefaultRetries, Objects, Translation, translate};
use gloo_types::{DocumentError, MirrorPolicyDoc, RouteTableDoc, effective_weights};
use serde_json::{Value, json};
use similar::{ChangeTag, TextDiff};

/// The RouteTable as its owner wrote it.
pub const OWNERS: &str = include_str!("shop.yaml");
/// Its file.
pub const FILE: &str = "shop.yaml";
/// The route that is split.
const ROUTE: &str = "reviews";
/// Where the share of the new version goes.
const CANARY: &str = "reviews-canary";
/// Lines of a change that are shown.
const SHOWN: usize = 60;

/// Why tables cannot be shown or translated.
#[derive(Debug, thiserror::Error)]
pub enum TablesError {
    /// No YAML.
    #[error("{file}: {reason}")]
    Yaml {
        /// The file.
        file: String,
        /// What the parser or the writer says.
        reason: String,
    },
    /// No object of Gloo.
    #[error(transparent)]
    Gloo(#[from] DocumentError),
}

type Result<T> = std::result::Result<T, TablesError>;

/// All tables and policies at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tables {
    /// The RouteTable of its owner, in the key order of that of [`FILE`].
    owners: String,
    /// Name and content of each file.
    files: Vec<(String, String)>,
}

impl Tables {
    /// Tables by the name of their file. That of the owner is [`FILE`], and comes first; `owners` is what was in it at first.
    #[must_use]
    pub fn new(owners: &str, mut files: Vec<(String, String)>) -> Self {
        files.sort_by_key(|(name, _)| (name != FILE, name.clone()));
        Self {
            owners: owners.to_owned(),
            files,
        }
    }

    /// Whether nobody has added anything.
    ///
    /// # Errors
    /// Returns `Err` if a file is no YAML.
    pub fn is_owners(&self) -> Result<bool> {
        Ok(self.uniform()? == uniform(FILE, &self.owners)?)
    }

    /// The routes of the gateway.
    ///
    /// # Errors
    /// Returns `Err` if a file is no YAML of Gloo.
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
            // A retry would hide a failure.
            retries: DefaultRetries::Off,
            ..Objects::default()
        }))
    }

    /// The share of the canary Service in percent, as the table has it.
    ///
    /// # Errors
    /// Returns `Err` if a file is no YAML of Gloo.
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

    /// The lines of each file, and whether the plugin added them.
    ///
    /// # Errors
    /// Returns `Err` if a file is no YAML.
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

    /// The lines that differ from an earlier moment, with a sign before each.
    ///
    /// # Errors
    /// Returns `Err` if a file is no YAML.
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

/// The same content in the form of one writer, so that lines differ by their content only.
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

    /// The owner's table with these destinations and weights.
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

    /// Shows the lines that are marked as the plugin's.
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
    fn what_the_owner_did_not_write_is_marked() {
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
    fn a_change_is_told_by_its_lines() {
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

    #[test]
    fn the_owners_file_is_in_the_form_of_the_writer_so_that_a_killed_plugin_can_restore_it() {
        assert_eq!(uniform(FILE, OWNERS).unwrap(), OWNERS);
    }
}
