//! Registries as they are documented to talk, and what has to hold over time. The clock is tokio's, which stands still until
//! everything waits.

mod conversations;
mod over_time;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use appset_generator::{Config, Failure, Found, ImageQuery, Namespaces, Request, SourceQuery};
use axum::body::Bytes;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Response};
use futures::FutureExt as _;
use http_body_util::{BodyExt as _, Full};

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
                tokio::time::sleep(said.after).await;
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
        config: &serde_json::Value,
        request: &serde_json::Value,
        seconds: u64,
    ) -> Result<BTreeMap<String, Found>, Failure> {
        let (config, images) = query(config, request);
        let deadline = Deadline::of_call(Duration::from_secs(seconds));
        let source = config.image_digests().unwrap();
        self.registries.look_up(&images, source, deadline).await
    }
}

fn query(config: &serde_json::Value, request: &serde_json::Value) -> (Config, ImageQuery) {
    let config = serde_json::json!({ "imageDigests": config }).to_string();
    let config = Config::from_yaml(&config).unwrap();
    let body = serde_json::json!({"input": {"parameters": request}}).to_string();
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
