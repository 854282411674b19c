//! Edits of owners.
//!
//! An owner edits the live table, which has the plugin's parts. The same edit is made to the owner's document, which has
//! none.

use serde_json::{Value, json};

use crate::documents::{
    ANNOTATION, annotation, attributes, destination, destinations, destinations_mut,
    drop_annotation, drop_labels, frame, has_same_bytes, http, http_mut, id, is_managed, name,
    owned, share, shares, weight,
};
use crate::history::{Attribute, Edit};
use crate::oracle::{broken_rules, is_split_by};
use crate::owner::{Cut, Status, Table, Trust, is_broken, is_plugins};

const ELSEWHERE: &str = "elsewhere";

impl Table {
    /// Makes an edit to the owner's document and to the `live` table, which is returned; `None` if it is impossible.
    pub(crate) fn edit(
        &mut self,
        edit: Edit,
        live: Option<Value>,
        statuses: &[Status],
    ) -> Option<Value> {
        let Some(live) = live else {
            // These are the only edits of a table that does not exist.
            return match edit {
                Edit::Recreate | Edit::Reapply => Some(self.recreate()),
                _ => None,
            };
        };
        let mut both = Both {
            at: owned(&live),
            live,
            statuses,
            table: &mut *self,
        };
        both.edit(edit)?;
        both.doubt_full_weight();
        let live = both.live;
        self.was_invalid |= !broken_rules(&self.document).is_empty();
        if let Some(cut) = &mut self.cut {
            cut.is_forgotten |= !cut.is_recorded(&live);
        }
        Some(live)
    }
}

/// The live table and the owner's document.
struct Both<'a> {
    table: &'a mut Table,
    live: Value,
    /// Positions of the owner's routes in the live table.
    at: Vec<usize>,
    statuses: &'a [Status],
}

impl Both<'_> {
    fn edit(&mut self, edit: Edit) -> Option<()> {
        match edit {
            Edit::Rename(route) => {
                self.lose_identity(route, |(_, matchers), route| *matchers == route["matchers"])?;
                let name = self.fresh();
                self.each(route, |route| {
                    route["name"] = json!(name);
                    Some(())
                })
            }
            Edit::Move(from, to) => self.shift(from, to),
            Edit::Rework(from, to) => {
                self.edit(Edit::Rename(from))?;
                self.edit(Edit::Matchers(from))?;
                self.shift(from, to)
            }
            Edit::Copy(route) => self.copy(route),
            Edit::Remove(route) => self.remove(route).map(|_| ()),
            Edit::Cut(route) => {
                let route = self.wrap(route)?;
                let trust = self.table.trust[route];
                // The record may be matched to a copy without one.
                let has_copies = self.table.trust.iter().any(|it| *it != Trust::Bytes);
                let (live, owners) = self.remove(route)?;
                let mut cut = Cut {
                    rollout: self.status_of(&owners).map(|status| status.rollout),
                    live,
                    owners,
                    trust,
                    is_forgotten: has_copies,
                };
                cut.is_forgotten |= !cut.is_recorded(&self.live);
                self.table.cut = Some(cut);
                Some(())
            }
            Edit::Paste => {
                let cut = self.table.cut.take()?;
                let untouched = has_same_bytes(&cut.live, &cut.owners);
                let is_forgotten = cut.is_forgotten || !cut.is_recorded(&self.live);
                let trust = match self.trust_without_record(&cut.live, &cut.owners) {
                    _ if untouched => cut.trust,
                    _ if !is_forgotten && !self.table.is_spoiled => cut.trust,
                    trust => trust.min(cut.trust),
                };
                let owners = if trust == Trust::Nothing {
                    cut.live.clone()
                } else {
                    cut.owners
                };
                self.insert(0, cut.live, owners, trust);
                Some(())
            }
            Edit::Matchers(route) => {
                self.lose_identity(route, |(name, _), route| {
                    !name.is_null() && *name == route["name"]
                })?;
                let path = format!("/{}", self.fresh());
                self.each(route, |route| {
                    route["matchers"] = json!([{"uri": {"prefix": path}}]);
                    Some(())
                })
            }
            Edit::Stable(route, attribute) => {
                let count = self.table.count + 1;
                self.table.count = count;
                self.stable(route, |stable| match attribute {
                    Attribute::Port => stable["port"]["number"] = json!(8000 + count),
                    Attribute::Kind if stable.get("kind").is_some() => {
                        stable
                            .as_object_mut()
                            .map(|stable| stable.shift_remove("kind"));
                    }
                    Attribute::Kind => stable["kind"] = json!("SERVICE"),
                    Attribute::Cluster => {
                        stable["ref"]["cluster"] = json!(format!("cluster-{count}"));
                    }
                    Attribute::Filter => stable["filters"] = json!({"count": count}),
                })
            }
            Edit::Legacy(route, weight) => self.legacy(route, Some(weight.into())),
            Edit::NoLegacy(route) => self.legacy(route, None),
            Edit::Repoint(route) => {
                let at = self.wrap(route)?;
                let is_split = self.is_split(at);
                let status = self.status_of(&http(&self.table.document)[at])?.clone();
                let is_of_another_version = |it: &Value| {
                    let (_, hash) = id(it);
                    let roles = &status.roles;
                    hash.is_some() && hash != roles.stable.1 && hash != roles.canary.1
                };
                let list = destinations(&http(&self.live)[self.at[at]]);
                if list.iter().any(is_of_another_version) {
                    // The next call would have changed it: it is unknown which destination the owner means to replace.
                    return None;
                }
                if is_split && status.has_experiment {
                    return None;
                }
                self.stable(route, |stable| {
                    stable["ref"]["name"] = json!(ELSEWHERE);
                    stable
                        .as_object_mut()
                        .map(|stable| stable.shift_remove("subset"));
                })?;
                if is_split {
                    let has_record = annotation(&self.live).is_some()
                        && !self.table.is_spoiled
                        && self.table.trust[at] == Trust::Bytes;
                    let trust = if has_record {
                        Trust::Traffic
                    } else {
                        Trust::Nothing
                    };
                    self.table.trust[at] = self.table.trust[at].min(trust);
                    let list = destinations(&http(&self.live)[self.at[at]]);
                    if !list.iter().any(is_plugins) {
                        self.take_over(at);
                    }
                }
                Some(())
            }
            Edit::PointBack(route) => {
                let at = self.wrap(route)?;
                let live = &http(&self.live)[self.at[at]];
                let mut others = self.statuses.iter().skip(1);
                if others.any(|it| is_split_by(live, &it.roles)) {
                    // It forwarded to another Rollout before.
                    return None;
                }
                // Of ping and pong, owners write ping.
                let anchor = self.statuses.first()?.roles.anchors.iter().min()?.clone();
                let back = |route: &mut Value| {
                    let mut list = destinations_mut(route)?.iter_mut();
                    let found = list.find(|it| name(it) == ELSEWHERE)?;
                    found["ref"]["name"] = json!(anchor);
                    Some(())
                };
                let may_be_remembered = self.is_split(at) || annotation(&self.live).is_some();
                self.each(at, back)?;
                if may_be_remembered {
                    self.table.trust[at] = self.table.trust[at].min(Trust::Nothing);
                }
                Some(())
            }
            Edit::Replace(route) => {
                let at = self.wrap(route)?;
                self.each(at, |route| {
                    *destinations_mut(route)? = vec![destination(ELSEWHERE, None)];
                    Some(())
                })?;
                self.table.trust[at] = Trust::Bytes;
                Some(())
            }
            Edit::Drift(route) => {
                let at = self.wrap(route)?;
                let status = self.status_of(&http(&self.table.document)[at])?.clone();
                let list = destinations_mut(&mut http_mut(&mut self.live)[self.at[at]])?;
                let position = |wanted| list.iter().position(|it| id(it) == wanted);
                let stable = position(status.roles.stable)?;
                let canary = position(status.roles.canary)?;
                let sum = weight(&list[stable])? + weight(&list[canary])?;
                // After a rollback both are the same subset.
                if sum < 4 || stable == canary {
                    return None;
                }
                list[stable]["weight"] = json!(sum - 3);
                list[canary]["weight"] = json!(3);
                Some(())
            }
            Edit::Break(route) => {
                self.each(route, |route| {
                    if is_broken(route) {
                        return None;
                    }
                    destinations_mut(route)?.push(json!("unreadable"));
                    Some(())
                })?;
                let at = self.wrap(route)?;
                if self.table.trust[at] == Trust::Traffic {
                    // Without a record, the original cannot be derived from the route either.
                    self.take_over(at);
                }
                Some(())
            }
            Edit::Mend => {
                if self.table.is_spoiled {
                    // The error text asks owners to remove the annotation.
                    self.table.is_spoiled = false;
                    drop_annotation(self.live["metadata"].as_object_mut()?);
                }
                for table in [&mut self.live, &mut self.table.document] {
                    for route in http_mut(table) {
                        if let Some(list) = destinations_mut(route) {
                            list.retain(|it| !it.is_string());
                        }
                    }
                }
                Some(())
            }
            Edit::NoCanary(route) => {
                let at = self.wrap(route)?;
                self.drop_canary(at)
            }
            Edit::NoManaged => {
                let managed = http(&self.live).iter().position(is_managed)?;
                http_mut(&mut self.live).remove(managed);
                Some(())
            }
            Edit::NoLabels => {
                if self.statuses.iter().any(|it| it.roles.is_ping_pong()) {
                    // With ping-pong, the owner may point routes to either Service.
                    return None;
                }
                let managed = http(&self.live).iter().position(is_managed)?;
                let before = owned(&self.live).iter().filter(|at| **at < managed).count();
                let route = &mut http_mut(&mut self.live)[managed];
                drop_labels(route);
                // The name now belongs to the owner, so that the plugin may use its own again.
                route["name"] = json!(format!("{}-kept", self.table.count));
                self.table.count += 1;
                let route = route.clone();
                http_mut(&mut self.table.document).insert(before, route);
                self.table.trust.insert(before, Trust::Nothing);
                Some(())
            }
            // Without the record it is unknown which of two Rollouts splits a route.
            Edit::NoAnnotation | Edit::SpoilAnnotation | Edit::NothingOfOurs
                if self.are_rivals() =>
            {
                None
            }
            Edit::NoAnnotation => {
                annotation(&self.live)?;
                self.forget();
                drop_annotation(self.live["metadata"].as_object_mut()?);
                self.table.is_spoiled = false;
                Some(())
            }
            Edit::SpoilAnnotation => {
                annotation(&self.live)?;
                self.forget();
                self.table.is_spoiled = true;
                self.live["metadata"]["annotations"][ANNOTATION] = json!("{unreadable");
                Some(())
            }
            Edit::NothingOfOurs => {
                annotation(&self.live)?;
                for at in 0..self.at.len() {
                    self.drop_canary(at);
                }
                http_mut(&mut self.live).retain(|route| !is_managed(route));
                self.at = owned(&self.live);
                self.edit(Edit::NoAnnotation)
            }
            Edit::Metadata => {
                let value = json!(self.fresh());
                for table in [&mut self.live, &mut self.table.document] {
                    table["metadata"]["labels"]["owner"] = value.clone();
                    table["metadata"]["annotations"]["owner"] = value.clone();
                    table["spec"]["weight"] = json!(value.to_string().len());
                }
                Some(())
            }
            Edit::Reapply => {
                // `kubectl apply` of a document without the annotation does not change the annotation.
                self.live["spec"] = self.table.document["spec"].clone();
                // A rebuilt record has other bytes than the document.
                if annotation(&self.live).is_none() {
                    self.table.in_step();
                }
                Some(())
            }
            Edit::Recreate => {
                self.live = self.table.recreate();
                Some(())
            }
            Edit::Delete => {
                self.table.is_deleted = true;
                Some(())
            }
            Edit::Deselect | Edit::Select => {
                let is_selected = edit == Edit::Select;
                self.table.is_selected = is_selected;
                let value = if is_selected { "on" } else { "off" };
                for table in [&mut self.live, &mut self.table.document] {
                    table["metadata"]["labels"]["canary"] = json!(value);
                }
                Some(())
            }
        }
    }

    fn are_rivals(&self) -> bool {
        let mut anchors = self.statuses.iter().flat_map(|it| &it.roles.anchors);
        let mut seen = std::collections::HashSet::new();
        !anchors.all(|anchor| seen.insert(anchor))
    }

    fn fresh(&mut self) -> String {
        self.table.count += 1;
        format!("n{}", self.table.count)
    }

    fn wrap(&self, route: usize) -> Option<usize> {
        // A missing or additional route is reported as a separate violation.
        let routes = self.at.len().min(self.table.trust.len());
        route.checked_rem(routes)
    }

    /// Notes that a route loses its name or its matchers, by which its record is found, unless `is_left` for one that the
    /// plugin knows. Afterwards only what the plugin inserted identifies it, and other routes have that too.
    fn lose_identity(
        &mut self,
        route: usize,
        is_left: impl Fn(&(Value, Value), &Value) -> bool,
    ) -> Option<()> {
        let route = self.wrap(route)?;
        let live = &http(&self.live)[self.at[route]];
        if !self.is_split(route) || self.table.known.iter().any(|known| is_left(known, live)) {
            return Some(());
        }
        if destinations(live).iter().any(is_plugins) {
            self.table.trust[route] = self.table.trust[route].min(Trust::Traffic);
        } else {
            self.take_over(route);
        }
        Some(())
    }

    /// Changes one route in both documents.
    fn each(&mut self, route: usize, change: impl Fn(&mut Value) -> Option<()>) -> Option<()> {
        let route = self.wrap(route)?;
        let mut live = http(&self.live)[self.at[route]].clone();
        let mut owners = http(&self.table.document)[route].clone();
        change(&mut live)?;
        change(&mut owners)?;
        http_mut(&mut self.live)[self.at[route]] = live;
        http_mut(&mut self.table.document)[route] = owners;
        Some(())
    }

    /// Returns the Rollout to which an owner's route forwards.
    fn status_of(&self, owners: &Value) -> Option<&Status> {
        let matches = |status: &&Status| {
            destinations(owners)
                .iter()
                .any(|it| status.roles.is_anchor(it))
        };
        self.statuses.iter().find(matches)
    }

    fn is_split(&self, route: usize) -> bool {
        !has_same_bytes(
            &http(&self.live)[self.at[route]],
            &http(&self.table.document)[route],
        )
    }

    /// Changes the stable destination in both documents, if the live route has it.
    fn stable(&mut self, route: usize, change: impl Fn(&mut Value)) -> Option<()> {
        let route = self.wrap(route)?;
        let status = self.status_of(&http(&self.table.document)[route])?.clone();
        let is_split = self.is_split(route);
        let mut live = http(&self.live)[self.at[route]].clone();
        let mut owners = http(&self.table.document)[route].clone();
        for (route, is_live) in [(&mut live, true), (&mut owners, false)] {
            let list = destinations_mut(route)?;
            let found = list.iter().position(|it| {
                if is_live && is_split {
                    id(it) == status.roles.stable
                } else {
                    status.roles.is_anchor(it)
                }
            });
            change(&mut list[found?]);
        }
        // With ping-pong the live destination is not the one that the owner wrote.
        if is_split && status.roles.is_ping_pong() {
            self.table.trust[route] = self.table.trust[route].min(Trust::Nothing);
        }
        http_mut(&mut self.live)[self.at[route]] = live;
        http_mut(&mut self.table.document)[route] = owners;
        Some(())
    }

    fn shift(&mut self, from: usize, to: usize) -> Option<()> {
        let (from, to) = (self.wrap(from)?, self.wrap(to)?);
        let live = http_mut(&mut self.live).remove(self.at[from]);
        let owners = http_mut(&mut self.table.document).remove(from);
        let trust = self.table.trust.remove(from);
        self.at = owned(&self.live);
        self.insert(to, live, owners, trust);
        Some(())
    }

    fn insert(&mut self, at: usize, live: Value, owners: Value, trust: Trust) {
        let end = http(&self.live).len();
        let there = self.at.get(at).copied().unwrap_or(end);
        http_mut(&mut self.live).insert(there, live);
        let at = at.min(self.table.trust.len());
        http_mut(&mut self.table.document).insert(at, owners);
        self.table.trust.insert(at, trust);
        self.at = owned(&self.live);
    }

    fn copy(&mut self, route: usize) -> Option<()> {
        let at = self.wrap(route)?;
        let name = self.fresh();
        let copy = |route: &Value| {
            let mut copy = route.clone();
            copy["name"] = json!(name);
            copy["matchers"] = json!([{"uri": {"prefix": format!("/{name}")}}]);
            copy
        };
        let live = copy(&http(&self.live)[self.at[at]]);
        let owners = copy(&http(&self.table.document)[at]);
        if let Some(cut) = &mut self.table.cut {
            // Its record may be matched to the copy.
            cut.is_forgotten = true;
        }
        let trust = if self.is_split(at) {
            let trust = self.trust_without_record(&live, &owners);
            let trust = trust.min(self.table.trust[at]);
            // The only record may be matched to the copy.
            self.table.trust[at] = self.table.trust[at].min(trust);
            trust
        } else {
            self.table.trust[at]
        };
        let owners = if trust == Trust::Nothing {
            live.clone()
        } else {
            owners
        };
        self.insert(at + 1, live, owners, trust);
        Some(())
    }

    fn remove(&mut self, route: usize) -> Option<(Value, Value)> {
        if self.at.len() < 2 {
            return None;
        }
        let route = self.wrap(route)?;
        let live = http_mut(&mut self.live).remove(self.at[route]);
        let owners = http_mut(&mut self.table.document).remove(route);
        self.table.trust.remove(route);
        self.at = owned(&self.live);
        Some((live, owners))
    }

    /// Sets the weight of `legacy`. In the document, a stable destination with a weight gets the rest.
    fn legacy(&mut self, route: usize, to: Option<i64>) -> Option<()> {
        let route = self.wrap(route)?;
        let owners = &http(&self.table.document)[route];
        if is_broken(owners) {
            return None;
        }
        let status = self.status_of(owners)?.clone();
        let is_split = self.is_split(route);
        let has = |route: &Value| {
            destinations(route)
                .iter()
                .find(|it| name(it) == "legacy")
                .map(weight)
        };
        let before = has(owners);
        // A destination without traffic is not in the list while the route is split.
        if is_split && before != has(&http(&self.live)[self.at[route]]) {
            return None;
        }
        if to.is_none() && before.is_none() {
            return None;
        }
        // The live route does not change, so the weight of stable does not follow.
        let is_as_much = before.flatten().unwrap_or(0) == to.unwrap_or(0);
        if is_split && (before == Some(to) || self.table.was_invalid && is_as_much) {
            return None;
        }
        // The document was reapplied over a recorded split: it is unknown whether the plugin removed the destination.
        if before == Some(Some(0)) && !is_split && annotation(&self.live).is_some() {
            return None;
        }
        // In `[reviews, legacy]` without weights, `legacy` has half of the traffic and no number.
        let change = |route: &mut Value| {
            let list = destinations_mut(route)?;
            match (list.iter().position(|it| name(it) == "legacy"), to) {
                (Some(at), None) => {
                    list.remove(at);
                }
                (Some(at), Some(to)) => list[at]["weight"] = json!(to),
                (None, Some(to)) => list.push(destination("legacy", u32::try_from(to).ok())),
                (None, None) => {}
            }
            Some(())
        };
        self.each(route, change)?;
        let is_unrecorded = self.table.trust[route] != Trust::Bytes;
        if is_split && (is_unrecorded || self.table.is_spoiled || annotation(&self.live).is_none())
        {
            self.table.trust[route] = Trust::Nothing;
        }
        for (table, at) in [
            (&mut self.table.document, route),
            (&mut self.live, self.at[route]),
        ] {
            let list = destinations_mut(&mut http_mut(table)[at])?;
            let is_stable = |it: &Value| status.roles.is_anchor(it);
            let others = share(list, |it| !is_stable(it) && !is_plugins(it));
            if list.iter().any(is_plugins) {
                continue;
            }
            for stable in list
                .iter_mut()
                .filter(|it| is_stable(it) && weight(it).is_some())
            {
                stable["weight"] = json!(100 - others);
            }
        }
        Some(())
    }

    /// Removes the plugin's destinations from the live route.
    fn drop_canary(&mut self, route: usize) -> Option<()> {
        let at = self.at[route];
        let list = destinations_mut(&mut http_mut(&mut self.live)[at])?;
        let kept: Vec<Value> = list.iter().filter(|it| !is_plugins(it)).cloned().collect();
        if kept.is_empty() || kept.len() == list.len() || !self.is_split(route) {
            return None;
        }
        *destinations_mut(&mut http_mut(&mut self.live)[at])? = kept;
        let has_no_target = self.status_of(&http(&self.live)[at]).is_none();
        let is_unrecorded = self.table.trust[route] != Trust::Bytes;
        if has_no_target || is_unrecorded || annotation(&self.live).is_none() {
            self.take_over(route);
        }
        Some(())
    }

    /// Notes that the record of the table is lost.
    fn forget(&mut self) {
        for route in 0..self.at.len().min(self.table.trust.len()) {
            if !self.is_split(route) {
                // A route to the canary alone could be one that was split at 100 %.
                if destinations(&http(&self.table.document)[route])
                    .iter()
                    .any(is_plugins)
                {
                    self.table.trust[route] = Trust::Nothing;
                }
                continue;
            }
            let trust = self.trust_without_record(
                &http(&self.live)[self.at[route]],
                &http(&self.table.document)[route],
            );
            self.table.trust[route] = self.table.trust[route].min(trust);
            if self.table.trust[route] == Trust::Nothing {
                self.take_over(route);
            }
        }
    }

    /// Without a record, a route to the canary alone is assumed to be split at 100 % only if no route forwards to stable.
    fn doubt_full_weight(&mut self) {
        if annotation(&self.live).is_some() {
            return;
        }
        self.at = owned(&self.live);
        for route in 0..self.at.len().min(self.table.trust.len()) {
            let Some(status) = self.status_of(&http(&self.table.document)[route]) else {
                continue;
            };
            let routes_there = |at: &usize| {
                let mut list = destinations(&http(&self.live)[*at]).iter();
                list.any(|it| id(it) == status.roles.stable)
            };
            let is_full = !routes_there(&self.at[route]);
            let is_target = self.at.iter().any(routes_there);
            if self.table.trust[route] == Trust::Traffic && is_full && is_target {
                self.take_over(route);
            }
        }
    }

    /// Takes the live route as the owner's text from now on, even if the plugin wrote it.
    fn take_over(&mut self, route: usize) {
        http_mut(&mut self.table.document)[route] = http(&self.live)[self.at[route]].clone();
        self.table.trust[route] = Trust::Nothing;
    }

    /// Returns what may be expected of a route without a record.
    fn trust_without_record(&self, live: &Value, owners: &Value) -> Trust {
        let sum: i64 = shares(destinations(owners)).iter().sum();
        if sum != 100 || frame(live) != frame(owners) || is_broken(live) {
            return Trust::Nothing;
        }
        let Some(status) = self.status_of(owners) else {
            return Trust::Nothing;
        };
        let list = destinations(live);
        let of = |wanted: &crate::controller::Id| list.iter().find(|it| id(it) == *wanted);
        let ours = |it: &Value| id(it) == status.roles.stable || id(it) == status.roles.canary;
        let managed = share(list, ours);
        let others: Vec<_> = list.iter().filter(|it| !ours(it)).collect();
        if status.has_experiment || others.iter().any(|it| is_plugins(it)) {
            return Trust::Nothing;
        }
        let in_place = destinations(owners)
            .iter()
            .find(|it| status.roles.is_anchor(it));
        let Some(in_place) = in_place else {
            return Trust::Nothing;
        };
        match (of(&status.roles.stable), of(&status.roles.canary)) {
            (None, Some(canary)) => {
                let mut routes = owned(&self.live)
                    .into_iter()
                    .map(|at| &http(&self.live)[at]);
                let is_target = routes.any(|route| {
                    let mut list = destinations(route).iter();
                    list.any(|it| id(it) == status.roles.stable)
                });
                let is_full = status.canary >= status.max
                    && shares(list).iter().sum::<i64>() == 100
                    && !is_target;
                let is_alike = attributes(canary) == attributes(in_place);
                if is_full && is_alike {
                    Trust::Traffic
                } else {
                    Trust::Nothing
                }
            }
            (Some(_), Some(canary)) => {
                let expected = managed * status.canary;
                let there = weight(canary).unwrap_or(0) * status.max;
                // The share of the other destinations shows how much was divided.
                let is_expected = (expected - there).abs() <= status.max
                    && shares(list).iter().sum::<i64>() == 100
                    && status.canary > 0
                    && status.canary < status.max;
                if is_expected {
                    Trust::Traffic
                } else {
                    Trust::Nothing
                }
            }
            _ => Trust::Nothing,
        }
    }
}
