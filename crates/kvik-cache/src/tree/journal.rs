//! What came into the tree and what left it, for somebody outside who keeps an account of it.
//!
//! Owns the identity of every block that is told, so that a block is named when it leaves as when it came. Tells whole
//! blocks only, and those of namespaces that are told alone: a partial block is the end of one sequence, and others'
//! prompts are their secret. Costs 32 bytes for each block of the pool and one compression of BLAKE3 for each block
//! that comes; nobody pays that where nothing is told.

use rustc_hash::FxHashMap;

use super::labels::Labels;
use crate::hash::Identity;
use crate::ids::{BlockId, NamespaceId, Token};

/// Something that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Blocks are there now, each after the one before it.
    Stored(StoredBlocks),
    /// Blocks are gone, each before the one that it continued.
    Removed(Vec<Identity>),
}

/// Whole blocks that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlocks {
    /// Where they are.
    pub namespace: NamespaceId,
    /// The block before the first one; none at the beginning of a prompt.
    pub parent: Option<Identity>,
    /// Their names, one at least.
    pub blocks: Vec<Identity>,
    /// What they hold, 16 each.
    pub tokens: Vec<Token>,
}

/// The changes since somebody asked.
#[derive(Debug)]
pub(crate) struct Journal {
    /// Of the blocks in told namespaces, `[blocks]`; none where nothing was told.
    identities: Vec<Option<Identity>>,
    /// The namespaces that are told, and what comes before their first blocks.
    roots: FxHashMap<NamespaceId, Identity>,
    changes: Vec<Change>,
}

impl Journal {
    /// Of a pool of `blocks`, of which nothing is told yet.
    pub(crate) fn new(blocks: usize) -> Journal {
        Journal { identities: vec![None; blocks], roots: FxHashMap::default(), changes: Vec::new() }
    }

    /// Tells of a namespace from now on. Nothing is in it yet.
    pub(crate) fn tell(&mut self, namespace: NamespaceId, root: Identity) {
        self.roots.insert(namespace, root);
    }

    /// A namespace is gone, and nothing was left in it.
    pub(crate) fn forget(&mut self, namespace: NamespaceId) {
        self.roots.remove(&namespace);
    }

    /// These blocks follow `before` from now on, or begin a prompt.
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

    /// Notes blocks; those that go on from the last ones stand with them, however a sequence published them.
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

    /// These blocks, which follow each other, are gone.
    pub(crate) fn removed(&mut self, blocks: &[BlockId]) {
        let gone = blocks.iter().rev().filter_map(|block| self.identities[block.index()].take());
        let gone: Vec<Identity> = gone.collect();
        match self.changes.last_mut() {
            _ if gone.is_empty() => {}
            Some(Change::Removed(last)) => last.extend(gone),
            _ => self.changes.push(Change::Removed(gone)),
        }
    }

    /// What changed since this was asked last, in order.
    pub(crate) fn take(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// What is told of a block, and what comes before the first block of its namespace, if that is told. For the
    /// checker.
    pub(crate) fn told(&self, block: BlockId) -> Option<Identity> {
        self.identities[block.index()]
    }

    /// What comes before the first block of a namespace that is told. For the checker.
    pub(crate) fn root(&self, namespace: NamespaceId) -> Option<Identity> {
        self.roots.get(&namespace).copied()
    }

    /// How many blocks are told. For the checker.
    pub(crate) fn len(&self) -> usize {
        self.identities.iter().flatten().count()
    }
}
