//! SetWeight: what the destinations of each route become.
//!
//! Every call starts from what the owner wrote. For each route that leads to the Rollout the wanted list is computed from
//! the owner's list; nothing depends on the previous call, so a repeated call finds no difference.
//!
//! ```text
//! owner's list                  SetWeight 25, share 80          record
//! reviews           80          reviews           60            reviews 80 at 0
//! legacy            20          reviews-canary    20            reviews-canary was inserted
//!                               legacy            20
//! ```

use std::collections::HashSet;

use gloo_types::broken_weight_rule;

use crate::destinations::{DestinationId, DestinationList, Distinction, ListForm, Slot};
use crate::error::Refusal;
use crate::intent::{AdditionalDestination, Intent, WeightSplit};
use crate::plan::Warning;
use crate::record::{Hash, Original, Record, RecordBuilder, RouteRecord, Split, StableIs};
use crate::recovery::{share_of, taken_by_others, without_canary};
use crate::roles::{Role, Roles};
use crate::route::Protocol;
use crate::table_state::{Finding, Leads, Survey, Surveyed};
use crate::weight;

/// Whether a route may get a larger canary share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    Allowed,
    Withheld,
}

/// What a SetWeight makes of a table's routes.
pub(crate) struct Weights<'a> {
    /// For each route of the survey the list that it gets; `None` leaves it as it is.
    pub(crate) targets: Vec<Option<DestinationList<'a>>>,
    pub(crate) record: Record,
    /// Whether a route gets a larger canary share, or would get one if that was allowed.
    pub(crate) grows: bool,
    /// Whether a route that is recorded as split gets a smaller canary share.
    pub(crate) shrinks: bool,
    /// Whether any selected route leads to the Rollout.
    pub(crate) is_led_to: bool,
    /// Whether nothing is rolled out.
    pub(crate) is_rest: bool,
    /// Why routes are not as the intent asks.
    pub(crate) left: Vec<Refusal>,
    pub(crate) warnings: Vec<Warning>,
}

/// Decides the weights of all routes.
///
/// # Errors
/// Returns `Err` if the weights themselves are invalid, or cannot be set on any route.
pub(crate) fn weights<'a>(
    survey: &Survey<'a>,
    split: &'a WeightSplit,
    growth: Growth,
) -> Result<Weights<'a>, Refusal> {
    let wish = Wish::new(survey, split)?;
    if let Some(problem) = &survey.memory.problem
        && !wish.is_down()
    {
        return Err(problem.clone());
    }
    let mut weights = Weights {
        targets: Vec::with_capacity(survey.routes.len()),
        record: Record::default(),
        grows: false,
        shrinks: false,
        is_led_to: false,
        is_rest: wish.is_rest(),
        left: survey.memory.problem.iter().cloned().collect(),
        warnings: survey.warnings.clone(),
    };
    let has_unnamed = |extra: &AdditionalDestination| extra.service.is_empty();
    if split.additional.iter().any(has_unnamed) {
        weights.warnings.push(Warning::UnnamedService);
    }
    let mut record = RecordBuilder::new(&survey.memory.own);
    if survey.memory.own.routes.is_empty() {
        record.set_owners(owners_canary_routes(survey));
    }
    for surveyed in &survey.routes {
        let target = weights.route(&wish, surveyed, growth, &mut record);
        weights.targets.push(target);
    }
    let mut lost = survey.lost.iter().peekable();
    if lost.peek().is_some() {
        let protocol = |lost: &&&RouteRecord| {
            let split = survey.memory.own.split_of(lost);
            split.map(|split| split.protocol).unwrap_or_default()
        };
        for lost in &survey.lost {
            weights.warnings.push(Warning::RouteGone {
                route: lost.label(protocol(&lost)),
            });
        }
        // The record of a route that is not found stays as long as anything of ours is in the table, or may be in a route that
        // cannot be read.
        let is_unread = |it: &Surveyed<'_>| matches!(it.finding, Finding::Unknown(_));
        if !record.is_empty() || survey.routes.iter().any(is_unread) {
            for lost in lost {
                record.keep(lost);
            }
        }
    }
    weights.record = record.finish();
    Ok(weights)
}

impl<'a> Weights<'a> {
    fn route(
        &mut self,
        wish: &Wish<'_, 'a>,
        surveyed: &Surveyed<'a>,
        growth: Growth,
        record: &mut RecordBuilder<'a>,
    ) -> Option<DestinationList<'a>> {
        let mut keep = |surveyed: &Surveyed<'a>| match (surveyed.record, surveyed.split) {
            (Some(found), _) => record.keep(found),
            // A copy is recognised by the weights of its source, which may change now.
            (None, Some(split)) => {
                let (name, at) = (surveyed.route.own_name(), surveyed.route.at);
                record.add(name.to_owned(), at, surveyed.matchers, split.clone());
            }
            (None, None) => {}
        };
        let (live, leads) = match &surveyed.finding {
            // The record of a route that no longer forwards is dropped.
            Finding::Other(_) => return None,
            Finding::Unknown(refusal) => {
                keep(surveyed);
                // Nobody asked for a route that is neither selected nor recorded.
                if surveyed.route.is_selected || surveyed.record.is_some() {
                    self.left.push(refusal.clone());
                    self.grows |= !wish.is_rest();
                }
                return None;
            }
            Finding::Forward { live, leads } => (live, leads),
        };
        let target = match leads {
            Leads::Elsewhere { owners, .. } => Ok(match surveyed.split {
                Some(split) => Target::released(owners.clone(), split, None),
                None => Target::owners(owners.clone()),
            }),
            Leads::Here { owners, anchor } => {
                self.is_led_to = true;
                let warnings = &mut self.warnings;
                wish.target(surveyed, owners, anchor, warnings)
            }
            Leads::Replaced {
                owners,
                by,
                refusal,
            } => {
                self.is_led_to = true;
                if wish.is_down() || !surveyed.route.is_selected {
                    self.warnings.push(Warning::Repointed {
                        route: surveyed.route.label(),
                    });
                    let share = share_of(owners, |slot| slot.is_same(by));
                    let split = surveyed.split;
                    Ok(Target::owners(match split {
                        Some(split) => rebalanced(owners.clone(), &[by], share, split),
                        None => owners.clone(),
                    }))
                } else {
                    Err(refusal.clone())
                }
            }
            Leads::SplitBy(rollout) => {
                let managed = &wish.intent.managed;
                if wish.is_rest() && (managed.in_force.is_empty() || managed.is_ending) {
                    self.is_led_to = true;
                    return None;
                }
                Err(Refusal::SplitByOther {
                    route: surveyed.route.label(),
                    stable: wish.roles.stable.label(),
                    rollout: rollout.clone(),
                })
            }
            Leads::Unrecorded => {
                let applied = wish.intent.applied.as_ref();
                let list = without_canary(live, wish.roles, applied, !wish.is_rest())
                    .filter(|_| surveyed.route.is_selected);
                self.is_led_to |= surveyed.route.is_selected
                    && live
                        .slots
                        .iter()
                        .any(|slot| wish.roles.stable.is_owners(slot));
                self.is_led_to |= list.is_some();
                return list;
            }
        };
        let target = match target {
            Ok(target) => target,
            Err(refusal) => {
                self.left.push(refusal);
                self.grows |= wish.may_grow(live);
                keep(surveyed);
                return None;
            }
        };
        self.shrinks |= surveyed.split.is_some() && wish.canary_shrinks(live, &target.list);
        if wish.grows(live, &target.list) {
            self.grows = true;
            if growth == Growth::Withheld {
                keep(surveyed);
                return None;
            }
        }
        if let Some(split) = target.split {
            let route = &surveyed.route;
            let name = route.own_name();
            let matchers = surveyed.matchers;
            let at = match surveyed.record {
                // Moving other routes is no reason to write.
                Some(old) if old.0 == name && old.2 == matchers => old.1,
                _ => route.at,
            };
            match (split, surveyed.record) {
                (Remembered::Same, Some(old)) => {
                    record.add_kept(name.to_owned(), at, matchers, old.3);
                }
                (Remembered::Same, None) => {
                    if let Some(split) = surveyed.split {
                        record.add(name.to_owned(), at, matchers, split.clone());
                    }
                }
                (Remembered::New(split), _) => record.add(name.to_owned(), at, matchers, *split),
            }
            record.is_split(|| matchers.with_name(route.name));
        }
        Some(target.list)
    }
}

/// Routes that send traffic to the canary although nothing was rolled out before: their owner wants that.
fn owners_canary_routes(survey: &Survey<'_>) -> Vec<Hash> {
    let is_canarys = |it: &&Surveyed<'_>| match &it.finding {
        Finding::Forward {
            live,
            leads: Leads::Elsewhere { .. },
        } => live.slots.iter().any(|slot| survey.roles.canary.is(slot)),
        _ => false,
    };
    let hash = |it: &Surveyed<'_>| it.matchers.with_name(it.route.name);
    let mut owners: Vec<Hash> = survey.routes.iter().filter(is_canarys).map(hash).collect();
    if !owners.is_empty() {
        // A route that is split may look alike, and has to be recognised.
        let split = survey.routes.iter().filter(|it| !is_canarys(it));
        let split: HashSet<Hash> = split.map(hash).collect();
        owners.retain(|owner| !split.contains(owner));
    }
    owners
}

/// What a route becomes.
struct Target<'a> {
    list: DestinationList<'a>,
    /// What has to be remembered; `None` when the list is the owner's.
    split: Option<Remembered>,
}

/// What has to be remembered of a route.
enum Remembered {
    /// The split that is recorded.
    Same,
    New(Box<Split>),
}

impl<'a> Target<'a> {
    /// The list as its owner wrote it.
    fn owners(list: DestinationList<'a>) -> Self {
        Self {
            list: list.resting(),
            split: None,
        }
    }

    /// The same for a route that was split. Its owner may have changed the `anchor` since; where the route no longer leads to
    /// the Rollout, only the record tells which destinations were split.
    fn released(list: DestinationList<'a>, split: &Split, anchor: Option<&Slot<'a>>) -> Self {
        let originals: Vec<Slot<'a>> = {
            let find = |(index, original): (usize, &Original)| {
                let mut slots = list.slots.iter();
                let found = slots.find(|slot| slot.is_recorded_as(&original.1, split.by));
                found.or(anchor.filter(|_| index == 0)).cloned()
            };
            let originals = split.originals.iter().enumerate();
            originals.filter_map(find).collect()
        };
        let ours: Vec<&Slot<'a>> = originals.iter().collect();
        let share = share_of(&list, |slot| ours.iter().any(|mine| slot.is_same(mine)));
        Self::owners(rebalanced(list, &ours, share, split))
    }
}

/// A checked intent.
struct Wish<'w, 'a> {
    roles: &'w Roles<'a>,
    intent: &'a Intent,
    desired: u32,
    max: u32,
    /// Services of an experiment that are to get traffic; none of them twice, none is stable or canary.
    additional: Vec<(Role<'a>, u32)>,
    /// Whether the owner's destinations stay in the list with weight 0 while they get nothing.
    keeps_zero: bool,
}

impl<'w, 'a> Wish<'w, 'a> {
    fn new(survey: &'w Survey<'a>, split: &'a WeightSplit) -> Result<Self, Refusal> {
        let roles = &survey.roles;
        let max = u32::try_from(split.max).ok().filter(|max| *max > 0);
        let max = max.ok_or(Refusal::MaxWeight(split.max))?;
        let mut desired = checked(roles.canary.name(), split.desired)?.min(max);
        let mut additional: Vec<(Role<'a>, u32)> = Vec::new();
        for extra in &split.additional {
            let service = extra.service.as_str();
            let weight = checked(service, extra.weight)?;
            if service.is_empty() || weight == 0 || roles.is_service(&roles.stable, service) {
                // Stable gets what is left.
            } else if roles.is_service(&roles.canary, service) {
                desired = desired.saturating_add(weight);
            } else if let Some((_, sum)) = additional
                .iter_mut()
                .find(|(role, _)| role.name() == service)
            {
                *sum = sum.saturating_add(weight);
            } else {
                additional.push((roles.additional(service, extra.port), weight));
            }
        }
        if desired > 0 {
            roles.check_hashes()?;
            if !roles.are_two() {
                desired = 0;
            }
        }
        Ok(Self {
            roles,
            intent: survey.intent,
            desired,
            max,
            additional,
            keeps_zero: survey.config.keeps_zero_weights(),
        })
    }

    /// Whether all traffic goes to the stable destination.
    fn is_down(&self) -> bool {
        self.desired == 0 && self.additional.is_empty()
    }

    /// Whether nothing is rolled out: all traffic goes to the stable destination, as the owner wrote it.
    fn is_rest(&self) -> bool {
        self.is_down() && !self.roles.keep_apart(self.intent)
    }

    /// Whether a route that cannot be planned would get a larger canary share.
    fn may_grow(&self, live: &DestinationList<'_>) -> bool {
        let weights = live.slots.iter().zip(live.effective_weights());
        let canary = weights.filter(|(slot, _)| self.roles.canary.is(slot));
        let canary: u64 = canary.map(|(_, weight)| u64::from(weight)).sum();
        let wanted = u64::from(self.desired) * 100 / u64::from(self.max);
        !self.is_rest() && (wanted > canary || !self.additional.is_empty())
    }

    /// Whether the canary or a Service of an experiment gets more in `target` than in `live`.
    fn grows(&self, live: &DestinationList<'_>, target: &DestinationList<'_>) -> bool {
        let mut roles = [&self.roles.canary].into_iter();
        let mut additional = self.additional.iter().map(|(role, _)| role);
        let grows = |role: &Role<'_>| self.share(target, role) > self.share(live, role);
        roles.any(grows) || additional.any(grows)
    }

    /// Whether the canary gets less in `target` than in `live`.
    fn canary_shrinks(&self, live: &DestinationList<'_>, target: &DestinationList<'_>) -> bool {
        let canary = &self.roles.canary;
        self.share(target, canary) < self.share(live, canary)
    }

    /// What the destinations in a role other than stable get.
    fn share(&self, list: &DestinationList<'_>, role: &Role<'_>) -> u32 {
        let slots = list.slots.iter().zip(list.effective_weights());
        let slots = slots.filter(|(slot, _)| role.is(slot) && !self.roles.stable.is(slot));
        slots.fold(0, |sum: u32, (_, weight)| sum.saturating_add(weight))
    }

    /// What a selected route that leads to the Rollout becomes.
    fn target(
        &self,
        surveyed: &Surveyed<'a>,
        owners: &DestinationList<'a>,
        anchor: &Slot<'a>,
        warnings: &mut Vec<Warning>,
    ) -> Result<Target<'a>, Refusal> {
        let route = &surveyed.route;
        let split = surveyed.split;
        let ours = match self.managed(surveyed, owners, anchor) {
            Ok(ours) => ours,
            // While nothing is rolled out, owners may split as they like.
            Err(_) if self.is_rest() => return Ok(Target::owners(owners.clone())),
            Err(refusal) => return Err(refusal),
        };
        let slots: Vec<&Slot<'a>> = {
            let ours = ours.iter().map(|(_, mine)| mine);
            [anchor].into_iter().chain(ours).collect()
        };
        let is_ours = |slot: &Slot<'a>| slots.iter().any(|mine| slot.is_same(mine));
        let share = share_of(owners, is_ours);
        if self.is_rest() && (share == 0 || !self.canary_has_share(owners)) {
            return Ok(match split {
                Some(split) => Target::released(owners.clone(), split, Some(anchor)),
                None => Target::owners(owners.clone()),
            });
        }
        if share == 0 {
            return Err(Refusal::NoShare {
                route: route.label(),
                stable: self.roles.stable.label(),
                taken: taken_by_others(owners, is_ours),
            });
        }
        if self.is_rest() && self.roles.stable.is(anchor) {
            warnings.push(Warning::OwnerCanaryShare {
                route: route.label(),
                canary: self.roles.canary.name().to_owned(),
            });
        }
        let is_owners = split.is_none_or(|split| split.share == share);
        if is_owners && let Some(rule) = owners.broken_rule() {
            warnings.push(Warning::OwnerWeights {
                route: route.label(),
                rule,
            });
        }
        self.split(surveyed, owners, anchor, &ours, share)
    }

    /// The destinations to split between, besides the anchor: stable, canary and additional, as found in the owner's list or
    /// as they would be made. Each is in the list once at most.
    fn managed<'s>(
        &'s self,
        surveyed: &Surveyed<'a>,
        owners: &DestinationList<'a>,
        anchor: &Slot<'a>,
    ) -> Result<Vec<(&'s Role<'a>, Slot<'a>)>, Refusal> {
        let route = &surveyed.route;
        let is_split = surveyed.split.is_some();
        self.roles.check_anchor(route, owners, is_split)?;
        let additional = self.additional.iter().map(|(role, _)| role);
        let roles = [&self.roles.stable, &self.roles.canary]
            .into_iter()
            .chain(additional);
        roles
            .map(|role| {
                let found = role.find_only(route, owners)?;
                let slot = found.map_or_else(|| role.copy_of(anchor), Slot::clone);
                Ok((role, slot))
            })
            .collect()
    }

    /// Whether the owner's own list sends traffic to the canary. A zero weight beside weights that sum to 100 does not.
    fn canary_has_share(&self, owners: &DestinationList<'a>) -> bool {
        let set = owners.slots.iter().filter_map(Slot::set_weight);
        let set: u64 = set.map(u64::from).sum();
        let mut canary = self.roles.canary.find(owners);
        canary.any(|canary| canary.set_weight().is_some() || set < 100)
    }

    /// The list with `share` split between `ours`: those that get nothing are removed, those that are missing inserted.
    fn split(
        &self,
        surveyed: &Surveyed<'a>,
        owners: &DestinationList<'a>,
        anchor: &Slot<'a>,
        ours: &[(&Role<'a>, Slot<'a>)],
        share: u32,
    ) -> Result<Target<'a>, Refusal> {
        let wanted: Vec<u32> = self.additional.iter().map(|(_, weight)| *weight).collect();
        let shares = weight::split(share, self.desired, self.max, &wanted);
        let weights = [shares.stable, shares.canary]
            .into_iter()
            .chain(shares.additional);
        let ours: Vec<(&Role<'a>, &Slot<'a>, u32)> = ours
            .iter()
            .zip(weights)
            .map(|((role, slot), weight)| (*role, slot, weight))
            .collect();

        let mut slots = Vec::with_capacity(owners.slots.len() + 1);
        let mut originals: Vec<(usize, &Slot<'a>)> = Vec::new();
        let mut idle: Vec<(usize, &Slot<'a>)> = Vec::new();
        let mut foreign: Vec<&Slot<'a>> = Vec::new();
        let mut added: Vec<Slot<'a>> = Vec::new();
        let mut stable = StableIs::Absent;
        for (at, slot) in owners.slots.iter().enumerate() {
            let is_anchor = slot.is_same(anchor);
            let mine = ours.iter().find(|(_, mine, _)| slot.is_same(mine));
            // Where subsets distinguish the roles, the anchor itself has none of them.
            let Some(weight) = mine
                .map(|(_, _, weight)| *weight)
                .or(is_anchor.then_some(0))
            else {
                if slot.is_explicit_zero() {
                    idle.push((at, slot));
                } else {
                    foreign.push(slot);
                    slots.push(slot.clone());
                }
                continue;
            };
            let first = if is_anchor { 0 } else { originals.len() };
            originals.insert(first, (at, slot));
            if weight > 0 || (self.keeps_zero && mine.is_some()) {
                if is_anchor {
                    stable = StableIs::Listed;
                }
                slots.push(slot.clone().weighing(Some(weight)));
            }
            if !is_anchor {
                continue;
            }
            let missing = ours
                .iter()
                .filter(|(_, mine, weight)| *weight > 0 && !owners.holds(mine));
            for (role, _, weight) in missing {
                let made = role.made_from(slot, &surveyed.route)?;
                if stable.is_absent() && std::ptr::eq(*role, &self.roles.stable) {
                    stable = StableIs::Made;
                }
                slots.push(made.clone().weighing(Some(*weight)));
                added.push(made);
            }
        }
        if !owners.form.is_listed() {
            // The owner wrote no list at all, so every destination in it is inserted by us.
            originals.clear();
            stable = StableIs::Absent;
            let present = ours.iter().filter(|(_, _, weight)| *weight > 0);
            added = present.map(|(_, mine, _)| (*mine).clone()).collect();
        }
        let list = DestinationList {
            slots,
            form: ListForm::Listed,
        };
        // While ping and pong are exchanged, only the record says that the route is split. If the owner lists the canary with
        // exactly these weights, the record says that they are the owner's.
        let mut others = ours.iter().filter(|(_, mine, _)| !mine.is_same(anchor));
        let lists_canary = others.any(|(_, mine, _)| owners.holds(mine));
        if list.equals(owners) && self.roles.stable.is(anchor) && !lists_canary {
            return Ok(Target { list, split: None });
        }
        let changed = Changed {
            // The owner may give others more or less later. The record keeps the share for which the originals were written.
            share: match surveyed.split {
                Some(old) if old.originals.len() == originals.len() => old.share,
                _ => share,
            },
            stable,
            originals,
            idle,
            foreign,
            added,
            by: self.roles.by,
            list: owners.form,
        };
        let split = match surveyed.split {
            Some(old) if changed.is_recorded(old) => Remembered::Same,
            _ => Remembered::New(Box::new(changed.record(surveyed.route.protocol))),
        };
        Ok(Target {
            list,
            split: Some(split),
        })
    }
}

/// What a split changes in a route: a [`Split`] before it is written out.
struct Changed<'s, 'a> {
    share: u32,
    originals: Vec<(usize, &'s Slot<'a>)>,
    idle: Vec<(usize, &'s Slot<'a>)>,
    foreign: Vec<&'s Slot<'a>>,
    added: Vec<Slot<'a>>,
    by: Distinction,
    list: ListForm,
    stable: StableIs,
}

impl Changed<'_, '_> {
    /// Whether `old` says the same. What other Rollouts changed in the route does not count: it is no reason to write.
    fn is_recorded(&self, old: &Split) -> bool {
        let same = |slots: &[(usize, &Slot<'_>)], recorded: &[Original]| {
            slots.len() == recorded.len()
                && slots
                    .iter()
                    .zip(recorded)
                    .all(|((at, slot), Original(old_at, value))| {
                        at == old_at && slot.is_value(value)
                    })
        };
        let is_added = |(slot, id): (&Slot<'_>, &DestinationId)| {
            slot.is(id) && id.port.is_some() == (self.by.port && slot.port().is_some())
        };
        self.share == old.share
            && self.stable == old.stable
            && self.by == old.by
            && self.list == old.list
            && self.added.len() == old.added.len()
            && self.added.iter().zip(&old.added).all(is_added)
            && same(&self.originals, &old.originals)
            && same(&self.idle, &old.idle)
    }

    fn record(&self, protocol: Protocol) -> Split {
        let written = |slots: &[(usize, &Slot<'_>)]| {
            let originals = slots.iter().map(|(at, slot)| Original(*at, slot.value()));
            originals.collect()
        };
        Split {
            protocol,
            share: self.share,
            originals: written(&self.originals),
            idle: written(&self.idle),
            foreign: self.foreign.iter().map(|slot| slot.place()).collect(),
            added: self
                .added
                .iter()
                .filter_map(|slot| slot.id(self.by))
                .collect(),
            by: self.by,
            list: self.list,
            stable: self.stable,
        }
    }
}

/// The owner's list, restored after the owner gave more or less to others while it was split.
///
/// If the weight of the first of `ours`, the stable one, was written for the old share and now breaks the sum of 100, it
/// takes the difference.
fn rebalanced<'a>(
    mut owners: DestinationList<'a>,
    ours: &[&Slot<'a>],
    share: u32,
    split: &Split,
) -> DestinationList<'a> {
    let as_written = split.share == share;
    let Some((anchor, rest)) = ours.split_first() else {
        return owners;
    };
    let active = owners.slots.iter().filter(|slot| !slot.is_explicit_zero());
    let weights: Vec<Option<u32>> = active.map(Slot::weight).collect();
    if as_written || broken_weight_rule(&weights).is_none() {
        return owners;
    }
    let others: u32 = owners
        .slots
        .iter()
        .filter(|slot| !slot.is_same(anchor) && rest.iter().any(|mine| slot.is_same(mine)))
        .filter_map(Slot::set_weight)
        .fold(0, u32::saturating_add);
    let rest = share.saturating_sub(others);
    for slot in &mut owners.slots {
        if slot.is_same(anchor) && slot.set_weight().is_some() && rest > 0 {
            *slot = slot.clone().weighing(Some(rest));
        }
    }
    owners
}

fn checked(service: &str, weight: i32) -> Result<u32, Refusal> {
    u32::try_from(weight).map_err(|_| Refusal::NegativeWeight {
        service: service.to_owned(),
        weight,
    })
}
