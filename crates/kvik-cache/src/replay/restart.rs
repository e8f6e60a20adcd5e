//! Replays a trace over RAM and a disk, with restarts: what each write policy writes, and what is found again.
//!
//! At a restart RAM is empty, and the disk is as it was written. The disk has room for everything; a block that is read
//! from it is in RAM again. A graceful end writes what the policy wants then, a kill nothing.

use std::time::Duration;

use rustc_hash::FxHashSet;

use super::{Capacity, Replay, TraceRequest, tokens_of};
use crate::cache::CacheError;
use crate::evict::Policy;
use crate::ids::{BLOCK_POSITIONS, Token};
use crate::tier::{End, Ends, WritePolicy};

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It writes what the policy wants for the next start.
    Graceful,
    /// It writes nothing more.
    Kill,
}

/// Configuration of a replay with restarts.
#[derive(Debug, Clone, Copy)]
pub struct RestartConfig {
    /// Blocks of RAM between requests.
    pub capacity: Capacity,
    /// The eviction policy of RAM.
    pub evict: Policy,
    /// Write policy of the disk.
    pub writes: WritePolicy,
    /// Number of restarts, at equal intervals of requests; at least one.
    pub restarts: usize,
    /// How the process ends before each of them.
    pub stop: Stop,
}

/// The result of a replay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestartReport {
    /// Blocks computed.
    pub computed: usize,
    /// Blocks written to the disk.
    pub written: usize,
    /// Blocks of prompts after the first restart.
    pub blocks: usize,
    /// Number of them found in RAM or on the disk.
    pub hits: usize,
    /// Number of them found only on the disk.
    pub from_disk: usize,
}

/// Replays requests, each with its time, in order.
///
/// # Errors
/// If a request is longer than a cache can be.
pub fn replay_restarts(
    requests: &[(Duration, TraceRequest)],
    config: RestartConfig,
) -> Result<RestartReport, CacheError> {
    let life = requests.len().div_ceil(config.restarts.max(1) + 1).max(1);
    let mut disk = Disk::default();
    let mut report = RestartReport::default();
    for (number, requests) in requests.chunks(life).enumerate() {
        let mut process = Process::start(requests, config, &mut disk)?;
        let found = process.run(requests);
        if number > 0 {
            report.blocks += found.blocks;
            report.hits += found.hits;
            report.from_disk += found.from_disk;
        }
        report.computed += found.blocks - found.hits;
    }
    report.written = disk.blocks.len();
    Ok(report)
}

/// The blocks of the disk, which outlive a process.
#[derive(Default)]
struct Disk {
    blocks: FxHashSet<u64>,
}

impl Disk {
    /// Leading blocks that it holds.
    fn holds(&self, ids: &[u64]) -> usize {
        ids.iter().take_while(|id| self.blocks.contains(id)).count()
    }

    fn write(&mut self, ids: &[u64]) {
        self.blocks.extend(ids);
    }
}

/// A process from its start to its end.
struct Process<'a> {
    ram: Replay<fn() -> Duration>,
    disk: &'a mut Disk,
    ends: Ends<TraceRequest>,
    config: RestartConfig,
}

impl<'a> Process<'a> {
    fn start(
        requests: &[(Duration, TraceRequest)],
        config: RestartConfig,
        disk: &'a mut Disk,
    ) -> Result<Process<'a>, CacheError> {
        let prompts: Vec<TraceRequest> = requests.iter().map(|(_, ids)| ids.clone()).collect();
        let clock: fn() -> Duration = || Duration::ZERO;
        let ram = Replay::new(&prompts, config.capacity, config.evict, clock)?;
        Ok(Process { ram, disk, ends: Ends::default(), config })
    }

    fn run(&mut self, requests: &[(Duration, TraceRequest)]) -> RestartReport {
        let mut report = RestartReport::default();
        for (at, ids) in requests {
            let (ram, disk) = (self.in_ram(ids), self.disk.holds(ids));
            let hits = ram.max(disk);
            report.blocks += ids.len();
            report.hits += hits;
            report.from_disk += hits - ram;
            self.ram.insert(&prompt(ids));
            self.write(ids, hits, *at);
        }
        if let (Stop::Graceful, Some((at, _))) = (self.config.stop, requests.last()) {
            let ends = self.ends.take_likely(*at);
            self.write_ends(ends);
        }
        report
    }

    /// Writes what the policy wants after a request of which `reused` blocks were found.
    fn write(&mut self, ids: &[u64], reused: usize, now: Duration) {
        match self.config.writes {
            WritePolicy::All => self.disk.write(ids),
            WritePolicy::Reused => self.disk.write(&ids[..reused]),
            WritePolicy::Auto => {
                let (namespace, tokens) = (self.ram.namespace, prompt(ids));
                let end = End { namespace, prompt_len: tokens.len(), tokens, more: ids.to_vec() };
                let shared = self.ends.add(end, now) / BLOCK_POSITIONS;
                self.disk.write(&ids[..shared]);
                let leaving = self.ends.leave(self.safe_blocks(), now);
                self.write_ends(leaving);
            }
        }
    }

    /// Writes the part of ends that is still in RAM.
    fn write_ends(&mut self, ends: Vec<End<TraceRequest>>) {
        for End { more: ids, .. } in ends {
            let held = self.in_ram(&ids);
            self.disk.write(&ids[..held]);
        }
    }

    /// Blocks that may wait in RAM.
    fn safe_blocks(&self) -> usize {
        match self.config.capacity {
            Capacity::Blocks(blocks) => Ends::<()>::safe_blocks(blocks),
            Capacity::Unlimited => usize::MAX,
        }
    }

    /// Leading blocks that are in RAM.
    fn in_ram(&self, ids: &[u64]) -> usize {
        self.ram.cache.lookup(self.ram.namespace, &prompt(ids)).tokens / BLOCK_POSITIONS
    }
}

fn prompt(ids: &[u64]) -> Vec<Token> {
    ids.iter().flat_map(|&id| tokens_of(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two conversations with a common beginning, before and after a restart; a third that never goes on.
    const TRACE: [&[u64]; 6] =
        [&[1, 2, 3, 4], &[1, 20, 21], &[9, 8], &[1, 2, 3, 4, 5], &[1, 20, 21, 22], &[7]];

    fn replayed(writes: WritePolicy, stop: Stop) -> RestartReport {
        let requests: Vec<(Duration, TraceRequest)> =
            TRACE.iter().zip(1..).map(|(ids, at)| (Duration::from_secs(at), ids.to_vec())).collect();
        let (capacity, evict) = (Capacity::Unlimited, Policy::Lru);
        replay_restarts(&requests, RestartConfig { capacity, evict, writes, restarts: 1, stop }).unwrap()
    }

    #[test]
    fn figures_worked_out_by_hand() {
        let figures = |writes, stop| {
            let report = replayed(writes, stop);
            [report.computed, report.written, report.blocks, report.hits, report.from_disk]
        };
        // Before the restart 8 new blocks; after it 5, 22 and 7.
        assert_eq!(figures(WritePolicy::All, Stop::Kill), [11, 11, 10, 7, 6]);
        // Only block 1 was used twice before the restart: all behind it is computed again.
        assert_eq!(figures(WritePolicy::Reused, Stop::Kill), [16, 1, 10, 2, 1]);
        assert_eq!(figures(WritePolicy::Auto, Stop::Kill), [16, 1, 10, 2, 1]);
        // What nobody has experience with is written at the end.
        assert_eq!(figures(WritePolicy::Auto, Stop::Graceful), [11, 11, 10, 7, 6]);
    }
}
