//! llama-server's slots. Requests run without them; a slot is a name under which a client finds its last prompt, to
//! save it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kvik_cache::{TenantId, Token};

/// The tokens computed last in the slots of each tenant. There are as many slots as requests may run at once, and none
/// holds more than the context.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<BTreeMap<SlotKey, Arc<[Token]>>>);

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
        self.lock().get(&key).cloned()
    }

    pub(crate) fn set(&self, key: SlotKey, tokens: &[Token]) {
        self.lock().insert(key, tokens.into());
    }

    /// Clears a slot, and returns its tokens.
    pub(crate) fn clear(&self, key: SlotKey) -> Option<Arc<[Token]>> {
        self.lock().remove(&key)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SlotKey, Arc<[Token]>>> {
        // Every change of the map is one call, so the map is consistent after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotUse {
    /// Stores the ended answer in the slot. Its last token was sampled but never computed.
    pub(crate) fn ended(&self, answer: &[Token]) {
        let (_, computed) = answer.split_last().unwrap_or((&0, &[]));
        self.slots.set(self.key, &[&self.prompt, computed].concat());
    }
}
