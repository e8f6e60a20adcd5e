//! Bringing stored blocks back before a waiting request is admitted.
//!
//! A load takes the blocks it needs like any sequence, has them filled in any order, and publishes them
//! in order. It ends when all are there, when one cannot be read, or when computing would have been done
//! by now; what it has published by then stays.

use std::time::Duration;

use kvik_cache::tier::{CostModel, IoFault, SlotId};
use kvik_cache::{
    Admission, BLOCK_POSITIONS, Cache, Identity, NamespaceId, Retain, SeqId, StopReason, Token, blocks_for,
};

use super::Disk;
use crate::batch::Runner;
use crate::schedule::Scheduler;
use crate::schedule::sequence::{Sequence, Sharing};
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
    pub(in crate::schedule) deadline: Duration,
}

/// What the disk did for a waiting request.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::schedule) struct Fetched {
    /// Whether the disk has been asked.
    pub(in crate::schedule) asked: bool,
    /// Tokens that were in RAM then, and those that were in RAM and on disk.
    pub(in crate::schedule) tokens: (usize, usize),
    /// Why the disk did not help, where it had something.
    pub(in crate::schedule) verdict: Option<StopReason>,
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
        let ended = |disk: &Disk| disk.loads.iter().position(|load| load.has_ended(now));
        while let Some(index) = self.disk.as_ref().and_then(ended) {
            self.end_load(index, now);
        }
    }

    /// Ends all loads with what they have by now. Whether there were any.
    pub(in crate::schedule) fn drop_loads(&mut self) -> bool {
        let count = self.disk.as_ref().map_or(0, |disk| disk.loads.len());
        let now = self.now();
        (0..count).for_each(|_| self.end_load(0, now));
        count > 0
    }

    fn end_load(&mut self, index: usize, now: Duration) {
        let Some(disk) = &mut self.disk else { return };
        let load = disk.loads.remove(index);
        let ready = load.ready();
        disk.cost.loaded(ready.max(1), now.saturating_sub(load.started));
        for &slot in &load.slots[load.issued..] {
            disk.tier.give_back(slot, None);
        }
        let (failed, late) = (load.failed, ready < load.slots.len());
        if late {
            // A pin is of a whole prompt; of a part nobody would ever take it back.
            self.cache.retain(load.seq, Retain::default());
        }
        self.cache.finish(load.seq, load.ready_tokens());
        let verdict = if failed { StopReason::LoadFailed } else { StopReason::RecomputeWasCheaper };
        let mine = self.waiting.iter_mut().filter(|waiting| late && waiting.fetch.tokens.1 > 0);
        let of = |sequence: &Sequence| sequence.sharing == Sharing::Namespace(load.namespace);
        for waiting in mine.filter(|waiting| of(&waiting.sequence)) {
            if common(&waiting.sequence, &load.tokens) > load.ready_tokens().len() {
                waiting.fetch.verdict = Some(verdict);
            }
        }
    }

    /// Whether a waiting sequence should wait on, because the disk has more of it than is known.
    pub(in crate::schedule) fn fetch(&mut self, index: usize, known: usize) -> bool {
        let sequence = &self.waiting[index].sequence;
        let (Some(disk), Sharing::Namespace(namespace)) = (&self.disk, sequence.sharing) else {
            return false;
        };
        if self.waiting[index].fetch.asked {
            return self.join_load(index, namespace, known, known + 1);
        }
        // Those who come while many prefixes are read are asked for when one is done.
        disk.loads.len() >= LOADS_MAX || self.ask_disk(index, namespace, known)
    }

    /// Waits for a load that will have at least `wanted` tokens of a sequence; whether there is one.
    fn join_load(&mut self, index: usize, namespace: NamespaceId, known: usize, wanted: usize) -> bool {
        let now = self.now();
        let sequence = &self.waiting[index].sequence;
        let Some(disk) = &mut self.disk else { return false };
        let reach = |load: &Load| common(sequence, &load.tokens).min(sequence.reuse_max());
        let mine = |load: &&mut Load| load.namespace == namespace && reach(load) >= wanted;
        let Some(load) = disk.loads.iter_mut().find(mine) else { return false };
        // Nobody waits longer than computing would take, whoever began the load and why.
        let reach = reach(load);
        load.deadline = load.deadline.min(now + patience(&disk.cost, reach.saturating_sub(known)));
        self.waiting[index].fetch.wait(known, reach);
        true
    }

    /// Looks a waiting sequence up on disk and begins to load; whether it waits for that.
    fn ask_disk(&mut self, index: usize, namespace: NamespaceId, known: usize) -> bool {
        let now = self.now();
        self.waiting[index].fetch.asked = true;
        let sequence = &self.waiting[index].sequence;
        let Some(disk) = &mut self.disk else { return false };
        let wanted = &sequence.tokens[..sequence.reuse_max()];
        let first = known / BLOCK_POSITIONS;
        let parent = self.roots[&namespace].identity_after(&wanted[..first * BLOCK_POSITIONS]);
        let (slots, verdict) = disk.look_up(&parent, &wanted[first * BLOCK_POSITIONS..], known, now);
        self.waiting[index].fetch.verdict = verdict;
        if slots.is_empty() {
            return false;
        }
        let sequence = &self.waiting[index].sequence;
        let mut tokens = sequence.tokens[..first * BLOCK_POSITIONS].to_vec();
        tokens.extend(slots.iter().flat_map(|&slot| disk.tier.record(slot).tokens.as_slice()));
        let reach = common(sequence, &tokens).min(sequence.reuse_max());
        let deadline = now + patience(&disk.cost, reach.saturating_sub(known));
        if self.join_load(index, namespace, known, reach) {
            return true;
        }
        self.waiting[index].fetch.wait(known, reach);
        self.start_load(namespace, tokens, slots, deadline)
    }

    /// Takes blocks for a prefix and begins to read it; changes nothing when there are none to be had.
    pub(super) fn start_load(
        &mut self,
        namespace: NamespaceId,
        tokens: Vec<Token>,
        slots: Vec<SlotId>,
        deadline: Duration,
    ) -> bool {
        let (seq, now) = (self.new_seq(), self.now());
        let retain = self.disk.as_ref().zip(slots.last()).map(|(disk, &end)| disk.retain(end, now));
        let first = blocks_for(tokens.len()) - slots.len();
        let stats = self.cache.stats();
        if slots.len() + self.running.len() > stats.free + stats.evictable {
            return false;
        }
        let admission = Admission {
            seq,
            namespace,
            prompt: &tokens,
            reuse_max: first * BLOCK_POSITIONS,
            positions: tokens.len(),
            retain: retain.unwrap_or_default(),
        };
        let Ok(admitted) = self.cache.admit(admission) else { return false };
        let Some(disk) = &mut self.disk else { return false };
        if admitted.reused != first * BLOCK_POSITIONS {
            self.cache.abandon(seq);
            return false;
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
        });
        true
    }
}

impl Disk {
    /// The slots worth loading for the head of `rest`, of which `known` tokens counted from the prompt's
    /// start are known; and, when that is none though something is there, why.
    fn look_up(
        &mut self,
        parent: &Identity,
        rest: &[Token],
        known: usize,
        now: Duration,
    ) -> (Vec<SlotId>, Option<StopReason>) {
        let mut found = self.tier.find(parent, rest, self.wall_s(now));
        let known = known % BLOCK_POSITIONS;
        // A last block of which little is wanted may not be worth its reading.
        let head = found.tokens % BLOCK_POSITIONS;
        let costs = self.cost.load_time(1).zip(self.cost.compute_time(head));
        if head > 0 && found.slots.len() > 1 && costs.is_some_and(|(load, compute)| load > compute) {
            found.slots.pop();
            found.tokens -= head;
        }
        if found.tokens <= known {
            return (Vec::new(), found.expired.then_some(StopReason::Expired));
        }
        if !self.cost.decide(found.slots.len(), found.tokens - known) {
            return (Vec::new(), Some(StopReason::RecomputeWasCheaper));
        }
        (found.slots, None)
    }

    /// Begins to read a prefix.
    fn begin(&mut self, load: Load) {
        self.tier.lend(&load.slots);
        self.next_ticket += load.slots.len() as u64;
        self.loads.push(load);
        self.issue(self.loads.len() - 1);
    }

    /// How long the prefix that ends in a slot is to be kept.
    fn retain(&self, end: SlotId, now: Duration) -> Retain {
        let record = self.tier.record(end);
        let left_s = record.expires_s.saturating_sub(self.wall_s(now));
        let ttl = (record.expires_s != 0).then(|| Duration::from_secs(left_s));
        Retain { ttl, pin: record.pinned, ..Retain::default() }
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
                    Err(IoFault::Corrupt) => self.tier.give_back(slot, Some(false)),
                    Err(_) => self.tier.give_back(slot, None),
                    Ok(_) => self.tier.give_back(slot, Some(true)),
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
    /// Waits for a load that will have `reach` tokens, of which `known` are known.
    fn wait(&mut self, known: usize, reach: usize) {
        let first = if self.tokens.1 == 0 { known } else { self.tokens.0 };
        self.tokens = (first, self.tokens.1.max(reach));
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

fn common(sequence: &Sequence, tokens: &[Token]) -> usize {
    sequence.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count()
}
