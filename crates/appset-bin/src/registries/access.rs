//! How a repository lets itself be read: what it challenges with, and the tokens that answer that. Both are remembered, so that
//! many images of one repository cost one token.

use std::sync::Arc;
use std::time::Duration;

use appset_generator::{Bearer, Challenge, Credentials, Failure, Reference, Token};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use ring::digest::{SHA256, digest};
use tokio::sync::Mutex;

use crate::registries::transport::{self, Answer, Deadline, Question, SHORT, Transport, failure};
use crate::registries::ttl_cache::TtlCache;

/// How long a challenge is remembered. One that is out of date is found out by the 401 to its token.
const CHALLENGE: Duration = Duration::from_secs(3600);
/// How long refused credentials are not sent again: some registries ban clients that repeat them.
const REFUSED: Duration = Duration::from_secs(60);

/// Whom to ask, and as whom.
#[derive(Clone, Copy)]
pub(super) struct Asker<'a> {
    pub(super) transport: &'a Transport,
    pub(super) accesses: &'a Accesses,
    pub(super) image: &'a Reference,
    pub(super) deadline: Deadline,
    pub(super) credentials: Option<&'a Credentials>,
}

/// Why an answer did not come.
pub(super) enum Stop {
    /// The credentials do not do; others may.
    Refused(Failure),
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// What has to be sent to a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// No credentials, as far as is known.
    Open,
    /// The credentials.
    Basic,
    /// A token.
    Bearer(Bearer),
}

/// Which credentials, without having them.
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

/// What is known of all repositories.
pub(super) struct Accesses {
    known: TtlCache<RepositoryKey, Access>,
    finding: TtlCache<RepositoryKey, Arc<Mutex<()>>>,
    tokens: TtlCache<TokenKey, HeaderValue>,
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

/// The best challenge of a 401.
pub(super) fn challenge(headers: &HeaderMap) -> Option<Access> {
    let texts = headers.get_all(WWW_AUTHENTICATE).iter();
    Challenge::best(texts.filter_map(|text| text.to_str().ok())).map(|challenge| match challenge {
        Challenge::Basic => Access::Basic,
        Challenge::Bearer(bearer) => Access::Bearer(bearer),
    })
}

impl Asker<'_> {
    /// What the repository wants. Found out by one request for `url` without credentials, since some registries never
    /// challenge a client that sends credentials; one of many calls asks. Without a challenge the answer is returned as well.
    pub(super) async fn access(&self, url: &str) -> Result<(Access, Option<Answer>), Stop> {
        if let Some(Credentials::Registry(_)) = self.credentials {
            return Ok((Access::Open, None));
        }
        let key = self.repository_key();
        if let Some(known) = self.accesses.known.get(&key) {
            return Ok((known, None));
        }
        const STEP: &str = "waiting for the challenge";
        let turn = || Arc::new(Mutex::new(()));
        let turn = self
            .accesses
            .finding
            .get_or_put(key.clone(), CHALLENGE, turn);
        let _turn = self.deadline.limit(self.image, STEP, turn.lock()).await?;
        if let Some(known) = self.accesses.known.get(&key) {
            return Ok((known, None));
        }
        let answer = self
            .transport
            .ask(&self.question(STEP, Method::GET, url.to_owned(), None, transport::MANIFEST))
            .await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            self.learn(Access::Open);
            return Ok((Access::Open, Some(answer)));
        }
        let access = challenge(answer.headers()).ok_or_else(|| self.refused(&answer))?;
        self.learn(access.clone());
        Ok((access, None))
    }

    /// Remembers what the repository wants.
    pub(super) fn learn(&self, access: Access) {
        self.accesses
            .known
            .put(self.repository_key(), access, CHALLENGE);
    }

    /// What to send for `access`.
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
                "wants credentials, and dockerConfig has none for it",
            ))),
            (Access::Bearer(bearer), _) => self.token(bearer).await.map(Some),
        }
    }

    /// Forgets the token for `access`, which the registry does not take any more.
    pub(super) fn forget(&self, access: &Access) {
        if let Access::Bearer(bearer) = access {
            self.accesses.tokens.forget(&self.token_key(bearer));
        }
    }

    /// Whether both are answered with the same token.
    pub(super) fn is_same(&self, one: &Access, other: &Access) -> bool {
        match (one, other) {
            (Access::Bearer(one), Access::Bearer(other)) => {
                self.token_key(one) == self.token_key(other)
            }
            (one, other) => one == other,
        }
    }

    async fn token(&self, bearer: &Bearer) -> Result<HeaderValue, Stop> {
        const STEP: &str = "waiting for a token";
        let key = self.token_key(bearer);
        if let Some(token) = self.accesses.tokens.get(&key) {
            return Ok(token);
        }
        let turn = || Arc::new(Mutex::new(()));
        let turn = self
            .accesses
            .fetching
            .get_or_put(key.clone(), CHALLENGE, turn);
        let _turn = self.deadline.limit(self.image, STEP, turn.lock()).await?;
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

    /// Asks the token server: with a refresh token by POST, and by GET if it has no POST; otherwise by GET.
    async fn fetch(&self, bearer: &Bearer, scope: &str) -> Result<Answer, Stop> {
        const STEP: &str = "waiting for a token";
        let place: Uri = bearer
            .realm
            .parse()
            .map_err(|_| failure(self.image, "has an invalid address for tokens"))?;
        transport::check_place(&place, self.image)
            .map_err(|what| failure(self.image, format!("{what}, for tokens")))?;
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
        let joint = if bearer.realm.contains('?') { '&' } else { '?' };
        let url = format!("{}{joint}{}", bearer.realm, encoded(&pairs));
        let basic = self
            .credentials
            .map(|credentials| format!("Basic {}", credentials.basic()));
        let basic = basic.map(|basic| self.header(basic)).transpose()?;
        let question = self.question(STEP, Method::GET, url, basic, SHORT);
        Ok(self.transport.ask(&question).await?)
    }

    /// What it means that there is no token.
    fn no_token(&self, answer: &Answer) -> Stop {
        let status = answer.status().as_u16();
        let sent = match self.credentials {
            Some(_) => {
                "the credentials of dockerConfig were sent: check that they are right and may read it"
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
                format!("sent no token but status {status}"),
            )),
        }
    }

    /// A failure of the registry that answered with a status of no use.
    pub(super) fn refused(&self, answer: &Answer) -> Stop {
        let status = answer.status();
        let wait = transport::retry_after(answer.headers(), std::time::SystemTime::now());
        let remedy = match (status, self.credentials, wait) {
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, Some(_), _) => {
                "check that the credentials in dockerConfig are right and may read it".to_owned()
            }
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, None, _) => {
                "check that dockerConfig has credentials that may read it".to_owned()
            }
            (_, _, Some(wait)) => format!("it wants no request for {} s", wait.as_secs()),
            (StatusCode::TOO_MANY_REQUESTS, _, _) => "it wants fewer requests".to_owned(),
            (StatusCode::PRECONDITION_FAILED, _, _) => {
                "a policy of its project forbids the image".to_owned()
            }
            _ if status.is_redirection() => "name the registry that it leads to".to_owned(),
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

    /// A question about the image.
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

    /// The repository as the registry's API calls it. Docker Hub's own images are in a folder that their short names leave out.
    pub(super) fn repository(&self) -> String {
        let repository = &self.image.repository;
        if self.image.registry == "docker.io" && !repository.contains('/') {
            return format!("library/{repository}");
        }
        repository.clone()
    }

    fn header(&self, text: String) -> Result<HeaderValue, Stop> {
        let header = HeaderValue::from_str(&text);
        let mut header = header
            .map_err(|_| failure(self.image, "has a token or credentials that are no header"))?;
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
