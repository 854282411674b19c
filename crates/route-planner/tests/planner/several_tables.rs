//! Several tables of one Rollout: a share grows in all or in none, and shrinks wherever it can.

use gloo_types::MirrorPolicyDoc;
use route_planner::{Intent, IntentKind, Planned, TableWrite, Writes, combine, decide};
use serde_json::{Value, json};

use crate::table::{self, Table, header_route, mirror_route};

const ROLLOUT: &str = "shop/web";

/// A table whose canary has this share, or which has no route to the Rollout.
fn table(name: usize, canary: Option<i32>) -> Table {
    let service = if canary.is_some() { "web" } else { "other" };
    let spec = json!({"http": [{"name": "all", "forwardTo": {"destinations": [service]}}]});
    let mut table = Table::new(&format!("mesh/{name}"), table::expand(spec));
    if let Some(canary) = canary {
        table.set_weight(ROLLOUT, canary, 100, vec![]).unwrap();
    }
    table
}

/// Returns the canary's share of a table after a write.
fn share(tables: &[Table], write: &TableWrite) -> (usize, u64) {
    let name: usize = write.plan.table.name.parse().unwrap();
    let after = write.plan.applied_to(&tables[name].doc()).unwrap();
    let list = &after.raw()["spec"]["http"][0]["forwardTo"]["destinations"];
    let of_canary = list.as_array().unwrap().iter();
    let mut of_canary = of_canary.filter(|it| it["ref"]["name"] == "web-canary");
    let share = of_canary
        .next()
        .map_or(0, |it| it["weight"].as_u64().unwrap());
    (name, share)
}

fn decided(
    tables: &[Table],
    intent: &Intent,
    policies: Option<&[MirrorPolicyDoc]>,
    has_failed: bool,
) -> Writes {
    let config = tables[0].config(ROLLOUT);
    let planned = tables
        .iter()
        .map(|table| Planned::new(&config, intent, table.doc()))
        .collect();
    decide(&config, intent, planned, policies, has_failed)
}

/// Checks the shares that are written first, and afterwards, for tables with these shares, and the number of errors.
#[track_caller]
fn check(
    canaries: &[Option<i32>],
    has_failed: bool,
    weight: i32,
    steady: &[(usize, u64)],
    growing: &[(usize, u64)],
    errors: usize,
) {
    let tables = canaries.iter().enumerate();
    let tables: Vec<Table> = tables.map(|(name, canary)| table(name, *canary)).collect();
    let intent = table::intent(ROLLOUT, weight, 100, vec![]);
    let writes = decided(&tables, &intent, Some(&[]), has_failed);
    let first: Vec<_> = writes.steady.iter().map(|it| share(&tables, it)).collect();
    let then = writes.growing.iter().map(|it| share(&tables, &it.write));
    let then: Vec<_> = then.collect();
    assert_eq!((&*first, &*then), (steady, growing), "{canaries:?}");
    assert_eq!(writes.errors.len(), errors, "{:?}", writes.errors);
    // If a write fails, the others move traffic toward stable only.
    let config = tables[0].config(ROLLOUT);
    for growing in &writes.growing {
        let less = growing.toward_stable(&config, &intent, Some(&[])).unwrap();
        let (name, share) = share(&tables, &less);
        assert_eq!(i32::try_from(share).ok(), canaries[name]);
    }
}

#[test]
fn a_share_grows_in_all_tables_or_in_none_and_shrinks_where_it_can() {
    let (at_0, at_10, at_50) = (Some(0), Some(10), Some(50));
    check(&[at_0, at_10], false, 25, &[], &[(0, 25), (1, 25)], 0);
    check(&[at_50, at_10], false, 25, &[(0, 25)], &[(1, 25)], 0);
    // Another table could not be read.
    check(&[at_50, at_10], true, 25, &[(0, 25), (1, 10)], &[], 0);
    check(&[at_50, at_10], true, 0, &[(0, 0), (1, 0)], &[], 0);
    // Another table has no route to the Rollout, with weight or without.
    check(
        &[at_50, at_10, None],
        false,
        25,
        &[(0, 25), (1, 10)],
        &[],
        2,
    );
    check(&[at_50, at_10, None], false, 0, &[(0, 0), (1, 0)], &[], 2);
}

/// A table in which a canary already has a share, and one without a route to the Rollout.
fn check_managed(
    kind: IntentKind,
    policies: Option<&[MirrorPolicyDoc]>,
    writes: usize,
    errors: usize,
) {
    let tables = [table(0, Some(25)), table(1, None)];
    let mut intent = table::intent(ROLLOUT, 25, 100, vec![]);
    intent.kind = kind;
    let decided = decided(&tables, &intent, policies, false);
    let written = decided.steady.len() + decided.growing.len();
    assert_eq!(
        (written, decided.errors.len()),
        (writes, errors),
        "{decided:?}"
    );
}

#[test]
fn a_managed_route_may_be_meant_for_some_of_the_tables() {
    let header =
        json!({"name": "h", "match": [{"headerName": "x", "headerValue": {"exact": "1"}}]});
    let header = IntentKind::SetManagedRoute(header_route(&header));
    check_managed(header.clone(), Some(&[]), 1, 0);
    check_managed(header, None, 1, 0);
    let mirror = json!({"name": "m", "percentage": 10, "match": [{"path": {"prefix": "/"}}]});
    let mirror = IntentKind::SetManagedRoute(mirror_route(&mirror));
    check_managed(mirror.clone(), Some(&[]), 1, 0);
    // Without the MirrorPolicies it is not known what the mirror route needs.
    check_managed(mirror, None, 0, 0);
}

/// A table with a route to each of these Services, split as by SetWeight.
fn shared(shares: &[(&str, i32)]) -> Table {
    let routes = shares
        .iter()
        .map(|(name, _)| json!({"name": name, "forwardTo": {"destinations": [name]}}));
    let routes: Vec<_> = routes.collect();
    let mut table = Table::new("mesh/shared", table::expand(json!({ "http": routes })));
    for (name, share) in shares {
        table
            .set_weight(&format!("shop/{name}"), *share, 100, vec![])
            .unwrap();
    }
    table
}

/// Checks the patch for these weights of a table in which `a` has a share of 10, `b` none and `c` has one of 100. `expect` are the shares
/// afterwards, the Rollouts that are left out, and whether the table is handed back.
#[track_caller]
fn check_combined(
    weights: &[(&str, i32)],
    expect: &[(&str, i32)],
    left_out: &[&str],
    hands_back: bool,
) {
    let before = [("a", 10), ("b", 0), ("c", 100)];
    let mut table = shared(&before);
    let rollouts = weights.iter().map(|(name, weight)| {
        let intent = table::intent(&format!("shop/{name}"), *weight, 100, vec![]);
        // The write was planned for an older version of the table.
        let old = shared(&[(name, 0)]);
        let config = old.config(&format!("shop/{name}"));
        let plan = route_planner::plan(&config, &intent, &old.doc()).unwrap();
        (config, intent, TableWrite::new(plan, true))
    });
    let mut rollouts: Vec<_> = rollouts.collect();
    let writes = rollouts
        .iter_mut()
        .map(|(config, intent, write)| (&*config, &*intent, write));
    let combined = combine(&table.doc(), writes);
    let errors = combined.errors.iter().zip(weights);
    let failed: Vec<_> = errors
        .filter_map(|(error, (name, _))| error.as_ref().map(|_| *name))
        .collect();
    assert_eq!(failed, left_out);
    assert_eq!(combined.hands_back, hands_back);
    table.edit(&combined.patch);
    let mut wanted = shared(expect);
    assert_eq!(table.document()["spec"], wanted.document()["spec"]);
    let record = |table: &Table| {
        table
            .annotation()
            .map(|it| serde_json::from_str::<Value>(it).unwrap())
    };
    assert_eq!(record(&table), record(&wanted));
    // Each can be restored for itself.
    for (name, _) in expect {
        table.restore(&format!("shop/{name}"));
        wanted.restore(&format!("shop/{name}"));
    }
    assert_eq!(
        table.document()["spec"],
        shared(&[("a", 0), ("b", 0), ("c", 0)]).document()["spec"]
    );
}

#[test]
fn writes_of_several_rollouts_are_one_patch() {
    let all = |a, b, c| [("a", a), ("b", b), ("c", c)];
    check_combined(
        &[("a", 25), ("b", 50), ("c", 75)],
        &all(25, 50, 75),
        &[],
        false,
    );
    // One for which the table has no route does not change the others.
    check_combined(
        &[("a", 25), ("d", 50), ("b", 75)],
        &all(25, 75, 100),
        &["d"],
        false,
    );
    // Nothing is to be done.
    check_combined(&[("a", 10), ("b", 0)], &all(10, 0, 100), &[], false);
    check_combined(&[("a", 0), ("b", 20), ("c", 0)], &all(0, 20, 0), &[], false);
    check_combined(&[("a", 0), ("b", 0), ("c", 0)], &all(0, 0, 0), &[], true);
}
