//! What the work between the calls needs of a [`CachedRouteStore`].

use std::collections::BTreeSet;
use std::time::Duration;

use gloo_types::{ObjectKey, RouteTableDoc};
use rollouts_rpc::error_chain;
use route_store::{CachedRouteStore, Change, FRESH};
use tokio::sync::broadcast::Receiver;
use tokio::time::sleep;

use super::{Part, Presence, Watched};
use crate::report::About;

/// Pause between two checks whether the cache is filled.
const PAUSE: Duration = Duration::from_secs(1);

impl Watched for CachedRouteStore {
    async fn run(&self) {
        Self::run(self).await;
    }

    async fn first_marks(&self) -> BTreeSet<ObjectKey> {
        let tables = loop {
            self.tables.settled(None).await;
            if let Ok(tables) = self.tables.objects(None, Duration::MAX) {
                break tables;
            }
            sleep(PAUSE).await;
        };
        let marks = tables.iter().flat_map(|table| table.owners.iter().cloned());
        marks.collect()
    }

    fn table(&self, table: &ObjectKey) -> Option<RouteTableDoc> {
        self.tables.get(table)?.document().ok()
    }

    fn version(&self, table: &ObjectKey) -> Option<String> {
        Some(self.tables.get(table)?.version.to_string())
    }

    fn unseen(&self, table: &ObjectKey) -> Option<String> {
        let why = self.tables.find(table, FRESH).err()?;
        Some(format!(
            "RouteTable {table} is not watched: {}",
            error_chain(&why)
        ))
    }

    fn table_changes(&self) -> Receiver<Change> {
        self.tables.subscribe()
    }

    fn policy_changes(&self) -> Receiver<Change> {
        self.policies.subscribe()
    }

    fn rollout_changes(&self) -> Receiver<Change> {
        self.rollouts.subscribe()
    }

    fn marked(&self) -> Option<BTreeSet<Part>> {
        let tables = self.tables.objects(None, FRESH).ok()?;
        self.rollouts.objects(None, FRESH).ok()?;
        let is_known =
            |rollout: &&ObjectKey| is_whole(rollout) && self.presence(rollout) != Presence::Unknown;
        let mut marked = BTreeSet::new();
        for table in tables {
            marked.extend(table.owners.iter().filter(is_known).map(|rollout| Part {
                table: table.key.clone(),
                rollout: rollout.clone(),
            }));
        }
        Some(marked)
    }

    fn unreadable(&self) -> Vec<(About, String)> {
        let tables = self.tables.all().into_iter();
        let unreadable = tables.filter_map(|table| {
            let reason = table.unreadable.as_deref()?.to_owned();
            let about = About {
                key: table.key.clone(),
                uid: table.uid.as_ref().to_owned(),
            };
            Some((about, reason))
        });
        unreadable.collect()
    }

    fn presence(&self, rollout: &ObjectKey) -> Presence {
        match self.rollouts.find(rollout, FRESH) {
            Err(_) => Presence::Unknown,
            Ok(None) => Presence::Absent,
            Ok(Some(cached)) => Presence::Exists {
                uses_plugin: cached.plugin.is_some(),
            },
        }
    }

    fn deselects(&self, rollout: &ObjectKey, table: &ObjectKey) -> bool {
        let (cached, table) = (self.rollouts.get(rollout), self.tables.get(table));
        let plugin = cached.as_ref().and_then(|it| it.plugin.as_ref());
        let selector = plugin.and_then(|plugin| plugin.selector.as_ref());
        let (Some(selector), Some(table)) = (selector, table) else {
            return false;
        };
        !selector.matches(&table.key, &table.labels)
    }

    fn rollouts(&self) -> usize {
        self.rollouts.status().objects
    }
}

/// Whether a mark contains the full name of a Rollout of this cluster. A label has a digest in place of a name that is too
/// long, and marks of another workload cluster end with `@` and the name of that cluster.
fn is_whole(mark: &ObjectKey) -> bool {
    let is_digest = |name: &str| {
        let digest = name
            .strip_prefix('x')
            .and_then(|name| name.rsplit_once('-'));
        digest.is_some_and(|(_, it)| {
            it.len() == 16 && it.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    };
    let is_plain = |name: &str| !name.contains('@') && !is_digest(name);
    is_plain(&mark.namespace) && is_plain(&mark.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_names_a_rollout_of_this_cluster_in_full() {
        for (name, expect) in [
            ("reviews", true),
            ("x-ray", true),
            ("reviews@eu", false),
            ("xreviews-e63f991904833892", false),
            ("xreviews-e63f99190483389", true),
        ] {
            assert_eq!(is_whole(&ObjectKey::new("shop", name)), expect, "{name}");
        }
    }
}
