//! Detection of system messages that change between the turns of a conversation, with advice.
//!
//! System messages come first in the prompt, so a client that changes them with every turn forces a complete prefill of
//! every turn, however well the rest is cached.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use crate::context::{ChainId, chain::text_of};
use serde_json::Value;

use crate::volatile;

/// Maximum number of conversations whose system messages are known; the oldest entry is removed first.
const KNOWN_MAX: usize = 4096;
/// Maximum messages of one turn: the last turn is not looked for further back.
const TURN_MAX: usize = 32;

/// Hashes of the system messages of conversations, by the newest message.
#[derive(Default)]
pub(super) struct Systems(Mutex<Known>);

#[derive(Default)]
struct Known {
    hashes: BTreeMap<ChainId, blake3::Hash>,
    order: VecDeque<ChainId>,
}

impl Systems {
    /// Notes a turn; returns advice if its system messages differ from those of the last turn.
    pub(super) fn note(&self, chain: &[ChainId], systems: &[Value]) -> Option<String> {
        let (&newest, before) = chain.split_last()?;
        let texts: Vec<String> = systems.iter().map(text_of).collect();
        let hash = blake3::hash(texts.join("\0").as_bytes());
        // A panic loses at most one note, and so one piece of advice.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = before.iter().rev().take(TURN_MAX).find_map(|id| known.hashes.get(id).copied());
        known.insert(newest, hash);
        last.filter(|&last| last != hash).map(|_| advice(&texts))
    }
}

impl Known {
    fn insert(&mut self, newest: ChainId, hash: blake3::Hash) {
        if self.hashes.insert(newest, hash).is_none() {
            self.order.push_back(newest);
        }
        if self.order.len() > KNOWN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.hashes.remove(&oldest);
        }
    }
}

/// Advice about changing system messages: names the first piece that looks as if it changed by itself.
fn advice(systems: &[String]) -> String {
    let found = systems.iter().find_map(|text| {
        let piece = volatile::find(text).into_iter().next()?;
        Some(text[volatile::sentence(text, &piece.range)].trim())
    });
    let remedy = match found {
        Some(sentence) => format!("move this sentence to the end of the last message: {sentence:?}"),
        None => "say what changes at the end of the last message".to_owned(),
    };
    format!("the system prompt has changed since the last turn, so all behind it was computed anew; {remedy}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn id(n: usize) -> ChainId {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&n.to_le_bytes());
        ChainId(id)
    }

    fn turn(systems: &Systems, messages: std::ops::RangeInclusive<usize>, system: &str) -> Option<String> {
        let chain: Vec<ChainId> = messages.map(id).collect();
        systems.note(&chain, &[json!({"role": "system", "content": system})])
    }

    #[test]
    fn a_change_is_noticed_and_its_sentence_named() {
        let systems = Systems::default();
        assert_eq!(turn(&systems, 1..=1, "Be brief."), None);
        assert_eq!(turn(&systems, 1..=3, "Be brief."), None);
        let changed = turn(&systems, 1..=5, "Be brief. It is 2026-11-22 13:05.").unwrap();
        assert!(changed.contains("\"It is 2026-11-22 13:05.\""), "{changed}");
        let plain = turn(&systems, 1..=7, "Be kind.").unwrap();
        assert!(plain.contains("say what changes at the end"), "{plain}");
        assert_eq!(turn(&systems, 1..=7, "Be kind."), Some(plain.clone()), "the same question again");
        assert_eq!(turn(&systems, 1..=9, "Be kind."), None);
        assert_eq!(turn(&systems, 100..=103, "Be proud."), None, "another conversation");
    }

    #[test]
    fn a_bounded_number_is_known() {
        let systems = Systems::default();
        for i in 0..2 * KNOWN_MAX {
            turn(&systems, i..=i, "Be brief.");
        }
        let known = systems.0.lock().unwrap();
        assert_eq!((known.hashes.len(), known.order.len()), (KNOWN_MAX, KNOWN_MAX));
    }
}
