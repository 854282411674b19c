//! The manifests of `examples`: each folder's README shows what the binary answers for them, and is right.
//!
//! `TRYCMD=overwrite cargo test --test example_manifests` writes down what is printed now; look at the diff before you
//! commit it.

use std::env;
use std::fs;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/manifests");

/// What every README has to show.
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
        // Its commands run where it is. There is no other test in this process whose directory would change.
        env::set_current_dir(folder).unwrap();
        trycmd::TestCases::new().case("README.md").run();
    }
}
