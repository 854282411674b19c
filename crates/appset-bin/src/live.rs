//! Files that may change while they are in use: the configuration, the certificate and the tokens.
//!
//! The files are read at each use, and parsed when their bytes have changed. So a change takes effect at once, whether a file was
//! written or a symbolic link was swapped as in a mounted ConfigMap. Readiness probes read the files too, so an invalid file is
//! reported within seconds.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use anyhow::Context as _;
use ring::digest::{Digest, SHA256, digest};
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use subtle::ConstantTimeEq as _;
use tokio_rustls::TlsAcceptor;

use crate::Flags;

/// A value parsed from files. An invalid change keeps the previous value.
pub(crate) struct Live<T> {
    files: Vec<PathBuf>,
    parse: Parse<T>,
    state: Mutex<State<T>>,
}

/// Parses the contents of the files, in their order.
type Parse<T> = Box<dyn Fn(&[Vec<u8>]) -> anyhow::Result<T> + Send + Sync>;

struct State<T> {
    value: Arc<T>,
    /// The bytes that were parsed last.
    seen: Vec<Vec<u8>>,
    /// Why these bytes are invalid, if they are.
    problem: Option<String>,
}

impl<T> Live<T> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// Returns `Err` if a file cannot be read or is invalid.
    pub(crate) fn new(
        files: Vec<PathBuf>,
        parse: impl Fn(&[Vec<u8>]) -> anyhow::Result<T> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let seen = read(&files)?;
        let value = Arc::new(parse(&seen).with_context(|| names(&files))?);
        Ok(Self {
            files,
            parse: Box::new(parse),
            state: Mutex::new(State {
                value,
                seen,
                problem: None,
            }),
        })
    }

    /// Returns the value of the files, or their last valid value.
    pub(crate) fn current(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let problem = match read(&self.files) {
            Ok(bytes) if bytes == state.seen => state.problem.clone(),
            Ok(bytes) => {
                let parsed = (self.parse)(&bytes);
                state.seen = bytes;
                match parsed {
                    Ok(value) => {
                        state.value = Arc::new(value);
                        tracing::info!(files = names(&self.files), "a change took effect");
                        None
                    }
                    Err(error) => Some(format!("{error:#}")),
                }
            }
            Err(error) => {
                // Forces the next content to be parsed, even if it is unchanged.
                state.seen.clear();
                Some(format!("{error:#}"))
            }
        };
        if let Some(problem) = problem.as_ref().filter(|_| state.problem != problem) {
            tracing::error!(
                files = names(&self.files),
                problem,
                "a changed file is invalid: its previous content stays in use"
            );
        }
        state.problem = problem;
        Arc::clone(&state.value)
    }

    /// Whether the current content of the files is valid and in use.
    pub(crate) fn is_good(&self) -> bool {
        self.current();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.problem.is_none()
    }
}

fn read(files: &[PathBuf]) -> anyhow::Result<Vec<Vec<u8>>> {
    let contents = files
        .iter()
        .map(|file| fs::read(file).with_context(|| format!("{} cannot be read", file.display())));
    contents.collect()
}

fn names(files: &[PathBuf]) -> String {
    let names: Vec<_> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    names.join(", ")
}

/// The certificate for https with its key.
pub(crate) struct Certificate(Live<ServerConfig>);

impl Certificate {
    /// Reads the certificate, if the flags name one.
    pub(crate) fn from_flags(flags: &Flags) -> anyhow::Result<Option<Self>> {
        let (Some(cert), Some(key)) = (&flags.tls_cert, &flags.tls_key) else {
            return Ok(None);
        };
        let live = Live::new(vec![cert.clone(), key.clone()], |files| match files {
            [cert, key] => server_config(cert, key),
            _ => anyhow::bail!("a certificate needs two files"),
        })?;
        Ok(Some(Self(live)))
    }

    /// Returns the acceptor for the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.0.current().into()
    }
}

/// Makes a configuration for TLS 1.2 and later, with HTTP/1.1 only.
fn server_config(cert: &[u8], key: &[u8]) -> anyhow::Result<ServerConfig> {
    let certs = CertificateDer::pem_slice_iter(cert)
        .collect::<Result<Vec<_>, _>>()
        .context("the certificate is not PEM")?;
    let key = PrivateKeyDer::from_pem_slice(key).context("the key is not PEM")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .context("the certificate and the key do not belong together")?;
    Ok(config)
}

/// The bearer tokens of callers. Each file has one token, and its name is the name of the token.
///
/// The files are read for every request, so that tokens can be rotated without a restart. Only hashes are kept: they have the same
/// length, so a comparison takes the same time for every token.
pub(crate) struct Tokens(Vec<(String, Digest)>);

impl Tokens {
    /// Reads the file `path`, or the files in the directory `path`. An empty file has no token.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let mut tokens = Self(Vec::new());
        if !path.is_dir() {
            tokens.add(path, &fs::read(path)?);
            return Ok(tokens);
        }
        for file in files(path)? {
            match fs::read(&file) {
                // The file was removed after the directory was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                read => tokens.add(&file, &read?),
            }
        }
        Ok(tokens)
    }

    fn add(&mut self, file: &Path, token: &[u8]) {
        // Argo CD also trims the token that it sends.
        let token = token.trim_ascii();
        if let Some(name) = file.file_name().and_then(|name| name.to_str())
            && !token.is_empty()
        {
            self.0.push((name.to_owned(), digest(&SHA256, token)));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the name of the token that equals `sent`.
    pub(crate) fn name_of(&self, sent: &[u8]) -> Option<&str> {
        let sent = digest(&SHA256, sent.trim_ascii());
        // Every token is compared, so that the time does not reveal which one matches.
        self.0.iter().fold(None, |found, (name, token)| {
            let same: bool = token.as_ref().ct_eq(sent.as_ref()).into();
            if same { Some(name.as_str()) } else { found }
        })
    }
}

/// Lists the files in a directory, except hidden ones: the kubelet uses those for mounted Secrets.
fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && entry.path().is_file() {
            files.push(entry.path());
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_invalid_file_keeps_the_previous_value() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("number");
        let write = |text: &str| fs::write(&file, text).unwrap();
        let parse = |bytes: &[Vec<u8>]| -> anyhow::Result<i32> {
            Ok(std::str::from_utf8(&bytes[0])?.parse()?)
        };
        write("x");
        assert!(Live::new(vec![file.clone()], parse).is_err());

        write("1");
        let live = Live::new(vec![file.clone()], parse).unwrap();
        assert_eq!((*live.current(), live.is_good()), (1, true));
        write("y");
        assert_eq!((*live.current(), live.is_good()), (1, false));
        // Unchanged, and still invalid.
        assert_eq!((*live.current(), live.is_good()), (1, false));
        fs::remove_file(&file).unwrap();
        assert_eq!((*live.current(), live.is_good()), (1, false));
        write("2");
        assert_eq!((*live.current(), live.is_good()), (2, true));
        // The content that is in use counts as valid again.
        fs::remove_file(&file).unwrap();
        assert!(!live.is_good());
        write("2");
        assert_eq!((*live.current(), live.is_good()), (2, true));
    }

    #[test]
    fn a_mounted_secret_is_read_through_symbolic_links() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        let revision = |name: &str, token: &str| {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("argocd"), token).unwrap();
        };
        let named = |sent: &str| {
            let tokens = Tokens::read(dir.path()).unwrap();
            tokens.name_of(sent.as_bytes()).map(str::to_owned)
        };
        revision("..1", "old\n");
        revision("..2", " new ");
        symlink("..1", at("..data")).unwrap();
        symlink("..data/argocd", at("argocd")).unwrap();
        fs::write(at("empty"), " \n").unwrap();
        assert_eq!(named("old").as_deref(), Some("argocd"));
        assert_eq!(named("new"), None);
        assert_eq!(named(""), None);

        symlink("..2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert_eq!(named("old"), None);
        assert_eq!(named("new").as_deref(), Some("argocd"));
        let only = Tokens::read(&at("argocd")).unwrap();
        assert_eq!(
            (only.name_of(b"new"), only.name_of(b"")),
            (Some("argocd"), None)
        );
        assert!(Tokens::read(&at("empty")).unwrap().is_empty());
        assert!(Tokens::read(&at("missing")).is_err());
    }
}
