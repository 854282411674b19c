//! The manifests of a release: what `deploy` has for an administrator, and definitions to try it without Gloo.

use std::path::Path;

use anyhow::ensure;
use xshell::{Shell, cmd};

use super::archive::File;

/// A word in the manifests, and what stands there in a release.
pub(super) type FillIn<'a> = (&'static str, &'a str);

/// Those of the plugin, with the names that they have in `deploy`.
///
/// # Errors
/// When a word is in none of them, or the definitions cannot be generated.
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

/// Those of the generator in `deploy/appset-generator/<part>`, below a directory `place`.
///
/// # Errors
/// When a word is in none of them.
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

/// In the order of their names, so that every machine packs the same.
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
            "no manifest says {word}"
        );
        for file in &mut *files {
            file.text = file.text.replace(word, value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_and_sorted_by_their_place_in_the_directory() {
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
    fn words_are_filled_in_wherever_they_stand() {
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
}
