//! Garbage collection: decides which tables have marks of Rollouts that were deleted or no longer use the plugin, and when
//! they are restored. The time is an argument.
//!
//! The controller does not notify a plugin when a Rollout is deleted or stops using it. The collector compares the marks in
//! the tables with the existing Rollouts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gloo_types::ObjectKey;
use rollouts_rpc::Rollout;
use tokio::time::Instant;

use crate::report::OrphanCause;

/// Factor of the delay for a table whose Rollout this process has never seen: it may have been renamed, or be in another
/// cluster.
const NEVER_SEEN: u32 = 20;
/// If more than `MANY` tables, and more than one of [`ONE_OF`], become orphans at once, nothing is collected: the Rollouts
/// themselves may have been lost.
const MANY: usize = 5;
const ONE_OF: usize = 5;

/// How a Rollout uses this plugin, which decides what becomes of its marks in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PluginUse {
    /// It uses this plugin: its calls take care of its tables.
    Uses,
    /// It uses this plugin and selects other tables, in which its last weight is in force.
    Deselects,
    /// It no longer uses this plugin, and all traffic goes to one version, or will.
    SettledWithout,
    /// It no longer uses this plugin, and both versions get traffic. The controller now divides traffic by the number of
    /// Pods: without the canary's share, stable may have too few.
    UnsettledWithout,
}

impl PluginUse {
    /// Classifies a Rollout. `plugin_names` are the keys under which it may configure this plugin.
    pub(crate) fn of(rollout: &Rollout, plugin_names: &[String]) -> Self {
        let plugins = rollout.traffic_routing().map(|routing| &routing.plugins);
        let uses = plugins
            .is_some_and(|plugins| plugin_names.iter().any(|name| plugins.contains_key(name)));
        if uses {
            Self::Uses
        } else if rollout.status.abort || rollout.status.is_promoted() {
            Self::SettledWithout
        } else {
            Self::UnsettledWithout
        }
    }
}

/// What one Rollout has in one table: its marks, or its weights.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Part {
    /// The Rollout, which is in this cluster.
    pub rollout: ObjectKey,
    /// The table.
    pub table: ObjectKey,
}

/// Why nothing is collected although there are orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SafetyStop {
    /// So many tables lost their Rollouts at once that the Rollouts themselves may have been lost.
    Many,
    /// No Rollout exists.
    NoRollouts,
    /// The API server does not know the kind Rollout.
    NoSuchKind,
}

/// The result of a review.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Review {
    /// Parts that became orphans, and after which time they are restored; `None` if a safety stop prevents it.
    pub(crate) found: Vec<(Part, OrphanCause, Option<Duration>)>,
    /// Parts that are restored now.
    pub(crate) due: Vec<(Part, OrphanCause)>,
    /// Number of tables with orphans.
    pub(crate) orphans: usize,
    pub(crate) stop: Option<SafetyStop>,
}

/// The orphans, and since when they are orphans.
#[derive(Debug)]
pub(crate) struct Collector {
    after: Duration,
    orphans: BTreeMap<Part, Orphan>,
    /// Rollouts that were deleted while this process ran.
    deleted: BTreeSet<ObjectKey>,
}

#[derive(Debug)]
struct Orphan {
    since: Instant,
    why: OrphanCause,
    is_reported: bool,
    /// When a failed restore may be tried again.
    not_before: Instant,
    /// Whether it failed because the API server does not know the kind Rollout.
    is_kind_missing: bool,
}

impl Collector {
    /// Creates a collector that restores a table `after` the deletion of its Rollout.
    pub(crate) fn new(after: Duration) -> Self {
        Self {
            after,
            orphans: BTreeMap::new(),
            deleted: BTreeSet::new(),
        }
    }

    /// Notes that a watch reported the deletion of a Rollout.
    pub(crate) fn deleted(&mut self, rollout: &ObjectKey) {
        self.deleted.insert(rollout.clone());
    }

    /// Notes that a part was not restored, and whether this was because the API server does not know the kind Rollout. It is
    /// tried again later.
    pub(crate) fn failed(&mut self, part: &Part, is_kind_missing: bool, now: Instant) {
        let after = self.after;
        if let Some(orphan) = self.orphans.get_mut(part) {
            orphan.not_before = now + after;
            orphan.is_kind_missing = is_kind_missing;
        }
    }

    /// Reviews all marks. `rollout` returns the state of a part's Rollout, `None` if it does not exist. `count` is the number
    /// of Rollouts.
    pub(crate) fn review(
        &mut self,
        now: Instant,
        marked: &BTreeSet<Part>,
        count: usize,
        rollout: impl Fn(&Part) -> Option<PluginUse>,
    ) -> Review {
        let mut orphans = BTreeMap::new();
        for part in marked {
            let why = match rollout(part) {
                Some(PluginUse::Uses | PluginUse::UnsettledWithout) => continue,
                Some(PluginUse::Deselects) => OrphanCause::Deselected,
                Some(PluginUse::SettledWithout) => OrphanCause::PluginRemoved,
                None if self.deleted.contains(&part.rollout) => OrphanCause::Deleted,
                None => OrphanCause::NeverSeen,
            };
            let known = self.orphans.remove(part).filter(|known| known.why == why);
            let orphan = known.unwrap_or(Orphan {
                since: now,
                why,
                is_reported: false,
                not_before: now,
                is_kind_missing: false,
            });
            orphans.insert(part.clone(), orphan);
        }
        self.orphans = orphans;
        let has_marks =
            |rollout: &ObjectKey| self.orphans.keys().any(|part| part.rollout == *rollout);
        self.deleted.retain(has_marks);
        let is_gone =
            |orphan: &Orphan| matches!(orphan.why, OrphanCause::Deleted | OrphanCause::NeverSeen);
        let orphans = self.orphans.iter();
        let gone = tables(
            orphans
                .filter(|(_, orphan)| is_gone(orphan))
                .map(|(part, _)| part),
        );
        let mut review = Review {
            orphans: tables(self.orphans.keys()),
            ..Review::default()
        };
        let is_many = gone > MANY && gone * ONE_OF > tables(marked.iter());
        for (part, orphan) in &mut self.orphans {
            let stop = match orphan.why {
                OrphanCause::PluginRemoved | OrphanCause::Deselected => None,
                _ if is_many => Some(SafetyStop::Many),
                OrphanCause::NeverSeen if count == 0 => Some(SafetyStop::NoRollouts),
                OrphanCause::NeverSeen | OrphanCause::Deleted => None,
            };
            review.stop = review.stop.or(stop);
            let delay = match orphan.why {
                OrphanCause::NeverSeen => self.after.saturating_mul(NEVER_SEEN),
                _ => self.after,
            };
            if !orphan.is_reported {
                orphan.is_reported = true;
                let after = stop.is_none().then_some(delay);
                review.found.push((part.clone(), orphan.why, after));
            }
            let due = (orphan.since + delay).max(orphan.not_before);
            if stop.is_none() && due <= now {
                review.due.push((part.clone(), orphan.why));
            }
        }
        // It does not prevent the next try, which finds out whether the kind is back.
        let is_kind_missing = self.orphans.values().any(|orphan| orphan.is_kind_missing);
        let no_kind = is_kind_missing.then_some(SafetyStop::NoSuchKind);
        review.stop = review.stop.or(no_kind);
        review
    }
}

/// Returns the number of tables.
fn tables<'a>(parts: impl Iterator<Item = &'a Part>) -> usize {
    parts.map(|part| &part.table).collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const AFTER: Duration = Duration::from_secs(30);

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("shop", name)
    }

    fn marked(table: &str, rollout: &str) -> Part {
        Part {
            table: key(table),
            rollout: key(rollout),
        }
    }

    /// Two tables: one of the Rollout `a`, and one of the Rollout `b`, which does not change.
    struct World {
        collector: Collector,
        begin: Instant,
        tables: BTreeSet<Part>,
        rollouts: BTreeMap<ObjectKey, PluginUse>,
    }

    impl World {
        fn new() -> Self {
            Self {
                collector: Collector::new(AFTER),
                begin: Instant::now(),
                tables: [marked("web", "a"), marked("fine", "b")].into(),
                rollouts: [(key("a"), PluginUse::Uses), (key("b"), PluginUse::Uses)].into(),
            }
        }

        fn delete(&mut self, name: &str) {
            self.rollouts.remove(&key(name));
            self.collector.deleted(&key(name));
        }

        fn review(&mut self, second: u64) -> Review {
            let now = self.begin + Duration::from_secs(second);
            let rollouts = &self.rollouts;
            let rollout = |part: &Part| rollouts.get(&part.rollout).copied();
            self.collector
                .review(now, &self.tables, rollouts.len(), rollout)
        }

        /// Checks what is found and what is due at a second, by table.
        #[track_caller]
        fn check(&mut self, second: u64, found: &[(&str, Option<u64>)], due: &[&str]) {
            let review = self.review(second);
            let seen = review
                .found
                .iter()
                .map(|(part, _, after)| (&*part.table.name, after.map(|after| after.as_secs())));
            assert_eq!(seen.collect::<Vec<_>>(), found, "at {second}");
            let seen = review.due.iter().map(|(part, _)| &*part.table.name);
            assert_eq!(seen.collect::<Vec<_>>(), due, "at {second}");
        }
    }

    #[test]
    fn a_deleted_rollouts_table_is_due_after_a_delay() {
        let mut world = World::new();
        world.check(0, &[], &[]);
        world.delete("a");
        world.check(1, &[("web", Some(30))], &[]);
        world.check(30, &[], &[]);
        world.check(31, &[], &["web"]);
        // The restore fails.
        let part = Part {
            rollout: key("a"),
            table: key("web"),
        };
        world
            .collector
            .failed(&part, false, world.begin + Duration::from_secs(31));
        assert_eq!(world.review(32).stop, None);
        world.check(60, &[], &[]);
        world.check(61, &[], &["web"]);
        // The table is restored.
        world.tables = BTreeSet::new();
        assert_eq!(world.review(62), Review::default());
        assert!(world.collector.orphans.is_empty() && world.collector.deleted.is_empty());
    }

    #[test]
    fn a_recreated_rollout_keeps_its_table() {
        let mut world = World::new();
        world.delete("a");
        world.check(0, &[("web", Some(30))], &[]);
        world.rollouts.insert(key("a"), PluginUse::Uses);
        world.check(29, &[], &[]);
        world.check(1000, &[], &[]);
        // The delay starts again.
        world.delete("a");
        world.check(1001, &[("web", Some(30))], &[]);
        world.check(1030, &[], &[]);
        world.check(1031, &[], &["web"]);
    }

    #[test]
    fn a_rollout_that_was_never_seen_has_twenty_times_as_long() {
        let mut world = World::new();
        world.tables.insert(marked("old", "z"));
        world.check(0, &[("old", Some(600))], &[]);
        world.check(599, &[], &[]);
        world.check(600, &[], &["old"]);
    }

    #[test]
    fn a_rollout_without_the_plugin_is_restored_after_it_has_settled() {
        let mut world = World::new();
        world.rollouts.insert(key("a"), PluginUse::UnsettledWithout);
        world.check(0, &[], &[]);
        world.check(10_000, &[], &[]);
        world.rollouts.insert(key("a"), PluginUse::SettledWithout);
        world.check(10_001, &[("web", Some(30))], &[]);
        world.check(10_031, &[], &["web"]);
    }

    #[test]
    fn a_table_that_is_no_longer_selected_is_due_after_a_delay() {
        let mut world = World::new();
        world.rollouts.insert(key("a"), PluginUse::Deselects);
        world.check(0, &[("web", Some(30))], &[]);
        world.check(29, &[], &[]);
        world.check(30, &[], &["web"]);
    }

    #[test]
    fn a_missing_kind_is_a_safety_stop_until_it_is_back() {
        let mut world = World::new();
        world.delete("a");
        world.check(0, &[("web", Some(30))], &[]);
        world.check(30, &[], &["web"]);
        let part = Part {
            rollout: key("a"),
            table: key("web"),
        };
        let now = world.begin + Duration::from_secs(30);
        world.collector.failed(&part, true, now);
        assert_eq!(world.review(31).stop, Some(SafetyStop::NoSuchKind));
        // The next try also finds out whether the kind is back.
        let review = world.review(60);
        assert_eq!(
            (review.stop, review.due.len()),
            (Some(SafetyStop::NoSuchKind), 1)
        );
        world.tables = BTreeSet::new();
        assert_eq!(world.review(61), Review::default());
    }

    #[test]
    fn nothing_is_collected_when_many_tables_lose_their_rollouts_at_once() {
        let mut world = World::new();
        let names: Vec<String> = (0..30).map(|number| format!("t{number:02}")).collect();
        world.tables = names.iter().map(|name| marked(name, name)).collect();
        world.rollouts = names
            .iter()
            .map(|name| (key(name), PluginUse::Uses))
            .collect();
        assert_eq!(world.review(0), Review::default());
        // Six of 30 are 20 %.
        names[..6].iter().for_each(|name| world.delete(name));
        assert_eq!(world.review(1).stop, None);
        assert_eq!(world.review(31).due.len(), 6);
        world.delete(&names[6]);
        let review = world.review(32);
        assert_eq!((review.stop, review.due.len()), (Some(SafetyStop::Many), 0));
        assert_eq!((review.orphans, review.found[0].2), (7, None));
        // Losing all of them is too many, whatever the reason.
        world.rollouts.clear();
        let review = world.review(10_000);
        assert_eq!((review.stop, review.due.len()), (Some(SafetyStop::Many), 0));
    }

    #[test]
    fn without_any_rollout_only_observed_deletions_are_collected() {
        let mut world = World::new();
        world.rollouts.clear();
        world.check(0, &[("web", None), ("fine", None)], &[]);
        assert_eq!(world.review(10_000).stop, Some(SafetyStop::NoRollouts));
        let mut world = World::new();
        world.tables.remove(&marked("fine", "b"));
        world.delete("a");
        world.delete("b");
        world.check(0, &[("web", Some(30))], &[]);
        world.check(30, &[], &["web"]);
    }

    #[track_caller]
    fn check_state(plugin: &str, status: Value, expect: PluginUse) {
        let mut plugins = json!({});
        plugins[plugin] = json!({});
        let rollout = json!({
            "spec": {"strategy": {"canary": {"trafficRouting": {"plugins": plugins}}}},
            "status": status,
        });
        let rollout = serde_json::from_value(rollout).unwrap();
        assert_eq!(PluginUse::of(&rollout, &["acme/gloo".into()]), expect);
    }

    #[test]
    fn a_rollout_is_classified_by_its_plugin_block_and_its_status() {
        let updating = json!({"stableRS": "a", "currentPodHash": "b"});
        let promoted = json!({"stableRS": "a", "currentPodHash": "a"});
        let aborted = json!({"stableRS": "a", "currentPodHash": "b", "abort": true});
        check_state("acme/gloo", promoted.clone(), PluginUse::Uses);
        check_state("acme/other", updating, PluginUse::UnsettledWithout);
        check_state("acme/other", promoted, PluginUse::SettledWithout);
        check_state("acme/other", aborted, PluginUse::SettledWithout);
        check_state("acme/other", json!({}), PluginUse::UnsettledWithout);
        let blue_green: Rollout = serde_json::from_value(json!({
            "spec": {"strategy": {"blueGreen": {}}},
            "status": {"stableRS": "a", "currentPodHash": "a"},
        }))
        .unwrap();
        assert_eq!(PluginUse::of(&blue_green, &[]), PluginUse::SettledWithout);
    }
}
