//! Places where a sequence can go on, for layers that hold something [beside](crate::beside) blocks.
//!
//! ```text
//! path     [b0][b1][b2][b3][b4][b5][b6][b7]            blocks of all positions: as many as match
//! parts                     p3  p4  p5                 windowed parts that somebody uses
//! places                            ▲ keeps p3 p4 p5, and the state behind b5
//! ```
//!
//! The windowed part of a block is there while somebody uses it: sequences whose window it is in, and places. A place
//! stands in a block of the tree and goes with it. It keeps the parts that a sequence needs to go on anywhere in that
//! block, and the state at one of its positions, so that a prefix can be continued there when the sequence that computed
//! it has long moved on.
//!
//! Which place is evicted first is decided by Greedy-Dual (Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms", 1997):
//! its rank is what it spares, tokens to compute again for each block's worth that it takes, above the *ageing value* of
//! its tenant, which is the rank of the last victim, place or block; a use renews it.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::admission::{Changes, CopyPart};
use crate::beside::Beside;
use crate::evict::Lane;
use crate::ids::{BLOCK_POSITIONS, BlockId, NamespaceId, StateId, TenantId};

/// Where a place stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlaceId {
    pub(crate) block: BlockId,
    /// Positions of the block that its state has seen; 16 when it has none.
    pub(crate) positions: u8,
}

/// What a place keeps.
#[derive(Debug)]
pub(crate) struct Place {
    /// That of its block.
    pub(crate) namespace: NamespaceId,
    /// Whose it is, and the highest priority of those who have made and used it.
    pub(crate) lane: Lane,
    /// Blocks whose windowed parts it uses; the last one is its own, if any is.
    pub(crate) parts: Vec<BlockId>,
    pub(crate) state: Option<StateId>,
    /// Blocks' worth that it takes.
    pub(crate) units: usize,
    /// Tokens from the place before it: what it spares.
    pub(crate) spares: usize,
    /// Pins and derived namespaces that need it.
    pub(crate) keepers: u32,
    /// Its rank among those of its lane; given when it is added.
    pub(crate) rank: u64,
}

/// All places of a tree, and who uses the windowed part of each block.
#[derive(Debug, Default)]
pub(crate) struct Places {
    needs: Beside,
    /// Users of the windowed part, `[blocks]`; empty where no layer has a window.
    users: Vec<u32>,
    /// Blocks whose part nobody uses any more.
    emptied: Vec<BlockId>,
    copies: Vec<CopyPart>,
    all: BTreeMap<PlaceId, Place>,
    /// Those that nobody keeps.
    ranks: BTreeSet<(Lane, u64, PlaceId)>,
    tenants: FxHashMap<TenantId, OfTenant>,
    evictable: usize,
    states_free: Vec<StateId>,
    states_made: u32,
    states_vacated: Vec<StateId>,
    /// States that were given to sequences and must be set.
    states_fresh: Vec<StateId>,
}

/// What is known of a tenant.
#[derive(Debug, Default)]
struct OfTenant {
    /// The rank of its last victim.
    ageing: u64,
    /// Blocks' worth of its places that nobody keeps.
    evictable: usize,
}

/// What is worth keeping: tokens that it spares for each of so many blocks' worth.
pub(crate) fn value(tokens: usize, units: usize) -> u64 {
    /// So that what spares less than one token has a value.
    const SCALE: u64 = 1 << 16;
    (tokens as u64).saturating_mul(SCALE) / units.max(1) as u64
}

impl Places {
    /// None, of a pool of `blocks`, for layers with these needs.
    pub(crate) fn new(needs: Beside, blocks: usize) -> Places {
        let users = if needs.windows.is_some() { vec![0; blocks] } else { Vec::new() };
        Places { needs, users, ..Places::default() }
    }

    pub(crate) fn needs(&self) -> &Beside {
        &self.needs
    }

    /// Counts one more user of a block's windowed part.
    pub(crate) fn hold(&mut self, block: BlockId) {
        self.users.get_mut(block.index()).into_iter().for_each(|users| *users += 1);
    }

    /// Takes one user of a block's windowed part back.
    pub(crate) fn let_go(&mut self, block: BlockId) {
        let Some(users) = self.users.get_mut(block.index()) else { return };
        *users = users.checked_sub(1).expect("who lets go has held");
        if *users == 0 {
            self.emptied.push(block);
        }
    }

    /// Whether the windowed part of a block is there.
    pub(crate) fn is_held(&self, block: BlockId) -> bool {
        self.users.get(block.index()).is_none_or(|&users| users > 0)
    }

    /// How many use the windowed part of each block, `[blocks]`; empty where no layer has a window. For the checker.
    pub(crate) fn users(&self) -> &[u32] {
        &self.users
    }

    /// Notes that the windowed part of a block is to be copied to another that has the same tokens.
    pub(crate) fn copy(&mut self, copy: CopyPart) {
        self.copies.push(copy);
    }

    /// What changed since this was asked last, except of whole blocks.
    pub(crate) fn take_changes(&mut self) -> Changes {
        let mut parts = std::mem::take(&mut self.emptied);
        parts.retain(|block| self.users[block.index()] == 0);
        let mut states = std::mem::take(&mut self.states_vacated);
        states.retain(|state| self.states_free.contains(state));
        let mut fresh = std::mem::take(&mut self.states_fresh);
        fresh.retain(|state| !self.states_free.contains(state));
        Changes { fresh, copies: std::mem::take(&mut self.copies), parts, blocks: Vec::new(), states }
    }

    /// Notes that a state must be set to the one before the first token.
    pub(crate) fn set_fresh(&mut self, state: StateId) {
        self.states_fresh.push(state);
    }

    /// A state that nobody else has; who asks has made room for it.
    pub(crate) fn take_state(&mut self) -> StateId {
        self.states_free.pop().unwrap_or_else(|| {
            self.states_made += 1;
            StateId(self.states_made - 1)
        })
    }

    /// Takes a state back.
    pub(crate) fn release_state(&mut self, state: StateId) {
        self.states_free.push(state);
        self.states_vacated.push(state);
    }

    /// States that somebody has.
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
        if place.keepers == 0 {
            self.ranks.insert((place.lane, place.rank, id));
            self.evictable += place.units;
            self.tenants.entry(place.lane.tenant).or_default().evictable += place.units;
        }
        let before = self.all.insert(id, place);
        assert!(before.is_none(), "{id:?} is there already");
    }

    fn take(&mut self, id: PlaceId) -> Option<Place> {
        let place = self.all.remove(&id)?;
        if place.keepers == 0 {
            self.ranks.remove(&(place.lane, place.rank, id));
            self.evictable -= place.units;
            self.tenants.entry(place.lane.tenant).or_default().evictable -= place.units;
        }
        Some(place)
    }

    /// Removes a place; blocks' worth that it took.
    pub(crate) fn remove(&mut self, id: PlaceId) -> usize {
        let Some(place) = self.take(id) else { return 0 };
        place.parts.iter().for_each(|&block| self.let_go(block));
        place.state.into_iter().for_each(|state| self.release_state(state));
        place.units
    }

    /// Of the places of a tenant that nobody keeps, of its lowest priority, the one of the least rank.
    pub(crate) fn victim(&self, tenant: TenantId) -> Option<PlaceId> {
        let least = PlaceId { block: BlockId(0), positions: 0 };
        let mut places = self.ranks.range((Lane { tenant, priority: i8::MIN }, 0, least)..);
        places.next().filter(|(lane, ..)| lane.tenant == tenant).map(|&(.., id)| id)
    }

    /// Blocks' worth of the places of a tenant that nobody keeps.
    pub(crate) fn evictable_of(&self, tenant: TenantId) -> usize {
        self.tenants.get(&tenant).map_or(0, |tenant| tenant.evictable)
    }

    /// Removes a place for which there is no room; blocks' worth that it took.
    pub(crate) fn evict(&mut self, id: PlaceId) -> usize {
        let Place { lane, rank, .. } = self.all[&id];
        self.age(lane.tenant, rank);
        self.remove(id)
    }

    /// What is used from now on ranks above a victim of this rank.
    pub(crate) fn age(&mut self, tenant: TenantId, rank: u64) {
        let ageing = &mut self.tenants.entry(tenant).or_default().ageing;
        *ageing = rank.max(*ageing);
    }

    /// The rank of the last victim of a tenant.
    pub(crate) fn ageing(&self, tenant: TenantId) -> u64 {
        self.tenants.get(&tenant).map_or(0, |tenant| tenant.ageing)
    }

    /// The priority and the rank of a place.
    pub(crate) fn order_of(&self, id: PlaceId) -> (i8, u64) {
        let Place { lane, rank, .. } = &self.all[&id];
        (lane.priority, *rank)
    }

    /// Gives the places of a namespace to a tenant; blocks' worth that they take.
    pub(crate) fn give(&mut self, namespace: NamespaceId, tenant: TenantId) -> usize {
        let of_namespace = self.all.iter().filter(|(_, place)| place.namespace == namespace);
        let ids: Vec<PlaceId> = of_namespace.map(|(&id, _)| id).collect();
        let give = |id: PlaceId| {
            let mut place = self.take(id).expect("it was found a moment ago");
            let units = place.units;
            place.lane.tenant = tenant;
            self.insert(id, place);
            units
        };
        ids.into_iter().map(give).sum()
    }

    /// Removes all places in a block; blocks' worth that they took.
    pub(crate) fn remove_of(&mut self, block: BlockId) -> usize {
        let ids: Vec<PlaceId> = self.of(block).map(|(id, _)| id).collect();
        ids.into_iter().map(|id| self.remove(id)).sum()
    }

    /// Moves the places of a block to one that takes its place in the tree, where its part is in use.
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

    /// Notes that a sequence of a namespace and a priority goes on from a place. Who continues another's prompt leaves
    /// no mark on its priority.
    pub(crate) fn touch(&mut self, id: PlaceId, by: NamespaceId, priority: i8) {
        self.change(id, |place| {
            if place.namespace == by {
                place.lane.priority = place.lane.priority.max(priority);
            }
        });
    }

    /// Keeps a place for one more pin or derived namespace.
    pub(crate) fn keep(&mut self, id: PlaceId) {
        self.change(id, |place| place.keepers += 1);
    }

    /// Takes [`keep`](Places::keep) back.
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

    /// Whether a place stands in a block.
    pub(crate) fn is_in(&self, block: BlockId) -> bool {
        self.of(block).next().is_some()
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = (PlaceId, &Place)> {
        self.all.iter().map(|(&id, place)| (id, place))
    }

    /// Blocks' worth of the places that nobody keeps.
    pub(crate) fn evictable(&self) -> usize {
        self.evictable
    }

    /// Leading tokens of a path, of which `tokens` are known, after which a sequence can go on.
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
