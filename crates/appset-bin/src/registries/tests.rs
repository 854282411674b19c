//! Registries as they are documented to talk, and what has to hold over time. The clock is tokio's, which stands still until
//! everything waits.

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

/// One request as a registry sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Heard {
    /// Method and URL.
    asked: String,
    /// The Authorization header, or nothing.
    with: String,
    accept: String,
    /// The body of a POST.
    form: String,
}

/// What a registry says: status, headers, body.
#[derive(Clone, Debug, Default)]
struct Says {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    /// How long that takes.
    after: Duration,
}

impl Says {
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

/// Registries that are all answered by one function, and what they heard.
struct World {
    registries: Registries,
    metrics: Metrics,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl World {
    /// Nothing said is a connection that breaks.
    fn new(says: impl Fn(&Heard) -> Option<Says> + Send + Sync + 'static) -> Self {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (hears, says) = (Arc::clone(&heard), Arc::new(says));
        let wire = move |request: axum::http::Request<Full<Bytes>>| {
            let (hears, says) = (Arc::clone(&hears), Arc::clone(&says));
            async move {
                let (head, body) = request.into_parts();
                let text = |name| {
                    let value = head.headers.get(name).map(|value| value.to_str().unwrap());
                    value.unwrap_or_default().to_owned()
                };
                let body = body.collect().await.unwrap().to_bytes();
                let heard = Heard {
                    asked: format!("{} {}", head.method, head.uri),
                    with: text(AUTHORIZATION.as_str()),
                    accept: text("accept"),
                    form: String::from_utf8(body.to_vec()).unwrap(),
                };
                hears.lock().unwrap().push(heard.clone());
                let said = says(&heard).ok_or("the connection broke")?;
                sleep(said.after).await;
                let mut response = Response::new(Full::from(match head.method.as_str() {
                    "HEAD" => String::new(),
                    _ => said.body,
                }));
                *response.status_mut() = said.status.try_into().unwrap();
                let mut headers = HeaderMap::new();
                for (name, value) in &said.headers {
                    let name: axum::http::HeaderName = name.parse().unwrap();
                    headers.append(name, value.parse().unwrap());
                }
                *response.headers_mut() = headers;
                Ok(response.map(|body| body.map_err(std::io::Error::other).boxed_unsync()))
            }
            .boxed()
        };
        let metrics = Metrics::new();
        let counted = metrics.registries("image-digests");
        Self {
            registries: Registries::over(Arc::new(wire), counted),
            metrics,
            heard,
        }
    }

    fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    /// Methods and paths, without the repository.
    fn asked(&self) -> Vec<String> {
        let short = |heard: Heard| heard.asked.replace("https://r.io/v2/org/app/", "");
        self.heard().into_iter().map(short).collect()
    }

    fn count(&self, part: &str) -> usize {
        self.heard()
            .iter()
            .filter(|heard| heard.asked.contains(part))
            .count()
    }

    /// The images of a request, under a configuration of `imageDigests`, within a deadline of some seconds.
    async fn look_up(
        &self,
        config: &Value,
        request: &Value,
        seconds: u64,
    ) -> Result<BTreeMap<String, Found>, Failure> {
        let (config, images) = query(config, request);
        let deadline = Deadline::of_call(Duration::from_secs(seconds));
        let source = config.image_digests().unwrap();
        self.registries.look_up(&images, source, deadline).await
    }
}

fn query(config: &Value, request: &Value) -> (Config, ImageQuery) {
    let config = json!({ "imageDigests": config }).to_string();
    let config = Config::from_yaml(&config).unwrap();
    let body = json!({"input": {"parameters": request}}).to_string();
    let request = Request::from_body(body.as_bytes()).unwrap();
    match config
        .query(None, Some("t"), &request, &Namespaces::default())
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

/// A registry that wants a token, and has the images that `says` has.
fn with_tokens(says: impl Fn(&Heard) -> Option<Says> + Send + Sync + 'static) -> World {
    World::new(
        move |heard| match (heard.asked.as_str(), heard.with.as_str()) {
            (asked, _) if asked.starts_with("GET https://auth.io/token") => {
                Some(Says::new(200, r#"{"token":"t","expires_in":60}"#).after(1))
            }
            (_, "Bearer t") => says(heard),
            _ => Some(Says::new(401, "").header(
                "www-authenticate",
                r#"Bearer realm="https://auth.io/token""#,
            )),
        },
    )
}

#[expect(clippy::unnecessary_wraps, reason = "as every answer of a test")]
fn there(_: &Heard) -> Option<Says> {
    Some(
        Says::new(200, "")
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

/// `missing`, the first digit of the digest, or the failure.
fn shown(found: Result<BTreeMap<String, Found>, Failure>) -> String {
    match found {
        Ok(found) => found.get("app").map_or("missing".to_owned(), |found| {
            let stale = if found.is_stale { " stale" } else { "" };
            format!("{}{stale}", &found.digest.as_str()[7..8])
        }),
        Err(failure) => failure.to_string(),
    }
}

impl World {
    /// What an image is, asked anew.
    async fn look(&self, config: &Value) -> String {
        self.registries.cache.invalidate_all();
        self.registries.cache.run_pending_tasks().await;
        shown(self.look_up(config, &request("v1"), 25).await)
    }
}

#[tokio::test(start_paused = true)]
async fn thirty_images_of_one_repository_cost_one_token_and_thirty_heads() {
    let world = with_tokens(there);
    let tags: Vec<_> = (0..30)
        .map(|number| request(&format!("v{number}")))
        .collect();
    let config = config();
    let looked_up = join_all(tags.iter().map(|tag| world.look_up(&config, tag, 25))).await;
    assert!(looked_up.into_iter().all(|found| shown(found) == "a"));
    assert_eq!(world.count("auth.io/token"), 1);
    assert_eq!(world.count("HEAD "), 30);
    // The challenge.
    assert_eq!(world.count("GET https://r.io"), 1);
    assert_eq!(world.heard().len(), 32);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_kept_until_shortly_before_it_expires() {
    let world = with_tokens(there);
    for (wait, tokens) in [(0, 1), (50, 1), (10, 2)] {
        sleep(Duration::from_secs(wait)).await;
        assert_eq!(world.look(&config()).await, "a");
        assert_eq!(world.count("auth.io/token"), tokens);
    }
}

#[tokio::test(start_paused = true)]
async fn each_credentials_have_a_token_of_their_own() {
    let world = with_tokens(there);
    let dir = tempfile::tempdir().unwrap();
    let mut config = config();
    for (index, user) in ["a", "b", "a"].into_iter().enumerate() {
        let path = dir.path().join(index.to_string());
        let docker = json!({"auths": {"r.io": {"username": user, "password": "p"}}});
        std::fs::write(&path, docker.to_string()).unwrap();
        config["dockerConfig"] = path.display().to_string().into();
        assert_eq!(world.look(&config).await, "a");
    }
    let tokens = world
        .heard()
        .into_iter()
        .filter(|heard| heard.asked.contains("/token"));
    let with: Vec<_> = tokens.map(|heard| heard.with).collect();
    assert_eq!(with, ["Basic YTpw", "Basic Yjpw"]);
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_are_not_sent_again_for_a_minute() {
    let world = World::new(|heard| {
        Some(match heard.asked.contains("/token") {
            true => Says::new(403, ""),
            false => Says::new(401, "").header(
                "www-authenticate",
                r#"Bearer realm="https://auth.io/token""#,
            ),
        })
    });
    for (wait, tokens) in [(0, 1), (10, 1), (40, 1), (15, 2)] {
        sleep(Duration::from_secs(wait)).await;
        let refused = world.look(&config()).await;
        assert!(refused.contains("no credentials were sent"), "{refused}");
        assert_eq!(world.count("/token"), tokens);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tag_that_was_there_is_missing_only_after_a_second_look() {
    // What HEAD and GET say, look by look.
    let check = async |looks: &'static [bool], expect: &str| {
        let look = AtomicUsize::new(0);
        let world = with_tokens(move |heard| {
            if heard.asked.starts_with("HEAD") {
                look.fetch_add(1, Ordering::Relaxed);
            }
            let at = look.load(Ordering::Relaxed).saturating_sub(1);
            let says = if looks[at] {
                there(heard)?
            } else {
                Says::new(404, UNKNOWN)
            };
            Some(Says {
                after: Duration::ZERO,
                ..says
            })
        });
        assert_eq!(world.look(&config()).await, "a");
        let started = Instant::now();
        assert_eq!(world.look(&config()).await, expect);
        assert_eq!(started.elapsed(), Duration::from_secs(5));
        // From then on it is missing at once.
        if expect == "missing" {
            let started = Instant::now();
            assert_eq!(world.look(&config()).await, "missing");
            assert_eq!(started.elapsed(), Duration::ZERO);
        }
    };
    check(&[true, false, true], "a").await;
    check(&[true, false, false, false], "missing").await;
}

#[tokio::test(start_paused = true)]
async fn tries_end_and_keep_to_what_the_registry_asks_for() {
    // How long a lookup takes, besides the second for a token, and how often it asks for the manifest.
    let check =
        async |says: fn(&Heard) -> Option<Says>, seconds: std::ops::Range<f64>, heads: usize| {
            let world = with_tokens(says);
            let started = Instant::now();
            let failed = world.look(&config()).await;
            let took = started.elapsed().as_secs_f64() - 1.0;
            assert!(seconds.contains(&took), "{took} {failed}");
            assert_eq!(world.count("HEAD"), heads, "{failed}");
            failed
        };
    let broken = check(|_| None, 1.2..1.6, 3).await;
    assert!(
        broken.contains("cannot be reached: the connection broke"),
        "{broken}"
    );
    let busy = |_: &Heard| Some(Says::new(503, "").header("retry-after", "4"));
    check(busy, 8.0..8.1, 3).await;
    let closed = |_: &Heard| Some(Says::new(429, "").header("retry-after", "6"));
    let failed = check(closed, 0.0..0.1, 1).await;
    assert!(failed.contains("no request for 6 s"), "{failed}");
    // Three tries do not fit into the deadline.
    let world = with_tokens(|_| Some(Says::new(503, "").header("retry-after", "4")));
    let started = Instant::now();
    let late = shown(world.look_up(&config(), &request("v1"), 8).await);
    assert!(late.contains("status 503"), "{late}");
    assert_eq!((started.elapsed().as_secs(), world.count("HEAD")), (5, 2));
}

#[tokio::test(start_paused = true)]
async fn a_registry_gets_eight_requests_at_a_time() {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    let world = with_tokens(|heard| {
        let running = RUNNING.fetch_add(1, Ordering::Relaxed) + 1;
        MOST.fetch_max(running, Ordering::Relaxed);
        tokio::spawn(async {
            sleep(Duration::from_millis(999)).await;
            RUNNING.fetch_sub(1, Ordering::Relaxed);
        });
        there(heard)
    });
    let tags: Vec<_> = (0..64)
        .map(|number| request(&format!("v{number}")))
        .collect();
    let config = config();
    let looked_up = join_all(tags.iter().map(|tag| world.look_up(&config, tag, 25))).await;
    assert!(looked_up.into_iter().all(|found| shown(found) == "a"));
    assert_eq!(MOST.load(Ordering::Relaxed), 8);
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_is_down_is_asked_every_five_seconds() {
    let world = with_tokens(|_| Some(Says::new(410, "")));
    for (wait, heads) in [(0, 1), (4, 1), (2, 2)] {
        sleep(Duration::from_secs(wait)).await;
        let failed = world.look(&config()).await;
        assert!(failed.contains("status 410"), "{failed}");
        assert_eq!(world.count("HEAD"), heads);
    }
}

#[tokio::test(start_paused = true)]
async fn an_index_is_read_again_only_if_it_changed() {
    let index = json!({"schemaVersion": 2, "manifests": [
        {"digest": digest('b'), "platform": {"os": "linux", "architecture": "amd64"}},
    ]});
    let index = index.to_string();
    let hash = ring::digest::digest(&ring::digest::SHA256, index.as_bytes());
    let hash = appset_generator::Digest::from_sha256(hash.as_ref()).unwrap();
    let world = World::new(move |_| {
        Some(Says::new(200, &index).header("docker-content-digest", hash.as_str()))
    });
    let mut request = request("v1");
    request["platform"] = "linux/amd64".into();
    for _ in 0..3 {
        world.registries.cache.invalidate_all();
        world.registries.cache.run_pending_tasks().await;
        assert_eq!(shown(world.look_up(&config(), &request, 25).await), "b");
    }
    let head = "HEAD manifests/v1";
    assert_eq!(world.asked(), ["GET manifests/v1", head, head]);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_names_registry_image_and_step() {
    let check = async |slow: &'static str, step: &str| {
        let world = with_tokens(move |heard| match heard.asked.contains("tags/list") {
            true => {
                Some(Says::new(200, r#"{"tags":[]}"#).after(if slow == "tags" { 600 } else { 0 }))
            }
            false => Some(Says::new(404, UNKNOWN).after(if slow == "HEAD" { 600 } else { 0 })),
        });
        let config = json!({"registries": {"r.io": {}}});
        // A token takes a second.
        let seconds = if slow == "token" { 1 } else { 25 };
        let failed = shown(world.look_up(&config, &request("v1"), seconds).await);
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
async fn a_registry_that_fails_is_answered_for_as_long_as_configured() {
    static DOWN: AtomicUsize = AtomicUsize::new(0);
    let world = with_tokens(|heard| match DOWN.load(Ordering::Relaxed) {
        0 => there(heard),
        1 => Some(Says::new(410, "")),
        _ => Some(Says::new(404, UNKNOWN)),
    });
    let stale = json!({"registries": {"r.io": {"proof": "authorized"}}, "staleFor": "1h"});
    assert_eq!(world.look(&stale).await, "a");
    DOWN.store(1, Ordering::Relaxed);
    sleep(Duration::from_secs(3000)).await;
    assert_eq!(world.look(&stale).await, "a stale");
    let gauge = |text: &str| world.metrics.to_text(true, Vec::new()).contains(text);
    assert!(gauge(
        r#"gloo_appset_registry_stale_seconds{registry="r.io"} 300"#
    ));
    // Without the setting, after its time, and of another image it is a failure.
    assert!(world.look(&config()).await.contains("status 410"));
    sleep(Duration::from_secs(601)).await;
    assert!(world.look(&stale).await.contains("status 410"));
    let other = world.look_up(&stale, &request("v2"), 25).await;
    assert!(shown(other).contains("status 410"));
    // A 404 that is proven is never stale.
    DOWN.store(2, Ordering::Relaxed);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.look(&stale).await, "missing");
    assert!(gauge(
        r#"gloo_appset_registry_stale_seconds{registry="r.io"} 0"#
    ));
}

#[tokio::test(start_paused = true)]
async fn a_restart_knows_no_stale_digest() {
    let world = World::new(|_| Some(Says::new(410, "")));
    let stale = json!({"registries": {"r.io": {}}, "staleFor": "24h"});
    assert!(world.look(&stale).await.contains("status 410"));
}

#[tokio::test(start_paused = true)]
async fn what_a_registry_allows_is_a_metric() {
    let world = with_tokens(|_| {
        let says = Says::new(429, "").header("retry-after", "60");
        Some(says.header("ratelimit-remaining", "76;w=21600"))
    });
    world.look(&config()).await;
    let metrics = world.metrics.to_text(true, Vec::new());
    for line in [
        r#"gloo_appset_registry_ratelimit_remaining{registry="r.io"} 76"#,
        r#"gloo_appset_registry_requests_total{registry="r.io",code="429"} 1"#,
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_secret_is_in_a_failure_or_a_metric() {
    let world = World::new(|heard| {
        Some(match heard.asked.contains("/token") {
            true => Says::new(200, "hush-body"),
            false => Says::new(401, "hush-body").header(
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
    let failure = world.look_up(&config, &request, 25).await.unwrap_err();
    assert!(failure.to_string().contains("sent no token"), "{failure}");
    assert!(!failure.to_log().contains("hush"), "{}", failure.to_log());
    assert!(!world.metrics.to_text(true, Vec::new()).contains("hush"));
}
