//! llama-server's slots. Requests run without them; a slot is a name under which a client finds its last prompt, to
//! save it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kvik_cache::{TenantId, Token};

/// Maximum bytes of the tokens in all slots; beyond them those of the least recently used slots are forgotten. A tenant
/// has as many slots as requests may run at once, each with a context, and there may be any number of tenants.
const BYTES_MAX: usize = 64 << 20;

/// The tokens computed last in the slots of each tenant.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<Computed>);

#[derive(Debug, Default)]
struct Computed {
    slots: BTreeMap<SlotKey, Slot>,
    /// Bytes of their tokens.
    bytes: usize,
    /// Number of the last use of any slot.
    uses: u64,
}

#[derive(Debug)]
struct Slot {
    tokens: Arc<[Token]>,
    /// Number of its last use.
    used: u64,
}

/// A slot of a tenant.
pub(crate) type SlotKey = (TenantId, usize);

/// A slot in use by a request.
#[derive(Debug, Clone)]
pub(crate) struct SlotUse {
    pub(crate) slots: Arc<Slots>,
    pub(crate) key: SlotKey,
    /// As it is computed, known once the request is submitted.
    pub(crate) prompt: Vec<Token>,
}

impl Slots {
    /// The tokens computed last in a slot.
    pub(crate) fn get(&self, key: SlotKey) -> Option<Arc<[Token]>> {
        self.lock().touch(key)
    }

    pub(crate) fn set(&self, key: SlotKey, tokens: &[Token]) {
        let tokens = tokens.into();
        self.lock().set(key, tokens);
    }

    /// Clears a slot, and returns its tokens.
    pub(crate) fn clear(&self, key: SlotKey) -> Option<Arc<[Token]>> {
        self.lock().remove(key)
    }

    fn lock(&self) -> MutexGuard<'_, Computed> {
        // Slots and their bytes change together, without a possible panic in between.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Computed {
    /// The tokens of a slot that is used now.
    fn touch(&mut self, key: SlotKey) -> Option<Arc<[Token]>> {
        let slot = self.slots.get_mut(&key)?;
        self.uses += 1;
        slot.used = self.uses;
        Some(slot.tokens.clone())
    }

    fn set(&mut self, key: SlotKey, tokens: Arc<[Token]>) {
        self.remove(key);
        self.uses += 1;
        self.bytes += size_of_val(&*tokens);
        self.slots.insert(key, Slot { tokens, used: self.uses });
        while self.bytes > BYTES_MAX
            && let Some(oldest) = self.oldest_but(key)
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, key: SlotKey) -> Option<Arc<[Token]>> {
        let Slot { tokens, .. } = self.slots.remove(&key)?;
        self.bytes -= size_of_val(&*tokens);
        Some(tokens)
    }

    /// The least recently used of the other slots.
    fn oldest_but(&self, key: SlotKey) -> Option<SlotKey> {
        let others = self.slots.iter().filter(|(other, _)| **other != key);
        others.min_by_key(|(_, slot)| slot.used).map(|(other, _)| *other)
    }
}

impl SlotUse {
    /// Stores the ended answer in the slot. Its last token was sampled but never computed.
    pub(crate) fn ended(&self, answer: &[Token]) {
        let (_, computed) = answer.split_last().unwrap_or((&0, &[]));
        self.slots.set(self.key, &[&self.prompt, computed].concat());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They stayed for the lifetime of the process, of every tenant.
    #[test]
    fn of_more_tokens_than_fit_those_of_the_least_recently_used_slots_are_forgotten() {
        let (slots, of) = (Slots::default(), |tenant| (TenantId(tenant), 0));
        let quarter = vec![7; BYTES_MAX / size_of::<Token>() / 4];
        (0..4).for_each(|tenant| slots.set(of(tenant), &quarter));
        assert!(slots.get(of(0)).is_some());
        (0..8).for_each(|_| slots.set(of(4), &quarter));
        let left =
            || (0..5).filter(|&tenant| slots.lock().slots.contains_key(&of(tenant))).collect::<Vec<_>>();
        assert_eq!(left(), [0, 2, 3, 4], "what a slot had before does not count");
        assert_eq!(slots.clear(of(2)).map(|tokens| tokens.len()), Some(quarter.len()));
        slots.set(of(1), &quarter);
        assert_eq!(left(), [0, 1, 3, 4]);
        slots.set(of(0), &[&quarter[..]; 5].concat());
        assert_eq!(left(), [0], "the last one stays, however long it is");
    }
}
