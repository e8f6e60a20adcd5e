//! The journal: blocks added to and removed from the tree, for an external index.
//!
//! Owns the identity of every recorded block, so that a block has the same name when it is removed as when it was
//! added. Records whole blocks only, and only those of registered namespaces: a partial block is the end of one
//! sequence, and other prompts are private. Costs 32 bytes for each block of the pool and one compression of BLAKE3
//! for each added block; there is no cost without a journal.

use rustc_hash::FxHashMap;

use super::labels::Labels;
use crate::hash::Identity;
use crate::ids::{BlockId, NamespaceId, Token};

/// A change of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Blocks were added, each after the one before it.
    Stored(StoredBlocks),
    /// Blocks were removed, children before parents.
    Removed(Vec<Identity>),
}

/// Consecutive whole blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlocks {
    /// Their namespace.
    pub namespace: NamespaceId,
    /// The block before the first one; `None` at the beginning of a prompt.
    pub parent: Option<Identity>,
    /// Their identities, at least one.
    pub blocks: Vec<Identity>,
    /// Their tokens, 16 each.
    pub tokens: Vec<Token>,
}

/// The changes since the last call of [`take`](Journal::take).
#[derive(Debug)]
pub(crate) struct Journal {
    /// Identities of the blocks in registered namespaces, `[blocks]`; `None` for other blocks.
    identities: Vec<Option<Identity>>,
    /// The registered namespaces, and the identities before their first blocks.
    roots: FxHashMap<NamespaceId, Identity>,
    changes: Vec<Change>,
}

impl Journal {
    /// The journal of a pool of `blocks`, without registered namespaces.
    pub(crate) fn new(blocks: usize) -> Journal {
        Journal { identities: vec![None; blocks], roots: FxHashMap::default(), changes: Vec::new() }
    }

    /// Registers a namespace, which must be empty.
    pub(crate) fn tell(&mut self, namespace: NamespaceId, root: Identity) {
        self.roots.insert(namespace, root);
    }

    /// Removes a namespace, which must be empty.
    pub(crate) fn forget(&mut self, namespace: NamespaceId) {
        self.roots.remove(&namespace);
    }

    /// Records blocks that were added after `before`, or at the beginning of a prompt.
    pub(crate) fn stored(
        &mut self,
        namespace: NamespaceId,
        before: Option<BlockId>,
        blocks: &[BlockId],
        labels: &Labels,
    ) {
        let Some(&root) = self.roots.get(&namespace) else { return };
        let parent = before.map(|block| self.identities[block.index()].expect("what is continued is told"));
        let whole = blocks.iter().take_while(|&&block| !labels.is_partial(block));
        let (mut last, mut stored) = (
            parent.unwrap_or(root),
            StoredBlocks { namespace, parent, blocks: Vec::new(), tokens: Vec::new() },
        );
        for &block in whole {
            last = last.child(labels.tokens(block));
            self.identities[block.index()] = Some(last);
            stored.blocks.push(last);
            stored.tokens.extend_from_slice(labels.tokens(block));
        }
        if !stored.blocks.is_empty() {
            self.append(stored);
        }
    }

    /// Appends blocks; those that continue the last ones are merged with them, however a sequence published them.
    fn append(&mut self, stored: StoredBlocks) {
        if let Some(Change::Stored(last)) = self.changes.last_mut()
            && last.namespace == stored.namespace
            && last.blocks.last().copied() == stored.parent
        {
            last.blocks.extend(stored.blocks);
            last.tokens.extend(stored.tokens);
            return;
        }
        self.changes.push(Change::Stored(stored));
    }

    /// Records that consecutive blocks were removed.
    pub(crate) fn removed(&mut self, blocks: &[BlockId]) {
        let gone = blocks.iter().rev().filter_map(|block| self.identities[block.index()].take());
        let gone: Vec<Identity> = gone.collect();
        match self.changes.last_mut() {
            _ if gone.is_empty() => {}
            Some(Change::Removed(last)) => last.extend(gone),
            _ => self.changes.push(Change::Removed(gone)),
        }
    }

    /// Takes the changes since the last call, in order.
    pub(crate) fn take(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// The recorded identity of a block. For the checker.
    pub(crate) fn told(&self, block: BlockId) -> Option<Identity> {
        self.identities[block.index()]
    }

    /// The identity before the first block of a registered namespace. For the checker.
    pub(crate) fn root(&self, namespace: NamespaceId) -> Option<Identity> {
        self.roots.get(&namespace).copied()
    }

    /// Number of recorded blocks. For the checker.
    pub(crate) fn len(&self) -> usize {
        self.identities.iter().flatten().count()
    }
}
