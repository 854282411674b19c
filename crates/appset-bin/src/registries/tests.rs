//! Lookups in fake registries: documented conversations, caching, retries, limits and deadlines. The clock of tokio is paused: it
//! advances only while all tasks wait.

mod conversations;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use appset_generator::{Config, Failure, Found, ImageQuery, Namespaces, Request, SourceQuery};
use axum::body::Bytes;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Response};
use futures::FutureExt as _;
use futures::future::join_all;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{Deadline, Registries};
use crate::metrics::Metrics;

/// One request as a registry receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Received {
    /// Method and URL.
    asked: String,
    /// The Authorization header. Empty without one.
    with: String,
    accept: String,
    /// The body of a POST.
    form: String,
}

/// A response of a registry.
#[derive(Clone, Debug, Default)]
struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    /// The time until the response.
    after: Duration,
}

impl Reply {
    fn new(status: u16, body: &str) -> Self {
        let body = body.to_owned();
        Self {
            status,
            body,
            ..Self::default()
        }
    }

    fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    fn after(mut self, seconds: u64) -> Self {
        self.after = Duration::from_secs(seconds);
        self
    }
}

/// A client whose registries are all one function, and the requests that they received.
struct TestClient {
    registries: Registries,
    metrics: Metrics,
    received: Arc<Mutex<Vec<Received>>>,
}

impl TestClient {
    /// Makes the client. If `reply` returns `None`, the connection breaks.
    fn new(reply: impl Fn(&Received) -> Option<Reply> + Send + Sync + 'static) -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let (recorded, reply) = (Arc::clone(&received), Arc::new(reply));
        let wire = move |request: axum::http::Request<Full<Bytes>>| {
            let (recorded, reply) = (Arc::clone(&recorded), Arc::clone(&reply));
            async move {
                let (head, body) = request.into_parts();
                let text = |name| {
                    let value = head.headers.get(name).map(|value| value.to_str().unwrap());
                    value.unwrap_or_default().to_owned()
                };
                let body = body.collect().await.unwrap().to_bytes();
                let received = Received {
                    asked: format!("{} {}", head.method, head.uri),
                    with: text(AUTHORIZATION.as_str()),
                    accept: text("accept"),
                    form: String::from_utf8(body.to_vec()).unwrap(),
                };
                recorded.lock().unwrap().push(received.clone());
                let sent = reply(&received).ok_or("the connection broke")?;
                sleep(sent.after).await;
                let mut response = Response::new(Full::from(match head.method.as_str() {
                    "HEAD" => String::new(),
                    _ => sent.body,
                }));
                *response.status_mut() = sent.status.try_into().unwrap();
                let mut headers = HeaderMap::new();
                for (name, value) in &sent.headers {
                    let name: axum::http::HeaderName = name.parse().unwrap();
                    headers.append(name, value.parse().unwrap());
                }
                *response.headers_mut() = headers;
                Ok(response.map(|body| body.map_err(std::io::Error::other).boxed_unsync()))
            }
            .boxed()
        };
        let metrics = Metrics::new();
        let counted = metrics.registries.clone();
        Self {
            registries: Registries::over(Arc::new(wire), counted),
            metrics,
            received,
        }
    }

    fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// Returns methods and paths of the requests, without the repository.
    fn asked(&self) -> Vec<String> {
        let short = |received: Received| received.asked.replace("https://r.io/v2/org/app/", "");
        self.received().into_iter().map(short).collect()
    }

    fn count(&self, part: &str) -> usize {
        self.received()
            .iter()
            .filter(|received| received.asked.contains(part))
            .count()
    }

    /// Looks up the images of a request with a configuration of `imageDigests` and a deadline in seconds.
    async fn look_up(
        &self,
        config: &Value,
        request: &Value,
        seconds: u64,
    ) -> Result<BTreeMap<String, Found>, Failure> {
        let (config, images) = query(config, request);
        let deadline = Deadline::of_call(Duration::from_secs(seconds));
        let source = config.image_digests().unwrap();
        self.registries.reload(source.docker_config());
        self.registries.look_up(&images, source, deadline).await
    }
}

fn query(config: &Value, request: &Value) -> (Config, ImageQuery) {
    let config = json!({ "imageDigests": config }).to_string();
    let config = Config::from_yaml(&config).unwrap();
    let body = json!({"input": {"parameters": request}}).to_string();
    let request = Request::from_body(body.as_bytes()).unwrap();
    match config
        .query(None, Some("t"), request, &Namespaces::default())
        .unwrap()
        .source
    {
        SourceQuery::ImageDigests(images) => (config, images),
        other => panic!("{other:?}"),
    }
}

const UNKNOWN: &str = r#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#;

fn digest(c: char) -> String {
    format!("sha256:{}", String::from(c).repeat(64))
}

/// Makes a client whose registry requires a token. `reply` answers requests with the token.
fn with_tokens(reply: impl Fn(&Received) -> Option<Reply> + Send + Sync + 'static) -> TestClient {
    TestClient::new(
        move |received| match (received.asked.as_str(), received.with.as_str()) {
            (asked, _) if asked.starts_with("GET https://auth.io/token") => {
                Some(Reply::new(200, r#"{"token":"t","expires_in":60}"#).after(1))
            }
            (_, "Bearer t") => reply(received),
            _ => Some(Reply::new(401, "").header(
                "www-authenticate",
                r#"Bearer realm="https://auth.io/token""#,
            )),
        },
    )
}

#[expect(clippy::unnecessary_wraps, reason = "as every answer of a test")]
fn there(_: &Received) -> Option<Reply> {
    Some(
        Reply::new(200, "")
            .header("docker-content-digest", &digest('a'))
            .after(1),
    )
}

fn config() -> Value {
    json!({"registries": {"r.io": {"proof": "authorized"}}})
}

fn request(tag: &str) -> Value {
    json!({"tag": tag, "images": {"app": "org/app"}})
}

/// Returns `missing`, the first digit of the digest, or the message of the failure.
fn shown(found: Result<BTreeMap<String, Found>, Failure>) -> String {
    match found {
        Ok(found) => found.get("app").map_or("missing".to_owned(), |found| {
            let stale = if found.is_stale { " stale" } else { "" };
            format!("{}{stale}", &found.digest.as_str()[7..8])
        }),
        Err(failure) => failure.to_string(),
    }
}

impl TestClient {
    /// Looks up an image with an empty cache.
    async fn query(&self, config: &Value) -> String {
        self.registries.cache.lock().clear();
        shown(self.look_up(config, &request("v1"), 25).await)
    }
}

#[tokio::test(start_paused = true)]
async fn thirty_images_of_one_repository_need_one_token_and_thirty_heads() {
    let client = with_tokens(there);
    let tags: Vec<_> = (0..30)
        .map(|number| request(&format!("v{number}")))
        .collect();
    let config = config();
    let looked_up = join_all(tags.iter().map(|tag| client.look_up(&config, tag, 25))).await;
    assert!(looked_up.into_iter().all(|found| shown(found) == "a"));
    assert_eq!(client.count("auth.io/token"), 1);
    assert_eq!(client.count("HEAD "), 30);
    // The request for the challenge.
    assert_eq!(client.count("GET https://r.io"), 1);
    assert_eq!(client.received().len(), 32);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_cached_until_shortly_before_it_expires() {
    let client = with_tokens(there);
    for (wait, tokens) in [(0, 1), (50, 1), (10, 2)] {
        sleep(Duration::from_secs(wait)).await;
        assert_eq!(client.query(&config()).await, "a");
        assert_eq!(client.count("auth.io/token"), tokens);
    }
}

#[tokio::test(start_paused = true)]
async fn each_set_of_credentials_has_its_own_token() {
    let client = with_tokens(there);
    let dir = tempfile::tempdir().unwrap();
    let mut config = config();
    for (index, user) in ["a", "b", "a"].into_iter().enumerate() {
        let path = dir.path().join(index.to_string());
        let docker = json!({"auths": {"r.io": {"username": user, "password": "p"}}});
        std::fs::write(&path, docker.to_string()).unwrap();
        config["dockerConfig"] = path.display().to_string().into();
        assert_eq!(client.query(&config).await, "a");
    }
    let tokens = client
        .received()
        .into_iter()
        .filter(|received| received.asked.contains("/token"));
    let with: Vec<_> = tokens.map(|received| received.with).collect();
    assert_eq!(with, ["Basic YTpw", "Basic Yjpw"]);
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_are_not_sent_again_for_a_minute() {
    let client = TestClient::new(|received| {
        Some(match received.asked.contains("/token") {
            true => Reply::new(403, ""),
            false => Reply::new(401, "").header(
                "www-authenticate",
                r#"Bearer realm="https://auth.io/token""#,
            ),
        })
    });
    for (wait, tokens) in [(0, 1), (10, 1), (40, 1), (15, 2)] {
        sleep(Duration::from_secs(wait)).await;
        let refused = client.query(&config()).await;
        assert!(refused.contains("no credentials were sent"), "{refused}");
        assert_eq!(client.count("/token"), tokens);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tag_that_existed_is_missing_only_after_a_second_lookup() {
    // `lookups` has an entry for each lookup: whether the tag exists.
    let check = async |lookups: &'static [bool], expect: &str| {
        let next = AtomicUsize::new(0);
        let client = with_tokens(move |received| {
            if received.asked.starts_with("HEAD") {
                next.fetch_add(1, Ordering::Relaxed);
            }
            let at = next.load(Ordering::Relaxed).saturating_sub(1);
            let reply = if lookups[at] {
                there(received)?
            } else {
                Reply::new(404, UNKNOWN)
            };
            Some(Reply {
                after: Duration::ZERO,
                ..reply
            })
        });
        assert_eq!(client.query(&config()).await, "a");
        let started = Instant::now();
        assert_eq!(client.query(&config()).await, expect);
        assert_eq!(started.elapsed(), Duration::from_secs(5));
        // After that it is missing without a second lookup.
        if expect == "missing" {
            let started = Instant::now();
            assert_eq!(client.query(&config()).await, "missing");
            assert_eq!(started.elapsed(), Duration::ZERO);
        }
    };
    check(&[true, false, true], "a").await;
    check(&[true, false, false, false], "missing").await;
}

#[tokio::test(start_paused = true)]
async fn retries_are_limited_and_obey_retry_after() {
    // Checks the duration of a lookup without the second for a token, and the number of requests for the manifest.
    let check = async |reply: fn(&Received) -> Option<Reply>,
                       seconds: std::ops::Range<f64>,
                       heads: usize| {
        let client = with_tokens(reply);
        let started = Instant::now();
        let failed = client.query(&config()).await;
        let took = started.elapsed().as_secs_f64() - 1.0;
        assert!(seconds.contains(&took), "{took} {failed}");
        assert_eq!(client.count("HEAD"), heads, "{failed}");
        failed
    };
    let broken = check(|_| None, 1.2..1.6, 3).await;
    assert!(
        broken.contains("cannot be reached: the connection broke"),
        "{broken}"
    );
    let busy = |_: &Received| Some(Reply::new(503, "").header("retry-after", "4"));
    check(busy, 8.0..8.1, 3).await;
    let closed = |_: &Received| Some(Reply::new(429, "").header("retry-after", "6"));
    let failed = check(closed, 0.0..0.1, 1).await;
    assert!(failed.contains("refuses requests for 6 s"), "{failed}");
    // The deadline does not allow a third attempt.
    let client = with_tokens(|_| Some(Reply::new(503, "").header("retry-after", "4")));
    let started = Instant::now();
    let late = shown(client.look_up(&config(), &request("v1"), 8).await);
    assert!(late.contains("status 503"), "{late}");
    assert_eq!((started.elapsed().as_secs(), client.count("HEAD")), (5, 2));
}

#[tokio::test(start_paused = true)]
async fn a_registry_gets_eight_concurrent_requests() {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    let client = with_tokens(|received| {
        let running = RUNNING.fetch_add(1, Ordering::Relaxed) + 1;
        MOST.fetch_max(running, Ordering::Relaxed);
        tokio::spawn(async {
            sleep(Duration::from_millis(999)).await;
            RUNNING.fetch_sub(1, Ordering::Relaxed);
        });
        there(received)
    });
    let tags: Vec<_> = (0..64)
        .map(|number| request(&format!("v{number}")))
        .collect();
    let config = config();
    let looked_up = join_all(tags.iter().map(|tag| client.look_up(&config, tag, 25))).await;
    assert!(looked_up.into_iter().all(|found| shown(found) == "a"));
    assert_eq!(MOST.load(Ordering::Relaxed), 8);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_cached_for_five_seconds() {
    let client = with_tokens(|_| Some(Reply::new(410, "")));
    for (wait, heads) in [(0, 1), (4, 1), (2, 2)] {
        sleep(Duration::from_secs(wait)).await;
        let failed = client.query(&config()).await;
        assert!(failed.contains("status 410"), "{failed}");
        assert_eq!(client.count("HEAD"), heads);
    }
}

#[tokio::test(start_paused = true)]
async fn an_index_is_read_again_only_after_a_change() {
    let index = json!({"schemaVersion": 2, "manifests": [
        {"digest": digest('b'), "platform": {"os": "linux", "architecture": "amd64"}},
    ]});
    let index = index.to_string();
    let hash = ring::digest::digest(&ring::digest::SHA256, index.as_bytes());
    let hash = appset_generator::Digest::from_sha256(hash.as_ref()).unwrap();
    let client = TestClient::new(move |_| {
        Some(Reply::new(200, &index).header("docker-content-digest", hash.as_str()))
    });
    let mut request = request("v1");
    request["platform"] = "linux/amd64".into();
    for _ in 0..3 {
        client.registries.cache.lock().clear();
        assert_eq!(shown(client.look_up(&config(), &request, 25).await), "b");
    }
    let head = "HEAD manifests/v1";
    assert_eq!(client.asked(), ["GET manifests/v1", head, head]);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_names_registry_image_and_step() {
    let check = async |slow: &'static str, step: &str| {
        let client = with_tokens(move |received| match received.asked.contains("tags/list") {
            true => {
                Some(Reply::new(200, r#"{"tags":[]}"#).after(if slow == "tags" { 600 } else { 0 }))
            }
            false => Some(Reply::new(404, UNKNOWN).after(if slow == "HEAD" { 600 } else { 0 })),
        });
        let config = json!({"registries": {"r.io": {}}});
        // A token takes a second.
        let seconds = if slow == "token" { 1 } else { 25 };
        let failed = shown(client.look_up(&config, &request("v1"), seconds).await);
        assert_eq!(
            failed,
            format!("no answer within {seconds} s: registry r.io, image org/app: {step}")
        );
    };
    check("token", "waiting for a token").await;
    check("HEAD", "waiting for the manifest").await;
    check("tags", "waiting for its tags").await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_time_is_no_failure_for_the_next_one() {
    let client = with_tokens(there);
    // A token takes a second.
    let late = shown(client.look_up(&config(), &request("v1"), 1).await);
    assert!(late.contains("no answer within 1 s"), "{late}");
    let next = client.look_up(&config(), &request("v1"), 25).await;
    assert_eq!(shown(next), "a");
}

#[tokio::test(start_paused = true)]
async fn a_stale_digest_is_served_for_the_configured_time() {
    static DOWN: AtomicUsize = AtomicUsize::new(0);
    let client = with_tokens(|received| match DOWN.load(Ordering::Relaxed) {
        0 => there(received),
        1 => Some(Reply::new(410, "")),
        _ => Some(Reply::new(404, UNKNOWN)),
    });
    let stale = json!({"registries": {"r.io": {"proof": "authorized"}}, "staleFor": "1h"});
    assert_eq!(client.query(&stale).await, "a");
    DOWN.store(1, Ordering::Relaxed);
    sleep(Duration::from_secs(3000)).await;
    assert_eq!(client.query(&stale).await, "a stale");
    let gauge = |text: &str| client.metrics.to_text(true, Vec::new()).contains(text);
    assert!(gauge(
        r#"gloo_appset_registry_stale_seconds{registry="r.io"} 300"#
    ));
    // It is a failure without the setting, after the time, and for another image.
    assert!(client.query(&config()).await.contains("status 410"));
    sleep(Duration::from_secs(601)).await;
    assert!(client.query(&stale).await.contains("status 410"));
    let other = client.look_up(&stale, &request("v2"), 25).await;
    assert!(shown(other).contains("status 410"));
    // A proven 404 is never replaced by a stale digest.
    DOWN.store(2, Ordering::Relaxed);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(client.query(&stale).await, "missing");
    assert!(gauge(
        r#"gloo_appset_registry_stale_seconds{registry="r.io"} 0"#
    ));
}

#[tokio::test(start_paused = true)]
async fn there_is_no_stale_digest_after_a_restart() {
    let client = TestClient::new(|_| Some(Reply::new(410, "")));
    let stale = json!({"registries": {"r.io": {}}, "staleFor": "24h"});
    assert!(client.query(&stale).await.contains("status 410"));
}

#[tokio::test(start_paused = true)]
async fn the_rate_limit_of_a_registry_is_a_metric() {
    let client = with_tokens(|_| {
        let reply = Reply::new(429, "").header("retry-after", "60");
        Some(reply.header("ratelimit-remaining", "76;w=21600"))
    });
    client.query(&config()).await;
    let metrics = client.metrics.to_text(true, Vec::new());
    for line in [
        r#"gloo_appset_registry_ratelimit_remaining{registry="r.io"} 76"#,
        r#"gloo_appset_registry_requests_total{registry="r.io",code="429"} 1"#,
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_secret_is_in_a_failure_or_a_metric() {
    let client = TestClient::new(|received| {
        Some(match received.asked.contains("/token") {
            true => Reply::new(200, "hush-body"),
            false => Reply::new(401, "hush-body").header(
                "www-authenticate",
                r#"Bearer realm="https://auth.io/token?hush=hush""#,
            ),
        })
    });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let docker = json!({"auths": {"r.io": {"username": "hush", "password": "hush"}}});
    std::fs::write(&path, docker.to_string()).unwrap();
    let mut config = config();
    config["dockerConfig"] = path.display().to_string().into();
    let mut request = request("hush-tag");
    request["platform"] = "hush/hush".into();
    let failure = client.look_up(&config, &request, 25).await.unwrap_err();
    assert!(failure.to_string().contains("sent no token"), "{failure}");
    assert!(!failure.to_log().contains("hush"), "{}", failure.to_log());
    assert!(!client.metrics.to_text(true, Vec::new()).contains("hush"));
}
