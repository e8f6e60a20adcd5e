//! The tier below RAM, as the scheduler uses it: blocks that are computed go down, blocks that a
//! waiting request needs come up. What is decided is decided in [`kvik_cache::tier`], bytes are moved by
//! a [`BlockStore`]; here both meet the sequences.
//!
//! ```text
//!   a sequence computes ── spill ──► slot        behind the scenes, a copy at a time
//!   a request waits ────── load ───► blocks      a sequence in the cache that reads instead of computing
//! ```
//!
//! A load is a sequence like any other, with blocks of its own that are published as they fill. So those
//! who wait for it find its blocks in the cache, and nobody else needs to know where they came from.

mod load;
mod spill;
mod warm;

use std::time::Duration;

use kvik_cache::tier::{self, CostModel, Record, Relation, SlotId, Tier, Use};
use kvik_cache::{BLOCK_POSITIONS, Identity, Namespace, NamespaceId, StopReason, Token};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::stats::DiskStats;
use crate::store::Waker;
use crate::store::{Buffer, Completed, Store};

pub(super) use load::{Fetched, Load};
pub(super) use spill::{Rest, Spilled};

/// Moves bytes of blocks to and from slots, in the background. No call waits for the disk.
pub trait BlockStore: Send {
    /// Room for a block; `None` while all of it is under way.
    fn buffer(&mut self) -> Option<Buffer>;
    /// Writes a block that was placed in `slot`.
    fn write(&mut self, slot: SlotId, record: &Record, payload: Buffer);
    /// Reads the block `identity` from `slot`.
    fn read(&mut self, ticket: u64, slot: SlotId, identity: Identity, into: Buffer);
    /// Notes a use beside a stored block.
    fn touch(&mut self, slot: SlotId, use_: Use);
    /// Notes beside a stored block whether it is kept.
    fn pin(&mut self, slot: SlotId, pinned: bool);
    /// Empties a slot.
    fn erase(&mut self, slot: SlotId);
    /// What has been done since it was asked last.
    fn completed(&mut self) -> Option<Completed>;
}

impl BlockStore for Store {
    fn buffer(&mut self) -> Option<Buffer> {
        Store::buffer(self)
    }

    fn write(&mut self, slot: SlotId, record: &Record, payload: Buffer) {
        Store::write(self, slot, record, payload);
    }

    fn read(&mut self, ticket: u64, slot: SlotId, identity: Identity, into: Buffer) {
        Store::read(self, ticket, slot, identity, into);
    }

    fn touch(&mut self, slot: SlotId, use_: Use) {
        Store::touch(self, slot, use_);
    }

    fn pin(&mut self, slot: SlotId, pinned: bool) {
        Store::pin(self, slot, pinned);
    }

    fn erase(&mut self, slot: SlotId) {
        Store::erase(self, slot);
    }

    fn completed(&mut self) -> Option<Completed> {
        Store::completed(self)
    }
}

/// How the tier is set up.
pub struct DiskSetup {
    /// What is stored where.
    pub tier: Tier,
    /// Where the bytes are.
    pub store: Box<dyn BlockStore>,
    /// Prompts known from files of other models and KV formats, by lineage.
    pub kin: Vec<(Relation, u64)>,
    /// Blocks loaded at the start at most.
    pub warm_blocks: usize,
    /// Blocks on their way down at most; the rest of the store's room is for those that come up.
    pub writes_max: usize,
    /// Seconds since 1970 when the scheduler's clock was at zero.
    pub epoch_s: u64,
    /// Told by `store` when something is completed.
    pub waker: Waker,
}

/// What the scheduler knows of the disk.
pub(super) struct Disk {
    pub(super) tier: Tier,
    pub(super) store: Box<dyn BlockStore>,
    pub(super) cost: CostModel,
    /// Prefixes being read, oldest first.
    pub(super) loads: Vec<Load>,
    /// Sequences that have ended and are still being copied.
    rests: Vec<Rest>,
    /// Prefixes that were hot before the start, whose tenants have not been told of yet, the best first.
    found: Vec<tier::Chain>,
    /// Prefixes to be loaded while nothing else is to do, the best last.
    warm: Vec<warm::Wish>,
    kin: FxHashMap<u64, Relation>,
    /// Lineages of private prompts, which their own tenant may be told of.
    private: FxHashSet<u64>,
    epoch_s: u64,
    next_ticket: u64,
    /// Blocks on their way down.
    writing: usize,
    writes_max: usize,
}

/// The identities of one namespace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Roots {
    /// Of the blocks.
    pub(super) identity: Identity,
    /// The same without model and KV format.
    pub(super) lineage: Identity,
    /// Whose blocks they are, on disk.
    pub(super) owner: u64,
}

/// Private prompts remembered at most.
const PRIVATE_MAX: usize = 1 << 14;

impl Disk {
    pub(super) fn new(setup: DiskSetup) -> Disk {
        let DiskSetup { tier, store, kin, epoch_s, writes_max, warm_blocks, .. } = setup;
        Disk {
            found: tier.warmest(warm_blocks, epoch_s),
            tier,
            store,
            cost: CostModel::default(),
            loads: Vec::new(),
            rests: Vec::new(),
            warm: Vec::new(),
            kin: kin.into_iter().map(|(relation, lineage)| (lineage, relation)).collect(),
            private: FxHashSet::default(),
            epoch_s,
            next_ticket: 0,
            writing: 0,
            writes_max,
        }
    }

    /// Seconds since 1970, by the clock that never goes back.
    pub(super) fn wall_s(&self, now: Duration) -> u64 {
        self.epoch_s.saturating_add(now.as_secs())
    }

    /// When there will be something to sweep, by the scheduler's clock.
    pub(super) fn next_expiry(&self) -> Option<Duration> {
        let at_s = self.tier.next_expiry_s()?.saturating_sub(self.epoch_s);
        Some(Duration::from_secs(at_s))
    }

    /// Whether there are prefixes to be loaded when nothing else is to do.
    pub(super) fn has_wishes(&self) -> bool {
        !self.warm.is_empty()
    }

    /// Numbers; a block has `block_bytes`.
    pub(super) fn stats(&self, block_bytes: usize) -> DiskStats {
        DiskStats {
            tier: self.tier.stats(),
            writing: self.writing + self.rests.iter().map(Rest::blocks).sum::<usize>(),
            loads: self.loads.len(),
            prefetch_candidates: self.warm.len(),
            load_rate: self.cost.load_rate(block_bytes),
            compute_rate: self.cost.compute_rate(),
        }
    }

    /// Keeps a block from being evicted, or no longer, over a restart too.
    pub(super) fn pin(&mut self, identity: &Identity, pinned: bool) {
        if let Some(slot) = self.tier.pin(identity, pinned) {
            self.store.pin(slot, pinned);
        }
    }

    /// Drops all that is neither pinned nor in use, of one tenant or of all; how many blocks.
    pub(super) fn clear(&mut self, owner: Option<u64>, now: Duration) -> usize {
        let goes = |record: &Record| !record.pinned && owner.is_none_or(|owner| record.owner == owner);
        let slots = self.tier.remove(self.wall_s(now), goes);
        slots.iter().for_each(|&slot| self.store.erase(slot));
        slots.len()
    }

    /// Unpins exactly this prompt, and drops of it what nothing else goes on from.
    pub(super) fn release(&mut self, roots: &Roots, tokens: &[Token]) {
        self.pin(&roots.identity_after(tokens), false);
        self.drop_chain(roots, tokens);
    }

    /// Unpins and drops a prompt, all that comes after it, and of what is before it as much as nothing
    /// else goes on from.
    pub(super) fn forget(&mut self, roots: &Roots, tokens: &[Token]) {
        let end = roots.identity_after(tokens);
        // A prompt without a whole block names nothing, least of all everything.
        let under = if end == roots.identity { Vec::new() } else { self.tier.under(&end) };
        for identity in under.iter().rev() {
            self.pin(identity, false);
            self.drop_leaf(identity);
        }
        self.drop_chain(roots, tokens);
    }

    /// Unpins all of one tenant, or of all.
    pub(super) fn unpin_all(&mut self, owner: Option<u64>) {
        let used = self.tier.used().map(|(_, record)| record);
        let pinned = used.filter(|record| record.pinned && owner.is_none_or(|owner| record.owner == owner));
        let pinned: Vec<Identity> = pinned.map(|record| record.identity).collect();
        pinned.iter().for_each(|identity| self.pin(identity, false));
    }

    /// Drops blocks of a prompt from its end on, until one is pinned or something goes on from it.
    fn drop_chain(&mut self, roots: &Roots, tokens: &[Token]) {
        let chain: Vec<Identity> = roots.identity.blocks(tokens).collect();
        chain.iter().rev().for_each(|identity| self.drop_leaf(identity));
    }

    fn drop_leaf(&mut self, identity: &Identity) {
        if let Some(slot) = self.tier.drop_leaf(identity) {
            self.store.erase(slot);
        }
    }

    /// Why a prompt is not known here though its tenant may remember it: it was private, or it was
    /// computed for another model or in another format.
    pub(super) fn elsewhere(&self, roots: &Roots, tokens: &[Token]) -> Option<StopReason> {
        let lineage = first_lineage(roots, tokens);
        if self.private.contains(&lineage) {
            return Some(StopReason::Private);
        }
        self.kin.get(&lineage).map(|relation| match relation {
            Relation::OtherModel => StopReason::OtherModel,
            Relation::OtherKvFormat => StopReason::OtherKvFormat,
        })
    }

    /// Remembers that a prompt was computed privately.
    pub(super) fn note_private(&mut self, roots: &Roots, tokens: &[Token]) {
        if self.private.len() >= PRIVATE_MAX {
            self.private.clear();
        }
        self.private.insert(first_lineage(roots, tokens));
    }
}

/// The lineage of a prompt's first block.
fn first_lineage(roots: &Roots, tokens: &[Token]) -> u64 {
    lineage_of(&roots.lineage.child(&tokens[..tokens.len().min(BLOCK_POSITIONS)]))
}

/// A lineage as it stands in a record.
fn lineage_of(chain: &Identity) -> u64 {
    let (head, _) = chain.0.split_first_chunk().expect("an identity has 32 bytes");
    u64::from_le_bytes(*head)
}

impl Roots {
    pub(super) fn of(namespace: &Namespace) -> Roots {
        let lineage = lineage_root(namespace.salt());
        Roots { identity: Identity::root(namespace), lineage, owner: owner(namespace.salt()) }
    }

    /// The identity of the last of the whole blocks of `tokens`; the root's when there is none.
    pub(super) fn identity_after(&self, tokens: &[Token]) -> Identity {
        let whole = &tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS];
        self.identity.blocks(whole).last().unwrap_or(self.identity)
    }
}

/// Names a tenant on disk: what a salt comes to. 0 where there are no tenants.
pub fn owner(salt: [u8; 16]) -> u64 {
    if salt == [0; 16] { 0 } else { lineage_of(&lineage_root(salt)) }
}

/// The root of a tenant's prompts, whatever the model and the KV format.
fn lineage_root(salt: [u8; 16]) -> Identity {
    Identity::root(&Namespace::of_content(salt))
}

/// Namespaces by id, with their identities.
pub(super) type RootTable = FxHashMap<NamespaceId, Roots>;
