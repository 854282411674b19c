//! Files that may change while they are in use: the configuration, the certificate and the tokens.
//!
//! One task reads the files once a second, and parses them when their bytes have changed. Calls get the last value without reading a
//! file. It does not matter whether a file was written or a symbolic link was swapped as in a mounted ConfigMap.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use anyhow::{Context as _, bail};
use ring::digest::{Digest, SHA256, digest};
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use subtle::ConstantTimeEq as _;
use tokio::sync::watch;

/// A value parsed from files. An invalid change keeps the previous value.
pub(crate) struct Live<T, const N: usize> {
    files: [PathBuf; N],
    parse: Parse<T, N>,
    /// The bytes that were parsed last, unless a file could not be read since. Locked while files are read.
    seen: Mutex<Option<[Vec<u8>; N]>>,
    /// The value, and why the files have another content than this, if they have.
    published: watch::Sender<(Arc<T>, Option<String>)>,
}

/// Parses the contents of the files, in their order.
type Parse<T, const N: usize> = fn(&[Vec<u8>; N]) -> anyhow::Result<T>;

impl<T, const N: usize> Live<T, N> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// Returns `Err` if a file cannot be read or is invalid.
    pub(crate) fn new(files: [PathBuf; N], parse: Parse<T, N>) -> anyhow::Result<Self> {
        // A process may be started with a pipe, which cannot be read again.
        let seen = read(&files, |file| fs::read(file))?;
        let value = Arc::new(parse(&seen).with_context(|| names(&files))?);
        Ok(Self {
            files,
            parse,
            seen: Mutex::new(Some(seen)),
            published: watch::Sender::new((value, None)),
        })
    }

    /// Reads the files again, and publishes their value if they have changed.
    pub(crate) fn reload(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let read = match read(&self.files, read_file) {
            Ok(bytes) if seen.as_ref() == Some(&bytes) => return,
            // Kept even if they turn out to be invalid, so that the same bytes are parsed and reported once.
            Ok(bytes) => (self.parse)(seen.insert(bytes)),
            Err(error) => {
                // Forces the next content to be parsed, even if it is unchanged.
                *seen = None;
                Err(error)
            }
        };
        let files = names(&self.files);
        match read {
            Ok(value) => {
                tracing::info!(files, "a change took effect");
                self.published.send_replace((Arc::new(value), None));
            }
            Err(error) => self.published.send_modify(|(_, before)| {
                let problem = format!("{error:#}");
                // The files are read every second, and one record is enough.
                if before.as_ref() != Some(&problem) {
                    tracing::error!(
                        files,
                        problem,
                        "a changed file is invalid: its previous content stays in use"
                    );
                }
                *before = Some(problem);
            }),
        }
    }

    /// Returns the value of the files, or their last valid value.
    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.published.borrow().0)
    }

    /// Whether the content of the files is valid and in use.
    pub(crate) fn is_good(&self) -> bool {
        self.published.borrow().1.is_none()
    }
}

/// Reads a file while the process runs. Nothing else is opened: to open a pipe may take forever.
pub(crate) fn read_file(file: &Path) -> io::Result<Vec<u8>> {
    match fs::metadata(file)?.is_file() {
        true => fs::read(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

fn read<const N: usize>(
    files: &[PathBuf; N],
    read: fn(&Path) -> io::Result<Vec<u8>>,
) -> anyhow::Result<[Vec<u8>; N]> {
    let mut contents = [const { Vec::new() }; N];
    for (content, file) in contents.iter_mut().zip(files) {
        *content = read(file).with_context(|| format!("{} cannot be read", file.display()))?;
    }
    Ok(contents)
}

fn names(files: &[PathBuf]) -> String {
    let names = files.iter().map(|file| file.display().to_string());
    names.collect::<Vec<_>>().join(", ")
}

/// The certificate for https with its key.
pub(crate) type Certificate = Live<ServerConfig, 2>;

/// Makes a configuration for TLS 1.2 and later, with HTTP/1.1 only.
pub(crate) fn server_config([cert, key]: &[Vec<u8>; 2]) -> anyhow::Result<ServerConfig> {
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

/// A value of which nothing is in use while it cannot be read: credentials may have been revoked.
pub(crate) struct Fresh<T>(watch::Sender<Result<Arc<T>, String>>);

impl<T> Fresh<T> {
    /// Makes the value before the first read.
    pub(crate) fn unread() -> Self {
        Self(watch::Sender::new(Err(String::new())))
    }

    /// Publishes what was read. A problem is logged when it is new.
    pub(crate) fn publish(&self, read: Result<T, String>) {
        self.0.send_modify(|current| {
            if let Err(problem) = &read
                && current.as_ref().err() != Some(problem)
            {
                tracing::error!("{problem}");
            }
            *current = read.map(Arc::new);
        });
    }

    /// Returns the value, if it can be read.
    pub(crate) fn current(&self) -> Option<Arc<T>> {
        self.0.borrow().as_ref().ok().map(Arc::clone)
    }
}

/// The tokens, which may be rotated without a restart.
pub(crate) struct LiveTokens {
    path: PathBuf,
    read: fn(&Path) -> io::Result<Tokens>,
    tokens: Fresh<Tokens>,
}

impl LiveTokens {
    /// Reads the tokens for the first time, from the files in `dir` or from `file`.
    ///
    /// # Errors
    /// Returns `Err` if a path is not what the flag says. One that does not exist yet is no error.
    pub(crate) fn new(dir: Option<PathBuf>, file: Option<PathBuf>) -> anyhow::Result<Self> {
        let (path, read): (_, fn(&Path) -> _) = match (dir, file) {
            (Some(dir), _) if dir.is_file() => {
                bail!("{} is a file: use --token-file", dir.display())
            }
            (Some(dir), _) => (dir, Tokens::in_dir),
            (None, Some(file)) if file.is_dir() => bail!(
                "{} is a directory, whose files would all be tokens: name the file, or use --tokens-dir",
                file.display()
            ),
            (None, Some(file)) => (file, Tokens::in_file),
            (None, None) => bail!("neither --tokens-dir nor --token-file is given"),
        };
        let tokens = Fresh::unread();
        let tokens = Self { path, read, tokens };
        tokens.reload();
        Ok(tokens)
    }

    /// Reads the tokens again. That there is none is logged when it is new.
    pub(crate) fn reload(&self) {
        let has_none = || self.current().is_some_and(|it| it.is_empty());
        let had_none = has_none();
        self.tokens
            .publish((self.read)(&self.path).map_err(|error| {
                let path = self.path.display();
                format!("the tokens in {path} cannot be read: {error}")
            }));
        if has_none() && !had_none {
            let path = self.path.display().to_string();
            tracing::warn!(
                path,
                "there is no token: every call is refused until one is added"
            );
        }
    }

    /// Returns the tokens, if they can be read.
    pub(crate) fn current(&self) -> Option<Arc<Tokens>> {
        self.tokens.current()
    }
}

/// The bearer tokens of callers. Each file has one token, and its name is the name of the token.
///
/// Only hashes are kept: they have the same length, so a comparison takes the same time for every token.
#[derive(Default)]
pub(crate) struct Tokens {
    /// The name and the hash of each token.
    all: Vec<(String, Digest)>,
    /// What is wrong with files whose token no caller can send.
    unusable: Vec<String>,
}

impl Tokens {
    /// Reads a file. An empty one has no token.
    fn in_file(file: &Path) -> io::Result<Self> {
        let mut tokens = Self::default();
        tokens.add(file, &read_file(file)?);
        Ok(tokens)
    }

    /// Reads the files in a directory, except hidden ones: the kubelet uses those for mounted Secrets.
    fn in_dir(dir: &Path) -> io::Result<Self> {
        let mut tokens = Self::default();
        for entry in fs::read_dir(dir)? {
            let file = entry?.path();
            let name = file.file_name().unwrap_or_default();
            // A key of a Secret is a link to a file in a hidden directory, which the kubelet swaps.
            if name.as_encoded_bytes().starts_with(b".") || !file.is_file() {
                continue;
            }
            match read_file(&file) {
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
            if token.iter().any(u8::is_ascii_control) {
                let why =
                    "has several lines or another control character, so that no caller can send it";
                self.unusable.push(format!("token {name} {why}"));
            }
            self.all.push((name.to_owned(), digest(&SHA256, token)));
        }
    }

    /// Whether all tokens have this name.
    pub(crate) fn is_only(&self, name: &str) -> bool {
        self.all.iter().all(|(token, _)| token == name)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns what is suspicious about the tokens, of which the configuration names some.
    pub(crate) fn suspects<'n>(&self, named: impl Iterator<Item = &'n str>) -> BTreeSet<String> {
        let mut suspects: BTreeSet<_> = self.unusable.iter().cloned().collect();
        let mut seen = BTreeMap::new();
        for (name, token) in &self.all {
            // Calls get one of the two names, so a profile that names only the other gets none.
            if let Some(other) = seen.insert(token.as_ref(), name) {
                suspects.insert(format!(
                    "tokens {other} and {name} are equal: calls have one of the names"
                ));
            }
        }
        let unknown = named.filter(|name| self.all.iter().all(|(token, _)| token != name));
        suspects.extend(
            unknown.map(|name| format!("a profile names the token {name}, which no file has")),
        );
        suspects
    }

    /// Returns the name of the token that equals `sent`.
    pub(crate) fn name_of(&self, sent: &[u8]) -> Option<&str> {
        let sent = digest(&SHA256, sent.trim_ascii());
        // Every token is compared, so that the time does not reveal which one matches.
        self.all.iter().fold(None, |found, (name, token)| {
            let same: bool = token.as_ref().ct_eq(sent.as_ref()).into();
            if same { Some(name.as_str()) } else { found }
        })
    }
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
        let parse = |[text]: &[Vec<u8>; 1]| -> anyhow::Result<i32> {
            Ok(std::str::from_utf8(text)?.parse()?)
        };
        write("x");
        assert!(Live::new([file.clone()], parse).is_err());

        write("1");
        let live = Live::new([file.clone()], parse).unwrap();
        let read = || {
            live.reload();
            (*live.current(), live.is_good())
        };
        assert_eq!(read(), (1, true));
        write("y");
        assert_eq!(read(), (1, false));
        // Unchanged, and still invalid.
        assert_eq!(read(), (1, false));
        fs::remove_file(&file).unwrap();
        assert_eq!(read(), (1, false));
        write("2");
        assert_eq!(read(), (2, true));
        // To open a pipe would take forever.
        fs::remove_file(&file).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, 0o600.into()).unwrap();
        assert_eq!(read(), (2, false));
        fs::remove_file(&file).unwrap();
        write("2");
        assert_eq!(read(), (2, true));
        // The content that is in use counts as valid again.
        fs::remove_file(&file).unwrap();
        assert!(!read().1);
        write("2");
        assert_eq!(read(), (2, true));
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
            let tokens = Tokens::in_dir(dir.path()).unwrap();
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
        let only = Tokens::in_file(&at("argocd")).unwrap();
        assert_eq!(
            (only.name_of(b"new"), only.name_of(b"")),
            (Some("argocd"), None)
        );
        assert!(Tokens::in_file(&at("empty")).unwrap().is_empty());
        assert!(Tokens::in_file(&at("missing")).is_err());
    }

    #[test]
    fn tokens_that_cannot_match_are_suspicious() {
        let dir = tempfile::tempdir().unwrap();
        for (name, token) in [
            ("a", "one"),
            ("b", "one\n"),
            ("lines", "x\ny"),
            ("accent", "é"),
        ] {
            fs::write(dir.path().join(name), token).unwrap();
        }
        let tokens = Tokens::in_dir(dir.path()).unwrap();
        let suspects = tokens.suspects(["a", "team-x"].into_iter());
        let all: Vec<String> = suspects.into_iter().collect();
        let why = "has several lines or another control character, so that no caller can send it";
        assert_eq!(
            all[0],
            "a profile names the token team-x, which no file has"
        );
        // Argo CD sends the accent as it is.
        assert_eq!(all[1], format!("token lines {why}"));
        assert!(
            all[2].starts_with("tokens ") && all[2].contains("equal"),
            "{all:?}"
        );
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn a_place_must_be_what_its_flag_says() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("argocd");
        let refused = |dir, file| {
            let tokens = LiveTokens::new(dir, file);
            tokens.err().map(|error| error.to_string())
        };
        fs::write(&file, "t").unwrap();
        let why = refused(None, Some(dir.path().to_owned())).unwrap();
        assert!(why.ends_with("name the file, or use --tokens-dir"), "{why}");
        let why = refused(Some(file.clone()), None).unwrap();
        assert!(why.ends_with("is a file: use --token-file"), "{why}");

        let tokens = LiveTokens::new(Some(dir.path().to_owned()), None).unwrap();
        assert!(tokens.current().is_some());
        // A token may have been revoked, so none is known.
        drop(dir);
        tokens.reload();
        assert!(tokens.current().is_none());
    }
}
