//! Room in the twin: victims, quotas and expiry.

use std::collections::BTreeSet;
use std::time::Duration;

use super::data::{Entry, Naive};
use crate::admission::NoSpace;
use crate::cache::life::Told;
use crate::evict::{Cause, Policy};
use crate::explain::Eviction;
use crate::ids::{NamespaceId, TenantId, Token};

impl Naive {
    pub(super) fn check_room(&self, needed: usize) -> Result<(), NoSpace> {
        let available = self.free() + self.evictable() + self.places_evictable();
        if needed <= available { Ok(()) } else { Err(NoSpace { needed, available }) }
    }

    /// Evicts, sparing `held`, until `needed` blocks are free for a namespace.
    pub(super) fn make_room(&mut self, needed: usize, namespace: NamespaceId, held: Option<&[Token]>) {
        let held = held.map(|prefix| (namespace, prefix));
        self.keep_quota(namespace, needed, held);
        self.free_up(needed, held);
    }

    /// Evicts, following the real cache, until `needed` blocks are free.
    pub(super) fn free_up(&mut self, needed: usize, held: Option<(NamespaceId, &[Token])>) {
        while self.free() < needed {
            let tenant = self.victim_tenant(held);
            self.evict_of(tenant, held);
        }
    }

    /// The tenant with the most blocks for its weight, of those that have something evictable.
    fn victim_tenant(&mut self, held: Option<(NamespaceId, &[Token])>) -> TenantId {
        let tenants = self.tenants_with_victims(held);
        self.events.spared_by_share += u64::from(tenants.len() > 1);
        let more = |best, tenant| if self.excess(tenant) > self.excess(best) { tenant } else { best };
        tenants.into_iter().reduce(more).unwrap()
    }

    pub(super) fn quota(&self, namespace: NamespaceId) -> Option<usize> {
        self.shares.get(&namespace)?.quota_blocks
    }

    /// Evicts what a tenant holds beyond its quota, as if `coming` more blocks were held already.
    pub(super) fn keep_quota(
        &mut self,
        namespace: NamespaceId,
        coming: usize,
        held: Option<(NamespaceId, &[Token])>,
    ) {
        let (tenant, Some(quota)) = (self.tenant(namespace), self.quota(namespace)) else { return };
        while self.held_by(tenant) + coming > quota && self.tenants_with_victims(held).contains(&tenant) {
            self.events.over_quota += 1;
            self.evict_of(tenant, held);
        }
    }

    /// Evicts from a tenant: of the lowest priority the least recently used block, or the one that the real cache
    /// evicted; or a place, whichever has the lower rank.
    fn evict_of(&mut self, tenant: TenantId, held: Option<(NamespaceId, &[Token])>) {
        let mut leaves = self.leaves(held);
        leaves.retain(|&index| self.tenant(self.entries[index].namespace) == tenant);
        let priority = |index: usize| self.entries[index].keep.priority();
        let lowest = leaves.iter().map(|&index| priority(index)).min();
        let count = leaves.len();
        leaves.retain(|&index| Some(priority(index)) == lowest);
        let spared = leaves.len() < count;
        let told = self.told.pop_front();
        let is_told = |entry: &Entry| {
            let Some(Told::Evicted(namespace, prefix, _)) = &told else { return false };
            entry.namespace == *namespace && entry.prefix == *prefix
        };
        let by_policy = match self.policy {
            Policy::Lru => leaves.into_iter().min_by_key(|&index| self.entries[index].used),
            _ => leaves.into_iter().find(|&index| is_told(&self.entries[index])),
        };
        let place = self.places_of(tenant).map(|place| (place.priority(), place.rank)).min();
        let ranked = by_policy.map(|index| (index, priority(index), self.rank_of(index)));
        let goes_first =
            |&(_, priority, rank): &(usize, i8, u64)| place.is_none_or(|place| (priority, rank) <= place);
        let chosen = ranked.filter(goes_first);
        self.events.places_before_blocks += u64::from(chosen.is_none() && count > 0);
        self.events.blocks_before_places += u64::from(chosen.is_some() && place.is_some());
        let Some((chosen, _, rank)) = chosen else { return self.evict_place_of(tenant, told) };
        assert!(is_told(&self.entries[chosen]), "{told:?} went before {:?}", self.entries[chosen]);
        self.events.spared_by_priority += u64::from(spared);
        self.age(tenant, rank);
        let Entry { namespace, prefix, .. } = self.entries.remove(chosen);
        self.drop_lost_places();
        let Some(Told::Evicted(.., Cause::Evicted(policy))) = told else {
            panic!("{told:?} has not expired")
        };
        assert!(policy == self.policy || self.policy == Policy::Auto, "{policy:?} chose {told:?}");
        self.lost.insert((namespace, prefix), Some(Eviction { at: self.now, policy }));
    }

    /// Drops everything whose time to live has ended, in any order.
    pub(super) fn drop_expired(&mut self) {
        let now = self.now;
        let expired = |entry: &Entry| entry.keep.ttl.is_some_and(|ttl| entry.used_at + ttl <= now);
        while let Some(index) = self.entries.iter().position(|entry| expired(entry) && !self.is_locked(entry))
        {
            let Entry { namespace, prefix, .. } = self.entries.remove(index);
            self.drop_lost_places();
            let told = Told::Evicted(namespace, prefix.clone(), Cause::Expired);
            let told = self.told.iter().position(|other| *other == told);
            self.told.remove(told.expect("what has expired is evicted"));
            self.lost.insert((namespace, prefix), None);
            self.events.expired += 1;
        }
    }

    /// Ends raised priorities whose time is over, except those of blocks in use.
    pub(super) fn lower_ended(&mut self) {
        let now = self.now;
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            let has_ended = entry.keep.raised.is_some_and(|raised| entry.used_at + raised.lasts <= now);
            if has_ended && !self.is_locked(entry) {
                self.entries[index].keep = self.entries[index].keep.lowered();
                self.events.lowered += 1;
            }
        }
        for place in self.places.iter_mut().filter(|place| place.lowers.is_some_and(|at| at <= now)) {
            (place.keep, place.lowers) = (place.keep.lowered(), None);
            self.events.places_lowered += 1;
        }
    }

    pub(super) fn tenant(&self, namespace: NamespaceId) -> TenantId {
        self.shares.get(&namespace).map_or(TenantId(0), |share| share.tenant)
    }

    /// Blocks that a tenant holds: cached blocks, places, and those of its running sequences.
    pub(super) fn held_by(&self, tenant: TenantId) -> usize {
        let cached = self.entries.iter().filter(|entry| self.tenant(entry.namespace) == tenant).count();
        let places = self.places.iter().filter(|place| self.tenant(place.namespace) == tenant);
        let running = self.running.values().filter(|running| self.tenant(running.namespace) == tenant);
        let running = running.map(|running| running.owned + running.auxiliary.all_units(&self.needs));
        cached + places.map(|place| place.units).sum::<usize>() + running.sum::<usize>()
    }

    /// Number of blocks of a tenant divided by its weight; half the weight without recent demand.
    fn excess(&self, tenant: TenantId) -> f64 {
        let share = self.shares.values().find(|share| share.tenant == tenant);
        let asked = self.asked.get(&tenant).copied().unwrap_or_default();
        let demand = if self.now - asked <= Duration::from_secs(600) { 1.0 } else { 0.5 };
        self.held_by(tenant) as f64 / (share.map_or(1.0, |share| share.weight) * demand)
    }

    /// Tenants that have something evictable, in the order of their ids.
    fn tenants_with_victims(&self, held: Option<(NamespaceId, &[Token])>) -> Vec<TenantId> {
        let leaves = self.leaves(held).into_iter().map(|index| self.entries[index].namespace);
        let places = self.places.iter().filter(|place| !self.is_kept(place)).map(|place| place.namespace);
        let tenants: BTreeSet<TenantId> =
            leaves.chain(places).map(|namespace| self.tenant(namespace)).collect();
        tenants.into_iter().collect()
    }

    /// The unlocked blocks that no other block follows, except `held`.
    pub(super) fn leaves(&self, held: Option<(NamespaceId, &[Token])>) -> Vec<usize> {
        let is_leaf = |index: &usize| {
            let leaf = &self.entries[*index];
            let follows =
                |entry: &Entry| entry.prefix != leaf.prefix && entry.prefix.starts_with(&leaf.prefix);
            !self.is_locked(leaf)
                && held != Some((leaf.namespace, &leaf.prefix))
                && !self.entries_of(leaf.namespace).any(follows)
        };
        (0..self.entries.len()).filter(is_leaf).collect()
    }
}
