//! Links between the documents lead to files and headings, and links of the book to other pages of the book.
//!
//! mdBook checks included files when it builds the book.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use pulldown_cmark::{Event, Parser, Tag, TagEnd};
use xshell::{Shell, cmd};

use super::{SourceFile, Violation, files};

const BOOK: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";
/// Pages for maintainers, which are read in the repository and are not on the site.
const NOT_ON_SITE: &[&str] = &["docs/decisions.md", "docs/maintainers"];

pub(super) fn check(sh: &Shell) -> anyhow::Result<Vec<Violation>> {
    let listed = cmd!(sh, "git ls-files --cached --others --exclude-standard")
        .quiet()
        .read()?;
    let read = |path: &Path| {
        let is_tracked = listed.lines().any(|listed| Path::new(listed) == path);
        let bytes = is_tracked
            .then(|| sh.read_binary_file(path).ok())
            .flatten()?;
        // A picture has no headings to link to.
        Some(String::from_utf8(bytes).unwrap_or_default())
    };
    Ok(compare(&files(sh, ".md")?, &read))
}

/// Checks the `pages`; `read` gives the text of a file, by its path from the root.
fn compare(pages: &[SourceFile], read: &dyn Fn(&Path) -> Option<String>) -> Vec<Violation> {
    let summary: Vec<PathBuf> = pages
        .iter()
        .filter(|page| page.path == Path::new(SUMMARY))
        .flat_map(|summary| Page::parse(&summary.text).links)
        .map(|(_, target)| Path::new(BOOK).join(target))
        .collect();
    let mut violations = Vec::new();
    for page in pages {
        let mut refuse = |line: usize, what: String| {
            violations.push(Violation::new(
                format!("{}:{line}", page.path.display()),
                what,
            ));
        };
        let folder = page.path.parent().unwrap_or(Path::new(""));
        let in_book = is_on_site(&page.path);
        if in_book && page.path != Path::new(SUMMARY) && !summary.contains(&page.path) {
            refuse(1, format!("is not in {SUMMARY}"));
        }
        for (line, link) in Page::parse(&page.text).links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let path = match file {
                "" => page.path.clone(),
                file => join(folder, file),
            };
            let Some(text) = read(&path) else {
                refuse(line, format!("there is no file {}", path.display()));
                continue;
            };
            if !heading.is_empty() && !Page::parse(&text).headings.contains_key(heading) {
                refuse(
                    line,
                    format!("{} has no heading #{heading}", path.display()),
                );
            }
            if in_book && !is_on_site(&path) {
                refuse(
                    line,
                    format!("{file} is not on the site: name it in backticks"),
                );
            }
        }
    }
    violations
}

fn is_on_site(path: &Path) -> bool {
    path.starts_with(BOOK) && !NOT_ON_SITE.iter().any(|other| path.starts_with(other))
}

/// What of a page matters here.
#[derive(Default)]
struct Page {
    /// Line and target of each link and image.
    links: Vec<(usize, String)>,
    /// By the fragments they get, how often there is one of that text.
    headings: BTreeMap<String, usize>,
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        let options = pulldown_cmark::Options::ENABLE_TABLES;
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let before = text.get(..range.start).unwrap_or_default();
                    let line = before.matches('\n').count() + 1;
                    page.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let text = heading.take().unwrap_or_default();
                    page.add_heading(&fragment(&text));
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        page
    }

    /// The second heading of a text gets `-1`.
    fn add_heading(&mut self, fragment: &str) {
        let seen = self.headings.entry(fragment.to_owned()).or_default();
        *seen += 1;
        if *seen > 1 {
            let numbered = format!("{fragment}-{}", *seen - 1);
            self.headings.insert(numbered, 1);
        }
    }
}

/// How GitHub and mdBook make the fragment of a heading.
fn fragment(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c => c.is_alphanumeric().then(|| c.to_ascii_lowercase()),
    });
    kept.collect()
}

/// `folder/link` without `..`, which is not asked of the file system.
fn join(folder: &Path, link: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in folder.join(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &[(&str, &str)] = &[
        ("docs/SUMMARY.md", "- [a](a.md)\n"),
        ("docs/a.md", ""),
        ("docs/picture.svg", "<svg/>"),
        ("src/lib.rs", "fn f() {}\n"),
        ("docs/maintainers/table.md", ""),
        (
            "README.md",
            "# The plugin\n## `plan`, and so on\n## Why\n## Why\n",
        ),
    ];

    /// Checks `docs/a.md` with that text.
    #[track_caller]
    fn check(text: &str, expect: &[&str]) {
        check_page("docs/a.md", text, expect);
    }

    #[track_caller]
    fn check_page(path: &str, text: &str, expect: &[&str]) {
        let file = |path: &str, text: &str| SourceFile {
            path: path.into(),
            text: text.to_owned(),
        };
        let (summary, summary_text) = TREE[0];
        let pages = [file(summary, summary_text), file(path, text)];
        let read = |path: &Path| {
            let page = pages.iter().find(|page| page.path == path);
            let other = TREE.iter().find(|(other, _)| path == Path::new(other));
            page.map(|page| page.text.clone())
                .or_else(|| other.map(|(_, text)| (*text).to_owned()))
        };
        let found = compare(&pages, &read).into_iter();
        let found: Vec<_> = found
            .map(|it| format!("{}: {}", it.place, it.what))
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn links_that_lead_somewhere() {
        check(
            "# Top\n[up](#top) [web](https://example.com/x) ![p](picture.svg)\n",
            &[],
        );
        check_page(
            "README.md",
            "# A\n[x](docs/a.md) [y](src/lib.rs) [z](#plan-and-so-on) [again](#why-1)\n## `plan`, and so on\n## Why\n## Why\n",
            &[],
        );
        check("`[no](link.md)`\n```\n[no](link.md)\n```\n", &[]);
    }

    #[test]
    fn planted_missing_file_and_heading() {
        check(
            "text\n[x](gone.md)\n[y](#gone)\n![z](gone.svg)\n[w](../README.md#gone)\n",
            &[
                "docs/a.md:2: there is no file docs/gone.md",
                "docs/a.md:3: docs/a.md has no heading #gone",
                "docs/a.md:4: there is no file docs/gone.svg",
                "docs/a.md:5: README.md has no heading #gone",
                "docs/a.md:5: ../README.md is not on the site: name it in backticks",
            ],
        );
    }

    #[test]
    fn planted_page_outside_of_the_summary() {
        check_page(
            "docs/b.md",
            "text\n",
            &["docs/b.md:1: is not in docs/SUMMARY.md"],
        );
    }

    #[test]
    fn a_page_for_maintainers_is_in_the_repository_only() {
        check_page(
            "docs/maintainers/b.md",
            "[x](../../src/lib.rs) [y](../a.md)\n",
            &[],
        );
        check(
            "[x](maintainers/table.md)\n",
            &["docs/a.md:1: maintainers/table.md is not on the site: name it in backticks"],
        );
    }
}
