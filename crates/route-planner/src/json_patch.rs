//! A plan as JSON Patch: guarded by the resource version, each change behind a `test` of what it expects.

use json_patch::jsonptr::PointerBuf;
use json_patch::{
    AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation,
};
use serde_json::{Value, json};

use crate::edit::{DestinationChange, Edit, OtherAnnotations, Plan};
use crate::ownership::ANNOTATION;

impl Plan {
    /// The edits as RFC 6902 operations; empty for a plan without edits.
    ///
    /// The first operation tests `/metadata/resourceVersion`, if the document had one. Within a list of destinations
    /// weights are set in place first, then removals run from the highest index down, then insertions from the lowest up.
    /// Whole routes follow in the same manner.
    pub fn to_json_patch(&self) -> Patch {
        let mut operations = Operations(Vec::new());
        if !self.is_noop() {
            if let Some(version) = &self.resource_version {
                operations.test(&["metadata", "resourceVersion"], json!(version));
            }
            for edit in &self.edits {
                operations.edit(edit);
            }
        }
        Patch(operations.0)
    }
}

struct Operations(Vec<PatchOperation>);

impl Operations {
    fn edit(&mut self, edit: &Edit) {
        match edit {
            Edit::Destinations {
                path,
                expect,
                changes,
                ..
            } => {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                self.test(&path, expect.clone());
                let list = [path.as_slice(), &["destinations"]].concat();
                for change in changes {
                    self.destination(&list, change);
                }
            }
            Edit::InsertRoute { index, value, .. } => {
                self.add(&["spec", "http", &index.to_string()], value.clone());
            }
            Edit::ReplaceRoute {
                index,
                expect,
                value,
                ..
            } => {
                let path = ["spec", "http", &index.to_string()];
                self.test(&path, expect.clone());
                self.replace(&path, value.clone());
            }
            Edit::RemoveRoute { index, expect, .. } => {
                let path = ["spec", "http", &index.to_string()];
                self.test(&path, expect.clone());
                self.remove(&path);
            }
            Edit::Annotation {
                expect,
                value,
                others,
            } => {
                self.annotation(expect.as_deref(), value.as_deref(), *others);
            }
        }
    }

    fn destination(&mut self, list: &[&str], change: &DestinationChange) {
        let at = |index: &usize| index.to_string();
        match change {
            DestinationChange::SetWeight {
                index, from, to, ..
            } => {
                let index = at(index);
                let path = [list, &[&index, "weight"]].concat();
                match (from, to) {
                    (Some(_), Some(weight)) => self.replace(&path, weight.clone()),
                    (None, Some(weight)) => self.add(&path, weight.clone()),
                    (_, None) => self.remove(&path),
                }
            }
            DestinationChange::Replace { index, value, .. } => {
                self.replace(&[list, &[&at(index)]].concat(), value.clone());
            }
            DestinationChange::Remove { index, .. } => self.remove(&[list, &[&at(index)]].concat()),
            DestinationChange::Insert { index, value, .. } => {
                self.add(&[list, &[&at(index)]].concat(), value.clone());
            }
            DestinationChange::CreateList(destinations) => self.add(list, json!(destinations)),
            DestinationChange::RemoveList => self.remove(list),
        }
    }

    fn annotation(&mut self, expect: Option<&str>, value: Option<&str>, others: OtherAnnotations) {
        let map = ["metadata", "annotations"];
        let key = ["metadata", "annotations", ANNOTATION];
        if let Some(expect) = expect {
            self.test(&key, json!(expect));
        }
        match (value, others) {
            // The resource version guards what no `test` can express: that there is no such map or key.
            (Some(value), OtherAnnotations::NoMap) => self.add(&map, json!({ ANNOTATION: value })),
            (Some(value), _) => self.add(&key, json!(value)),
            (None, OtherAnnotations::None) => self.remove(&map),
            (None, _) => self.remove(&key),
        }
    }

    /// Tests for `value`, or for those parts of it that every API server finds equal to themselves.
    fn test(&mut self, path: &[&str], value: Value) {
        if is_equal_everywhere(&value) {
            self.0.push(PatchOperation::Test(TestOperation {
                path: pointer(path),
                value,
            }));
            return;
        }
        // The resource version, which is tested first, guards what is left out.
        if let Value::Object(fields) = value {
            for (key, part) in fields {
                self.test(&[path, &[&key]].concat(), part);
            }
        }
    }

    fn add(&mut self, path: &[&str], value: Value) {
        self.0.push(PatchOperation::Add(AddOperation {
            path: pointer(path),
            value,
        }));
    }

    fn replace(&mut self, path: &[&str], value: Value) {
        self.0.push(PatchOperation::Replace(ReplaceOperation {
            path: pointer(path),
            value,
        }));
    }

    fn remove(&mut self, path: &[&str]) {
        self.0.push(PatchOperation::Remove(RemoveOperation {
            path: pointer(path),
        }));
    }
}

/// Whether a `test` for `value` holds in an API server that has it.
///
/// Kubernetes compares scalars as text (evanphx/json-patch v4, `lazyNode.equal`) with what Go's encoder writes, which
/// escapes `<`, `>`, `&` and two line separators and has its own form of floats. On null in a list it panics.
fn is_equal_everywhere(value: &Value) -> bool {
    const ESCAPED_BY_GO: [char; 5] = ['<', '>', '&', '\u{2028}', '\u{2029}'];
    let is_plain = |text: &str| !text.contains(ESCAPED_BY_GO) && !text.contains(char::is_control);
    match value {
        Value::Null | Value::Bool(_) => true,
        Value::Number(number) => !number.is_f64(),
        Value::String(text) => is_plain(text),
        Value::Array(items) => items
            .iter()
            .all(|item| !item.is_null() && is_equal_everywhere(item)),
        Value::Object(fields) => fields.values().all(is_equal_everywhere),
    }
}

fn pointer(tokens: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(tokens.iter().copied())
}
