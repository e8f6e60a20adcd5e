//! What the scheduler asks of a store that several nodes share.
//!
//! ```text
//!   a prompt waits ── look_up ──► Found: so many leading blocks        one round trip
//!                  ── fetch ────► Read, Read, …, Ended                 runs of blocks, in any order
//!   a prefix is used again ── offer ──► written when there is time, or dropped
//! ```
//!
//! Blocks are named by their chained hash, so nodes agree on names without talking to each other. A value is a *run*: blocks
//! side by side, named by its last one; [`run_ending_at`](kvik_cache::tier::run_ending_at) says which.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kvik_cache::Identity;

pub use crate::stats::RemoteStats;

/// Whole blocks of a prompt, from the first on.
#[derive(Debug, Clone)]
pub struct Chain {
    /// Whose they are, as a hash of the tenant's name; 0 for nobody's.
    pub owner: u64,
    /// Their names.
    pub blocks: Arc<[Identity]>,
}

/// What reading is expected to take, by what it took so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// Until the first byte of an answer.
    pub latency: Duration,
    /// For each block after that.
    pub block: Duration,
}

impl Expected {
    /// Time to look up a prompt and to fetch so many blocks of it.
    pub fn time(&self, blocks: usize) -> Duration {
        self.latency.saturating_add(self.block.saturating_mul(u32::try_from(blocks).unwrap_or(u32::MAX)))
    }
}

/// Something that a remote store has done.
#[derive(Debug)]
pub enum RemoteDone {
    /// Completes [`RemoteStore::look_up`]: it has a run that ends with this many leading blocks, and probably those before.
    Found {
        /// As given.
        ticket: u64,
        /// Leading blocks of the chain.
        blocks: usize,
    },
    /// Blocks of a fetch, side by side.
    Read {
        /// As given.
        ticket: u64,
        /// Which block of the chain is the first of them.
        first: usize,
        /// Their bytes: a whole number of blocks, and what was written.
        bytes: Vec<u8>,
    },
    /// Completes [`RemoteStore::fetch`]: what was not read by now will not be.
    Ended {
        /// As given.
        ticket: u64,
        /// Whether something could not be read, or was not what it should be.
        failed: bool,
    },
}

/// Blocks that nodes share. No call waits for it.
///
/// Whatever it holds, what it gives under a name is what was written under that name, or nothing.
pub trait RemoteStore: Send {
    /// Blocks of its longest runs: a power of two.
    fn run_max(&self) -> usize;
    /// What reading will take; none while it is not to be asked.
    fn expected(&self) -> Option<Expected>;
    /// Looks for the longest beginning of a chain that is there.
    fn look_up(&mut self, ticket: u64, chain: Chain);
    /// Reads blocks of a chain. Those around them that share a run with them may come as well.
    fn fetch(&mut self, ticket: u64, chain: Chain, blocks: Range<usize>);
    /// Nobody waits for a ticket any more. `late` when it took longer than it was expected to, which counts as a fault.
    fn cancel(&mut self, ticket: u64, late: bool);
    /// Whether a run that ends with this block may be offered: it is not known to be there, and there is room for `blocks`
    /// in the queue. That it was asked about is a use of it.
    fn wants(&mut self, owner: u64, end: &Identity, blocks: usize) -> bool;
    /// Blocks that may be offered now: what waits to be written is bounded. Wakes the engine when there is more again.
    fn room(&self) -> usize {
        usize::MAX
    }
    /// Takes a run to be written, which is kept for `ttl` at most.
    fn offer(&mut self, owner: u64, end: Identity, bytes: Vec<u8>, ttl: Option<Duration>);
    /// Removes the runs that end with these blocks, as far as they are there. What could not be removed is when it is asked
    /// for again.
    fn forget(&mut self, owner: u64, ends: &[Identity]) {
        let _ = (owner, ends);
    }
    /// Runs that are to be removed and may still be there.
    fn forgetting(&self) -> usize {
        0
    }
    /// Something that was done and not given out yet.
    fn done(&mut self) -> Option<RemoteDone>;
    /// Numbers.
    fn stats(&self) -> RemoteStats;
}
