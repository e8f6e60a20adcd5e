//! Places, where a sequence can resume, for layers with [auxiliary state](crate::auxiliary).
//!
//! ```text
//! path     [b0][b1][b2][b3][b4][b5][b6][b7]            blocks of all positions: as many as match
//! parts                     p3  p4  p5                 windowed parts in use
//! places                            ▲ retains p3 p4 p5, and the state after b5
//! ```
//!
//! The windowed part of a block exists while it is in use: by sequences whose window contains it, and by places. A
//! place belongs to a block of the tree and is dropped with it. It retains the parts that a sequence needs to
//! resume anywhere in that block, and the state at one of its positions, so that a prefix can be continued there
//! when the sequence that computed it has long moved on.
//!
//! Greedy-Dual (Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms", 1997) decides which place is evicted
//! first: its rank is its value, the tokens it saves from recomputation per block withheld for it, plus the *ageing
//! value* of its tenant, which is the rank of the tenant's last victim, place or block. A use renews the rank.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::admission::{Changes, CopyPart};
use crate::auxiliary::AuxiliaryState;
use crate::evict::Lane;
use crate::ids::{BLOCK_POSITIONS, BlockId, NamespaceId, StateId, TenantId};
use crate::lifetime::{Keep, Lifetime};

/// The location of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlaceId {
    pub(crate) block: BlockId,
    /// Positions of the block that its state covers; 16 when it has none.
    pub(crate) positions: u8,
}

/// The content of a place.
#[derive(Debug)]
pub(crate) struct Place {
    /// The namespace of its block.
    pub(crate) namespace: NamespaceId,
    /// The owning tenant, and the present priority.
    pub(crate) lane: Lane,
    /// The strongest retention of the sequences that made or used it.
    pub(crate) keep: Keep,
    /// When its raised priority ends, unless it is used before.
    pub(crate) lowers: Option<Duration>,
    /// Blocks whose windowed parts it uses; the last one is its own, if any is.
    pub(crate) parts: Vec<BlockId>,
    pub(crate) state: Option<StateId>,
    /// Blocks that are withheld for it.
    pub(crate) units: usize,
    /// Tokens from the place before it, whose recomputation it saves.
    pub(crate) spares: usize,
    /// Number of pins and derived namespaces that protect it.
    pub(crate) keepers: u32,
    /// Its rank among the places of its lane; set when it is added.
    pub(crate) rank: u64,
}

impl Place {
    /// Raises its retention to that of a sequence that uses it now.
    pub(crate) fn raise(&mut self, asked: Lifetime, now: Duration) {
        self.keep = self.keep.and(asked);
        self.lane.priority = self.keep.priority();
        self.lowers = self.keep.raised.map(|raised| now.saturating_add(raised.lasts));
    }
}

/// All places of a tree, and the number of users of each block's windowed part.
#[derive(Debug, Default)]
pub(crate) struct Places {
    needs: AuxiliaryState,
    /// Number of users of each windowed part, `[blocks]`; empty where no layer has a window.
    users: Vec<u32>,
    /// Blocks whose part lost its last user.
    emptied: Vec<BlockId>,
    copies: Vec<CopyPart>,
    all: BTreeMap<PlaceId, Place>,
    /// The unprotected places.
    ranks: BTreeSet<(Lane, u64, PlaceId)>,
    /// The ends of raised priorities.
    lowerings: BTreeSet<(Duration, PlaceId)>,
    tenants: FxHashMap<TenantId, OfTenant>,
    units: usize,
    evictable: usize,
    states_free: Vec<StateId>,
    states_made: u32,
    states_vacated: Vec<StateId>,
    /// States that were assigned to sequences and must be initialised.
    states_fresh: Vec<StateId>,
}

/// The places of a tenant.
#[derive(Debug, Default)]
struct OfTenant {
    /// The rank of its last victim.
    ageing: u64,
    /// Blocks that are withheld for its unprotected places.
    evictable: usize,
}

/// The value of a place or a block: saved tokens per block of space.
pub(crate) fn value(tokens: usize, units: usize) -> u64 {
    /// Scale that gives a value to less than one saved token per block.
    const SCALE: u64 = 1 << 16;
    (tokens as u64).saturating_mul(SCALE) / units.max(1) as u64
}

impl Places {
    /// No places, for a pool of `blocks` and layers with these needs.
    pub(crate) fn new(needs: AuxiliaryState, blocks: usize) -> Places {
        let users = if needs.windows.is_some() { vec![0; blocks] } else { Vec::new() };
        Places { needs, users, ..Places::default() }
    }

    pub(crate) fn needs(&self) -> &AuxiliaryState {
        &self.needs
    }

    /// Adds a user of a block's windowed part.
    pub(crate) fn hold(&mut self, block: BlockId) {
        self.users.get_mut(block.index()).into_iter().for_each(|users| *users += 1);
    }

    /// Removes a user of a block's windowed part.
    pub(crate) fn let_go(&mut self, block: BlockId) {
        let Some(users) = self.users.get_mut(block.index()) else { return };
        *users = users.checked_sub(1).expect("who lets go has held");
        if *users == 0 {
            self.emptied.push(block);
        }
    }

    /// Returns whether the windowed part of a block exists.
    pub(crate) fn is_held(&self, block: BlockId) -> bool {
        self.users.get(block.index()).is_none_or(|&users| users > 0)
    }

    /// Number of users of each windowed part, `[blocks]`; empty where no layer has a window. For the checker.
    pub(crate) fn users(&self) -> &[u32] {
        &self.users
    }

    /// Schedules the copy of a windowed part to another block with the same tokens.
    pub(crate) fn copy(&mut self, copy: CopyPart) {
        self.copies.push(copy);
    }

    /// Takes the changes since the last call, except those of whole blocks.
    pub(crate) fn take_changes(&mut self) -> Changes {
        let mut parts = std::mem::take(&mut self.emptied);
        parts.retain(|block| self.users[block.index()] == 0);
        let mut states = std::mem::take(&mut self.states_vacated);
        states.retain(|state| self.states_free.contains(state));
        let mut fresh = std::mem::take(&mut self.states_fresh);
        fresh.retain(|state| !self.states_free.contains(state));
        Changes { fresh, copies: std::mem::take(&mut self.copies), parts, blocks: Vec::new(), states }
    }

    /// Marks a state to be set to the initial one.
    pub(crate) fn set_fresh(&mut self, state: StateId) {
        self.states_fresh.push(state);
    }

    /// Allocates a state; the caller has made room for it.
    pub(crate) fn take_state(&mut self) -> StateId {
        self.states_free.pop().unwrap_or_else(|| {
            self.states_made += 1;
            StateId(self.states_made - 1)
        })
    }

    /// Releases a state.
    pub(crate) fn release_state(&mut self, state: StateId) {
        self.states_free.push(state);
        self.states_vacated.push(state);
    }

    /// Number of allocated states.
    pub(crate) fn states(&self) -> usize {
        self.states_made as usize - self.states_free.len()
    }

    /// Adds a place, for which room was withheld; it uses its parts from now on.
    pub(crate) fn add(&mut self, id: PlaceId, mut place: Place) {
        place.parts.iter().for_each(|&block| self.hold(block));
        place.rank = self.rank_of(&place);
        self.insert(id, place);
    }

    fn insert(&mut self, id: PlaceId, place: Place) {
        self.units += place.units;
        if place.keepers == 0 {
            self.ranks.insert((place.lane, place.rank, id));
            self.evictable += place.units;
            self.tenants.entry(place.lane.tenant).or_default().evictable += place.units;
        }
        self.lowerings.extend(place.lowers.map(|lowers| (lowers, id)));
        let before = self.all.insert(id, place);
        assert!(before.is_none(), "{id:?} is there already");
    }

    fn take(&mut self, id: PlaceId) -> Option<Place> {
        let place = self.all.remove(&id)?;
        self.units -= place.units;
        place.lowers.map(|lowers| self.lowerings.remove(&(lowers, id)));
        if place.keepers == 0 {
            self.ranks.remove(&(place.lane, place.rank, id));
            self.evictable -= place.units;
            self.tenants.entry(place.lane.tenant).or_default().evictable -= place.units;
        }
        Some(place)
    }

    /// Removes a place; returns how many blocks were withheld for it.
    pub(crate) fn remove(&mut self, id: PlaceId) -> usize {
        let Some(place) = self.take(id) else { return 0 };
        place.parts.iter().for_each(|&block| self.let_go(block));
        place.state.into_iter().for_each(|state| self.release_state(state));
        place.units
    }

    /// The unprotected place of a tenant with the lowest priority, and of those the lowest rank.
    pub(crate) fn victim(&self, tenant: TenantId) -> Option<PlaceId> {
        let least = PlaceId { block: BlockId(0), positions: 0 };
        let mut places = self.ranks.range((Lane { tenant, priority: i8::MIN }, 0, least)..);
        places.next().filter(|(lane, ..)| lane.tenant == tenant).map(|&(.., id)| id)
    }

    /// Blocks that are withheld for the unprotected places of a tenant.
    pub(crate) fn evictable_of(&self, tenant: TenantId) -> usize {
        self.tenants.get(&tenant).map_or(0, |tenant| tenant.evictable)
    }

    /// Evicts a place; returns how many blocks were withheld for it.
    pub(crate) fn evict(&mut self, id: PlaceId) -> usize {
        let Place { lane, rank, .. } = self.all[&id];
        self.age(lane.tenant, rank);
        self.remove(id)
    }

    /// Raises the ageing value of a tenant to the rank of a victim, so that later uses rank above it.
    pub(crate) fn age(&mut self, tenant: TenantId, rank: u64) {
        let ageing = &mut self.tenants.entry(tenant).or_default().ageing;
        *ageing = rank.max(*ageing);
    }

    /// The ageing value of a tenant: the rank of its last victim.
    pub(crate) fn ageing(&self, tenant: TenantId) -> u64 {
        self.tenants.get(&tenant).map_or(0, |tenant| tenant.ageing)
    }

    /// The priority and the rank of a place.
    pub(crate) fn order_of(&self, id: PlaceId) -> (i8, u64) {
        let Place { lane, rank, .. } = &self.all[&id];
        (lane.priority, *rank)
    }

    /// Assigns the places of blocks to a tenant; returns how many blocks are withheld for them.
    pub(crate) fn give(&mut self, blocks: &[BlockId], tenant: TenantId) -> usize {
        let ids: Vec<PlaceId> = blocks.iter().flat_map(|&block| self.of(block)).map(|(id, _)| id).collect();
        let give = |id: PlaceId| {
            let mut place = self.take(id).expect("it was found a moment ago");
            let units = place.units;
            place.lane.tenant = tenant;
            self.insert(id, place);
            units
        };
        ids.into_iter().map(give).sum()
    }

    /// Removes all places in a block; returns how many blocks were withheld for them.
    pub(crate) fn remove_of(&mut self, block: BlockId) -> usize {
        let ids: Vec<PlaceId> = self.of(block).map(|(id, _)| id).collect();
        ids.into_iter().map(|id| self.remove(id)).sum()
    }

    /// Moves the places of a block to the one that replaces it in the tree, whose windowed part is in use.
    pub(crate) fn move_to(&mut self, from: BlockId, to: BlockId) {
        let ids: Vec<PlaceId> = self.of(from).map(|(id, _)| id).collect();
        for id in ids {
            let mut place = self.take(id).expect("it was found a moment ago");
            if let Some(last) = place.parts.last_mut().filter(|last| **last == from) {
                *last = to;
                self.hold(to);
                self.let_go(from);
            }
            self.insert(PlaceId { block: to, ..id }, place);
        }
    }

    /// Notes that a sequence resumes from a place. It raises the place's retention to its own only if it belongs to
    /// the same namespace.
    pub(crate) fn touch(&mut self, id: PlaceId, by: NamespaceId, asked: Lifetime, now: Duration) {
        self.change(id, |place| {
            if place.namespace == by {
                place.raise(asked, now);
            }
        });
    }

    /// Ends the raised priorities whose time is over.
    pub(crate) fn lower_ended(&mut self, now: Duration) {
        while let Some(&(_, id)) = self.lowerings.first().filter(|(lowers, _)| *lowers <= now) {
            let mut place = self.take(id).expect("its end is that of a place");
            place.keep = place.keep.lowered();
            (place.lane.priority, place.lowers) = (place.keep.priority(), None);
            self.insert(id, place);
        }
    }

    /// Protects a place for one more pin or derived namespace.
    pub(crate) fn keep(&mut self, id: PlaceId) {
        self.change(id, |place| place.keepers += 1);
    }

    /// Undoes [`keep`](Places::keep).
    pub(crate) fn unkeep(&mut self, id: PlaceId) {
        self.change(id, |place| place.keepers = place.keepers.checked_sub(1).expect("it was kept"));
    }

    fn change(&mut self, id: PlaceId, change: impl FnOnce(&mut Place)) {
        let Some(mut place) = self.take(id) else { return };
        change(&mut place);
        place.rank = self.rank_of(&place);
        self.insert(id, place);
    }

    fn rank_of(&self, place: &Place) -> u64 {
        self.ageing(place.lane.tenant).saturating_add(value(place.spares, place.units))
    }

    pub(crate) fn get(&self, id: PlaceId) -> Option<&Place> {
        self.all.get(&id)
    }

    /// The places in a block.
    pub(crate) fn of(&self, block: BlockId) -> impl Iterator<Item = (PlaceId, &Place)> {
        let [first, last] = [0, u8::MAX].map(|positions| PlaceId { block, positions });
        self.all.range(first..=last).map(|(&id, place)| (id, place))
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether there is a place in a block.
    pub(crate) fn is_in(&self, block: BlockId) -> bool {
        self.of(block).next().is_some()
    }

    /// All places.
    pub(crate) fn all(&self) -> impl Iterator<Item = (PlaceId, &Place)> {
        self.all.iter().map(|(&id, place)| (id, place))
    }

    /// Blocks that are withheld for places.
    pub(crate) fn units(&self) -> usize {
        self.units
    }

    /// Blocks that are withheld for unprotected places.
    pub(crate) fn evictable(&self) -> usize {
        self.evictable
    }

    /// Leading tokens of a path, of which `tokens` are cached, after which a sequence can resume.
    pub(crate) fn usable(&self, path: &[BlockId], tokens: usize) -> usize {
        let (mut run_start, mut best) = (0, 0);
        for (index, &block) in path.iter().enumerate() {
            let start = index * BLOCK_POSITIONS;
            if !self.is_held(block) {
                run_start = index + 1;
            }
            let sees_held =
                |end: usize| self.needs.windows.is_none() || run_start <= self.needs.first_part(end);
            let ends = |end: usize| end <= tokens && sees_held(end);
            if self.needs.has_state() {
                let states = self.of(block).filter(|(_, place)| place.state.is_some());
                let states = states.map(|(id, _)| start + usize::from(id.positions));
                best = states.filter(|&end| ends(end)).max().unwrap_or(best);
            } else if ends(tokens.min(start + BLOCK_POSITIONS)) {
                best = tokens.min(start + BLOCK_POSITIONS);
            }
        }
        best
    }
}
