//! The events of the page: the first one has the complete state, later ones only changes.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::counts::PERSONAS;
use crate::counts::POINTS;
use crate::steps;
use crate::tail::Tail;

/// The kind of stage. The page says which parts of it are real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// RouteTables in files, and a model of the controller.
    Files,
    /// An API server with the released controller.
    Cluster,
}

/// Number of entries of the log that are kept.
pub(crate) const LOG: usize = 120;

/// The state at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// The kind of stage; `None` before it is open.
    pub(crate) setting: Option<Setting>,
    /// The fields of every event.
    pub(crate) live: Map<String, Value>,
    /// Three characters for each answer since the last snapshot.
    pub(crate) bubbles: String,
    /// The revision and the lines of the tables.
    pub(crate) tables: (usize, Arc<Value>),
    pub(crate) log: Tail<LOG>,
    pub(crate) points: Tail<POINTS>,
}

/// The position of a reader.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    has_begun: bool,
    tables: usize,
    log: usize,
    points: usize,
}

impl Reader {
    /// Returns the event that updates the reader to this state. The first event is complete.
    pub(crate) fn event(&mut self, now: &Snapshot) -> Value {
        let mut event = now.live.clone();
        event.insert("bubbles".to_owned(), now.bubbles.clone().into());
        if !self.has_begun {
            self.has_begun = true;
            let steps: Vec<String> = steps().into_iter().map(|(_, words)| words).collect();
            let personas = PERSONAS.map(|it| {
                let header = it.header.map(|(name, value)| format!("{name}: {value}"));
                json!({"name": it.name, "header": header, "rate": it.rate})
            });
            let is_cluster = now.setting == Some(Setting::Cluster);
            let first = json!({"steps": steps, "personas": personas, "cluster": is_cluster});
            event.insert("first".to_owned(), first);
        }
        let (revision, tables) = &now.tables;
        if *revision != self.tables {
            self.tables = *revision;
            event.insert("tables".to_owned(), Value::clone(tables));
        }
        for (key, unread) in [
            ("log", now.log.unread(&mut self.log)),
            ("points", now.points.unread(&mut self.points)),
        ] {
            if !unread.is_empty() {
                event.insert(key.to_owned(), unread.into_iter().cloned().collect());
            }
        }
        Value::Object(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(reader: &mut Reader, now: &Snapshot, expect: &str) {
        let event = reader.event(now);
        let keys: Vec<_> = event.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys.join(" "), expect);
    }

    #[test]
    fn the_first_event_is_complete_and_later_ones_have_changes() {
        let mut now = Snapshot::default();
        now.live.insert("t".to_owned(), 1.into());
        now.tables = (1, Arc::new(json!([])));
        now.log.push(json!({}));
        now.points.push(json!([]));
        let (mut early, mut late) = (Reader::default(), Reader::default());
        check(&mut early, &now, "t bubbles first tables log points");
        check(&mut early, &now, "t bubbles");
        now.points.push(json!([]));
        check(&mut early, &now, "t bubbles points");
        now.tables.0 = 2;
        now.log.push(json!({}));
        check(&mut early, &now, "t bubbles tables log");
        check(&mut late, &now, "t bubbles first tables log points");
    }
}
