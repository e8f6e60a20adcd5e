//! Blocks for sequences that run: growing, forking, and preemption when there are none left.

use kvik_cache::SeqId;

use super::Scheduler;
use super::ram::PrivateCopy;
use super::running::Fork;
use super::sequence::{Sequence, Sharing};
use crate::model::batch::Runner;

/// What became of the running sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// All have the blocks that they need.
    Complete,
    /// Some were preempted.
    Preempted,
}

impl Scheduler {
    /// Starts the choices that are copies of running sequences. Those that find no room or no parent queue up
    /// and take the prompt from the cache.
    pub(super) fn start_forks(&mut self, runner: &mut dyn Runner) {
        for Fork { parent, child } in self.running.take_forks() {
            if let Some(child) = self.start_fork(parent, child, runner) {
                self.queue.requeue(child);
            }
        }
    }

    /// Gives the sequence back when it could not start.
    fn start_fork(
        &mut self,
        parent: SeqId,
        mut child: Sequence,
        runner: &mut dyn Runner,
    ) -> Option<Sequence> {
        let running = self.running.len();
        let parent = self.running.find(parent).filter(|_| !self.is_full());
        let Some(parent) = parent else { return Some(child) };
        let (parent, positions) = (parent.id, parent.stored);
        let id = self.ram.new_seq();
        let started = match child.sharing {
            Sharing::Namespace(_) => self.ram.fork(parent, id, &child.tokens[..positions], runner),
            Sharing::Private(namespace) => {
                self.ram.copy(PrivateCopy { parent, id, namespace, positions }, running, runner)
            }
        };
        if !started {
            return Some(child);
        }
        child.id = id;
        child.stored = positions;
        child.furthest = positions;
        self.running.insert(child);
        None
    }

    /// Gives every running sequence blocks for all its tokens, the oldest first. When there are
    /// none, the youngest is preempted; so the oldest always goes on, and everybody ends.
    pub(super) fn grow(&mut self) -> Growth {
        let mut growth = Growth::Complete;
        let mut index = 0;
        while let Some(sequence) = self.running.get(index) {
            let (job, tokens) = (sequence.job, sequence.tokens.len());
            match self.ram.cache.reserve(sequence.id, tokens) {
                Ok(()) => index += 1,
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

    fn preempt_youngest(&mut self) {
        let Some(mut sequence) = self.running.pop_youngest() else { return };
        self.results.counters.preemptions += 1;
        sequence.release(&mut self.ram.cache);
        sequence.stored = 0;
        self.queue.requeue(sequence);
    }
}
