//! One request to a registry or its token server, with limits on time, concurrency, redirects, retries and size.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use appset_generator::{ACCEPT, Failure, Reference};
use axum::body::Bytes;
use axum::http::header::{
    ACCEPT as ACCEPT_HEADER, AUTHORIZATION, CONTENT_TYPE, LOCATION, RETRY_AFTER, USER_AGENT,
};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use futures::future::BoxFuture;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};
use tower::BoxError;

use crate::by_key::ByKey;
use crate::metrics::RegistryMetrics;

/// Sends one request without redirects and retries.
pub(super) type Wire =
    Arc<dyn Fn(Request<Full<Bytes>>) -> BoxFuture<'static, Result<Sent, BoxError>> + Send + Sync>;
pub(super) type Sent = Response<UnsyncBoxBody<Bytes, std::io::Error>>;
pub(super) type Answer = Response<Bytes>;

/// The maximum size of a manifest, in bytes. Registries refuse larger ones.
const MANIFEST: usize = 4 << 20;
/// The maximum size of a token, of a list with one tag and of an error, in bytes.
const SHORT: usize = 64 << 10;
/// The maximum number of concurrent requests to one registry.
const CONCURRENCY: usize = 8;
/// The statuses after which a retry may succeed.
const TEMPORARY: [u16; 6] = [408, 429, 500, 502, 503, 504];
/// The pause before each retry.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];
/// The maximum `Retry-After` that is waited for.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// The maximum number of redirects.
const REDIRECTS: usize = 3;

/// The deadline of the call for which an image is looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    until: Instant,
    seconds: u64,
}

impl Deadline {
    /// Returns a deadline slightly before that of the call, so that the error can name the step.
    pub(crate) fn of_call(length: Duration) -> Self {
        let margin = (length / 10).min(Duration::from_millis(200));
        Self {
            until: Instant::now() + length.saturating_sub(margin),
            seconds: length.as_secs(),
        }
    }

    /// Awaits `future` until the deadline.
    ///
    /// # Errors
    /// Returns `Err` if the deadline passes. The message names the image and the step.
    pub(super) async fn limit<T>(
        &self,
        image: &Reference,
        step: &str,
        future: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let ended = timeout_at(self.until, future).await;
        ended.map_err(|_elapsed| {
            let (registry, repository) = (&image.registry, &image.repository);
            let waiting = format!("registry {registry}, image {repository}: {step}");
            Failure::Deadline(self.seconds, waiting)
        })
    }
}

/// A step of a lookup: what messages call it, and the maximum size of the body of a 200, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Step(pub(super) &'static str, usize);

impl Step {
    pub(super) const CHALLENGE: Self = Self("waiting for the challenge", MANIFEST);
    pub(super) const TOKEN: Self = Self("waiting for a token", SHORT);
    pub(super) const MANIFEST: Self = Self("waiting for the manifest", MANIFEST);
    pub(super) const INDEX: Self = Self("waiting for an index", MANIFEST);
    pub(super) const CONFIGURATION: Self = Self("waiting for the image's configuration", 1 << 20);
    // A registry that ignores the number of tags sends all of them.
    pub(super) const TAGS: Self = Self("waiting for its tags", MANIFEST);
}

/// A request, the image for which it is sent, and its limits.
pub(super) struct Question<'a> {
    pub(super) image: &'a Reference,
    pub(super) deadline: Deadline,
    pub(super) step: Step,
    pub(super) method: Method,
    pub(super) url: String,
    /// The body of a POST.
    pub(super) form: Option<String>,
}

/// Sends requests with limits.
pub(super) struct Transport {
    wire: Wire,
    /// The permits by registry.
    permits: ByKey<String, Semaphore>,
    metrics: RegistryMetrics,
}

/// The reason why there is no response.
enum Broken {
    /// The connection failed. A retry may succeed.
    Connection(String),
    /// A retry would fail in the same way.
    Final(String),
}

impl Broken {
    fn connection(what: &str, error: BoxError) -> Self {
        Self::Connection(format!("{what}: {:#}", anyhow::anyhow!(error)))
    }
}

impl Transport {
    pub(super) fn new(wire: Wire, metrics: RegistryMetrics) -> Self {
        Self {
            wire,
            permits: ByKey::default(),
            metrics,
        }
    }

    /// Sends a request. Returns a response of any status, after retries for temporary ones.
    pub(super) async fn ask(
        &self,
        question: &Question<'_>,
        authorization: Option<HeaderValue>,
    ) -> Result<Answer, Failure> {
        let (image, deadline) = (question.image, question.deadline);
        let mut pauses = PAUSES.iter();
        loop {
            let answer = self.follow(question, authorization.clone());
            // The deadline also limits the wait for a permit.
            let answer = deadline.limit(image, question.step.0, answer).await?;
            let asked = match &answer {
                Ok(answer) if TEMPORARY.contains(&answer.status().as_u16()) => {
                    Some(retry_after(answer.headers(), SystemTime::now()))
                }
                Err(Broken::Connection(_)) => Some(None),
                Ok(_) | Err(Broken::Final(_)) => None,
            };
            let pause = asked.and_then(|asked| {
                let pause = *pauses.next()?;
                // Jitter spreads the retries of requests that failed at the same time.
                let pause = asked.unwrap_or_else(|| pause.mul_f64(1.0 + fastrand::f64() / 4.0));
                // A retry after the deadline would only delay the error.
                let in_time = Instant::now() + pause < deadline.until;
                (pause <= MAX_PAUSE && in_time).then_some(pause)
            });
            match (pause, answer) {
                (Some(pause), _) => sleep(pause).await,
                (None, Ok(answer)) => return Ok(answer),
                (None, Err(Broken::Connection(what) | Broken::Final(what))) => {
                    return Err(failure(image, what));
                }
            }
        }
    }

    /// Sends a request and follows redirects. Credentials are not sent to another host.
    async fn follow(
        &self,
        question: &Question<'_>,
        mut authorization: Option<HeaderValue>,
    ) -> Result<Answer, Broken> {
        let mut url: Uri = question.url.parse().map_err(|_| not_a_url())?;
        for _ in 0..=REDIRECTS {
            let answer = self.once(question, &url, authorization.clone()).await?;
            // A form has a refresh token, so it is sent only to the address in the challenge.
            let is_safe = matches!(question.method, Method::GET | Method::HEAD);
            let location = answer.headers().get(LOCATION).filter(|_| is_safe);
            let Some(location) = location.filter(|_| answer.status().is_redirection()) else {
                return Ok(answer);
            };
            let next = resolve(&url, location).ok_or_else(not_a_url)?;
            check_address(&next, question.image).map_err(Broken::Final)?;
            if next.authority() != url.authority() || next.scheme() != url.scheme() {
                authorization = None;
            }
            url = next;
        }
        Err(Broken::Final(format!(
            "redirected more than {REDIRECTS} times: configure the registry to which it redirects"
        )))
    }

    async fn once(
        &self,
        question: &Question<'_>,
        url: &Uri,
        authorization: Option<HeaderValue>,
    ) -> Result<Answer, Broken> {
        let registry = &question.image.registry;
        let permits = self.permits.get(registry, || Semaphore::new(CONCURRENCY));
        // Held until the body is read, which may take the longest.
        let _permit = permits.acquire().await;
        let mut request = Request::builder()
            .method(question.method.clone())
            .uri(url)
            .header(ACCEPT_HEADER, ACCEPT)
            .header(USER_AGENT, crate::user_agent());
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if question.form.is_some() {
            request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        let body = question.form.clone().unwrap_or_default();
        let request = request.body(Full::from(body)).map_err(|_| not_a_url())?;
        let sent = (self.wire)(request).await.map_err(|error| {
            self.metrics.requested(registry, "broken");
            Broken::connection("cannot be reached", error)
        })?;
        self.metrics
            .answered(registry, sent.status(), sent.headers());
        let (head, body) = sent.into_parts();
        // Only the code of an error is read, which is short.
        let limit = match head.status {
            StatusCode::OK => question.step.1,
            _ => SHORT,
        };
        match read(body, limit).await {
            Ok(body) => Ok(Response::from_parts(head, body)),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(Broken::Final(format!("sent more than {limit} bytes")))
            }
            Err(error) => {
                let what = "closed the connection before the end of its response";
                Err(Broken::connection(what, error))
            }
        }
    }
}

/// Reads the body up to `limit` bytes. The future is boxed, because otherwise the compiler cannot prove that it is `Send`.
fn read(
    body: UnsyncBoxBody<Bytes, std::io::Error>,
    limit: usize,
) -> BoxFuture<'static, Result<Bytes, BoxError>> {
    Box::pin(async move { Ok(Limited::new(body, limit).collect().await?.to_bytes()) })
}

/// Makes the failure of a registry. `what` completes the sentence "registry X, asked for Y, ...".
pub(super) fn failure(image: &Reference, what: impl Into<String>) -> Failure {
    Failure::Registry {
        registry: image.registry.clone(),
        repository: image.repository.clone(),
        tag: image.tag.clone(),
        what: what.into(),
    }
}

/// Checks an address to which a registry refers.
///
/// # Errors
/// Returns `Err` if the address has no TLS, or if it is private and not the address of the registry itself.
pub(super) fn check_address(url: &Uri, image: &Reference) -> Result<(), String> {
    if url.scheme_str() != Some("https") && !image.plain_http {
        return Err("refers to an address that is not https".to_owned());
    }
    let host = url.host().unwrap_or_default();
    // A registry inside of the cluster may name itself.
    let own = image.registry.rsplit_once(':');
    let own = own.map_or(image.registry.as_str(), |(host, _)| host);
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    let is_inside = match literal.parse() {
        Ok(any) if IpAddr::is_loopback(&any) || any.is_unspecified() => true,
        // The metadata service of a cloud is a link-local address.
        Ok(IpAddr::V4(v4)) => v4.is_private() || v4.is_link_local() || is_shared(v4),
        Ok(IpAddr::V6(v6)) => {
            // Such an address is that of an IPv4 host, which may be any of the above.
            let is_mapped = v6.to_ipv4_mapped().is_some();
            v6.is_unique_local() || v6.is_unicast_link_local() || is_mapped
        }
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    };
    if is_inside && host != own {
        return Err("refers to a private address that is not its own".to_owned());
    }
    Ok(())
}

/// Whether an address is in 100.64.0.0/10, in which a cloud has its metadata service.
const fn is_shared(v4: Ipv4Addr) -> bool {
    let [first, second, ..] = v4.octets();
    first == 100 && second & 0xc0 == 64
}

fn not_a_url() -> Broken {
    Broken::Final("has an invalid address".to_owned())
}

/// Returns the value of `Retry-After`, which is in seconds or a date.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// Resolves `location` against `url`.
fn resolve(url: &Uri, location: &HeaderValue) -> Option<Uri> {
    let location: Uri = location.to_str().ok()?.parse().ok()?;
    if location.scheme().is_some() {
        return Some(location);
    }
    let mut parts = location.into_parts();
    parts.scheme = url.scheme().cloned();
    parts.authority = parts.authority.or_else(|| url.authority().cloned());
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_in_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        let check = |text: &str, expect: Option<u64>| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            let seconds = retry_after(&headers, now).map(|time| time.as_secs());
            assert_eq!(seconds, expect, "{text}");
        };
        check("3", Some(3));
        check("3600", Some(3600));
        check("Sun, 06 Nov 1994 08:49:37 GMT", Some(7));
        check("Sun, 06 Nov 1994 08:00:00 GMT", Some(0));
        check("soon", None);
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn a_location_is_a_url_or_a_path() {
        let check = |location: &str, expect: Option<&str>| {
            let url = "https://r.io/v2/a/manifests/v1".parse().unwrap();
            let next = resolve(&url, &location.parse().unwrap());
            assert_eq!(next.map(|next| next.to_string()).as_deref(), expect);
        };
        check("https://q.io/x?y=1", Some("https://q.io/x?y=1"));
        check("/v2/b/manifests/v1", Some("https://r.io/v2/b/manifests/v1"));
        check("http://", None);
    }

    #[test]
    fn private_addresses_are_refused() {
        let check = |registry: &str, plain_http, url: &str, expect: bool| {
            let config = format!(
                "imageDigests: {{registries: {{'{registry}': {{plainHttp: {plain_http}}}}}}}"
            );
            let config = appset_generator::Config::from_yaml(&config).unwrap();
            let body = br#"{"input":{"parameters":{"tag":"v1","images":{"a":"a"}}}}"#;
            let request = appset_generator::Request::from_body(body).unwrap();
            let query = config
                .query(
                    None,
                    Some("t"),
                    request,
                    &appset_generator::Namespaces::default(),
                )
                .unwrap();
            let appset_generator::SourceQuery::ImageDigests(images) = query.source else {
                panic!("another source");
            };
            let (_, image) = images.references().next().unwrap();
            let checked = check_address(&url.parse().unwrap(), image);
            assert_eq!(checked.is_ok(), expect, "{url}: {checked:?}");
        };
        check("r.io", false, "https://auth.r.io/token", true);
        check("r.io", false, "http://auth.r.io/token", false);
        check("r.io", true, "http://auth.r.io/token", true);
        for inside in [
            "169.254.169.254",
            "10.0.0.1",
            "127.0.0.1",
            "[::1]",
            "[fe80::1]",
            "[fd00::1]",
            "[::ffff:10.0.0.1]",
            "0.0.0.0",
            "localhost",
        ] {
            check("r.io", false, &format!("https://{inside}/token"), false);
        }
        check("10.0.0.1:5000", false, "https://10.0.0.1/token", true);
        check("10.0.0.1:5000", false, "https://10.0.0.2/token", false);
        check("r.io", false, "https://8.8.8.8/token", true);
    }
}
