//! An archive whose bytes follow from its files alone: no order, owner or time of the machine.

use flate2::{Compression, GzBuilder};
use tar::{Builder, Header};

/// A file of an archive.
pub(super) struct File {
    pub(super) name: String,
    pub(super) text: String,
}

/// Packs files, in the order given, as of `seconds` since 1970.
///
/// # Errors
/// When a name is too long for the format.
pub(super) fn tar_gz(files: &[File], seconds: u64) -> anyhow::Result<Vec<u8>> {
    // The header of gzip would hold the time and the system otherwise.
    let gzip = GzBuilder::new()
        .mtime(0)
        .operating_system(255)
        .write(Vec::new(), Compression::best());
    let mut tar = Builder::new(gzip);
    for file in files {
        let mut header = Header::new_ustar();
        header.set_size(file.text.len().try_into()?);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mode(0o644);
        header.set_mtime(seconds);
        tar.append_data(&mut header, &file.name, file.text.as_bytes())?;
    }
    Ok(tar.into_inner()?.finish()?)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn files() -> [File; 2] {
        [("b.yaml", "b: 1\n"), ("a.yaml", "a: 1\n")].map(|(name, text)| File {
            name: name.to_owned(),
            text: text.to_owned(),
        })
    }

    #[test]
    fn an_archive_holds_its_files_and_the_time_of_the_commit() {
        let packed = tar_gz(&files(), 1_700_000_000).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let header = entry.header();
            found.push(format!(
                "{} {:o} {} {text}",
                header.path().unwrap().display(),
                header.mode().unwrap(),
                header.mtime().unwrap(),
            ));
        }
        assert_eq!(
            found,
            [
                "b.yaml 644 1700000000 b: 1\n",
                "a.yaml 644 1700000000 a: 1\n"
            ]
        );
    }

    /// Neither the clock nor the user nor the system gets in.
    #[test]
    fn an_archive_tells_nothing_of_the_machine() {
        let packed = tar_gz(&files(), 1_700_000_000).unwrap();
        let header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 255];
        assert!(packed.starts_with(&header), "{packed:x?}");
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
        for entry in archive.entries().unwrap() {
            let header = entry.unwrap().header().clone();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
            assert_eq!(header.username(), Ok(Some("")));
        }
    }
}
