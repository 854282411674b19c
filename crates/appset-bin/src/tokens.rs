//! The bearer tokens of callers, one per file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use ring::digest::{Digest, SHA256, digest};
use subtle::ConstantTimeEq as _;

/// The tokens as they are now. Each file is one; its name is the token's.
///
/// They are read for every request, so two are valid during a rotation, without a restart. Only hashes are kept: they have one
/// length, so a comparison takes the same time for every token.
pub(crate) struct Tokens(Vec<(String, Digest)>);

impl Tokens {
    /// Reads the files of the directory `path`, or the one file that it is. An empty file is no token.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let mut tokens = Self(Vec::new());
        if !path.is_dir() {
            tokens.add(path, &fs::read(path)?);
            return Ok(tokens);
        }
        for file in files(path)? {
            match fs::read(&file) {
                // One that went in between is no token any more.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                read => tokens.add(&file, &read?),
            }
        }
        Ok(tokens)
    }

    fn add(&mut self, file: &Path, token: &[u8]) {
        // Argo CD trims what it sends.
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

    /// Name of the token that was `sent`.
    pub(crate) fn name_of(&self, sent: &[u8]) -> Option<&str> {
        let sent = digest(&SHA256, sent.trim_ascii());
        // Every token is compared, so that the time does not tell which one it is.
        self.0.iter().fold(None, |found, (name, token)| {
            let same: bool = token.as_ref().ct_eq(sent.as_ref()).into();
            if same { Some(name.as_str()) } else { found }
        })
    }
}

/// The files in a directory, but for those that begin with a dot, which are the kubelet's own.
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
    fn a_mounted_secret_is_read_through_its_links() {
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
