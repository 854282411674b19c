//! The cache of an informer after each event. The tests pass the time as an argument.

use std::cmp::Ordering;

use super::*;
use crate::{ChangeKind, FRESH, Kept};

/// An object with a key and a version.
#[derive(Debug)]
struct Named(ObjectKey, String);

impl Kept for Named {
    fn key(&self) -> &ObjectKey {
        &self.0
    }

    fn version(&self) -> &str {
        &self.1
    }

    fn size(&self) -> usize {
        1
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("mesh", name)
}

fn named(name: &str, version: &str) -> Named {
    Named(key(name), version.to_owned())
}

/// A cache of all namespaces, and the time of the last request.
struct World {
    known: Known<Named>,
    task: u64,
    asked: Moment,
}

impl World {
    fn new() -> Self {
        let mut known = Known::default();
        let task = known.begin(&Scope::All);
        let asked = Moment::now();
        Self { known, task, asked }
    }

    /// A cache after its first list, with an open watch.
    fn synced(objects: &[(&str, &str)], version: &str) -> Self {
        let mut world = Self::new();
        world.list(objects, version);
        world.receive(Event::Opened);
        world
    }

    fn receive(&mut self, event: Event<Named>) -> Vec<Change> {
        self.known.apply(&Scope::All, self.task, event)
    }

    fn page(
        &mut self,
        objects: &[(&str, &str)],
        version: &str,
        is_first: bool,
        is_last: bool,
    ) -> Vec<Change> {
        let objects = objects.iter().map(|(name, version)| named(name, version));
        self.receive(Event::Page {
            objects: objects.collect(),
            version: version.to_owned(),
            is_first,
            proven: is_last.then_some(self.asked),
        })
    }

    fn list(&mut self, objects: &[(&str, &str)], version: &str) -> Vec<Change> {
        self.page(objects, version, true, true)
    }

    /// Receives the bookmark of a watch that was asked for `seconds` after the list.
    fn bookmark(&mut self, seconds: u64) {
        let asked = self.asked.after(seconds, 0);
        self.receive(Event::Proven("9".to_owned(), asked));
    }

    fn apply(&mut self, name: &str, version: &str) {
        self.receive(Event::Applied(named(name, version)));
    }

    fn delete(&mut self, name: &str, version: &str) {
        self.receive(Event::Deleted(named(name, version)));
    }

    fn put(&mut self, name: &str, version: &str) {
        self.known.put(named(name, version));
    }

    fn fail(&mut self) {
        let what = "RouteTables".to_owned();
        let error = StoreError::NotFound { what };
        self.known.fail(&Scope::All, self.task, error);
    }

    /// Returns the fresh objects after `seconds`, or why they are unknown.
    fn after(&self, seconds: u64) -> String {
        let now = self.asked.after(seconds, 0);
        let age = Duration::from_secs(75);
        match self.known.check(None, age, now) {
            Ok(()) => self.shown(),
            Err(why) => format!("? {why}"),
        }
    }

    fn shown(&self) -> String {
        let objects = self.known.objects.values();
        let shown = objects.map(|entry| format!("{}@{}", entry.kept.0.name, entry.kept.1));
        let shown = shown.collect::<Vec<_>>().join(" ");
        let status = self.known.status(self.asked);
        assert_eq!(status.bytes, self.known.objects.len());
        shown
    }

    #[track_caller]
    fn check(&self, expect: &str) {
        assert_eq!(self.shown(), expect);
    }
}

#[test]
fn objects_are_known_after_a_list_and_an_open_watch() {
    let mut world = World::new();
    assert_eq!(world.after(0), "? no answer yet");
    world.fail();
    assert!(world.after(0).contains("not found"));
    world.list(&[("b", "2"), ("a", "1")], "5");
    assert_eq!(world.after(0), "? no answer yet");
    world.receive(Event::Opened);
    assert_eq!(world.after(0), "a@1 b@2");
    world.apply("c", "6");
    world.delete("a", "7");
    assert_eq!(world.after(0), "b@2 c@6");
}

#[test]
fn pages_of_a_list_do_not_refresh_the_cache_before_the_last_one() {
    let mut world = World::synced(&[("a", "1")], "5");
    assert_eq!(world.after(75), "a@1");
    let unproven = "? no watch or list has confirmed them for 75 s";
    assert_eq!(world.after(76), unproven);
    world.fail();
    assert!(world.after(76).contains("not found"));
    world.asked = world.asked.after(70, 0);
    world.page(&[("a", "1")], "9", true, false);
    assert!(world.after(6).starts_with('?'));
    world.page(&[], "9", false, true);
    assert_eq!(world.after(75), "a@1");
}

/// C-2
#[test]
fn only_bookmarks_prove_the_content_and_as_of_the_request() {
    let mut world = World::synced(&[("a", "1")], "5");
    let check = |world: &World, fresh: u64| {
        assert_eq!(world.after(fresh), world.shown());
        assert!(world.after(fresh + 1).starts_with("? no watch"));
    };
    world.apply("b", "6");
    world.delete("a", "7");
    world.receive(Event::Opened);
    check(&world, 75);
    world.bookmark(25);
    check(&world, 100);
    let suspended = world.asked.after(26, 600);
    let why = world.known.check(None, FRESH, suspended).unwrap_err();
    assert!(matches!(why, Unknown::Unproven(FRESH)), "{why}");
}

#[test]
fn objects_that_a_list_lacks_are_removed_at_its_end_and_reported() {
    let mut world = World::synced(&[("a", "1"), ("b", "2"), ("c", "3")], "5");
    let first = world.page(&[("a", "1")], "9", true, false);
    assert_eq!(first, []);
    world.check("a@1 b@2 c@3");
    // The list could not be continued and starts again.
    world.page(&[("a", "1")], "12", true, false);
    world.check("a@1 b@2 c@3");
    let last = world.page(&[("c", "11")], "12", false, true);
    world.check("a@1 c@11");
    let change = |name, kind| Change {
        key: key(name),
        uid: "".into(),
        kind,
    };
    assert_eq!(
        last,
        [
            change("c", ChangeKind::Applied),
            change("b", ChangeKind::Deleted)
        ]
    );
}

#[test]
fn after_a_write_older_events_are_ignored() {
    let mut world = World::synced(&[("a", "5")], "5");
    world.put("a", "8");
    world.apply("a", "6");
    world.check("a@8");
    world.apply("a", "8");
    world.apply("a", "9");
    world.check("a@9");
    // The answer to the write comes later than the event.
    world.put("a", "7");
    world.check("a@9");
}

#[test]
fn without_an_order_events_are_ignored_until_the_written_version_a_delete_or_a_list() {
    let written = || {
        let mut world = World::synced(&[("a", "x5")], "x5");
        world.put("a", "x8");
        world.apply("a", "x6");
        world.check("a@x8");
        world
    };
    let mut world = written();
    world.apply("a", "x8");
    world.apply("a", "x9");
    world.check("a@x9");
    let mut world = written();
    world.delete("a", "x9");
    world.check("");
    let mut world = written();
    world.list(&[("a", "x7")], "x9");
    world.apply("a", "x8");
    world.check("a@x8");
}

#[test]
fn a_write_during_a_list_is_newer_than_the_list() {
    for versions in [["5", "8", "7"], ["x5", "x8", "x7"]] {
        let [before, written, listed] = versions;
        let mut world = World::synced(&[("a", before), ("b", before)], before);
        world.page(&[], listed, true, false);
        world.put("a", written);
        world.put("b", written);
        world.put("new", written);
        world.page(&[("a", before)], listed, false, true);
        world.check(&format!("a@{written} b@{written} new@{written}"));
        // The next list, which started after the writes, wins.
        world.list(&[("a", written)], "9");
        world.check(&format!("a@{written}"));
    }
}

/// The API server reads the list, and its first page arrives after the answer to a write.
#[test]
fn a_write_before_the_first_page_of_a_list_is_newer_than_the_list() {
    let mut world = World::synced(&[("a", "5"), ("b", "5")], "5");
    world.put("a", "8");
    world.put("new", "8");
    world.list(&[("a", "5"), ("b", "5")], "6");
    world.check("a@8 b@5 new@8");
    world.list(&[("a", "5"), ("b", "5")], "9");
    world.check("a@5 b@5");
}

#[test]
fn a_list_wins_where_nothing_was_written_since() {
    // The API server was restored from a backup, so versions are smaller than before.
    let mut world = World::synced(&[("a", "50"), ("b", "51")], "52");
    world.list(&[("a", "7")], "9");
    world.check("a@7");
    // The object was written before the list's version, and deleted before its first page.
    let mut world = World::synced(&[], "5");
    world.page(&[], "9", true, false);
    world.put("a", "8");
    world.page(&[], "9", false, true);
    world.check("");
}

#[test]
fn a_late_answer_does_not_restore_a_deleted_object() {
    let mut world = World::synced(&[("a", "5")], "5");
    world.delete("a", "7");
    world.put("a", "6");
    world.check("");
    // This process created it again, with a version newer than all events.
    world.put("a", "8");
    world.delete("a", "7");
    world.check("a@8");
}

#[test]
fn a_write_is_not_cached_before_a_list() {
    let mut world = World::new();
    world.put("a", "8");
    world.check("");
}

#[test]
fn events_of_a_replaced_task_are_ignored() {
    let mut world = World::synced(&[("a", "1")], "5");
    let late = world.task;
    world.task = world.known.begin(&Scope::All);
    let event = Event::Deleted(named("a", "6"));
    world.known.apply(&Scope::All, late, event);
    world.check("a@1");
    assert_eq!(world.known.end(&Scope::All).len(), 1);
    world.check("");
    world.apply("b", "7");
    world.check("");
}

#[test]
fn d_10_nothing_is_kept_of_deleted_objects() {
    let mut world = World::synced(&[], "1");
    for number in 2..=100_000 {
        let name = format!("o{number}");
        world.apply(&name, &number.to_string());
        world.put(&name, &(number + 200_000).to_string());
    }
    assert_eq!(world.known.objects.len(), 99_999);
    for number in 2..=100_000 {
        world.delete(&format!("o{number}"), "900000");
    }
    world.check("");
}

#[test]
fn pauses_grow_to_a_limit() {
    for (refusals, longest) in [(1, 1), (2, 2), (4, 8), (5, 15), (u32::MAX, 15)] {
        assert_eq!(
            refusal_pause(refusals, LONGEST_PAUSE),
            Duration::from_secs(longest)
        );
    }
    let pause = jittered(RECONNECT_PAUSE);
    assert!(RECONNECT_PAUSE / 2 <= pause && pause <= RECONNECT_PAUSE);
}

#[track_caller]
fn check_order(a: &str, b: &str, expect: Option<Ordering>) {
    assert_eq!(compare(a, b), expect, "{a} {b}");
    assert_eq!(compare(b, a), expect.map(Ordering::reverse), "{b} {a}");
}

#[test]
fn versions_are_compared_as_integers() {
    check_order("9", "10", Some(Ordering::Less));
    check_order("10", "10", Some(Ordering::Equal));
    check_order("0010", "9", Some(Ordering::Greater));
    check_order("0", "1", Some(Ordering::Less));
    // Longer than any integer type.
    check_order(&"9".repeat(50), &"8".repeat(50), Some(Ordering::Greater));
}

#[test]
fn other_versions_have_no_order() {
    for version in ["", "abc", "12a", "-1", "1.5"] {
        check_order(version, "7", None);
    }
}
