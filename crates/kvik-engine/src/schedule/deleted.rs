//! Drops what was computed for deleted prompts wherever it is: RAM, disk, the draft model, the shared store, and the
//! retained positions of policies.

use kvik_cache::{BLOCK_POSITIONS, DeletedPrompts, Identity, NamespaceId};

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
        let roots = self.roots_of_deleted(salt, prompts);
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

    fn roots_of_deleted(&self, salt: [u8; 16], prompts: &DeletedPrompts) -> Vec<Roots> {
        let mut roots: Vec<Roots> =
            prompts.mine().iter().flat_map(|prompt| self.all_roots(salt, prompt)).collect();
        roots.sort_unstable_by_key(|roots| roots.identity);
        roots.dedup_by_key(|roots| roots.identity);
        roots
    }

    /// Drops the retained positions of these prompts, and those on disk that may be.
    fn forget_parts_of(&mut self, salt: [u8; 16], roots: &[Roots], prompts: &DeletedPrompts) {
        for roots in roots {
            for prompt in prompts.mine() {
                let blocks: Vec<Identity> = roots.identity.blocks(prompt).collect();
                let alone = (1..=prompt.len() / BLOCK_POSITIONS)
                    .find(|blocks| prompts.are_gone(&prompt[..blocks * BLOCK_POSITIONS]));
                let Some(first) = alone else { continue };
                for part in self.kept_parts.beginning_with(&blocks[first - 1], first) {
                    self.drop_part(&part);
                }
            }
        }
        self.drop_unlisted_parts(salt);
    }
}
