//! What watches have told, as far as the work between the calls needs it.

use gloo_types::{ObjectKey, RouteTableDoc};
use route_store::Change;
use tokio::sync::broadcast::Receiver;

use super::collect::Marked;

/// Tables and Rollouts that are followed.
pub(crate) trait Watched: Send + Sync + 'static {
    /// A table as it was heard of last.
    fn table(&self, table: &ObjectKey) -> Option<RouteTableDoc>;

    /// The changes of tables from now on.
    fn table_changes(&self) -> Receiver<Change>;

    /// The changes of Rollouts from now on.
    fn rollout_changes(&self) -> Receiver<Change>;

    /// The tables with marks of Rollouts of this cluster; `None` unless all tables and all Rollouts are known.
    fn marked(&self) -> Option<Vec<Marked>>;

    /// Whether a Rollout uses this plugin; `None` if there is no such Rollout.
    fn uses_plugin(&self, rollout: &ObjectKey) -> Option<bool>;

    /// Number of Rollouts.
    fn rollouts(&self) -> usize;
}
