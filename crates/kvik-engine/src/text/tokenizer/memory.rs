//! Remembers the tokens of text that was seen before.
//!
//! The next turn of a conversation repeats all earlier ones. Text is cut right after special tokens,
//! where tokens never depend on what follows, and each stretch is looked up by its text. Two
//! generations bound the bytes: when the young one is full it becomes the old one, and the old one is
//! forgotten; what is used again becomes young again.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use kvik_cache::Token;

/// Tokens by text, bounded in bytes.
#[derive(Debug)]
pub(super) struct Memory {
    young: Generation,
    old: Generation,
    generation_bytes: usize,
}

#[derive(Debug, Default)]
struct Generation {
    // Texts come from outside, so the map's hasher has random keys.
    map: HashMap<Box<str>, Remembered>,
    bytes: usize,
}

#[derive(Debug, Clone)]
struct Remembered {
    tokens: Arc<[Token]>,
    /// Whether the text stood at the very beginning, where some vocabularies add a space.
    first: bool,
}

impl Memory {
    /// Holds at most `bytes`, including what the maps need.
    pub(super) fn new(bytes: usize) -> Memory {
        Memory { young: Generation::default(), old: Generation::default(), generation_bytes: bytes / 2 }
    }

    pub(super) fn get(&mut self, text: &str, first: bool) -> Option<Arc<[Token]>> {
        if let Some(found) = self.young.map.get(text) {
            return (found.first == first).then(|| found.tokens.clone());
        }
        let (text, found) = self.old.map.remove_entry(text)?;
        self.old.bytes -= cost(&text, &found.tokens);
        let tokens = found.tokens.clone();
        let right = found.first == first;
        self.insert(text, found);
        right.then_some(tokens)
    }

    pub(super) fn put(&mut self, text: &str, tokens: &[Token], first: bool) {
        self.insert(text.into(), Remembered { tokens: tokens.into(), first });
    }

    fn insert(&mut self, text: Box<str>, remembered: Remembered) {
        let bytes = cost(&text, &remembered.tokens);
        if bytes > self.generation_bytes {
            return;
        }
        if self.young.bytes + bytes > self.generation_bytes {
            self.old = mem::take(&mut self.young);
        }
        let key_bytes = text.len();
        let replaced = self.young.map.insert(text, remembered);
        self.young.bytes += bytes;
        // The key stays; only the value is exchanged.
        self.young.bytes -= replaced.map_or(0, |old| key_bytes + ENTRY_BYTES + size_of_val(&*old.tokens));
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let count = |generation: &Generation| -> usize {
            let cost = generation.map.iter().map(|(text, entry)| cost(text, &entry.tokens)).sum();
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
            let mut memory = Memory::new(4000);
            for (i, first) in uses {
                let text = "x".repeat(i * 7);
                let tokens = vec![u32::from(first); i];
                match memory.get(&text, first) {
                    Some(found) => prop_assert_eq!(&found[..], &tokens[..]),
                    None => memory.put(&text, &tokens, first),
                }
                prop_assert!(memory.bytes() <= 4000);
            }
        }
    }

    #[test]
    fn what_is_used_stays() {
        let mut memory = Memory::new(4000);
        memory.put("kept", &[1], true);
        for i in 0..200 {
            memory.put(&format!("other {i}"), &[2], true);
            assert!(memory.get("kept", true).is_some());
        }
        assert!(memory.get("other 0", true).is_none());
    }
}
