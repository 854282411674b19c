//! Reads JSON that a person wrote, strictly. Every error names the path of the key; for an unknown key it also names the most
//! similar known key.
//!
//! ```
//! use serde_json::json;
//! use strict_json::Block;
//!
//! let document = json!({"selector": {"nmae": "web"}});
//! let block = Block::root(&document, "the configuration", &["selector"])?;
//! let problem = block.block("selector", &["name", "labels"]).err().map(|problem| problem.to_string());
//! assert_eq!(problem.as_deref(), Some("unknown key selector.nmae, did you mean name?"));
//! # Ok::<(), strict_json::Problem>(())
//! ```

mod block;
mod problem;

pub use block::{Block, object_name, resembles};
pub use problem::{Problem, type_name};
