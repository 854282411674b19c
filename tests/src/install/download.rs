//! One file on an HTTPS server on loopback, as a release page has it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use rcgen::{CertificateParams, KeyPair};
use ring::digest::{SHA256, digest};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A file that can be downloaded until this is dropped.
#[derive(Debug)]
pub struct Download {
    url: String,
    sha256: String,
    /// Holds the certificate.
    directory: TempDir,
    server: JoinHandle<Result<()>>,
}

impl Download {
    /// Serves a file under any path that ends with `name`.
    ///
    /// # Errors
    /// The file cannot be read, or there is no free port.
    pub async fn serve(file: &Path, name: &str) -> Result<Self> {
        let bytes = fs::read(file)?;
        let sha256 = digest(&SHA256, &bytes);
        let sha256 = sha256.as_ref().iter().map(|byte| format!("{byte:02x}"));
        let sha256 = sha256.collect();

        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(["127.0.0.1".to_owned()])?.self_signed(&key)?;
        let directory = tempfile::tempdir()?;
        fs::write(directory.path().join("ca.crt"), certificate.pem())?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));

        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}", listener.local_addr()?);
        let name = format!("/{name} ");
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await?;
                // A client that breaks off is no end of the server.
                drop(answer(&acceptor, stream, &name, &bytes).await);
            }
        });
        Ok(Self {
            url,
            sha256,
            directory,
            server,
        })
    }

    /// What a location starts with.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The checksum of the file, as 64 lower-case digits.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The certificate that a client has to trust, in PEM.
    pub fn certificate(&self) -> PathBuf {
        self.directory.path().join("ca.crt")
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Answers one request and closes the connection.
async fn answer(acceptor: &TlsAcceptor, stream: TcpStream, name: &str, bytes: &[u8]) -> Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await?);
    }
    let line = String::from_utf8(request)?;
    let line = line.lines().next().unwrap_or_default();
    let (status, body) = if line.starts_with("GET ") && line.contains(name) {
        ("200 OK", bytes)
    } else {
        ("404 Not Found", [].as_slice())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await?;
    Ok(stream.shutdown().await?)
}
