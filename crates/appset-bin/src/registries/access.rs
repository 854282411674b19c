//! Authentication: the challenge of each repository, and the tokens for it. Both are cached, so that many images of one repository
//! need one token.

use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use appset_generator::{Bearer, Challenge, Credentials, Digest, Failure, Reference, Token};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use ring::digest::{SHA256, digest};

use crate::registries::transport::{self, Answer, Deadline, Question, Step, Transport, failure};
use crate::registries::ttl_cache::TtlCache;

/// The cache of images for a platform, by reference and digest of the index. So an unchanged index is not read again.
pub(super) type Children = TtlCache<(Reference, Digest), Digest>;

/// The time for which a challenge is cached. If it changes earlier, the registry refuses the token with 401.
const CHALLENGE: Duration = Duration::from_secs(3600);
/// The time for which refused credentials are not sent again, since some registries ban clients that repeat them.
const REFUSED: Duration = Duration::from_secs(60);

/// A client for one image with one set of credentials.
#[derive(Clone, Copy)]
pub(super) struct ImageClient<'a> {
    pub(super) transport: &'a Transport,
    pub(super) caches: &'a Caches,
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

/// The authentication that a repository requires, if any is known to be required.
pub(super) type Authentication = Option<Challenge>;

/// The kind and a hash of credentials, which identify them without containing them.
type Identity = Option<(Discriminant<Credentials>, [u8; 32])>;

/// Registry, repository and credentials.
type RepositoryKey = (String, String, Identity);
/// Token server, service, scope and credentials.
type TokenKey = (String, Option<String>, String, Identity);

/// The caches for all repositories.
#[derive(Default)]
pub(super) struct Caches {
    accesses: TtlCache<RepositoryKey, Authentication>,
    tokens: TtlCache<TokenKey, HeaderValue>,
    refused: TtlCache<TokenKey, Failure>,
    pub(super) children: Children,
}

/// Returns the preferred challenge of a 401.
pub(super) fn challenge(headers: &HeaderMap) -> Authentication {
    let texts = headers.get_all(WWW_AUTHENTICATE).iter();
    Challenge::best(texts.filter_map(|text| text.to_str().ok()))
}

impl ImageClient<'_> {
    /// Returns the authentication that the repository requires.
    ///
    /// If it is unknown, one of several concurrent calls requests `url` without credentials, because some registries do not
    /// challenge a client that sends credentials. If there is no challenge, the response is returned as well.
    pub(super) async fn access(&self, url: &str) -> Result<(Authentication, Option<Answer>), Stop> {
        if let Some(Credentials::Registry(_)) = self.credentials {
            return Ok((None, None));
        }
        let mut answered = None;
        let ask = async {
            let question = self.question(Step::CHALLENGE, Method::GET, url.to_owned());
            let answer = self.transport.ask(&question, None).await?;
            if answer.status() == StatusCode::UNAUTHORIZED {
                return match challenge(answer.headers()) {
                    None => Err(self.refused(&answer)),
                    access => Ok((access, CHALLENGE)),
                };
            }
            answered = Some(answer);
            Ok((None, CHALLENGE))
        };
        let (key, step) = (self.repository_key(), Step::CHALLENGE.0);
        let access = self.caches.accesses.get_or_ask(&key, ask);
        let access = self.deadline.limit(self.image, step, access).await??;
        Ok((access, answered))
    }

    /// Caches the authentication that the repository requires.
    pub(super) fn cache(&self, access: Authentication) {
        let accesses = &self.caches.accesses;
        accesses.put(self.repository_key(), access, CHALLENGE);
    }

    /// Returns the `Authorization` header for `access`.
    pub(super) async fn authorization(
        &self,
        access: &Authentication,
    ) -> Result<Option<HeaderValue>, Stop> {
        match (access, self.credentials) {
            (_, Some(Credentials::Registry(token))) => Ok(Some(self.header("Bearer", token)?)),
            (None, _) => Ok(None),
            (Some(Challenge::Basic), Some(_)) => self.basic(),
            (Some(Challenge::Basic), None) => Err(Stop::Refused(failure(
                self.image,
                "requires credentials, and dockerConfig has none for it",
            ))),
            (Some(Challenge::Bearer(bearer)), _) => self.token(bearer).await.map(Some),
        }
    }

    /// Removes the token for `access` from the cache, because the registry refused it.
    pub(super) fn remove_token(&self, access: &Authentication) {
        if let Some(Challenge::Bearer(bearer)) = access {
            self.caches.tokens.remove(&self.token_key(bearer));
        }
    }

    /// Whether the same token is sent for both.
    pub(super) fn is_same(&self, one: &Authentication, other: &Authentication) -> bool {
        match (one, other) {
            (Some(Challenge::Bearer(one)), Some(Challenge::Bearer(other))) => {
                self.token_key(one) == self.token_key(other)
            }
            (one, other) => one == other,
        }
    }

    /// Returns the header with a token, from the cache or from the token server.
    async fn token(&self, bearer: &Bearer) -> Result<HeaderValue, Stop> {
        let (key, step) = (self.token_key(bearer), Step::TOKEN.0);
        let ask = async {
            if let Some(failure) = self.caches.refused.get(&key) {
                return Err(Stop::Refused(failure));
            }
            let answer = self.fetch(bearer, &key.2).await?;
            if answer.status() != StatusCode::OK {
                let stop = self.no_token(&answer);
                if let Stop::Refused(failure) = &stop {
                    let refused = &self.caches.refused;
                    refused.put(key.clone(), failure.clone(), REFUSED);
                }
                return Err(stop);
            }
            let token = Token::from_body(answer.body());
            let token = token.ok_or_else(|| failure(self.image, "sent no token"))?;
            let header = self.header("Bearer", &token.text)?;
            Ok((header, Duration::from_secs(token.seconds)))
        };
        let token = self.caches.tokens.get_or_ask(&key, ask);
        self.deadline.limit(self.image, step, token).await?
    }

    /// Requests a token. A refresh token is sent by POST, or by GET if the server refuses POST. Other credentials are sent by GET.
    async fn fetch(&self, bearer: &Bearer, scope: &str) -> Result<Answer, Stop> {
        let invalid = |_| failure(self.image, "has an invalid address of a token server");
        let address = bearer.realm.parse().map_err(invalid)?;
        let checked = transport::check_address(&address, self.image);
        checked.map_err(|what| failure(self.image, format!("{what}, as its token server")))?;
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
                ..self.question(Step::TOKEN, Method::POST, bearer.realm.clone())
            };
            let answer = self.transport.ask(&question, None).await?;
            if !matches!(answer.status().as_u16(), 400 | 401 | 404 | 405) {
                return Ok(answer);
            }
        }
        let mut pairs: Vec<_> = scope.split(' ').map(|scope| ("scope", scope)).collect();
        pairs.extend(service.map(|service| ("service", service)));
        let separator = if bearer.realm.contains('?') { '&' } else { '?' };
        let url = format!("{}{separator}{}", bearer.realm, encoded(&pairs));
        let question = self.question(Step::TOKEN, Method::GET, url);
        Ok(self.transport.ask(&question, self.basic()?).await?)
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
        let what = match status {
            401 | 403 => format!("refused a token with status {status}; {sent}"),
            _ => format!("sent no token, but status {status}"),
        };
        self.stop(answer, what)
    }

    /// Makes the failure for an unexpected status of the registry.
    pub(super) fn refused(&self, answer: &Answer) -> Stop {
        let status = answer.status();
        let wait = transport::retry_after(answer.headers(), std::time::SystemTime::now());
        let remedy = match (status.as_u16(), self.credentials, wait) {
            (401 | 403, Some(_), _) => {
                "check that the credentials in dockerConfig are valid and may read the repository"
            }
            (401 | 403, None, _) => {
                "check that dockerConfig has credentials that may read the repository"
            }
            (_, _, Some(wait)) => &format!("it refuses requests for {} s", wait.as_secs()),
            (429, _, _) => "it requires fewer requests",
            (412, _, _) => "a policy of its project forbids the image",
            _ if status.is_redirection() => "configure the registry to which it redirects",
            _ => "check the registry",
        };
        let what = format!("answered with status {}: {remedy}", status.as_u16());
        self.stop(answer, what)
    }

    fn stop(&self, answer: &Answer, what: String) -> Stop {
        let failure = failure(self.image, what);
        match answer.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Stop::Refused(failure),
            _ => Stop::Failed(failure),
        }
    }

    /// Makes a request about the image.
    pub(super) fn question(&self, step: Step, method: Method, url: String) -> Question<'_> {
        Question {
            image: self.image,
            deadline: self.deadline,
            step,
            method,
            url,
            form: None,
        }
    }

    /// Returns the header with the credentials, if there are any.
    fn basic(&self) -> Result<Option<HeaderValue>, Stop> {
        let header = |credentials: &Credentials| self.header("Basic", &credentials.basic());
        self.credentials.map(header).transpose()
    }

    fn header(&self, scheme: &str, text: &str) -> Result<HeaderValue, Stop> {
        let header = HeaderValue::from_str(&format!("{scheme} {text}"));
        let what = "has a token or credentials that a header cannot contain";
        let mut header = header.map_err(|_| failure(self.image, what))?;
        header.set_sensitive(true);
        Ok(header)
    }

    fn repository_key(&self) -> RepositoryKey {
        let (registry, repository) = (&self.image.registry, &self.image.repository);
        (registry.clone(), repository.clone(), self.identity())
    }

    fn token_key(&self, bearer: &Bearer) -> TokenKey {
        let pull = || format!("repository:{}:pull", self.image.full_repository());
        let scope = bearer.scope.clone().unwrap_or_else(pull);
        let (realm, service) = (bearer.realm.clone(), bearer.service.clone());
        (realm, service, scope, self.identity())
    }

    fn identity(&self) -> Identity {
        let credentials = self.credentials?;
        let hash = digest(&SHA256, credentials.basic().as_bytes());
        Some((discriminant(credentials), hash.as_ref().try_into().ok()?))
    }
}

fn encoded(pairs: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(pairs)
        .finish()
}
