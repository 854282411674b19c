//! Who may ask: bearer tokens, each a file of a mounted directory.

use std::{fs, io, path::Path};

use ring::digest::{Digest, SHA256, digest};
use subtle::ConstantTimeEq as _;

/// The tokens as they are now. Each file is one; its name is the token's.
///
/// They are read anew for every request, so that two are valid while one replaces the other, without a restart. Only their
/// hashes are kept: equally long, so a comparison takes as long for every token.
pub(crate) struct Tokens(Vec<(String, Digest)>);

impl Tokens {
    /// Reads the directory. Names that begin with a dot are the kubelet's own; an empty file is no token.
    pub(crate) fn read(dir: &Path) -> io::Result<Self> {
        let mut tokens = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            if name.starts_with('.') || !path.is_file() {
                continue;
            }
            // One that went in between is no token any more.
            let token = match fs::read(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                read => read?,
            };
            // Argo CD trims what it sends.
            let token = token.trim_ascii();
            if !token.is_empty() {
                tokens.push((name.to_owned(), digest(&SHA256, token)));
            }
        }
        Ok(Self(tokens))
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
    }
}
