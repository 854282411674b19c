//! One image, one registry: OCI's distribution API.
//!
//! Only a 404 that says what is unknown, of a registry that would show it, means that an image is not there. Everything else
//! that is not the digest is a failure, after which Argo CD keeps what it has.

use std::collections::BTreeSet;

use appset_generator::{
    Choice, Digest, Failure, Platform, Proof, Unknown, check_manifest, choose, is_tag_list,
    platform_of, unknown,
};
use axum::http::{Method, StatusCode};

use crate::registries::access::{Access, Asker, Stop, challenge};
use crate::registries::transport::{Answer, CONFIGURATION, MANIFEST, Question, SHORT, failure};
use crate::registries::ttl_cache::TtlCache;

/// Indexes within indexes are read down to this depth.
const DEPTH: usize = 3;
/// Most indexes of one image.
const INDEXES: usize = 8;

/// What platforms' images were in which index, so that an index that did not change is not read again.
pub(super) type Children = TtlCache<(appset_generator::Reference, Digest), Digest>;

/// The search for one image's digest with one set of credentials.
pub(super) struct Lookup<'a> {
    pub(super) asker: Asker<'a>,
    pub(super) children: &'a Children,
}

impl Lookup<'_> {
    /// The digest; nothing when the image is not there.
    pub(super) async fn digest(&self) -> Result<Option<Digest>, Stop> {
        const STEP: &str = "waiting for the manifest";
        let image = self.asker.image;
        let manifest = format!("manifests/{}", image.tag);
        let (_, first) = self.asker.access(&self.url(&manifest)).await?;
        let is_answer =
            |answer: &Answer| matches!(answer.status(), StatusCode::OK | StatusCode::NOT_FOUND);
        if let Some(answer) = first.filter(is_answer) {
            return self.judge(&answer).await;
        }
        let head = self.ask(Method::HEAD, &manifest, STEP, SHORT).await?;
        // The body of a GET says what HEAD cannot.
        match head.status() {
            StatusCode::OK => match (header(&head), &image.platform) {
                (Some(digest), None) => return Ok(Some(digest)),
                (Some(digest), Some(_)) => {
                    if let Some(child) = self.children.get(&(image.clone(), digest)) {
                        return Ok(Some(child));
                    }
                }
                (None, _) => {}
            },
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::FORBIDDEN => {}
            _ => return Err(self.asker.refused(&head)),
        }
        let answer = self.ask(Method::GET, &manifest, STEP, MANIFEST).await?;
        self.judge(&answer).await
    }

    /// What the answer to a GET of the manifest means.
    async fn judge(&self, answer: &Answer) -> Result<Option<Digest>, Stop> {
        match (answer.status(), unknown(answer.body())) {
            (StatusCode::OK, _) => self.of_manifest(answer).await.map(Some),
            (StatusCode::NOT_FOUND, Some(Unknown::Manifest)) => self.missing().await,
            (StatusCode::NOT_FOUND, Some(Unknown::Repository)) => self.without_repository(),
            _ => Err(self.asker.refused(answer)),
        }
    }

    async fn of_manifest(&self, answer: &Answer) -> Result<Digest, Stop> {
        check_manifest(answer.body()).map_err(|error| self.failure(error.to_string()))?;
        let own = self.hash(answer)?;
        let Some(platform) = &self.asker.image.platform else {
            return Ok(own);
        };
        let child = self.child(platform, answer, &own).await?;
        if child != own && self.asker.image.verifies_child {
            let path = format!("manifests/{}", child.as_str());
            let head = self
                .ask(Method::HEAD, &path, "waiting for the manifest", SHORT)
                .await?;
            if head.status() != StatusCode::OK {
                let (name, status) = (child.as_str(), head.status().as_u16());
                return Err(self.failure(format!(
                    "has an index that names {name}, for which it answers with status {status}"
                )));
            }
        }
        let hour = std::time::Duration::from_secs(3600);
        let key = (self.asker.image.clone(), own);
        self.children.put(key, child.clone(), hour);
        Ok(child)
    }

    /// The image for `platform` in a manifest, in its index, or in an index of that.
    async fn child(
        &self,
        platform: &Platform,
        manifest: &Answer,
        own: &Digest,
    ) -> Result<Digest, Stop> {
        const STEP: &str = "waiting for an index";
        let mut there = BTreeSet::new();
        let mut seen = BTreeSet::from([own.as_str().to_owned()]);
        let mut level = vec![manifest.body().clone()];
        for _ in 0..DEPTH {
            let mut next = Vec::new();
            for index in level {
                let choice =
                    choose(&index, platform).map_err(|error| self.failure(error.to_string()))?;
                match choice {
                    Choice::Child(child) => return Ok(child),
                    Choice::Image { .. } if self.asker.image.trusts_single => {
                        return Ok(own.clone());
                    }
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
                return Err(self.no_platform(platform, &there).into());
            }
            level = Vec::new();
            for digest in next {
                if !seen.insert(digest.as_str().to_owned()) {
                    return Err(self.failure("has an index that is in itself"));
                }
                if seen.len() > INDEXES {
                    return Err(
                        self.failure(format!("has more than {INDEXES} indexes for one image"))
                    );
                }
                let path = format!("manifests/{}", digest.as_str());
                let answer = self.ask(Method::GET, &path, STEP, MANIFEST).await?;
                level.push(self.content(&answer, &digest)?);
            }
        }
        Err(self.failure(format!("has indexes within indexes deeper than {DEPTH}")))
    }

    async fn configured_platform(&self, configuration: &Digest) -> Result<Platform, Stop> {
        const STEP: &str = "waiting for the image's configuration";
        let path = format!("blobs/{}", configuration.as_str());
        let answer = self.ask(Method::GET, &path, STEP, CONFIGURATION).await?;
        let body = self.content(&answer, configuration)?;
        platform_of(&body).map_err(|error| self.failure(error.to_string()))
    }

    /// The body of an answer, which has to be what `digest` names.
    fn content(&self, answer: &Answer, digest: &Digest) -> Result<axum::body::Bytes, Stop> {
        if answer.status() != StatusCode::OK {
            return Err(self.asker.refused(answer));
        }
        let hash = sha256(answer.body());
        if hash.as_ref() != Some(digest) {
            let hash = hash.as_ref().map_or("", Digest::as_str);
            let name = digest.as_str();
            return Err(self.failure(format!(
                "was asked for {name}, and sent what has the digest {hash}"
            )));
        }
        Ok(answer.body().clone())
    }

    /// The digest of a manifest: its hash, which the header must not contradict.
    fn hash(&self, answer: &Answer) -> Result<Digest, Stop> {
        let hash = sha256(answer.body()).ok_or(Failure::Internal)?;
        let said = answer.headers().get("docker-content-digest");
        let said = said.map(|said| said.to_str().unwrap_or("no text"));
        match said.filter(|said| *said != hash.as_str()) {
            None => Ok(hash),
            Some(said) => {
                let said: String = said.chars().take(80).collect();
                let hash = hash.as_str();
                Err(self.failure(format!(
                    "says that the digest is {said}, but the manifest has {hash}"
                )))
            }
        }
    }

    /// Proves that the tag is not there.
    async fn missing(&self) -> Result<Option<Digest>, Stop> {
        match self.asker.image.proof {
            Proof::Authorized => Ok(None),
            Proof::None => Err(self.no_proof()),
            Proof::TagList => {
                let tags = self
                    .ask(Method::GET, "tags/list?n=1", "waiting for its tags", SHORT)
                    .await;
                let tags = match tags {
                    // Reading a blob may need another permission than reading the manifest.
                    Err(Stop::Refused(_)) => {
                        return Err(self.unlisted("a token for them is refused"));
                    }
                    tags => tags?,
                };
                match (tags.status(), unknown(tags.body())) {
                    (StatusCode::OK, _) if is_tag_list(tags.body()) => Ok(None),
                    (StatusCode::OK, _) => Err(self.unlisted("the answer is no list of tags")),
                    (StatusCode::NOT_FOUND, Some(_)) => self.without_repository(),
                    (status, _) => Err(self.unlisted(&format!("status {}", status.as_u16()))),
                }
            }
        }
    }

    /// The repository is not there: never pushed to, or misspelt.
    fn without_repository(&self) -> Result<Option<Digest>, Stop> {
        let image = self.asker.image;
        if image.proof == Proof::None {
            return Err(self.no_proof());
        }
        if image.may_lack_repository {
            return Ok(None);
        }
        Err(self.failure("has no such repository: correct its name, or set onMissingRepository: missing if nothing was pushed to it yet"))
    }

    fn no_proof(&self) -> Stop {
        self.failure("says that it is unknown, which proves nothing where pullThrough or proof: none is set: it fetches from another registry, whose failures look the same")
    }

    fn unlisted(&self, why: &str) -> Stop {
        self.failure(format!("has no such image, but its tags cannot be read either ({why}), so that proves nothing: grant the right to list them (ecr:ListImages, or metadata_read on ACR), or set proof: authorized for a registry that never hides an image"))
    }

    fn no_platform(&self, platform: &Platform, there: &BTreeSet<String>) -> Failure {
        let image = self.asker.image;
        let there: Vec<_> = there.iter().map(String::as_str).collect();
        Failure::MissingPlatform {
            image: format!("{}:{}", image.name(), image.tag),
            platform: platform.to_string(),
            there: match there.join(", ") {
                none if none.is_empty() => "no platform".to_owned(),
                list => list,
            },
        }
    }

    /// Asks for something of the repository. A token that does not do is replaced once.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        step: &'static str,
        limit: usize,
    ) -> Result<Answer, Stop> {
        let asker = &self.asker;
        let manifest = self.url(&format!("manifests/{}", asker.image.tag));
        let (access, _) = asker.access(&manifest).await?;
        let question = asker.question(step, method, self.url(path), None, limit);
        let answer = self.send(&question, &access).await?;
        let Some(other) = self.renewed(&access, &answer) else {
            return Ok(answer);
        };
        asker.forget(&access);
        let answer = self.send(&question, &other).await?;
        if path.starts_with("manifests/") && answer.status() != StatusCode::UNAUTHORIZED {
            asker.learn(other);
        }
        Ok(answer)
    }

    /// The address of something of the repository. Docker Hub's API is at another host.
    fn url(&self, path: &str) -> String {
        let image = self.asker.image;
        let scheme = if image.plain_http { "http" } else { "https" };
        let host = match image.registry.as_str() {
            "docker.io" => "registry-1.docker.io",
            host => host,
        };
        format!("{scheme}://{host}/v2/{}/{path}", self.asker.repository())
    }

    async fn send(&self, question: &Question<'_>, access: &Access) -> Result<Answer, Stop> {
        let question = Question {
            authorization: self.asker.authorization(access).await?,
            method: question.method.clone(),
            url: question.url.clone(),
            form: None,
            ..*question
        };
        Ok(self.asker.transport.ask(&question).await?)
    }

    /// What to send instead of what the registry did not take, if another try makes sense.
    fn renewed(&self, access: &Access, answer: &Answer) -> Option<Access> {
        match (answer.status(), access) {
            (StatusCode::UNAUTHORIZED, _) => {
                let wanted = challenge(answer.headers())?;
                let is_expired = matches!(&wanted, Access::Bearer(bearer) if bearer.error.as_deref() == Some("invalid_token"));
                (is_expired || !self.asker.is_same(access, &wanted)).then_some(wanted)
            }
            // ECR Public says so when the token has expired.
            (StatusCode::BAD_REQUEST, Access::Bearer(_)) => Some(access.clone()),
            _ => None,
        }
    }

    fn failure(&self, what: impl Into<String>) -> Stop {
        failure(self.asker.image, what).into()
    }
}

/// The digest that an answer is about, if it says one that can be pulled.
fn header(answer: &Answer) -> Option<Digest> {
    let digest = answer.headers().get("docker-content-digest")?;
    Digest::parse(digest.to_str().ok()?)
}

fn sha256(bytes: &[u8]) -> Option<Digest> {
    Digest::from_sha256(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}
