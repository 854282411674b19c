//! Invalid input from the host or the environment: the plugin logs one line, exits with code 1 and removes its socket.

use insta::assert_snapshot;

use crate::calls::{Calls, Rollout};
use crate::process::{Ended, Process};
use crate::raw::{ACK, RST, gob, header};

const ROUTER: &str = "minimal_router";

/// Returns the only log line of a plugin that exited with an error.
#[track_caller]
fn line(ended: &Ended) -> &str {
    assert_eq!((ended.code, ended.files), (Some(1), 0), "{ended:?}");
    assert_eq!(ended.stdout, "");
    assert_eq!(ended.log.len(), 1, "{:?}", ended.log);
    &ended.log[0]
}

/// Starts a plugin that must exit because of this environment.
async fn refused(env: &[(&str, Option<&str>)]) -> Ended {
    Process::start(ROUTER, env).ended().await
}

#[tokio::test]
async fn without_a_cookie() {
    let ended = refused(&[("ARGO_ROLLOUTS_RPC_PLUGIN", None)]).await;
    assert_snapshot!(line(&ended), @"this program is an Argo Rollouts traffic router plugin and is started by the controller; list it under trafficRouterPlugins in the ConfigMap argo-rollouts-config instead of running it by hand");
}

#[tokio::test]
async fn with_the_cookie_of_another_kind() {
    let ended = refused(&[("ARGO_ROLLOUTS_RPC_PLUGIN", Some("step"))]).await;
    assert_snapshot!(line(&ended), @r#"{"@level":"error","@message":"cannot serve error=\"the controller started this traffic router plugin with the cookie \\\"step\\\"; move its entry to trafficRouterPlugins in the ConfigMap argo-rollouts-config\"","@module":"rollouts_rpc::program"}"#);
}

#[tokio::test]
async fn with_a_host_of_another_protocol_version() {
    let ended = refused(&[("PLUGIN_PROTOCOL_VERSIONS", Some("2,3"))]).await;
    assert_snapshot!(line(&ended), @r#"{"@level":"error","@message":"cannot serve error=\"the host accepts version 2, 3 of the plugin protocol, this plugin speaks 1; install a plugin made for this controller\"","@module":"rollouts_rpc::program"}"#);
}

#[tokio::test]
#[cfg(not(feature = "grpc"))]
async fn with_a_host_that_wants_tls() {
    let ended = refused(&[("PLUGIN_CLIENT_CERT", Some("-----BEGIN CERTIFICATE-----"))]).await;
    assert_snapshot!(line(&ended), @r#"{"@level":"error","@message":"cannot serve error=\"the host asks for AutoMTLS (PLUGIN_CLIENT_CERT is set), which this plugin does not support; unset it\"","@module":"rollouts_rpc::program"}"#);
}

#[tokio::test]
async fn with_a_socket_directory_that_cannot_be_written() {
    // Not even root can create a file in this directory.
    let ended = refused(&[("PLUGIN_UNIX_SOCKET_DIR", Some("/proc/self"))]).await;
    assert_snapshot!(line(&ended), @r#"{"@level":"error","@message":"cannot serve error=\"cannot listen on a socket in /proc/self: No such file or directory (os error 2)\"","@module":"rollouts_rpc::program"}"#);
    let ended = refused(&[("PLUGIN_UNIX_SOCKET_DIR", Some("/nowhere"))]).await;
    assert_snapshot!(line(&ended), @r#"{"@level":"error","@message":"cannot serve error=\"cannot listen on a socket in /nowhere: No such file or directory (os error 2)\"","@module":"rollouts_rpc::program"}"#);
}

#[tokio::test]
async fn with_a_socket_directory_that_would_break_the_handshake() {
    let ended = refused(&[("TMPDIR", Some("/tmp/a|b"))]).await;
    assert_snapshot!(line(&ended), @r#"{"@level":"error","@message":"cannot serve error=\"the socket directory \\\"/tmp/a|b\\\" cannot be used: it must be Unicode without '|' or control characters and at most 94 bytes long; set TMPDIR or PLUGIN_UNIX_SOCKET_DIR\"","@module":"rollouts_rpc::program"}"#);
}

#[tokio::test]
async fn with_an_unknown_group() {
    let ended = refused(&[("PLUGIN_UNIX_SOCKET_GROUP", Some("no such group"))]).await;
    assert_snapshot!(line(&ended), @r#"{"@level":"error","@message":"cannot serve error=\"cannot give the socket to group \\\"no such group\\\" (PLUGIN_UNIX_SOCKET_GROUP): /etc/group does not have it; give its number\"","@module":"rollouts_rpc::program"}"#);
}

#[tokio::test]
async fn a_second_connection() {
    let mut plugin = Process::start(ROUTER, &[]);
    let mut host = plugin.connect().await;
    host.open_session().await;
    assert_eq!(plugin.connect_again().await.next_frame().await, None);
    assert_eq!(plugin.connect_again().await.next_frame().await, None);
    host.open_router(1, 7).await;
    drop(host);
    let ended = plugin.ended().await;
    assert_eq!((ended.code, ended.files), (Some(0), 0));
    let [line, last] = ended.log.as_slice() else {
        panic!("{:?}", ended.log);
    };
    let (this, own) = (std::process::id(), rustix::process::getuid().as_raw());
    let line = line
        .replace(&format!("pid={this}"), "PID")
        .replace(&format!("uid={own}"), "UID");
    assert_snapshot!(line, @r#"{"@level":"warn","@message":"closed a second connection: a plugin serves only the host that started it PID UID","@module":"rollouts_rpc::goplugin::serve"}"#);
    assert_snapshot!(last, @r#"{"@level":"info","@message":"ending: the host closed the connection","@module":"rollouts_rpc::goplugin::serve"}"#);
}

/// Sends bytes after a valid start of the session, and waits until the plugin exits.
async fn broken(stream: u8, bytes: &[u8]) -> Ended {
    let mut plugin = Process::start(ROUTER, &[]);
    let mut host = plugin.connect().await;
    host.open_session().await;
    host.open_router(1, 7).await;
    match stream {
        0 => host.write(bytes).await,
        stream => host.send(stream, bytes).await,
    }
    plugin.ended().await
}

#[tokio::test]
async fn a_corrupt_stream() {
    assert_snapshot!(line(&broken(1, &[0x80]).await), @r#"{"@level":"error","@message":"cannot serve error=\"the session with the host failed: the control stream is corrupt: gob stream is corrupt at byte 98: 0x80 is not the first byte of an integer\"","@module":"rollouts_rpc::program"}"#);
    assert_snapshot!(line(&broken(7, &gob("fc 01 00 00 00")).await), @r#"{"@level":"error","@message":"cannot serve error=\"the session with the host failed: the plugin stream is corrupt: gob stream is corrupt at byte 0: more than 4194304 bytes in one message\"","@module":"rollouts_rpc::program"}"#);
}

#[tokio::test]
async fn a_broken_session() {
    assert_snapshot!(line(&broken(0, &[1; 12]).await), @r#"{"@level":"error","@message":"cannot serve error=\"the session with the host failed: the yamux connection failed: decode error: unknown version: 1\"","@module":"rollouts_rpc::program"}"#);
    // The yamux crate logs the reason in a separate line.
    let ended = broken(0, &header(2, ACK, 0, 77)).await;
    assert_eq!((ended.code, ended.files), (Some(1), 0));
    assert_snapshot!(ended.log.join("\n"), @r#"
    {"@level":"error","@message":"received pong with 77 but expected 0","@module":"yamux::connection::rtt"}
    {"@level":"error","@message":"cannot serve error=\"the session with the host failed: the yamux connection failed: the host violated the yamux protocol (GoAway 1 was sent)\"","@module":"rollouts_rpc::program"}
    "#);
}

/// The plugin waits ten seconds.
#[tokio::test]
async fn a_host_that_stops_reading() {
    let mut plugin = Process::start(ROUTER, &[]);
    let mut host = plugin.connect().await;
    host.open_session().await;
    host.open_router(1, 7).await;
    let pings = header(2, 1, 0, 7).repeat(1000);
    while tokio::io::AsyncWriteExt::write_all(&mut host.io, &pings)
        .await
        .is_ok()
    {}
    assert_snapshot!(line(&plugin.ended().await), @r#"{"@level":"error","@message":"cannot serve error=\"the session with the host failed: the yamux connection failed: the host has not read for 10 s\"","@module":"rollouts_rpc::program"}"#);
}

#[tokio::test]
async fn a_reply_that_cannot_be_written() {
    let mut plugin = Process::start("hanging_router", &[]);
    let mut host = plugin.connect().await;
    host.open_session().await;
    host.open_router(1, 7).await;
    host.send(7, &Calls::new().remove(Rollout::default())).await;
    host.send_with(RST, 7, &[]).await;
    let ended = plugin.ended().await;
    assert_eq!((ended.code, ended.files), (Some(1), 0));
    // The call exceeds its deadline first.
    assert_snapshot!(ended.log.join("\n"), @r#"
    {"@level":"error","@message":"call failed method=RemoveManagedRoutes rollout=/ error=\"RemoveManagedRoutes took longer than 5 s and was aborted; the plugin's log shows its progress\"","@module":"rollouts_rpc::call"}
    {"@level":"error","@message":"cannot serve error=\"the session with the host failed: the plugin stream broke off: the host has reset it\"","@module":"rollouts_rpc::program"}
    "#);
}

#[tokio::test]
async fn a_panic_is_a_record_on_one_line() {
    let mut plugin = Process::start("hanging_router", &[]);
    let mut host = plugin.connect().await;
    host.open_session().await;
    host.open_router(1, 7).await;
    let mut rollout = Rollout::default();
    rollout.object_meta.name = "panic".into();
    host.send(7, &Calls::new().remove(rollout)).await;
    host.frame().await;
    drop(host);
    let ended = plugin.ended().await;
    assert_eq!((ended.code, ended.files), (Some(0), 0));
    let mut record: serde_json::Value = serde_json::from_str(&ended.log[0]).unwrap();
    // These fields differ from build to build.
    let message = record["@message"].as_str().unwrap().to_owned();
    let (message, fields) = message.split_once(" location=").unwrap();
    assert!(fields.contains(" thread="), "{fields}");
    record["@message"] = message.into();
    assert_snapshot!(record, @r#"{"@level":"error","@message":"panic: index 3\nof 50%","@module":"panic"}"#);
}
