//! Drops what was computed for deleted prompts wherever it is: RAM, disk, the draft model, the shared store, and the
//! retained positions of policies.

use kvik_cache::{DeletedPrompts, NamespaceId, whole_blocks};

use super::disk::Erased;
use super::namespaces::Roots;
use super::prefixes::Prefixes;

impl Prefixes {
    /// Drops these prompts of a tenant and everything that continues them, except what other prompts share. Returns how
    /// much of it is still there: in use, being read or written, or not erased yet.
    pub(super) fn forget_deleted(
        &mut self,
        salt: [u8; 16],
        prompts: &DeletedPrompts,
        asks_store: bool,
    ) -> usize {
        let namespaces = self.tenants.namespaces.all_of(salt);
        self.disk.give_up(&mut self.ram, |namespace, copied| {
            namespaces.contains(&namespace) && prompts.are_gone(copied)
        });
        // Collected before anything is dropped: the entries say in which namespaces the prompts are.
        let roots = self.all_roots(salt, prompts.mine().iter().map(Vec::as_slice));
        let mut left = 0;
        for &namespace in &namespaces {
            left += self.forget_in_memory(namespace, prompts);
        }
        left += self.disk.forget_deleted(&roots, prompts, asks_store);
        self.forget_parts_of(salt, &roots, prompts);
        left + self.disk.erasing()
    }

    /// Drops from RAM what another process has erased on the disk that it writes; what running sequences use, later.
    pub(super) fn drop_erased(&mut self) {
        let mut erased = self.disk.take_erased();
        erased.retain(|erased| self.drop_prefix(erased) > 0);
        self.disk.put_back_erased(erased);
    }

    /// Drops an erased prefix from RAM; returns how many of its blocks are in use.
    fn drop_prefix(&mut self, erased: &Erased) -> usize {
        let prompts = erased.prompts();
        let ids = self.tenants.namespaces.ids().filter(|(_, root)| *root == erased.root);
        let namespaces: Vec<NamespaceId> = ids.map(|(id, _)| id).collect();
        namespaces.into_iter().map(|namespace| self.forget_in_memory(namespace, &prompts)).sum()
    }

    /// Drops prompts of a namespace from RAM and from the draft model; returns how many blocks of them are in use.
    fn forget_in_memory(&mut self, namespace: NamespaceId, prompts: &DeletedPrompts) -> usize {
        let in_use = self.ram.cache.forget(namespace, prompts).in_use;
        in_use + self.draft_model.as_mut().map_or(0, |model| model.forget(namespace, prompts))
    }

    /// Deleted blocks that are not erased yet.
    pub(crate) fn erasing(&self) -> usize {
        self.disk.erasing()
    }

    /// Drops the retained positions of these prompts, and those on disk that may be.
    fn forget_parts_of(&mut self, salt: [u8; 16], roots: &[Roots], prompts: &DeletedPrompts) {
        // Mostly none is listed, and many long prompts take long to be hashed.
        if !self.kept_parts.is_empty() {
            self.forget_listed_parts_of(roots, prompts);
        }
        self.drop_unlisted_parts(salt);
    }

    fn forget_listed_parts_of(&mut self, roots: &[Roots], prompts: &DeletedPrompts) {
        for prompt in prompts.mine() {
            let remaining = prompts.remaining_blocks(prompt);
            for roots in roots {
                let Some(first) = roots.identity.blocks(whole_blocks(prompt)).nth(remaining) else { break };
                for part in self.kept_parts.beginning_with(&first, remaining + 1) {
                    self.drop_part(&part);
                }
            }
        }
    }
}
