//! The manifests of `examples`: the README of each folder shows the binary's output for them.
//!
//! `TRYCMD=overwrite cargo test --test example_manifests` updates the expected output. Review the diff before you commit it.

use std::env;
use std::fs;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/manifests");

/// Commands that every README has to show.
const COMMANDS: &[&str] = &["validate -f . --strict", "simulate -f .", "plan -f ."];

#[test]
fn each_example_is_valid_and_does_what_its_readme_says() {
    let folders = fs::read_dir(FOLDER).unwrap();
    let folders = folders.map(|entry| entry.unwrap().path());
    for folder in folders.filter(|path| path.is_dir()) {
        let readme = fs::read_to_string(folder.join("README.md")).unwrap();
        for command in COMMANDS {
            let folder = folder.display();
            assert!(readme.contains(command), "{folder} does not show {command}");
        }
        // The commands of a README run in its folder. This process has no other test that depends on the current directory.
        env::set_current_dir(folder).unwrap();
        trycmd::TestCases::new().case("README.md").run();
    }
}
