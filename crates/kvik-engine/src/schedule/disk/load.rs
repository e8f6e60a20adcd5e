//! Bringing stored blocks back, from this node's disk and from the store that nodes share.
//!
//! A load allocates the blocks it needs like any sequence, has them filled in any order, and publishes them in order.
//! It ends when all are there, when one cannot be read, when its time is up, or when no request waits for it any more;
//! what it has published by then stays.

use std::time::Duration;

use kvik_cache::tier::{ByLevel, IoFault, SlotId, Use};
use kvik_cache::{
    Admission, BLOCK_POSITIONS, Cache, Lifetime, NamespaceId, SeqId, StopReason, Token, blocks_for,
};
use kvik_model::batch::Runner;

use super::remote::{Remote, RemotePart};
use super::{Disk, LoadContext};
use crate::schedule::ram::Ram;
use crate::store::remote::RemoteDone;
use crate::store::{Buffer, Completed};

/// Maximum number of concurrent loads.
const LOADS_MAX: usize = 16;

/// A prefix that is being read.
#[derive(Debug)]
pub(super) struct Load {
    /// Its sequence in the cache.
    pub(super) seq: SeqId,
    pub(super) namespace: NamespaceId,
    /// From the first token to the last one that is read.
    pub(super) tokens: Vec<Token>,
    /// Whole blocks that were already in RAM.
    first: usize,
    /// The slots of the blocks after them, then of the pieces of the state after the last token.
    slots: Vec<SlotId>,
    /// The fetch of the blocks after those from the shared store; then there is no state.
    remote_part: Option<RemoteLoad>,
    /// Number of blocks read.
    blocks: usize,
    /// Where they were when the load began.
    pub(super) reads: ByLevel,
    /// Number of slots whose reads were issued.
    issued: usize,
    /// Which of them have arrived.
    arrived: Vec<bool>,
    /// Reads in flight.
    open: usize,
    failed: bool,
    ticket: u64,
    started: Duration,
    /// When the load is given up, even if requests wait for it.
    deadline: Duration,
    reason: Reason,
    /// How long the blocks stay in RAM without being used.
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
    /// The pieces of the state after it; empty if no layer has a state.
    pub(super) pieces: Vec<SlotId>,
    /// The blocks after those of `slots`, which other nodes have computed.
    pub(super) remote_part: Option<RemotePart>,
}

/// Blocks that are being fetched from the shared store.
#[derive(Debug)]
struct RemoteLoad {
    ticket: u64,
    /// Bytes of a block.
    block_bytes: usize,
    ended: bool,
}

/// The result of a load that has ended.
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
    /// A request waits for it. The load ends when no request waits any more.
    Wanted,
    /// The prefix was hot before the start.
    Prefetch,
}

impl Disk {
    /// Processes completed reads and writes, and issues further reads.
    pub(crate) fn collect(&mut self, cache: &mut Cache, runner: &mut dyn Runner) {
        self.observe_again();
        while let Some(completed) = self.store.completed() {
            self.complete(completed, cache, runner);
        }
        self.collect_remote(cache, runner);
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

    /// Loads that fetch blocks of other nodes.
    pub(super) fn fetches(&self) -> usize {
        self.loads.iter().filter(|load| load.remote_part.is_some()).count()
    }

    /// Number of loads that may start.
    pub(crate) fn loads_left(&self) -> usize {
        LOADS_MAX.saturating_sub(self.loads.len())
    }

    /// When the first load is given up.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.loads.iter().map(|load| load.deadline).min()
    }

    /// Allocates blocks for a prefix and starts to read it; changes nothing if there are no blocks for it.
    pub(super) fn start_load(
        &mut self,
        prefix: Prefix,
        deadline: Duration,
        reason: Reason,
        context: &mut LoadContext<'_>,
    ) -> Option<SeqId> {
        let Prefix { namespace, tokens, mut slots, pieces, remote_part } = prefix;
        let now = context.now;
        let ttl = match &remote_part {
            None => self.ttl_of(*slots.last()?, reason, now),
            Some(remote_part) => Some(remote_part.ttl),
        };
        let blocks = slots.len() + remote_part.as_ref().map_or(0, |part| part.blocks.len());
        let first = blocks_for(tokens.len()) - blocks;
        let seq = take_blocks(namespace, &tokens, first, ttl, context)?;
        // Of the part that windowed layers see, only what the prefix needs at its end is read.
        context.ram.cache.advance(seq, tokens.len());
        slots.extend(pieces);
        let reads = self.reads(&slots);
        let remote_part = remote_part.and_then(|remote_part| self.start_fetch(&remote_part));
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
            remote_part,
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

    /// Ends a load with what has arrived by now.
    pub(crate) fn end_load(&mut self, seq: SeqId, context: &mut LoadContext<'_>) -> Option<EndedLoad> {
        let index = self.loads.iter().position(|load| load.seq == seq)?;
        let load = self.loads.remove(index);
        let (ready, now) = (load.ready(), context.now);
        self.stop_fetch(&load, now);
        // A load that was ended before anything was read gives no measurement of the disk, nor does one that also
        // waited for other nodes.
        if load.remote_part.is_none() && (ready > 0 || load.failed || now >= load.deadline) {
            self.cost.loaded(load.reads.scaled(ready.max(1)), now.saturating_sub(load.started));
        }
        for &slot in &load.slots[load.issued..] {
            // Another load may have found it damaged.
            if self.tier.unpin_after_reading(slot, None) {
                self.store.erase(slot);
            }
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

    /// Pins in RAM what is pinned on disk, up to the pin limit.
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

    /// How long a prefix whose last block is in slot `end` stays in RAM without being used. A request that waits for it
    /// uses it, which renews its time to live; a prefetch does not count as a use.
    fn ttl_of(&self, end: SlotId, reason: Reason, now: Duration) -> Option<Duration> {
        let Use { at_s, expires_s, .. } = self.tier.record(end).use_;
        let since_s = if reason == Reason::Wanted { at_s } else { self.wall_s(now) };
        (expires_s != 0).then(|| Duration::from_secs(expires_s.saturating_sub(since_s)))
    }

    /// Issues further reads while there are buffers.
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
                // An I/O error may be temporary; corrupt bytes stay corrupt.
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
            Completed::Seen(seen) => self.see(seen),
            // Every slot was seen as it is.
            Completed::TookOver => {}
        }
    }

    /// Writes a block that was read to the blocks of its load, unless that has ended.
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

/// The part of a load that comes from the shared store.
impl Disk {
    fn start_fetch(&mut self, remote_part: &RemotePart) -> Option<RemoteLoad> {
        let remote = self.remote.as_mut()?;
        Some(RemoteLoad { ticket: remote.fetch(remote_part), block_bytes: remote.block_bytes, ended: false })
    }

    /// Cancels the fetch of a load, unless it has ended.
    fn stop_fetch(&mut self, load: &Load, now: Duration) {
        if let (Some(remote_part), Some(remote)) =
            (load.remote_part.as_ref().filter(|part| !part.ended), &mut self.remote)
        {
            remote.store.cancel(remote_part.ticket, now >= load.deadline);
        }
    }

    /// Processes completed fetches.
    fn collect_remote(&mut self, cache: &mut Cache, runner: &mut dyn Runner) {
        while let Some(done) = self.remote.as_mut().and_then(Remote::done) {
            let (RemoteDone::Read { ticket, .. } | RemoteDone::Ended { ticket, .. }) = done else { continue };
            let theirs =
                |load: &&mut Load| load.remote_part.as_ref().is_some_and(|part| part.ticket == ticket);
            let Some(load) = self.loads.iter_mut().find(theirs) else { continue };
            match done {
                RemoteDone::Read { first, bytes, .. } => load.take_remote(first, &bytes, cache, runner),
                _ => load.end_remote(),
            }
        }
    }
}

/// A block that was read.
struct Arrived {
    buffer: Buffer,
    /// True if it was written without the part that windowed layers see.
    lacks_part: bool,
}

/// Writes the bytes of block `at` of a load, without the part that windowed layers see if they do not see it there.
fn write_needed(seq: SeqId, at: usize, bytes: &[u8], cache: &Cache, runner: &mut dyn Runner) {
    let part = runner.windowed_part();
    let is_whole = part.is_empty() || cache.needs_part(seq, at);
    let bytes = if is_whole { bytes } else { &bytes[..part.start] };
    runner.write_block(cache.table(seq)[at], bytes);
}

/// Allocates blocks in RAM for a prefix, of which the first `first` are there already; `None` if there is no room.
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
    if ram.holds_auxiliary() {
        return take_auxiliary(seq, namespace, tokens, first, ttl, ram);
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

/// Like `take_blocks`, for models whose sequences hold auxiliary state: it need not be possible to continue where the
/// blocks in RAM end.
fn take_auxiliary(
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
    /// Writes blocks that were fetched; the first of them is block `first` of the prompt.
    fn take_remote(&mut self, first: usize, bytes: &[u8], cache: &Cache, runner: &mut dyn Runner) {
        let Some(remote_part) = &self.remote_part else { return };
        for (bytes, at) in bytes.chunks_exact(remote_part.block_bytes).zip(first..) {
            // A run may begin before the wanted range and end after it.
            let index =
                at.checked_sub(self.first).filter(|index| (self.slots.len()..self.blocks).contains(index));
            let Some(index) = index.filter(|&index| !self.arrived[index]) else { continue };
            write_needed(self.seq, at, bytes, cache, runner);
            self.arrived[index] = true;
        }
    }

    /// Marks the fetch as ended.
    fn end_remote(&mut self) {
        if let Some(remote_part) = &mut self.remote_part {
            remote_part.ended = true;
        }
    }

    /// Tokens before those that come from other nodes, if some do.
    pub(super) fn local(&self) -> Option<usize> {
        self.remote_part.as_ref().map(|_| (self.first + self.slots.len()) * BLOCK_POSITIONS)
    }

    /// Leading blocks that have arrived without a gap.
    fn ready(&self) -> usize {
        self.arrived[..self.blocks].iter().take_while(|&&arrived| arrived).count()
    }

    /// Why no more of the prefix is there. The disk is judged first, and a load that was ended early says nothing about
    /// other nodes.
    pub(super) fn why_no_more(&self, now: Duration) -> StopReason {
        let is_over = |part: &RemoteLoad| part.ended || now >= self.deadline;
        match &self.remote_part {
            Some(remote_part) if self.ready() >= self.slots.len() && is_over(remote_part) => {
                StopReason::RemoteFailed
            }
            _ if self.failed => StopReason::LoadFailed,
            _ => StopReason::RecomputeWasCheaper,
        }
    }

    /// Whether everything that the load reads is there.
    fn is_complete(&self) -> bool {
        self.arrived.iter().all(|&arrived| arrived)
    }

    /// Whether the load reads a state after its last token.
    pub(super) fn reads_state(&self) -> bool {
        self.remote_part.is_none() && self.blocks < self.slots.len()
    }

    /// Whether that state is there.
    fn has_state(&self) -> bool {
        self.reads_state() && self.is_complete()
    }

    /// The tokens of the blocks that are in RAM.
    pub(super) fn ready_tokens(&self) -> &[Token] {
        let positions = (self.first + self.ready()) * BLOCK_POSITIONS;
        &self.tokens[..positions.min(self.tokens.len())]
    }

    /// Whether everything on disk has arrived and no more comes from other nodes.
    fn has_all_there_is(&self) -> bool {
        self.remote_part.as_ref().is_some_and(|part| part.ended) && self.ready() >= self.slots.len()
    }

    fn has_ended(&self, now: Duration) -> bool {
        let done = self.is_complete() || self.has_all_there_is();
        done || (self.failed && self.open == 0) || now >= self.deadline
    }
}
