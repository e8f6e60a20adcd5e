//! Returning memory to the system: evicts cached prefixes and releases the memory of free blocks.

use kvik_model::batch::Runner;

use super::Scheduler;

impl Scheduler {
    /// Evicts prefixes in the order of the eviction policy until the prefix tree holds at most `blocks`, or only what
    /// is pinned or in use; then returns the memory of all free blocks to the system. Blocks that the disk has not
    /// taken yet are lost if they are in the way: a caller that wants them stored flushes first. Pending prefetches are
    /// cancelled. Returns how many blocks were evicted.
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

    /// Number of computed blocks that are to be written to disk and are not there yet. 0 without a disk.
    pub(crate) fn unwritten(&self) -> usize {
        self.disk_stats().map_or(0, |disk| disk.writing)
    }
}
