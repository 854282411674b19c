//! The sink with a writer that records its requests and can block, on a paused clock.

use std::time::Duration;

use gloo_types::RouteTable;
use tokio::sync::Semaphore;
use tokio::time::advance;

use super::*;

/// Requests: the verb, the reason and message, and the count.
type Asked = Arc<Mutex<Vec<String>>>;
type Counts = Arc<Mutex<Vec<String>>>;

struct Fake {
    asked: Asked,
    /// A permit for each request that is answered.
    answers: Arc<Semaphore>,
    /// The error of the next request.
    failure: Mutex<Option<StoreError>>,
}

impl Fake {
    async fn answer(&self, line: String) -> Result<(), StoreError> {
        self.asked.lock().unwrap().push(line);
        self.answers.acquire().await.unwrap().forget();
        self.failure.lock().unwrap().take().map_or(Ok(()), Err)
    }
}

impl EventWriter for Fake {
    async fn create_event(&self, key: &ObjectKey, event: &Value) -> Result<(), StoreError> {
        assert!(
            key.name
                .starts_with(event["involvedObject"]["name"].as_str().unwrap())
        );
        let text = |field: &str| event[field].as_str().unwrap().to_owned();
        let count = &event["count"];
        let line = format!("create {} {} x{count}", text("reason"), text("message"));
        self.answer(line).await
    }

    async fn patch_event(&self, _: &ObjectKey, change: &Value) -> Result<(), StoreError> {
        self.answer(format!("patch x{}", change["count"])).await
    }
}

struct Bench {
    sink: EventSink,
    asked: Asked,
    counts: Counts,
    answers: Arc<Semaphore>,
    writer: Arc<Fake>,
}

impl Bench {
    /// A sink with a running task, whose first `answers` requests are answered.
    fn start(answers: usize) -> Self {
        let counts = Counts::default();
        let counted = counts.clone();
        let sink = EventSink::new("plugin", move |reason, result| {
            let line = format!("{reason} {}", result.as_str());
            counted.lock().unwrap().push(line);
        });
        let asked = Asked::default();
        let answers = Arc::new(Semaphore::new(answers));
        let writer = Arc::new(Fake {
            asked: asked.clone(),
            answers: answers.clone(),
            failure: Mutex::default(),
        });
        let (task, to) = (sink.clone(), writer.clone());
        tokio::spawn(async move { task.post_to(&*to).await });
        Self {
            sink,
            asked,
            counts,
            answers,
            writer,
        }
    }

    fn record(&self, table: &str, message: impl ToString) {
        self.sink.record(event(table, message));
    }

    /// Lets the task run until it waits, and returns the requests since the last call.
    async fn asked(&self) -> Vec<String> {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn count_of(&self, line: &str) -> usize {
        let counts = self.counts.lock().unwrap();
        counts.iter().filter(|counted| *counted == line).count()
    }
}

fn event(table: &str, message: impl ToString) -> Event {
    Event {
        about: EventObject::new::<RouteTable>(ObjectKey::new("mesh", table), "u1"),
        severity: Severity::Normal,
        reason: "Repaired",
        message: message.to_string(),
    }
}

#[tokio::test(start_paused = true)]
async fn repeats_within_10_minutes_raise_the_count() {
    let bench = Bench::start(100);
    bench.record("web", "a");
    assert_eq!(bench.asked().await, ["create Repaired a x1"]);
    advance(Duration::from_secs(599)).await;
    bench.record("web", "a");
    assert_eq!(bench.asked().await, ["patch x2"]);
    // Each occurrence starts the 10 minutes again.
    advance(Duration::from_secs(599)).await;
    bench.record("web", "a");
    bench.record("web", "b");
    assert_eq!(bench.asked().await, ["patch x3", "create Repaired b x1"]);
    advance(Duration::from_secs(600)).await;
    bench.record("web", "a");
    assert_eq!(bench.asked().await, ["create Repaired a x1"]);
}

#[tokio::test(start_paused = true)]
async fn equal_queued_events_are_one_request() {
    let bench = Bench::start(100);
    for _ in 0..7 {
        bench.record("web", "a");
    }
    assert_eq!(bench.asked().await, ["create Repaired a x7"]);
    assert_eq!(bench.count_of("Repaired counted"), 6);
    assert_eq!(bench.count_of("Repaired posted"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_object_has_ten_events_and_then_one_per_minute() {
    let bench = Bench::start(1000);
    // One per second, so that the limit for all objects is never reached.
    for message in 0..30 {
        bench.record("web", message);
        bench.asked().await;
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(bench.count_of("Repaired posted"), 10);
    assert_eq!(bench.count_of("Repaired throttled"), 20);
    // Another object has its own rate.
    bench.record("shop", "x");
    assert_eq!(bench.asked().await, ["create Repaired x x1"]);
    advance(Duration::from_secs(30)).await;
    bench.record("web", "later");
    bench.record("web", "too soon");
    assert_eq!(bench.asked().await, ["create Repaired later x1"]);
}

#[tokio::test(start_paused = true)]
async fn a_throttled_repeat_is_included_in_the_next_posted_count() {
    let bench = Bench::start(1000);
    for _ in 0..40 {
        bench.record("web", "a");
        bench.asked().await;
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(bench.count_of("Repaired posted"), 1);
    assert_eq!(bench.count_of("Repaired throttled"), 0);
    advance(Duration::from_secs(30)).await;
    bench.record("web", "a");
    assert_eq!(bench.asked().await, ["patch x41"]);
}

#[tokio::test(start_paused = true)]
async fn all_objects_together_have_five_events_per_second() {
    let bench = Bench::start(1000);
    for table in 0..100 {
        bench.record(&format!("t{table}"), "a");
    }
    assert_eq!(bench.asked().await.len(), 5);
    for _ in 0..19 {
        advance(Duration::from_millis(200)).await;
        assert_eq!(bench.asked().await.len(), 1);
    }
    sleep(Duration::from_secs(100)).await;
    assert_eq!(bench.count_of("Repaired posted"), 100);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_the_oldest_events() {
    let bench = Bench::start(0);
    bench.record("first", "a");
    assert_eq!(bench.asked().await.len(), 1, "one is being posted");
    for table in 0..300 {
        bench.record(&format!("t{table}"), "a");
    }
    assert_eq!(bench.count_of("Repaired dropped"), 44);
    bench.answers.add_permits(1000);
    sleep(Duration::from_secs(100)).await;
    assert_eq!(bench.count_of("Repaired posted"), 257);
}

/// `record` is not async, so the task cannot run while it queues Events.
#[tokio::test(start_paused = true)]
async fn recording_never_waits_while_the_writer_is_blocked() {
    let bench = Bench::start(0);
    bench.record("web", "blocked");
    assert_eq!(bench.asked().await, ["create Repaired blocked x1"]);
    let before = Instant::now();
    for message in 0..1000 {
        bench.record("web", message);
    }
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert!(bench.asked().await.is_empty());
    advance(Duration::from_secs(60)).await;
    bench.answers.add_permits(1);
    assert!(!bench.asked().await.is_empty(), "posting continues");
}

#[tokio::test(start_paused = true)]
async fn an_expired_event_is_created_again_with_its_count() {
    let bench = Bench::start(100);
    bench.record("web", "a");
    bench.asked().await;
    let what = "Event mesh/web.1".to_owned();
    *bench.writer.failure.lock().unwrap() = Some(StoreError::NotFound { what });
    bench.record("web", "a");
    assert_eq!(bench.asked().await, ["patch x2", "create Repaired a x2"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_event_is_counted_and_forgotten() {
    let bench = Bench::start(100);
    let what = "Event mesh/web.1".to_owned();
    *bench.writer.failure.lock().unwrap() = Some(StoreError::NotFound { what });
    bench.record("web", "a");
    assert_eq!(bench.asked().await, ["create Repaired a x1"]);
    assert_eq!(bench.count_of("Repaired failed"), 1);
    bench.record("web", "a");
    assert_eq!(bench.asked().await, ["create Repaired a x1"]);
}

#[tokio::test(start_paused = true)]
async fn expired_events_and_idle_objects_are_forgotten() {
    let bench = Bench::start(usize::MAX >> 4);
    for table in 0..2000 {
        bench.record(&format!("t{table}"), "a");
        bench.asked().await;
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(lock(&bench.sink.ledger).sizes(), [0, 600, 60]);
}

#[test]
fn an_event_is_core_v1_and_names_the_involved_object() {
    let mut ledger = Ledger::default();
    let first: Timestamp = "2026-11-23T01:02:03.456Z".parse().unwrap();
    let now = Instant::now();
    let event = Event {
        about: EventObject::new::<RouteTable>(ObjectKey::new("mesh", "web"), "5f2d"),
        severity: Severity::Warning,
        reason: "Fight",
        message: "x".repeat(2000),
    };
    ledger.add(event, first);
    let (Next::Post(posting), _) = ledger.next(now) else {
        panic!("nothing to post");
    };
    let mut event = posting.event("plugin");
    assert_eq!(event["message"].take(), "x".repeat(1024));
    let name = "web.18ba9a2b4db13000";
    let expect = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": "mesh", "name": name},
        "involvedObject": {"apiVersion": "networking.gloo.solo.io/v2", "kind": "RouteTable",
            "namespace": "mesh", "name": "web", "uid": "5f2d"},
        "type": "Warning", "reason": "Fight", "message": null, "source": {"component": "plugin"},
        "count": 1, "firstTimestamp": "2026-11-23T01:02:03Z", "lastTimestamp": "2026-11-23T01:02:03Z",
    });
    assert_eq!(event["metadata"]["name"], posting.key().name);
    assert!(posting.key().name.starts_with("web."));
    event["metadata"]["name"] = name.into();
    assert_eq!(event, expect);
}
