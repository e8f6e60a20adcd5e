//! Looking for kept prompts, and letting go of them.

use kvik_cache::{BLOCK_POSITIONS, Namespace, NamespaceId, Token};

use super::Scheduler;
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
    pub(crate) fn cached(&mut self, tokens: &[Token], salt: [u8; 16]) -> Cached {
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

    /// Unpins a prompt and drops what nobody else uses of it.
    pub(crate) fn let_go(&mut self, tokens: &[Token], salt: [u8; 16]) {
        let namespace = self.namespace(salt);
        self.cache.unpin(namespace, tokens);
        let roots = self.roots[&namespace];
        if let Some(disk) = &mut self.disk {
            disk.forget(&roots, tokens);
        }
    }
}
