//! Dropping unused namespaces: each scale of an adapter and each retention policy makes one, and both are numbers that
//! clients choose. So the number of namespaces stays bounded by the number of those in use.

use kvik_cache::NamespaceId;
use rustc_hash::FxHashSet;

use super::Scheduler;
use super::sequence::{Sequence, Sharing};

/// No namespaces are dropped below this number.
const NAMESPACES_MIN: usize = 256;

/// When to look for unused namespaces.
#[derive(Debug)]
pub(super) struct Unused {
    /// At this number of namespaces.
    due: usize,
}

impl Default for Unused {
    fn default() -> Unused {
        Unused { due: NAMESPACES_MIN }
    }
}

impl Scheduler {
    /// Drops the namespaces that have nothing in RAM or on disk and that no part uses, when there are twice as many as
    /// were left the last time: so the amortised cost per request is constant.
    pub(super) fn drop_unused_namespaces(&mut self) {
        if self.ram.cache.namespaces() < self.unused.due {
            return;
        }
        let in_use = self.namespaces_in_use();
        for dropped in self.ram.cache.drop_namespaces(|namespace| !in_use.contains(&namespace)) {
            self.tenants.forget(dropped);
        }
        if let Some(model) = &mut self.draft_model {
            let table = &self.tenants.namespaces;
            model.keep_namespaces(|namespace| table.has(namespace));
        }
        self.unused.due = NAMESPACES_MIN.max(2 * self.ram.cache.namespaces());
    }

    /// The namespaces whose ids are in use, and those that have blocks on disk.
    fn namespaces_in_use(&self) -> FxHashSet<NamespaceId> {
        let of = |sequence: &Sequence| match sequence.sharing {
            Sharing::Namespace(id) | Sharing::Private(id) => id,
        };
        let stored = self.disk.continued();
        let on_disk = self.tenants.namespaces.ids().filter(|(_, root)| stored.contains(root));
        let sequences = self.queue.sequences().chain(self.running.iter()).map(of);
        sequences
            .chain(on_disk.map(|(id, _)| id))
            .chain(self.tenants.public_namespaces())
            .chain(self.disk.namespaces())
            .chain(self.idle.namespaces())
            .chain(self.kept_parts.namespaces())
            .collect()
    }
}
