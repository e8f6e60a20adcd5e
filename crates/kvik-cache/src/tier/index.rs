//! Finds blocks by identity and by parent.
//!
//! Children of a block are sorted by their tokens, so the child that shares most with a prompt is adjacent to where
//! the prompt's own block would be: two neighbours are examined, however many children there are.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use rustc_hash::FxHashMap;

use super::record::{BlockTokens, Record, SlotId};
use crate::hash::Identity;
use crate::ids::{BLOCK_POSITIONS, Token};

/// Maximum number of unusable blocks (being written or expired) skipped on either side.
const SKIPPED_MAX: usize = 32;

/// A child of a block, by how much of a prompt it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) slot: SlotId,
    /// Leading tokens in common, at least 1.
    pub(super) common: usize,
}

/// The slots in use.
#[derive(Debug, Default)]
pub(super) struct Index {
    by_identity: FxHashMap<Identity, SlotId>,
    by_place: BTreeMap<(Identity, BlockTokens), SlotId>,
}

impl Index {
    /// Adds a block that is not there yet.
    pub(super) fn insert(&mut self, record: &Record, slot: SlotId) {
        self.by_identity.insert(record.identity, slot);
        self.by_place.insert((record.parent, record.tokens), slot);
    }

    pub(super) fn remove(&mut self, record: &Record) {
        self.by_identity.remove(&record.identity);
        self.by_place.remove(&(record.parent, record.tokens));
    }

    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.by_identity.len()
    }

    /// The slot of a block.
    pub(super) fn slot(&self, identity: &Identity) -> Option<SlotId> {
        self.by_identity.get(identity).copied()
    }

    /// Returns whether a known block follows this one.
    pub(super) fn has_children(&self, identity: &Identity) -> bool {
        self.children(identity).next().is_some()
    }

    /// The usable child of `parent` that shares most leading tokens with `rest`.
    pub(super) fn closest(
        &self,
        parent: &Identity,
        rest: &[Token],
        usable: impl Fn(SlotId) -> bool,
    ) -> Option<Child> {
        let wanted = BlockTokens::new(&rest[..rest.len().min(BLOCK_POSITIONS)])?;
        let before = self.by_place.range(..=(*parent, wanted)).rev().take_while(|((of, _), _)| of == parent);
        let before = before.take(SKIPPED_MAX).find(|&(_, &slot)| usable(slot));
        let after = self.after(parent, wanted).take(SKIPPED_MAX).find(|&(_, &slot)| usable(slot));
        let both = before.into_iter().chain(after);
        let common = |((_, held), &slot): (&(Identity, BlockTokens), &SlotId)| {
            let same = held.as_slice().iter().zip(rest).take_while(|(a, b)| a == b);
            Child { slot, common: same.count() }
        };
        both.map(common).filter(|child| child.common > 0).max_by_key(|child| child.common)
    }

    /// A child of `parent` whose tokens are a proper prefix of `tokens`, which replaces it.
    pub(super) fn shorter(&self, parent: &Identity, tokens: &BlockTokens) -> Option<SlotId> {
        let ((of, held), &slot) = self.by_place.range(..(*parent, *tokens)).next_back()?;
        (of == parent && tokens.as_slice().starts_with(held.as_slice())).then_some(slot)
    }

    /// A usable child of `parent` that begins with `tokens`.
    pub(super) fn longer(
        &self,
        parent: &Identity,
        tokens: &BlockTokens,
        usable: impl Fn(SlotId) -> bool,
    ) -> Option<SlotId> {
        let behind = self.by_place.range((*parent, *tokens)..).map(|((of, held), &slot)| (of, held, slot));
        let holds = |held: &BlockTokens| held.as_slice().starts_with(tokens.as_slice());
        let longer = behind.take_while(|(of, held, _)| *of == parent && holds(held)).take(SKIPPED_MAX);
        longer.map(|(.., slot)| slot).find(|&slot| usable(slot))
    }

    /// All children of `parent`.
    pub(super) fn children(&self, parent: &Identity) -> impl Iterator<Item = SlotId> {
        self.after(parent, BlockTokens::MIN).map(|(_, &slot)| slot)
    }

    /// Children of `parent` after `tokens`, in order.
    fn after(
        &self,
        parent: &Identity,
        tokens: BlockTokens,
    ) -> impl Iterator<Item = (&(Identity, BlockTokens), &SlotId)> {
        let parent = *parent;
        let behind = self.by_place.range((Excluded((parent, tokens)), Unbounded));
        behind.take_while(move |((of, _), _)| *of == parent)
    }
}
