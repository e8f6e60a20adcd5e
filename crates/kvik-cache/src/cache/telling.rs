//! What is told of the tree: see [`Change`].

use super::life::Cache;
use crate::hash::Identity;
use crate::ids::NamespaceId;
use crate::tree::{Change, Journal};

impl Cache {
    /// From now on changes of the tree are noted, of the namespaces that are [told](Cache::tell). Nothing may have been
    /// published yet.
    pub fn keep_journal(&mut self) {
        assert_eq!(self.pool.shared(), 0, "the journal would not know what is there already");
        self.radix.journal = Some(Journal::new(self.pool.len()));
    }

    /// Tells of a namespace from now on, whose first blocks come after `root`. Does nothing where no journal is kept, or
    /// it is told already; else nothing may be published in it yet.
    pub fn tell(&mut self, namespace: NamespaceId, root: Identity) {
        let node = self.roots[&namespace];
        let Some(journal) = &mut self.radix.journal else { return };
        if journal.root(namespace).is_none() {
            assert!(self.radix.arena[node].children.is_empty(), "what is there already would not be told");
            journal.tell(namespace, root);
        }
    }

    /// What changed since this was asked last, in order; who repeats it on a set of names has those of the blocks that
    /// are in the tree.
    pub fn take_journal(&mut self) -> Vec<Change> {
        self.radix.journal.as_mut().map(Journal::take).unwrap_or_default()
    }
}
