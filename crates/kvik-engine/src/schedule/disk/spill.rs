//! Handing computed blocks to the disk, while the sequence that computed them still holds them.
//!
//! A block's bytes are copied when it is complete; from then on the sequence may do what it likes. When
//! the disk does not keep up, a sequence goes on from where it was at the next step, and when it ends, its
//! blocks are held until they are copied or somebody needs the room.

use std::time::Duration;

use kvik_cache::tier::{BlockTokens, Placement, Record, SlotId, Use};
use kvik_cache::{BLOCK_POSITIONS, BlockId, Cache, Identity, NamespaceId, Retain, SeqId, Token};

use super::{Disk, Roots, lineage_of};
use crate::model::batch::Runner;
use crate::schedule::Scheduler;
use crate::schedule::sequence::{Sequence, Sharing};
use crate::store::Buffer;

/// Sequences at most that have ended and are still being copied.
const RESTS_MAX: usize = 256;
/// Blocks looked at in one step to find those that have outlived their time.
const SWEEP_MAX: usize = 64;

/// How far the blocks of a sequence have been handed over.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::schedule) struct Spilled {
    blocks: usize,
    /// Of the last of them; the roots' when there is none.
    end: Option<Link>,
    /// Whole blocks that were reused: the end of a prefix that somebody came back to.
    reused: usize,
    /// When the time to live of what was handed over last began anew, in seconds since 1970.
    kept_s: u64,
    /// The tier has no place for it: what comes later would not be found without what is missing.
    is_given_up: bool,
    /// It has ended, and that this was a use has been noted.
    is_noted: bool,
}

/// What has been handed over of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handed {
    All,
    /// The rest has to wait for a buffer.
    Some,
    /// The rest will not be.
    Nothing,
}

impl Spilled {
    /// Nothing yet, of a sequence that begins with so many tokens from the cache.
    pub(in crate::schedule) fn from_reuse(tokens: usize) -> Spilled {
        Spilled { reused: tokens / BLOCK_POSITIONS, ..Spilled::default() }
    }

    /// Blocks of a prompt whose last one is still to be handed over, when a pin ends with them now: one
    /// that was taken back meanwhile must not come back from the disk.
    fn pinned_blocks(&self, cache: &Cache, namespace: NamespaceId, prompt: &[Token]) -> Option<usize> {
        let blocks = prompt.len() / BLOCK_POSITIONS;
        (blocks > self.blocks && cache.is_pinned(namespace, prompt)).then_some(blocks)
    }
}

/// A block in the two chains.
#[derive(Debug, Clone, Copy)]
struct Link {
    identity: Identity,
    lineage: Identity,
}

/// The stored blocks of a sequence, as the disk sees them.
struct Source<'a> {
    roots: Roots,
    tokens: &'a [Token],
    table: &'a [BlockId],
    retain: Retain,
    /// Blocks of its prompt, when a pin ends with them.
    pinned_blocks: Option<usize>,
    now_s: u64,
}

/// A sequence that ended before the disk had taken all of it: its blocks are held until it has.
#[derive(Debug)]
pub(in crate::schedule) struct Rest {
    seq: SeqId,
    tokens: Vec<Token>,
    /// Tokens of its prompt, which may be more.
    prompt_len: usize,
    namespace: NamespaceId,
    retain: Retain,
    spilled: Spilled,
}

impl Rest {
    /// Blocks still to be handed over.
    pub(super) fn blocks(&self) -> usize {
        self.tokens.len() / BLOCK_POSITIONS - self.spilled.blocks
    }
}

impl Scheduler {
    /// Hands over what the running sequences have completed, and all of those that end.
    pub(in crate::schedule) fn spill(&mut self, runner: &dyn Runner) {
        let now = self.now();
        self.spill_rests(runner, now);
        let Some(disk) = &mut self.disk else { return };
        let now_s = disk.wall_s(now);
        for sequence in self.running.iter_mut() {
            let Sharing::Namespace(namespace) = sequence.sharing else { continue };
            let ends = sequence.ended.is_some();
            let whole = sequence.stored - sequence.stored % BLOCK_POSITIONS;
            let source = Source {
                roots: self.roots[&namespace],
                tokens: &sequence.tokens[..if ends { sequence.stored } else { whole }],
                table: self.cache.table(sequence.id),
                retain: sequence.retain,
                pinned_blocks: sequence.spilled.pinned_blocks(&self.cache, namespace, sequence.prompt()),
                now_s,
            };
            let handed = disk.hand_over(&mut sequence.spilled, &source, runner);
            if ends && handed == Handed::All {
                disk.note_end(&mut sequence.spilled, sequence.retain, now_s);
            }
        }
    }

    /// Takes out of the disk what has outlived its time, a bit at every step.
    pub(in crate::schedule) fn sweep_disk(&mut self) {
        let now = self.now();
        let Some(disk) = &mut self.disk else { return };
        let slots = disk.tier.sweep(disk.wall_s(now), SWEEP_MAX);
        slots.into_iter().for_each(|slot| disk.store.erase(slot));
    }

    /// Holds the blocks of a sequence that has ended, when the disk has not taken them all.
    pub(in crate::schedule) fn spill_later(&mut self, sequence: &Sequence) {
        let Sharing::Namespace(namespace) = sequence.sharing else { return };
        let seq = self.new_seq();
        let now = self.now();
        let Some(disk) = &mut self.disk else { return };
        let now_s = disk.wall_s(now);
        let whole = sequence.stored - sequence.stored % BLOCK_POSITIONS;
        let mut spilled = sequence.spilled;
        if spilled.is_given_up || spilled.blocks * BLOCK_POSITIONS >= whole || disk.rests.len() >= RESTS_MAX {
            return disk.note_end(&mut spilled, sequence.retain, now_s);
        }
        let held = self.cache.lease(seq, namespace, &sequence.tokens[..whole]);
        if held <= spilled.blocks * BLOCK_POSITIONS {
            // What was left went when the sequence let go of it: its tenant has its quota.
            self.cache.abandon(seq);
            return disk.note_end(&mut spilled, sequence.retain, now_s);
        }
        let tokens = sequence.tokens[..held].to_vec();
        let (retain, prompt_len) = (sequence.retain, sequence.prompt_len);
        disk.rests.push(Rest { seq, tokens, prompt_len, namespace, retain, spilled });
    }

    /// Hands over what is left of sequences that have ended.
    fn spill_rests(&mut self, runner: &dyn Runner, now: Duration) {
        let Some(disk) = &mut self.disk else { return };
        let now_s = disk.wall_s(now);
        let mut open = Vec::new();
        for mut rest in std::mem::take(&mut disk.rests) {
            let Rest { seq, ref tokens, prompt_len, namespace, retain, spilled } = rest;
            let prompt = tokens.get(..prompt_len).unwrap_or_default();
            let pinned_blocks = spilled.pinned_blocks(&self.cache, namespace, prompt);
            let (table, roots) = (self.cache.table(seq), self.roots[&namespace]);
            let source = Source { roots, tokens, table, retain, pinned_blocks, now_s };
            let mut spilled = spilled;
            if disk.hand_over(&mut spilled, &source, runner) == Handed::Some {
                rest.spilled = spilled;
                open.push(rest);
                continue;
            }
            disk.note_end(&mut spilled, rest.retain, now_s);
            self.cache.abandon(rest.seq);
        }
        disk.rests = open;
    }

    /// Lets go of blocks that are held for the disk only: somebody needs the room. Whether there were any.
    pub(in crate::schedule) fn drop_rests(&mut self) -> bool {
        let rests = self.disk.as_mut().map(|disk| std::mem::take(&mut disk.rests)).unwrap_or_default();
        rests.iter().for_each(|rest| self.cache.abandon(rest.seq));
        !rests.is_empty()
    }
}

impl Disk {
    /// Hands over the blocks of `source` that were not yet.
    fn hand_over(&mut self, spilled: &mut Spilled, source: &Source<'_>, runner: &dyn Runner) -> Handed {
        if spilled.is_given_up {
            return Handed::Nothing;
        }
        self.keep_in_use(spilled, source);
        let ttl_s = ttl_s(source.retain);
        let roots = Link { identity: source.roots.identity, lineage: source.roots.lineage };
        let rest = source.tokens.chunks(BLOCK_POSITIONS).zip(source.table).skip(spilled.blocks);
        for (tokens, &block) in rest {
            let before = spilled.end.unwrap_or(roots);
            let link = before.child(tokens);
            let mut held = Some(link.identity);
            if !self.tier.holds(&link.identity, source.now_s) {
                let Some(buffer) = self.take_buffer() else { return Handed::Some };
                let record = source.record(before, link, tokens);
                held = record.and_then(|record| self.write(record, source, block, buffer, runner));
            }
            let Some(identity) = held else {
                spilled.is_given_up = true;
                return Handed::Nothing;
            };
            let news = self.tier.keep(&identity, ttl_s, source.now_s);
            self.note_uses(news);
            if source.pinned_blocks == Some(spilled.blocks + 1) {
                self.pin(&identity, true);
            }
            spilled.end = Some(Link { identity, ..link });
            spilled.blocks += 1;
            if spilled.blocks == spilled.reused {
                self.touch(&identity, ttl_s, source.now_s);
            }
        }
        Handed::All
    }

    /// What a sequence has handed over does not outlive its time while the sequence is there. Its time begins
    /// anew when half of it is over, which is often enough.
    fn keep_in_use(&mut self, spilled: &mut Spilled, source: &Source<'_>) {
        let ttl_s = ttl_s(source.retain);
        let due = ttl_s.is_some_and(|ttl_s| source.now_s >= spilled.kept_s + (ttl_s / 2).max(1));
        if due {
            spilled.kept_s = source.now_s;
            let end = spilled.end.map(|end| end.identity);
            let news = end.map(|end| self.tier.keep_path(&end, ttl_s, source.now_s));
            self.note_uses(news.unwrap_or_default());
        }
    }

    /// Writes a block when the tier has a place for it; the block that holds its tokens then, unless there is
    /// none and those after it cannot follow.
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
                runner.read_block(block, &mut buffer);
                self.store.write(slot, self.tier.record(slot), buffer);
                self.writing += 1;
                slot
            }
            Placement::Held(slot) => slot,
            Placement::Unreachable | Placement::Full => return None,
        };
        Some(self.tier.record(slot).identity)
    }

    /// Room to write a block, if that leaves enough for reading.
    fn take_buffer(&mut self) -> Option<Buffer> {
        if self.writing >= self.writes_max {
            return None;
        }
        self.store.buffer()
    }

    /// A sequence has ended: what the disk has of it was used.
    fn note_end(&mut self, spilled: &mut Spilled, retain: Retain, now_s: u64) {
        if let Some(end) = spilled.end.filter(|_| !std::mem::replace(&mut spilled.is_noted, true)) {
            self.touch(&end.identity, ttl_s(retain), now_s);
        }
    }

    /// Notes that the prefix up to a block was used by somebody who wants it kept for so long.
    fn touch(&mut self, identity: &Identity, ttl_s: Option<u64>, now_s: u64) {
        let news = self.tier.keep_path(identity, ttl_s, now_s);
        self.note_uses(news);
        let use_ = self.tier.touch(identity, ttl_s, now_s);
        self.note_uses(use_);
    }

    fn note_uses(&mut self, news: impl IntoIterator<Item = (SlotId, Use)>) {
        news.into_iter().for_each(|(slot, use_)| self.store.touch(slot, use_));
    }
}

/// A time to live in whole seconds; for ever when `None`.
fn ttl_s(retain: Retain) -> Option<u64> {
    retain.ttl.map(|ttl| ttl.as_secs().max(1))
}

impl Source<'_> {
    fn record(&self, before: Link, link: Link, tokens: &[Token]) -> Option<Record> {
        let expires_s = ttl_s(self.retain).map_or(0, |ttl_s| self.now_s.saturating_add(ttl_s));
        Some(Record {
            identity: link.identity,
            parent: before.identity,
            owner: self.roots.owner,
            content_key: lineage_of(&link.lineage),
            tokens: BlockTokens::new(tokens)?,
            pinned: false,
            use_: Use { at_s: self.now_s, expires_s, ..Use::default() },
        })
    }
}

impl Link {
    fn child(&self, tokens: &[Token]) -> Link {
        Link { identity: self.identity.child(tokens), lineage: self.lineage.child(tokens) }
    }
}
