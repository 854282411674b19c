//! The web page of the demo: it shows a canary, and its buttons send commands.
//!
//! A [`Stage`] is the canary with its environment. There are two: `examples/traffic` plays the controller over RouteTables in
//! files, and `tests/src/traffic/stage.rs` runs the released controller in a cluster. Both fill a [`Board`], and [`serve`]
//! serves their page.
//!
//! ```text
//! browser --POST /do--> Command -> Stage -> Board -> Snapshot --GET /events--> browser
//! Load, Pods ---------------------------> Board
//! ```

mod board;
mod command;
mod counts;
mod serve;
mod stage;
mod steps;
mod tables;
mod tail;
mod view;
mod web;

pub use board::{Board, Live, Plugin, Progress};
pub use command::{Action, Command, Switch, Version};
pub use serve::{DemoError, PageFlags, serve};
pub use stage::{Stage, StageError};
pub use steps::steps;
pub use tables::{FILE, OWNERS, Tables, TablesError};
pub use view::Setting;
