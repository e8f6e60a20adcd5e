//! The shared store, as [lookups](super::lookup), loads and [offers](super::share) use it.

use std::ops::Range;
use std::time::Duration;

use super::Disk;
use super::setup::{RemoteSetup, RemoteWrites};
use super::share::Copies;
use crate::schedule::namespaces::Roots;
use crate::stats::RemoteStats;
use crate::store::remote::{Chain, RemoteDone, RemoteStore};

/// The store that nodes share.
pub(super) struct Remote {
    pub(super) store: Box<dyn RemoteStore>,
    pub(super) writes: RemoteWrites,
    /// Prefixes that wait to be offered.
    pub(super) copies: Copies,
    /// Answers to lookups since the last step: their tickets, and how many blocks the store has.
    pub(super) answers: Vec<(u64, usize)>,
    next_ticket: u64,
    /// Bytes of a block in the store.
    pub(super) block_bytes: usize,
}

/// The end of a prefix that is to be fetched from the shared store.
#[derive(Debug)]
pub(super) struct RemotePart {
    pub(super) chain: Chain,
    /// The blocks after those in RAM or on disk.
    pub(super) blocks: Range<usize>,
    /// How long the fetch may take.
    pub(super) patience: Duration,
    /// How long the blocks stay without being used.
    pub(super) ttl: Duration,
}

impl Remote {
    pub(super) fn new(setup: RemoteSetup) -> Remote {
        let RemoteSetup { store, writes, block_bytes } = setup;
        let (copies, answers) = (Copies::default(), Vec::new());
        Remote { store, writes, copies, answers, next_ticket: 0, block_bytes }
    }

    pub(super) fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Starts a fetch and returns its ticket.
    pub(super) fn fetch(&mut self, remote_part: &RemotePart) -> u64 {
        let ticket = self.ticket();
        self.store.fetch(ticket, remote_part.chain.clone(), remote_part.blocks.clone());
        ticket
    }

    /// The next completed operation other than a lookup; answers to lookups are recorded.
    pub(super) fn done(&mut self) -> Option<RemoteDone> {
        loop {
            match self.store.done()? {
                RemoteDone::Found { ticket, blocks } => self.answers.push((ticket, blocks)),
                other => return Some(other),
            }
        }
    }
}

impl Disk {
    /// Whether nodes share a store.
    pub(crate) fn has_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// Whether blocks with these roots are shared: a compressed prefix has identities of its own, and a sequence could
    /// not continue from blocks without a state.
    pub(super) fn shares(&self, roots: &Roots) -> bool {
        !roots.is_part && self.auxiliary.state_bytes == 0
    }

    /// The shared store's statistics.
    pub(crate) fn remote_stats(&self) -> Option<RemoteStats> {
        let remote = self.remote.as_ref()?;
        let mut stats = remote.store.stats();
        stats.writing_blocks += remote.copies.blocks_left();
        Some(stats)
    }
}
