//! Deletes prompts on disk, with everything computed for them alone: in the store of a running engine, and in stores
//! that no engine has open.

use std::path::Path;

use kvik_cache::tier::{Record, SlotId, Tier};
use kvik_cache::{DeletedPrompts, DeletedWalk, Identity, Token, whole_blocks};

use super::Disk;
use super::states::{is_piece, tokens_of_piece};
use crate::schedule::forget::kept;
use crate::schedule::namespaces::{Roots, disk_owner};
use crate::store::{AtRest, Picked, StoreError, erase_answers_at_rest, erase_at_rest};

/// A block on the path of a deleted prompt, and the state of the walk after it.
struct Visited {
    identity: Identity,
    is_gone: bool,
    walk: DeletedWalk,
}

/// Number of blocks of these prompts in a tier, in the namespaces with these roots.
fn held(tier: &Tier, roots: &[Identity], prompts: &DeletedPrompts) -> usize {
    visited(tier, roots, prompts).iter().filter(|visited| visited.is_gone).count()
}

/// Takes blocks of these prompts out of a tier, in the namespaces with these roots. Returns the slots to erase, and how
/// many blocks stay for now because they are being read.
fn take_out(tier: &mut Tier, roots: &[Identity], prompts: &DeletedPrompts) -> (Vec<SlotId>, usize) {
    let (mut slots, mut staying) = (Vec::new(), 0);
    let visited = visited(tier, roots, prompts);
    for Visited { identity, .. } in visited.into_iter().rev().filter(|visited| visited.is_gone) {
        let Some(slot) = tier.slot(&identity) else { continue };
        let is_pinned = tier.record(slot).pinned;
        match tier.drop_leaf(&identity) {
            Some(slot) => slots.push(slot),
            // Other blocks follow it, or it is being read.
            None => staying += usize::from(!is_pinned && tier.after(&identity).is_empty()),
        }
    }
    (slots, staying)
}

/// Erases prompts of a tenant, with everything that continues them, in all stores of a directory that are not open, for
/// any model; and with all answers of the tenant as they were generated.
///
/// # Errors
/// If a file cannot be opened, read or changed: something may be left.
pub fn forget_at_rest(dir: &Path, salt: [u8; 16], prompts: &DeletedPrompts) -> Result<AtRest, StoreError> {
    // Which answers continue these prompts only the vocabulary of the model would say.
    let answers = erase_answers_at_rest(dir, Some(salt));
    let owner = disk_owner(salt);
    let blocks = erase_at_rest(dir, |records| {
        let slots = records.iter().map(|(slot, _)| slot.0 + 1).max().unwrap_or(0);
        let (mut tier, mut erased) = Tier::with(slots, records);
        let roots = tier.roots(owner);
        // A prompt that was kept is pinned at its end, and no engine is here that would release it.
        for end in roots.iter().flat_map(|root| ends(root, prompts)) {
            tier.pin(&end, false);
        }
        erased.extend(take_out(&mut tier, &roots, prompts).0);
        // A retained prefix does not record how its prompt begins: it may be one of these.
        let is_part =
            |record: &&Record| record.owner == owner && kept::named(record.tokens.as_slice()).is_some();
        let parts = tier.used().map(|(_, record)| record).filter(is_part);
        let parts: Vec<Identity> = parts.map(|record| record.identity).collect();
        let under: Vec<Identity> = parts.iter().flat_map(|part| tier.under(part)).collect();
        for identity in under.into_iter().rev() {
            tier.pin(&identity, false);
            erased.extend(tier.drop_leaf(&identity));
        }
        Picked::Slots(erased)
    });
    answers.and(blocks)
}

/// The identities of the last whole blocks of these prompts, of those that others do not contain.
fn ends(root: &Identity, prompts: &DeletedPrompts) -> Vec<Identity> {
    let end =
        |prompt: &Vec<Token>| root.blocks(whole_blocks(prompt)).skip(prompts.remaining_blocks(prompt)).last();
    prompts.mine().iter().filter_map(end).collect()
}

/// The identities of all blocks that belong to these prompts alone, whether they are stored or not.
pub(super) fn named(root: &Identity, prompts: &DeletedPrompts) -> Vec<Identity> {
    let mut named = Vec::new();
    for prompt in prompts.mine() {
        named.extend(root.blocks(whole_blocks(prompt)).skip(prompts.remaining_blocks(prompt)));
    }
    named.sort_unstable();
    named.dedup();
    named
}

/// The blocks on the path of the deleted prompts, each before those that follow it.
fn visited(tier: &Tier, roots: &[Identity], prompts: &DeletedPrompts) -> Vec<Visited> {
    let start = |root: &Identity| Visited { identity: *root, is_gone: false, walk: prompts.start() };
    let mut open: Vec<Visited> = roots.iter().map(start).collect();
    let mut found = Vec::new();
    while let Some(at) = open.pop() {
        for slot in tier.after(&at.identity) {
            let record = tier.record(slot);
            if let Some(next) = behind(&at, record.identity, record.tokens.as_slice(), prompts) {
                open.push(Visited { walk: next.walk.clone(), ..next });
                found.push(next);
            }
        }
        // A damaged file may contain a cycle of blocks.
        if found.len() > tier.stats().used {
            break;
        }
    }
    found
}

/// The block after `at`; `None` if it belongs to no deleted prompt.
fn behind(at: &Visited, identity: Identity, tokens: &[Token], prompts: &DeletedPrompts) -> Option<Visited> {
    if !is_piece(tokens) {
        let walk = prompts.behind(&at.walk, tokens)?;
        return Some(Visited { identity, is_gone: walk.is_gone(), walk });
    }
    // A state is deleted with the tokens that it follows, and its pieces with each other.
    match tokens_of_piece(tokens) {
        Some(rest) if !rest.is_empty() => {
            let walk = prompts.behind(&at.walk, rest)?;
            Some(Visited { identity, is_gone: walk.is_gone(), walk })
        }
        _ => Some(Visited { identity, is_gone: at.is_gone, walk: at.walk.clone() }),
    }
}

impl Disk {
    /// Drops deleted prompts, with everything that continues them, in the namespaces with these roots, and their blocks
    /// in the shared store. Returns how many blocks are still there: all that another process has written.
    pub(crate) fn forget_deleted(
        &mut self,
        roots: &[Roots],
        prompts: &DeletedPrompts,
        asks_store: bool,
    ) -> usize {
        if asks_store {
            self.forget_in_store(roots, prompts);
        }
        let identities: Vec<Identity> = roots.iter().map(|roots| roots.identity).collect();
        let (slots, staying) = match self.writes() {
            true => take_out(&mut self.tier, &identities, prompts),
            false => (Vec::new(), held(&self.tier, &identities, prompts)),
        };
        slots.iter().for_each(|&slot| self.store.erase(slot));
        staying
    }

    /// Removes deleted prompts from the shared store, and what the disk knows to continue them: answers are shared too, and
    /// no prompt names them.
    fn forget_in_store(&mut self, roots: &[Roots], prompts: &DeletedPrompts) {
        let Some(remote) = &mut self.remote else { return };
        for roots in roots.iter().filter(|roots| !roots.is_part) {
            let mut ends = named(&roots.identity, prompts);
            let known = visited(&self.tier, &[roots.identity], prompts);
            ends.extend(known.iter().filter(|visited| visited.is_gone).map(|visited| visited.identity));
            ends.sort_unstable();
            ends.dedup();
            if !ends.is_empty() {
                remote.store.forget(roots.owner, &ends);
            }
        }
    }

    /// Dropped blocks that are still in a file or in the shared store.
    pub(crate) fn erasing(&self) -> usize {
        let shared = self.remote.as_ref().map_or(0, |remote| remote.store.forgetting());
        // What is evicted is in no tier any more, so a deletion finds it only here.
        self.tier.dropping() + self.store.erasing() + self.store.evicting() + shared
    }
}
