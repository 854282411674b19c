//! The manifests of a release: the files of `deploy`, CRDs for trials without Gloo, and reproducible archives of them.

use std::path::Path;

use anyhow::ensure;
use flate2::{Compression, GzBuilder};
use tar::{Builder, Header};
use xshell::{Shell, cmd};

/// A word in the manifests, and its replacement in a release.
pub(super) type FillIn<'a> = (&'static str, &'a str);

/// The manifests of the plugin, with their names in `deploy`.
///
/// # Errors
/// Returns `Err` if no manifest has one of the words, or if the CRDs cannot be generated.
pub(super) fn of_plugin(sh: &Shell, words: &[FillIn<'_>]) -> anyhow::Result<Vec<File>> {
    let mut files = of_directory(sh, &sh.current_dir().join("deploy"))?;
    files.retain(|file| !file.name.starts_with("appset-generator/"));
    fill_in(&mut files, words)?;
    let crds = cmd!(
        sh,
        "cargo run --quiet --locked --package gloo-types --features crd --example crds"
    )
    .read()?;
    files.push(File {
        name: "crds.yaml".to_owned(),
        text: crds + "\n",
    });
    Ok(files)
}

/// The manifests in `deploy/appset-generator/<part>`, with the prefix `place` before their names.
///
/// # Errors
/// Returns `Err` if no manifest has one of the words.
pub(super) fn of_generator(
    sh: &Shell,
    part: &str,
    place: &str,
    words: &[FillIn<'_>],
) -> anyhow::Result<Vec<File>> {
    let root = sh.current_dir().join("deploy/appset-generator").join(part);
    let mut files = of_directory(sh, &root)?;
    for file in &mut files {
        file.name.insert_str(0, place);
    }
    fill_in(&mut files, words)?;
    Ok(files)
}

/// The files of a directory, sorted by name, so that every machine packs the same archive.
fn of_directory(sh: &Shell, root: &Path) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for path in sh.read_dir(directory)? {
            if path.is_dir() {
                directories.push(path);
            } else {
                let name = path.strip_prefix(root)?.display().to_string();
                let text = sh.read_file(path)?;
                files.push(File { name, text });
            }
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn fill_in(files: &mut [File], words: &[FillIn<'_>]) -> anyhow::Result<()> {
    for (word, value) in words {
        ensure!(
            files.iter().any(|file| file.text.contains(word)),
            "no manifest has the word {word}"
        );
        for file in &mut *files {
            file.text = file.text.replace(word, value);
        }
    }
    Ok(())
}

/// A file of an archive.
pub(super) struct File {
    pub(super) name: String,
    pub(super) text: String,
}

/// Packs files in the given order, with the time `seconds` since 1970. The archive has no order, owner or time of the machine.
///
/// # Errors
/// Returns `Err` if a name is too long for the format.
pub(super) fn tar_gz(files: &[File], seconds: u64) -> anyhow::Result<Vec<u8>> {
    // By default the header of gzip contains the time and the operating system.
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

    #[test]
    fn files_are_named_and_sorted_by_their_path() {
        let sh = Shell::new().unwrap();
        let root = sh.create_temp_dir().unwrap();
        for name in ["kustomize/https/a.yaml", "kustomize/b.yaml", "helm/c.yaml"] {
            sh.write_file(root.path().join(name), name).unwrap();
        }
        let files = of_directory(&sh, root.path()).unwrap();
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(
            names,
            ["helm/c.yaml", "kustomize/b.yaml", "kustomize/https/a.yaml"]
        );
        assert!(files.iter().all(|file| file.name == file.text));
    }

    #[test]
    fn words_are_replaced_in_all_files() {
        let mut files = ["a: VERSION\n", "b: URL/VERSION\n"].map(|text| File {
            name: "a.yaml".to_owned(),
            text: text.to_owned(),
        });
        let words = [("URL", "https://files.example.com"), ("VERSION", "1.2.3")];
        fill_in(&mut files, &words).unwrap();
        let texts = files.each_ref().map(|file| file.text.as_str());
        assert_eq!(
            texts,
            ["a: 1.2.3\n", "b: https://files.example.com/1.2.3\n"]
        );
        assert!(fill_in(&mut files, &words).is_err(), "there are none left");
    }

    fn two_files() -> [File; 2] {
        [("b.yaml", "b: 1\n"), ("a.yaml", "a: 1\n")].map(|(name, text)| File {
            name: name.to_owned(),
            text: text.to_owned(),
        })
    }

    #[test]
    fn an_archive_holds_its_files_and_the_time_of_the_commit() {
        let packed = tar_gz(&two_files(), 1_700_000_000).unwrap();
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

    /// It contains neither the time, nor the user, nor the operating system.
    #[test]
    fn an_archive_does_not_depend_on_the_machine() {
        let packed = tar_gz(&two_files(), 1_700_000_000).unwrap();
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
