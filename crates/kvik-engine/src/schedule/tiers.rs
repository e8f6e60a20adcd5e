//! The disk tier in a step, for running and for waiting sequences.

use kvik_cache::{NamespaceId, SeqId, StateId};
use kvik_model::batch::Runner;

use super::Scheduler;
use super::disk::{Disk, DiskSetup, LoadContext, Offered, SpillContext, StateBehind, Stored};
use super::namespaces::Sharers;
use super::queue::Queue;
use super::reuse::known;
use super::sequence::{Sequence, Sharing};
use super::tenants::TenantPart;
use crate::stats::DraftSource;

/// Number of waiting prompts that are looked up in the shared store before their turn.
const LOOK_AHEAD: usize = 32;
/// A state counts as that of the prompt's end if it is at most this many tokens before it.
const PROMPT_END: usize = 32;

impl Scheduler {
    /// Attaches the disk, and makes prefetch candidates of prefixes without a tenant; those of tenants follow when the
    /// tenants are registered.
    pub fn attach(&mut self, mut setup: DiskSetup) {
        if self.config.drafts_from(DraftSource::Tree) {
            setup.tier.index_followers();
        }
        self.disk = Disk::new(setup, self.config.auxiliary);
        let namespace = self.tenants.namespaces.shared(Sharers::plain([0; 16]), &mut self.ram.cache);
        self.disk.add_candidates(&[namespace], &self.tenants.namespaces);
    }

    /// Sets how tenants share the model, the cache and the disk; other tenants have weight 1. Their quotas apply from
    /// their next request; prefixes they used before the start are prefetched.
    pub fn set_tenants(&mut self, parts: &[TenantPart]) {
        self.turns.set_weights(parts.iter().map(|part| (part.tenant, part.weight)));
        self.tenants.set_parts(parts);
        let shared = |part: &TenantPart| {
            self.tenants.namespaces.shared(Sharers::plain(part.salt), &mut self.ram.cache)
        };
        let namespaces: Vec<NamespaceId> = parts.iter().map(shared).collect();
        // The owners must be registered before their prefixes come back: their pins count.
        for (part, &namespace) in parts.iter().zip(&namespaces) {
            self.tenants.register(namespace, (part.tenant, part.salt), &mut self.ram, &mut self.disk);
        }
        self.disk.add_candidates(&namespaces, &self.tenants.namespaces);
    }

    /// The disk, the queue, and the context that a load needs.
    pub(super) fn loading(&mut self) -> (&mut Disk, &mut Queue, LoadContext<'_>) {
        let (running, now) = (self.running.len(), self.now());
        let (ram, namespaces) = (&mut self.ram, &self.tenants.namespaces);
        (&mut self.disk, &mut self.queue, LoadContext { ram, namespaces, running, now })
    }

    /// Processes completed reads and writes, keeps the disk busy, and ends the waits that are over.
    pub(super) fn collect_loads(&mut self, runner: &mut dyn Runner) {
        let (disk, queue, context) = self.loading();
        let now = context.now;
        context.ram.settle(runner);
        disk.collect(&mut context.ram.cache, runner);
        queue.fetches_mut().for_each(|fetch| disk.end_wait(fetch, now));
        disk.forget_answers();
        let is_awaited = |load| queue.fetches().any(|fetch| fetch.waits_for(load));
        let ended = disk.ended_loads(is_awaited, now);
        self.end_loads(&ended);
    }

    /// Looks up the prompts of waiting requests in the shared store, also of those whose turn is far off.
    pub(super) fn look_ahead(&mut self) {
        if !self.disk.has_remote() {
            return;
        }
        for index in 0..self.queue.foreground().len().min(LOOK_AHEAD) {
            let sequence = &self.queue[index].sequence;
            let Sharing::Namespace(namespace) = sequence.sharing else { continue };
            if sequence.chooses_part() || !self.queue[index].fetch.is_unasked() {
                continue;
            }
            let known = known(sequence, &self.ram.cache, &self.running).tokens;
            let (disk, queue, context) = self.loading();
            let waiting = &mut queue[index];
            let wanted = waiting.sequence.wanted(namespace, known);
            disk.look_up_remote(&mut waiting.fetch, wanted, &context);
        }
    }

    /// Offers pending copies to other nodes, unless a foreground request waits.
    fn share_some(&mut self, runner: &dyn Runner) {
        let (now, is_busy) = (self.now(), self.queue.oldest_foreground().is_some());
        let (cache, namespaces) = (&self.ram.cache, &self.tenants.namespaces);
        let ended = self.disk.share_some(is_busy, SpillContext { cache, namespaces, runner, now });
        ended.into_iter().for_each(|seq| self.ram.cache.abandon(seq));
    }

    /// Offers the reused prefix of a sequence that begins: other nodes may want it.
    pub(super) fn share_reused(&mut self, id: SeqId, reused: usize) {
        let now = self.now();
        let sequence = self.running.find(id).filter(|_| reused > 0 && self.disk.has_remote());
        let Some(stored) = sequence.and_then(|sequence| sequence.stored_blocks(false)) else { return };
        let Stored { namespace, tokens, lifetime, .. } = stored;
        let tokens = &tokens[..tokens.len().min(reused)];
        let (ram, namespaces) = (&mut self.ram, &self.tenants.namespaces);
        let mut context = LoadContext { ram, namespaces, running: self.running.len(), now };
        self.disk.share(&Offered { namespace, tokens, ttl: lifetime.ttl, is_reused: true }, &mut context);
    }

    /// Offers the blocks of a sequence that has ended to other nodes: its prompt for the same request, and all of it
    /// for a continuation.
    fn share_ended(&mut self, sequence: &Sequence) {
        let Some(stored) = sequence.stored_blocks(false).filter(|_| self.disk.shares_all()) else { return };
        let Stored { namespace, tokens, prompt, lifetime, .. } = stored;
        let (disk, _, mut context) = self.loading();
        for end in [prompt.len().min(tokens.len()), tokens.len()] {
            let tokens = &tokens[..end];
            let offered = Offered { namespace, tokens, ttl: lifetime.ttl, is_reused: false };
            disk.share(&offered, &mut context);
        }
    }

    /// Ends loads with what has arrived by now.
    fn end_loads(&mut self, loads: &[SeqId]) {
        let (disk, queue, mut context) = self.loading();
        for &load in loads {
            if let Some(ended) = disk.end_load(load, &mut context) {
                queue.fetches_mut().for_each(|fetch| fetch.end_with(&ended));
            }
        }
    }

    /// Ends all loads with what has arrived by now. Returns whether there were any.
    pub(super) fn end_all_loads(&mut self) -> bool {
        let loads = self.disk.loads();
        self.end_loads(&loads);
        !loads.is_empty()
    }

    /// Ends the loads that only the background waits for. Returns whether there were any.
    pub(super) fn end_background_loads(&mut self) -> bool {
        let mut loads = self.disk.loads();
        loads.retain(|&load| self.queue.is_background_load(load));
        self.end_loads(&loads);
        !loads.is_empty()
    }

    /// Ends the loads that no request waits for.
    pub(super) fn end_unawaited_loads(&mut self) {
        let mut loads = self.disk.loads();
        loads.retain(|&load| !self.queue.fetches().any(|fetch| fetch.waits_for(load)));
        self.end_loads(&loads);
    }

    /// Releases blocks that are held for the disk, to make room for running sequences: first those that are only
    /// written, then, if at most one sequence runs, those that are read. Returns whether there were any.
    pub(super) fn release_disk_blocks(&mut self) -> bool {
        let released =
            self.disk.drop_unfinished(&mut self.ram) || (self.running.len() <= 1 && self.end_all_loads());
        if released {
            // These blocks may have been the last use of a prompt that is no longer public.
            self.drop_retired();
        }
        released
    }

    /// Whether the sequence at `index` of the queue, of which `known` tokens are in RAM, waits for the disk.
    pub(super) fn fetch(&mut self, index: usize, known: usize) -> bool {
        let (disk, queue, mut context) = self.loading();
        let waiting = &mut queue[index];
        let Sharing::Namespace(namespace) = waiting.sequence.sharing else { return false };
        let wanted = waiting.sequence.wanted(namespace, known);
        disk.fetch(&mut waiting.fetch, wanted, &mut context)
    }

    /// Starts to load what was hot before the start, if no request waits.
    pub(super) fn prefetch(&mut self) {
        if self.queue.is_empty() {
            let (disk, _, mut context) = self.loading();
            disk.prefetch(&mut context);
        }
    }

    /// Spills what the running sequences have completed, and everything of those that end; then drops expired blocks.
    pub(super) fn spill(&mut self, runner: &dyn Runner) {
        let (now, namespaces) = (self.now(), &self.tenants.namespaces);
        self.disk.spill_unfinished(&mut self.ram, namespaces, runner, now);
        let context = SpillContext { cache: &self.ram.cache, namespaces, runner, now };
        for sequence in self.running.iter_mut() {
            let (ended, mut spilled) = (sequence.ended.is_some(), sequence.spilled);
            if let Some(stored) = sequence.stored_blocks(ended) {
                self.disk.spill(&mut spilled, &stored, ended, context);
                sequence.spilled = spilled;
            }
        }
        self.disk.sweep(now);
        self.share_some(runner);
    }

    /// Spills states: the final ones of ending sequences, and of the saved ones those at the end of prompts. Other
    /// saved states are for forks that may never come; they follow when [one is used](Scheduler::spill_used_state).
    pub(super) fn spill_states(&mut self, runner: &dyn Runner) {
        let kept = self.ram.cache.take_kept_states();
        let now = self.now();
        self.disk.write_states(now);
        let ended = self.running.iter().filter(|sequence| sequence.ended.is_some());
        let ended = ended.filter_map(|sequence| {
            let state = self.ram.cache.state(sequence.id)?;
            Some((sequence.id, sequence.stored, state))
        });
        let states: Vec<(SeqId, usize, StateId)> = kept.into_iter().chain(ended).collect();
        for (id, positions, state) in states {
            let is_late = |sequence: &Sequence| positions + PROMPT_END >= sequence.prompt_len;
            if self.running.find(id).is_some_and(is_late) {
                self.spill_state(id, positions, state, runner);
            }
        }
    }

    /// Spills the state with which a sequence continues after `positions`, before it moves on: a prefix that was reused
    /// may be reused after a restart.
    pub(super) fn spill_used_state(&mut self, id: SeqId, positions: usize, runner: &dyn Runner) {
        if let Some(state) = self.ram.cache.state(id).filter(|_| positions > 0) {
            self.spill_state(id, positions, state, runner);
        }
    }

    /// Spills the state of a running sequence after `positions`, if the disk takes one now.
    fn spill_state(&mut self, id: SeqId, positions: usize, state: StateId, runner: &dyn Runner) {
        let Some(sequence) = self.running.find(id).filter(|_| self.disk.takes_states()) else { return };
        let Some(namespace) = sequence.publishes_in() else { return };
        let read = || {
            let mut bytes = vec![0; runner.state_bytes()];
            runner.read_state(state, &mut bytes);
            bytes
        };
        let (tokens, lifetime) = (&sequence.tokens[..positions], sequence.lifetime);
        let behind = StateBehind { namespace, tokens, lifetime };
        self.disk.spill_state(&behind, read, &self.tenants.namespaces, self.now());
    }

    /// Frees the blocks of a sequence that has ended; the disk holds those that it has not taken yet.
    pub(super) fn release_ended(&mut self, sequence: &Sequence) {
        sequence.release(&mut self.ram.cache);
        self.share_ended(sequence);
        let now = self.now();
        if let Some(stored) = sequence.stored_blocks(true) {
            self.disk.spill_later(sequence.spilled, &stored, &mut self.ram, now);
        }
    }
}
