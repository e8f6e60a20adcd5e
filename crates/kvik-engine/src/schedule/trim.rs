//! Memory that the system wants back: cached prefixes are evicted, and free blocks keep no memory.

use super::Scheduler;
use crate::model::batch::Runner;

impl Scheduler {
    /// Evicts, the least worth first, until the prefix tree holds at most `blocks`, or only what is pinned or in use; then
    /// gives the memory of all free blocks back to the system. What the disk has not taken yet is lost where it stands in
    /// the way: who wants that to be kept flushes first. Prefixes that were to be brought back from disk before anybody
    /// asks stay there. How many blocks were evicted.
    pub(crate) fn trim(&mut self, blocks: usize, runner: &mut dyn Runner) -> usize {
        self.disk.drop_candidates();
        self.end_unawaited_loads();
        self.drop_idle_job();
        let before = self.ram.cache.stats().free;
        self.ram.cache.shrink(blocks);
        if self.ram.cache.stats().shared > blocks && self.disk.drop_unfinished(&mut self.ram) {
            self.ram.cache.shrink(blocks);
        }
        self.ram.settle(runner);
        self.disk.release_buffers();
        let free = self.ram.cache.free_blocks().to_vec();
        free.into_iter().for_each(|block| runner.release_block(block, true));
        self.ram.cache.stats().free - before
    }

    /// Blocks that are computed and not on disk yet, though they are meant to be. None where there is no disk.
    pub(crate) fn unwritten(&self) -> usize {
        self.disk_stats().map_or(0, |disk| disk.writing)
    }
}
