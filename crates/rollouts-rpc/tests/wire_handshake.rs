//! From the environment to the first session, with a real socket in one process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollouts_rpc::host::{HostSession, announced_socket};
use rollouts_rpc::testing::FnRouter;
use rollouts_rpc::{PluginEnv, Router, ServeConfig, ServeError, Shutdown, Verification, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

struct Plugin {
    socket: PathBuf,
    served: JoinHandle<Result<Shutdown, ServeError>>,
    _dir: tempfile::TempDir,
}

fn env(dir: &Path) -> PluginEnv {
    let dir = dir.to_str().unwrap();
    PluginEnv::from_vars([
        ("ARGO_ROLLOUTS_RPC_PLUGIN", "trafficrouter"),
        ("PLUGIN_PROTOCOL_VERSIONS", "1"),
        ("TMPDIR", dir),
    ])
}

async fn start() -> Plugin {
    start_with(ServeConfig::new()).await
}

async fn start_with(config: ServeConfig) -> Plugin {
    let dir = tempfile::tempdir().unwrap();
    let env = env(dir.path());
    let (announced, line) = oneshot::channel();
    let served = tokio::spawn(async move {
        let announce = |line: &str| {
            announced.send(line.to_owned()).unwrap();
            Ok(())
        };
        let router = FnRouter(|_| async { Ok(Verification::Verified) });
        serve(&config, &env, announce, Router(router)).await
    });
    let line = line.await.unwrap();
    assert!(line.ends_with("|netrpc|\n"), "{line}");
    Plugin {
        socket: announced_socket(&line).unwrap(),
        served,
        _dir: dir,
    }
}

impl Plugin {
    async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.socket).await.unwrap()
    }

    async fn serves_and_quits(self) {
        let session = HostSession::open(self.connect().await).await.unwrap();
        session
            .dispense_router()
            .await
            .unwrap()
            .init_plugin()
            .await
            .unwrap();
        session.quit().await.unwrap();
        drop(session);
        assert_eq!(self.served.await.unwrap().unwrap(), Shutdown::HostQuit);
        assert!(!self.socket.exists());
    }
}

#[tokio::test]
async fn a_host_that_connects_to_the_announced_socket_gets_a_session() {
    start().await.serves_and_quits().await;
}

#[tokio::test]
async fn connections_that_close_at_once_are_ignored() {
    let plugin = start().await;
    for _ in 0..20 {
        drop(plugin.connect().await);
    }
    plugin.serves_and_quits().await;
}

#[tokio::test]
async fn a_silent_connection_does_not_block_the_host() {
    let plugin = start().await;
    let _silent = plugin.connect().await;
    plugin.serves_and_quits().await;
}

#[tokio::test]
async fn other_connections_are_closed_during_a_session() {
    let plugin = start().await;
    let session = HostSession::open(plugin.connect().await).await.unwrap();
    session.ping().await.unwrap();
    for _ in 0..20 {
        let mut second = plugin.connect().await;
        assert_eq!(second.read(&mut [0]).await.unwrap(), 0);
    }
    session.ping().await.unwrap();
    session.quit().await.unwrap();
    assert_eq!(plugin.served.await.unwrap().unwrap(), Shutdown::HostQuit);
}

async fn check_timeout(plugin: Plugin) {
    let error = plugin.served.await.unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "no host opened a session within 0.5 s of the handshake line"
    );
    assert!(!plugin.socket.exists());
}

/// The session's thread has a clock of its own, which a test cannot pause.
async fn start_impatient() -> Plugin {
    start_with(ServeConfig::new().with_session_timeout(Duration::from_millis(500))).await
}

#[tokio::test]
async fn without_a_host_the_plugin_times_out() {
    check_timeout(start_impatient().await).await;
}

#[tokio::test]
async fn with_a_host_that_does_not_open_its_streams_the_plugin_times_out() {
    let plugin = start_impatient().await;
    let mut host = plugin.connect().await;
    // Opens two streams of three.
    for stream in [1, 3] {
        let open = [0, 1, 0, 1, 0, 0, 0, stream, 0, 0, 0, 0];
        host.write_all(&open).await.unwrap();
    }
    check_timeout(plugin).await;
}

async fn check_refused(env: PluginEnv, expect: &str) {
    let announce = |line: &str| unreachable!("{line}");
    let router = FnRouter(|_| async { Ok(Verification::Verified) });
    let error = serve(&ServeConfig::new(), &env, announce, Router(router))
        .await
        .unwrap_err();
    assert!(error.to_string().contains(expect), "{error}");
}

#[tokio::test]
async fn nothing_is_announced_without_a_host_or_a_socket() {
    let good = env(Path::new("/tmp"));
    check_refused(PluginEnv::default(), "instead of running it by hand").await;
    check_refused(
        PluginEnv {
            asks_for_tls: true,
            ..good.clone()
        },
        "AutoMTLS",
    )
    .await;
    check_refused(
        PluginEnv {
            unix_socket_dir: Some("/nowhere".into()),
            ..good
        },
        "cannot listen on a socket in /nowhere",
    )
    .await;
}
