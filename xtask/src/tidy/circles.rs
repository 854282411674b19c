//! No circle between the modules of a crate: two modules that use each other are one module, or hide a third one.
//!
//! Modules in one folder are compared, each with everything below it: `crate::a` and `crate::b`, or `crate::a::x` and
//! `crate::a::y`. A module and the one it stands in may use each other. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::{SourceFile, Violation};

/// Circles that were there when this check was written: the folder of the crate, and the modules that may use each other.
///
/// Delete a row when its circle is gone. Do not add a row: let one of the modules own what both need.
const KNOWN: &[(&str, &[&str])] = &[
    ("crates/envoy-routes", &["action", "delegation"]),
    ("crates/route-planner", &["config", "config_reader"]),
    (
        "crates/route-store",
        &["cached", "clusters", "kube_api", "rollout", "table"],
    ),
];

pub(super) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let mut crates: BTreeMap<String, Modules> = BTreeMap::new();
    for file in files {
        let path = file.path.to_str().unwrap_or_default();
        let Some((folder, file_in_src)) = path.split_once("/src/") else {
            continue;
        };
        if !folder.starts_with("crates/") {
            continue;
        }
        if let Some(module) = module(file_in_src) {
            let modules = crates.entry(folder.to_owned()).or_default();
            modules.insert(module, tokens(&file.text));
        }
    }
    let mut violations = Vec::new();
    for (folder, modules) in crates {
        for circle in circles(&modules) {
            let known = KNOWN.iter().any(|(of, names)| {
                *of == folder && circle.modules.iter().all(|it| names.contains(&it.as_str()))
            });
            if !known {
                let modules = circle.modules.join(", ");
                let what = format!("{modules} use each other: {}", circle.arrows.join("; "));
                violations.push(Violation::new(folder.as_str(), what));
            }
        }
    }
    violations
}

/// A module by the path to it, and the words of its file.
type Modules = BTreeMap<Path, Vec<String>>;
type Path = Vec<String>;

/// The module of a file below `src`; none for what only tests use.
fn module(file: &str) -> Option<Path> {
    let path: Path = file
        .strip_suffix(".rs")?
        .split('/')
        .map(str::to_owned)
        .collect();
    let is_test = |name: &String| name == "tests" || name == "testing" || name == "bin";
    if path.iter().any(is_test) {
        return None;
    }
    match path.as_slice() {
        [root] if root == "lib" || root == "main" => Some(Path::new()),
        _ => Some(path),
    }
}

/// The words and punctuation of a file, without comments, texts and its tests.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let code = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    for line in code.lines() {
        let line = line.split("//").next().unwrap_or_default();
        let mut word = String::new();
        // Every second piece is in quotation marks.
        for c in line
            .split('"')
            .step_by(2)
            .flat_map(|piece| piece.chars().chain([' ']))
        {
            if c.is_alphanumeric() || c == '_' {
                word.push(c);
                continue;
            }
            if !word.is_empty() {
                tokens.push(std::mem::take(&mut word));
            }
            if !c.is_whitespace() {
                tokens.push(c.to_string());
            }
        }
    }
    tokens
}

/// The paths that a file names from `crate`, `super` or `self` on; a group in braces is one path for each of its members.
fn paths(tokens: &[String]) -> Vec<Path> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        if matches!(token.as_str(), "crate" | "super" | "self") {
            at = path(tokens, at, &mut vec![token.clone()], &mut found);
        }
    }
    found
}

/// Reads what comes after `prefix`, and returns where it ends.
fn path(tokens: &[String], mut at: usize, prefix: &mut Path, found: &mut Vec<Path>) -> usize {
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token == text);
    let length = prefix.len();
    while is(at, ":") && is(at + 1, ":") {
        at += 2;
        if is(at, "{") {
            at += 1;
            while at < tokens.len() && !is(at, "}") {
                if let Some(name) = tokens.get(at).filter(|token| *token != ",") {
                    prefix.push(name.clone());
                    at = path(tokens, at + 1, prefix, found);
                    prefix.pop();
                } else {
                    at += 1;
                }
            }
            prefix.truncate(length);
            return at + 1;
        }
        if let Some(name) = tokens.get(at) {
            prefix.push(name.clone());
            at += 1;
        }
    }
    found.push(prefix.clone());
    prefix.truncate(length);
    at
}

/// The module that a path leads to from `here`; through what a module re-exports, if it has to.
fn resolve(here: &[String], path: &[String], modules: &Modules) -> Option<Path> {
    let mut at = Path::new();
    let mut rest = path;
    if path.first().is_some_and(|first| first != "crate") {
        at = here.to_vec();
    }
    while let [first, more @ ..] = rest {
        match first.as_str() {
            "crate" | "self" => {}
            "super" => {
                at.pop()?;
            }
            _ => break,
        }
        rest = more;
    }
    for _ in 0..8 {
        let [first, more @ ..] = rest else {
            break;
        };
        let mut below = at.clone();
        below.push(first.clone());
        if modules.contains_key(&below) {
            at = below;
            rest = more;
        } else if let Some(source) = re_export(&at, first, modules) {
            at = source;
        } else {
            break;
        }
    }
    Some(at)
}

/// The module below `at` that `at` re-exports `name` from.
fn re_export(at: &[String], name: &str, modules: &Modules) -> Option<Path> {
    let tokens = modules.get(at)?;
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        index += 1;
        if token != "use" {
            continue;
        }
        let end = tokens.iter().skip(index).position(|token| token == ";")? + index;
        let words = tokens.get(index..end)?;
        index = end;
        let words = words
            .strip_prefix(&["self".into(), ":".into(), ":".into()])
            .unwrap_or(words);
        let child = words.first()?;
        let mut below = at.to_vec();
        below.push(child.clone());
        if modules.contains_key(&below) && words.iter().skip(1).any(|word| word == name) {
            return Some(below);
        }
    }
    None
}

/// Modules in one folder that use each other.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Circle {
    modules: Vec<String>,
    /// Which of them uses which.
    arrows: Vec<String>,
}

fn circles(modules: &Modules) -> Vec<Circle> {
    let mut uses: BTreeMap<Path, BTreeSet<Path>> = BTreeMap::new();
    for (here, tokens) in modules {
        for path in paths(tokens) {
            let Some(there) = resolve(here, &path, modules) else {
                continue;
            };
            let common = here.iter().zip(&there).take_while(|(a, b)| a == b).count();
            // One of them stands in the other, or in itself.
            if common == here.len() || common == there.len() {
                continue;
            }
            let side = |path: &[String]| path.iter().take(common + 1).cloned().collect::<Path>();
            uses.entry(side(here)).or_default().insert(side(&there));
        }
    }
    let reach = |from: &Path| {
        let mut seen = BTreeSet::new();
        let mut next = vec![from.clone()];
        while let Some(at) = next.pop() {
            for to in uses.get(&at).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    next.push(to.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Path, BTreeSet<Path>> = uses.keys().map(|at| (at, reach(at))).collect();
    let mut circles = BTreeSet::new();
    for (at, all) in reached.iter().filter(|(at, all)| all.contains(**at)) {
        let back = |other: &Path| reached.get(other).is_some_and(|all| all.contains(*at));
        let inside: BTreeSet<&Path> = all.iter().filter(|other| back(other)).collect();
        let arrows = inside.iter().map(|from| {
            let to = uses.get(*from).into_iter().flatten();
            let to = to.filter(|to| inside.contains(to)).map(|to| to.join("::"));
            format!(
                "{} -> {}",
                from.join("::"),
                to.collect::<Vec<_>>().join(", ")
            )
        });
        circles.insert(Circle {
            arrows: arrows.collect(),
            modules: inside.iter().map(|path| path.join("::")).collect(),
        });
    }
    circles.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &[(&str, &str)], expect: &[&[&str]]) {
        let modules = files
            .iter()
            .filter_map(|(file, text)| Some((module(file)?, tokens(text))));
        let found = circles(&modules.collect()).into_iter();
        assert_eq!(found.map(|it| it.arrows).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn one_direction_is_no_circle() {
        check(
            &[
                ("lib.rs", "mod a;\nmod b;\npub use b::B;\n"),
                ("a.rs", "use crate::B;\nmod x;\nuse x::f;\n"),
                ("a/x.rs", "use super::A;\n"),
                ("b.rs", "// crate::a\nconst TEXT: &str = \"crate::a::A\";\n"),
            ],
            &[],
        );
    }

    #[test]
    fn planted_circles() {
        check(
            &[
                ("a.rs", "use crate::b::B;\n"),
                ("b.rs", "fn f() -> crate::a::A {}\n"),
            ],
            &[&["a -> b", "b -> a"]],
        );
        // Through a re-export, a group and a third module.
        check(
            &[
                ("lib.rs", "mod a;\nmod b;\nmod c;\npub use c::{C, D};\n"),
                ("a.rs", "use crate::{b::{B, self}, x};\n"),
                ("b.rs", "use crate::C;\n"),
                ("c.rs", "use super::a::f;\n"),
            ],
            &[&["a -> b", "b -> c", "c -> a"]],
        );
        check(
            &[
                ("a.rs", ""),
                ("a/x.rs", "use super::y::Y;\n"),
                ("a/y.rs", "use crate::a::x;\n"),
            ],
            &[&["a::x -> a::y", "a::y -> a::x"]],
        );
    }

    #[test]
    fn tests_do_not_count() {
        check(
            &[
                ("a.rs", "use crate::b;\n"),
                ("b.rs", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
                ("b/tests.rs", "use crate::a;\n"),
            ],
            &[],
        );
    }
}
