//! The twin's view of auxiliary state: lists, and a scan for every question.

use super::data::{Entry, Held, Naive, NamedPlace, PlaceName, Running};
use crate::cache::life::Told;
use crate::ids::{BLOCK_POSITIONS, NamespaceId, SeqId, TenantId, Token, blocks_for};
use crate::lifetime::{Keep, Lifetime};

impl Naive {
    /// The namespace that owns the last block of `prefix` as seen from `namespace`: its base or itself.
    pub(super) fn home(&self, namespace: NamespaceId, prefix: &[Token]) -> NamespaceId {
        match self.derived.get(&namespace) {
            Some((base, whole)) if whole.starts_with(prefix) => *base,
            _ => namespace,
        }
    }

    pub(crate) fn withheld(&self) -> usize {
        let running = self.running.values().map(|running| running.auxiliary.all_units(&self.needs));
        running.sum::<usize>() + self.places.iter().map(|place| place.units).sum::<usize>()
    }

    pub(crate) fn places_evictable(&self) -> usize {
        self.places.iter().filter(|place| !self.is_kept(place)).map(|place| place.units).sum()
    }

    /// Returns whether a pin or a derived namespace ends at a place, or its state is being copied.
    pub(super) fn is_kept(&self, place: &NamedPlace) -> bool {
        let ends = |namespace: &NamespaceId, whole: &Vec<Token>| {
            usize::from(place.positions) == BLOCK_POSITIONS
                && *namespace == place.namespace
                && *whole == place.prefix
        };
        place.in_use
            || self.pins.iter().any(|(namespace, whole)| ends(namespace, whole))
            || self.derived.values().any(|(base, whole)| ends(base, whole))
    }

    /// Returns whether the windowed part of a block is in use.
    fn is_part_held(&self, namespace: NamespaceId, prefix: &[Token]) -> bool {
        let name = (self.home(namespace, prefix), prefix);
        let runs = self.running.values().any(|running| {
            let blocks = running.leased.len() / BLOCK_POSITIONS;
            (running.auxiliary.parts_from..blocks).any(|index| {
                let prefix = &running.leased[..(index + 1) * BLOCK_POSITIONS];
                (self.home(running.namespace, prefix), prefix) == name
            })
        });
        runs || self.places.iter().any(|place| {
            (place.first..=place.index()).any(|index| {
                let prefix = &place.prefix[..place.prefix.len().min((index + 1) * BLOCK_POSITIONS)];
                (self.home(place.namespace, prefix), prefix) == name
            })
        })
    }

    /// The block of this index that matches a prompt, in full even if only its first tokens match.
    pub(super) fn block_of(
        &self,
        namespace: NamespaceId,
        prompt: &[Token],
        matched: usize,
        index: usize,
    ) -> Vec<Token> {
        let (start, end) = (index * BLOCK_POSITIONS, (index + 1) * BLOCK_POSITIONS);
        if end <= matched {
            return prompt[..end].to_vec();
        }
        let closest = self.closest(namespace, &prompt[..start], &prompt[start..]);
        self.entries[closest].prefix.clone()
    }

    /// Leading tokens of a prompt after which a sequence can resume.
    pub(super) fn usable(&self, namespace: NamespaceId, prompt: &[Token]) -> usize {
        let (matched, base) = (self.known(namespace, prompt), self.base(namespace).len());
        if self.needs.is_nothing() {
            return matched;
        }
        let can_go_on = |&end: &usize| {
            let sees = (self.needs.first_part(end)..blocks_for(end))
                .all(|index| self.is_part_held(namespace, &self.block_of(namespace, prompt, matched, index)));
            sees && (self.needs.state_bytes == 0 || self.state_behind(namespace, prompt, end).is_some())
        };
        (base.min(matched) + 1..=matched).rev().find(can_go_on).unwrap_or(base.min(matched))
    }

    /// The place whose state is that after the first `end` tokens of a prompt.
    pub(super) fn state_behind(&self, namespace: NamespaceId, prompt: &[Token], end: usize) -> Option<usize> {
        let index = end.checked_sub(1).filter(|_| self.needs.state_bytes > 0)? / BLOCK_POSITIONS;
        let block = self.block_of(namespace, prompt, self.known(namespace, prompt), index);
        let name = (self.home(namespace, &block), block);
        self.places.iter().position(|place| {
            place.has_state && place.end() == end && (place.namespace, &place.prefix) == (name.0, &name.1)
        })
    }

    /// The auxiliary state of a sequence that resumes after `tokens` and leases their whole blocks.
    pub(super) fn held_from(&self, namespace: NamespaceId, lease: &[Token], tokens: usize) -> Held {
        let blocks = lease.len() / BLOCK_POSITIONS;
        let first = self.needs.first_part(tokens).min(blocks);
        let earliest = self.needs.first_part_of_place(tokens / BLOCK_POSITIONS);
        let is_there = |index: &usize| self.is_part_held(namespace, &lease[..(index + 1) * BLOCK_POSITIONS]);
        let parts_from = (earliest.min(first)..first).rev().take_while(is_there).last().unwrap_or(first);
        Held { parts_from, ..Held::default() }
    }

    /// Protects the place whose state is about to be copied, or ends the protection.
    pub(super) fn keep_state(&mut self, name: Option<PlaceName>, keep: bool) {
        let found = name.and_then(|name| self.places.iter().position(|place| place.name() == name));
        if let Some(index) = found {
            self.places[index].in_use = keep;
            self.renew(index);
        }
    }

    /// Evicts the place that the real cache evicted: it must have the lowest priority of its tenant and the lowest
    /// rank of that.
    pub(super) fn evict_place_of(&mut self, tenant: TenantId, told: Option<Told>) {
        let Some(Told::PlaceEvicted(namespace, prefix, positions)) = told else {
            panic!("{told:?} went before a place of {tenant:?}");
        };
        let name = (namespace, prefix, positions);
        let first = self.places_of(tenant).map(|place| (place.priority(), place.rank)).min();
        let is_spared =
            self.places_of(tenant).any(|place| Some(place.priority()) > first.map(|first| first.0));
        self.events.places_spared_by_priority += u64::from(is_spared);
        let found = self.places.iter().position(|place| place.name() == name);
        let place = self.places.remove(found.unwrap_or_else(|| panic!("{name:?} is no place")));
        assert!(!self.is_kept(&place), "{name:?} is kept");
        assert_eq!(self.tenant(namespace), tenant, "{name:?} is another's");
        assert_eq!(Some((place.priority(), place.rank)), first, "{name:?} went before the first");
        self.age(tenant, place.rank);
    }

    /// The rank of a block relative to places: 0 when no sequence can resume after it.
    pub(super) fn rank_of(&self, index: usize) -> u64 {
        let Entry { namespace, ref prefix, ageing, .. } = self.entries[index];
        let is_there = |place: &NamedPlace| place.namespace == namespace && place.prefix == *prefix;
        let lacks_state = self.needs.state_bytes > 0 && !self.places.iter().any(is_there);
        let lacks_part = self.needs.windows.is_some() && !self.is_part_held(namespace, prefix);
        if lacks_state || lacks_part { 0 } else { ageing + ((BLOCK_POSITIONS as u64) << 16) }
    }

    /// Raises the ageing value of a tenant to the rank of a victim.
    pub(super) fn age(&mut self, tenant: TenantId, rank: u64) {
        let ageing = self.ageing.entry(tenant).or_default();
        *ageing = rank.max(*ageing);
    }

    pub(super) fn ageing_of(&self, namespace: NamespaceId) -> u64 {
        self.ageing.get(&self.tenant(namespace)).copied().unwrap_or_default()
    }

    /// Renews the rank of a place that was used or is no longer protected.
    fn renew(&mut self, index: usize) {
        let ageing = self.ageing_of(self.places[index].namespace);
        let place = &mut self.places[index];
        place.rank = ageing + ((place.spares as u64) << 16) / place.units.max(1) as u64;
    }

    /// Ends the protection of the place at the end of these whole blocks.
    pub(super) fn unkeep_places(&mut self, namespace: NamespaceId, whole: &[Token]) {
        let name = (namespace, whole.to_vec(), BLOCK_POSITIONS as u8);
        let found = self.places.iter().position(|place| place.name() == name);
        found.into_iter().for_each(|index| self.renew(index));
    }

    /// The evictable places of a tenant.
    pub(super) fn places_of(&self, tenant: TenantId) -> impl Iterator<Item = &NamedPlace> {
        self.places.iter().filter(move |place| self.tenant(place.namespace) == tenant && !self.is_kept(place))
    }

    /// Marks the places in a block as used by a sequence of a namespace.
    pub(super) fn touch_places(&mut self, by: NamespaceId, block: &[Token], asked: Lifetime) {
        let (home, now) = (self.home(by, block), self.now);
        for index in 0..self.places.len() {
            let place = &mut self.places[index];
            if place.namespace == home && place.prefix == block {
                if home == by {
                    place.raise(asked, now);
                }
                self.renew(index);
            }
        }
    }

    /// Drops the places whose block is gone.
    pub(super) fn drop_lost_places(&mut self) {
        let entries = &self.entries;
        self.places.retain(|place| {
            entries.iter().any(|entry| entry.namespace == place.namespace && entry.prefix == place.prefix)
        });
    }

    /// Moves the places of a block to the block that extends it.
    pub(super) fn move_places(&mut self, namespace: NamespaceId, from: &[Token], to: &[Token]) {
        for place in
            self.places.iter_mut().filter(|place| place.namespace == namespace && place.prefix == from)
        {
            place.prefix = to.to_vec();
        }
    }

    /// Handles a sequence that ends within a cached block: it can pass its windowed part on only when it has all of
    /// the block.
    pub(super) fn pass_tail(&mut self, seq: SeqId, known: &[Token], tokens: usize) {
        let running = &self.running[&seq];
        let index = blocks_for(tokens) - 1;
        let lacks = known.len() > tokens && !self.is_part_held(running.namespace, known);
        if lacks && index >= running.auxiliary.parts_from {
            self.running.get_mut(&seq).unwrap().auxiliary.parts_from = index + 1;
        }
    }

    /// Returns whether a place is at the end of these whole blocks.
    pub(crate) fn has_place(&self, namespace: NamespaceId, whole: &[Token]) -> bool {
        let name = (namespace, whole.to_vec(), BLOCK_POSITIONS as u8);
        self.places.iter().any(|place| place.name() == name)
    }

    pub(crate) fn mark(&mut self, seq: SeqId, positions: usize) {
        let rest = if self.needs.state_bytes > 0 { positions % BLOCK_POSITIONS } else { 0 };
        let index = (positions - rest).checked_sub(1).filter(|_| !self.needs.is_nothing());
        let marks = &mut self.running.get_mut(&seq).unwrap().auxiliary.marks;
        marks.extend(index.map(|last| last / BLOCK_POSITIONS));
    }

    pub(crate) fn prepare(&mut self, seq: SeqId, from: usize, to: usize) {
        let Running { namespace, auxiliary, .. } = self.running.get_mut(&seq).unwrap();
        let namespace = *namespace;
        auxiliary.saves.clear();
        let mut due = auxiliary.marks.clone();
        due.sort_unstable();
        due.dedup();
        let has_state = self.needs.state_bytes > 0;
        due.retain(|&index| has_state && (from + 1..=to).contains(&((index + 1) * BLOCK_POSITIONS)));
        for index in due {
            if !self.make_room_for_place(namespace, self.needs.units(0, 1)) {
                return;
            }
            self.running.get_mut(&seq).unwrap().auxiliary.saves.push(index);
        }
    }

    pub(crate) fn advance(&mut self, seq: SeqId, positions: usize) {
        let published = self.running[&seq].leased.len() / BLOCK_POSITIONS;
        let held = &mut self.running.get_mut(&seq).unwrap().auxiliary;
        let mut due: Vec<usize> = held.marks.extract_if(.., |index| *index < published).collect();
        due.sort_unstable();
        due.dedup();
        for index in due {
            let saves = &mut self.running.get_mut(&seq).unwrap().auxiliary.saves;
            let saved = saves.extract_if(.., |save| *save == index).count();
            if saved > 0 || self.needs.state_bytes == 0 {
                self.add_place(seq, index, BLOCK_POSITIONS as u8, None);
            }
        }
        let earliest = self.needs.first_part_of_place(positions / BLOCK_POSITIONS);
        let (leased, owned) = self.table(seq);
        let held = &mut self.running.get_mut(&seq).unwrap().auxiliary;
        held.saves.clear();
        held.parts_from = held.parts_from.max(earliest.min(leased + owned));
    }

    /// Ends a sequence after `tokens` tokens; `tail` is the last block when that is partial.
    pub(super) fn end_with(&mut self, seq: SeqId, tokens: usize, tail: Option<Vec<Token>>) {
        if tokens == 0 || self.needs.is_nothing() {
            return;
        }
        let Running { namespace, auxiliary, .. } = self.running.get_mut(&seq).unwrap();
        let (namespace, has_state) = (*namespace, self.needs.state_bytes > 0 && auxiliary.units > 0);
        auxiliary.units = 0;
        auxiliary.saves.clear();
        let (index, within) = ((tokens - 1) / BLOCK_POSITIONS, (tokens - 1) % BLOCK_POSITIONS + 1);
        if self.needs.state_bytes == 0 {
            self.add_place(seq, index, BLOCK_POSITIONS as u8, tail);
        } else if has_state && self.make_room_for_place(namespace, self.needs.units(0, 1)) {
            // Its state needs room first, the windowed parts in addition.
            self.add_place(seq, index, within as u8, tail);
        }
    }

    /// Adds a place in a sequence's block of this index, unless it exists, parts are missing, or there is no room.
    fn add_place(&mut self, seq: SeqId, index: usize, positions: u8, tail: Option<Vec<Token>>) {
        let end = (index + 1) * BLOCK_POSITIONS;
        let (needs, running) = (self.needs, &self.running[&seq]);
        let whole = running.leased.get(..end).map(<[Token]>::to_vec);
        let prefix = whole.or(tail).expect("it stands in a block of the sequence");
        let has_state = needs.state_bytes > 0;
        let (by, lifetime, now) = (running.namespace, running.lifetime, self.now);
        let namespace = self.home(by, &prefix);
        let first = match needs.windows {
            None => index + 1,
            Some(_) => running.auxiliary.parts_from.max(needs.first_part_of_place(index)),
        };
        let lacks_parts = needs.windows.is_some() && first > needs.first_part(end);
        let first = first.min(index + 1);
        let units = needs.units(index + 1 - first, usize::from(has_state));
        let name = (namespace, prefix.clone(), positions);
        if let Some(known) = self.places.iter().position(|other| other.name() == name) {
            let place = &mut self.places[known];
            if namespace == by {
                place.raise(lifetime, now);
            }
            self.renew(known);
        } else if !lacks_parts && self.make_room_for_place(namespace, units) {
            let before = (1..=index).rev().find(|&blocks| {
                let whole = &prefix[..blocks * BLOCK_POSITIONS];
                let home = self.home(by, whole);
                self.places.iter().any(|place| place.namespace == home && place.prefix == whole)
            });
            let spares = (index + 1 - before.unwrap_or(0)) * BLOCK_POSITIONS;
            let (in_use, rank) = (false, 0);
            let (keep, lowers) = (Keep::NOTHING, None);
            let mut place = NamedPlace {
                namespace,
                prefix,
                positions,
                first,
                has_state,
                units,
                keep,
                lowers,
                spares,
                rank,
                in_use,
            };
            place.raise(lifetime, now);
            self.places.push(place);
            self.renew(self.places.len() - 1);
        }
    }

    /// Evicts enough for a place of a namespace; returns false, and does nothing, when there is no room for it or
    /// its tenant would exceed its quota.
    fn make_room_for_place(&mut self, namespace: NamespaceId, units: usize) -> bool {
        let tenant = self.tenant(namespace);
        let available = self.free() + self.evictable() + self.places_evictable();
        let own = |entry: &&Entry| self.tenant(entry.namespace) == tenant && !self.is_locked(entry);
        let places: usize = self.places_of(tenant).map(|place| place.units).sum();
        let yields = self.entries.iter().filter(own).count() + places;
        let fits = self.quota(namespace).is_none_or(|quota| self.held_by(tenant) + units <= quota + yields);
        self.events.places_refused_by_quota += u64::from(!fits);
        if units > available || !fits {
            return false;
        }
        self.keep_quota(namespace, units, None);
        self.free_up(units, None);
        true
    }
}
