//! Copies computed blocks to the disk, while the sequence that computed them still holds them.
//!
//! A block's bytes are copied when it is complete; from then on the sequence need not keep it. If the disk does not
//! keep up, a sequence continues from where it was in the next step, and when it ends, its blocks are held until they
//! are copied or the room is needed.

use std::time::Duration;

use kvik_cache::tier::{BlockTokens, Placement, Record, SlotId, Use};
use kvik_cache::{BLOCK_POSITIONS, BlockId, Cache, Identity, Lifetime, NamespaceId, SeqId, Token};
use kvik_model::batch::Runner;

use super::Disk;
use crate::schedule::namespaces::{NamespaceTable, Roots, content_key};
use crate::schedule::ram::Ram;
use crate::store::Buffer;

/// Maximum number of ended sequences that are still being copied.
const UNFINISHED_MAX: usize = 256;

/// Progress of spilling the blocks of a sequence.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spilled {
    blocks: usize,
    /// The last spilled block; `None` stands for the roots.
    end: Option<Link>,
    /// Whole blocks that were reused: the end of the prefix that this sequence shares with an earlier one.
    reused: usize,
    /// From when on the time to live of the spilled blocks was last renewed, in seconds since 1970.
    kept_s: u64,
    /// The tier rejected one of its blocks, and would not find those after it.
    is_given_up: bool,
    /// The sequence has ended, and its use has been recorded.
    is_noted: bool,
}

/// The result of spilling a sequence's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handed {
    All,
    /// Some blocks; the rest waits for a buffer.
    Some,
    /// Some blocks or none, and no more will follow.
    Nothing,
}

impl Spilled {
    /// No blocks spilled yet, for a sequence that begins with `tokens` tokens from the cache.
    pub(crate) fn from_reuse(tokens: usize) -> Spilled {
        Spilled { reused: tokens / BLOCK_POSITIONS, ..Spilled::default() }
    }

    /// Whole blocks that were reused.
    pub(super) fn reused_blocks(&self) -> usize {
        self.reused
    }

    /// Tokens of the spilled blocks.
    pub(super) fn tokens(&self) -> usize {
        self.blocks * BLOCK_POSITIONS
    }

    /// Tokens of the blocks that were reused.
    pub(super) fn reused_tokens(&self) -> usize {
        self.reused * BLOCK_POSITIONS
    }

    /// Number of blocks of a prompt, if its last one is still to be spilled and a pin ends with it now: a pin that was
    /// removed in the meantime must not come back from the disk.
    fn pinned_blocks(&self, cache: &Cache, namespace: NamespaceId, prompt: &[Token]) -> Option<usize> {
        let blocks = prompt.len() / BLOCK_POSITIONS;
        (blocks > self.blocks && cache.is_pinned(namespace, prompt)).then_some(blocks)
    }
}

/// A block in the identity chain and in the content chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub(super) identity: Identity,
    pub(super) content: Identity,
}

/// Computed blocks of a sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored<'a> {
    /// The sequence that holds them in the cache.
    pub(crate) seq: SeqId,
    pub(crate) namespace: NamespaceId,
    pub(crate) tokens: &'a [Token],
    /// The prompt of the sequence; may be longer or shorter than `tokens`.
    pub(crate) prompt: &'a [Token],
    pub(crate) lifetime: Lifetime,
}

/// The parts of the scheduler that copying blocks reads.
#[derive(Clone, Copy)]
pub(crate) struct SpillContext<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) namespaces: &'a NamespaceTable,
    pub(crate) runner: &'a dyn Runner,
    pub(crate) now: Duration,
}

/// The stored blocks of a sequence, as the tier sees them.
struct Source<'a> {
    cache: &'a Cache,
    seq: SeqId,
    roots: Roots,
    tokens: &'a [Token],
    table: &'a [BlockId],
    lifetime: Lifetime,
    /// Number of blocks of its prompt, if a pin ends with them.
    pinned_blocks: Option<usize>,
    now_s: u64,
    /// When they were used last: now, if they still are.
    used_s: u64,
}

/// The copy of a sequence that ended before the disk had taken all of it: its blocks are held until then.
#[derive(Debug)]
pub(super) struct Unfinished {
    seq: SeqId,
    pub(super) namespace: NamespaceId,
    tokens: Vec<Token>,
    /// Tokens of its prompt; may be more than `tokens`.
    prompt_len: usize,
    lifetime: Lifetime,
    /// When its use ended.
    used: Duration,
    spilled: Spilled,
}

impl Unfinished {
    /// Blocks still to be spilled.
    pub(super) fn blocks_left(&self) -> usize {
        self.tokens.len() / BLOCK_POSITIONS - self.spilled.blocks
    }

    fn stored(&self) -> Stored<'_> {
        let Unfinished { seq, namespace, ref tokens, lifetime, .. } = *self;
        Stored { seq, namespace, tokens, prompt: tokens.get(..self.prompt_len).unwrap_or_default(), lifetime }
    }
}

impl Disk {
    /// Spills what the write policy wants of a running sequence, or of one that has `ended`.
    pub(crate) fn spill(
        &mut self,
        spilled: &mut Spilled,
        stored: &Stored<'_>,
        ended: bool,
        context: SpillContext<'_>,
    ) {
        let due = self.write_policy.due_while_running(spilled);
        if self.hand_over(spilled, (stored, context.now), due, context) == Handed::All && ended {
            self.note_end(spilled, stored.lifetime, context.now);
        }
    }

    /// Spills what is left of sequences that have ended.
    pub(crate) fn spill_unfinished(
        &mut self,
        ram: &mut Ram,
        namespaces: &NamespaceTable,
        runner: &dyn Runner,
        now: Duration,
    ) {
        let mut unfinished = std::mem::take(&mut self.unfinished);
        unfinished.retain_mut(|copy| {
            let context = SpillContext { cache: &ram.cache, namespaces, runner, now };
            let mut spilled = copy.spilled;
            let handed = self.hand_over(&mut spilled, (&copy.stored(), copy.used), usize::MAX, context);
            copy.spilled = spilled;
            if handed != Handed::Some {
                self.note_end(&mut copy.spilled, copy.lifetime, copy.used);
                ram.cache.abandon(copy.seq);
            }
            handed == Handed::Some
        });
        self.unfinished = unfinished;
    }

    /// Holds the blocks of a sequence that has ended, if the disk has not taken all of them and not too many wait.
    pub(crate) fn spill_later(
        &mut self,
        mut spilled: Spilled,
        stored: &Stored<'_>,
        ram: &mut Ram,
        now: Duration,
    ) {
        match self.unfinished.len() < UNFINISHED_MAX {
            true => self.hold(spilled, stored, ram, now),
            false => self.note_end(&mut spilled, stored.lifetime, now),
        }
    }

    /// Holds the blocks of a sequence whose use ended at `used`, if the disk has not taken all of them.
    pub(super) fn hold(&mut self, mut spilled: Spilled, stored: &Stored<'_>, ram: &mut Ram, used: Duration) {
        let Stored { namespace, tokens, prompt, lifetime, .. } = *stored;
        let whole = tokens.len() - tokens.len() % BLOCK_POSITIONS;
        let handed = spilled.tokens();
        if !self.takes(&spilled) || handed >= whole {
            return self.note_end(&mut spilled, lifetime, used);
        }
        let seq = ram.new_seq();
        let held = ram.cache.lease(seq, namespace, &tokens[..whole]);
        if held <= handed {
            // The rest was evicted when the sequence released it, because of its tenant's quota.
            ram.cache.abandon(seq);
            return self.note_end(&mut spilled, lifetime, used);
        }
        // Its use has ended, whatever becomes of the rest of the copy.
        self.keep_spilled(&spilled, ttl_s(lifetime.ttl), self.wall_s(used));
        let tokens = tokens[..held].to_vec();
        self.unfinished.push(Unfinished {
            seq,
            namespace,
            tokens,
            prompt_len: prompt.len(),
            lifetime,
            used,
            spilled,
        });
    }

    /// Gives up unwanted copies of sequences that have ended, of prefixes for other nodes and of states, and forgets what
    /// waits.
    pub(crate) fn give_up(&mut self, ram: &mut Ram, is_unwanted: impl Fn(NamespaceId, &[Token]) -> bool) {
        self.drop_copies(ram, &is_unwanted);
        self.write_policy.forget(&is_unwanted);
        self.states.forget(&is_unwanted);
        self.unfinished.retain(|copy| {
            let unwanted = is_unwanted(copy.namespace, &copy.tokens);
            if unwanted {
                ram.cache.abandon(copy.seq);
            }
            !unwanted
        });
    }

    /// Releases blocks that are held only for the disk or for other nodes, to make room; returns whether there were
    /// any.
    pub(crate) fn drop_unfinished(&mut self, ram: &mut Ram) -> bool {
        let copies = self.drop_copies(ram, |_, _| true);
        let unfinished = std::mem::take(&mut self.unfinished);
        unfinished.iter().for_each(|copy| ram.cache.abandon(copy.seq));
        copies || !unfinished.is_empty()
    }

    /// Whether more blocks of a sequence can be spilled.
    fn takes(&self, spilled: &Spilled) -> bool {
        !spilled.is_given_up && !self.is_absent() && self.writes()
    }

    /// Spills the blocks of a sequence that were not spilled yet and were used last at `used`: of those that are not on disk,
    /// the first `due` and those of a pinned prompt.
    fn hand_over(
        &mut self,
        spilled: &mut Spilled,
        (stored, used): (&Stored<'_>, Duration),
        due: usize,
        context: SpillContext<'_>,
    ) -> Handed {
        if self.is_absent() || !self.writes() {
            return Handed::Nothing;
        }
        let SpillContext { cache, namespaces, runner, now } = context;
        let source = Source {
            cache,
            seq: stored.seq,
            roots: *namespaces.roots(stored.namespace),
            tokens: stored.tokens,
            table: cache.table(stored.seq),
            lifetime: stored.lifetime,
            pinned_blocks: spilled.pinned_blocks(cache, stored.namespace, stored.prompt),
            now_s: self.wall_s(now),
            used_s: self.wall_s(used),
        };
        self.keep_in_use(spilled, &source);
        if spilled.is_given_up {
            return Handed::Nothing;
        }
        self.hand_over_blocks(spilled, &source, due.max(source.pinned_blocks.unwrap_or(0)), runner)
    }

    fn hand_over_blocks(
        &mut self,
        spilled: &mut Spilled,
        source: &Source<'_>,
        due: usize,
        runner: &dyn Runner,
    ) -> Handed {
        let ttl_s = ttl_s(source.lifetime.ttl);
        let roots = Link { identity: source.roots.identity, content: source.roots.content };
        let rest = source.tokens.chunks(BLOCK_POSITIONS).zip(source.table).skip(spilled.blocks);
        for (tokens, &block) in rest {
            let before = spilled.end.unwrap_or(roots);
            let link = before.child(tokens);
            let mut held = Some(link.identity);
            if !self.tier.holds(&link.identity, source.now_s) {
                if spilled.blocks >= due {
                    return Handed::All;
                }
                if !self.has_budget(source) {
                    spilled.is_given_up = true;
                    return Handed::Nothing;
                }
                let Some(buffer) = self.take_buffer() else { return Handed::Some };
                let record = source.record(before, link, spilled.blocks, tokens, block);
                held = record.and_then(|record| self.write(record, source, block, buffer, runner));
            }
            let Some(identity) = held else {
                spilled.is_given_up = true;
                return Handed::Nothing;
            };
            let news = self.tier.keep(&identity, ttl_s, source.used_s);
            self.note_uses(news);
            if source.pinned_blocks == Some(spilled.blocks + 1) {
                self.pin(&identity, true);
            }
            spilled.end = Some(Link { identity, ..link });
            spilled.blocks += 1;
            if spilled.blocks == spilled.reused {
                self.touch(&identity, ttl_s, source.used_s);
            }
        }
        Handed::All
    }

    /// Whether a block of this sequence may be written today. Prompts that are pinned, or will be when they have been
    /// computed, are always written.
    fn has_budget(&self, source: &Source<'_>) -> bool {
        let is_pinned = source.lifetime.pin || source.pinned_blocks.is_some();
        is_pinned || self.write_policy.has_budget(&self.store.wear(), self.shown_s(source.now_s))
    }

    /// Renews the time to live of spilled blocks while their sequence uses them, each time half of it is over.
    fn keep_in_use(&mut self, spilled: &mut Spilled, source: &Source<'_>) {
        let ttl_s = ttl_s(source.lifetime.ttl);
        let due = ttl_s.is_some_and(|ttl_s| source.used_s >= spilled.kept_s + (ttl_s / 2).max(1));
        if due {
            spilled.kept_s = source.used_s;
            self.keep_spilled(spilled, ttl_s, source.used_s);
        }
    }

    /// Restarts the time to live of the blocks that were spilled of a sequence.
    pub(super) fn keep_spilled(&mut self, spilled: &Spilled, ttl_s: Option<u64>, now_s: u64) {
        if let Some(end) = spilled.end {
            let news = self.tier.keep_path(&end.identity, ttl_s, now_s);
            self.note_uses(news);
        }
    }

    /// Writes a block if the tier has a slot for it. Returns the identity of the block that holds its tokens, or `None`
    /// if there is no slot; then the blocks after it cannot follow.
    fn write(
        &mut self,
        record: Record,
        source: &Source<'_>,
        block: BlockId,
        mut buffer: Buffer,
        runner: &dyn Runner,
    ) -> Option<Identity> {
        let slot = match self.tier.place(record, &source.roots.identity, source.now_s) {
            Placement::Write(slot) => {
                let news = self.tier.keep_ancestors(slot, source.used_s);
                self.note_uses(news);
                runner.read_block(block, &mut buffer);
                if runner.fault().is_some() {
                    // The bytes read may differ from the block, so this counts as a failed write.
                    if self.tier.written(slot, false) {
                        self.store.erase(slot);
                    }
                    return None;
                }
                self.store.write(slot, self.tier.record(slot), buffer);
                self.writing += 1;
                slot
            }
            Placement::Held(slot) => slot,
            Placement::Unreachable | Placement::Full => return None,
        };
        Some(self.tier.record(slot).identity)
    }

    /// A buffer to write a block from, if that leaves enough for reading.
    pub(super) fn take_buffer(&mut self) -> Option<Buffer> {
        if self.writing >= self.writes_max {
            return None;
        }
        self.store.buffer()
    }

    /// Records a use of a sequence's blocks on disk, which ended at `used`.
    pub(crate) fn note_end(&mut self, spilled: &mut Spilled, lifetime: Lifetime, used: Duration) {
        if let Some(end) = spilled.end.filter(|_| !std::mem::replace(&mut spilled.is_noted, true)) {
            self.note_use(&end.identity, lifetime, used);
        }
    }

    /// Records a use of the prefix that ends with a block.
    pub(crate) fn note_use(&mut self, end: &Identity, lifetime: Lifetime, used: Duration) {
        self.touch(end, ttl_s(lifetime.ttl), self.wall_s(used));
    }

    /// Records a use of the prefix that ends with a block, by a request with this time to live.
    fn touch(&mut self, identity: &Identity, ttl_s: Option<u64>, now_s: u64) {
        let news = self.tier.keep_path(identity, ttl_s, now_s);
        self.note_uses(news);
        let use_ = self.tier.touch(identity, ttl_s, now_s);
        self.note_uses(use_);
    }

    pub(super) fn note_uses(&mut self, news: impl IntoIterator<Item = (SlotId, Use)>) {
        news.into_iter().for_each(|(slot, use_)| self.store.touch(slot, use_));
    }
}

/// A time to live in whole seconds; `None` means forever.
pub(super) fn ttl_s(ttl: Option<Duration>) -> Option<u64> {
    ttl.map(|ttl| ttl.as_secs().max(1))
}

impl Source<'_> {
    /// The record of block number `index`, which holds `tokens`. On disk it lives as long as any of its users asks, as in
    /// RAM: a block that is written when it is used again may be written by a request with a shorter time to live than
    /// its first one.
    fn record(
        &self,
        before: Link,
        link: Link,
        index: usize,
        tokens: &[Token],
        block: BlockId,
    ) -> Option<Record> {
        let ttl = self.cache.longest_ttl(self.seq, index, self.lifetime.ttl);
        let expires_s = ttl_s(ttl).map_or(0, |ttl_s| self.used_s.saturating_add(ttl_s));
        Some(Record {
            identity: link.identity,
            parent: before.identity,
            owner: self.roots.owner,
            content_key: content_key(&link.content),
            tokens: BlockTokens::new(tokens)?,
            pinned: false,
            lacks_part: !self.cache.has_part(block),
            use_: Use { at_s: self.used_s, expires_s, ..Use::default() },
        })
    }
}

impl Link {
    pub(super) fn child(&self, tokens: &[Token]) -> Link {
        Link { identity: self.identity.child(tokens), content: self.content.child(tokens) }
    }
}
