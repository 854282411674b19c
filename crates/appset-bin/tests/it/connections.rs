//! Connections: how many may be open, how long a request may take, https, and the end of the process.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::harness::{Call, Generator};

const CONFIG: &str = "static: {hello: {sets: [{key1: val1}]}}";
const TOKENS: &[(&str, &str)] = &[("argocd", "t")];
const BODY: &str = r#"{"input":{}}"#;

/// Begins a call without sending the body.
fn begin(generator: &Generator) -> Call {
    let token = ("authorization", "Bearer t".to_owned());
    generator.begin("POST", "/api/v1/getparams.execute", &[token], BODY.len())
}

#[test]
fn calls_above_the_limit_are_refused() {
    let generator = Generator::start_with(CONFIG, TOKENS, &["--max-concurrent=1"]);
    let mut call = begin(&generator);
    generator.wait_for("gloo_appset_running_calls 1");
    let other = generator.post("", Some("t"), BODY);
    assert_eq!(other.status, 429);
    call.send(BODY);
    assert_eq!(call.reply().status, 200);
}

/// The limit is four connections for each call.
#[test]
fn a_connection_above_the_limit_evicts_the_oldest_without_a_pending_answer() {
    let generator = Generator::start_with(CONFIG, TOKENS, &["--max-concurrent=1"]);
    let mut running = begin(&generator);
    generator.wait_for("gloo_appset_running_calls 1");
    let oldest = generator.connect();
    let _third_and_fourth = [generator.connect(), generator.connect()];
    assert_eq!(generator.post("", Some("t"), BODY).status, 429);
    oldest.closed();
    let many: Vec<_> = (0..300).map(|_| generator.connect()).collect();
    generator.wait_for(r#"closed_connections_total{port="api",reason="evicted"} 30"#);
    running.send(BODY);
    assert_eq!(running.reply().status, 200);
    drop(many);
}

#[test]
fn a_large_or_invalid_head_is_refused() {
    let generator = Generator::start(CONFIG, TOKENS);
    let send = |headers: &[(&str, String)]| {
        let token = ("authorization", "Bearer t".to_owned());
        let headers = [&[token], headers].concat();
        generator.send("POST", "/api/v1/getparams.execute", &headers, BODY)
    };
    let many = |count| vec![("x", "1".to_owned()); count];
    // `host`, `content-length` and `authorization` count as well.
    assert_eq!(send(&many(61)).status, 200);
    assert_eq!(send(&[("x", "1".repeat(15 << 10))]).status, 200);
    let too_large = [send(&many(62)), send(&[("x", "1".repeat(17 << 10))])];
    let other = [generator.replay(b"GET / HTTP/1.1\r\nbad header\r\n\r\n")];
    // hyper answers these itself, without a body: Argo CD cannot send such a head.
    for (replies, status) in [(&too_large[..], 431), (&other[..], 400)] {
        for reply in replies {
            assert_eq!(reply.status, status);
        }
    }
}

/// The clients open many more connections than either port allows.
#[test]
fn probes_and_calls_are_answered_while_clients_hold_connections_on_both_ports() {
    let generator = Generator::start_with(CONFIG, TOKENS, &["--max-concurrent=8"]);
    assert_eq!(generator.post("", Some("t"), BODY).status, 200);
    let before = generator.memory();
    let head = format!("GET /livez HTTP/1.1\r\nx: {}", "1".repeat(12 << 10));
    let hostile: Vec<_> = (0..512)
        .map(|index| {
            let mut call = match index % 2 {
                0 => generator.connect(),
                _ => generator.connect_ops(),
            };
            // Sending fails if the connection was evicted.
            call.try_send(&head);
            call
        })
        .collect();
    for path in ["/livez", "/readyz"] {
        assert_eq!(generator.ops(path).status, 200);
    }
    assert_eq!(generator.post("", Some("t"), BODY).status, 200);
    for port in ["api", "ops"] {
        // Each port got 256 connections, and keeps 32 or 16 of them.
        let evicted = format!(r#"closed_connections_total{{port="{port}",reason="evicted"}} 2"#);
        generator.wait_for(&evicted);
    }
    let grown = generator.memory().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more");
    drop(hostile);
}

#[test]
fn a_call_ends_at_the_deadline() {
    let generator = Generator::start_with(CONFIG, TOKENS, &["--deadline=0.2"]);
    let reply = begin(&generator).reply();
    assert_eq!(reply.status, 504);
    assert!(
        reply.body.contains(r#""code":"deadline""#),
        "{}",
        reply.body
    );
}

#[test]
fn calls_that_run_at_sigterm_are_answered() {
    let mut generator =
        Generator::start_with(CONFIG, TOKENS, &["--max-concurrent=1", "--deadline=600"]);
    let mut call = begin(&generator);
    generator.wait_for("gloo_appset_running_calls 1");
    generator.terminate();
    generator.wait_for("gloo_appset_draining 1");
    call.send(BODY);
    let reply = call.reply();
    assert_eq!(
        (reply.status, reply.header("connection")),
        (200, Some("close"))
    );
    let log = generator.end();
    assert!(log.iter().any(|record| record["message"] == "drained"));
}

/// Writes a new certificate for localhost to `dir`.
fn write_certificate(dir: &Path) -> CertificateDer<'static> {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(dir.join("tls.crt"), cert.pem()).unwrap();
    fs::write(dir.join("tls.key"), signing_key.serialize_pem()).unwrap();
    cert.into()
}

/// Returns the status line of an answer over https to a client that trusts only `root`.
fn https_status(generator: &Generator, root: &CertificateDer<'static>) -> io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(generator.api())?);
    let body = r#"{"input":{}}"#;
    write!(
        stream,
        "POST /api/v1/getparams.execute HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer t\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn a_certificate_changes_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = write_certificate(dir.path());
    let flag = |name: &str, file: &str| format!("--{name}={}", dir.path().join(file).display());
    let flags = [flag("tls-cert", "tls.crt"), flag("tls-key", "tls.key")];
    let flags = [flags[0].as_str(), flags[1].as_str()];
    let generator = Generator::start_with(CONFIG, &[("argocd", "t")], &flags);
    assert_eq!(https_status(&generator, &first).unwrap(), "HTTP/1.1 200 OK");

    let second = write_certificate(dir.path());
    generator.reload();
    assert_eq!(
        https_status(&generator, &second).unwrap(),
        "HTTP/1.1 200 OK"
    );
    https_status(&generator, &first).unwrap_err();

    // With an invalid key the previous certificate stays in use.
    fs::write(dir.path().join("tls.key"), "none").unwrap();
    generator.reload();
    generator.wait_for("gloo_appset_config_good 0");
    assert_eq!(
        https_status(&generator, &second).unwrap(),
        "HTTP/1.1 200 OK"
    );
    // A client without TLS does not affect others.
    let mut plain = TcpStream::connect(generator.api()).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    plain.read_to_end(&mut Vec::new()).ok();
    assert_eq!(
        https_status(&generator, &second).unwrap(),
        "HTTP/1.1 200 OK"
    );
}
