//! Plays random histories of an API server, its connections and this process, and checks after each step that no cache takes
//! content for younger than it is (C-2, C-3): each object that a read returns is one that the server had within the maximum age
//! of the read, and each that it lacks was absent then.

use std::collections::BTreeMap;
use std::env;
use std::ops::Range;

use super::*;
use crate::FRESH;
use crate::fake_api::{FakeApi, Fault};
use crate::kube_api::informer::Informer;

/// Number of seeds of an ordinary run; `HISTORIES_SEEDS` plays others, such as `1000..2000`.
const SEEDS: Range<u64> = 0..10;
const STEPS: usize = 80;
const KEYS: [(&str, &str); 3] = [("mesh", "a"), ("mesh", "b"), ("shop", "a")];
const AGES: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    FRESH,
];

/// The hosts of the tables, which are numbered.
type Hosts = BTreeMap<ObjectKey, u64>;

struct History {
    random: fastrand::Rng,
    api: FakeApi,
    store: Arc<KubeRouteStore>,
    tables: Informer<WholeDocuments<RouteTable>>,
    /// What the server had from each time on.
    had: Vec<(Instant, Hosts)>,
    number: u64,
    trace: Vec<String>,
    /// Number of reads that the cache answered.
    answered: usize,
}

impl History {
    fn new(seed: u64) -> Self {
        let api = FakeApi::default();
        let store = Arc::new(api.store());
        Self {
            random: fastrand::Rng::with_seed(seed),
            tables: Informer::new(Arc::clone(&store), WholeDocuments::default()),
            api,
            store,
            had: vec![(Instant::now(), Hosts::new())],
            number: 0,
            trace: Vec::new(),
            answered: 0,
        }
    }

    fn key(&mut self) -> ObjectKey {
        let (namespace, name) = KEYS[self.random.usize(..KEYS.len())];
        ObjectKey::new(namespace, name)
    }

    /// Notes what the server has from now on.
    fn changed(&mut self, change: impl FnOnce(&mut Hosts)) {
        let mut hosts = self.had.last().unwrap().1.clone();
        change(&mut hosts);
        self.had.push((Instant::now(), hosts));
    }

    fn put(&mut self) {
        let key = self.key();
        self.number += 1;
        let mut object = table(&key.namespace, &key.name);
        object["spec"] = json!({ "hosts": [self.number.to_string()] });
        self.api.put("routetables", object);
        let number = self.number;
        self.changed(|hosts| hosts.extend([(key, number)]));
    }

    /// A write of this process, whose answer goes to the cache at once.
    async fn write(&mut self) {
        let key = self.key();
        self.number += 1;
        let host = self.number.to_string();
        let patch = json!([{"op": "add", "path": "/spec/hosts/0", "value": host}]);
        let patch = serde_json::from_value(patch).unwrap();
        if let Ok(table) = self.store.patch(&key, &patch).await {
            let number = self.number;
            self.changed(|hosts| hosts.extend([(key, number)]));
            self.tables.put(table.without_managed_fields());
        }
    }

    fn delete(&mut self) {
        let key = self.key();
        self.api.delete("routetables", &key);
        self.changed(|hosts| hosts.retain(|it, _| *it != key));
    }

    /// Lets time pass. The process may stand still for it.
    async fn pass(&mut self) {
        let seconds = [1, 3, 10, 30, 100, 600][self.random.usize(..6)];
        if self.random.u8(..4) == 0 {
            self.trace.push(format!("stands still for {seconds} s"));
            tokio::time::advance(Duration::from_secs(seconds)).await;
            self.check();
            return;
        }
        self.trace.push(format!("{seconds} s"));
        for _ in 0..seconds {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.check();
        }
    }

    /// The process stands still, and what it gets afterwards was sent before: the end of a watch, perhaps with a bookmark. Then the
    /// API server is cut off.
    async fn stand_still(&mut self) {
        self.api.behave(|api| api.is_buffered = true);
        let buffered = Duration::from_secs(self.random.u64(..30));
        tokio::time::sleep(buffered).await;
        self.api.end_watches();
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.api.behave(|api| api.is_frozen = true);
        self.put();
        self.api.behave(|api| api.is_buffered = false);
        tokio::time::advance(Duration::from_secs(self.random.u64(1..600))).await;
        for _ in 0..self.random.u8(..100) {
            self.check();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        self.api.behave(|api| api.is_frozen = false);
    }

    async fn step(&mut self) {
        let kinds = ["list", "watch"];
        let kind = kinds[self.random.usize(..2)];
        let is_on = self.random.bool();
        let delay = Duration::from_millis(self.random.u64(..4000));
        let faults = [Fault::Forbidden, Fault::Broken, Fault::Lost, Fault::Hangs];
        let fault = faults[self.random.usize(..4)];
        let step = self.random.u8(..16);
        self.trace
            .push(format!("step {step} {kind} {is_on} {delay:?} {fault:?}"));
        match step {
            0..4 => self.put(),
            4 => self.write().await,
            5 => self.delete(),
            6 => self.api.compact(),
            7 => self.api.end_watches(),
            8 => self.api.behave(|api| api.is_frozen = is_on),
            9 => self.api.behave(|api| api.is_buffered = is_on),
            10 => self.api.behave(|api| api.lacks_bookmarks = is_on),
            11 => self.api.behave(|api| match is_on {
                true => drop(api.faults.insert(format!("{kind} routetables"), fault)),
                false => api.faults.clear(),
            }),
            12 => self
                .api
                .behave(|api| (api.list_delay, api.watch_delay) = (delay, delay / 4)),
            13 | 14 => self.stand_still().await,
            _ => match is_on {
                true => self.tables.watch_all(),
                false => self
                    .tables
                    .watch_only(&["mesh".to_owned(), "shop".to_owned()].into()),
            },
        }
        // Time between two steps, or none.
        match self.random.u8(..3) {
            0 => self.check(),
            1 => tokio::time::sleep(Duration::from_millis(1)).await,
            _ => self.pass().await,
        }
    }

    /// Returns whether the server had this host, or none, at any time since `begin`.
    fn had_since(&self, begin: Instant, key: &ObjectKey, host: Option<u64>) -> bool {
        let mut states = self.had.iter().rev();
        let mut is_over = false;
        let mut since = states.by_ref().take_while(|(from, _)| {
            // The state that was there at the beginning counts too.
            let counts = !is_over;
            is_over = *from <= begin;
            counts
        });
        since.any(|(_, hosts)| hosts.get(key).copied() == host)
    }

    fn check(&mut self) {
        for age in AGES {
            for namespace in ["mesh", "shop"] {
                let Ok(tables) = self.tables.objects(Some(namespace), age) else {
                    continue;
                };
                self.answered += 1;
                let host = |table: &RouteTableDoc| -> Option<u64> {
                    let host = table.raw().pointer("/spec/hosts/0")?;
                    host.as_str()?.parse().ok()
                };
                for (of, name) in KEYS.iter().filter(|(of, _)| *of == namespace) {
                    let key = ObjectKey::new(*of, *name);
                    let cached = tables.iter().find(|it| *it.key() == key);
                    let cached = cached.and_then(|it| host(it));
                    let begin = Instant::now() - age;
                    assert!(
                        self.had_since(begin, &key, cached),
                        "{key} is {cached:?} within {age:?}, but the server had {:#?} after\n{}",
                        self.had,
                        self.trace.join("\n")
                    );
                }
            }
        }
    }
}

fn seeds() -> Range<u64> {
    let Ok(text) = env::var("HISTORIES_SEEDS") else {
        return SEEDS;
    };
    let (from, to) = text.split_once("..").expect("FROM..TO");
    from.parse().unwrap()..to.parse().unwrap()
}

/// Plays the history of a seed. Returns the number of reads that the cache answered.
async fn play(seed: u64) -> usize {
    let mut history = History::new(seed);
    history.trace.push(format!("seed {seed}"));
    history.tables.watch_all();
    for _ in 0..STEPS {
        history.step().await;
    }
    let answered = history.answered;
    // An API server that answers makes each cache fresh again.
    history.api.behave(|api| *api = Default::default());
    history.tables.watch_all();
    tokio::time::sleep(Duration::from_secs(150)).await;
    history.check();
    let objects = history.tables.objects(None, FRESH);
    let keys = objects.map(|all| all.iter().map(|it| it.key().clone()).collect());
    let expect: Vec<ObjectKey> = history.had.last().unwrap().1.keys().cloned().collect();
    assert_eq!(keys.ok(), Some(expect), "{}", history.trace.join("\n"));
    answered
}

#[test]
fn no_cache_takes_content_for_younger_than_it_is() {
    let seeds = seeds();
    let (count, mut answered) = (seeds.end - seeds.start, 0);
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        answered += runtime.unwrap().block_on(play(seed));
    }
    println!("{count} histories, {answered} reads were answered");
    assert!(answered as u64 > 1000 * count, "{answered} answered reads");
}
