//! A disk that another process writes: this one reads it, learns of the other's changes, and takes over when that has
//! ended.

use kvik_cache::tier::{Observed, SlotId};
use kvik_cache::{DeletedPrompts, Identity, Token};
use rustc_hash::FxHashSet;

use super::Disk;
use crate::stats::DiskRole;
use crate::store::ChangedSlot;

/// Maximum number of erased prefixes that wait to be dropped from RAM, because running sequences use them.
const ERASED_MAX: usize = 1024;

/// A prefix whose last block was erased on disk.
#[derive(Debug)]
pub(crate) struct Erased {
    /// The root of its namespace.
    pub(crate) root: Identity,
    tokens: Vec<Token>,
    /// Number of tokens before that block.
    before: usize,
}

impl Erased {
    /// The block and what continues it, but not what it continues.
    pub(crate) fn prompts(&self) -> DeletedPrompts {
        DeletedPrompts::new(vec![self.tokens.clone()], vec![self.tokens[..self.before].to_vec()])
    }
}

impl Disk {
    /// Whether this process writes the disk, rather than another one.
    pub(super) fn writes(&self) -> bool {
        self.store.role() == DiskRole::Writer
    }

    /// Takes note of what another process has changed.
    pub(super) fn see(&mut self, seen: Vec<ChangedSlot>) {
        // Before the records are gone, which say what an erased block continued.
        let erased = seen.iter().filter(|seen| seen.is_erased);
        let erased: FxHashSet<SlotId> = erased.map(|seen| seen.observed.slot).collect();
        let is_first = |slot: &SlotId| self.tier.before(*slot).is_none_or(|before| !erased.contains(&before));
        let first = seen.iter().map(|seen| seen.observed.slot).filter(|slot| erased.contains(slot));
        let first: Vec<SlotId> = first.filter(is_first).collect();
        first.into_iter().for_each(|slot| self.note_erased(slot));
        let observed: Vec<Observed> = seen.into_iter().map(|seen| seen.observed).collect();
        self.unobserved.extend(self.tier.observe(observed));
    }

    /// Notes that the block in a slot was erased. What continues it is dropped with it and needs no note.
    fn note_erased(&mut self, slot: SlotId) {
        let Some((root, tokens)) = self.tier.path(slot) else { return };
        let before = tokens.len() - self.tier.record(slot).tokens.as_slice().len();
        self.erased.retain(|other| other.root != root || !other.tokens.starts_with(&tokens));
        if self.erased.len() >= ERASED_MAX {
            self.erased.remove(0);
        }
        self.erased.push(Erased { root, tokens, before });
    }

    /// Observes slots that were being read when another process had changed them.
    pub(super) fn observe_again(&mut self) {
        let observed = std::mem::take(&mut self.unobserved);
        if !observed.is_empty() {
            self.unobserved = self.tier.observe(observed);
        }
    }

    /// The prefixes that were erased and are to be dropped from RAM.
    pub(crate) fn take_erased(&mut self) -> Vec<Erased> {
        std::mem::take(&mut self.erased)
    }

    /// Keeps erased prefixes that running sequences still use, to drop them later.
    pub(crate) fn put_back_erased(&mut self, erased: Vec<Erased>) {
        self.erased.splice(0..0, erased);
    }
}

#[cfg(test)]
mod tests {
    use kvik_cache::tier::{BlockTokens, Record, Tier, Use};
    use kvik_cache::{AuxiliaryState, BLOCK_POSITIONS};

    use super::*;
    use crate::schedule::disk::DiskSetup;

    /// A disk that holds a prompt, block by block from slot 0 on.
    fn disk(prompt: &[Token]) -> Disk {
        let mut parent = Identity([9; 32]);
        let records = prompt.chunks(BLOCK_POSITIONS).map(|tokens| {
            let record = Record {
                identity: parent.child(tokens),
                parent,
                owner: 0,
                content_key: 0,
                tokens: BlockTokens::new(tokens).unwrap(),
                pinned: false,
                lacks_part: false,
                use_: Use::default(),
            };
            parent = record.identity;
            record
        });
        let (tier, surplus) = Tier::with(20, (0..).map(SlotId).zip(records));
        assert!(surplus.is_empty());
        Disk::new(DiskSetup { tier, ..DiskSetup::none() }, AuxiliaryState::default())
    }

    #[test]
    fn an_erased_prefix_is_noted_once_for_all_that_continues_it() {
        let prompt: Vec<Token> = (0..160).collect();
        for erased in [0..10, 3..10, 9..10] {
            let mut disk = disk(&prompt);
            let seen = erased.clone().map(|slot| ChangedSlot {
                observed: Observed { slot: SlotId(slot), record: None },
                is_erased: true,
            });
            disk.see(seen.collect());
            let noted = disk.take_erased();
            let noted: Vec<(usize, usize)> = noted.iter().map(|it| (it.before, it.tokens.len())).collect();
            let before = erased.start as usize * BLOCK_POSITIONS;
            assert_eq!(noted, [(before, before + BLOCK_POSITIONS)]);
        }
    }
}
