//! The store that nodes share, as [lookups](super::lookup), loads and [offers](super::share) use it.

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
    /// What waits to be offered.
    pub(super) copies: Copies,
    /// Lookups that were answered since the last step: their tickets, and how many blocks there are.
    pub(super) answers: Vec<(u64, usize)>,
    next_ticket: u64,
    /// Bytes of a block there.
    pub(super) block_bytes: usize,
}

/// The end of a prefix that is to be fetched.
#[derive(Debug)]
pub(super) struct Far {
    pub(super) chain: Chain,
    /// Those after what is in RAM or on disk.
    pub(super) blocks: Range<usize>,
    /// How long it may take.
    pub(super) patience: Duration,
    /// How long it is kept without a use.
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

    /// Begins to fetch; the ticket.
    pub(super) fn fetch(&mut self, far: &Far) -> u64 {
        let ticket = self.ticket();
        self.store.fetch(ticket, far.chain.clone(), far.blocks.clone());
        ticket
    }

    /// What it has done, lookups aside: their answers are noted.
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

    /// Whether blocks with these roots are shared: what a policy keeps has its own names, and behind blocks without a state
    /// nothing could go on.
    pub(super) fn shares(&self, roots: &Roots) -> bool {
        !roots.is_part && self.beside.state_bytes == 0
    }

    /// Its numbers.
    pub(crate) fn remote_stats(&self) -> Option<RemoteStats> {
        let remote = self.remote.as_ref()?;
        let mut stats = remote.store.stats();
        stats.writing_blocks += remote.copies.blocks_left();
        Some(stats)
    }
}
