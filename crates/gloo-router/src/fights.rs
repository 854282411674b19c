//! Fights: another client reverts the weights of a table as often as they are written. Repairs are delayed during a fight.
//! The time is an argument.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use gloo_types::ObjectKey;
use serde_json::Value;
use tokio::time::Instant;

/// This many writes against changes of another client within [`WITHIN`] are a fight.
const WRITES: usize = 3;
const WITHIN: Duration = Duration::from_secs(60);
/// The pause before the first repair in a fight. It doubles with each repair.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// A fight ends after this time without a change of another client.
const QUIET: Duration = Duration::from_secs(600);

/// The tables that another client has changed lately. Other tables take no memory.
#[derive(Debug, Default)]
pub(crate) struct Fights {
    tables: HashMap<ObjectKey, Recent>,
}

#[derive(Debug)]
struct Recent {
    /// The last writes against changes of another client, oldest first.
    writes: Vec<Instant>,
    /// The last change of another client.
    changed: Instant,
    /// Writes since the fight began; `None` without a fight.
    fight: Option<u32>,
}

impl Fights {
    /// Notes that another client changed a table so that it needs a repair. Returns when it may be repaired.
    pub(crate) fn changed(&mut self, table: &ObjectKey, now: Instant) -> Instant {
        self.forget(now);
        let Some(recent) = self.tables.get_mut(table) else {
            return now;
        };
        recent.changed = now;
        match (recent.fight, recent.writes.last()) {
            (Some(writes), Some(last)) => {
                let doubled = 2_u32.saturating_pow(writes);
                let pause = FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE);
                now.max(*last + pause)
            }
            _ => now,
        }
    }

    /// Notes that a repair or a call has reverted a change of another client. Returns whether a fight began.
    pub(crate) fn written(&mut self, table: &ObjectKey, now: Instant) -> bool {
        self.forget(now);
        let begins = self.would_begin(table, now);
        let recent = self.tables.entry(table.clone()).or_insert_with(|| Recent {
            writes: Vec::with_capacity(WRITES),
            changed: now,
            fight: None,
        });
        if recent.writes.len() == WRITES {
            recent.writes.remove(0);
        }
        recent.writes.push(now);
        recent.changed = now;
        if let Some(writes) = &mut recent.fight {
            *writes += 1;
        } else {
            recent.fight = begins.then_some(0);
        }
        begins
    }

    /// Whether a fight would begin if the table were written now.
    pub(crate) fn would_begin(&self, table: &ObjectKey, now: Instant) -> bool {
        self.tables.get(table).is_some_and(|recent| {
            let mut last = recent.writes.iter().rev().take(WRITES - 1);
            recent.fight.is_none()
                && recent.writes.len() >= WRITES - 1
                && last.all(|write| now.duration_since(*write) <= WITHIN)
        })
    }

    /// Returns the number of tables in a fight.
    pub(crate) fn count(&mut self, now: Instant) -> usize {
        self.forget(now);
        let tables = self.tables.values();
        tables.filter(|recent| recent.fight.is_some()).count()
    }

    fn forget(&mut self, now: Instant) {
        self.tables.retain(|_, recent| {
            let quiet = now.duration_since(recent.changed);
            quiet
                < if recent.fight.is_some() {
                    QUIET
                } else {
                    WITHIN
                }
        });
    }
}

/// The field manager of a write, as `metadata.managedFields` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldManager(String);

impl FieldManager {
    /// Returns the last manager of `spec` besides `ours`. `None` if the object has no such entry.
    pub(crate) fn last_of_spec(object: &Value, ours: &str) -> Option<Self> {
        let entries = object.pointer("/metadata/managedFields")?.as_array()?;
        let of_spec = entries.iter().filter(|entry| {
            let manager = entry.get("manager").and_then(Value::as_str);
            let has_spec = entry.pointer("/fieldsV1/f:spec").is_some();
            has_spec && manager.is_some_and(|manager| !manager.starts_with(ours))
        });
        // Times are RFC 3339 in UTC, as the API server writes them, so their text has the order of the times.
        let time = |entry: &&Value| entry.get("time").and_then(Value::as_str).map(str::to_owned);
        let last = of_spec.max_by_key(time)?;
        Some(Self(last.get("manager")?.as_str()?.to_owned()))
    }

    /// Returns what to change so that the manager does not revert the weights.
    fn remedy(&self) -> Option<&'static str> {
        if self.0.starts_with("argocd") {
            Some(
                "add ignoreDifferences with managedFieldsManagers for this plugin's field manager and the sync option \
                 RespectIgnoreDifferences=true to its Application, see docs/gitops.md",
            )
        } else if ["kustomize-controller", "helm-controller", "flux"].contains(&&*self.0) {
            Some("suspend its reconciliation while an update runs, see docs/gitops.md")
        } else {
            None
        }
    }
}

impl fmt::Display for FieldManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "field manager {}", self.0)?;
        match self.remedy() {
            Some(remedy) => write!(f, ": {remedy}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use route_store::FIELD_MANAGER;
    use serde_json::json;

    use super::*;

    fn table() -> ObjectKey {
        ObjectKey::new("shop", "web")
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Simulates another client that writes every `every` seconds for `length` seconds. Returns when the table was repaired,
    /// and when a fight began.
    fn play(every: usize, length: u64) -> (Vec<u64>, Vec<u64>) {
        let mut fights = Fights::default();
        let begin = Instant::now();
        let (mut repairs, mut reports) = (Vec::new(), Vec::new());
        let mut due: Option<Instant> = None;
        for second in 0..length {
            let now = begin + seconds(second);
            if second.is_multiple_of(every as u64) {
                let at = fights.changed(&table(), now);
                due = Some(due.unwrap_or(at));
            }
            if due.is_some_and(|due| due <= now) {
                due = None;
                repairs.push(second);
                if fights.written(&table(), now) {
                    reports.push(second);
                }
            }
        }
        (repairs, reports)
    }

    #[test]
    fn a_fight_is_noticed_at_the_third_write_reported_once_and_slowed_down() {
        let (repairs, reports) = play(5, 20 * 60);
        assert_eq!(reports, [10]);
        assert_eq!(repairs, [0, 5, 10, 20, 40, 80, 160, 320, 620, 920]);
    }

    #[test]
    fn two_writes_per_minute_are_no_fight() {
        let (repairs, reports) = play(31, 20 * 60);
        assert_eq!((repairs.len(), reports.len()), (39, 0));
    }

    #[test]
    fn a_fight_ends_after_ten_quiet_minutes() {
        let mut fights = Fights::default();
        let begin = Instant::now();
        for second in 0..3 {
            fights.written(&table(), begin + seconds(second));
        }
        let last = begin + seconds(2);
        assert_eq!(fights.count(last + seconds(599)), 1);
        let other = ObjectKey::new("shop", "other");
        assert_eq!(fights.changed(&other, last), last);
        assert_eq!(fights.changed(&table(), last), last + seconds(10));
        // A change extends the fight, even if it is not repaired.
        fights.changed(&table(), last + seconds(599));
        assert_eq!(fights.count(last + seconds(1198)), 1);
        assert_eq!(fights.count(last + seconds(1199)), 0);
        let later = last + seconds(1200);
        assert_eq!(fights.changed(&table(), later), later);
        assert!(fights.tables.is_empty());
    }

    #[track_caller]
    fn check_manager(entries: &[(&str, &str, &str)], expect: Option<&str>) {
        let entries = entries.iter().map(|(manager, time, part)| {
            json!({"manager": manager, "time": time, "fieldsV1": {part.to_owned(): {}}})
        });
        let object = json!({"metadata": {"managedFields": entries.collect::<Vec<_>>()}});
        let manager = FieldManager::last_of_spec(&object, FIELD_MANAGER);
        assert_eq!(
            manager.map(|manager| manager.to_string()).as_deref(),
            expect
        );
    }

    #[test]
    fn the_other_manager_is_the_last_writer_of_the_spec() {
        let at = |minute| format!("2026-01-01T00:{minute:02}:00Z");
        let (one, two, three) = (at(1), at(2), at(3));
        let ours = "rollouts-plugin-trafficrouter-glooplatform-at-rest";
        check_manager(&[], None);
        check_manager(&[(FIELD_MANAGER, &one, "f:spec")], None);
        check_manager(
            &[
                ("helm", &one, "f:spec"),
                ("kubectl-edit", &two, "f:spec"),
                (ours, &three, "f:spec"),
                ("gloo", &three, "f:status"),
            ],
            Some("field manager kubectl-edit"),
        );
        let shown = |manager| FieldManager(String::from(manager)).to_string();
        assert!(shown("argocd-controller").contains("RespectIgnoreDifferences=true"));
        assert!(shown("argocd-application-controller").contains("managedFieldsManagers"));
        assert!(shown("kustomize-controller").contains("suspend"));
        assert_eq!(FieldManager::last_of_spec(&json!({}), FIELD_MANAGER), None);
    }
}
