//! A fake API server in memory, for tests. It lists page by page, watches, reads and writes like a real one, records its
//! requests, and can delay, forbid, refuse, freeze and buffer them, end watches, and discard its history.

#![expect(
    clippy::indexing_slicing,
    reason = "the objects come from tests, not from a peer"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use gloo_types::ObjectKey;
use http::{Method, Request, Response};
use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt as _, Either, Full};
use json_patch::Patch;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{KubeRouteStore, lock};

/// A fake API server. Clones share its state.
#[derive(Clone, Debug, Default)]
pub struct FakeApi(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified of changes of objects and of the behaviour.
    news: watch::Sender<()>,
}

/// The behaviour of the server. By default it answers all requests at once.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Refuses connections.
    pub is_down: bool,
    /// Watches open and end, and deliver nothing. Lists get no answer. Single objects are read and written as usual.
    pub is_frozen: bool,
    /// What open watches send, and their end, is delivered later.
    pub is_buffered: bool,
    /// Lists tell the server no new version, so that a watch without changes has no bookmark, as before release 1.34.
    pub lacks_bookmarks: bool,
    /// Delay of the answer to a list.
    pub list_delay: Duration,
    /// Delay of each event of a watch.
    pub watch_delay: Duration,
    /// Failing requests: `watch routetables`, or `list all routetables` for requests without a namespace.
    pub faults: BTreeMap<String, Fault>,
}

/// What becomes of a failing request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The answer is 403.
    Forbidden,
    /// The answer is 500.
    Broken,
    /// The connection ends after a second.
    Lost,
    /// There is no answer.
    Hangs,
}

#[derive(Debug, Default)]
struct State {
    behaviour: Behaviour,
    /// The failing requests that no request has met yet.
    unmet: BTreeSet<String>,
    /// The newest version of any object.
    version: u64,
    objects: BTreeMap<Id, Value>,
    /// Every change of an object.
    history: Vec<Change>,
    /// The history up to this version is discarded.
    compacted: u64,
    /// The version and the remaining objects of each unfinished list, by `continue` token.
    pages: BTreeMap<String, (u64, Vec<Value>)>,
    /// Requests as `verb kind name`.
    requests: Vec<String>,
    /// The newest version that the server knows of each kind. A watch that begins with it has no bookmark.
    known: BTreeMap<String, u64>,
    /// Number of watches so far.
    watches: u64,
    /// Watches up to this number have ended.
    ended: u64,
}

#[derive(Clone, Debug)]
struct Change {
    version: u64,
    id: Id,
    kind: &'static str,
    object: Value,
}

/// The resource and the key of an object.
type Id = (String, ObjectKey);

/// The object or collection of a path.
struct Target {
    plural: String,
    namespace: Option<String>,
    name: Option<String>,
}

/// How long before the end of a watch its bookmark is sent.
const BOOKMARK: Duration = Duration::from_secs(2);

type Answer = Either<Full<Bytes>, Channel<Bytes, Infallible>>;

impl FakeApi {
    /// Returns a store that sends its requests to this server, with a timeout of 3 s.
    #[must_use]
    pub fn store(&self) -> KubeRouteStore {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { api.answer(request).await }
        });
        KubeRouteStore::with_client(Client::new(service, "default"), Duration::from_secs(3))
    }

    /// Changes the behaviour.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        self.change(|state| {
            let before = state.behaviour.faults.clone();
            change(&mut state.behaviour);
            let faults = state.behaviour.faults.iter();
            let planted = faults.filter(|(request, fault)| before.get(*request) != Some(fault));
            state
                .unmet
                .extend(planted.map(|(request, _)| request.clone()));
        });
    }

    /// Returns the [`Behaviour::faults`] that no request has met: a test with one shows less than it says.
    #[must_use]
    pub fn unmet_faults(&self) -> BTreeSet<String> {
        self.state().unmet.clone()
    }

    /// Creates or replaces an object of the resource `plural`.
    pub fn put(&self, plural: &str, object: Value) {
        self.change(|state| state.write(plural, object));
    }

    /// Deletes an object.
    pub fn delete(&self, plural: &str, key: &ObjectKey) {
        self.change(|state| {
            let id = (plural.to_owned(), key.clone());
            if let Some(object) = state.objects.remove(&id) {
                state.remember(id, "DELETED", object);
            }
        });
    }

    /// Returns an object; `None` if it does not exist.
    #[must_use]
    pub fn get(&self, plural: &str, key: &ObjectKey) -> Option<Value> {
        let id = (plural.to_owned(), key.clone());
        self.state().objects.get(&id).cloned()
    }

    /// Discards the history: watches and `continue` tokens of earlier versions are answered with 410.
    pub fn compact(&self) {
        self.change(|state| {
            state.version += 1;
            state.compacted = state.version;
        });
    }

    /// Ends all open watches.
    pub fn end_watches(&self) {
        self.change(|state| state.ended = state.watches);
    }

    /// Returns the requests since the last call, as `verb kind name`.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state().requests)
    }

    /// Returns the requests since the last call, without watches and lists of all namespaces.
    #[must_use]
    pub fn requests_for_objects(&self) -> Vec<String> {
        let mut requests = self.requests();
        requests.retain(|line| !line.starts_with("list all") && !line.starts_with("watch"));
        requests
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// Changes the state, and wakes the open watches.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.0.news.send_replace(());
        changed
    }

    /// Answers a request, for a test with its own HTTP server.
    ///
    /// # Errors
    /// Returns `Err` while [`Behaviour::is_down`].
    pub async fn answer(&self, request: Request<Body>) -> Result<Response<Answer>, std::io::Error> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(std::io::Error::other)?;
        let query = head.uri.query().unwrap_or_default().split('&');
        let query: BTreeMap<&str, &str> = query.filter_map(|it| it.split_once('=')).collect();
        let target = Target::of(head.uri.path());
        let verb = match (&head.method, &target.name) {
            (&Method::GET, Some(_)) => "get",
            (&Method::GET, None) if query.contains_key("watch") => "watch",
            (&Method::GET, None) => "list",
            (&Method::POST, _) => "create",
            (&Method::DELETE, _) => "delete",
            _ => "patch",
        };
        let behaviour = {
            let mut state = self.state();
            state.requests.push(target.line(verb));
            state.behaviour.clone()
        };
        if behaviour.is_down {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        let of_all = format!("{verb} all {}", target.plural);
        let of_any = format!("{verb} {}", target.plural);
        let mut requests = [of_any, of_all].into_iter();
        if target.namespace.is_some() {
            requests.next_back();
        }
        let fault = requests.find_map(|it| {
            let fault = behaviour.faults.get(&it)?;
            self.state().unmet.remove(&it);
            Some(fault)
        });
        match fault {
            None => {}
            Some(Fault::Forbidden) => return Ok(failure(403, "no")),
            Some(Fault::Broken) => return Ok(failure(500, "etcdserver: request timed out")),
            Some(Fault::Lost) => {
                sleep(Duration::from_secs(1)).await;
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            Some(Fault::Hangs) => std::future::pending().await,
        }
        let body = body.to_bytes();
        if verb == "list" && behaviour.is_frozen {
            std::future::pending::<()>().await;
        }
        Ok(match verb {
            "list" => {
                // It is on its way for as long.
                let answer = self.list(&target, &query);
                sleep(behaviour.list_delay).await;
                answer
            }
            "watch" => self.watch(target, &query),
            "create" => {
                let object: Value = serde_json::from_slice(&body).unwrap_or_default();
                found(&self.change(|state| state.write(&target.plural, object)))
            }
            _ => match self.get(&target.plural, &target.key()) {
                None => failure(404, "not found"),
                Some(object) if verb == "get" => found(&object),
                Some(object) if verb == "patch" => self.patch(&target, object, &body),
                Some(_) => {
                    self.delete(&target.plural, &target.key());
                    found(&json!({"kind": "Status", "status": "Success"}))
                }
            },
        })
    }

    fn patch(&self, target: &Target, mut object: Value, body: &[u8]) -> Response<Answer> {
        let patch: Patch = match serde_json::from_slice(body) {
            Ok(patch) => patch,
            Err(error) => return failure(400, &error.to_string()),
        };
        match json_patch::patch(&mut object, &patch) {
            Ok(()) => found(&self.change(|state| state.write(&target.plural, object))),
            Err(_) => failure(422, "the server rejected our request"),
        }
    }

    fn list(&self, target: &Target, query: &BTreeMap<&str, &str>) -> Response<Answer> {
        let limit = query.get("limit").and_then(|limit| limit.parse().ok());
        let limit: usize = limit.unwrap_or(usize::MAX);
        self.change(|state| state.list(target, limit, query.get("continue").copied()))
    }

    fn watch(&self, target: Target, query: &BTreeMap<&str, &str>) -> Response<Answer> {
        let version = query.get("resourceVersion").and_then(|it| it.parse().ok());
        let version: u64 = version.unwrap_or_default();
        let seconds = query.get("timeoutSeconds").and_then(|it| it.parse().ok());
        let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(60));
        let number = {
            let mut state = self.state();
            state.watches += 1;
            state.watches
        };
        let (lines, buffered) = mpsc::unbounded_channel();
        let (sender, body) = Channel::new(16);
        let watching = self
            .clone()
            .run(target, version, number, end - BOOKMARK, lines);
        tokio::spawn(async move { drop(timeout_at(end, watching).await) });
        tokio::spawn(self.clone().deliver(buffered, sender));
        Response::new(Either::Right(body))
    }

    /// Delivers the lines of a watch.
    async fn deliver(
        self,
        mut lines: mpsc::UnboundedReceiver<String>,
        mut body: Sender<Bytes, Infallible>,
    ) {
        let mut news = self.0.news.subscribe();
        loop {
            let line = lines.recv().await;
            let is_delivered = news.wait_for(|()| !self.state().behaviour.is_buffered);
            drop(is_delivered.await.map(drop));
            let Some(line) = line else { return };
            if body.send_data(line.into()).await.is_err() {
                return;
            }
        }
    }

    /// Writes the lines of a watch of the changes after `version`.
    async fn run(
        self,
        target: Target,
        mut version: u64,
        number: u64,
        bookmark: Instant,
        lines: mpsc::UnboundedSender<String>,
    ) {
        let send = |kind: &str, object: &Value| {
            let line = json!({"type": kind, "object": object});
            // The client may have closed the connection.
            drop(lines.send(format!("{line}\n")));
        };
        let mut news = self.0.news.subscribe();
        let (begin, mut has_bookmark) = (version, false);
        loop {
            news.mark_unchanged();
            let (behaviour, known, is_expired, changes) = {
                let state = self.state();
                if number <= state.ended {
                    return;
                }
                let known = state.known.get(&target.plural).copied();
                let is_expired = version < state.compacted;
                let changes = state
                    .history
                    .iter()
                    .filter(|change| change.version > version && target.has(&change.id));
                let changes: Vec<Change> = changes.cloned().collect();
                (state.behaviour.clone(), known, is_expired, changes)
            };
            if !behaviour.is_frozen {
                if is_expired {
                    let status = status(410, "too old resource version");
                    send("ERROR", &status);
                    return;
                }
                for change in changes {
                    sleep(behaviour.watch_delay).await;
                    version = change.version;
                    send(change.kind, &change.object);
                }
                let known = known.unwrap_or_default();
                if Instant::now() >= bookmark && !has_bookmark && known > begin {
                    has_bookmark = true;
                    version = known;
                    let metadata = json!({"resourceVersion": known.to_string()});
                    let bookmark = json!({"kind": "Any", "apiVersion": "v1", "metadata": metadata});
                    send("BOOKMARK", &bookmark);
                }
            }
            let changed = news.changed();
            match behaviour.is_frozen || Instant::now() >= bookmark {
                true => drop(changed.await),
                false => drop(timeout_at(bookmark, changed).await),
            }
        }
    }
}

impl State {
    fn write(&mut self, plural: &str, mut object: Value) -> Value {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let key = ObjectKey::new(text("namespace"), text("name"));
        let id = (plural.to_owned(), key);
        let (kind, uid, generation) = match self.objects.get(&id) {
            None => ("ADDED", json!(format!("uid-{}", self.version)), 1),
            Some(before) => {
                let metadata = &before["metadata"];
                let generation = metadata["generation"].as_i64().unwrap_or(1);
                let is_changed = before["spec"] != object["spec"];
                let uid = metadata["uid"].clone();
                ("MODIFIED", uid, generation + i64::from(is_changed))
            }
        };
        object["metadata"]["generation"] = json!(generation);
        object["metadata"]["uid"] = uid;
        let object = self.remember(id.clone(), kind, object);
        self.objects.insert(id, object.clone());
        object
    }

    fn list(&mut self, target: &Target, limit: usize, token: Option<&str>) -> Response<Answer> {
        if !self.behaviour.lacks_bookmarks {
            // As if an object of another kind had changed.
            self.version += 1;
            self.known.insert(target.plural.clone(), self.version);
        }
        let (version, mut items) = match token {
            Some(token) => match self.pages.remove(token) {
                Some((version, items)) if version > self.compacted => (version, items),
                _ => return failure(410, "The provided continue parameter is too old"),
            },
            None => {
                let objects = self.objects.iter();
                let selected = objects.filter(|(id, _)| target.has(id));
                let items = selected.map(|(_, object)| object.clone()).collect();
                (self.version, items)
            }
        };
        let rest = items.split_off(limit.min(items.len()));
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if !rest.is_empty() {
            let token = format!("{version}-{}", self.pages.len());
            metadata["continue"] = json!(token);
            self.pages.insert(token, (version, rest));
        }
        found(&json!({"metadata": metadata, "items": items}))
    }

    /// Adds a change of an object to the history, and returns the object with its new version.
    fn remember(&mut self, id: Id, kind: &'static str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.known.insert(id.0.clone(), self.version);
        self.history.push(Change {
            version: self.version,
            id,
            kind,
            object: object.clone(),
        });
        object
    }
}

impl Target {
    /// Parses `/apis/GROUP/VERSION/namespaces/NAMESPACE/PLURAL/NAME`, or the same below `/api/VERSION`.
    fn of(path: &str) -> Self {
        let skip = if path.starts_with("/apis/") { 4 } else { 3 };
        let mut parts = path.split('/').skip(skip).map(str::to_owned);
        let mut plural = parts.next().unwrap_or_default();
        let mut namespace = None;
        if plural == "namespaces" {
            namespace = parts.next();
            plural = parts.next().unwrap_or_default();
        }
        Self {
            plural,
            namespace,
            name: parts.next(),
        }
    }

    fn key(&self) -> ObjectKey {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        ObjectKey::new(text(&self.namespace), text(&self.name))
    }

    /// Whether an object is in this collection.
    fn has(&self, (plural, key): &Id) -> bool {
        let namespace = self.namespace.as_ref();
        self.plural == *plural && namespace.is_none_or(|it| *it == key.namespace)
    }

    fn line(&self, verb: &str) -> String {
        let plural = &self.plural;
        match (&self.namespace, &self.name) {
            (_, Some(_)) => format!("{verb} {plural} {}", self.key()),
            (Some(namespace), None) => format!("{verb} {plural} in {namespace}"),
            (None, None) => format!("{verb} all {plural}"),
        }
    }
}

fn found(object: &Value) -> Response<Answer> {
    Response::new(Either::Left(Full::from(object.to_string())))
}

fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": "Because",
        "code": code})
}

fn failure(code: u16, message: &str) -> Response<Answer> {
    let mut response = found(&status(code, message));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}
