//! https, with a certificate that changes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::generator::Generator;

const CONFIG: &str = "static: {hello: {sets: [{key1: val1}]}}";

/// Writes a new certificate for localhost into `dir`.
fn write(dir: &Path) -> CertificateDer<'static> {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(dir.join("tls.crt"), cert.pem()).unwrap();
    std::fs::write(dir.join("tls.key"), signing_key.serialize_pem()).unwrap();
    cert.into()
}

/// The status line of an answer over https, for a client that trusts `root` only.
fn status(generator: &Generator, root: &CertificateDer<'static>) -> std::io::Result<String> {
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
    let first = write(dir.path());
    let flag = |name: &str, file: &str| format!("--{name}={}", dir.path().join(file).display());
    let flags = [flag("tls-cert", "tls.crt"), flag("tls-key", "tls.key")];
    let flags = [flags[0].as_str(), flags[1].as_str()];
    let generator = Generator::start_with(CONFIG, &[("argocd", "t")], &flags);
    assert_eq!(status(&generator, &first).unwrap(), "HTTP/1.1 200 OK");

    let second = write(dir.path());
    assert_eq!(status(&generator, &second).unwrap(), "HTTP/1.1 200 OK");
    status(&generator, &first).unwrap_err();

    // A key that is not the certificate's: what was good still counts.
    std::fs::write(dir.path().join("tls.key"), "none").unwrap();
    assert_eq!(status(&generator, &second).unwrap(), "HTTP/1.1 200 OK");
    // Someone who speaks no TLS disturbs nobody.
    let mut plain = TcpStream::connect(generator.api()).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    plain.read_to_end(&mut Vec::new()).ok();
    assert_eq!(status(&generator, &second).unwrap(), "HTTP/1.1 200 OK");
}
