//! Exchange with other nodes: the prefixes that this node uses, and those it fetches from them in advance.

use kvik_cache::PrefixScan;

use super::disk::Offered;
use super::prefixes::Prefixes;
use crate::api::HotPrefix;

/// Pending transfers to and from other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedWork {
    /// Blocks still to be written.
    pub(crate) writing: usize,
    /// Prefixes still to be fetched.
    pub(crate) fetching: usize,
}

impl Prefixes {
    /// The prefixes that a scan has found, except compressed ones.
    pub(crate) fn hottest(&self, scan: PrefixScan) -> Vec<HotPrefix> {
        let table = &self.tenants.namespaces;
        let found = self.ram.cache.scanned_whole(scan).into_iter();
        let shared = found.filter_map(|(namespace, tokens, uses)| {
            let roots = table.shared_roots(namespace).filter(|roots| !roots.is_part)?;
            Some(HotPrefix { root: roots.identity, tokens, uses })
        });
        shared.collect()
    }

    /// Offers a prefix to other nodes as a reused one.
    pub(crate) fn offer(&mut self, prefix: &HotPrefix) {
        let Some(namespace) = self.tenants.namespaces.rooted(&prefix.root) else { return };
        self.share(&Offered { namespace, tokens: &prefix.tokens, ttl: None, is_reused: true });
    }

    /// Fetches prefixes that other nodes use, while no request waits; only those whose namespaces are known here.
    pub(crate) fn warm(&mut self, prefixes: Vec<HotPrefix>) {
        let table = &self.tenants.namespaces;
        let known = |prefix: HotPrefix| Some((table.rooted(&prefix.root)?, prefix.tokens));
        let known = prefixes.into_iter().filter_map(known).collect();
        self.disk.add_remote_candidates(known);
    }

    /// Drops the prefixes still to be fetched.
    pub(crate) fn stop_warming(&mut self) {
        self.disk.drop_remote_candidates();
    }

    /// The pending transfers.
    pub(crate) fn shared_work(&self) -> SharedWork {
        let writing = self.remote_stats().map_or(0, |stats| stats.writing_blocks);
        SharedWork { writing, fetching: self.disk.remote_candidates() }
    }
}
