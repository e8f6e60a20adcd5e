//! Commands for auxiliary state: places where sequences can resume, and the parts that a sequence releases.
//!
//! ```text
//! admit ── marks: where places are wanted ── prepare: states to save ── (compute, publish) ── advance ── finish
//!                                                                       places at the marks, and     a place at
//!                                                                       old parts are released       its end
//! ```

use super::life::Cache;
use crate::admission::Changes;
use crate::auxiliary::AuxiliaryState;
use crate::evict::Lane;
use crate::ids::{BLOCK_POSITIONS, BlockId, NamespaceId, NodeId, SeqId, StateId, Token};
use crate::lifetime::Keep;
use crate::tree::{Place, PlaceId, Places};

impl Cache {
    /// Declares the auxiliary state that sequences hold from now on. Nothing may have been published yet.
    pub fn hold_auxiliary(&mut self, needs: AuxiliaryState) {
        assert!(self.pool.shared() + self.pool.owned() == 0, "what is there already would not be counted");
        self.radix.places = Places::new(needs, self.pool.len());
        if !needs.is_nothing() {
            self.pool.list_vacated();
        }
    }

    /// The state of a running sequence, where layers have one and it has room for a position.
    pub fn state(&self, seq: SeqId) -> Option<StateId> {
        self.running(seq).state
    }

    /// The states to be saved in the step that was [prepared](Cache::prepare), each with the number of positions
    /// before it, ascending.
    pub fn saves(&self, seq: SeqId) -> Vec<(usize, StateId)> {
        let saves = self.running(seq).saves.iter();
        saves.map(|&(index, state)| ((index + 1) * BLOCK_POSITIONS, state)).collect()
    }

    /// Requests a place where others will resume after `positions`: in their last block, or at the end of the last
    /// full block where layers have a state.
    pub fn mark(&mut self, seq: SeqId, positions: usize) {
        let rest = if self.needs().has_state() { positions % BLOCK_POSITIONS } else { 0 };
        let positions = positions - rest;
        let Some(index) = positions.checked_sub(1).map(|last| last / BLOCK_POSITIONS) else { return };
        if self.needs().is_nothing() {
            return;
        }
        let marks = &mut self.running_mut(seq).marks;
        if let Err(place) = marks.binary_search(&index) {
            marks.insert(place, index);
        }
    }

    /// Prepares the computation of a sequence's positions from `from` to `to`: allocates the states to be saved on
    /// the way, as far as there is room. States of an earlier call that was not followed by
    /// [`advance`](Cache::advance) are released.
    pub fn prepare(&mut self, seq: SeqId, from: usize, to: usize) {
        self.drop_saves(seq);
        if !self.needs().has_state() {
            return;
        }
        let namespace = self.namespace_of(seq);
        let ends = |index: &&usize| ((from + 1)..=to).contains(&((**index + 1) * BLOCK_POSITIONS));
        let due: Vec<usize> = self.running(seq).marks.iter().filter(ends).copied().collect();
        for index in due {
            if !self.withhold_for_place(namespace, self.needs().units(0, 1), 0) {
                return;
            }
            let state = self.radix.places.take_state();
            self.running_mut(seq).saves.push((index, state));
        }
    }

    /// Notes that a sequence has stored `positions`, whose whole blocks are published if it publishes: adds the
    /// places that are due, and releases the windowed parts that its next rows do not read.
    pub fn advance(&mut self, seq: SeqId, positions: usize) {
        if self.needs().is_nothing() {
            return;
        }
        let table = self.running_mut(seq);
        let published = table.shared().len();
        let due = table.marks.partition_point(|&index| index < published);
        let due: Vec<usize> = table.marks.drain(..due).collect();
        for index in due {
            let save = self.take_save(seq, index);
            if save.is_some() || !self.needs().has_state() {
                self.add_place(seq, index, save.map(|state| (state, BLOCK_POSITIONS)));
            }
        }
        self.drop_saves(seq);
        let first = self.needs().first_part_of_place(positions / BLOCK_POSITIONS);
        let table = self.sequences.get_mut(&seq).expect("the sequence is running");
        table.drop_parts(first, &mut self.radix);
    }

    /// Holds the windowed parts of a sequence's shared blocks that a place after `positions` needs, as far as they
    /// exist.
    pub fn hold_parts_for(&mut self, seq: SeqId, positions: usize) {
        if self.needs().windows.is_some() {
            let earliest = self.needs().first_part_of_place(positions / BLOCK_POSITIONS);
            let table = self.sequences.get_mut(&seq).expect("the sequence is running");
            let shared = table.shared().len();
            table.hold_parts(shared, earliest.min(shared), &mut self.radix);
        }
    }

    /// Takes the states stored in places since the last call: for each the running sequence, the number of
    /// positions and the state.
    pub fn take_kept_states(&mut self) -> Vec<(SeqId, usize, StateId)> {
        std::mem::take(&mut self.kept_states)
    }

    /// The state of a place after exactly these tokens, if there is one.
    pub fn state_after(&self, namespace: NamespaceId, tokens: &[Token]) -> Option<StateId> {
        let walk = self.radix.walk(self.roots[&namespace], tokens);
        let place = self.place_at(&walk).filter(|_| walk.tokens == tokens.len())?;
        self.radix.places.get(place)?.state
    }

    /// Notes that the windowed parts of the first `blocks` of a running sequence are missing.
    pub fn lack_parts(&mut self, seq: SeqId, blocks: usize) {
        if self.needs().windows.is_some() {
            let table = self.sequences.get_mut(&seq).expect("the sequence is running");
            table.drop_parts(blocks, &mut self.radix);
        }
    }

    /// Releases the state of a running sequence because it does not match its positions; no place may store it.
    pub fn spoil_state(&mut self, seq: SeqId) {
        let table = self.sequences.get_mut(&seq).expect("the sequence is running");
        if let Some(state) = table.state.take() {
            self.radix.places.release_state(state);
        }
    }

    /// Returns whether a running sequence uses the windowed part of its block of this index.
    pub fn needs_part(&self, seq: SeqId, index: usize) -> bool {
        index >= self.running(seq).parts_from()
    }

    /// Returns whether the windowed part of a block exists.
    pub fn has_part(&self, block: BlockId) -> bool {
        self.radix.places.is_held(block)
    }

    /// Returns whether a fork of a running sequence that has stored `stored` positions can begin after `tokens` of
    /// them.
    pub fn can_fork(&self, parent: SeqId, tokens: usize, stored: usize) -> bool {
        let needs = self.needs();
        let sees = needs.windows.is_none() || needs.first_part(tokens) >= self.running(parent).parts_from();
        sees && (!needs.has_state() || tokens == stored)
    }

    /// Takes the changes of auxiliary state since the last call.
    pub fn take_changes(&mut self) -> Changes {
        if self.needs().is_nothing() {
            return Changes::default();
        }
        Changes { blocks: self.pool.take_vacated(), ..self.radix.places.take_changes() }
    }

    pub(super) fn needs(&self) -> &AuxiliaryState {
        self.radix.places.needs()
    }

    /// Adds a place at the end of a sequence that has ended after `positions`, all of them published.
    pub(super) fn add_last_place(&mut self, seq: SeqId, positions: usize) {
        let Some(last) = positions.checked_sub(1).filter(|_| !self.needs().is_nothing()) else { return };
        let table = self.running_mut(seq);
        let state = table.state.take();
        let (index, within) = (last / BLOCK_POSITIONS, last % BLOCK_POSITIONS + 1);
        let table = self.sequences.get_mut(&seq).expect("the sequence is running");
        // Its own auxiliary state makes room for the place.
        table.release_auxiliary(&mut self.radix, &mut self.pool);
        let units = self.needs().units(0, usize::from(state.is_some()));
        match state {
            Some(state) if self.withhold_for_place(self.namespace_of(seq), units, 0) => {
                self.add_place(seq, index, Some((state, within)));
            }
            Some(state) => self.radix.places.release_state(state),
            None if !self.needs().has_state() => self.add_place(seq, index, None),
            None => {}
        }
    }

    /// Adds a place in the block of this index, with a state for which room is already withheld.
    fn add_place(&mut self, seq: SeqId, index: usize, state: Option<(StateId, usize)>) {
        let positions = state.map_or(BLOCK_POSITIONS, |(_, positions)| positions) as u8;
        let held = self.needs().units(0, usize::from(state.is_some()));
        let table = self.running(seq);
        let id = PlaceId { block: table.blocks()[index], positions };
        let parts = self.parts_for(seq, index);
        let is_known = self.radix.places.get(id).is_some();
        let units =
            parts.as_ref().map_or(0, |parts| self.needs().units(parts.len(), usize::from(state.is_some())));
        let node = self.node_at(seq, index);
        let (namespace, lifetime) = (self.radix.arena[node].namespace, self.running(seq).lifetime);
        let now = self.radix.now;
        if is_known || parts.is_none() || !self.withhold_for_place(namespace, units, held) {
            self.pool.restore(held);
            state.into_iter().for_each(|(state, _)| self.radix.places.release_state(state));
            return self.radix.places.touch(id, self.namespace_of(seq), lifetime, now);
        }
        let mut place = Place {
            namespace,
            lane: Lane { tenant: self.radix.owner(node), priority: 0 },
            keep: Keep::NOTHING,
            lowers: None,
            parts: parts.unwrap_or_default(),
            state: state.map(|(state, _)| state),
            units,
            spares: self.tokens_from_place_before(seq, index),
            keepers: 0,
            rank: 0,
        };
        place.raise(lifetime, now);
        self.radix.add_place(id, place);
        self.totals.places += 1;
        self.kept_states.extend(state.map(|(state, within)| (seq, index * BLOCK_POSITIONS + within, state)));
        if usize::from(id.positions) == BLOCK_POSITIONS {
            (0..self.keepers_of(seq, index)).for_each(|_| self.radix.places.keep(id));
        }
    }

    /// The node of a sequence's published block of this index.
    fn node_at(&self, seq: SeqId, index: usize) -> NodeId {
        let path = self.radix.path_up(self.running(seq).lease());
        self.node_on(path, index).expect("the block is in the tree")
    }

    /// The blocks whose windowed parts a place in the block of this index holds; `None` when the sequence lacks some.
    fn parts_for(&self, seq: SeqId, index: usize) -> Option<Vec<BlockId>> {
        if self.needs().windows.is_none() {
            return Some(Vec::new());
        }
        let table = self.running(seq);
        let first = table.parts_from().max(self.needs().first_part_of_place(index));
        let needed = self.needs().first_part((index + 1) * BLOCK_POSITIONS);
        (first <= needed).then(|| table.blocks()[first.min(index + 1)..=index].to_vec())
    }

    fn tokens_from_place_before(&self, seq: SeqId, index: usize) -> usize {
        let blocks = &self.running(seq).blocks()[..index];
        let before = blocks.iter().rposition(|&block| self.radix.places.is_in(block));
        (index + 1 - before.map_or(0, |before| before + 1)) * BLOCK_POSITIONS
    }

    /// Pins and derived namespaces that end with a sequence's block of this index.
    fn keepers_of(&self, seq: SeqId, index: usize) -> usize {
        let lease = self.running(seq).lease();
        let end =
            self.radix.path_up(lease).find(|&id| self.radix.arena[id].end_depth() as usize == index + 1);
        end.map_or(0, |node| self.keepers_at(node))
    }

    /// Pins and derived namespaces that end with a node.
    pub(super) fn keepers_at(&self, node: NodeId) -> usize {
        let bases = self.roots.values().filter(|&&root| self.radix.arena[root].parent == Some(node)).count();
        bases + usize::from(self.pins.contains(node))
    }

    /// Protects the places at the end of a node for a pin or a derived namespace, or ends the protection.
    pub(super) fn keep_places(&mut self, node: NodeId, keep: bool) {
        let Some(&last) = self.radix.arena[node].blocks().last() else { return };
        let ids: Vec<PlaceId> = self.radix.places.of(last).map(|(id, _)| id).collect();
        for id in ids.into_iter().filter(|id| usize::from(id.positions) == BLOCK_POSITIONS) {
            match keep {
                true => self.radix.places.keep(id),
                false => self.radix.places.unkeep(id),
            }
        }
    }

    /// Makes room for a place of a namespace, for which `held` blocks are already withheld, and withholds the rest
    /// of `units`. Returns false, and does nothing, when there is no room or its tenant would exceed its quota.
    fn withhold_for_place(&mut self, namespace: NamespaceId, units: usize, held: usize) -> bool {
        let missing = units.saturating_sub(held);
        if missing > self.available() || !self.fits_quota(namespace, units) {
            return false;
        }
        self.keep_quota(namespace, units);
        self.free_up(missing);
        self.pool.withhold(missing);
        true
    }

    /// Evicts a place; returns how many blocks were withheld for it.
    pub(super) fn evict_place(&mut self, place: PlaceId) -> usize {
        #[cfg(test)]
        self.tell_of_place(place);
        let units = self.radix.evict_place(place);
        self.pool.restore(units);
        self.totals.places_evicted += 1;
        units
    }

    #[cfg(test)]
    fn tell_of_place(&mut self, id: PlaceId) {
        let mut nodes = self.radix.arena.iter();
        let (node, index) = nodes
            .find_map(|(node, held)| Some((node, held.blocks().iter().position(|&block| block == id.block)?)))
            .expect("a place stands in the tree");
        let end = (self.radix.arena[node].depth as usize + index + 1) * BLOCK_POSITIONS;
        let mut prefix = self.radix.prefix(node, usize::MAX);
        prefix.truncate(end);
        let namespace = self.radix.arena[node].namespace;
        self.told.push(super::life::Told::PlaceEvicted(namespace, prefix, id.positions));
    }

    fn take_save(&mut self, seq: SeqId, index: usize) -> Option<StateId> {
        let saves = &mut self.running_mut(seq).saves;
        let found = saves.iter().position(|&(at, _)| at == index)?;
        Some(saves.remove(found).1)
    }

    fn drop_saves(&mut self, seq: SeqId) {
        let saves = std::mem::take(&mut self.running_mut(seq).saves);
        for (_, state) in saves {
            self.pool.restore(self.needs().units(0, 1));
            self.radix.places.release_state(state);
        }
    }
}
