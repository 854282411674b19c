//! SetWeight: computes the new destinations of each route, and the new record.
//!
//! Every call starts from the list that the owner wrote, not from the result of the previous call. So a repeated call finds
//! no difference, and SetWeight 0 gives the owner's list.
//!
//! ```text
//! owner's list                  SetWeight 25, share 80          record
//! reviews           80          reviews           60            reviews 80 at 0
//! legacy            20          reviews-canary    20            reviews-canary was inserted
//!                               legacy            20
//! ```
//!
//! 1. `legacy` is foreign and keeps its 20. The *share* is what is left for the Rollout: 80.
//! 2. [`weight::split`] divides the share: 25 % of 80 for the canary, the rest for stable.
//! 3. The list has no canary destination, so one is made from the *anchor*, the owner's destination `reviews`.
//! 4. The record gets the owner's JSON of `reviews`, and says that `reviews-canary` was inserted.
//!
//! At SetWeight 100 stable gets 0 of the share, so `reviews` is removed (or stays with weight 0 if `zeroWeight: keep` is
//! set).

use std::collections::BTreeSet;

use crate::destinations::{Destination, DestinationId, DestinationList, Distinction, ListForm};
use crate::error::Refusal;
use crate::intent::{AdditionalDestination, Intent, ManagedRouteUpdate, WeightSplit};
use crate::plan::Warning;
use crate::record::{Hash, Original, Record, RecordBuilder, RouteEntry, Split, StableInList};
use crate::recovery::{share_of, taken_by_others, without_canary};
use crate::roles::{Role, Roles, Version};
use crate::route::Protocol;
use crate::table_state::{Action, Relation, RouteState, TableState};
use crate::weight;

/// Whether the plan may increase the canary's share of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CanaryGrowth {
    Allowed,
    Withheld,
}

impl CanaryGrowth {
    /// What may be done with managed routes if `planned` was asked for.
    pub(crate) fn limit(self, planned: ManagedRouteUpdate) -> ManagedRouteUpdate {
        match (self, planned) {
            // Inserting a managed route would send more requests to the canary.
            (Self::Withheld, ManagedRouteUpdate::AsPlanned) => ManagedRouteUpdate::KeepExisting,
            (_, planned) => planned,
        }
    }
}

/// The result of a SetWeight for the routes of a table.
pub(crate) struct WeightPlan<'a> {
    /// The new list of each route of [`TableState::routes`]; `None` leaves the route unchanged.
    pub(crate) targets: Vec<Option<DestinationList<'a>>>,
    pub(crate) record: Record,
    /// Whether the canary's share of a route increases, or would increase if that were allowed.
    pub(crate) grows: bool,
    /// Whether the canary's share decreases in a route that is recorded as split.
    pub(crate) shrinks: bool,
    /// Whether any selected route forwards to the Rollout.
    pub(crate) routes_to_rollout: bool,
    /// Whether nothing is rolled out.
    pub(crate) is_rest: bool,
    /// The refusals of the routes that stay unchanged although the intent asks for a change.
    pub(crate) left: Vec<Refusal>,
    pub(crate) warnings: Vec<Warning>,
}

/// Computes the weights of all routes.
///
/// # Errors
/// Returns `Err` if the weights themselves are invalid, or cannot be set on any route.
pub(crate) fn plan_weights<'a>(
    state: &TableState<'a>,
    split: &'a WeightSplit,
    growth: CanaryGrowth,
) -> Result<WeightPlan<'a>, Refusal> {
    let request = WeightRequest::new(state, split)?;
    // A growing weight without the record could make the canary's present share the owner's.
    if let Some(problem) = &state.records.problem
        && !request.is_down()
    {
        return Err(problem.clone());
    }
    let mut weights = WeightPlan {
        targets: Vec::with_capacity(state.routes.len()),
        record: Record::default(),
        grows: false,
        shrinks: false,
        routes_to_rollout: false,
        is_rest: request.is_rest(),
        left: state.records.problem.iter().cloned().collect(),
        warnings: state.warnings.clone(),
    };
    let has_unnamed = |extra: &AdditionalDestination| extra.service.is_empty();
    if split.additional.iter().any(has_unnamed) {
        weights.warnings.push(Warning::UnnamedService);
    }
    let mut record = RecordBuilder::new(&state.records.own);
    let mut unsplit = Vec::new();
    for route_state in &state.routes {
        let entries = record.len();
        let target = weights.plan_route(&request, route_state, growth, &mut record);
        // Neither split nor kept: all that it sends to the canary is its owner's.
        if record.len() == entries {
            unsplit.push(weights.targets.len());
        }
        weights.targets.push(target);
    }
    if !state.lost.is_empty() {
        let protocol = |lost: &RouteEntry| {
            let split = state.records.own.split_of(lost);
            split.map(|split| split.protocol).unwrap_or_default()
        };
        for lost in &state.lost {
            weights.warnings.push(Warning::RouteGone {
                route: lost.label(protocol(lost)),
            });
        }
        // The route may come back, so its entry stays as long as another route is split, or may be: a route that cannot be
        // decoded may be the lost one.
        let is_unread = |it: &RouteState<'_>| matches!(it.action, Action::Unreadable(_));
        if record.len() > 0 || state.routes.iter().any(is_unread) {
            // The next call would take a route without its entry for a lost one with equal matchers, and drop that entry too.
            let dropped = unsplit.iter().filter_map(|it| state.routes.get(*it));
            let dropped = dropped.filter(|it| it.entry.is_some());
            let dropped: BTreeSet<(Protocol, Hash)> =
                dropped.map(|it| (it.route.protocol, it.matchers)).collect();
            let kept = |it: &&&RouteEntry| !dropped.contains(&(protocol(it), it.matchers));
            for lost in state.lost.iter().filter(kept) {
                record.keep(RouteEntry::clone(lost));
            }
        }
    }
    weights.record = record.finish();
    weights.add_owner_routes(state, &unsplit);
    weights.record.keep_positions(&state.records.own);
    Ok(weights)
}

impl RouteState<'_> {
    /// An entry for this route, without its split.
    fn new_entry(&self) -> RouteEntry {
        RouteEntry {
            name: self.route.own_name().to_owned(),
            position: self.route.owner_index,
            matchers: self.matchers,
            split: 0,
        }
    }
}

impl<'a> WeightPlan<'a> {
    /// Decides one route. Returns its new list (`None` leaves the route unchanged), and adds it to the `record`.
    fn plan_route(
        &mut self,
        request: &WeightRequest<'_, 'a>,
        route_state: &RouteState<'a>,
        growth: CanaryGrowth,
        record: &mut RecordBuilder<'a>,
    ) -> Option<DestinationList<'a>> {
        let mut keep = || match (route_state.entry, route_state.split) {
            (Some(entry), _) => record.keep(entry.clone()),
            // A copy is recognised by the weights of its source, which this call may change.
            (None, Some(split)) => record.add(route_state.new_entry(), split),
            (None, None) => {}
        };
        let (live, relation) = match &route_state.action {
            // A route that no longer forwards loses its entry.
            Action::NotForwarding(_) => return None,
            Action::Unreadable(refusal) => {
                keep();
                // A route that is neither selected nor recorded is not part of the request.
                if route_state.route.is_selected || route_state.entry.is_some() {
                    self.left.push(refusal.clone());
                    // Up is all or nothing, and it is not known whether this route would grow.
                    self.grows |= !request.is_rest();
                }
                return None;
            }
            Action::Forward { live, relation } => (live, relation),
        };
        let target = match relation {
            Relation::Unrelated { owner_list, .. } => Ok(match route_state.split {
                Some(split) => PlannedList::released(owner_list.clone(), split, None),
                None => PlannedList::unsplit(owner_list.clone()),
            }),
            Relation::Managed { owner_list, anchor } => {
                self.routes_to_rollout = true;
                let warnings = &mut self.warnings;
                request.planned_list(route_state, owner_list, anchor, warnings)
            }
            Relation::StableReplaced {
                owner_list,
                replacement,
                refusal,
            } => {
                self.routes_to_rollout = true;
                // Down always lands: what the owner put in place of stable gets the traffic. Up needs a decision of the
                // owner.
                if request.is_down() || !route_state.route.is_selected {
                    self.warnings.push(Warning::Repointed {
                        route: route_state.route.label(),
                    });
                    let list = owner_list.clone();
                    Ok(match route_state.split {
                        Some(split) => PlannedList::released(list, split, Some(replacement)),
                        None => PlannedList::unsplit(list),
                    })
                } else {
                    Err(refusal.clone())
                }
            }
            Relation::SplitByOther(rollout) => {
                let managed = &request.intent.managed;
                // Both Rollouts come to rest with the one that split the route.
                if request.is_rest() && !managed.inserts_any(growth.limit(managed.update)) {
                    self.routes_to_rollout = true;
                    return None;
                }
                Err(Refusal::SplitByOther {
                    route: route_state.route.label(),
                    stable: request.roles.stable.label(),
                    rollout: rollout.clone(),
                })
            }
            Relation::RecordUnreadable => {
                let applied = request.intent.applied.as_ref();
                let list = without_canary(live, request.roles, applied, !request.is_rest())
                    .filter(|_| route_state.route.is_selected);
                // Without the record, nobody knows to which Rollout the route forwards.
                self.routes_to_rollout |= route_state.route.is_selected;
                return list;
            }
        };
        let target = match target {
            Ok(target) => target,
            Err(refusal) => {
                self.left.push(refusal);
                // The refused route keeps its share. That is an error only if the share was to grow.
                self.grows |= request.may_grow(live);
                keep();
                return None;
            }
        };
        self.shrinks |= route_state.split.is_some() && request.canary_shrinks(live, &target.list);
        if request.grows(live, &target.list) {
            self.grows = true;
            // Another table has failed, so this route stays as it is, with its entry.
            if growth == CanaryGrowth::Withheld {
                keep();
                return None;
            }
        }
        if let Some(update) = target.update {
            let mut entry = route_state.new_entry();
            if let Some(old) = route_state.entry {
                entry.split = old.split;
            }
            match (update, route_state.entry, route_state.split) {
                (RecordUpdate::Keep, Some(_), _) => record.keep(entry),
                (RecordUpdate::Keep, None, Some(split)) => record.add(entry, split),
                (RecordUpdate::Keep, None, None) => {}
                (RecordUpdate::Replace(split), _, _) => record.add(entry, &split),
            }
        }
        Some(target.list)
    }

    /// Records which of the `unsplit` routes have a destination that is inserted in others: their owner wrote it. After this plan
    /// they may look like copies of a split route.
    fn add_owner_routes(&mut self, state: &TableState<'_>, unsplit: &[usize]) {
        let mut splits: Vec<&Split> = Vec::new();
        for split in &self.record.splits {
            if !splits.iter().any(|known| known.added == split.added) {
                splits.push(split);
            }
        }
        let known = &mut self.record.owner_routes;
        for index in unsplit {
            let Some(route_state) = state.routes.get(*index) else {
                continue;
            };
            let list = match (self.targets.get(*index), route_state.relation()) {
                (Some(Some(target)), _) => target,
                // A refused route stays as it is. Only a rebuilt list is not its owner's.
                (_, Some(Relation::Managed { owner_list, .. })) => owner_list,
                _ => continue,
            };
            let mut destinations = list.destinations.iter();
            if destinations.any(|it| splits.iter().any(|split| split.has_inserted(it))) {
                let hash = route_state.matchers.with_name(route_state.route.name);
                if !known.contains(&hash) {
                    known.push(hash);
                }
            }
        }
    }
}

/// The new list of a route.
struct PlannedList<'a> {
    list: DestinationList<'a>,
    /// How the record changes; `None` if the list is the owner's, so the route needs no entry.
    update: Option<RecordUpdate>,
}

/// How the record entry of a split route changes.
enum RecordUpdate {
    /// The recorded split stays.
    Keep,
    /// This is the new split.
    Replace(Box<Split>),
}

impl<'a> PlannedList<'a> {
    /// The owner's list.
    fn unsplit(list: DestinationList<'a>) -> Self {
        Self {
            list: list.at_rest(),
            update: None,
        }
    }

    /// The owner's list of a route that was split and no longer is.
    ///
    /// The weight of stable was written for the recorded share. If the owner changed weights meanwhile and the sum is not 100 any
    /// more, stable gets the difference: `reviews 80, legacy 40` becomes `reviews 60, legacy 40`.
    ///
    /// `stable` is what is in the place of the recorded stable destination, if that is not in the list any more.
    fn released(
        mut list: DestinationList<'a>,
        split: &Split,
        stable: Option<&Destination<'a>>,
    ) -> Self {
        let is_recorded = |it: &Destination<'a>| {
            let first = split.originals.first();
            first.is_some_and(|first| split.is(it, first))
        };
        let stable = stable.filter(|_| !list.destinations.iter().any(is_recorded));
        let is_stable = |it: &Destination<'a>| match stable {
            Some(stable) => it.is_same(stable),
            None => is_recorded(it),
        };
        // The owner's own weights of the canary and of experiments stay.
        let is_other = |it: &Destination<'a>| !is_stable(it) && split.has_original(it);
        let share = share_of(&list, |it| is_stable(it) || is_other(it));
        if split.share != share && !list.is_valid_without_idle() {
            let others = list.destinations.iter().filter(|it| is_other(it));
            let others = others.filter_map(Destination::nonzero_weight);
            let rest = share.saturating_sub(others.fold(0, u32::saturating_add));
            for destination in &mut list.destinations {
                if rest > 0 && is_stable(destination) && destination.nonzero_weight().is_some() {
                    *destination = destination.clone().with_weight(Some(rest));
                }
            }
        }
        Self::unsplit(list)
    }
}

/// A validated SetWeight request.
struct WeightRequest<'w, 'a> {
    roles: &'w Roles<'a>,
    intent: &'a Intent,
    desired: u32,
    max: u32,
    /// The Services of an experiment that get traffic. They are distinct, and none is the stable or the canary Service.
    additional: Vec<(Role<'a>, u32)>,
    /// Whether a destination of the owner that gets no traffic stays in the list with weight 0 (`zeroWeight: keep`).
    keeps_zero: bool,
}

impl<'w, 'a> WeightRequest<'w, 'a> {
    fn new(state: &'w TableState<'a>, split: &'a WeightSplit) -> Result<Self, Refusal> {
        let roles = &state.roles;
        let max = u32::try_from(split.max).ok().filter(|max| *max > 0);
        // 0 is nothing of any maximum: an abort moves traffic back with an invalid one too.
        let is_zero = split.desired == 0 && split.additional.iter().all(|it| it.weight == 0);
        let max = max.or(is_zero.then_some(1));
        let max = max.ok_or(Refusal::MaxWeight(split.max))?;
        let mut desired = checked_weight(roles.canary.name(), split.desired)?.min(max);
        let mut additional: Vec<(Role<'a>, u32)> = Vec::new();
        for extra in &split.additional {
            let service = extra.service.as_str();
            let weight = checked_weight(service, extra.weight)?;
            if service.is_empty() || weight == 0 {
                continue;
            }
            match roles.version_of(service) {
                // It gets what the others leave.
                Version::Stable => {}
                // An experiment may run the canary's own Service: then one destination gets both weights.
                Version::Canary => desired = desired.saturating_add(weight),
                Version::Additional => {
                    let mut known = additional.iter_mut();
                    match known.find(|(role, _)| role.name() == service) {
                        Some((_, sum)) => *sum = sum.saturating_add(weight),
                        None => {
                            let role = roles.additional(service, extra.ports.as_ref());
                            additional.push((role, weight));
                        }
                    }
                }
            }
        }
        if desired > 0 {
            roles.stable.check_hash()?;
            roles.canary.check_hash()?;
            // With one version the canary's subset would be the stable one.
            if !roles.has_two_versions() {
                desired = 0;
            }
        }
        Ok(Self {
            roles,
            intent: state.intent,
            desired,
            max,
            additional,
            keeps_zero: state.config.keeps_zero_weights(),
        })
    }

    /// Whether all traffic goes to the stable destination.
    fn is_down(&self) -> bool {
        self.desired == 0 && self.additional.is_empty()
    }

    /// Whether nothing is rolled out: all traffic goes to the stable destination, and the table is as its owner wrote it.
    fn is_rest(&self) -> bool {
        self.is_down() && !self.roles.must_separate_pods(self.intent)
    }

    /// Whether the canary's share would increase in a route that cannot be planned.
    fn may_grow(&self, live: &DestinationList<'_>) -> bool {
        let canary = u64::from(self.share(live, &self.roles.canary));
        // The route cannot be planned, so the weight is compared as if the Rollout had the whole route.
        let wanted = u64::from(self.desired) * 100 / u64::from(self.max);
        !self.is_rest() && (wanted > canary || !self.additional.is_empty())
    }

    /// Whether the share of the canary, or of a Service of an experiment, is larger in `target` than in `live`.
    fn grows(&self, live: &DestinationList<'_>, target: &DestinationList<'_>) -> bool {
        let mut roles = [&self.roles.canary].into_iter();
        let mut additional = self.additional.iter().map(|(role, _)| role);
        let grows = |role: &Role<'_>| self.share(target, role) > self.share(live, role);
        roles.any(grows) || additional.any(grows)
    }

    /// Whether the share of the canary is smaller in `target` than in `live`.
    fn canary_shrinks(&self, live: &DestinationList<'_>, target: &DestinationList<'_>) -> bool {
        let canary = &self.roles.canary;
        self.share(target, canary) < self.share(live, canary)
    }

    /// The sum of the effective weights of the destinations in a role, in percent. Stable destinations are not counted.
    fn share(&self, list: &DestinationList<'_>, role: &Role<'_>) -> u32 {
        let destinations = list.destinations.iter().zip(list.effective_weights());
        let destinations = destinations
            // With ping-pong or one version, one destination may be in both roles.
            .filter(|(destination, _)| role.is(destination) && !self.roles.stable.is(destination));
        destinations.fold(0, |sum: u32, (_, weight)| sum.saturating_add(weight))
    }

    /// Computes the new list of a route that forwards to the Rollout.
    fn planned_list(
        &self,
        route_state: &RouteState<'a>,
        owner_list: &DestinationList<'a>,
        anchor: &Destination<'a>,
        warnings: &mut Vec<Warning>,
    ) -> Result<PlannedList<'a>, Refusal> {
        let route = &route_state.route;
        let split = route_state.split;
        let ours = match self.rollout_destinations(route_state, owner_list, anchor) {
            Ok(ours) => ours,
            // At rest, the owner's list may be ambiguous.
            Err(_) if self.is_rest() => return Ok(PlannedList::unsplit(owner_list.clone())),
            Err(refusal) => return Err(refusal),
        };
        let destinations: Vec<&Destination<'a>> = {
            let ours = ours.iter().map(|(_, mine)| mine);
            [anchor].into_iter().chain(ours).collect()
        };
        let is_ours = |it: &Destination<'a>| destinations.iter().any(|mine| it.is_same(mine));
        let share = share_of(owner_list, is_ours);
        if self.is_rest() && (share == 0 || !self.canary_has_share(owner_list)) {
            return Ok(match split {
                Some(split) => PlannedList::released(owner_list.clone(), split, Some(anchor)),
                None => PlannedList::unsplit(owner_list.clone()),
            });
        }
        if share == 0 {
            return Err(Refusal::NoShare {
                route: route.label(),
                stable: self.roles.stable.label(),
                taken: taken_by_others(owner_list, is_ours),
            });
        }
        if self.is_rest() && self.roles.stable.is(anchor) {
            warnings.push(Warning::OwnerCanaryShare {
                route: route.label(),
                canary: self.roles.canary.name().to_owned(),
            });
        }
        let are_owners_weights = split.is_none_or(|split| split.share == share);
        if are_owners_weights && let Some(rule) = owner_list.broken_rule() {
            warnings.push(Warning::OwnerWeights {
                route: route.label(),
                rule,
            });
        }
        self.split(route_state, owner_list, anchor, &ours, share)
    }

    /// The destinations that divide the share: stable, canary and those of an experiment. Each is the one in the owner's
    /// list, or else a copy of the anchor.
    ///
    /// # Errors
    /// Returns `Err` if the owner's list has one of them more than once.
    fn rollout_destinations<'s>(
        &'s self,
        route_state: &RouteState<'a>,
        owner_list: &DestinationList<'a>,
        anchor: &Destination<'a>,
    ) -> Result<Vec<(&'s Role<'a>, Destination<'a>)>, Refusal> {
        let route = &route_state.route;
        let is_split = route_state.split.is_some();
        self.roles.check_anchor(route, owner_list, is_split)?;
        let additional = self.additional.iter().map(|(role, _)| role);
        let roles = [&self.roles.stable, &self.roles.canary]
            .into_iter()
            .chain(additional);
        roles
            .map(|role| {
                let found = role.find_only(route, owner_list)?;
                let destination = found.map_or_else(|| role.copy_of(anchor), Destination::clone);
                Ok((role, destination))
            })
            .collect()
    }

    /// Whether the owner's list sends traffic to the canary. A weight of 0 beside weights that sum to 100 does not.
    fn canary_has_share(&self, owner_list: &DestinationList<'a>) -> bool {
        let set = owner_list
            .destinations
            .iter()
            .filter_map(Destination::nonzero_weight);
        let set: u64 = set.map(u64::from).sum();
        let mut canary = self.roles.canary.find(owner_list);
        canary.any(|canary| canary.nonzero_weight().is_some() || set < 100)
    }

    /// Divides `share` between `ours`: removes those that get nothing, and inserts those that are missing.
    fn split(
        &self,
        route_state: &RouteState<'a>,
        owner_list: &DestinationList<'a>,
        anchor: &Destination<'a>,
        ours: &[(&Role<'a>, Destination<'a>)],
        share: u32,
    ) -> Result<PlannedList<'a>, Refusal> {
        let wanted: Vec<u32> = self.additional.iter().map(|(_, weight)| *weight).collect();
        let shares = weight::split(share, self.desired, self.max, &wanted);
        let weights = [shares.stable, shares.canary]
            .into_iter()
            .chain(shares.additional);
        let ours: Vec<(&Role<'a>, &Destination<'a>, u32)> = ours
            .iter()
            .zip(weights)
            .map(|((role, destination), weight)| (*role, destination, weight))
            .collect();

        let mut destinations = Vec::with_capacity(owner_list.destinations.len() + 1);
        let mut originals: Vec<(usize, &Destination<'a>)> = Vec::new();
        let mut idle: Vec<(usize, &Destination<'a>)> = Vec::new();
        let mut foreign: Vec<&Destination<'a>> = Vec::new();
        let mut added: Vec<Destination<'a>> = Vec::new();
        let mut stable = StableInList::Absent;
        for (at, destination) in owner_list.destinations.iter().enumerate() {
            let is_anchor = destination.is_same(anchor);
            let mine = ours.iter().find(|(_, mine, _)| destination.is_same(mine));
            // With subsets by Pod hash, stable and canary are copies of the anchor, so the anchor itself gets weight 0.
            let Some(weight) = mine
                .map(|(_, _, weight)| *weight)
                .or(is_anchor.then_some(0))
            else {
                // Gloo's reference reads 0 as a share of what is left, its examples as no traffic. Without the destination
                // both agree.
                if destination.is_explicit_zero() && !self.keeps_zero {
                    idle.push((at, destination));
                } else {
                    foreign.push(destination);
                    destinations.push(destination.clone());
                }
                continue;
            };
            // Recovery puts the first original where an inserted destination stands in for it.
            let first = if is_anchor { 0 } else { originals.len() };
            originals.insert(first, (at, destination));
            if weight > 0 || (self.keeps_zero && mine.is_some()) {
                if is_anchor {
                    stable = StableInList::Listed;
                }
                destinations.push(destination.clone().with_weight(Some(weight)));
            }
            if !is_anchor {
                continue;
            }
            let missing = ours
                .iter()
                .filter(|(_, mine, weight)| *weight > 0 && !owner_list.contains(mine));
            for (role, _, weight) in missing {
                let made = role.made_from(destination, &route_state.route)?;
                if stable.is_absent() && std::ptr::eq(*role, &self.roles.stable) {
                    stable = StableInList::Made;
                }
                destinations.push(made.clone().with_weight(Some(*weight)));
                added.push(made);
            }
        }
        if !owner_list.form.is_listed() {
            // The owner wrote no list, so every destination in it was inserted.
            originals.clear();
            stable = StableInList::Absent;
            let present = ours.iter().filter(|(_, _, weight)| *weight > 0);
            added = present.map(|(_, mine, _)| (*mine).clone()).collect();
        }
        let list = DestinationList {
            destinations,
            form: ListForm::Listed,
        };
        // The list equals the owner's, so nothing has to be recorded, with two exceptions: while ping and pong are
        // exchanged, only the record says that the route is split; and if the owner lists the canary with exactly these
        // weights, the record says that the owner wrote them.
        let mut others = ours.iter().filter(|(_, mine, _)| !mine.is_same(anchor));
        let lists_canary = others.any(|(_, mine, _)| owner_list.contains(mine));
        if list.equals(owner_list) && self.roles.stable.is(anchor) && !lists_canary {
            return Ok(PlannedList { list, update: None });
        }
        let draft = SplitDraft {
            // Keep the share for which the originals were written: the owner may have changed the weights of others since.
            share: match route_state.split {
                Some(old) if old.originals.len() == originals.len() => old.share,
                _ => share,
            },
            stable,
            originals,
            idle,
            foreign,
            added,
            distinction: self.roles.distinction,
            list: owner_list.form,
        };
        let update = match route_state.split {
            Some(old) if draft.is_recorded(old) => RecordUpdate::Keep,
            _ => RecordUpdate::Replace(Box::new(draft.into_split(route_state.route.protocol))),
        };
        Ok(PlannedList {
            list,
            update: Some(update),
        })
    }
}

/// A new [`Split`] that still borrows its destinations, so that an unchanged one is compared without copying JSON.
struct SplitDraft<'s, 'a> {
    share: u32,
    originals: Vec<(usize, &'s Destination<'a>)>,
    idle: Vec<(usize, &'s Destination<'a>)>,
    foreign: Vec<&'s Destination<'a>>,
    added: Vec<Destination<'a>>,
    distinction: Distinction,
    list: ListForm,
    stable: StableInList,
}

impl SplitDraft<'_, '_> {
    /// Whether `old` is the same split. Foreign destinations are not compared: if another Rollout changed them, this record
    /// does not have to be written.
    fn is_recorded(&self, old: &Split) -> bool {
        let same = |destinations: &[(usize, &Destination<'_>)], recorded: &[Original]| {
            destinations.len() == recorded.len()
                && destinations
                    .iter()
                    .zip(recorded)
                    .all(|((at, destination), old)| {
                        *at == old.position && destination.equals_json(&old.destination)
                    })
        };
        let is_added = |(destination, id): (&Destination<'_>, &DestinationId)| destination.is(id);
        self.share == old.share
            && self.stable == old.stable
            && self.distinction == old.distinction
            && self.list == old.list
            && self.added.len() == old.added.len()
            && self.added.iter().zip(&old.added).all(is_added)
            && same(&self.originals, &old.originals)
            && same(&self.idle, &old.idle)
    }

    /// The split to record.
    fn into_split(self, protocol: Protocol) -> Split {
        let written = |destinations: &[(usize, &Destination<'_>)]| {
            let originals = destinations.iter().map(|(at, destination)| Original {
                position: *at,
                destination: destination.value(),
            });
            originals.collect()
        };
        Split {
            protocol,
            share: self.share,
            originals: written(&self.originals),
            idle: written(&self.idle),
            foreign: self.foreign.iter().map(|it| it.place()).collect(),
            added: self
                .added
                .iter()
                .filter_map(|it| it.id(self.distinction))
                .collect(),
            distinction: self.distinction,
            list: self.list,
            stable: self.stable,
        }
    }
}

/// Returns the weight of a Service, or the error that it is negative.
fn checked_weight(service: &str, weight: i32) -> Result<u32, Refusal> {
    u32::try_from(weight).map_err(|_| Refusal::NegativeWeight {
        service: service.to_owned(),
        weight,
    })
}
