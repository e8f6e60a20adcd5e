//! The interface of a store that several nodes share, as the scheduler uses it.
//!
//! ```text
//!   a prompt waits ── look_up ──► Found: number of leading blocks      one round trip
//!                  ── fetch ────► Read, Read, …, Ended                 runs of blocks, in any order
//!   a prefix is used again ── offer ──► written when there is time, or dropped
//! ```
//!
//! Blocks are named by their chained hash, so nodes agree on names without communication. A value is a *run*:
//! consecutive blocks, named by the last one; see [`run_ending_at`](kvik_cache::tier::run_ending_at).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kvik_cache::Identity;

pub use crate::stats::RemoteStats;

/// Whole blocks of a prompt, from the first on.
#[derive(Debug, Clone)]
pub struct Chain {
    /// The owner, as a hash of the tenant's name; 0 without tenants.
    pub owner: u64,
    /// Their identities.
    pub blocks: Arc<[Identity]>,
}

/// Expected duration of reads, from those measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// Time to the first byte of an answer.
    pub latency: Duration,
    /// Additional time for each block.
    pub block: Duration,
}

impl Expected {
    /// Time to look up a prompt and to fetch `blocks` blocks of it.
    pub fn time(&self, blocks: usize) -> Duration {
        self.latency.saturating_add(self.block.saturating_mul(u32::try_from(blocks).unwrap_or(u32::MAX)))
    }
}

/// An operation that a remote store has completed, or a part of one.
#[derive(Debug)]
pub enum RemoteDone {
    /// Completes [`RemoteStore::look_up`]: the store has a run that ends with this many leading blocks, and probably
    /// those before.
    Found {
        /// As passed to the call.
        ticket: u64,
        /// Number of leading blocks of the chain.
        blocks: usize,
    },
    /// Consecutive blocks of a fetch.
    Read {
        /// As passed to the call.
        ticket: u64,
        /// Index of the first of them in the chain.
        first: usize,
        /// Their bytes as they were written: a whole number of blocks.
        bytes: Vec<u8>,
    },
    /// Completes [`RemoteStore::fetch`]: no further blocks will be read.
    Ended {
        /// As passed to the call.
        ticket: u64,
        /// Whether something could not be read, or was invalid.
        failed: bool,
    },
}

/// Blocks that nodes share. No call blocks.
///
/// Whatever it contains, what it returns under a name is what was written under that name, or nothing.
pub trait RemoteStore: Send {
    /// Number of blocks of its longest runs: a power of two.
    fn run_max(&self) -> usize;
    /// Expected duration of reads; `None` while the store is not to be asked.
    fn expected(&self) -> Option<Expected>;
    /// Notes that a prompt is not looked up or fetched because of the expected duration. A store that learns its speed
    /// from reads has to measure it in another way.
    fn too_slow(&mut self) {}
    /// Looks for the longest prefix of a chain that is stored.
    fn look_up(&mut self, ticket: u64, chain: Chain);
    /// Reads blocks of a chain. Neighbouring blocks in the same run may be returned as well.
    fn fetch(&mut self, ticket: u64, chain: Chain, blocks: Range<usize>);
    /// Cancels an operation. `late` if it took longer than expected, which counts as a fault.
    fn cancel(&mut self, ticket: u64, late: bool);
    /// Whether a run that ends with this block may be offered: it is not known to be stored, and the queue has room for
    /// `blocks`. The query counts as a use of the run, which is stored for `ttl` from then on, or for longer if it is
    /// already.
    fn wants(&mut self, owner: u64, end: &Identity, blocks: usize, ttl: Option<Duration>) -> bool;
    /// Number of blocks that may be offered now: the write queue is bounded. Wakes the engine when there is room again.
    fn room(&self) -> usize {
        usize::MAX
    }
    /// Queues a run to be written, which is stored for at most `ttl`.
    fn offer(&mut self, owner: u64, end: Identity, bytes: Vec<u8>, ttl: Option<Duration>);
    /// Removes the runs that end with these blocks, as far as they are stored. A removal that failed is retried at the
    /// next call for the same blocks.
    fn forget(&mut self, owner: u64, ends: &[Identity]) {
        let _ = (owner, ends);
    }
    /// Number of runs that are to be removed and may still be stored.
    fn forgetting(&self) -> usize {
        0
    }
    /// Removes and returns the next completed operation.
    fn done(&mut self) -> Option<RemoteDone>;
    /// Statistics of the store.
    fn stats(&self) -> RemoteStats;
}
