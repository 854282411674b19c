//! Applies a JSON Patch to a document.

use json_patch::{Patch, PatchError, PatchOperation, RemoveOperation};
use serde_json::{Map, Value};

/// `document` with the changes of `patch`. The fields that stay keep their order.
///
/// The library moves the last field of an object to the place of one that it removes. That is the same object to JSON, but not
/// to a person who reads the file.
///
/// # Errors
/// Returns `Err` if an operation cannot be carried out, or a `test` fails.
pub fn patched(mut document: Value, patch: &Patch) -> Result<Value, PatchError> {
    for operation in &patch.0 {
        let has_removed = match operation {
            PatchOperation::Remove(operation) => remove_field(&mut document, operation).is_some(),
            _ => false,
        };
        if !has_removed {
            json_patch::patch(&mut document, std::slice::from_ref(operation))?;
        }
    }
    Ok(document)
}

/// `None` if it is not a field of an object, or not there.
fn remove_field(document: &mut Value, operation: &RemoveOperation) -> Option<Value> {
    let (object, field) = operation.path.split_back()?;
    let object: &mut Map<String, Value> = document.pointer_mut(object.as_str())?.as_object_mut()?;
    object.shift_remove(field.decoded().as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(patch: Value, expect: Option<&str>) {
        let patch: Patch = serde_json::from_value(patch).unwrap();
        let document = json!({"a/b": 1, "list": [1, 2, 3], "c": {"x": 1, "y": 2, "z": 3}, "d": 4});
        let patched = patched(document, &patch).ok();
        let patched = patched.map(|it| it.to_string());
        assert_eq!(patched.as_deref(), expect, "{patch}");
    }

    #[test]
    fn the_fields_that_stay_keep_their_order() {
        check(
            json!([{"op": "remove", "path": "/a~1b"}, {"op": "remove", "path": "/c/x"}]),
            Some(r#"{"list":[1,2,3],"c":{"y":2,"z":3},"d":4}"#),
        );
        check(
            json!([{"op": "remove", "path": "/list/0"}, {"op": "replace", "path": "/c/x", "value": 7}]),
            Some(r#"{"a/b":1,"list":[2,3],"c":{"x":7,"y":2,"z":3},"d":4}"#),
        );
    }

    #[test]
    fn what_cannot_be_carried_out_is_an_error() {
        for operation in [
            json!({"op": "remove", "path": "/none"}),
            json!({"op": "remove", "path": "/list/3"}),
            json!({"op": "remove", "path": "/none/x"}),
            json!({"op": "test", "path": "/d", "value": 5}),
        ] {
            check(json!([{"op": "remove", "path": "/a~1b"}, operation]), None);
        }
    }
}
