//! Caches the tokens of encoded text.
//!
//! The next turn of a conversation repeats all earlier ones. Text is cut right after special tokens,
//! where tokens never depend on the following text, and each stretch is looked up by its text. Two
//! generations bound the bytes: when the young one is full it becomes the old one, and the old one is
//! dropped; a hit in the old one moves the entry to the young one.
//!
//! A text is found by the tenant that sent it alone: a text that was encoded before takes less time, which would tell
//! others that it was sent.

use std::cell::Cell;
use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use kvik_cache::{TenantId, Token};

thread_local! {
    /// The tenant whose texts this thread encodes.
    static TENANT: Cell<TenantId> = const { Cell::new(TenantId(0)) };
}

/// Does `work`, whose texts are those of a tenant, on this thread: what it encodes is cached for that tenant alone.
pub fn encoding_for<T>(tenant: TenantId, work: impl FnOnce() -> T) -> T {
    /// Sets the former tenant again, even if the work panics.
    struct Former(TenantId);
    impl Drop for Former {
        fn drop(&mut self) {
            TENANT.set(self.0);
        }
    }
    let _former = Former(TENANT.replace(tenant));
    work()
}

/// Tokens by tenant and text, bounded in bytes.
#[derive(Debug)]
pub(super) struct TokenCache {
    young: Generation,
    old: Generation,
    generation_bytes: usize,
}

#[derive(Debug, Default)]
struct Generation {
    // Texts are untrusted input, so the hasher of their maps has random keys.
    map: HashMap<TenantId, HashMap<Box<str>, CachedTokens>>,
    bytes: usize,
}

#[derive(Debug, Clone)]
struct CachedTokens {
    tokens: Arc<[Token]>,
    /// Whether the text was at the very beginning, where some vocabularies add a space.
    first: bool,
}

impl TokenCache {
    /// Holds at most `bytes`, including the overhead of the maps.
    pub(super) fn new(bytes: usize) -> TokenCache {
        TokenCache { young: Generation::default(), old: Generation::default(), generation_bytes: bytes / 2 }
    }

    /// The tokens of a text of the tenant that this thread encodes for.
    pub(super) fn get(&mut self, text: &str, first: bool) -> Option<Arc<[Token]>> {
        let tenant = TENANT.get();
        if let Some(found) = self.young.map.get(&tenant).and_then(|map| map.get(text)) {
            return (found.first == first).then(|| found.tokens.clone());
        }
        let (text, found) = self.old.map.get_mut(&tenant)?.remove_entry(text)?;
        self.old.bytes -= cost(&text, &found.tokens);
        let tokens = found.tokens.clone();
        let right = found.first == first;
        self.insert(text, found);
        right.then_some(tokens)
    }

    pub(super) fn put(&mut self, text: &str, tokens: &[Token], first: bool) {
        self.insert(text.into(), CachedTokens { tokens: tokens.into(), first });
    }

    fn insert(&mut self, text: Box<str>, entry: CachedTokens) {
        let bytes = cost(&text, &entry.tokens);
        if bytes > self.generation_bytes {
            return;
        }
        if self.young.bytes + bytes > self.generation_bytes {
            self.old = mem::take(&mut self.young);
        }
        let key_bytes = text.len();
        let replaced = self.young.map.entry(TENANT.get()).or_default().insert(text, entry);
        self.young.bytes += bytes;
        // The map keeps the old key and replaces only the value.
        self.young.bytes -= replaced.map_or(0, |old| key_bytes + ENTRY_BYTES + size_of_val(&*old.tokens));
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let count = |generation: &Generation| -> usize {
            let entries = generation.map.values().flatten();
            let cost = entries.map(|(text, entry)| cost(text, &entry.tokens)).sum();
            assert_eq!(generation.bytes, cost);
            cost
        };
        count(&self.young) + count(&self.old)
    }
}

/// Bytes of an entry besides its text and tokens.
const ENTRY_BYTES: usize = 96;

fn cost(text: &str, tokens: &[Token]) -> usize {
    text.len() + size_of_val(tokens) + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_bounded_and_never_wrong(
            uses in prop::collection::vec((0usize..40, any::<bool>()), 0..300),
        ) {
            let mut cache = TokenCache::new(4000);
            for (i, first) in uses {
                let text = "x".repeat(i * 7);
                let tokens = vec![u32::from(first); i];
                match cache.get(&text, first) {
                    Some(found) => prop_assert_eq!(&found[..], &tokens[..]),
                    None => cache.put(&text, &tokens, first),
                }
                prop_assert!(cache.bytes() <= 4000);
            }
        }
    }

    #[test]
    fn a_tenant_finds_its_own_texts_alone() {
        let [one, other] = [1, 2].map(TenantId);
        let mut cache = TokenCache::new(4000);
        encoding_for(one, || cache.put("said", &[1], true));
        assert!(encoding_for(other, || cache.get("said", true)).is_none());
        assert!(cache.get("said", true).is_none(), "nor does the server itself");
        // Encoding for another does not end encoding for the first.
        let found = encoding_for(one, || {
            encoding_for(other, || cache.put("said", &[2], true));
            cache.get("said", true)
        });
        assert_eq!(found.as_deref(), Some(&[1][..]));
        for i in 0..20 {
            encoding_for(other, || cache.put(&format!("other {i}"), &[2], true));
        }
        let found = encoding_for(one, || cache.get("said", true));
        assert_eq!(found.as_deref(), Some(&[1][..]), "it is in the old generation");
        assert!(cache.bytes() <= 4000);
    }

    #[test]
    fn used_entries_stay() {
        let mut cache = TokenCache::new(4000);
        cache.put("kept", &[1], true);
        for i in 0..200 {
            cache.put(&format!("other {i}"), &[2], true);
            assert!(cache.get("kept", true).is_some());
        }
        assert!(cache.get("other 0", true).is_none());
    }
}
