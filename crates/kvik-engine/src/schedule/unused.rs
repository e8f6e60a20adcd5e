//! Dropping unused namespaces: each scale of an adapter and each retention policy makes one, and both are numbers that
//! clients choose. So the number of namespaces stays bounded by the number of those in use.

use kvik_cache::NamespaceId;
use rustc_hash::FxHashSet;

use super::idle::Idle;
use super::jobs::Jobs;
use super::prefixes::Prefixes;
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

impl Unused {
    /// Drops the namespaces that have nothing in RAM or on disk and that no part uses, when there are twice as many as
    /// were left the last time: so the amortised cost per request is constant.
    pub(super) fn drop_namespaces(&mut self, jobs: &Jobs, prefixes: &mut Prefixes, idle: &Idle) {
        if prefixes.ram.cache.namespaces() < self.due {
            return;
        }
        let in_use = namespaces_in_use(jobs, prefixes, idle);
        let Prefixes { ram, disk, tenants, draft_model, .. } = prefixes;
        for dropped in ram.cache.drop_namespaces(|namespace| !in_use.contains(&namespace)) {
            tenants.forget(dropped);
        }
        disk.keep_ends(|namespace| tenants.namespaces.has(namespace));
        if let Some(model) = draft_model {
            model.keep_namespaces(|namespace| tenants.namespaces.has(namespace));
        }
        self.due = NAMESPACES_MIN.max(2 * ram.cache.namespaces());
    }
}

/// The namespaces whose ids are in use, and those that have blocks on disk.
fn namespaces_in_use(jobs: &Jobs, prefixes: &Prefixes, idle: &Idle) -> FxHashSet<NamespaceId> {
    let of = |sequence: &Sequence| match sequence.sharing {
        Sharing::Namespace(id) | Sharing::Private(id) => id,
    };
    let stored = prefixes.disk.continued();
    let on_disk = prefixes.tenants.namespaces.ids().filter(|(_, root)| stored.contains(root));
    let sequences = jobs.queue.sequences().chain(jobs.running.iter()).map(of);
    sequences
        .chain(on_disk.map(|(id, _)| id))
        .chain(prefixes.tenants.public_namespaces())
        .chain(prefixes.disk.namespaces())
        .chain(idle.namespaces())
        .chain(prefixes.kept_parts.namespaces())
        .collect()
}
