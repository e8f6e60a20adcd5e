//! Drops what was computed for deleted prompts wherever it is: RAM, disk, the draft model, the shared store, and the
//! retained positions of policies.

use kvik_cache::{BLOCK_POSITIONS, DeletedPrompts, Identity};

use super::Scheduler;
use super::namespaces::{Roots, disk_owner};

impl Scheduler {
    /// Drops these prompts of a tenant and everything that continues them, except what other prompts share. Returns how
    /// much of it is still there: in use, being read or written, or not erased yet. May be repeated.
    pub(crate) fn forget_deleted(
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
        let mut left = self.running_deleted(&namespaces, prompts);
        for &namespace in &namespaces {
            left += self.ram.cache.forget(namespace, prompts).in_use;
            if let Some(model) = &mut self.draft_model {
                left += model.forget(namespace, prompts);
            }
        }
        left += self.disk.forget_deleted(&roots, prompts, asks_store);
        self.forget_parts_of(salt, &roots, prompts);
        left + self.disk.erasing()
    }

    /// Deleted blocks that are not erased yet.
    pub(crate) fn erasing(&self) -> usize {
        self.disk.erasing()
    }

    /// Counts open requests that compute a deleted prompt: they are to end, and hold blocks until then.
    fn running_deleted(&mut self, namespaces: &[kvik_cache::NamespaceId], prompts: &DeletedPrompts) -> usize {
        let sequences = self.queue.sequences_mut().chain(self.running.iter_mut());
        let theirs = sequences.filter(|sequence| match sequence.sharing {
            super::sequence::Sharing::Namespace(id) => namespaces.contains(&id),
            _ => false,
        });
        theirs
            .filter(|sequence| prompts.mine().iter().any(|prompt| sequence.tokens.starts_with(prompt)))
            .count()
    }

    fn roots_of_deleted(&self, salt: [u8; 16], prompts: &DeletedPrompts) -> Vec<Roots> {
        let mut roots: Vec<Roots> =
            prompts.mine().iter().flat_map(|prompt| self.all_roots(salt, prompt)).collect();
        roots.sort_unstable_by_key(|roots| roots.identity);
        roots.dedup_by_key(|roots| roots.identity);
        roots
    }

    /// Drops the retained positions of these prompts. A retained prefix on disk that is not listed does not record how
    /// its prompt begins and may belong to one of them, so it is dropped as well.
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
        let is_listed = |prefix: &Identity| !self.kept_parts.of(prefix).is_empty();
        self.disk.forget_parts(disk_owner(salt), is_listed);
    }
}
