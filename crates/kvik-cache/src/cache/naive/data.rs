//! Data of the twin: lists of blocks, of places and of running sequences.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::auxiliary::AuxiliaryState;
use crate::cache::life::Told;
use crate::evict::{Policy, Share};
use crate::explain::Eviction;
use crate::ids::{BLOCK_POSITIONS, NamespaceId, SeqId, TenantId, Token, blocks_for};
use crate::lifetime::{Keep, Lifetime};

/// The whole twin.
#[derive(Debug)]
pub(crate) struct Naive {
    pub(super) blocks: usize,
    pub(super) needs: AuxiliaryState,
    pub(crate) places: Vec<NamedPlace>,
    pub(super) policy: Policy,
    pub(crate) entries: Vec<Entry>,
    pub(super) running: BTreeMap<SeqId, Running>,
    /// Prefixes that are pinned, whole blocks each.
    pub(super) pins: BTreeSet<(NamespaceId, Vec<Token>)>,
    /// Blocks that may be pinned in all.
    pub(super) pinned_max: usize,
    /// The bases of derived namespaces: a namespace, and whole blocks of it.
    pub(super) derived: BTreeMap<NamespaceId, (NamespaceId, Vec<Token>)>,
    /// All blocks ever lost; `None` for an expiry.
    pub(super) lost: BTreeMap<(NamespaceId, Vec<Token>), Option<Eviction>>,
    /// The share of each namespace's tenant.
    pub(super) shares: BTreeMap<NamespaceId, Share>,
    pub(super) asked: BTreeMap<TenantId, Duration>,
    /// The rank of the last victim of each tenant.
    pub(super) ageing: BTreeMap<TenantId, u64>,
    /// The decisions of the real cache, which the twin follows where the policy is not LRU, and for places.
    pub(crate) told: VecDeque<Told>,
    pub(super) now: Duration,
    /// Number of uses so far.
    pub(super) uses: u64,
    pub(crate) events: Events,
}

/// Events that must happen for a test to be meaningful.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Events {
    pub(crate) superseded: u64,
    pub(crate) tails_known: u64,
    pub(crate) tails_stored: u64,
    pub(crate) copies_given_up: u64,
    pub(crate) sources_in_use: u64,
    pub(crate) expired: u64,
    pub(crate) lowered: u64,
    pub(crate) places_lowered: u64,
    pub(crate) spared_by_priority: u64,
    pub(crate) spared_by_share: u64,
    pub(crate) over_quota: u64,
    pub(crate) pins_refused: u64,
    pub(crate) places_refused_by_quota: u64,
    pub(crate) places_spared_by_priority: u64,
    pub(crate) places_before_blocks: u64,
    pub(crate) blocks_before_places: u64,
}

impl Events {
    /// Each event by its name.
    pub(crate) fn named(&self) -> [(&'static str, u64); 16] {
        [
            ("superseded", self.superseded),
            ("tails known", self.tails_known),
            ("tails stored", self.tails_stored),
            ("copies given up", self.copies_given_up),
            ("copies from blocks in use", self.sources_in_use),
            ("expired", self.expired),
            ("lowered", self.lowered),
            ("places lowered", self.places_lowered),
            ("spared by priority", self.spared_by_priority),
            ("spared by share", self.spared_by_share),
            ("over quota", self.over_quota),
            ("pins refused", self.pins_refused),
            ("places refused by quota", self.places_refused_by_quota),
            ("places spared by priority", self.places_spared_by_priority),
            ("places before blocks", self.places_before_blocks),
            ("blocks before places", self.blocks_before_places),
        ]
    }
}

/// A cached block.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) namespace: NamespaceId,
    /// All tokens up to the block's last valid one.
    pub(crate) prefix: Vec<Token>,
    /// When its last user left it.
    pub(super) used: u64,
    /// The time of the last use on the caller's clock.
    pub(super) used_at: Duration,
    pub(super) keep: Keep,
    /// The ageing value of its tenant at that time.
    pub(super) ageing: u64,
}

/// A running sequence.
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) namespace: NamespaceId,
    /// The whole blocks that it shares with the cache, as tokens.
    pub(super) leased: Vec<Token>,
    /// Number of its own blocks.
    pub(super) owned: usize,
    pub(super) lifetime: Lifetime,
    /// Whether it only holds what it leases for a copy.
    pub(super) is_copy: bool,
    pub(super) auxiliary: Held,
}

impl Naive {
    pub(crate) fn new(blocks: usize, policy: Policy, pinned_max: usize, needs: AuxiliaryState) -> Naive {
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

/// The auxiliary state of a running sequence.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    /// The first block whose windowed part it uses.
    pub(super) parts_from: usize,
    pub(super) units: usize,
    pub(super) marks: Vec<usize>,
    /// Blocks at whose ends its state is saved.
    pub(super) saves: Vec<usize>,
}

/// A place, named by the tokens up to the end of its block.
#[derive(Debug, Clone)]
pub(crate) struct NamedPlace {
    pub(super) namespace: NamespaceId,
    pub(super) prefix: Vec<Token>,
    pub(super) positions: u8,
    /// The first block whose windowed part it uses.
    pub(super) first: usize,
    pub(super) has_state: bool,
    pub(super) units: usize,
    /// The strongest retention of the sequences that made or used it.
    pub(super) keep: Keep,
    /// When its raised priority ends.
    pub(super) lowers: Option<Duration>,
    /// Tokens from the place before it.
    pub(super) spares: usize,
    pub(super) rank: u64,
    /// Whether a sequence is about to copy its state.
    pub(super) in_use: bool,
}

pub(super) type PlaceName = (NamespaceId, Vec<Token>, u8);

impl Held {
    /// The size of the auxiliary state, in blocks.
    pub(super) fn all_units(&self, needs: &AuxiliaryState) -> usize {
        self.units + self.saves.len() * needs.units(0, 1)
    }

    /// The auxiliary state of a copy of the sequence.
    pub(super) fn forked(&self, units: usize) -> Held {
        Held { parts_from: self.parts_from, units, ..Held::default() }
    }
}

impl NamedPlace {
    pub(super) fn name(&self) -> PlaceName {
        (self.namespace, self.prefix.clone(), self.positions)
    }

    pub(super) fn priority(&self) -> i8 {
        self.keep.priority()
    }

    /// Raises its retention to that of a sequence that uses it.
    pub(super) fn raise(&mut self, asked: Lifetime, now: Duration) {
        self.keep = self.keep.and(asked);
        self.lowers = self.keep.raised.map(|raised| now + raised.lasts);
    }

    /// Index of its block.
    pub(super) fn index(&self) -> usize {
        blocks_for(self.prefix.len()) - 1
    }

    /// Tokens before the place.
    pub(super) fn end(&self) -> usize {
        self.index() * BLOCK_POSITIONS + usize::from(self.positions)
    }
}
