//! Data of the twin: lists of blocks, of places beside them, and of running sequences.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::beside::Beside;
use crate::cache::life::Told;
use crate::evict::{Policy, Share};
use crate::explain::Eviction;
use crate::ids::{BLOCK_POSITIONS, NamespaceId, SeqId, TenantId, Token, blocks_for};
use crate::lifetime::{Keep, Lifetime};

/// All there is.
#[derive(Debug)]
pub(crate) struct Naive {
    pub(in crate::cache) blocks: usize,
    pub(in crate::cache) needs: Beside,
    pub(in crate::cache) places: Vec<Place>,
    pub(in crate::cache) policy: Policy,
    pub(in crate::cache) entries: Vec<Entry>,
    pub(in crate::cache) running: BTreeMap<SeqId, Running>,
    /// Prefixes that are pinned, whole blocks each.
    pub(in crate::cache) pins: BTreeSet<(NamespaceId, Vec<Token>)>,
    /// Blocks that may be pinned in all.
    pub(in crate::cache) pinned_max: usize,
    /// What the derived continue: a namespace, and whole blocks of it.
    pub(in crate::cache) derived: BTreeMap<NamespaceId, (NamespaceId, Vec<Token>)>,
    /// All blocks ever lost; by expiry when there is no eviction.
    pub(in crate::cache) lost: BTreeMap<(NamespaceId, Vec<Token>), Option<Eviction>>,
    /// Whose each namespace is, and when that tenant last admitted something.
    pub(in crate::cache) shares: BTreeMap<NamespaceId, Share>,
    pub(in crate::cache) asked: BTreeMap<TenantId, Duration>,
    /// The rank of the last victim of each tenant.
    pub(in crate::cache) ageing: BTreeMap<TenantId, u64>,
    /// What the real cache has decided, to be followed where the policy is not LRU, and about places.
    pub(crate) told: VecDeque<Told>,
    pub(in crate::cache) now: Duration,
    /// Counts uses.
    pub(in crate::cache) uses: u64,
    pub(crate) events: Events,
}

/// Things that must happen in a test worth its name.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Events {
    pub(crate) superseded: u64,
    pub(crate) tails_known: u64,
    pub(crate) tails_stored: u64,
    pub(crate) copies_given_up: u64,
    pub(crate) sources_in_use: u64,
    pub(crate) expired: u64,
    pub(crate) spared_by_priority: u64,
    pub(crate) spared_by_share: u64,
    pub(crate) over_quota: u64,
    pub(crate) pins_refused: u64,
    pub(crate) places_refused_by_quota: u64,
    pub(crate) places_spared_by_priority: u64,
    pub(crate) places_before_blocks: u64,
    pub(crate) blocks_before_places: u64,
}

/// A cached block.
#[derive(Debug, Clone)]
pub(in crate::cache) struct Entry {
    pub(in crate::cache) namespace: NamespaceId,
    /// All tokens up to the block's last valid one.
    pub(in crate::cache) prefix: Vec<Token>,
    /// When its last user left it.
    pub(in crate::cache) used: u64,
    /// The same on the caller's clock.
    pub(in crate::cache) used_at: Duration,
    pub(in crate::cache) keep: Keep,
    /// The ageing value of its tenant then.
    pub(in crate::cache) ageing: u64,
}

/// A running sequence.
#[derive(Debug, Clone)]
pub(in crate::cache) struct Running {
    pub(in crate::cache) namespace: NamespaceId,
    /// The whole blocks it shares with the cache, as tokens.
    pub(in crate::cache) leased: Vec<Token>,
    /// Blocks of its own.
    pub(in crate::cache) owned: usize,
    pub(in crate::cache) lifetime: Lifetime,
    pub(in crate::cache) beside: Held,
}

impl Naive {
    pub(crate) fn new(blocks: usize, policy: Policy, pinned_max: usize, needs: Beside) -> Naive {
        Naive {
            blocks,
            needs,
            places: Vec::new(),
            policy,
            entries: Vec::new(),
            running: BTreeMap::new(),
            pins: BTreeSet::new(),
            pinned_max,
            derived: BTreeMap::new(),
            lost: BTreeMap::new(),
            shares: BTreeMap::new(),
            asked: BTreeMap::new(),
            ageing: BTreeMap::new(),
            told: VecDeque::new(),
            now: Duration::ZERO,
            uses: 0,
            events: Events::default(),
        }
    }
}

/// What a running sequence holds beside its blocks.
#[derive(Debug, Clone, Default)]
pub(in crate::cache) struct Held {
    /// The first block whose windowed part it uses.
    pub(in crate::cache) parts_from: usize,
    pub(in crate::cache) units: usize,
    pub(in crate::cache) marks: Vec<usize>,
    /// Blocks at whose ends its state is saved.
    pub(in crate::cache) saves: Vec<usize>,
}

/// A place, by the tokens of the block that it stands in.
#[derive(Debug, Clone)]
pub(in crate::cache) struct Place {
    pub(in crate::cache) namespace: NamespaceId,
    pub(in crate::cache) prefix: Vec<Token>,
    pub(in crate::cache) positions: u8,
    /// The first block whose windowed part it uses.
    pub(in crate::cache) first: usize,
    pub(in crate::cache) has_state: bool,
    pub(in crate::cache) units: usize,
    /// The highest priority of those who have made and used it.
    pub(in crate::cache) priority: i8,
    /// Tokens from the place before it.
    pub(in crate::cache) spares: usize,
    pub(in crate::cache) rank: u64,
    /// Whether a sequence is about to copy its state.
    pub(in crate::cache) in_use: bool,
}

pub(in crate::cache) type PlaceName = (NamespaceId, Vec<Token>, u8);

impl Held {
    /// Blocks' worth of it.
    pub(in crate::cache) fn all_units(&self, needs: &Beside) -> usize {
        self.units + self.saves.len() * needs.units(0, 1)
    }

    /// What a copy of the sequence holds.
    pub(in crate::cache) fn forked(&self, units: usize) -> Held {
        Held { parts_from: self.parts_from, units, ..Held::default() }
    }
}

impl Place {
    pub(in crate::cache) fn name(&self) -> PlaceName {
        (self.namespace, self.prefix.clone(), self.positions)
    }

    /// Index of its block.
    pub(super) fn index(&self) -> usize {
        blocks_for(self.prefix.len()) - 1
    }

    /// Tokens before which it stands.
    pub(super) fn end(&self) -> usize {
        self.index() * BLOCK_POSITIONS + usize::from(self.positions)
    }
}
