//! Checks a live table against the owner's document and against what the controller asked for.

use gloo_types::{RouteTableDoc, violations};
use serde_json::Value;

use crate::controller::{HEADER_ROUTE, Id, MIRROR_ROUTE, Pass, Roles};
use crate::documents::{
    annotation, attributes, destinations, destinations_mut, frame, has_same_bytes, http, http_mut,
    id, is_managed, is_mirror, managed_for, name, owned, share, shares, weight, without_ours,
};
use crate::owner::{Table, Trust, is_broken};

/// Checks that only destinations, managed routes and the annotation differ from the owner's document.
pub(crate) fn check_owner_parts(table: &Table, live: &Value) -> Result<(), String> {
    let at = owned(live);
    let routes = http(&table.document);
    if at.len() != routes.len() {
        return Err(format!(
            "{}: {} routes of the owner, not {}",
            table.key,
            at.len(),
            routes.len()
        ));
    }
    for (route, at) in routes.iter().zip(at) {
        let there = &http(live)[at];
        same("route", &frame(there), &frame(route))?;
    }
    let rest = |table: &Value| {
        let mut table = without_ours(table);
        table["spec"]["http"] = Value::Null;
        table
    };
    same("table", &rest(live), &rest(&table.document))
}

/// Checks that the table equals the owner's document, byte for byte.
pub(crate) fn check_restored(table: &Table, live: &Value) -> Result<(), String> {
    if let Some(text) = annotation(live) {
        return Err(format!(
            "{}: the annotation is still there: {text}",
            table.key
        ));
    }
    same("table", &without_ours(live), &without_ours(&table.document))
}

/// Returns why Gloo would refuse the table. A weight of 0 beside a sum of 100 is valid: a published walk-through of Gloo has
/// it.
pub(crate) fn broken_rules(live: &Value) -> Vec<String> {
    let mut live = live.clone();
    for list in http_mut(&mut live).iter_mut().filter_map(destinations_mut) {
        let sum: i64 = list.iter().filter_map(weight).sum();
        list.retain(|it| sum != 100 || weight(it) != Some(0));
    }
    let spec = RouteTableDoc::from_value(live)
        .ok()
        .and_then(|table| table.spec().ok());
    let broken = spec.map(|spec| violations(&spec)).unwrap_or_default();
    broken.iter().map(ToString::to_string).collect()
}

/// Whether an owner's route forwards to a Rollout.
pub(crate) fn routes_to(route: &Value, roles: &Roles) -> bool {
    destinations(route).iter().any(|it| roles.is_anchor(it))
}

/// Whether a live route has destinations that only this Rollout can have added.
pub(crate) fn is_split_by(route: &Value, roles: &Roles) -> bool {
    destinations(route).iter().any(|it| {
        let id = id(it);
        id == roles.canary && !roles.anchors.contains(&id.0)
            || roles.anchors.contains(&id.0) && id.1.is_some()
    })
}

/// Whether another Rollout splits a live route. If the owner has taken over such destinations in a copy, it is no split.
fn is_split_by_others(live: &Value, owners: &Value, others: &[Roles]) -> bool {
    let mut others = others.iter();
    others.any(|roles| is_split_by(live, roles) && !is_split_by(owners, roles))
}

/// Returns the canary's percentage in each of the owner's routes.
pub(crate) fn canary_shares(live: &Value, roles: &Roles) -> Vec<i64> {
    let routes = owned(live)
        .into_iter()
        .map(|at| destinations(&http(live)[at]));
    routes
        .map(|list| share(list, |it| id(it) == roles.canary))
        .collect()
}

/// Returns the routes that differ from what the SetWeight of a pass asked for. `others` are the roles of the other Rollouts.
pub(crate) fn wrong_routes(
    table: &Table,
    live: &Value,
    pass: &Pass,
    others: &[Roles],
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (route, at) in owned(live).into_iter().enumerate() {
        let there = &http(live)[at];
        let (Some(owners), Some(trust)) =
            (http(&table.document).get(route), table.trust.get(route))
        else {
            break;
        };
        let is_disputed = is_split_by_others(there, owners, others);
        if is_disputed && routes_to(owners, &pass.roles) && !is_down(pass) {
            wrong.push(format!(
                "{} route {route}: another Rollout splits it: {}",
                table.key,
                show(there)
            ));
            continue;
        }
        // Changes of another Rollout are checked with that Rollout.
        let is_changed = !is_split_by(there, &pass.roles) && !has_same_bytes(there, owners);
        let of_another = others.iter().any(|roles| {
            is_split_by(there, roles)
                || routes_to(owners, roles) && (is_changed || !routes_to(owners, &pass.roles))
        });
        if is_broken(owners) || *trust == Trust::Nothing || of_another {
            continue;
        }
        if let Err(why) = check_route(owners, there, *trust, pass) {
            wrong.push(format!("{} route {route}: {why} ({trust:?})", table.key));
        }
    }
    wrong
}

/// Whether the live route must have the owner's text.
pub(crate) fn is_rest(owners: &Value, pass: &Pass) -> bool {
    let is_down = is_down(pass);
    let stable = &pass.roles.stable.0;
    let is_owners =
        !routes_to(owners, &pass.roles) || destinations(owners).iter().any(|it| name(it) == stable);
    is_down && pass.roles.is_one_version && is_owners
}

/// Whether all traffic must go to stable.
pub(crate) fn is_down(pass: &Pass) -> bool {
    pass.desired.value == 0 && pass.additional.iter().all(|it| it.weight == 0)
}

fn check_route(owners: &Value, live: &Value, trust: Trust, pass: &Pass) -> Result<(), String> {
    if !routes_to(owners, &pass.roles) {
        return match trust {
            Trust::Bytes => same("foreign route", live, owners),
            Trust::Traffic if is_down(pass) => same_traffic(live, owners, &pass.roles),
            _ => Ok(()),
        };
    }
    if is_rest(owners, pass) {
        return match trust {
            Trust::Bytes => same("route", live, owners),
            _ => same_traffic(live, owners, &pass.roles),
        };
    }
    is_divided(live, owners, trust, pass)
}

/// Checks that stable, canary and experiment have the shares that a pass asks for, and that other destinations have their
/// owner's weights.
fn is_divided(live: &Value, owners: &Value, trust: Trust, pass: &Pass) -> Result<(), String> {
    let roles = &pass.roles;
    let list = destinations(live);
    let experiments: Vec<Id> = pass
        .additional
        .iter()
        .map(|it| (it.service_name.clone(), None))
        .collect();
    let is_ours = |it: &Value| {
        let id = id(it);
        id == roles.stable || id == roles.canary || experiments.contains(&id)
    };
    let of_owner = |it: &&Value| !roles.is_anchor(it);
    let others: Vec<&Value> = destinations(owners)
        .iter()
        .filter(of_owner)
        .filter(|it| weight(it) != Some(0))
        .collect();
    // Without a record, a destination without traffic stays in the list.
    let is_gone = |it: &&Value| trust != Trust::Bytes && weight(it) == Some(0);
    let left = list.iter().filter(|it| !is_ours(it) && !is_gone(it));
    let left: Vec<&Value> = left.collect();
    if others != left {
        return Err(format!(
            "other destinations are {}, not {}: {}",
            texts(&left),
            texts(&others),
            show(live)
        ));
    }
    let share_of_ours = 100 - share(destinations(owners), |it| !roles.is_anchor(it));

    let max = i64::from(pass.desired.max);
    let mut wanted = Vec::new();
    if roles.canary != roles.stable {
        wanted.push((roles.canary.clone(), i64::from(pass.desired.value).min(max)));
    }
    wanted.extend(
        experiments
            .iter()
            .cloned()
            .zip(pass.additional.iter().map(|it| i64::from(it.weight))),
    );
    let sum: i64 = wanted.iter().map(|(_, weight)| weight).sum();
    let total = sum.max(max);
    wanted.push((roles.stable.clone(), total - sum));
    for (id, weight) in wanted {
        let found = share(list, |it| crate::documents::id(it) == id);
        let exact = share_of_ours * weight;
        // The weight is rounded, and at least 1 unless it is 0.
        let is_right = if weight == 0 || weight == total {
            found * total == exact
        } else {
            (found * total - exact).abs() <= total
        };
        let is_there = list.iter().any(|it| crate::documents::id(it) == id);
        if !is_right || is_there != (weight > 0) {
            return Err(format!(
                "{} gets {found} %, not {weight}/{total} of {share_of_ours} %: {}",
                id.0,
                show(live)
            ));
        }
    }
    let sum: i64 = shares(list).iter().sum();
    if sum != 100 {
        return Err(format!("the shares sum to {sum}: {}", show(live)));
    }
    let anchor = destinations(owners)
        .iter()
        .find(|it| roles.is_anchor(it))
        .map(attributes);
    let odd = list
        .iter()
        .find(|it| is_ours(it) && Some(attributes(it)) != anchor);
    if let Some(odd) = odd {
        return Err(format!(
            "{odd} has other attributes than the owner's destination: {}",
            show(owners)
        ));
    }
    Ok(())
}

/// Checks that the same destinations get the same traffic, whatever the form of their weights.
fn same_traffic(live: &Value, owners: &Value, roles: &Roles) -> Result<(), String> {
    let traffic = |route: &Value| {
        let list = destinations(route);
        let mut all: Vec<(String, i64)> = list
            .iter()
            .zip(shares(list))
            .filter(|(it, _)| weight(it) != Some(0))
            .map(|(it, share)| {
                let name = if roles.is_anchor(it) && id(it).1.is_none() {
                    &roles.stable.0
                } else {
                    name(it)
                };
                // The API server does not keep the order of keys.
                let mut attributes = attributes(it);
                attributes.sort_all_objects();
                (format!("{name} {attributes} {:?}", id(it).1), share)
            })
            .collect();
        if let [(_, share)] = all.as_mut_slice() {
            *share = 100;
        }
        all.sort();
        all
    };
    let (there, expected) = (traffic(live), traffic(owners));
    if there == expected {
        Ok(())
    } else {
        Err(format!("traffic is {there:?}, not {expected:?}"))
    }
}

/// Checks that the managed routes of a Rollout are those of the pass.
pub(crate) fn managed_routes(
    table: &Table,
    live: &Value,
    rollout: &str,
    pass: &Pass,
) -> Result<(), String> {
    let Some(expected) = pass.managed else {
        return Ok(());
    };
    if table.trust.iter().any(|trust| *trust != Trust::Bytes) {
        return Ok(());
    }
    let routes_there = |route: &&Value| routes_to(route, &pass.roles);
    let sources = http(&table.document).iter().filter(routes_there).count();
    for (prefix, is_set) in [
        (HEADER_ROUTE, expected.header),
        (MIRROR_ROUTE, expected.mirror),
    ] {
        let named = |route: &Value| {
            route["name"]
                .as_str()
                .is_some_and(|name| name.starts_with(prefix))
        };
        let routes = http(live)
            .iter()
            .enumerate()
            .filter(|(_, route)| managed_for(route, rollout))
            .filter(|(_, route)| named(route));
        let count = routes.clone().count();
        let wanted = if is_set { sources } else { 0 };
        if count != wanted {
            return Err(format!(
                "{}: {count} routes {prefix}, not {wanted}",
                table.key
            ));
        }
        for (at, route) in routes {
            let list = destinations(route);
            let canary = share(list, |it| id(it) == pass.roles.canary);
            let source = http(live)[at..].iter().find(|route| !is_managed(route));
            let is_right = match prefix {
                HEADER_ROUTE => list.len() == 1 && canary == 100,
                _ => source.is_some_and(|source| destinations(source) == list),
            };
            if !is_right {
                return Err(format!("{}: {}", table.key, show(route)));
            }
        }
    }
    Ok(())
}

/// Checks that a call for one Rollout did not change parts of others.
pub(crate) fn check_other_rollouts(
    table: &Table,
    before: &Value,
    after: &Value,
    rollout: &str,
    roles: &Roles,
    others: &[Roles],
) -> Result<(), String> {
    // The weights of a mirror route follow those of its source.
    let managed = |table: &Value| -> Vec<String> {
        let routes = http(table)
            .iter()
            .filter(|route| is_managed(route) && !managed_for(route, rollout));
        let mut routes: Vec<Value> = routes.cloned().collect();
        for route in routes.iter_mut().filter(|route| is_mirror(route)) {
            route["forwardTo"]["destinations"] = Value::Null;
        }
        routes.iter().map(Value::to_string).collect()
    };
    if managed(before) != managed(after) {
        return Err(format!(
            "{}: managed routes of another Rollout changed",
            table.key
        ));
    }
    // Without the annotation it is unknown who splits a route.
    let is_recorded = annotation(before).is_some();
    let routes = owned(before).into_iter().zip(owned(after)).enumerate();
    for (route, (before_at, after_at)) in routes {
        let (was, is) = (&http(before)[before_at], &http(after)[after_at]);
        let Some(owners) = http(&table.document).get(route) else {
            break;
        };
        let is_others = is_recorded && is_split_by_others(was, owners, others);
        let is_mine = routes_to(owners, roles)
            || table.trust.get(route) != Some(&Trust::Bytes)
            || !has_same_bytes(was, owners);
        if is_others || !is_mine {
            same("route that is not the Rollout's", is, was)?;
        }
    }
    Ok(())
}

fn same(what: &str, live: &Value, expected: &Value) -> Result<(), String> {
    let (live, expected) = (live.to_string(), expected.to_string());
    if live == expected {
        Ok(())
    } else {
        Err(format!("{what} is\n    {live}\n  not\n    {expected}"))
    }
}

fn texts(list: &[&Value]) -> String {
    let texts: Vec<String> = list.iter().map(ToString::to_string).collect();
    format!("[{}]", texts.join(", "))
}

/// Formats the destinations of a route.
pub(crate) fn show(route: &Value) -> String {
    let list = destinations(route).iter();
    let all: Vec<String> = list
        .map(|it| {
            let (name, hash) = id(it);
            let hash = hash.map(|hash| format!("@{hash}")).unwrap_or_default();
            let weight = weight(it)
                .map(|weight| format!(" {weight}"))
                .unwrap_or_default();
            format!("{name}{hash}{weight}")
        })
        .collect();
    format!("[{}]", all.join(", "))
}
