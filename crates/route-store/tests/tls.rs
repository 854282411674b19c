//! The client with a real TLS server: the certificates that it accepts, and the User-Agent that it sends.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers are test code too"
)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use gloo_types::ObjectKey;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use route_store::{KubeAccess, KubeRouteStore, RouteStore as _, user_agent};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

/// An HTTPS server that answers every request with 404, and the requests.
struct Server {
    directory: TempDir,
    requests: Receiver<String>,
}

/// What signs the certificate of a server.
enum Signer {
    /// An authority that the kubeconfig has.
    Authority,
    /// Its own key; it is an authority itself, and the kubeconfig has it.
    Itself,
    /// Another authority than that of the kubeconfig.
    Unknown,
}

impl Server {
    fn start(signer: &Signer) -> Self {
        let authority = || {
            let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
        };
        let (known, other) = (authority(), authority());
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let (certificate, key) = match signer {
            Signer::Authority => (
                leaf.signed_by(&key, &known).unwrap().der().clone(),
                key.serialize_der(),
            ),
            Signer::Unknown => (
                leaf.signed_by(&key, &other).unwrap().der().clone(),
                key.serialize_der(),
            ),
            Signer::Itself => (known.der().clone(), known.key().serialize_der()),
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], PrivateKeyDer::Pkcs8(key.into()))
            .unwrap();
        let config = Arc::new(config);

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (send, requests) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let connection = ServerConnection::new(config.clone()).unwrap();
                let mut stream = StreamOwned::new(connection, stream.unwrap());
                let mut request = [0; 4096];
                // A client that refuses the certificate closes the connection.
                let Ok(length) = stream.read(&mut request) else {
                    continue;
                };
                drop(send.send(String::from_utf8_lossy(&request[..length]).into_owned()));
                let answer =
                    "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                drop(stream.write_all(answer.as_bytes()));
            }
        });
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca.crt"), known.pem()).unwrap();
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: 'https://{address}', certificate-authority: ca.crt}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
        );
        fs::write(directory.path().join("config"), kubeconfig).unwrap();
        Self {
            directory,
            requests,
        }
    }

    /// Reads a table, which fails, and returns the error.
    async fn error(&self) -> String {
        let store = KubeRouteStore::new(KubeAccess {
            kubeconfig: Some(self.directory.path().join("config")),
            user_agent: user_agent("tests", "1.2.3 (0123abc)"),
            request_timeout: Duration::from_secs(20),
            ..KubeAccess::default()
        });
        let read = store.read(&ObjectKey::new("mesh", "web")).await;
        read.unwrap_err().chain()
    }
}

#[track_caller]
fn check(error: &str, expect: &str) {
    assert!(error.contains(expect), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_names_the_program_its_version_and_its_commit() {
    let server = Server::start(&Signer::Authority);
    check(&server.error().await, "RouteTable mesh/web not found");
    let request = server.requests.recv().unwrap();
    let arch = if cfg!(target_arch = "x86_64") {
        "amd64"
    } else {
        "arm64"
    };
    let expect = format!("user-agent: tests/1.2.3 (linux/{arch}) 0123abc\r\n");
    assert!(request.contains(&expect), "{request}");
    assert_eq!(
        user_agent("tests", "1.2.3"),
        format!("tests/1.2.3 (linux/{arch}) unknown")
    );
}

/// kubectl accepts such a certificate.
#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_of_an_authority_is_refused_with_the_remedy() {
    let server = Server::start(&Signer::Itself);
    check(
        &server.error().await,
        "the certificate of the API server is that of a certificate authority (CA:TRUE): give the API server a certificate with CA:FALSE",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_an_unknown_authority_is_refused_with_the_remedy() {
    let server = Server::start(&Signer::Unknown);
    check(
        &server.error().await,
        "is signed by an unknown authority: correct certificate-authority in the kubeconfig",
    );
}
