//! No circle between the modules of a crate: two modules that use each other are one module, or hide a third one.
//!
//! Only siblings are compared, each with everything below it: `crate::a` with `crate::b`, and `crate::a::x` with `crate::a::y`.
//! A module and its parent may use each other. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::SourceFile;

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Modules<'_>> = BTreeMap::new();
    let codes: Vec<String> = files.iter().map(|file| code(&file.text)).collect();
    for (file, code) in files.iter().zip(&codes) {
        let in_src = file.path.split_once("/src/");
        if let Some((folder, module)) = in_src.and_then(|(a, b)| Some((a, path_of(b)?))) {
            let modules = crates.entry(folder).or_default();
            modules.insert(module, paths(code));
        }
    }
    let violations = crates.iter().flat_map(|(folder, modules)| {
        let uses = circular_uses(modules).into_iter();
        uses.map(move |(from, to)| format!("{folder}: {from} uses {to}, which leads back to it"))
    });
    violations.collect()
}

/// The modules of a crate, by their paths from its root, each with the paths in its text.
type Modules<'t> = BTreeMap<Path<'t>, Vec<Path<'t>>>;
type Path<'t> = Vec<&'t str>;

/// The path of the module in a file below `src`; `None` for a file that only tests use.
fn path_of(file: &str) -> Option<Path<'_>> {
    let path: Path<'_> = file.strip_suffix(".rs")?.split('/').collect();
    let for_tests = ["tests", "testing", "bin"];
    match path.as_slice() {
        path if path.iter().any(|name| for_tests.contains(name)) => None,
        ["lib" | "main"] => Some(Path::new()),
        _ => Some(path),
    }
}

/// The text of a file without comments, string literals and unit tests.
fn code(text: &str) -> String {
    let tests = "#[cfg(test)]\nmod tests {";
    let lines = text.split(tests).next().unwrap_or_default().lines();
    let lines = lines.map(|line| line.split("//").next().unwrap_or_default());
    // Every second piece of a line is between quotation marks.
    let pieces = lines.flat_map(|line| line.split('"').step_by(2).chain(["\n"]));
    pieces.collect()
}

/// All paths in the text that have more than one word.
fn paths(code: &str) -> Vec<Path<'_>> {
    let mut found = Vec::new();
    let mut rest = code.trim_start_matches(|c| !is_word(c));
    while !rest.is_empty() {
        rest = read_path(rest, &mut Path::new(), &mut found);
        rest = rest.trim_start_matches(|c| !is_word(c));
    }
    found.retain(|path| path.len() > 1);
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Reads a path, or a group in braces, and returns the rest of the text. `crate::{a, b::c}` gives `crate::a` and `crate::b::c`.
fn read_path<'t>(text: &'t str, prefix: &mut Path<'t>, found: &mut Vec<Path<'t>>) -> &'t str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|c: char| c != '}' && !is_word(c));
            match rest.strip_prefix('}') {
                Some(after) => return after,
                None if rest.is_empty() => return rest,
                None => rest = read_path(rest, prefix, found),
            }
        }
    }
    let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
    let (word, mut rest) = text.split_at(end);
    prefix.push(word);
    if let Some(below) = rest.trim_start().strip_prefix("::") {
        rest = read_path(below, prefix, found);
    } else {
        found.push(prefix.clone());
    }
    prefix.pop();
    rest
}

/// The module that contains what `path` names in the module `here`, also if another module re-exports it.
///
/// `None` if the path does not start with `crate`, `super` or `self`: it names something in `here` or in another crate.
fn resolve<'t>(here: &[&'t str], path: &[&'t str], modules: &Modules<'t>) -> Option<Path<'t>> {
    let (mut at, mut rest) = match path {
        ["crate", rest @ ..] => (Path::new(), rest),
        ["super" | "self", ..] => (here.to_vec(), path),
        _ => return None,
    };
    while let [first, more @ ..] = rest {
        let child = [&at[..], &[*first]].concat();
        match *first {
            "self" => {}
            "super" => drop(at.pop()?),
            _ if modules.contains_key(&child) => at = child,
            _ => match re_export(&at, first, modules) {
                Some(source) => {
                    at = source;
                    continue;
                }
                None => break,
            },
        }
        rest = more;
    }
    Some(at)
}

/// The child of the module `at` from which `at` imports `name`.
fn re_export<'t>(at: &[&'t str], name: &str, modules: &Modules<'t>) -> Option<Path<'t>> {
    modules.get(at)?.iter().find_map(|path| {
        let path = path.strip_prefix(&["self"]).unwrap_or(path);
        let (child, names) = path.split_first()?;
        let child = [at, &[*child]].concat();
        (modules.contains_key(&child) && names.contains(&name)).then_some(child)
    })
}

/// Each use of a sibling that leads back, directly or through others.
fn circular_uses(modules: &Modules<'_>) -> Vec<(String, String)> {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (here, paths) in modules {
        for there in paths.iter().filter_map(|path| resolve(here, path, modules)) {
            let common = here.iter().zip(&there).take_while(|(a, b)| a == b).count();
            // Siblings below the same parent; none if one module contains the other.
            if let (Some(from), Some(to)) = (here.get(..=common), there.get(..=common)) {
                let targets = uses.entry(from.join("::")).or_default();
                targets.insert(to.join("::"));
            }
        }
    }
    let reaches = |from: &String, to: &String| {
        let mut seen = BTreeSet::from([from]);
        let mut next = vec![from];
        while let Some(all) = next.pop().map(|at| uses.get(at)) {
            next.extend(all.into_iter().flatten().filter(|it| seen.insert(it)));
        }
        seen.contains(to)
    };
    let mut circular = Vec::new();
    for (from, all) in &uses {
        let back = all.iter().filter(|to| reaches(to, from));
        circular.extend(back.map(|to| (from.clone(), to.clone())));
    }
    circular
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &[(&str, &str)], expect: &[&str]) {
        let files: Vec<_> = files
            .iter()
            .map(|(file, text)| (*file, code(text)))
            .collect();
        let mut modules = Modules::new();
        for (file, code) in &files {
            modules.extend(path_of(file).map(|path| (path, paths(code))));
        }
        let found = circular_uses(&modules).into_iter();
        let found: Vec<_> = found.map(|(from, to)| format!("{from} -> {to}")).collect();
        assert_eq!(found, expect);
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
            &["a -> b", "b -> a"],
        );
        // Through a re-export, a group and a third module.
        check(
            &[
                ("lib.rs", "mod a;\nmod b;\nmod c;\npub use c::{C, D};\n"),
                ("a.rs", "use crate::{b::{B, self}, x};\n"),
                ("b.rs", "use crate::C;\n"),
                ("c.rs", "use super::a::f;\n"),
            ],
            &["a -> b", "b -> c", "c -> a"],
        );
        check(
            &[
                ("a.rs", ""),
                ("a/x.rs", "use super::y::Y;\n"),
                ("a/y.rs", "use crate::a::x;\n"),
            ],
            &["a::x -> a::y", "a::y -> a::x"],
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
