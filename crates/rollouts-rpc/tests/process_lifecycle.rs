//! The minimal router as a process: start, signals, exit and log.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use rollouts_rpc::goplugin::handshake::PluginKind;
use rollouts_rpc::host::PluginProcess;
use rollouts_rpc::{Rollout, Verification};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::sync::mpsc;

/// Returns the path of the example. Cargo builds examples with the tests of a package, but not with a single test.
fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let example = this.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(example.exists(), "build it: cargo build --examples");
    example
}

struct Started {
    plugin: PluginProcess,
    log: mpsc::UnboundedReceiver<String>,
    /// The directory of the plugin's socket.
    dir: tempfile::TempDir,
}

async fn start() -> Started {
    start_example("minimal_router").await
}

async fn start_example(name: &str) -> Started {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(example(name));
    command.env("TMPDIR", dir.path());
    let (line, log) = mpsc::unbounded_channel();
    let plugin = PluginProcess::start(command, PluginKind::TrafficRouter, move |text| {
        line.send(text).unwrap();
    });
    Started {
        plugin: plugin.await.unwrap(),
        log,
        dir,
    }
}

impl Started {
    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.plugin.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }

    /// Returns the file of the plugin's stdout.
    fn stdout(&self) -> PathBuf {
        std::fs::read_link(format!("/proc/{}/fd/1", self.plugin.id().unwrap())).unwrap()
    }

    fn sockets(&self) -> usize {
        std::fs::read_dir(self.dir.path()).unwrap().count()
    }
}

#[tokio::test]
async fn a_plugin_serves_and_quits_and_removes_its_socket() {
    let mut started = start().await;
    assert_eq!(started.sockets(), 1);
    let router = started.plugin.session().dispense_router().await.unwrap();
    router.init_plugin().await.unwrap();
    assert_eq!(router.type_name().await.unwrap(), "Minimal");
    assert_eq!(started.stdout(), Path::new("/dev/null"));
    let rollout = Rollout::named("ns", "demo");
    router.set_weight(&rollout, 20, &[]).await.unwrap();
    assert_eq!(
        router.verify_weight(&rollout, 20, &[]).await.unwrap(),
        Verification::NotImplemented
    );

    let Started { plugin, dir, .. } = started;
    let ended = plugin.quit().await.unwrap();
    assert_eq!(
        (ended.status.code(), ended.acknowledged, ended.stray_stdout),
        (Some(0), true, 0)
    );
    assert!(ended.graceful);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

    let record: serde_json::Value =
        serde_json::from_str(&started.log.recv().await.unwrap()).unwrap();
    assert_eq!(
        record["@message"],
        "weight set method=SetWeight rollout=ns/demo weight=20 max=100"
    );
}

#[tokio::test]
async fn a_plugin_exits_after_its_host_crashed() {
    let Started { plugin, .. } = start().await;
    // Without the ping, the connection could close before the plugin accepted the session.
    plugin.session().ping().await.unwrap();
    let ended = plugin.hang_up().await.unwrap();
    assert_eq!((ended.status.code(), ended.graceful), (Some(0), true));
}

#[tokio::test]
async fn sigint_is_ignored_and_sigterm_ends_the_plugin() {
    let started = start().await;
    started.signal(Signal::INT);
    started.plugin.session().ping().await.unwrap();

    started.signal(Signal::TERM);
    while started.plugin.session().ping().await.is_ok() {}
    let Started { plugin, dir, .. } = started;
    assert_eq!(plugin.hang_up().await.unwrap().status.code(), Some(0));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Another controller may be the leader after the end of this one, and both would write.
#[tokio::test]
async fn sigterm_stops_the_background_work() {
    let started = start_example("stopping_router").await;
    started.plugin.session().ping().await.unwrap();
    started.signal(Signal::TERM);
    while started.plugin.session().ping().await.is_ok() {}
    let Started {
        plugin, mut log, ..
    } = started;
    assert_eq!(plugin.hang_up().await.unwrap().status.code(), Some(0));
    let mut lines = String::new();
    while let Some(line) = log.recv().await {
        lines += &line;
    }
    assert_eq!(lines.matches("has stopped").count(), 1, "{lines}");
}

#[tokio::test]
async fn started_by_hand_it_explains_how_to_install_it_on_stderr() {
    let output = Command::new(example("minimal_router"))
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.starts_with("this program is an Argo Rollouts traffic router plugin"),
        "{text}"
    );
    assert!(text.contains("trafficRouterPlugins"), "{text}");
}
