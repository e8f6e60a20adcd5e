//! Blocks for sequences that run: growing, forking, and preemption when there are none left.

use kvik_cache::{BLOCK_POSITIONS, BlockId, NamespaceId, SeqId, Token, blocks_for};

use super::Scheduler;
use super::running::Fork;
use super::sequence::{Sequence, Sharing};
use crate::model::batch::Runner;

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
        let parent = self.running.find(parent).filter(|_| !self.is_full());
        let Some(parent) = parent else { return Some(child) };
        let (parent, stored) = (parent.id, parent.stored);
        let id = self.new_seq();
        let started = match child.sharing {
            Sharing::Namespace(_) => self.fork_shared(parent, id, &child.tokens[..stored], runner),
            Sharing::Private(namespace) => self.fork_private(parent, id, namespace, stored, runner),
        };
        if !started {
            return Some(child);
        }
        child.id = id;
        child.stored = stored;
        child.furthest = stored;
        self.running.insert(child);
        None
    }

    /// Shares the whole blocks of `parent`, which are in the tree from now on, and copies the last one.
    fn fork_shared(&mut self, parent: SeqId, id: SeqId, tokens: &[Token], runner: &mut dyn Runner) -> bool {
        let Ok(copy) = self.cache.fork(parent, id, tokens) else { return false };
        if let Some(copy) = copy {
            runner.copy_partial(copy.from, copy.to, copy.positions);
        }
        true
    }

    /// Copies all blocks of `parent`: to be shared they would have to be in the tree, where others look.
    fn fork_private(
        &mut self,
        parent: SeqId,
        id: SeqId,
        namespace: NamespaceId,
        positions: usize,
        runner: &mut dyn Runner,
    ) -> bool {
        let stats = self.cache.stats();
        if blocks_for(positions) + self.running.len() > stats.free + stats.evictable {
            return false;
        }
        self.cache.lease(id, namespace, &[]);
        if self.cache.reserve(id, positions).is_err() {
            self.cache.abandon(id);
            return false;
        }
        let copies: Vec<(BlockId, BlockId)> =
            self.cache.table(parent).iter().copied().zip(self.cache.table(id).iter().copied()).collect();
        for ((from, to), start) in copies.into_iter().zip((0..positions).step_by(BLOCK_POSITIONS)) {
            runner.copy_partial(from, to, (positions - start).min(BLOCK_POSITIONS));
        }
        true
    }

    /// Gives every running sequence blocks for all its tokens, the oldest first. When there are
    /// none, the youngest is preempted; so the oldest always goes on, and everybody ends.
    pub(super) fn make_room(&mut self) -> Room {
        let mut room = Room::Enough;
        let mut index = 0;
        while let Some(sequence) = self.running.get(index) {
            let (job, tokens) = (sequence.job, sequence.tokens.len());
            match self.cache.reserve(sequence.id, sequence.tokens.len()) {
                Ok(()) => index += 1,
                Err(_) if self.let_disk_go() => {}
                Err(_) if self.running.len() == 1 => self.fail(job, self.over_budget(tokens)),
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
        let Some(mut sequence) = self.running.pop_youngest() else { return };
        self.results.counters.preemptions += 1;
        self.release(&sequence);
        sequence.stored = 0;
        self.queue.requeue(sequence);
    }

    /// Ends a sequence in the cache. What it computed stays there, unless it is private.
    pub(super) fn release(&mut self, sequence: &Sequence) {
        match sequence.sharing {
            Sharing::Namespace(_) => self.cache.finish(sequence.id, sequence.stored_tokens()),
            Sharing::Private(_) => self.cache.abandon(sequence.id),
        }
    }
}
