//! Looking for kept prompts, and letting go of them.

use std::time::Duration;

use kvik_cache::{BLOCK_POSITIONS, Namespace, NamespaceId, PrefixInfo, PrefixOrder, Token};

use super::Scheduler;
use super::disk::owner;
use crate::prompts::Cached;

impl Scheduler {
    /// The namespace that requests with this salt share.
    pub(super) fn namespace(&mut self, salt: [u8; 16]) -> NamespaceId {
        let namespace = Namespace {
            model: self.config.model_digest,
            kv_format: self.config.kv_format.clone(),
            adapter: None,
            salt,
        };
        let id = self.cache.namespace(&namespace);
        self.roots.entry(id).or_insert_with(|| super::disk::Roots::of(&namespace));
        id
    }

    /// How much of a prompt is in RAM, and how much more on disk.
    pub fn cached(&mut self, tokens: &[Token], salt: [u8; 16]) -> Cached {
        let namespace = self.namespace(salt);
        let ram = self.cache.lookup(namespace, tokens).tokens;
        let disk = self.on_disk(namespace, tokens, ram);
        Cached { tokens: tokens.len(), ram, disk }
    }

    /// Tokens after the first `ram` that could be loaded.
    pub(super) fn on_disk(&self, namespace: NamespaceId, tokens: &[Token], ram: usize) -> usize {
        let Some(disk) = &self.disk else { return 0 };
        let whole = ram - ram % BLOCK_POSITIONS;
        let parent = self.roots[&namespace].identity_after(&tokens[..whole]);
        let found = disk.tier.find(&parent, &tokens[whole..], disk.wall_s(self.now()));
        (whole + found.tokens).saturating_sub(ram)
    }

    /// Unpins a prompt and drops what nobody else uses of it; how many blocks of RAM that is.
    pub fn let_go(&mut self, tokens: &[Token], salt: [u8; 16]) -> usize {
        let namespace = self.namespace(salt);
        self.cache.unpin(namespace, tokens);
        let blocks = self.cache.evict_prefix(namespace, tokens);
        let roots = self.roots[&namespace];
        if let Some(disk) = &mut self.disk {
            disk.forget(&roots, tokens);
            disk.unpin_rests(&roots, tokens);
        }
        blocks
    }

    /// Drops all that is neither in use nor pinned, of one tenant or of all; blocks of RAM and of the disk.
    pub fn clear(&mut self, salt: Option<[u8; 16]>) -> (usize, usize) {
        let namespace = salt.map(|salt| self.namespace(salt));
        let now = self.now();
        let disk = self.disk.as_mut().map_or(0, |disk| disk.clear(salt.map(owner), now));
        (self.cache.clear(namespace), disk)
    }

    /// The first prefixes in an order, and the time by the same clock as theirs.
    pub(crate) fn prefixes(&self, order: PrefixOrder, limit: usize) -> (Vec<PrefixInfo>, Duration) {
        (self.cache.prefixes(order, limit), self.now())
    }
}
