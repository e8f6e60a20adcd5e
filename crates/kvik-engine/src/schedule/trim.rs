//! Returning memory to the system: evicts cached prefixes and releases the memory of free blocks.

use kvik_model::batch::Runner;

use super::Scheduler;
use super::prefixes::Prefixes;
use super::tiers::end_unawaited_loads;

impl Scheduler {
    /// Evicts prefixes in the order of the eviction policy until the prefix tree holds at most `blocks`, or only what
    /// is pinned or in use; then returns the memory of all free blocks to the system. Blocks that the disk has not
    /// taken yet are lost if they are in the way: a caller that wants them stored flushes first. Pending prefetches are
    /// cancelled. Returns how many blocks were evicted.
    pub(crate) fn trim(&mut self, blocks: usize, runner: &mut dyn Runner) -> usize {
        self.prefixes.disk.drop_candidates();
        end_unawaited_loads(&mut self.jobs, &mut self.prefixes);
        let Prefixes { ram, disk, .. } = &mut self.prefixes;
        self.idle.drop_job(&mut self.jobs, &mut ram.cache);
        let before = ram.cache.stats().free;
        ram.cache.shrink(blocks);
        if ram.cache.stats().shared > blocks && disk.drop_unfinished(ram) {
            ram.cache.shrink(blocks);
        }
        ram.settle(runner);
        disk.release_buffers();
        let free = ram.cache.free_blocks().to_vec();
        free.into_iter().for_each(|block| runner.release_block(block, true));
        ram.cache.stats().free - before
    }
}
