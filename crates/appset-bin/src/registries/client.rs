//! One image, one registry: OCI's distribution API, and Docker's token authentication in front of it.
//!
//! Only a 404 that says what is unknown means that an image is not there. Everything else that is not the digest is a
//! failure, after which Argo CD keeps what it has.

use std::path::Path;

use anyhow::Context as _;
use appset_generator::{
    ACCEPT, Challenge, Digest, Failure, Reference, is_unknown, platform_digest,
};
use axum::body::Bytes;
use axum::http::header::{ACCEPT as ACCEPT_HEADER, AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;
use serde_json::Value;

use crate::registries::authorities;
use crate::registries::connector::Connector;

/// Sends requests over connections that it keeps.
pub(super) type Client = legacy::Client<HttpsConnector<Connector>, Empty<Bytes>>;

type Response = axum::http::Response<Bytes>;

/// Longest body; registries refuse longer manifests.
const MAX_BODY: usize = 4 << 20;

/// A client without connections.
pub(super) fn new() -> anyhow::Result<Client> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(authorities::trusted())
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(Connector::from_env());
    Ok(legacy::Client::builder(TokioExecutor::new()).build(connector))
}

/// The search for one image's digest.
pub(super) struct Lookup<'a> {
    client: &'a Client,
    image: &'a Reference,
    /// User and password as `docker login` keeps them, in base64.
    credentials: Option<String>,
    authorization: Option<HeaderValue>,
}

impl<'a> Lookup<'a> {
    /// Reads the credentials anew, since they are short-lived with some registries.
    pub(super) fn new(
        client: &'a Client,
        image: &'a Reference,
        docker_config: Option<&Path>,
    ) -> Result<Self, Failure> {
        let read = docker_config.map(|file| credentials(file, &image.registry));
        let credentials = read.transpose().map_err(|error| {
            tracing::error!("{error:#}");
            Failure::Upstream("dockerConfig cannot be used: see the generator's log".to_owned())
        })?;
        Ok(Self {
            client,
            image,
            credentials: credentials.flatten(),
            authorization: None,
        })
    }

    /// The digest; nothing when the image is not there.
    pub(super) async fn digest(mut self) -> Result<Option<Digest>, Failure> {
        let manifest = format!("manifests/{}", self.image.tag);
        if self.image.platform.is_none() {
            let head = self.ask(Method::HEAD, &manifest).await?;
            let digest = head.headers().get("docker-content-digest");
            let digest = digest.and_then(|digest| Digest::parse(digest.to_str().ok()?));
            match head.status() {
                StatusCode::OK if digest.is_some() => return Ok(digest),
                // The body of a GET says what HEAD cannot.
                StatusCode::OK | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {}
                status => return Err(self.refused(status)),
            }
        }
        let response = self.ask(Method::GET, &manifest).await?;
        match response.status() {
            StatusCode::OK => self.digest_of(response.body()).map(Some),
            StatusCode::NOT_FOUND if is_unknown(response.body()) => {
                if self.image.require_repository {
                    self.require_repository().await?;
                }
                Ok(None)
            }
            status => Err(self.refused(status)),
        }
    }

    fn digest_of(&self, manifest: &[u8]) -> Result<Digest, Failure> {
        let of_platform = platform_digest(manifest, self.image.platform.as_ref())
            .map_err(|error| self.failure(&error.to_string()))?;
        let hash = ring::digest::digest(&ring::digest::SHA256, manifest);
        of_platform
            .or_else(|| Digest::from_sha256(hash.as_ref()))
            .ok_or(Failure::Internal)
    }

    /// A repository that cannot be read may well have the image.
    async fn require_repository(&mut self) -> Result<(), Failure> {
        match self.ask(Method::GET, "tags/list?n=1").await?.status() {
            StatusCode::OK => Ok(()),
            status => Err(self.failure(&format!(
                "has no such image, but its tags cannot be read either (status {}), so that proves nothing: check the repository and dockerConfig, or set requireRepository: false",
                status.as_u16()
            ))),
        }
    }

    /// Asks for something of the repository; once more with a token if the registry wants one.
    async fn ask(&mut self, method: Method, path: &str) -> Result<Response, Failure> {
        let (host, prefix) = match self.image.registry.as_str() {
            // Docker Hub's API is elsewhere, and its own images have a folder that nobody writes.
            "docker.io" if self.image.repository.contains('/') => ("registry-1.docker.io", ""),
            "docker.io" => ("registry-1.docker.io", "library/"),
            host => (host, ""),
        };
        let scheme = if self.image.plain_http {
            "http"
        } else {
            "https"
        };
        let repository = format!("{prefix}{}", self.image.repository);
        let url = format!("{scheme}://{host}/v2/{repository}/{path}");
        let response = self
            .send(method.clone(), &url, self.authorization.clone())
            .await?;
        if response.status() != StatusCode::UNAUTHORIZED || self.authorization.is_some() {
            return Ok(response);
        }
        let challenge = response.headers().get(WWW_AUTHENTICATE);
        let challenge = challenge.and_then(|header| Challenge::parse(header.to_str().ok()?));
        let Some(challenge) = challenge else {
            return Ok(response);
        };
        self.authorization = Some(self.authorize(challenge, &repository).await?);
        self.send(method, &url, self.authorization.clone()).await
    }

    async fn authorize(
        &self,
        challenge: Challenge,
        repository: &str,
    ) -> Result<HeaderValue, Failure> {
        let basic = self
            .credentials
            .as_ref()
            .map(|basic| format!("Basic {basic}"));
        let header = |text: String| {
            let value = HeaderValue::from_str(&text);
            value.map_err(|_| self.failure("sent a token that is no header"))
        };
        let (realm, service) = match challenge {
            Challenge::Basic => {
                let basic = basic.ok_or_else(|| self.refused(StatusCode::UNAUTHORIZED))?;
                return header(basic);
            }
            Challenge::Bearer { realm, service } => (realm, service),
        };
        if !realm.starts_with("https://") && !self.image.plain_http {
            return Err(self.failure("has its tokens at a place that is not https"));
        }
        let url = token_url(&realm, service.as_deref(), repository);
        let response = self
            .send(Method::GET, &url, basic.map(header).transpose()?)
            .await?;
        if response.status() != StatusCode::OK {
            return Err(self.refused(response.status()));
        }
        let body: Value = serde_json::from_slice(response.body()).unwrap_or_default();
        let token = ["token", "access_token"]
            .iter()
            .find_map(|key| body.get(key)?.as_str());
        let token = token.ok_or_else(|| self.failure("sent no token"))?;
        header(format!("Bearer {token}"))
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        authorization: Option<HeaderValue>,
    ) -> Result<Response, Failure> {
        let url: Uri = url
            .parse()
            .map_err(|_| self.failure("has an address that is none"))?;
        let mut request = Request::builder()
            .method(method)
            .uri(url)
            .header(ACCEPT_HEADER, ACCEPT)
            .body(Empty::new())
            .map_err(|_| Failure::Internal)?;
        if let Some(authorization) = authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization);
        }
        let unreachable =
            |error: anyhow::Error| self.failure(&format!("cannot be reached: {error:#}"));
        let response = self.client.request(request).await;
        let (head, body) = response
            .map_err(|error| unreachable(error.into()))?
            .into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await;
        let body = body.map_err(|error| unreachable(anyhow::anyhow!(error)))?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    fn refused(&self, status: StatusCode) -> Failure {
        let remedy = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "check that dockerConfig has credentials that may read it"
            }
            StatusCode::TOO_MANY_REQUESTS => "it wants fewer requests",
            _ if status.is_redirection() => "name the registry that it leads to",
            _ => "see whether it is well",
        };
        self.failure(&format!(
            "answered with status {}: {remedy}",
            status.as_u16()
        ))
    }

    /// A failure of the registry, which did `what`.
    fn failure(&self, what: &str) -> Failure {
        let image = self.image;
        Failure::Upstream(format!(
            "registry {}, asked for {}:{}, {what}",
            image.registry, image.repository, image.tag
        ))
    }
}

/// Where a token that may read `repository` comes from.
fn token_url(realm: &str, service: Option<&str>, repository: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("scope", &format!("repository:{repository}:pull"));
    if let Some(service) = service {
        query.append_pair("service", service);
    }
    let joint = if realm.contains('?') { '&' } else { '?' };
    format!("{realm}{joint}{}", query.finish())
}

/// What `docker login` keeps for `registry` in a file.
fn credentials(file: &Path, registry: &str) -> anyhow::Result<Option<String>> {
    let shown = file.display();
    let text = std::fs::read(file).with_context(|| format!("{shown} cannot be read"))?;
    let config: Value =
        serde_json::from_slice(&text).with_context(|| format!("{shown} is not JSON"))?;
    let key = match registry {
        "docker.io" => "https://index.docker.io/v1/",
        host => host,
    };
    let auth = config
        .get("auths")
        .and_then(|auths| auths.get(key)?.get("auth")?.as_str());
    Ok(auth.map(str::to_owned))
}
