//! Handing computed blocks to the disk, while the sequence that computed them still holds them.
//!
//! A block's bytes are copied when it is complete; from then on the sequence may do what it likes. When
//! the disk does not keep up, a sequence goes on from where it was at the next step, and when it ends, its
//! blocks are held until they are copied or somebody needs the room.

use std::time::Duration;

use kvik_cache::tier::{BlockTokens, Placement, Record, Use};
use kvik_cache::{BLOCK_POSITIONS, BlockId, Identity, Retain, SeqId, Token};

use super::{Disk, Roots, lineage_of};
use crate::batch::Runner;
use crate::schedule::Scheduler;
use crate::schedule::sequence::{Sequence, Sharing};
use crate::store::Buffer;

/// Sequences at most that have ended and are still being copied.
const RESTS_MAX: usize = 256;

/// How far the blocks of a sequence have been handed over.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::schedule) struct Spilled {
    blocks: usize,
    /// Of the last of them; the roots' when there is none.
    end: Option<Link>,
    /// Whole blocks that were reused: the end of a prefix that somebody came back to.
    reused: usize,
    /// The tier has no place for it: what comes later would not be found without what is missing.
    is_given_up: bool,
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
    now_s: u64,
}

/// A sequence that ended before the disk had taken all of it: its blocks are held until it has.
#[derive(Debug)]
pub(in crate::schedule) struct Rest {
    seq: SeqId,
    tokens: Vec<Token>,
    roots: Roots,
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
        for sequence in &mut self.running {
            let Sharing::Namespace(namespace) = sequence.sharing else { continue };
            let ends = sequence.ended.is_some();
            let whole = sequence.stored - sequence.stored % BLOCK_POSITIONS;
            let source = Source {
                roots: self.roots[&namespace],
                tokens: &sequence.tokens[..if ends { sequence.stored } else { whole }],
                table: self.cache.table(sequence.id),
                retain: sequence.retain,
                now_s,
            };
            let handed = disk.hand_over(&mut sequence.spilled, &source, runner);
            if let (true, Handed::All, Some(end)) = (ends, handed, sequence.spilled.end) {
                disk.touch(&end.identity, now_s);
            }
        }
    }

    /// Holds the blocks of a sequence that has ended, when the disk has not taken them all.
    pub(in crate::schedule) fn spill_later(&mut self, sequence: &Sequence) {
        let Sharing::Namespace(namespace) = sequence.sharing else { return };
        let seq = self.new_seq();
        let Some(disk) = &mut self.disk else { return };
        let whole = sequence.stored - sequence.stored % BLOCK_POSITIONS;
        let spilled = sequence.spilled;
        if spilled.is_given_up || spilled.blocks * BLOCK_POSITIONS >= whole || disk.rests.len() >= RESTS_MAX {
            return;
        }
        let held = self.cache.lease(seq, namespace, &sequence.tokens[..whole]);
        let tokens = sequence.tokens[..held].to_vec();
        let (roots, retain) = (self.roots[&namespace], sequence.retain);
        disk.rests.push(Rest { seq, tokens, roots, retain, spilled });
    }

    /// Hands over what is left of sequences that have ended.
    fn spill_rests(&mut self, runner: &dyn Runner, now: Duration) {
        let Some(disk) = &mut self.disk else { return };
        let now_s = disk.wall_s(now);
        let mut open = Vec::new();
        for mut rest in std::mem::take(&mut disk.rests) {
            let Rest { seq, tokens, roots, retain, .. } = &rest;
            let (table, retain, roots) = (self.cache.table(*seq), *retain, *roots);
            let source = Source { roots, tokens, table, retain, now_s };
            let mut spilled = rest.spilled;
            if disk.hand_over(&mut spilled, &source, runner) == Handed::Some {
                rest.spilled = spilled;
                open.push(rest);
                continue;
            }
            if let Some(end) = spilled.end {
                disk.touch(&end.identity, now_s);
            }
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
        let roots = Link { identity: source.roots.identity, lineage: source.roots.lineage };
        let rest = source.tokens.chunks(BLOCK_POSITIONS).zip(source.table).skip(spilled.blocks);
        for (tokens, &block) in rest {
            let before = spilled.end.unwrap_or(roots);
            let link = before.child(tokens);
            if !self.tier.holds(&link.identity) {
                let Some(buffer) = self.take_buffer() else { return Handed::Some };
                let record = source.record(before, link, tokens);
                if !record.is_some_and(|record| self.write(record, block, buffer, runner)) {
                    spilled.is_given_up = true;
                    return Handed::Nothing;
                }
            }
            if source.retain.pin {
                self.pin(&link.identity, true);
            }
            spilled.end = Some(link);
            spilled.blocks += 1;
            if spilled.blocks == spilled.reused {
                self.touch(&link.identity, source.now_s);
            }
        }
        Handed::All
    }

    /// Writes a block when the tier has a place for it; whether the blocks after it can follow.
    fn write(&mut self, record: Record, block: BlockId, mut buffer: Buffer, runner: &dyn Runner) -> bool {
        let placement = self.tier.place(record);
        if let Placement::Write(slot) = placement {
            runner.read_block(block, &mut buffer);
            self.store.write(slot, self.tier.record(slot), buffer);
            self.writing += 1;
        }
        placement != Placement::Full
    }

    /// Room to write a block, if that leaves enough for reading.
    fn take_buffer(&mut self) -> Option<Buffer> {
        if self.writing >= self.writes_max {
            return None;
        }
        self.store.buffer()
    }

    /// Notes that the prefix up to a block was used.
    pub(super) fn touch(&mut self, identity: &Identity, now_s: u64) {
        if let Some((slot, use_)) = self.tier.touch(identity, now_s) {
            self.store.touch(slot, use_);
        }
    }
}

impl Source<'_> {
    fn record(&self, before: Link, link: Link, tokens: &[Token]) -> Option<Record> {
        let ttl_s = self.retain.ttl.map(|ttl| ttl.as_secs().max(1));
        Some(Record {
            identity: link.identity,
            parent: before.identity,
            owner: self.roots.owner,
            lineage: lineage_of(&link.lineage),
            tokens: BlockTokens::new(tokens)?,
            expires_s: ttl_s.map_or(0, |ttl| self.now_s.saturating_add(ttl)),
            pinned: self.retain.pin,
            use_: Use { at_s: self.now_s, ..Use::default() },
        })
    }
}

impl Link {
    fn child(&self, tokens: &[Token]) -> Link {
        Link { identity: self.identity.child(tokens), lineage: self.lineage.child(tokens) }
    }
}
