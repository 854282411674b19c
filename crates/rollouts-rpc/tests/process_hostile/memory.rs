//! A plugin's process stays below 64 MiB with any host. Each test prints the memory of the process.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::calls::{Calls, ObjectMeta, Rollout, heavy, stepped};
use crate::process::Process;
use crate::raw::{RST, Raw, SYN, header};

const LIMIT: u64 = 64 << 20;

/// yamux's initial window.
const WINDOW: usize = 256 * 1024;

/// Frames that the plugin accepts on one stream without a window update.
const MAX_FRAMES: usize = 16_000;

/// The streams of dispensed routers; a session allows three.
const ROUTERS: [u8; 3] = [7, 9, 11];

/// A host that sends as much as the plugin takes.
struct Greedy {
    plugin: Process,
    host: Raw<UnixStream>,
    /// The remaining send windows, by stream.
    windows: [usize; 16],
}

impl Greedy {
    /// Starts an example, and dispenses as many routers as a session allows.
    async fn start(example: &str) -> Self {
        let mut plugin = Process::start(example, &[]);
        let mut host = plugin.connect().await;
        host.open_session().await;
        for (id, stream) in (1..).zip(ROUTERS) {
            host.open_router(id, stream).await;
        }
        Self {
            plugin,
            host,
            // A part of the windows is already used.
            windows: [WINDOW - 1024; 16],
        }
    }

    /// Sends bytes on a stream that the plugin reads.
    async fn send(&mut self, stream: u8, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let sent = self.fill(stream, bytes, usize::MAX).await;
            bytes = &bytes[sent..];
            if bytes.is_empty() {
                return;
            }
            let (header, _) = self.host.frame().await;
            if header[1] == 1 {
                let credit = u32::from_be_bytes(header[8..].try_into().unwrap());
                self.windows[usize::from(header[7])] += credit as usize;
            }
        }
    }

    /// Sends as much as the window allows, in frames of this size, and returns the number of sent bytes.
    async fn fill(&mut self, stream: u8, bytes: &[u8], frame: usize) -> usize {
        let window = &mut self.windows[usize::from(stream)];
        let length = bytes.len().min(*window);
        *window -= length;
        for piece in bytes[..length].chunks(frame) {
            self.host.send(stream, piece).await;
        }
        length
    }

    /// Makes as many calls as may be in flight and one more on each router, so that the plugin stops reading, and then fills the windows.
    async fn clog(&mut self, calls: usize, rollout: impl Fn() -> Rollout, frame: usize) {
        let mut encoders = ROUTERS.map(|stream| (stream, Calls::new()));
        for (stream, encoder) in &mut encoders {
            let before = if *stream == ROUTERS[0] { calls } else { 0 };
            for _ in 0..=before {
                self.send(*stream, &encoder.remove(rollout())).await;
            }
        }
        for (stream, encoder) in &mut encoders {
            let mut more = Vec::new();
            while more.len() < WINDOW.min(frame.saturating_mul(MAX_FRAMES)) {
                more.extend(encoder.remove(rollout()));
            }
            more.truncate(frame.saturating_mul(MAX_FRAMES));
            self.fill(*stream, &more, frame).await;
        }
    }

    /// Waits until the plugin has read everything, and then checks its memory.
    async fn check(mut self, what: &str) {
        self.host.ping(2).await;
        while self.host.frame().await.0[1] != 2 {}
        report(&self.plugin, what);
    }
}

fn report(plugin: &Process, what: &str) {
    let memory = plugin.memory();
    println!("{what}: {:.1} MiB", memory as f64 / f64::from(1 << 20));
    assert!(memory < LIMIT, "{what}: {memory} bytes");
}

#[tokio::test]
async fn of_a_released_controllers_calls() {
    let recorded = include_bytes!("../data/router-1.10.2.gob");
    let mut greedy = Greedy::start("minimal_router").await;
    greedy.send(7, recorded).await;
    greedy.check("what a controller sends").await;
}

#[tokio::test]
async fn of_messages_that_never_end() {
    let mut greedy = Greedy::start("minimal_router").await;
    // 4 MiB announced on each stream, 64 KiB on the control stream, and all but the last byte sent.
    let mut bytes = vec![0xfd, 0x40, 0, 0];
    bytes.resize(4 << 20, 0);
    for stream in ROUTERS {
        greedy.send(stream, &bytes).await;
    }
    let mut bytes = vec![0xfd, 1, 0, 0];
    bytes.resize(64 << 10, 0);
    greedy.send(1, &bytes).await;
    greedy.check("messages that never end").await;
}

/// Makes calls that never return, more than may be in flight.
async fn check_calls(what: &str, calls: usize, rollout: fn() -> Rollout) {
    let mut greedy = Greedy::start("hanging_router").await;
    greedy.clog(calls, rollout, usize::MAX).await;
    greedy.check(what).await;
}

#[tokio::test]
async fn of_big_arguments() {
    check_calls("arguments of 20 KB", 256, || heavy(20_000)).await;
    check_calls("arguments of 240 KB", 25, || heavy(240_000)).await;
    check_calls("arguments of 1 MB", 6, || heavy(1_000_000)).await;
    check_calls("arguments of 4 MB", 1, || heavy(4_000_000)).await;
}

#[tokio::test]
async fn of_many_small_elements() {
    check_calls("300 steps of one byte", 256, || stepped(300)).await;
    check_calls("4096 steps of one byte", 23, || stepped(4096)).await;
    check_calls("4096 annotations", 21, || {
        let annotations = (0..4096).map(|n| (n.to_string(), String::new()));
        Rollout {
            object_meta: ObjectMeta {
                annotations: annotations.collect(),
                ..ObjectMeta::default()
            },
            ..Rollout::default()
        }
    })
    .await;
    check_calls("a million elements that are skipped", 6, || {
        let managed_fields = vec![String::new(); 1_000_000];
        Rollout {
            object_meta: ObjectMeta {
                managed_fields,
                ..ObjectMeta::default()
            },
            ..Rollout::default()
        }
    })
    .await;
}

fn uint(value: usize) -> Vec<u8> {
    match u8::try_from(value) {
        Ok(small @ 0..=127) => vec![small],
        _ => [&[0xfe], &u16::try_from(value).unwrap().to_be_bytes()[..]].concat(),
    }
}

fn message(body: &[u8]) -> Vec<u8> {
    [uint(body.len()), body.to_vec()].concat()
}

/// The definition of a struct type with these fields, each a name and the id of its type.
fn definition(id: usize, fields: &[(String, usize)]) -> Vec<u8> {
    let mut body = uint((id - 1) * 2 + 1);
    body.extend([3, 1, 2]);
    body.extend(uint(id * 2));
    body.extend([0, 1]);
    body.extend(uint(fields.len()));
    for (name, ty) in fields {
        body.push(1);
        body.extend(message(name.as_bytes()));
        body.push(1);
        body.extend(uint(ty * 2));
        body.push(0);
    }
    body.extend([0, 0]);
    message(&body)
}

async fn check_definitions(what: &str, definitions: &[u8]) {
    // As many as the limits allow.
    let definitions = &definitions[..definitions.len().min(255 << 10)];
    let mut greedy = Greedy::start("minimal_router").await;
    for stream in [1, 7, 9, 11] {
        greedy.send(stream, definitions).await;
    }
    greedy.check(what).await;
}

#[tokio::test]
async fn of_many_definitions() {
    let names = |count: usize| {
        (0..count)
            .map(|n| (format!("{n:x}"), 2))
            .collect::<Vec<_>>()
    };
    let structs: Vec<_> = (0..40)
        .flat_map(|n| definition(70 + n, &names(1000)))
        .collect();
    check_definitions("definitions of 40 structs of 1000 fields", &structs).await;
    let empty: Vec<_> = (0..4000).flat_map(|n| definition(70 + n, &[])).collect();
    check_definitions("definitions of 4000 structs", &empty).await;
    // Expanded to a tree, the type would have 2^100 leaves.
    let twice = |n: usize| ["a", "b"].map(|name| (name.to_owned(), 71 + n));
    let graph: Vec<_> = (0..100)
        .flat_map(|n| definition(70 + n, &twice(n)))
        .collect();
    check_definitions("types that hold the next one twice", &graph).await;
}

/// Each call keeps the types that the stream had then.
#[tokio::test]
async fn of_calls_that_each_define_a_type() {
    let mut greedy = Greedy::start("hanging_router").await;
    let fields: Vec<_> = (0..1000).map(|n| (format!("{n:x}"), 2)).collect();
    let mut definitions = Vec::new();
    for id in 2000.. {
        let next = definition(id, &fields);
        if definitions.len() + next.len() > 200 << 10 {
            break;
        }
        definitions.extend(next);
    }
    greedy.send(7, &definitions).await;
    let mut calls = Calls::new();
    let mut bytes = Vec::new();
    for id in 4000..4300 {
        bytes.extend(definition(id, &[]));
        bytes.extend(calls.remove(heavy(1)));
    }
    greedy.fill(7, &bytes, usize::MAX).await;
    // The plugin answers a ping before it has read the calls.
    tokio::time::sleep(Duration::from_secs(2)).await;
    greedy.check("calls that each define a type").await;
}

#[tokio::test]
async fn of_frames_of_one_byte() {
    let mut greedy = Greedy::start("hanging_router").await;
    for stream in [3, 5] {
        greedy.fill(stream, &[0; MAX_FRAMES], 1).await;
    }
    greedy.clog(256, Rollout::default, 1).await;
    greedy.check("frames of one byte").await;
}

#[tokio::test]
async fn of_a_flood_of_pings_and_window_updates() {
    let Greedy { plugin, host, .. } = Greedy::start("minimal_router").await;
    let (mut reader, mut writer) = host.io.into_split();
    let pings = 200_000;
    let writing = tokio::spawn(async move {
        let flood = [
            header(2, SYN, 0, 7),
            header(1, 0, 7, 0),
            header(1, 0, 99, 1),
        ]
        .concat();
        for _ in 0..pings / 1000 {
            writer.write_all(&flood.repeat(1000)).await.unwrap();
        }
        writer
    });
    reader.read_exact(&mut vec![0; 12 * pings]).await.unwrap();
    let _writer = writing.await.unwrap();
    report(&plugin, "200000 pings");
}

#[tokio::test]
async fn of_streams_that_come_and_go() {
    let mut plugin = Process::start("minimal_router", &[]);
    let mut host = plugin.connect().await;
    host.open_session().await;
    for _ in 0..5000 {
        host.open(7).await;
        host.send(7, &[0; 1000]).await;
        // The stream does not start with a valid id, so the plugin resets it.
        assert_eq!(host.frame().await.0[..4], [0, 0, 0, RST]);
    }
    report(&plugin, "5000 streams");
}

#[tokio::test]
async fn of_connections_that_never_become_a_session() {
    let mut plugin = Process::start("minimal_router", &[]);
    let mut hosts = vec![plugin.connect().await];
    for _ in 1..8 {
        hosts.push(plugin.connect_again().await);
    }
    for host in &mut hosts {
        for stream in [1, 3] {
            host.open(stream).await;
            host.send(stream, &vec![0; WINDOW]).await;
        }
        // The longest frame that the yamux crate accepts, without its last byte.
        host.write(&header(0, 0, 9, 1 << 20)).await;
        host.write(&vec![0; (1 << 20) - 1]).await;
    }
    report(&plugin, "eight connections");
}

/// Calls in flight, message buffers and windows, all at their limits.
#[tokio::test]
async fn of_everything_at_once() {
    let mut greedy = Greedy::start("hanging_router").await;
    let rollout = || {
        let mut rollout = stepped(4095);
        rollout.object_meta = heavy(240_000).object_meta;
        rollout
    };
    greedy.clog(12, rollout, 20).await;
    greedy.check("everything at once").await;
}
