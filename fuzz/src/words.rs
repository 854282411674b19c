//! The words that the mutators insert into documents.

use std::sync::LazyLock;

use route_planner::keys::{BLOCK, Key, Shape};

/// Every key of the plugin block and every choice of a value, from the table that the parser uses.
pub static PLUGIN_BLOCK: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    fn visit(keys: &[Key], words: &mut Vec<&'static str>) {
        for key in keys {
            words.push(key.name);
            match key.value {
                Shape::OneOf(choices) => words.extend(choices),
                Shape::Object(keys) | Shape::Objects(keys) => visit(keys, words),
                _ => {}
            }
        }
    }
    let mut words = Vec::new();
    visit(BLOCK, &mut words);
    words.sort_unstable();
    words.dedup();
    words
});
