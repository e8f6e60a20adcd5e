//! Blocks for sequences that run: growing, forking, and preemption when there are none left.

use kvik_cache::SeqId;

use super::sequence::{Sequence, Sharing, insert_by_age};
use super::{Fork, Scheduler};
use crate::api::RequestError;
use crate::batch::Runner;

/// Whether the blocks sufficed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Enough,
    Short,
}

impl Scheduler {
    /// Starts the choices that are copies of running sequences. Those that find no place, no
    /// blocks or no parent queue up and take the prompt from the cache.
    pub(super) fn start_forks(&mut self, runner: &mut dyn Runner) {
        for Fork { parent, child } in std::mem::take(&mut self.forks) {
            if let Some(child) = self.start_fork(parent, child, runner) {
                self.requeue(child);
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
        let full = self.running.len() >= self.config.parallel_max;
        let parent = self.running.iter().find(|running| running.id == parent && !full);
        let Some(parent) = parent else { return Some(child) };
        let (parent, stored) = (parent.id, parent.stored);
        let id = self.new_seq();
        let Ok(copy) = self.cache.fork(parent, id, &child.tokens[..stored]) else { return Some(child) };
        if let Some(copy) = copy {
            runner.copy_head(copy.from, copy.to, copy.positions);
        }
        child.id = id;
        child.stored = stored;
        child.furthest = stored;
        insert_by_age(&mut self.running, child);
        None
    }

    /// Gives every running sequence blocks for all its tokens, the oldest first. When there are
    /// none, the youngest is preempted; so the oldest always goes on, and everybody ends.
    pub(super) fn make_room(&mut self) -> Room {
        let mut room = Room::Enough;
        let mut index = 0;
        while let Some(sequence) = self.running.get(index) {
            let job = sequence.job;
            match self.cache.reserve(sequence.id, sequence.tokens.len()) {
                Ok(()) => index += 1,
                Err(_) if self.let_disk_go() => {}
                Err(none) if self.running.len() == 1 => {
                    let (needed_blocks, budget_blocks) = (none.needed, self.cache_config.blocks);
                    self.fail(job, RequestError::OverBudget { needed_blocks, budget_blocks });
                }
                Err(_) => {
                    self.preempt_youngest();
                    room = Room::Short;
                }
            }
        }
        room
    }

    /// Lets go of blocks that are held for the disk, so that what computes has room: first those that are
    /// only written, then, when nobody else could give way, those that are read. Whether there were any.
    pub(super) fn let_disk_go(&mut self) -> bool {
        self.drop_rests() || (self.running.len() <= 1 && self.drop_loads())
    }

    fn preempt_youngest(&mut self) {
        let Some(mut sequence) = self.running.pop() else { return };
        self.counters.preemptions += 1;
        self.release(&sequence);
        sequence.stored = 0;
        self.requeue(sequence);
    }

    /// Ends a sequence in the cache. What it computed stays there, unless it is private.
    pub(super) fn release(&mut self, sequence: &Sequence) {
        match sequence.sharing {
            Sharing::Namespace(_) => self.cache.finish(sequence.id, sequence.stored_tokens()),
            Sharing::Private(_) => self.cache.abandon(sequence.id),
        }
    }
}
