//! Links between the documents lead to files and headings, links of the site to other pages of the site, and the site has every
//! page in `docs` that is not for maintainers.
//!
//! mdBook checks only the files that a page includes.

use std::collections::BTreeSet;

use pulldown_cmark::{Event, Options, Parser, Tag};
use xshell::Shell;

use super::{SourceFile, files, tracked};

const SUMMARY: &str = "docs/SUMMARY.md";
/// Pages for maintainers, which are in the repository only.
const NOT_ON_SITE: [&str; 2] = ["docs/decisions.md", "docs/maintainers/"];

pub(super) fn check(sh: &Shell) -> anyhow::Result<Vec<String>> {
    Ok(compare(&files(sh, &[".md"])?, &tracked(sh)?))
}

/// Checks the links of `pages`; `tracked` has the paths of all files.
fn compare(pages: &[SourceFile], tracked: &[String]) -> Vec<String> {
    let page = |path: &str| pages.iter().find(|page| page.path == path);
    let summary = page(SUMMARY).map_or_else(Page::default, |page| Page::parse(&page.text));
    let on_site = summary.links.iter().map(|(_, link)| join("docs", link));
    let on_site: BTreeSet<String> = on_site.collect();
    let mut violations = Vec::new();
    for SourceFile { path, text } in pages {
        let is_for_site = path.starts_with("docs/") && path != SUMMARY;
        let is_for_site = is_for_site && !NOT_ON_SITE.iter().any(|other| path.starts_with(other));
        if is_for_site && !on_site.contains(path) {
            violations.push(format!("{path}: add it to {SUMMARY}"));
        }
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, link) in Page::parse(text).links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => join(folder, file),
            };
            let has = |page: &SourceFile| Page::parse(&page.text).headings.contains(heading);
            // The site has the pages of the summary, and every other file in `docs`.
            let is_copied = target.starts_with("docs/") && !target.ends_with(".md");
            let what = if !tracked.contains(&target) {
                format!("there is no file {target}")
            } else if !heading.is_empty() && !page(&target).is_some_and(has) {
                format!("{target} has no heading #{heading}")
            } else if on_site.contains(path) && !is_copied && !on_site.contains(&target) {
                format!("{target} is not on the site: add it to {SUMMARY}, or name it in backticks")
            } else {
                continue;
            };
            violations.push(format!("{path}:{line}: {what}"));
        }
    }
    violations
}

/// The parts of a page that this check needs.
#[derive(Default)]
struct Page {
    /// Line and target of each link and picture.
    links: Vec<(usize, String)>,
    /// As the fragments of links name them.
    headings: BTreeSet<String>,
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let (before, rest) = text.split_at(range.start);
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let line = before.matches('\n').count() + 1;
                    page.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::Heading { .. }) => {
                    page.headings.extend(rest.lines().next().map(fragment));
                }
                _ => {}
            }
        }
        page
    }
}

/// The fragment of a heading's line, as GitHub and mdBook build it.
fn fragment(heading: &str) -> String {
    let heading = heading.trim_matches(['#', ' ']);
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c => c.is_alphanumeric().then(|| c.to_ascii_lowercase()),
    });
    kept.collect()
}

/// The path `folder/link` without `..`.
fn join(folder: &str, link: &str) -> String {
    let mut path: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(link.split('/')) {
        match part {
            ".." => drop(path.pop()),
            "" | "." => {}
            part => path.push(part),
        }
    }
    path.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::file;

    /// Checks the page at `path` with this text; the other pages and files are always the same.
    #[track_caller]
    fn check(path: &str, text: &str, expect: &[&str]) {
        let readme = "# The plugin\n## `plan`, and so on\n";
        let others = [
            file(SUMMARY, "- [a](a.md)\n"),
            file("docs/a.md", ""),
            file("README.md", readme),
            file("docs/maintainers/table.md", ""),
        ];
        let others = others.into_iter().filter(|page| page.path != path);
        let pages: Vec<_> = others.chain([file(path, text)]).collect();
        let files = ["docs/picture.svg", "src/lib.rs"].map(str::to_owned);
        let tracked: Vec<_> = files
            .into_iter()
            .chain(pages.iter().map(|page| page.path.clone()))
            .collect();
        assert_eq!(compare(&pages, &tracked), expect);
    }

    #[test]
    fn links_that_lead_somewhere() {
        check(
            "docs/a.md",
            "# Top\n[up](#top) [web](https://example.com/x) ![p](picture.svg)\n",
            &[],
        );
        check(
            "docs/a.md",
            "`[no](link.md)`\n```\n[no](link.md)\n```\n",
            &[],
        );
        check(
            "CHANGELOG.md",
            "[x](docs/a.md) [y](src/lib.rs) [z](README.md#plan-and-so-on)\n",
            &[],
        );
        check(
            "docs/maintainers/table.md",
            "[x](../../src/lib.rs) [y](../a.md)\n",
            &[],
        );
    }

    #[test]
    fn planted_links() {
        check(
            "docs/a.md",
            "text\n[x](gone.md)\n[y](#gone)\n![z](gone.svg)\n[w](../README.md#gone)\n",
            &[
                "docs/a.md:2: there is no file docs/gone.md",
                "docs/a.md:3: docs/a.md has no heading #gone",
                "docs/a.md:4: there is no file docs/gone.svg",
                "docs/a.md:5: README.md has no heading #gone",
            ],
        );
        check(
            "docs/a.md",
            "[x](maintainers/table.md) [y](../src/lib.rs)\n",
            &[
                "docs/a.md:1: docs/maintainers/table.md is not on the site: add it to docs/SUMMARY.md, or name it in backticks",
                "docs/a.md:1: src/lib.rs is not on the site: add it to docs/SUMMARY.md, or name it in backticks",
            ],
        );
    }

    #[test]
    fn planted_page_outside_of_the_summary() {
        check(
            "docs/b.md",
            "text\n",
            &["docs/b.md: add it to docs/SUMMARY.md"],
        );
        check("docs/maintainers/b.md", "text\n", &[]);
    }
}
