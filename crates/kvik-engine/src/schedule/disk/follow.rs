//! A disk that another process writes: this one reads it, learns of the other's changes, and takes over when that has
//! ended.

use kvik_cache::tier::{Observed, SlotId};
use kvik_cache::{DeletedPrompts, Identity, Token};

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
        erased.for_each(|seen| self.note_erased(seen.observed.slot));
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
