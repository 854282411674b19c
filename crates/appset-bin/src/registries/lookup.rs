//! The lookup of one image in its registry, with the OCI distribution API.
//!
//! An image is missing only after a 404 that names the manifest or repository as unknown, from a registry that would show an
//! existing image to this client. Everything else except a digest is a failure, after which Argo CD keeps its Applications.

use std::collections::BTreeSet;

use appset_generator::{
    Challenge, Choice, Digest, Failure, Platform, Proof, Unknown, check_manifest, choose,
    is_tag_list, platform_of, unknown,
};
use axum::http::{Method, StatusCode};

use crate::registries::access::{Authentication, ImageClient, Stop, challenge};
use crate::registries::transport::{Answer, Step, failure};

/// The maximum depth of nested indexes.
const DEPTH: usize = 3;
/// The maximum number of indexes of one image.
const INDEXES: usize = 8;

impl ImageClient<'_> {
    /// Returns the digest, or `None` if the image is missing.
    pub(super) async fn digest(&self) -> Result<Option<Digest>, Stop> {
        let image = self.image;
        let manifest = format!("manifests/{}", image.tag);
        let (_, first) = self.access(&self.url(&manifest)).await?;
        let is_answer =
            |answer: &Answer| matches!(answer.status(), StatusCode::OK | StatusCode::NOT_FOUND);
        if let Some(answer) = first.filter(is_answer) {
            return self.evaluate(&answer).await;
        }
        let head = self.ask(Step::MANIFEST, Method::HEAD, &manifest).await?;
        // For these statuses a GET is needed, because its body has the reason.
        match head.status() {
            StatusCode::OK => {
                let said = head.headers().get("docker-content-digest");
                let digest = said.and_then(|said| Digest::parse(said.to_str().ok()?));
                let known = digest.and_then(|digest| match image.platform {
                    None => Some(digest),
                    Some(_) => self.caches.children.get(&(image.clone(), digest)),
                });
                if known.is_some() {
                    return Ok(known);
                }
            }
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::FORBIDDEN => {}
            _ => return Err(self.refused(&head)),
        }
        let answer = self.ask(Step::MANIFEST, Method::GET, &manifest).await?;
        self.evaluate(&answer).await
    }

    /// Evaluates the response to a GET of the manifest.
    async fn evaluate(&self, answer: &Answer) -> Result<Option<Digest>, Stop> {
        const NO_PROOF: &str = "reported it as unknown, which proves nothing with pullThrough or proof: none: it fetches from another registry, whose failures look the same";
        match (answer.status(), unknown(answer.body()), self.image.proof) {
            (StatusCode::OK, _, _) => self.of_manifest(answer).await.map(Some),
            (StatusCode::NOT_FOUND, Some(_), Proof::None) => Err(self.failure(NO_PROOF)),
            (StatusCode::NOT_FOUND, Some(Unknown::Manifest), Proof::Authorized) => Ok(None),
            (StatusCode::NOT_FOUND, Some(Unknown::Manifest), Proof::TagList) => self.listed().await,
            (StatusCode::NOT_FOUND, Some(Unknown::Repository), _) => self.without_repository(),
            _ => Err(self.refused(answer)),
        }
    }

    async fn of_manifest(&self, answer: &Answer) -> Result<Digest, Stop> {
        check_manifest(answer.body()).map_err(|what| self.failure(what))?;
        let own = self.hash(answer)?;
        let Some(platform) = &self.image.platform else {
            return Ok(own);
        };
        let child = self.child(platform, answer, &own).await?;
        if child != own && self.image.verifies_child {
            let path = format!("manifests/{}", child.as_str());
            let head = self.ask(Step::MANIFEST, Method::HEAD, &path).await?;
            if head.status() != StatusCode::OK {
                let (name, status) = (child.as_str(), head.status().as_u16());
                return Err(self.failure(format!(
                    "has an index that names {name}, for which it answers with status {status}"
                )));
            }
        }
        let hour = std::time::Duration::from_secs(3600);
        let key = (self.image.clone(), own);
        self.caches.children.put(key, child.clone(), hour);
        Ok(child)
    }

    /// Returns the image for `platform` in a manifest: the image itself, a child of an index, or a child of a nested index.
    async fn child(
        &self,
        platform: &Platform,
        manifest: &Answer,
        own: &Digest,
    ) -> Result<Digest, Stop> {
        let mut there = BTreeSet::new();
        let mut seen = BTreeSet::from([own.as_str().to_owned()]);
        let mut level = vec![manifest.body().clone()];
        for _ in 0..DEPTH {
            let mut next = Vec::new();
            for index in level {
                let choice = choose(&index, platform);
                match choice.map_err(|what| self.failure(what))? {
                    Choice::Child(child) => return Ok(child),
                    Choice::Image { .. } if self.image.trusts_single => return Ok(own.clone()),
                    Choice::Image { configuration } => {
                        let found = self.configured_platform(&configuration).await?;
                        if platform.runs(&found) {
                            return Ok(own.clone());
                        }
                        there.insert(found.to_string());
                    }
                    Choice::None {
                        nested,
                        there: more,
                    } => {
                        there.extend(more.iter().map(ToString::to_string));
                        next.extend(nested);
                    }
                }
            }
            if next.is_empty() {
                let there: Vec<_> = there.iter().map(String::as_str).collect();
                let there = Some(there.join(", ")).filter(|there| !there.is_empty());
                let image = self.image;
                let missing = Failure::MissingPlatform {
                    image: format!("{}:{}", image.name(), image.tag),
                    platform: platform.to_string(),
                    there: there.unwrap_or_else(|| "no platform".to_owned()),
                };
                return Err(missing.into());
            }
            level = Vec::new();
            for digest in next {
                if !seen.insert(digest.as_str().to_owned()) {
                    return Err(self.failure("has an index that contains itself"));
                }
                if seen.len() > INDEXES {
                    let what = format!("has more than {INDEXES} indexes for one image");
                    return Err(self.failure(what));
                }
                let path = format!("manifests/{}", digest.as_str());
                let answer = self.ask(Step::INDEX, Method::GET, &path).await?;
                level.push(self.content(&answer, &digest)?);
            }
        }
        Err(self.failure(format!("has indexes that are nested deeper than {DEPTH}")))
    }

    async fn configured_platform(&self, configuration: &Digest) -> Result<Platform, Stop> {
        let path = format!("blobs/{}", configuration.as_str());
        let answer = self.ask(Step::CONFIGURATION, Method::GET, &path).await?;
        let body = self.content(&answer, configuration)?;
        platform_of(&body).map_err(|what| self.failure(what))
    }

    /// Returns the body of a response, after checking that it has the digest.
    fn content(&self, answer: &Answer, digest: &Digest) -> Result<axum::body::Bytes, Stop> {
        if answer.status() != StatusCode::OK {
            return Err(self.refused(answer));
        }
        let hash = sha256(answer.body()).ok_or(Failure::Internal)?;
        if hash != *digest {
            let (name, hash) = (digest.as_str(), hash.as_str());
            let what = format!("was asked for {name}, and sent a body with the digest {hash}");
            return Err(self.failure(what));
        }
        Ok(answer.body().clone())
    }

    /// Returns the digest of a manifest, which is its hash. A different digest in the header is a failure.
    fn hash(&self, answer: &Answer) -> Result<Digest, Stop> {
        let hash = sha256(answer.body()).ok_or(Failure::Internal)?;
        let said = answer.headers().get("docker-content-digest");
        let said = said.map(|said| said.to_str().unwrap_or("no text"));
        match said.filter(|said| *said != hash.as_str()) {
            None => Ok(hash),
            Some(said) => Err(self.failure(format!(
                "sent the digest {said:.80} in a header, but the manifest has {}",
                hash.as_str()
            ))),
        }
    }

    /// Checks that the registry shows the tags of the repository, so that the tag is proven to be missing.
    async fn listed(&self) -> Result<Option<Digest>, Stop> {
        let asked = self.ask(Step::TAGS, Method::GET, "tags/list?n=1");
        let tags = match asked.await {
            // Listing tags may need a different permission from reading the manifest.
            Err(Stop::Refused(_)) => return Err(self.unlisted("the token is refused")),
            tags => tags?,
        };
        match (tags.status(), unknown(tags.body())) {
            (StatusCode::OK, _) if is_tag_list(tags.body()) => Ok(None),
            (StatusCode::OK, _) => Err(self.unlisted("the response is not a list of tags")),
            (StatusCode::NOT_FOUND, Some(_)) => self.without_repository(),
            (status, _) => Err(self.unlisted(&format!("status {}", status.as_u16()))),
        }
    }

    /// Evaluates a missing repository: nothing was pushed to it yet, or its name is misspelt.
    fn without_repository(&self) -> Result<Option<Digest>, Stop> {
        if self.image.may_lack_repository {
            return Ok(None);
        }
        Err(self.failure("has no such repository: correct its name, or set onMissingRepository: missing if nothing was pushed to it yet"))
    }

    fn unlisted(&self, why: &str) -> Stop {
        self.failure(format!("has no such image, but its tags cannot be read either ({why}), so this proves nothing: grant the permission to list tags (ecr:ListImages, or metadata_read on ACR), or set proof: authorized if the registry never hides an image"))
    }

    /// Sends a request about the repository. A refused token is replaced once.
    async fn ask(&self, step: Step, method: Method, path: &str) -> Result<Answer, Stop> {
        let manifest = self.url(&format!("manifests/{}", self.image.tag));
        let (access, _) = self.access(&manifest).await?;
        let question = self.question(step, method, self.url(path));
        let authorization = self.authorization(&access).await?;
        let answer = self.transport.ask(&question, authorization).await?;
        let Some(other) = self.renewed(&access, &answer) else {
            return Ok(answer);
        };
        self.remove_token(&access);
        let authorization = self.authorization(&other).await?;
        let answer = self.transport.ask(&question, authorization).await?;
        if path.starts_with("manifests/") && answer.status() != StatusCode::UNAUTHORIZED {
            self.cache(other);
        }
        Ok(answer)
    }

    /// Returns the URL of `path` in the repository. Docker Hub's API has another host.
    fn url(&self, path: &str) -> String {
        let image = self.image;
        let scheme = if image.plain_http { "http" } else { "https" };
        let host = match image.registry.as_str() {
            "docker.io" => "registry-1.docker.io",
            host => host,
        };
        let repository = image.full_repository();
        format!("{scheme}://{host}/v2/{repository}/{path}")
    }

    /// Returns the authentication for a second attempt after `answer`, if a second attempt can succeed.
    fn renewed(&self, access: &Authentication, answer: &Answer) -> Option<Authentication> {
        match (answer.status(), access) {
            (StatusCode::UNAUTHORIZED, _) => {
                let wanted = challenge(answer.headers());
                let is_expired = matches!(&wanted, Some(Challenge::Bearer(bearer)) if bearer.error.as_deref() == Some("invalid_token"));
                let may_pass = is_expired || !self.is_same(access, &wanted);
                (wanted.is_some() && may_pass).then_some(wanted)
            }
            // ECR Public sends 400 for an expired token.
            (StatusCode::BAD_REQUEST, Some(Challenge::Bearer(_))) => Some(access.clone()),
            _ => None,
        }
    }

    fn failure(&self, what: impl Into<String>) -> Stop {
        failure(self.image, what).into()
    }
}

fn sha256(bytes: &[u8]) -> Option<Digest> {
    Digest::from_sha256(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}
