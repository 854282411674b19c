//! An overloaded or failing API server: the requests that are still sent, their times, and the errors of the callers.

use bytes::Bytes;
use http_body_util::{Either, Full, channel::Channel};
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::kube_api::informer::Informer;
use crate::kube_api::send::asked_pause;
use crate::kube_api::watch::{Scope, Source, Watch};
use crate::{Outcome, Permit, Priority, RequestLimits, with_permit};

/// The behaviour of a fake API server.
#[derive(Clone)]
enum Does {
    Answer(u16, Value),
    /// Answers with a header `Retry-After`.
    RetryAfter(u16, u64),
    /// Refuses the connection.
    Refuse,
    /// Accepts the connection and sends nothing.
    Nothing,
    /// Sends a byte every 100 ms, without an end.
    Drip,
}

type Answer = Either<Full<Bytes>, Channel<Bytes, Infallible>>;

fn full(body: &Value) -> Answer {
    Either::Left(Full::from(body.to_string()))
}

/// A fake API server with one behaviour at a time.
#[derive(Clone)]
struct Fake {
    does: Arc<Mutex<Does>>,
    /// The time and the line of each request.
    sent: Arc<Mutex<Vec<(Instant, String)>>>,
    start: Instant,
}

impl Does {
    fn fail(code: u16, message: &str) -> Self {
        Self::Answer(code, failure(code, message, None))
    }
}

impl Fake {
    fn new(does: Does) -> Self {
        Self {
            does: Arc::new(Mutex::new(does)),
            sent: Arc::default(),
            start: Instant::now(),
        }
    }

    fn now_does(&self, does: Does) {
        *self.does.lock().unwrap() = does;
    }

    /// Returns a store that sends its requests to this server.
    fn store(&self, limits: impl Into<Option<RequestLimits>>) -> KubeRouteStore {
        let fake = self.clone();
        let service = tower::service_fn(move |request: http::Request<HttpBody>| {
            let fake = fake.clone();
            async move { fake.answer(request).await }
        });
        let timeout = Duration::from_secs(3);
        let client = Client::new(service, "default");
        let access = KubeAccess {
            request_timeout: timeout,
            limits: limits.into(),
            ..KubeAccess::default()
        };
        KubeRouteStore {
            given: Some(client),
            ..KubeRouteStore::new(access)
        }
    }

    async fn answer(
        &self,
        request: http::Request<HttpBody>,
    ) -> Result<Response<Answer>, std::io::Error> {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default();
        let line = format!("{} {name}", request.method());
        self.sent.lock().unwrap().push((Instant::now(), line));
        let does = self.does.lock().unwrap().clone();
        let (code, after, body) = match does {
            Does::Answer(code, body) => (code, None, full(&body)),
            Does::RetryAfter(code, after) => {
                let body = failure(code, "slow down", None);
                (code, Some(after), full(&body))
            }
            Does::Refuse => return Err(std::io::ErrorKind::ConnectionRefused.into()),
            Does::Nothing => std::future::pending().await,
            Does::Drip => {
                let (mut sender, body) = Channel::<Bytes, Infallible>::new(1);
                tokio::spawn(async move {
                    while sender.send_data(Bytes::from_static(b" ")).await.is_ok() {
                        sleep(Duration::from_millis(100)).await;
                    }
                });
                (200, None, Either::Right(body))
            }
        };
        let mut response = Response::builder().status(code);
        if let Some(after) = after {
            response = response.header("Retry-After", after.to_string());
        }
        Ok(response.body(body).unwrap())
    }

    /// Returns the times of the requests since the last call, in milliseconds from the start.
    fn times(&self) -> Vec<u128> {
        let sent = std::mem::take(&mut *self.sent.lock().unwrap());
        let times = sent.iter().map(|(at, _)| (*at - self.start).as_millis());
        times.collect()
    }

    /// Returns the requests since the last call.
    fn lines(&self) -> Vec<String> {
        let sent = std::mem::take(&mut *self.sent.lock().unwrap());
        sent.into_iter().map(|(_, line)| line).collect()
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("mesh", name)
}

fn found() -> Does {
    Does::Answer(200, table("mesh", "web"))
}

/// Reads a table.
async fn read(store: &KubeRouteStore) -> Result<RouteTableDoc, StoreError> {
    store.read(&web()).await
}

async fn read_as(store: &KubeRouteStore, priority: Priority) -> Result<RouteTableDoc, StoreError> {
    with_context(as_priority(priority), read(store)).await
}

fn as_priority(priority: Priority) -> RequestContext {
    RequestContext {
        deadline: None,
        priority,
    }
}

/// Sends a request. Returns the pauses between its tries in milliseconds, and the error.
async fn tries(does: Does, is_read: bool) -> (Vec<u128>, String) {
    let fake = Fake::new(does);
    let store = fake.store(None);
    let error = if is_read {
        read(&store).await.unwrap_err()
    } else {
        store.create_policy(&policy()).await.unwrap_err()
    };
    let times = fake.times();
    let pauses = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    (pauses, error.to_string())
}

/// Rule D-38.
#[tokio::test(start_paused = true)]
async fn an_overloaded_api_server_gets_three_tries_with_the_pauses_that_it_asks_for() {
    let (pauses, error) = tries(Does::fail(429, "no"), true).await;
    assert_eq!(pauses.len(), 2);
    assert!(
        pauses.iter().all(|pause| (200..=400).contains(pause)),
        "{pauses:?}"
    );
    assert_eq!(
        error,
        "cannot get RouteTable mesh/web: check that the API server or directory is reachable"
    );
    for (does, is_read, expect) in [
        (Does::RetryAfter(429, 1), true, [1000, 1000].as_slice()),
        (Does::RetryAfter(503, 1), true, &[1000, 1000]),
        // A third try would come after the request's timeout of 3 s.
        (Does::RetryAfter(429, 2), true, &[2000]),
        (Does::RetryAfter(429, 3), true, &[]),
        // A POST is retried only if the API server has refused it.
        (Does::RetryAfter(429, 1), false, &[1000, 1000]),
        (Does::RetryAfter(504, 1), false, &[]),
        (Does::Refuse, false, &[]),
    ] {
        assert_eq!(tries(does, is_read).await.0, expect);
    }
    assert_eq!(tries(Does::Refuse, true).await.0.len(), 2);
}

/// Rule D-39: 100 reads per second for a minute.
#[tokio::test(start_paused = true)]
async fn while_the_api_server_is_down_reads_fail_at_once() {
    let fake = Fake::new(Does::Refuse);
    let reports = Arc::new(Reports::default());
    let store = fake.store(None);
    let store = store.with_observer(reports.clone());
    // The first read has three tries and the second two: five consecutive failures.
    for _ in 0..2 {
        read(&store).await.unwrap_err();
    }
    let opened = Instant::now();
    assert_eq!(fake.times().len(), 5);
    assert_eq!(reports.lines().pop().unwrap(), "breaker true");
    let mut shown = String::new();
    for _ in 0..60 * 100 {
        let begin = Instant::now();
        let error = read(&store).await.unwrap_err();
        assert!(error.is_unavailable());
        if matches!(error, StoreError::Failing { .. }) {
            assert_eq!(begin.elapsed(), Duration::ZERO);
            shown = error.to_string();
        }
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        shown,
        "cannot get RouteTable mesh/web: the API server fails every request, check that it is reachable (connection refused)"
    );
    // One probe after 1, 2, 4 and 8 s, then each 10 s, without retries.
    let opened = (opened - fake.start).as_millis();
    let probes: Vec<u128> = fake.times().iter().map(|at| (at - opened) / 1000).collect();
    assert_eq!(probes, [1, 3, 7, 15, 25, 35, 45, 55]);
}

/// Those of `kubectl`-like programs use kube's own helpers.
#[tokio::test(start_paused = true)]
async fn a_request_of_a_helper_passes_the_same_limits_and_the_breaker() {
    let fake = Fake::new(Does::Answer(
        200,
        json!({"major": "1", "minor": "34", "gitVersion": "v1.34.1",
        "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
    ));
    let reports = Arc::new(Reports::default());
    let store = fake.store(RequestLimits { qps: 1.0, burst: 1 });
    let store = store.with_observer(reports.clone());
    let helper = async || {
        let client = store.client().await.unwrap();
        let version = client.apiserver_version().await;
        version.map_err(|error| ClientError::from(error).to_string())
    };
    // The second one waits for its token.
    for expect in [0, 1000] {
        helper().await.unwrap();
        assert_eq!(fake.times(), [expect]);
    }
    assert_eq!(reports.lines()[0], "other other 200 0ns");
    fake.now_does(Does::Nothing);
    for _ in 0..5 {
        assert_eq!(helper().await.unwrap_err(), "no answer in time");
    }
    let refused = "not sent, because earlier requests failed: no answer";
    assert_eq!(helper().await.unwrap_err(), refused);
    let late = RequestContext {
        deadline: Some(Instant::now()),
        ..as_priority(Priority::TowardStable)
    };
    let helped = with_context(late, helper()).await;
    assert_eq!(helped.unwrap_err(), "no answer in time");
}

/// Rule D-39.
#[tokio::test(start_paused = true)]
async fn a_probe_or_a_watch_detects_the_recovery_of_the_api_server() {
    let fake = Fake::new(Does::Refuse);
    let store = Arc::new(fake.store(None));
    let open = async || {
        fake.now_does(Does::Refuse);
        while !matches!(read(&store).await, Err(StoreError::Failing { .. })) {}
    };
    open().await;
    fake.now_does(found());
    read(&store).await.unwrap_err();
    sleep(Duration::from_secs(1)).await;
    read(&store).await.unwrap();

    let mut watch = Watch::new(Source {
        store: store.clone(),
        keep: Arc::<WholeDocuments<RouteTable>>::default(),
        scope: Scope::All,
        labels: None,
    });
    let empty = json!({"metadata": {"resourceVersion": "1"}, "items": []});
    fake.now_does(Does::Answer(200, empty));
    watch.next().await.unwrap();
    open().await;
    fake.now_does(Does::Answer(200, json!("")));
    watch.next().await.unwrap();
    fake.now_does(found());
    read(&store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_abort_is_tried_once_per_second_while_the_api_server_is_down() {
    let fake = Fake::new(Does::Refuse);
    let store = fake.store(None);
    for _ in 0..2 {
        read(&store).await.unwrap_err();
    }
    fake.times();
    let end = Instant::now() + Duration::from_millis(950);
    while Instant::now() < end {
        read_as(&store, Priority::TowardStable).await.unwrap_err();
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(fake.times().len(), 1);
    sleep(Duration::from_millis(60)).await;
    fake.now_does(found());
    read_as(&store, Priority::TowardStable).await.unwrap();
    read(&store).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn answers_of_a_healthy_api_server_do_not_open_the_breaker() {
    for does in [
        Does::fail(404, "no"),
        Does::fail(403, "no"),
        Does::fail(409, "no"),
        Does::Answer(200, json!("no object")),
        Does::fail(429, "later"),
    ] {
        let fake = Fake::new(does);
        let store = fake.store(None);
        for _ in 0..10 {
            read(&store).await.unwrap_err();
        }
        fake.now_does(found());
        read(&store).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_api_server_open_the_breaker() {
    for (does, sent) in [
        (Does::fail(500, "etcd"), 5),
        (Does::fail(503, "etcd"), 5),
        (Does::RetryAfter(429, 60), 5),
        (Does::Refuse, 5),
        (Does::Nothing, 5),
        (Does::Drip, 5),
    ] {
        let fake = Fake::new(does);
        let store = fake.store(None);
        let mut left = 20;
        while !matches!(read(&store).await, Err(StoreError::Failing { .. })) {
            left -= 1;
            assert!(left > 0);
        }
        assert_eq!(fake.times().len(), sent);
    }
}

#[tokio::test(start_paused = true)]
async fn a_quickly_cancelled_request_does_not_open_the_breaker() {
    let fake = Fake::new(Does::Nothing);
    let store = fake.store(None);
    for _ in 0..20 {
        let short = timeout(Duration::from_millis(900), read(&store));
        short.await.unwrap_err();
    }
    assert_eq!(fake.times().len(), 20);
    // After the request's timeout, or a second if that is shorter, a cancelled request counts as a failure.
    for _ in 0..5 {
        let long = timeout(Duration::from_millis(1100), read(&store));
        long.await.unwrap_err();
    }
    let error = read(&store).await.unwrap_err();
    assert!(matches!(error, StoreError::Failing { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn events_neither_open_the_breaker_nor_pass_it() {
    let fake = Fake::new(Does::Refuse);
    let store = fake.store(None);
    for _ in 0..10 {
        let error = read_as(&store, Priority::Event).await.unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    }
    for _ in 0..2 {
        read(&store).await.unwrap_err();
    }
    sleep(Duration::from_secs(60)).await;
    fake.times();
    read_as(&store, Priority::Event).await.unwrap_err();
    assert_eq!(fake.times().len(), 0);
    read(&store).await.unwrap_err();
    assert_eq!(fake.times().len(), 1);
}

/// Rule D-40, with a burst of one request and the waiting requests of ten Rollouts.
#[tokio::test(start_paused = true)]
async fn an_abort_is_sent_before_all_other_waiting_requests() {
    let fake = Fake::new(found());
    let reports = Arc::new(Reports::default());
    let limits = RequestLimits {
        qps: 20.0,
        burst: 1,
    };
    let store = Arc::new(fake.store(limits).with_observer(reports.clone()));
    let start = |priority, name: String| {
        let store = store.clone();
        tokio::spawn(async move {
            let key = key(&name);
            with_context(as_priority(priority), async {
                store.read(&key).await.unwrap();
                store.patch(&key, &Patch(Vec::new())).await.unwrap();
            })
            .await;
        })
    };
    let mut running = Vec::new();
    for index in 0..10 {
        running.push(start(Priority::Call, format!("step{index}")));
    }
    running.push(start(Priority::Event, "event".to_owned()));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(fake.lines(), ["GET step0"]);
    running.push(start(Priority::TowardStable, "abort".to_owned()));
    for it in running {
        it.await.unwrap();
    }
    let lines = fake.lines();
    assert_eq!(lines[..2], ["GET abort", "PATCH abort"]);
    assert_eq!(lines.len(), 2 * 12 - 1);
    assert_eq!(lines[lines.len() - 2..], ["GET event", "PATCH event"]);
    let waited = reports.lines();
    assert!(waited.contains(&"waited 50ms".to_owned()), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fifth_of_the_burst_is_reserved_for_an_abort() {
    let fake = Fake::new(found());
    let store = fake.store(RequestLimits {
        qps: 0.1,
        burst: 10,
    });
    for _ in 0..8 {
        read(&store).await.unwrap();
    }
    let error = read(&store).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot get RouteTable mesh/web in time: more requests wait than may be sent to the API server, raise qps and burst"
    );
    for _ in 0..2 {
        read_as(&store, Priority::TowardStable).await.unwrap();
    }
    // A request whose turn would come too late fails at once.
    assert_eq!(fake.start.elapsed(), Duration::ZERO);
    assert_eq!(fake.times().len(), 10);
}

/// While a request pauses before its next try, its permit is withdrawn.
#[tokio::test(start_paused = true)]
async fn the_answer_to_the_last_try_says_more_than_the_gate() {
    let fake = Fake::new(Does::RetryAfter(503, 1));
    let store = fake.store(None);
    let permit = Permit::default();
    let withdrawn = async {
        sleep(Duration::from_millis(500)).await;
        permit.withdraw();
    };
    let (read, ()) = tokio::join!(with_permit(permit.clone(), read(&store)), withdrawn);
    let error = read.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert_eq!(fake.times(), [0]);
}

/// Rule D-42: a request ends 100 ms before the deadline of its call, whatever the API server does.
#[tokio::test(start_paused = true)]
async fn no_request_outlasts_its_call() {
    let all = [
        Does::Refuse,
        Does::Nothing,
        Does::Drip,
        Does::RetryAfter(429, 1),
        Does::RetryAfter(429, 60),
        Does::fail(503, "etcd"),
        Does::fail(409, "conflict"),
    ];
    for does in all {
        for left in [0, 50, 150, 1000, 2500, 5000] {
            let fake = Fake::new(does.clone());
            let store = fake.store(None);
            let deadline = Instant::now() + Duration::from_millis(left);
            let context = RequestContext {
                deadline: Some(deadline),
                ..RequestContext::default()
            };
            let read = with_context(context, read(&store));
            read.await.unwrap_err();
            let may_take = Duration::from_millis(left.saturating_sub(100).min(3000));
            assert!(fake.start.elapsed() <= may_take);
        }
    }
}

/// Rule D-42: of two API servers, each fails in turn.
#[tokio::test(start_paused = true)]
async fn two_api_servers_fail_independently() {
    for down in 0..2 {
        let fakes = [Fake::new(found()), Fake::new(found())];
        fakes[down].now_does(Does::Refuse);
        let stores = fakes.each_ref().map(|fake| fake.store(None));
        for _ in 0..5 {
            read(&stores[down]).await.unwrap_err();
            read(&stores[1 - down]).await.unwrap();
        }
        let error = read(&stores[down]).await.unwrap_err();
        assert!(matches!(error, StoreError::Failing { .. }), "{error:?}");
    }
}

#[test]
fn an_outcome_is_shown_as_the_value_of_a_label() {
    let shown = [
        Outcome::Answered(200),
        Outcome::Connection,
        Outcome::Timeout,
        Outcome::Cancelled,
    ];
    let shown = shown.map(|outcome| outcome.to_string());
    assert_eq!(shown, ["200", "connection", "timeout", "cancelled"]);
}

/// Checks when a list follows that was refused with `Retry-After: after`, in seconds.
async fn check_pause_of_watch(after: u64, expect: std::ops::RangeInclusive<u128>) {
    let fake = Fake::new(Does::RetryAfter(429, after));
    let tables = Informer::new(
        Arc::new(fake.store(None)),
        WholeDocuments::<RouteTable>::default(),
    );
    tables.watch_all();
    sleep(Duration::from_secs(40)).await;
    let times = fake.times();
    assert_eq!(times[0], 0);
    assert!(expect.contains(&times[1]), "{after} s: {times:?}");
}

/// A pause that does not fit into the time of the request is that of the watch, up to a limit: nothing is repaired meanwhile.
#[tokio::test(start_paused = true)]
async fn a_watch_is_not_tried_again_before_the_time_of_retry_after() {
    check_pause_of_watch(5, 5000..=10_000).await;
    check_pause_of_watch(3600, 15_000..=30_000).await;
}

#[tokio::test(start_paused = true)]
async fn the_pause_that_the_answer_to_a_watch_asks_for_is_known() {
    let items = json!({"metadata": {"resourceVersion": "10"}, "items": []});
    let fake = Fake::new(Does::Answer(200, items));
    let mut watch = Watch::new(Source {
        store: Arc::new(fake.store(None)),
        keep: Arc::new(WholeDocuments::<RouteTable>::default()),
        scope: Scope::All,
        labels: None,
    });
    watch.next().await.unwrap();
    fake.now_does(Does::RetryAfter(429, 5));
    let error = watch.next().await.unwrap_err();
    assert_eq!(asked_pause(&error), Some(Duration::from_secs(5)));
}
