//! Bringing stored blocks back before a waiting request is admitted.
//!
//! A load takes the blocks it needs like any sequence, has them filled in any order, and publishes them
//! in order. It ends when all are there, when one cannot be read, when its time is up, or when nobody waits
//! for it any more; what it has published by then stays.
//!
//! Everybody who waits has a patience of their own: as long as computing would take. Whoever has nothing on
//! disk never waits for those who have.

use std::time::Duration;

use kvik_cache::tier::{CostModel, Found, IoFault, SlotId, Use};
use kvik_cache::{
    Admission, BLOCK_POSITIONS, Cache, Identity, NamespaceId, Retain, SeqId, StopReason, Token, blocks_for,
};

use super::Disk;
use crate::model::batch::Runner;
use crate::schedule::Scheduler;
use crate::schedule::queue::Waiting;
use crate::schedule::sequence::{Sharing, common_prefix};
use crate::store::{Buffer, Completed};

/// What a load may take while it is not known how long computing would.
const PATIENCE: Duration = Duration::from_secs(2);
/// Prefixes that are read at the same time.
const LOADS_MAX: usize = 16;
/// Computing may be estimated too low; a load that is nearly done is not given up for that.
const GRACE: Duration = Duration::from_millis(20);

/// A prefix that is being read.
#[derive(Debug)]
pub(in crate::schedule) struct Load {
    /// Its name in the cache.
    pub(super) seq: SeqId,
    pub(super) namespace: NamespaceId,
    /// From the first token on to the last one that is read.
    pub(in crate::schedule) tokens: Vec<Token>,
    /// Whole blocks that were in RAM already.
    pub(super) first: usize,
    /// The blocks after them.
    slots: Vec<SlotId>,
    /// How many of them are being read or have been.
    issued: usize,
    /// Which of them have been.
    arrived: Vec<bool>,
    /// Reads under way.
    open: usize,
    failed: bool,
    ticket: u64,
    started: Duration,
    /// When it is given up, whoever waits for it.
    deadline: Duration,
    reason: Reason,
    /// How long what is read is kept in RAM without another use.
    ttl: Option<Duration>,
}

/// Why a prefix is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// A request waits for it. When none is left that does, it ends.
    Wanted,
    /// It was hot before the start.
    Warm,
}

/// What the disk did for a waiting request.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::schedule) struct Fetched {
    wait: Wait,
    /// Tokens that were in RAM when it began to wait for a load, and those that it was to have then.
    tokens: (usize, usize),
    /// Why the disk did not help, where it had something.
    pub(in crate::schedule) verdict: Option<StopReason>,
}

/// For what of the disk a request waits, and for how long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Wait {
    /// The disk has not been asked.
    #[default]
    Unasked,
    /// There is something to be read, and too much is being read already.
    Place { until: Duration },
    /// A load.
    Load { seq: SeqId, until: Duration },
    /// Nothing, any more.
    Over,
}

impl Scheduler {
    /// Takes what has been read and written into account, and keeps the disk busy.
    pub(in crate::schedule) fn settle_disk(&mut self, runner: &mut dyn Runner) {
        let now = self.now();
        let Some(disk) = &mut self.disk else { return };
        while let Some(completed) = disk.store.completed() {
            disk.complete(completed, &self.cache, runner);
        }
        for index in 0..disk.loads.len() {
            disk.issue(index);
            let load = &disk.loads[index];
            self.cache.publish(load.seq, load.ready_tokens());
        }
        self.end_waits(now);
        let ended: Vec<SeqId> = self.ended_loads(now).collect();
        ended.into_iter().for_each(|seq| self.end_load(seq, now));
    }

    /// Loads that are done, whose time is up, or that nobody wants any more.
    fn ended_loads(&self, now: Duration) -> impl Iterator<Item = SeqId> {
        let waits = |load: &Load| self.queue.fetches().any(|fetch| fetch.waits_for(load));
        let unwanted = move |load: &Load| load.reason == Reason::Wanted && !waits(load);
        let loads = self.disk.iter().flat_map(|disk| &disk.loads);
        loads.filter(move |load| load.has_ended(now) || unwanted(load)).map(|load| load.seq)
    }

    /// Lets those go on who have what they wait for, and those whose patience has ended.
    fn end_waits(&mut self, now: Duration) {
        let Some(disk) = &self.disk else { return };
        for fetch in self.queue.fetches_mut() {
            if let Wait::Load { seq, until } = fetch.wait
                && let Some(load) = disk.loads.iter().find(|load| load.seq == seq)
            {
                let is_there = load.ready_tokens().len() >= fetch.tokens.1;
                if !is_there && now >= until {
                    fetch.verdict = Some(StopReason::RecomputeWasCheaper);
                }
                if is_there || now >= until {
                    fetch.wait = Wait::Over;
                }
            }
        }
    }

    /// When the first load, or the patience of somebody who waits for the disk, ends.
    pub(in crate::schedule) fn next_deadline(&self) -> Option<Duration> {
        let loads = self.disk.iter().flat_map(|disk| &disk.loads).map(|load| load.deadline);
        loads.chain(self.queue.fetches().filter_map(Fetched::until)).min()
    }

    /// Prefixes that may be read beside those that are.
    pub(in crate::schedule) fn load_places(&self) -> usize {
        self.disk.as_ref().map_or(0, |disk| LOADS_MAX.saturating_sub(disk.loads.len()))
    }

    /// Ends all loads with what they have by now. Whether there were any.
    pub(in crate::schedule) fn drop_loads(&mut self) -> bool {
        let loads: Vec<SeqId> = self.disk.iter().flat_map(|disk| &disk.loads).map(|load| load.seq).collect();
        let now = self.now();
        loads.iter().for_each(|&seq| self.end_load(seq, now));
        !loads.is_empty()
    }

    fn end_load(&mut self, seq: SeqId, now: Duration) {
        let Some(disk) = &mut self.disk else { return };
        let Some(index) = disk.loads.iter().position(|load| load.seq == seq) else { return };
        let load = disk.loads.remove(index);
        let ready = load.ready();
        // One that had to make way before it had read anything says nothing about the disk.
        if ready > 0 || load.failed || now >= load.deadline {
            disk.cost.loaded(ready.max(1), now.saturating_sub(load.started));
        }
        for &slot in &load.slots[load.issued..] {
            disk.tier.unpin_after_reading(slot, None);
        }
        self.cache.retain(load.seq, Retain { ttl: load.ttl, ..Retain::default() });
        self.cache.finish(load.seq, load.ready_tokens());
        self.pin_as_on_disk(load.namespace, load.ready_tokens());
        let verdict = if load.failed { StopReason::LoadFailed } else { StopReason::RecomputeWasCheaper };
        for fetch in self.queue.fetches_mut().filter(|fetch| fetch.waits_for(&load)) {
            fetch.wait = Wait::Over;
            if fetch.tokens.1 > load.ready_tokens().len() {
                fetch.verdict = Some(verdict);
            }
        }
    }

    /// Pins in RAM what is pinned on disk now, as far as so much may be pinned.
    pub(super) fn pin_as_on_disk(&mut self, namespace: NamespaceId, tokens: &[Token]) {
        let Some(disk) = &self.disk else { return };
        let whole = &tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS];
        let ends = self.roots[&namespace].identity.blocks(whole).zip(1..);
        for (identity, blocks) in ends.filter(|(identity, _)| disk.tier.is_pinned(identity)) {
            if let Err(limit) = self.cache.pin(namespace, &whole[..blocks * BLOCK_POSITIONS]) {
                tracing::warn!(
                    "a prompt that is pinned on disk is not pinned in memory: {limit}, {identity:?}"
                );
            }
        }
    }

    /// Whether a waiting sequence should wait on, because the disk has more of it than is known.
    pub(in crate::schedule) fn fetch(&mut self, index: usize, known: usize) -> bool {
        let (now, places) = (self.now(), self.load_places());
        let waiting = &mut self.queue[index];
        let (Some(_), Sharing::Namespace(namespace)) = (&self.disk, waiting.sequence.sharing) else {
            return false;
        };
        match waiting.fetch.wait {
            Wait::Unasked => self.ask_disk(index, namespace, known),
            Wait::Place { until } if now >= until => {
                waiting.fetch.wait = Wait::Over;
                waiting.fetch.verdict = Some(StopReason::RecomputeWasCheaper);
                false
            }
            Wait::Place { .. } => places == 0 || self.ask_disk(index, namespace, known),
            Wait::Load { .. } => true,
            Wait::Over => false,
        }
    }

    /// Looks a waiting sequence up on disk and begins to load; whether it waits for that.
    fn ask_disk(&mut self, index: usize, namespace: NamespaceId, known: usize) -> bool {
        let now = self.now();
        let Waiting { sequence, fetch, .. } = &mut self.queue[index];
        let Some(disk) = &mut self.disk else { return false };
        let wanted = &sequence.tokens[..sequence.reuse_max()];
        let (head, rest) = wanted.split_at(known - known % BLOCK_POSITIONS);
        let parent = self.roots[&namespace].identity_after(head);
        let (slots, verdict) = disk.look_up(&parent, rest, known, now);
        let until = fetch.until();
        (fetch.wait, fetch.verdict) = (Wait::Over, verdict);
        if slots.is_empty() {
            return false;
        }
        let mut tokens = head.to_vec();
        tokens.extend(slots.iter().flat_map(|&slot| disk.tier.record(slot).tokens.as_slice()));
        let gain = (known, common_prefix(wanted, &tokens));
        let patience = patience(&disk.cost, gain.1.saturating_sub(known));
        let covers =
            |load: &&Load| load.namespace == namespace && common_prefix(wanted, &load.tokens) >= gain.1;
        let load = disk.loads.iter().find(covers).map(|load| load.seq);
        let full = disk.loads.len() >= LOADS_MAX;
        // For less than a block nobody waits until others are done.
        let small = gain.1 < known + BLOCK_POSITIONS;
        let load = match load {
            Some(load) => (!small).then_some(load),
            None if full => None,
            None => self.start_load(namespace, tokens, slots, now + patience, Reason::Wanted),
        };
        // Where there is no room for a load, there is none for the sequence either, unless nobody runs.
        let waits = !small && (full || !self.running.is_empty());
        let fetch = &mut self.queue[index].fetch;
        match load {
            Some(seq) => fetch.wait_for(seq, until.unwrap_or(now + patience), gain),
            None if waits => fetch.wait = Wait::Place { until: until.unwrap_or(now + patience) },
            None => fetch.verdict = Some(StopReason::RecomputeWasCheaper),
        }
        fetch.wait != Wait::Over
    }

    /// Takes blocks for a prefix and begins to read it; changes nothing when there are none to be had.
    pub(super) fn start_load(
        &mut self,
        namespace: NamespaceId,
        tokens: Vec<Token>,
        slots: Vec<SlotId>,
        deadline: Duration,
        reason: Reason,
    ) -> Option<SeqId> {
        let (seq, now) = (self.new_seq(), self.now());
        let ttl = self.disk.as_ref()?.ttl_of(*slots.last()?, reason, now);
        let first = blocks_for(tokens.len()) - slots.len();
        let stats = self.cache.stats();
        if slots.len() + self.running.len() > stats.free + stats.evictable {
            return None;
        }
        let admission = Admission {
            seq,
            namespace,
            prompt: &tokens,
            reuse_max: first * BLOCK_POSITIONS,
            positions: tokens.len(),
            retain: Retain { ttl, ..Retain::default() },
        };
        let admitted = self.cache.admit(admission).ok()?;
        let disk = self.disk.as_mut()?;
        if admitted.reused != first * BLOCK_POSITIONS {
            self.cache.abandon(seq);
            return None;
        }
        disk.begin(Load {
            seq,
            namespace,
            tokens,
            first,
            arrived: vec![false; slots.len()],
            slots,
            issued: 0,
            open: 0,
            failed: false,
            ticket: disk.next_ticket,
            started: now,
            deadline,
            reason,
            ttl,
        });
        Some(seq)
    }
}

impl Disk {
    /// The slots worth loading for the head of `rest`, of which `known` tokens counted from the prompt's
    /// start are known; and, when something more is there, why it is not worth it.
    fn look_up(
        &mut self,
        parent: &Identity,
        rest: &[Token],
        known: usize,
        now: Duration,
    ) -> (Vec<SlotId>, Option<StopReason>) {
        let mut found = self.tier.find(parent, rest, self.wall_s(now));
        let known = known % BLOCK_POSITIONS;
        let expired = (found.expired > known).then_some(StopReason::Expired);
        let trimmed = self.trim(&mut found).then_some(StopReason::RecomputeWasCheaper);
        if found.tokens <= known {
            return (Vec::new(), trimmed.or(expired));
        }
        if !self.cost.decide(found.slots.len(), found.tokens - known) {
            return (Vec::new(), Some(StopReason::RecomputeWasCheaper));
        }
        (found.slots, trimmed)
    }

    /// Leaves out a last block of which so little is wanted that it is not worth its reading; whether it did.
    pub(in crate::schedule) fn trim(&self, found: &mut Found) -> bool {
        let partial = found.tokens % BLOCK_POSITIONS;
        let costs = self.cost.load_time(1).zip(self.cost.compute_time(partial));
        let costly = costs.is_some_and(|(load, compute)| load > compute);
        let trims = partial > 0 && found.slots.len() > 1 && costly;
        if trims {
            found.slots.pop();
            found.tokens -= partial;
        }
        trims
    }

    /// Begins to read a prefix.
    fn begin(&mut self, load: Load) {
        self.tier.pin_for_reading(&load.slots);
        self.next_ticket += load.slots.len() as u64;
        self.loads.push(load);
        self.issue(self.loads.len() - 1);
    }

    /// How long a prefix that is read, by the slot of its last block, is kept in RAM without another use. Who
    /// wants it uses it, which begins its time to live anew; bringing it back is no use.
    fn ttl_of(&self, end: SlotId, reason: Reason, now: Duration) -> Option<Duration> {
        let Use { at_s, expires_s, .. } = self.tier.record(end).use_;
        let since_s = if reason == Reason::Wanted { at_s } else { self.wall_s(now) };
        (expires_s != 0).then(|| Duration::from_secs(expires_s.saturating_sub(since_s)))
    }

    /// Reads on, as far as there is room.
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

    fn complete(&mut self, completed: Completed, cache: &Cache, runner: &mut dyn Runner) {
        match completed {
            Completed::Written { slot, result } => {
                self.writing -= 1;
                self.tier.written(slot, result.is_ok());
            }
            Completed::Read { ticket, slot, result } => {
                // Bytes that cannot be had now may be had later; bytes that are not what they should be never.
                let erase = match &result {
                    Err(IoFault::Corrupt) => self.tier.unpin_after_reading(slot, Some(false)),
                    Err(_) => self.tier.unpin_after_reading(slot, None),
                    Ok(_) => self.tier.unpin_after_reading(slot, Some(true)),
                };
                if erase {
                    self.store.erase(slot);
                }
                self.arrive(ticket, result.ok().map(|(buffer, _)| buffer), cache, runner);
            }
        }
    }

    /// Puts a block that was read where the cache wants it, if anybody still does.
    fn arrive(&mut self, ticket: u64, read: Option<Buffer>, cache: &Cache, runner: &mut dyn Runner) {
        let owns = |load: &&mut Load| (load.ticket..load.ticket + load.slots.len() as u64).contains(&ticket);
        let Some(load) = self.loads.iter_mut().find(owns) else { return };
        let index = (ticket - load.ticket) as usize;
        load.open -= 1;
        match read {
            Some(buffer) => {
                runner.write_block(cache.table(load.seq)[load.first + index], &buffer);
                load.arrived[index] = true;
            }
            None => load.failed = true,
        }
    }
}

impl Load {
    /// Blocks that have been read, without a gap.
    fn ready(&self) -> usize {
        self.arrived.iter().take_while(|&&arrived| arrived).count()
    }

    /// The tokens of the blocks in RAM.
    fn ready_tokens(&self) -> &[Token] {
        let positions = (self.first + self.ready()) * BLOCK_POSITIONS;
        &self.tokens[..positions.min(self.tokens.len())]
    }

    fn has_ended(&self, now: Duration) -> bool {
        let done = self.ready() == self.slots.len();
        done || (self.failed && self.open == 0) || now >= self.deadline
    }
}

impl Fetched {
    /// Whether there is anything to be done for it now, when so many more prefixes may be read; of those who
    /// wait to be among them each takes a place.
    pub(in crate::schedule) fn may_go_on(&self, places: &mut usize, now: Duration) -> bool {
        match self.wait {
            Wait::Unasked | Wait::Over => true,
            Wait::Load { .. } => false,
            Wait::Place { until } if now >= until => true,
            Wait::Place { .. } => {
                let free = *places > 0;
                *places = places.saturating_sub(1);
                free
            }
        }
    }

    fn waits_for(&self, load: &Load) -> bool {
        matches!(self.wait, Wait::Load { seq, .. } if seq == load.seq)
    }

    /// When its patience ends: nobody waits longer than computing would take.
    fn until(&self) -> Option<Duration> {
        match self.wait {
            Wait::Place { until } | Wait::Load { until, .. } => Some(until),
            Wait::Unasked | Wait::Over => None,
        }
    }

    /// Waits for a load; `tokens` are those known and those that it is to have then.
    fn wait_for(&mut self, seq: SeqId, until: Duration, tokens: (usize, usize)) {
        (self.wait, self.tokens) = (Wait::Load { seq, until }, tokens);
    }

    /// Of `cached` tokens, those that were on disk.
    pub(in crate::schedule) fn loaded(&self, cached: usize) -> usize {
        cached.min(self.tokens.1).saturating_sub(self.tokens.0)
    }
}

/// How long to wait for `tokens` that could be computed meanwhile.
fn patience(cost: &CostModel, tokens: usize) -> Duration {
    cost.compute_time(tokens).map_or(PATIENCE, |compute| compute + GRACE)
}
