//! Blocks for running sequences: growth, forks, and preemption when there are none left.

use kvik_cache::{BLOCK_POSITIONS, BlockId, NoSpace, SeqId};
use kvik_model::batch::{Retainer, Runner};

use super::Scheduler;
use super::ram::PrivateCopy;
use super::running::Fork;
use super::sequence::{Sequence, Sharing};
use crate::retain::{Held, Ragged};

/// Adds `blocks` to `storage`, which lacked them for its first `tokens` tokens.
pub(super) fn extend(storage: &mut Ragged, blocks: &[BlockId], tokens: usize, retainer: &mut dyn Retainer) {
    blocks.iter().for_each(|&block| storage.add_block(retainer.layout(), block));
    if storage.is_frozen() {
        thaw(storage, retainer);
    }
    storage.reserve(retainer.layout(), tokens);
}

/// Copies the shared parts of the last tiles of all heads, so that the sequence may append to them.
fn thaw(storage: &mut Ragged, retainer: &mut dyn Retainer) {
    let copies = storage.copies(retainer.layout());
    Held { blocks: &[], storage: Some(storage), tokens: 0 }.with_kv(|from| {
        for (layer, copies) in copies.iter().enumerate() {
            let positions: Vec<&[u32]> = copies.positions.iter().map(Vec::as_slice).collect();
            let to: Vec<&[u32]> = copies.to.iter().map(Vec::as_slice).collect();
            retainer.move_positions(layer, from, &positions, &to);
        }
    });
    storage.thaw(copies);
}

/// The result of growing the running sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// All have the blocks that they need.
    Complete,
    /// Some foreground sequences were preempted.
    Preempted,
}

impl Scheduler {
    /// Starts the choices that are forks of running sequences. A choice without room or without a parent is queued and
    /// takes the prompt from the cache.
    pub(super) fn start_forks(&mut self, runner: &mut dyn Runner) {
        for Fork { parent, child } in self.running.take_forks() {
            if let Some(child) = self.start_fork(parent, child, runner) {
                self.queue.insert(child);
            }
        }
    }

    /// Returns the sequence if it could not start.
    fn start_fork(
        &mut self,
        parent: SeqId,
        mut child: Sequence,
        runner: &mut dyn Runner,
    ) -> Option<Sequence> {
        // A choice with a retention policy computes the prompt itself: its parent's observations belong to the parent.
        if child.forgetting.is_some() {
            return Some(child);
        }
        let (id, positions) = loop {
            match self.copy_parent(parent, &child, runner) {
                Some(copied) => break copied,
                None if child.is_background() || self.running.find(parent).is_none() => return Some(child),
                None if self.make_way() => {}
                None => return Some(child),
            }
        };
        child.id = id;
        child.stored = positions;
        child.furthest = positions;
        self.running.insert(child);
        None
    }

    /// Copies the stored positions of `parent` to a new sequence if there is room; returns its id and its positions.
    fn copy_parent(
        &mut self,
        parent: SeqId,
        child: &Sequence,
        runner: &mut dyn Runner,
    ) -> Option<(SeqId, usize)> {
        let running = self.running.len();
        let parent = self.running.find(parent).filter(|_| self.has_place(child))?;
        let (parent, positions) = (parent.id, parent.stored);
        let id = self.ram.new_seq();
        let started = match child.sharing {
            Sharing::Namespace(_) => self.ram.fork(parent, id, &child.tokens[..positions], runner),
            Sharing::Private(namespace) => {
                self.ram.copy(PrivateCopy { parent, id, namespace, positions }, running, runner)
            }
        };
        started.then_some((id, positions))
    }

    /// Gives every running sequence blocks for all the tokens it is to store, the oldest first. If there are none, the
    /// youngest is preempted; so the oldest always makes progress, and every sequence ends. While foreground requests
    /// exist, the background is preempted before anything else.
    pub(super) fn grow(&mut self, runner: &mut dyn Runner) -> Growth {
        let mut growth = Growth::Complete;
        let mut index = 0;
        while let Some(sequence) = self.running.get(index) {
            let (job, tokens) = (sequence.job, sequence.reach());
            match self.reserve(index, runner) {
                Ok(()) => index += 1,
                Err(_) if self.make_way() => {}
                Err(_) if self.release_disk_blocks() => {}
                Err(_) if self.running.len() == 1 => self.fail(job, self.ram.over_budget(tokens)),
                Err(_) => {
                    self.preempt_youngest();
                    growth = Growth::Preempted;
                }
            }
        }
        growth
    }

    /// Allocates blocks for everything that the running sequence at `index` is to store, or none.
    fn reserve(&mut self, index: usize, runner: &mut dyn Runner) -> Result<(), NoSpace> {
        let (sequence, cache) = (&mut self.running[index], &mut self.ram.cache);
        let (id, tokens) = (sequence.id, sequence.reach());
        let forgetting = sequence.forgetting.as_mut();
        let Some(storage) = forgetting.and_then(|forgetting| forgetting.storage.as_mut()) else {
            return cache.reserve(id, tokens + sequence.repeat_rows());
        };
        if storage.is_frozen() && tokens == sequence.stored {
            return Ok(());
        }
        let retainer = runner.retainer().expect("it has forgotten something");
        let before = cache.table(id).len();
        let missing = storage.blocks_missing(retainer.layout(), tokens);
        cache.reserve(id, (before + missing) * BLOCK_POSITIONS)?;
        extend(storage, &cache.table(id)[before..], tokens, retainer);
        Ok(())
    }

    /// Takes room from the background if a foreground request exists: preempts its youngest sequence, or ends the loads
    /// for it. Returns whether there was any.
    pub(super) fn make_way(&mut self) -> bool {
        if self.running.foreground() == 0 && self.queue.oldest_foreground().is_none() {
            return false;
        }
        match self.running.pop_background() {
            Some(sequence) => {
                self.preempt(sequence);
                true
            }
            None => self.end_background_loads(),
        }
    }

    /// Preempts the youngest sequence, which restarts when there is room.
    pub(super) fn preempt_youngest(&mut self) {
        if let Some(sequence) = self.running.pop_youngest() {
            self.preempt(sequence);
        }
    }

    /// Releases the blocks of a sequence that no longer runs, and queues it; it restarts when there is room.
    pub(super) fn preempt(&mut self, mut sequence: Sequence) {
        self.results.counters.preemptions += 1;
        sequence.release(&mut self.ram.cache);
        sequence.restart();
        self.queue.insert(sequence);
    }
}
