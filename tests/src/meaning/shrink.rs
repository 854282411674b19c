//! Shrinks a world with a finding: removes steps, routes, policies and conditions one at a time, as long as a finding of the
//! same kind stays.

use anyhow::Result;
use serde_json::Value;

use super::check::{Checker, Effort};
use super::judgement::Finding;
use super::world::World;

/// The limit of rounds.
const ROUNDS: usize = 16;

/// A part that can be removed.
#[derive(Clone, Debug)]
enum Part {
    Canary(usize),
    Step(usize),
    Table(usize),
    Policies,
    Services,
    NeedsAll,
    /// Position of the table, and path in it.
    InTable(usize, String),
}

/// Returns a smaller world with a finding of the same kind.
///
/// # Errors
/// See [`Checker::check`].
pub(super) async fn shrink(
    checker: &mut Checker,
    world: &World,
    finding: &Finding,
) -> Result<(World, Finding)> {
    checker.set_effort(Effort::Last {
        shares: finding.kind.starts_with("(d) share"),
    });
    let shrunk = rounds(checker, world, finding).await;
    checker.set_effort(Effort::All);
    shrunk
}

async fn rounds(
    checker: &mut Checker,
    world: &World,
    finding: &Finding,
) -> Result<(World, Finding)> {
    let mut best = (world.clone(), finding.clone());
    let mut only = world.clone();
    only.history.truncate(finding.step + 1);
    if let Some(request) = world.requests.get(finding.request) {
        only.requests = vec![request.clone()];
    }
    let mut candidates = vec![only];
    for _ in 0..ROUNDS {
        let checked = checker.check(&candidates).await?;
        let mut same: Vec<(usize, Finding)> = checked.findings;
        same.retain(|(_, it)| it.kind == finding.kind);
        same.dedup_by_key(|(index, _)| *index);
        let Some((index, found)) = same.first().cloned() else {
            break;
        };
        let Some(smaller) = candidates.get(index).cloned() else {
            break;
        };
        // Parts that can be removed one by one can often be removed together.
        let removed: Vec<usize> = same.iter().map(|(index, _)| *index).collect();
        let together = together(&best.0, &candidates, &removed);
        best = (smaller, found);
        candidates = together;
        candidates.extend(parts_of(&best.0).iter().map(|part| without(&best.0, part)));
        candidates.retain(|candidate| *candidate != best.0);
    }
    Ok(best)
}

/// The worlds without all, and without half, of the parts that the candidates at `removed` are without.
fn together(from: &World, candidates: &[World], removed: &[usize]) -> Vec<World> {
    // Later parts first, so that the positions of the others stay.
    let parts: Vec<Part> = parts_of(from)
        .into_iter()
        .filter(|part| {
            let smaller = without(from, part);
            removed
                .iter()
                .any(|index| candidates.get(*index) == Some(&smaller))
        })
        .rev()
        .collect();
    let all = |parts: &[Part]| {
        parts
            .iter()
            .fold(from.clone(), |it, part| without(&it, part))
    };
    let (first, second) = parts.split_at(parts.len() / 2);
    [&*parts, second, first].map(all).to_vec()
}

fn parts_of(world: &World) -> Vec<Part> {
    let mut parts: Vec<Part> = (0..world.canaries.len()).map(Part::Canary).collect();
    parts.extend((0..world.history.len()).map(Part::Step));
    parts.extend((0..world.tables.len()).map(Part::Table));
    parts.extend([Part::Policies, Part::Services, Part::NeedsAll]);
    for (index, table) in world.tables.iter().enumerate() {
        let paths = paths(table).into_iter();
        parts.extend(paths.map(|path| Part::InTable(index, path)));
    }
    parts
}

fn without(world: &World, part: &Part) -> World {
    let mut it = world.clone();
    match part {
        Part::Canary(index) if *index < it.canaries.len() => {
            it.canaries.remove(*index);
            it.history.retain(|step| step.who != *index);
            for step in &mut it.history {
                step.who -= usize::from(step.who > *index);
            }
        }
        Part::Step(index) if *index < it.history.len() => drop(it.history.remove(*index)),
        Part::Table(index) if *index < it.tables.len() => drop(it.tables.remove(*index)),
        Part::Policies => {
            it.mirrors.clear();
            it.timeouts.clear();
        }
        Part::Services => it.services.clear(),
        Part::NeedsAll => it
            .canaries
            .iter_mut()
            .for_each(|canary| canary.needs_all = false),
        Part::InTable(table, path) => {
            if let Some(table) = it.tables.get_mut(*table) {
                remove(table, path);
            }
        }
        Part::Canary(_) | Part::Step(_) | Part::Table(_) => {}
    }
    for who in 0..it.canaries.len() {
        let tables = it
            .canaries
            .get(who)
            .map(|canary| it.tables_of(&canary.name));
        if let (Some(canary), Some(tables)) = (it.canaries.get_mut(who), tables) {
            canary.tables = tables;
        }
    }
    it
}

/// Paths of the removable parts of a table: the larger ones first.
fn paths(table: &Value) -> Vec<String> {
    let mut paths: Vec<String> = ["/spec/tcp", "/spec/tls", "/metadata/labels", "/spec/weight"]
        .map(str::to_owned)
        .to_vec();
    let http = table.pointer("/spec/http");
    let http = http.and_then(Value::as_array).map_or(0, Vec::len);
    paths.extend((0..http).map(|route| format!("/spec/http/{route}")));
    for route in 0..http {
        let of = |part: &str| format!("/spec/http/{route}/{part}");
        let fields = [
            "labels",
            "forwardTo/hostRewrite",
            "forwardTo/autoHostRewrite",
            "forwardTo/regexRewrite",
            "forwardTo/pathRewrite",
            "delegate/sortMethod",
            "matchers",
        ];
        paths.extend(fields.map(of));
        for matcher in 0..2 {
            let of = |part: &str| of(&format!("matchers/{matcher}{part}"));
            paths.extend(
                [
                    "",
                    "/headers",
                    "/queryParameters",
                    "/method",
                    "/uri/ignoreCase",
                ]
                .map(of),
            );
        }
    }
    paths
}

/// Removes the value at a path, if there is one.
fn remove(value: &mut Value, path: &str) {
    let Some((parent, key)) = path.rsplit_once('/') else {
        return;
    };
    match value.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.shift_remove(key)),
        Some(Value::Array(items)) => {
            if let Ok(index) = key.parse::<usize>()
                && index < items.len()
            {
                items.remove(index);
            }
        }
        _ => {}
    }
}
