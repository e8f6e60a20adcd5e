//! A view of the tree that is built from the journal alone and compared with the twin's prefixes.

use std::collections::HashSet;

use super::{World, shared};
use crate::cache::naive::Entry;
use crate::hash::Identity;
use crate::ids::{BLOCK_POSITIONS, NamespaceId};
use crate::tree::Change;

/// The registered namespaces, by their salts; the other one and derived ones are not registered.
const TOLD: [u8; 2] = [0, 2];

/// The blocks that exist according to the journal.
#[derive(Debug, Default)]
pub(super) struct Account(HashSet<(NamespaceId, Identity)>);

impl World {
    /// Reads the journal and compares the account with the whole blocks of the twin.
    pub(super) fn follow_journal(&mut self) {
        for change in self.cache.take_journal() {
            self.account.follow(change, &mut self.seen);
        }
        // They may have been created again, in which case they are still empty.
        for salt in TOLD {
            self.cache.tell(self.namespaces[usize::from(salt)], Identity::root(&shared(salt)));
        }
        if !self.seen.steps.is_multiple_of(4) {
            return;
        }
        let whole = |tokens: &[u32]| tokens.len().is_multiple_of(BLOCK_POSITIONS);
        let name = |entry: &Entry| {
            let is_its = |salt: &u8| self.namespaces[usize::from(*salt)] == entry.namespace;
            let salt = TOLD.into_iter().find(is_its).filter(|_| whole(&entry.prefix))?;
            Some((entry.namespace, Identity::chain(&shared(salt), &entry.prefix).last()?))
        };
        let twin: HashSet<_> = self.naive.entries.iter().filter_map(name).collect();
        assert_eq!(self.account.0, twin, "what was told and what is there");
    }
}

impl Account {
    fn follow(&mut self, change: Change, seen: &mut super::Seen) {
        match change {
            Change::Stored(stored) => {
                let parent = stored.parent.map(|parent| (stored.namespace, parent));
                assert!(parent.is_none_or(|parent| self.0.contains(&parent)), "{stored:?} follows nothing");
                assert_eq!(stored.tokens.len(), stored.blocks.len() * BLOCK_POSITIONS);
                seen.note("blocks told", stored.blocks.len() as u64);
                for block in stored.blocks {
                    assert!(self.0.insert((stored.namespace, block)), "{block:?} is told twice");
                }
            }
            Change::Removed(blocks) => {
                seen.note("blocks told to be gone", blocks.len() as u64);
                let before = self.0.len();
                self.0.retain(|(_, block)| !blocks.contains(block));
                assert_eq!(self.0.len() + blocks.len(), before, "what is gone was there");
            }
        }
    }
}
