//! The table of keys, which the reference is written from, against what the parser reads.

use route_planner::keys::{BLOCK, Key, Shape};
use serde_json::{Value, json};

use crate::configuration::with;

/// A switch is the value of no key, so a key that is read complains about it, and by its path.
#[test]
fn every_key_of_the_reference_is_read() {
    fn visit(keys: &[Key], place: &dyn Fn(Value) -> Value, above: &str) {
        for key in keys {
            let path = format!("{above}{}", key.name);
            let at = |value: Value| place(json!({ (key.name): value }));
            let error = with(at(json!(true))).unwrap_err().to_string();
            assert!(error.contains(&format!(" {path} must be ")), "{error}");
            match key.value {
                Shape::Object(keys) => visit(keys, &at, &format!("{path}.")),
                Shape::Objects(keys) => {
                    visit(keys, &|value| at(json!([value])), &format!("{path}[0]."));
                }
                _ => {}
            }
        }
    }
    visit(BLOCK, &|block| block, "");
}

#[test]
fn every_choice_of_the_reference_is_accepted_and_the_first_is_the_default() {
    let unset = format!("{:?}", with(json!({})).unwrap());
    for key in BLOCK {
        let Shape::OneOf(choices) = key.value else {
            continue;
        };
        for (index, choice) in choices.iter().enumerate() {
            let config = with(json!({ (key.name): choice })).unwrap();
            if key.default == format!("`{choice}`") {
                assert_eq!(format!("{config:?}"), unset, "{}", key.name);
                assert_eq!(index, 0, "{}", key.name);
            }
        }
    }
}
