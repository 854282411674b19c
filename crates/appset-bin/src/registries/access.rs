//! Authentication: the challenge of each repository, and the tokens for it. Both are cached, so that many images of one repository
//! need one token.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use appset_generator::{Bearer, Challenge, Credentials, Failure, Reference, Token};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use ring::digest::{SHA256, digest};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::registries::transport::{self, Answer, Deadline, Question, SHORT, Transport, failure};
use crate::registries::ttl_cache::TtlCache;

/// The time for which a challenge is cached. If it changes earlier, the registry refuses the token with 401.
const CHALLENGE: Duration = Duration::from_secs(3600);
/// The time for which refused credentials are not sent again, since some registries ban clients that repeat them.
const REFUSED: Duration = Duration::from_secs(60);

/// A client for one image with one set of credentials.
#[derive(Clone, Copy)]
pub(super) struct ImageClient<'a> {
    pub(super) transport: &'a Transport,
    pub(super) accesses: &'a Accesses,
    pub(super) image: &'a Reference,
    pub(super) deadline: Deadline,
    pub(super) credentials: Option<&'a Credentials>,
}

/// The reason why a lookup failed.
pub(super) enum Stop {
    /// The credentials were refused. Others may be accepted.
    Refused(Failure),
    /// The lookup failed in another way.
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The authentication that a repository requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// None is known to be required.
    Open,
    /// Basic authentication.
    Basic,
    /// A token of a token server.
    Bearer(Bearer),
}

/// A hash of credentials, which identifies them without containing them.
type Identity = Option<[u8; 32]>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RepositoryKey {
    registry: String,
    repository: String,
    identity: Identity,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TokenKey {
    realm: String,
    service: Option<String>,
    scope: String,
    identity: Identity,
}

/// The caches for all repositories.
pub(super) struct Accesses {
    known: TtlCache<RepositoryKey, Access>,
    /// A lock for each repository, so that one call asks for its challenge.
    finding: TtlCache<RepositoryKey, Arc<Mutex<()>>>,
    tokens: TtlCache<TokenKey, HeaderValue>,
    /// A lock for each token, so that one call fetches it.
    fetching: TtlCache<TokenKey, Arc<Mutex<()>>>,
    refused: TtlCache<TokenKey, Failure>,
}

impl Accesses {
    pub(super) fn new() -> Self {
        Self {
            known: TtlCache::new(),
            finding: TtlCache::new(),
            tokens: TtlCache::new(),
            fetching: TtlCache::new(),
            refused: TtlCache::new(),
        }
    }
}

/// Returns the preferred challenge of a 401.
pub(super) fn challenge(headers: &HeaderMap) -> Option<Access> {
    let texts = headers.get_all(WWW_AUTHENTICATE).iter();
    Challenge::best(texts.filter_map(|text| text.to_str().ok())).map(|challenge| match challenge {
        Challenge::Basic => Access::Basic,
        Challenge::Bearer(bearer) => Access::Bearer(bearer),
    })
}

impl ImageClient<'_> {
    /// Returns the authentication that the repository requires.
    ///
    /// If it is unknown, one of several concurrent calls requests `url` without credentials, because some registries do not
    /// challenge a client that sends credentials. If there is no challenge, the response is returned as well.
    pub(super) async fn access(&self, url: &str) -> Result<(Access, Option<Answer>), Stop> {
        if let Some(Credentials::Registry(_)) = self.credentials {
            return Ok((Access::Open, None));
        }
        let key = self.repository_key();
        if let Some(known) = self.accesses.known.get(&key) {
            return Ok((known, None));
        }
        const STEP: &str = "waiting for the challenge";
        let _guard = self.lock(&self.accesses.finding, &key, STEP).await?;
        if let Some(known) = self.accesses.known.get(&key) {
            return Ok((known, None));
        }
        let answer = self
            .transport
            .ask(&self.question(STEP, Method::GET, url.to_owned(), None, transport::MANIFEST))
            .await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            self.cache(Access::Open);
            return Ok((Access::Open, Some(answer)));
        }
        let access = challenge(answer.headers()).ok_or_else(|| self.refused(&answer))?;
        self.cache(access.clone());
        Ok((access, None))
    }

    /// Waits for the lock of `key`, so that one of several concurrent calls sends a request.
    async fn lock<K: Clone + Eq + Hash>(
        &self,
        locks: &TtlCache<K, Arc<Mutex<()>>>,
        key: &K,
        step: &'static str,
    ) -> Result<OwnedMutexGuard<()>, Failure> {
        let lock = locks.get_or_put(key.clone(), CHALLENGE, || Arc::new(Mutex::new(())));
        let locked = lock.lock_owned();
        self.deadline.limit(self.image, step, locked).await
    }

    /// Caches the authentication that the repository requires.
    pub(super) fn cache(&self, access: Access) {
        self.accesses
            .known
            .put(self.repository_key(), access, CHALLENGE);
    }

    /// Returns the `Authorization` header for `access`.
    pub(super) async fn authorization(&self, access: &Access) -> Result<Option<HeaderValue>, Stop> {
        match (access, self.credentials) {
            (_, Some(Credentials::Registry(token))) => {
                self.header(format!("Bearer {token}")).map(Some)
            }
            (Access::Open, _) => Ok(None),
            (Access::Basic, Some(credentials)) => self
                .header(format!("Basic {}", credentials.basic()))
                .map(Some),
            (Access::Basic, None) => Err(Stop::Refused(failure(
                self.image,
                "requires credentials, and dockerConfig has none for it",
            ))),
            (Access::Bearer(bearer), _) => self.token(bearer).await.map(Some),
        }
    }

    /// Removes the token for `access` from the cache, because the registry refused it.
    pub(super) fn remove_token(&self, access: &Access) {
        if let Access::Bearer(bearer) = access {
            self.accesses.tokens.remove(&self.token_key(bearer));
        }
    }

    /// Whether the same token is sent for both.
    pub(super) fn is_same(&self, one: &Access, other: &Access) -> bool {
        match (one, other) {
            (Access::Bearer(one), Access::Bearer(other)) => {
                self.token_key(one) == self.token_key(other)
            }
            (one, other) => one == other,
        }
    }

    /// Returns the header with a token, from the cache or from the token server.
    async fn token(&self, bearer: &Bearer) -> Result<HeaderValue, Stop> {
        const STEP: &str = "waiting for a token";
        let key = self.token_key(bearer);
        if let Some(token) = self.accesses.tokens.get(&key) {
            return Ok(token);
        }
        let _guard = self.lock(&self.accesses.fetching, &key, STEP).await?;
        if let Some(token) = self.accesses.tokens.get(&key) {
            return Ok(token);
        }
        if let Some(failure) = self.accesses.refused.get(&key) {
            return Err(Stop::Refused(failure));
        }
        let answer = self.fetch(bearer, &key.scope).await?;
        if answer.status() != StatusCode::OK {
            let stop = self.no_token(&answer);
            if let Stop::Refused(failure) = &stop {
                self.accesses.refused.put(key, failure.clone(), REFUSED);
            }
            return Err(stop);
        }
        let token = Token::from_body(answer.body());
        let token = token.ok_or_else(|| failure(self.image, "sent no token"))?;
        let header = self.header(format!("Bearer {}", token.text))?;
        let time = Duration::from_secs(token.seconds);
        self.accesses.tokens.put(key, header.clone(), time);
        Ok(header)
    }

    /// Requests a token. A refresh token is sent by POST, or by GET if the server refuses POST. Other credentials are sent by GET.
    async fn fetch(&self, bearer: &Bearer, scope: &str) -> Result<Answer, Stop> {
        const STEP: &str = "waiting for a token";
        let address: Uri = bearer
            .realm
            .parse()
            .map_err(|_| failure(self.image, "has an invalid address of a token server"))?;
        transport::check_address(&address, self.image)
            .map_err(|what| failure(self.image, format!("{what}, as its token server")))?;
        let service = bearer.service.as_deref();
        if let Some(Credentials::Identity(token)) = self.credentials {
            let form = encoded(&[
                ("grant_type", "refresh_token"),
                ("service", service.unwrap_or_default()),
                ("client_id", "gloo-appset-generator"),
                ("scope", scope),
                ("refresh_token", token),
            ]);
            let question = Question {
                form: Some(form),
                ..self.question(STEP, Method::POST, bearer.realm.clone(), None, SHORT)
            };
            let answer = self.transport.ask(&question).await?;
            if !matches!(answer.status().as_u16(), 400 | 401 | 404 | 405) {
                return Ok(answer);
            }
        }
        let mut pairs: Vec<_> = scope.split(' ').map(|scope| ("scope", scope)).collect();
        pairs.extend(service.map(|service| ("service", service)));
        let separator = if bearer.realm.contains('?') { '&' } else { '?' };
        let url = format!("{}{separator}{}", bearer.realm, encoded(&pairs));
        let basic = self
            .credentials
            .map(|credentials| format!("Basic {}", credentials.basic()));
        let basic = basic.map(|basic| self.header(basic)).transpose()?;
        let question = self.question(STEP, Method::GET, url, basic, SHORT);
        Ok(self.transport.ask(&question).await?)
    }

    /// Makes the failure for a response of the token server without a token.
    fn no_token(&self, answer: &Answer) -> Stop {
        let status = answer.status().as_u16();
        let sent = match self.credentials {
            Some(_) => {
                "the credentials of dockerConfig were sent: check that they are valid and may read the repository"
            }
            None => "no credentials were sent: dockerConfig has none for it",
        };
        match status {
            401 | 403 => Stop::Refused(failure(
                self.image,
                format!("refused a token with status {status}; {sent}"),
            )),
            _ => Stop::Failed(failure(
                self.image,
                format!("sent no token, but status {status}"),
            )),
        }
    }

    /// Makes the failure for an unexpected status of the registry.
    pub(super) fn refused(&self, answer: &Answer) -> Stop {
        let status = answer.status();
        let wait = transport::retry_after(answer.headers(), std::time::SystemTime::now());
        let remedy = match (status, self.credentials, wait) {
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, Some(_), _) => {
                "check that the credentials in dockerConfig are valid and may read the repository"
                    .to_owned()
            }
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, None, _) => {
                "check that dockerConfig has credentials that may read the repository".to_owned()
            }
            (_, _, Some(wait)) => format!("it refuses requests for {} s", wait.as_secs()),
            (StatusCode::TOO_MANY_REQUESTS, _, _) => "it requires fewer requests".to_owned(),
            (StatusCode::PRECONDITION_FAILED, _, _) => {
                "a policy of its project forbids the image".to_owned()
            }
            _ if status.is_redirection() => {
                "configure the registry to which it redirects".to_owned()
            }
            _ => "check the registry".to_owned(),
        };
        let status = status.as_u16();
        let failure = failure(
            self.image,
            format!("answered with status {status}: {remedy}"),
        );
        match status {
            401 | 403 => Stop::Refused(failure),
            _ => Stop::Failed(failure),
        }
    }

    /// Makes a request about the image.
    pub(super) fn question(
        &self,
        step: &'static str,
        method: Method,
        url: String,
        authorization: Option<HeaderValue>,
        limit: usize,
    ) -> Question<'_> {
        Question {
            image: self.image,
            deadline: self.deadline,
            step,
            method,
            url,
            authorization,
            form: None,
            limit,
        }
    }

    /// Returns the path of the repository in the API. The short names of Docker Hub's official images omit `library/`.
    pub(super) fn repository(&self) -> String {
        let repository = &self.image.repository;
        if self.image.registry == "docker.io" && !repository.contains('/') {
            return format!("library/{repository}");
        }
        repository.clone()
    }

    fn header(&self, text: String) -> Result<HeaderValue, Stop> {
        let header = HeaderValue::from_str(&text);
        let mut header = header.map_err(|_| {
            failure(
                self.image,
                "has a token or credentials that a header cannot contain",
            )
        })?;
        header.set_sensitive(true);
        Ok(header)
    }

    fn repository_key(&self) -> RepositoryKey {
        RepositoryKey {
            registry: self.image.registry.clone(),
            repository: self.image.repository.clone(),
            identity: self.identity(),
        }
    }

    fn token_key(&self, bearer: &Bearer) -> TokenKey {
        let pull = || format!("repository:{}:pull", self.repository());
        TokenKey {
            realm: bearer.realm.clone(),
            service: bearer.service.clone(),
            scope: bearer.scope.clone().unwrap_or_else(pull),
            identity: self.identity(),
        }
    }

    fn identity(&self) -> Identity {
        let kind = match self.credentials? {
            Credentials::Basic { .. } => "basic",
            Credentials::Identity(_) => "identity",
            Credentials::Registry(_) => "registry",
        };
        let text = format!("{kind} {}", self.credentials?.basic());
        digest(&SHA256, text.as_bytes()).as_ref().try_into().ok()
    }
}

fn encoded(pairs: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(pairs)
        .finish()
}
