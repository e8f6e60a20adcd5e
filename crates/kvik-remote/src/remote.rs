//! The store as the scheduler sees it: it counts, queues and answers from memory. Slow operations are tasks of the
//! store's own thread.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kvik_cache::Identity;
use kvik_engine::store::remote::{Chain, Expected, RemoteDone, RemoteStats, RemoteStore};

use crate::blocks::Offer;
use crate::names::Key;
use crate::node::{Node, WRITE_BYTES_MAX, count};
use crate::thread::{Command, Thread};

/// A store shared by nodes, as the engine sees it.
pub struct Remote {
    node: Arc<Node>,
    thread: Thread,
    /// Tickets with a pending operation.
    waiting: HashSet<u64>,
}

impl Remote {
    pub(crate) fn new(node: Arc<Node>, thread: Thread) -> Remote {
        Remote { node, thread, waiting: HashSet::new() }
    }

    pub(crate) fn thread(&self) -> &Thread {
        &self.thread
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    fn has_room(&self, blocks: usize) -> bool {
        blocks <= self.room()
    }
}

impl RemoteStore for Remote {
    fn run_max(&self) -> usize {
        self.node.run_max
    }

    fn expected(&self) -> Option<Expected> {
        self.node.health.expected(self.node.payload_bytes)
    }

    fn too_slow(&mut self) {
        self.node.health.too_slow();
    }

    fn look_up(&mut self, ticket: u64, chain: Chain) {
        count(&self.node.counters.lookups, 1);
        self.waiting.insert(ticket);
        self.thread.send(Command::LookUp(ticket, chain));
    }

    fn fetch(&mut self, ticket: u64, chain: Chain, blocks: Range<usize>) {
        self.waiting.insert(ticket);
        self.thread.send(Command::Fetch(ticket, chain, blocks));
    }

    fn cancel(&mut self, ticket: u64, late: bool) {
        if !self.waiting.remove(&ticket) {
            return;
        }
        self.thread.send(Command::Cancel(ticket));
        if late {
            count(&self.node.counters.faults, 1);
            self.node.health.late();
        }
    }

    fn wants(&mut self, owner: u64, end: &Identity, blocks: usize, ttl: Option<Duration>) -> bool {
        let uses = || self.node.use_known(self.node.run(owner, end), ttl.unwrap_or(self.node.ttl));
        self.node.health.takes_writes() && !uses() && self.has_room(blocks)
    }

    fn room(&self) -> usize {
        let waiting = self.node.counters.writing_blocks.load(Relaxed);
        (WRITE_BYTES_MAX / self.node.payload_bytes).saturating_sub(waiting)
    }

    fn offer(&mut self, owner: u64, end: Identity, bytes: Vec<u8>, ttl: Option<Duration>) {
        let blocks = bytes.len() / self.node.payload_bytes;
        debug_assert!(
            bytes.len().is_multiple_of(self.node.payload_bytes) && (1..=self.node.run_max).contains(&blocks)
        );
        if !self.node.health.takes_writes() || !self.has_room(blocks) {
            return count(&self.node.counters.dropped_blocks, blocks);
        }
        let key = self.node.run(owner, &end);
        // Known from now on, so that it is not offered again while it waits.
        self.node.known().insert(key, true);
        self.node.removals().begin_write(key);
        self.node.counters.writing_blocks.fetch_add(blocks, Relaxed);
        self.thread.send(Command::Write(Offer { owner, end, bytes, ttl: ttl.unwrap_or(self.node.ttl) }));
    }

    fn forget(&mut self, owner: u64, ends: &[Identity]) {
        let keys: Vec<Key> = ends.iter().map(|end| self.node.run(owner, end)).collect();
        keys.iter().for_each(|key| self.node.known().remove(key));
        self.node.removals().begin(&keys);
        self.thread.send(Command::Forget(keys));
    }

    fn forgetting(&self) -> usize {
        self.node.removals().forgetting()
    }

    fn done(&mut self) -> Option<RemoteDone> {
        loop {
            let done = self.node.done.pop()?;
            let is_waited_for = match done {
                RemoteDone::Read { ticket, .. } => self.waiting.contains(&ticket),
                RemoteDone::Found { ticket, .. } | RemoteDone::Ended { ticket, .. } => {
                    self.waiting.remove(&ticket)
                }
            };
            if is_waited_for {
                return Some(done);
            }
        }
    }

    fn stats(&self) -> RemoteStats {
        self.node.stats()
    }
}
