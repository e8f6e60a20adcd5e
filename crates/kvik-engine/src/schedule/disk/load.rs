//! Bringing stored blocks back, from this node's disk and from the store that nodes share.
//!
//! A load takes the blocks it needs like any sequence, has them filled in any order, and publishes them
//! in order. It ends when all are there, when one cannot be read, when its time is up, or when nobody waits
//! for it any more; what it has published by then stays.

use std::time::Duration;

use kvik_cache::tier::{IoFault, Reads, SlotId, Use};
use kvik_cache::{
    Admission, BLOCK_POSITIONS, Cache, Lifetime, NamespaceId, SeqId, StopReason, Token, blocks_for,
};

use super::remote::{Far, Remote};
use super::{Disk, LoadContext};
use crate::model::batch::Runner;
use crate::schedule::ram::Ram;
use crate::store::remote::RemoteDone;
use crate::store::{Buffer, Completed};

/// Prefixes that are read at the same time.
const LOADS_MAX: usize = 16;

/// A prefix that is being read.
#[derive(Debug)]
pub(super) struct Load {
    /// Its name in the cache.
    pub(super) seq: SeqId,
    pub(super) namespace: NamespaceId,
    /// From the first token on to the last one that is read.
    pub(super) tokens: Vec<Token>,
    /// Whole blocks that were in RAM already.
    first: usize,
    /// The blocks after them, then the pieces of the state behind the last token.
    slots: Vec<SlotId>,
    /// The blocks after those, which come from the store that nodes share; then there is no state.
    far: Option<FarLoad>,
    /// How many blocks are read.
    blocks: usize,
    /// Where they were when it began.
    pub(super) reads: Reads,
    /// How many of them are being read or have been.
    issued: usize,
    /// Which of them have been.
    arrived: Vec<bool>,
    /// Reads under way.
    open: usize,
    failed: bool,
    ticket: u64,
    started: Duration,
    /// When it is given up, even if requests wait for it.
    deadline: Duration,
    reason: Reason,
    /// How long what is read is kept in RAM without another use.
    ttl: Option<Duration>,
}

/// A stored prefix.
#[derive(Debug)]
pub(super) struct Prefix {
    pub(super) namespace: NamespaceId,
    /// From the first token on.
    pub(super) tokens: Vec<Token>,
    /// Its last blocks, which are not in RAM.
    pub(super) slots: Vec<SlotId>,
    /// The pieces of the state behind it; none where layers have none.
    pub(super) pieces: Vec<SlotId>,
    /// The blocks after its slots, which other nodes have computed.
    pub(super) far: Option<Far>,
}

/// Blocks that are being fetched.
#[derive(Debug)]
struct FarLoad {
    ticket: u64,
    /// Bytes of a block.
    block_bytes: usize,
    ended: bool,
}

/// A load that has ended.
#[derive(Debug)]
pub(crate) struct EndedLoad {
    pub(super) seq: SeqId,
    /// Leading tokens that are in RAM now.
    pub(super) tokens: usize,
    /// Why these are not all.
    pub(super) verdict: StopReason,
}

/// Why a prefix is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// A request waits for it. When none is left that does, it ends.
    Wanted,
    /// It was hot before the start.
    Prefetch,
}

impl Disk {
    /// Takes what has been read and written into account, and keeps the disk busy.
    pub(crate) fn collect(&mut self, cache: &mut Cache, runner: &mut dyn Runner) {
        while let Some(completed) = self.store.completed() {
            self.complete(completed, cache, runner);
        }
        self.collect_far(cache, runner);
        for index in 0..self.loads.len() {
            self.issue(index);
            let load = &self.loads[index];
            cache.publish(load.seq, load.ready_tokens());
        }
    }

    /// Loads that are done, whose time is up, or that no request waits for any more.
    pub(crate) fn ended_loads(&self, is_awaited: impl Fn(SeqId) -> bool, now: Duration) -> Vec<SeqId> {
        let unwanted = |load: &Load| load.reason == Reason::Wanted && !is_awaited(load.seq);
        let ended = self.loads.iter().filter(|load| load.has_ended(now) || unwanted(load));
        ended.map(|load| load.seq).collect()
    }

    /// All loads.
    pub(crate) fn loads(&self) -> Vec<SeqId> {
        self.loads.iter().map(|load| load.seq).collect()
    }

    /// Loads that fetch what other nodes have computed.
    pub(super) fn fetches(&self) -> usize {
        self.loads.iter().filter(|load| load.far.is_some()).count()
    }

    /// Loads that may start.
    pub(crate) fn loads_left(&self) -> usize {
        LOADS_MAX.saturating_sub(self.loads.len())
    }

    /// When the first load is given up.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.loads.iter().map(|load| load.deadline).min()
    }

    /// Takes blocks for a prefix and begins to read it; changes nothing when there are none to be had.
    pub(super) fn start_load(
        &mut self,
        prefix: Prefix,
        deadline: Duration,
        reason: Reason,
        context: &mut LoadContext<'_>,
    ) -> Option<SeqId> {
        let Prefix { namespace, tokens, mut slots, pieces, far } = prefix;
        let now = context.now;
        let ttl = match &far {
            None => self.ttl_of(*slots.last()?, reason, now),
            Some(far) => Some(far.ttl),
        };
        let blocks = slots.len() + far.as_ref().map_or(0, |far| far.blocks.len());
        let first = blocks_for(tokens.len()) - blocks;
        let seq = take_blocks(namespace, &tokens, first, ttl, context)?;
        // Of what layers with windows see, only that is read which the prefix needs at its end.
        context.ram.cache.advance(seq, tokens.len());
        slots.extend(pieces);
        let reads = self.reads(&slots);
        let far = far.and_then(|far| self.start_fetch(&far));
        self.tier.pin_for_reading(&slots);
        let ticket = self.next_ticket;
        self.next_ticket += slots.len() as u64;
        self.loads.push(Load {
            seq,
            namespace,
            tokens,
            first,
            arrived: vec![false; blocks.max(slots.len())],
            slots,
            far,
            blocks,
            reads,
            issued: 0,
            open: 0,
            failed: false,
            ticket,
            started: now,
            deadline,
            reason,
            ttl,
        });
        self.issue(self.loads.len() - 1);
        Some(seq)
    }

    /// Ends a load with what it has by now.
    pub(crate) fn end_load(&mut self, seq: SeqId, context: &mut LoadContext<'_>) -> Option<EndedLoad> {
        let index = self.loads.iter().position(|load| load.seq == seq)?;
        let load = self.loads.remove(index);
        let (ready, now) = (load.ready(), context.now);
        self.stop_fetch(&load, now);
        // One that had to make way before it had read anything says nothing about the disk, nor does one that waited for
        // other nodes as well.
        if load.far.is_none() && (ready > 0 || load.failed || now >= load.deadline) {
            self.cost.loaded(load.read(ready.max(1)), now.saturating_sub(load.started));
        }
        for &slot in &load.slots[load.issued..] {
            self.tier.unpin_after_reading(slot, None);
        }
        let cache = &mut context.ram.cache;
        if !load.has_state() {
            cache.spoil_state(load.seq);
        }
        cache.set_lifetime(load.seq, Lifetime { ttl: load.ttl, ..Lifetime::default() });
        cache.finish(load.seq, load.ready_tokens());
        self.pin_as_on_disk(load.namespace, load.ready_tokens(), context);
        let verdict = load.why_no_more(now);
        Some(EndedLoad { seq, tokens: load.ready_tokens().len(), verdict })
    }

    /// Pins in RAM what is pinned on disk now, as far as so much may be pinned.
    pub(super) fn pin_as_on_disk(
        &self,
        namespace: NamespaceId,
        tokens: &[Token],
        context: &mut LoadContext<'_>,
    ) {
        let whole = &tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS];
        let ends = context.namespaces.roots(namespace).identity.blocks(whole).zip(1..);
        for (identity, blocks) in ends.filter(|(identity, _)| self.tier.is_pinned(identity)) {
            if let Err(limit) = context.ram.cache.pin(namespace, &whole[..blocks * BLOCK_POSITIONS]) {
                tracing::warn!(
                    "a prompt that is pinned on disk is not pinned in memory: {limit}, {identity:?}"
                );
            }
        }
    }

    /// How long a prefix that is read, by the slot of its last block, is kept in RAM without another use. A
    /// request that waits for it uses it, which begins its time to live anew; bringing it back is no use.
    fn ttl_of(&self, end: SlotId, reason: Reason, now: Duration) -> Option<Duration> {
        let Use { at_s, expires_s, .. } = self.tier.record(end).use_;
        let since_s = if reason == Reason::Wanted { at_s } else { self.wall_s(now) };
        (expires_s != 0).then(|| Duration::from_secs(expires_s.saturating_sub(since_s)))
    }

    /// Reads on, as far as there are buffers.
    fn issue(&mut self, index: usize) {
        let load = &mut self.loads[index];
        while !load.failed && load.issued < load.slots.len() {
            let Some(buffer) = self.store.buffer() else { return };
            let slot = load.slots[load.issued];
            let identity = self.tier.record(slot).identity;
            self.store.read(load.ticket + load.issued as u64, slot, identity, buffer);
            load.issued += 1;
            load.open += 1;
        }
    }

    fn complete(&mut self, completed: Completed, cache: &mut Cache, runner: &mut dyn Runner) {
        match completed {
            Completed::Written { slot, result } => {
                self.writing -= 1;
                if self.tier.written(slot, result.is_ok()) {
                    self.store.erase(slot);
                }
            }
            Completed::Read { ticket, slot, result } => {
                let lacks_part = self.tier.record(slot).lacks_part;
                // Bytes that cannot be had now may be had later; bytes that are not what they should be never.
                let erase = match &result {
                    Err(IoFault::Corrupt) => self.tier.unpin_after_reading(slot, Some(false)),
                    Err(_) => self.tier.unpin_after_reading(slot, None),
                    Ok(_) => self.tier.unpin_after_reading(slot, Some(true)),
                };
                if erase {
                    self.store.erase(slot);
                }
                let read = result.ok().map(|(buffer, _)| Arrived { buffer, lacks_part });
                self.arrive(ticket, read, cache, runner);
            }
        }
    }

    /// Puts a block that was read where its load wants it, unless that has ended.
    fn arrive(&mut self, ticket: u64, read: Option<Arrived>, cache: &mut Cache, runner: &mut dyn Runner) {
        let owns = |load: &&mut Load| (load.ticket..load.ticket + load.slots.len() as u64).contains(&ticket);
        let Some(load) = self.loads.iter_mut().find(owns) else { return };
        let index = (ticket - load.ticket) as usize;
        load.open -= 1;
        match read {
            Some(Arrived { buffer, .. }) if index >= load.blocks => {
                if let Some(state) = cache.state(load.seq) {
                    runner.write_state_piece(state, (index - load.blocks) * buffer.len(), &buffer);
                }
                load.arrived[index] = true;
            }
            Some(Arrived { buffer, lacks_part }) => {
                let at = load.first + index;
                if lacks_part {
                    cache.lack_parts(load.seq, at + 1);
                }
                write_needed(load.seq, at, &buffer, cache, runner);
                load.arrived[index] = true;
            }
            None => load.failed = true,
        }
    }
}

/// The part of a load that comes from the store that nodes share.
impl Disk {
    fn start_fetch(&mut self, far: &Far) -> Option<FarLoad> {
        let remote = self.remote.as_mut()?;
        Some(FarLoad { ticket: remote.fetch(far), block_bytes: remote.block_bytes, ended: false })
    }

    /// Nobody waits any more for what a load fetches.
    fn stop_fetch(&mut self, load: &Load, now: Duration) {
        if let (Some(far), Some(remote)) = (load.far.as_ref().filter(|far| !far.ended), &mut self.remote) {
            remote.store.cancel(far.ticket, now >= load.deadline);
        }
    }

    /// Takes what has been fetched into account.
    fn collect_far(&mut self, cache: &mut Cache, runner: &mut dyn Runner) {
        while let Some(done) = self.remote.as_mut().and_then(Remote::done) {
            let (RemoteDone::Read { ticket, .. } | RemoteDone::Ended { ticket, .. }) = done else { continue };
            let theirs = |load: &&mut Load| load.far.as_ref().is_some_and(|far| far.ticket == ticket);
            let Some(load) = self.loads.iter_mut().find(theirs) else { continue };
            match done {
                RemoteDone::Read { first, bytes, .. } => load.take_far(first, &bytes, cache, runner),
                _ => load.end_far(),
            }
        }
    }
}

/// A block that was read.
struct Arrived {
    buffer: Buffer,
    /// Whether it was written without the part that layers with windows see.
    lacks_part: bool,
}

/// Writes what was read of block `at` of a load: without the part that layers with windows see where they do not see it.
fn write_needed(seq: SeqId, at: usize, bytes: &[u8], cache: &Cache, runner: &mut dyn Runner) {
    let part = runner.windowed_part();
    let is_whole = part.is_empty() || cache.needs_part(seq, at);
    let bytes = if is_whole { bytes } else { &bytes[..part.start] };
    runner.write_block(cache.table(seq)[at], bytes);
}

/// Blocks in RAM for a prefix, of which the first `first` are there already; none when there is no room.
fn take_blocks(
    namespace: NamespaceId,
    tokens: &[Token],
    first: usize,
    ttl: Option<Duration>,
    context: &mut LoadContext<'_>,
) -> Option<SeqId> {
    let ram = &mut *context.ram;
    if !ram.has_room(ram.needed(tokens.len()) - first, context.running) {
        return None;
    }
    let seq = ram.new_seq();
    if ram.holds_beside() {
        return take_beside(seq, namespace, tokens, first, ttl, ram);
    }
    let admission = Admission {
        seq,
        namespace,
        prompt: tokens,
        reuse_max: first * BLOCK_POSITIONS,
        positions: tokens.len(),
        lifetime: Lifetime { ttl, ..Lifetime::default() },
    };
    let admitted = ram.cache.admit(admission).ok()?;
    if admitted.reused != first * BLOCK_POSITIONS {
        ram.cache.abandon(seq);
        return None;
    }
    Some(seq)
}

/// The same where sequences hold something beside blocks: nobody has to be able to go on where the blocks in RAM end.
fn take_beside(
    seq: SeqId,
    namespace: NamespaceId,
    tokens: &[Token],
    first: usize,
    ttl: Option<Duration>,
    ram: &mut Ram,
) -> Option<SeqId> {
    let known = first * BLOCK_POSITIONS;
    let held = ram.cache.lease(seq, namespace, &tokens[..known]);
    ram.cache.hold_parts_for(seq, tokens.len());
    if held != known || ram.cache.reserve(seq, tokens.len()).is_err() {
        ram.cache.abandon(seq);
        return None;
    }
    ram.cache.set_lifetime(seq, Lifetime { ttl, ..Lifetime::default() });
    Some(seq)
}

impl Load {
    /// Puts blocks that were fetched where they belong, the first of them being block `first` of the prompt.
    fn take_far(&mut self, first: usize, bytes: &[u8], cache: &Cache, runner: &mut dyn Runner) {
        let Some(far) = &self.far else { return };
        for (bytes, at) in bytes.chunks_exact(far.block_bytes).zip(first..) {
            // A run may begin before what is wanted of it, and end behind.
            let index =
                at.checked_sub(self.first).filter(|index| (self.slots.len()..self.blocks).contains(index));
            let Some(index) = index.filter(|&index| !self.arrived[index]) else { continue };
            write_needed(self.seq, at, bytes, cache, runner);
            self.arrived[index] = true;
        }
    }

    /// No more is fetched.
    fn end_far(&mut self) {
        if let Some(far) = &mut self.far {
            far.ended = true;
        }
    }

    /// Tokens before those that come from other nodes, if some do.
    pub(super) fn near(&self) -> Option<usize> {
        self.far.as_ref().map(|_| (self.first + self.slots.len()) * BLOCK_POSITIONS)
    }

    /// Blocks that have been read, without a gap.
    fn ready(&self) -> usize {
        self.arrived[..self.blocks].iter().take_while(|&&arrived| arrived).count()
    }

    /// Why no more of it is there: what is on disk comes first, and one that had to make way says nothing about other nodes.
    pub(super) fn why_no_more(&self, now: Duration) -> StopReason {
        let is_over = |far: &FarLoad| far.ended || now >= self.deadline;
        match &self.far {
            Some(far) if self.ready() >= self.slots.len() && is_over(far) => StopReason::RemoteFailed,
            _ if self.failed => StopReason::LoadFailed,
            _ => StopReason::RecomputeWasCheaper,
        }
    }

    /// `ready` blocks, by where all of them were.
    fn read(&self, ready: usize) -> Reads {
        let host = ready * self.reads.host / self.reads.blocks().max(1);
        Reads { host, disk: ready - host }
    }

    /// Whether all that it reads is there.
    fn is_complete(&self) -> bool {
        self.arrived.iter().all(|&arrived| arrived)
    }

    /// Whether it reads a state behind its last token.
    pub(super) fn reads_state(&self) -> bool {
        self.far.is_none() && self.blocks < self.slots.len()
    }

    /// Whether that state is there.
    fn has_state(&self) -> bool {
        self.reads_state() && self.is_complete()
    }

    /// The tokens of the blocks in RAM.
    pub(super) fn ready_tokens(&self) -> &[Token] {
        let positions = (self.first + self.ready()) * BLOCK_POSITIONS;
        &self.tokens[..positions.min(self.tokens.len())]
    }

    /// Whether all is there that is on disk, and no more comes from other nodes.
    fn has_all_there_is(&self) -> bool {
        self.far.as_ref().is_some_and(|far| far.ended) && self.ready() >= self.slots.len()
    }

    fn has_ended(&self, now: Duration) -> bool {
        let done = self.is_complete() || self.has_all_there_is();
        done || (self.failed && self.open == 0) || now >= self.deadline
    }
}
