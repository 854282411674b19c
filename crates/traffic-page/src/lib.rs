//! The page of the demo: what it shows of a canary, and the orders that it gives.
//!
//! Everything that happens does so on a [`Stage`], of which there are two: `examples/traffic`, which plays the controller over
//! RouteTables in files, and a cluster with the released controller among the tests. Both fill the same [`Board`] and are
//! [`serve`]d in the same way.
//!
//! ```text
//! browser --POST /do--> Order -> Stage -> Board -> Snapshot --GET /events--> browser
//! Load, Pods ---------------------------> Board
//! ```

mod board;
mod counts;
mod order;
mod serve;
mod stage;
mod steps;
mod tables;
mod tail;
mod view;
mod web;

pub use board::{Board, Live, Plugin, Progress};
pub use order::{Deed, Order, Switch, Version};
pub use serve::{DemoError, PageFlags, serve};
pub use stage::{Stage, StageError};
pub use steps::steps;
pub use tables::{FILE, OWNERS, Tables, TablesError};
pub use view::Setting;
