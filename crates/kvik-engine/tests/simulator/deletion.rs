//! Conversations that are deleted: what was computed for them alone is nowhere once it is erased.

use std::collections::HashSet;

use kvik_cache::{BLOCK_POSITIONS, DeletedPrompts, Identity, TenantId, Token};
use kvik_engine::api::PinnedPrompt;

use crate::fleet::names;
use crate::upkeep::root;
use crate::world::World;

/// A conversation to be deleted.
struct Deleted {
    salt: u8,
    tokens: Vec<Token>,
    prompts: DeletedPrompts,
    /// Leading blocks up to the first one that belongs to it alone.
    blocks: usize,
}

impl World {
    /// Deletes a conversation while nothing runs. What other conversations share of it stays.
    pub(crate) fn delete(&mut self) {
        if self.conversations.is_empty() {
            return;
        }
        self.settle();
        let Some(deleted) = self.pick_deleted() else { return };
        let Deleted { salt, tokens, prompts, blocks } = &deleted;
        self.trace(|| format!("{tokens:?} of {salt} is deleted"));
        self.coverage.deleted_prompts += 1;
        self.is_dropped = true;
        self.doubt_parts();
        self.conversations.retain(|(other, said)| other != salt || said != tokens);
        self.scheduler.forget_deleted([*salt; 16], prompts, true);
        let mut gone = self.forget_evicted(*salt, &tokens[..blocks * BLOCK_POSITIONS]);
        gone.extend(self.names_of(&deleted));
        self.ban(gone.clone());
        // By then it is erased.
        self.settle();
        let gone: HashSet<Identity> = gone.into_iter().collect();
        self.check_deleted(&deleted, &gone);
    }

    /// One that has a whole block of its own, if it is that which the dice say.
    fn pick_deleted(&mut self) -> Option<Deleted> {
        let index = self.dice.roll(self.conversations.len() as u64) as usize;
        let (salt, tokens) = self.conversations[index].clone();
        // All that was ever asked remains: only some of it is in the list from which others go on.
        let asked = self.memory.known.iter().map(|known| (known.view.salt, &known.tokens));
        let listed = self.conversations.iter().map(|(salt, said)| (*salt, said));
        let others = asked.chain(listed).filter(|&(other, said)| other == salt && *said != tokens);
        let prompts =
            DeletedPrompts::new(vec![tokens.clone()], others.map(|(_, said)| said.clone()).collect());
        let is_gone = |blocks: &usize| prompts.are_gone(&tokens[..blocks * BLOCK_POSITIONS]);
        let blocks = (1..=tokens.len() / BLOCK_POSITIONS).find(is_gone)?;
        Some(Deleted { salt, tokens, prompts, blocks })
    }

    /// The names of the blocks that are its alone.
    fn names_of(&self, deleted: &Deleted) -> Vec<Identity> {
        names(root(&self.regime, deleted.salt), &deleted.tokens).skip(deleted.blocks - 1).collect()
    }

    /// Nobody finds it, and it is neither on the disk nor in the store. A disk with faults may still have what it
    /// reported as lost, and so may one whose process was killed before it had erased it.
    fn check_deleted(&mut self, deleted: &Deleted, gone: &HashSet<Identity>) {
        let Deleted { salt, tokens, prompts, blocks } = deleted;
        let left = self.scheduler.forget_deleted([*salt; 16], prompts, true);
        let pending = self.removals_left(&self.names_of(deleted));
        if self.is_cut_off || self.regime.disk.is_some_and(|disk| !disk.is_sound()) {
            return;
        }
        assert_eq!(left, pending, "what is left of {tokens:?} is not what the store has not removed");
        let prompt = PinnedPrompt {
            tokens: tokens.clone(),
            adapters: None,
            salt: [*salt; 16],
            tenant: TenantId((*salt).into()),
            retention: None,
        };
        let found = self.scheduler.prefixes.cached(&prompt);
        let whole = blocks * BLOCK_POSITIONS;
        assert!(found.ram + found.disk < whole, "{found:?} of {tokens:?}, of which {whole} were deleted");
        assert!(!self.platter.lock().unwrap().has_any(gone), "{tokens:?} is on disk");
    }
}
