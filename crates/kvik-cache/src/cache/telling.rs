//! The journal of the tree's changes, see [`Change`].

use super::life::Cache;
use crate::hash::Identity;
use crate::ids::NamespaceId;
use crate::tree::{Change, Journal};

impl Cache {
    /// Starts to record changes of the tree, in the namespaces that are [registered](Cache::tell). Nothing may have
    /// been published yet.
    pub fn keep_journal(&mut self) {
        assert_eq!(self.pool.shared(), 0, "the journal would not know what is there already");
        self.radix.journal = Some(Journal::new(self.pool.len()));
    }

    /// Registers a namespace for the journal; its first blocks follow `root`. Does nothing without a journal, or if
    /// it is already registered; otherwise nothing may be published in it yet.
    pub fn tell(&mut self, namespace: NamespaceId, root: Identity) {
        let node = self.roots[&namespace];
        let Some(journal) = &mut self.radix.journal else { return };
        if journal.root(namespace).is_none() {
            assert!(self.radix.arena[node].children.is_empty(), "what is there already would not be told");
            journal.tell(namespace, root);
        }
    }

    /// Takes the changes since the last call, in order; replaying them all on a set of names yields the blocks that
    /// are in the tree.
    pub fn take_journal(&mut self) -> Vec<Change> {
        self.radix.journal.as_mut().map(Journal::take).unwrap_or_default()
    }
}
