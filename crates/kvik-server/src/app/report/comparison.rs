//! The difference between a request and an earlier one: OpenAI's diagnostics of the prompt cache.
//!
//! Only hashes and counts of an answer are remembered, never text, and the hashes are keyed anew at every start. Only
//! the tenant who received an answer can compare with it.
//!
//! The result of a comparison is a [`Diagnosis`]; each API words it in a function of its own.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kvik_cache::{BLOCK_POSITIONS, Token};
use kvik_engine::api::{AdapterMix, Report, Request};
use kvik_session::PromptMarks;
use serde::Serialize;

use super::token_scale::TokenScale;
use crate::described::JsonSchema;

/// Maximum answers remembered.
const ANSWERS_MAX: usize = 4096;
/// Maximum block hashes remembered; each covers 16 tokens and takes 8 bytes.
const BLOCKS_MAX: usize = 2 << 20;
/// Tokens at the end of a prompt that open the answer: they are replaced when the conversation continues.
const OPENING_TOKENS: usize = 2 * BLOCK_POSITIONS;

/// Hashes of the parts that a prompt was made from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Parts {
    /// The model, with its adapters once they are known.
    pub(crate) model: u64,
    pub(crate) tools: u64,
    /// The system messages before every other.
    pub(crate) system: u64,
    /// The other inputs of the chat template.
    pub(crate) settings: u64,
    /// The other messages.
    pub(crate) messages: Vec<u64>,
}

/// A part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Model,
    Tools,
    System,
    Settings,
    Messages,
}

/// The difference between a request and an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Diagnosis {
    /// This tenant has no such earlier answer, or it is no longer remembered.
    NotFound,
    /// No comparison is possible, because one of the requests has several prompts.
    Several,
    /// This prompt continues the earlier one, of which it has `reusable` tokens.
    GoesOn { reusable: usize },
    /// `part` is the first that has changed, after `common` of the `reusable` tokens of the earlier prompt.
    Changed { part: Part, common: usize, reusable: usize },
}

impl Diagnosis {
    /// OpenAI's `prompt_cache_diagnostics` in the scale of a client, given the report of the tokens actually reused.
    pub(crate) fn openai(self, report: &Report, scale: TokenScale) -> CacheDiagnostics {
        match self {
            Diagnosis::NotFound => CacheDiagnostics::ComparisonResponseNotFound,
            Diagnosis::Changed { part, common, reusable } => CacheDiagnostics::CacheMiss {
                reason: match part {
                    Part::Model => MissReason::ModelChanged,
                    Part::Tools => MissReason::ToolsChanged,
                    Part::System | Part::Settings | Part::Messages => MissReason::InputChanged,
                },
                cache_missed_tokens: scale.between(common, reusable),
                comparison_reusable_tokens: scale.told(reusable),
            },
            Diagnosis::GoesOn { reusable } if report.cached_tokens >= reusable => CacheDiagnostics::CacheHit,
            // The request is not the cause; `kvik.cache.reason` gives it.
            Diagnosis::GoesOn { .. } | Diagnosis::Several => CacheDiagnostics::Unavailable,
        }
    }
}

/// OpenAI's `prompt_cache_diagnostics`.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum CacheDiagnostics {
    ComparisonResponseNotFound,
    CacheMiss { reason: MissReason, cache_missed_tokens: usize, comparison_reusable_tokens: usize },
    CacheHit,
    Unavailable,
}

/// What has changed.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
#[allow(clippy::enum_variant_names, reason = "they are sent under these names")]
pub(crate) enum MissReason {
    ModelChanged,
    ToolsChanged,
    InputChanged,
}

/// The remembered fingerprint of an answered prompt.
#[derive(Debug, PartialEq, Eq)]
struct Fingerprint {
    parts: Parts,
    prompt: PromptMarks,
}

/// Key of an answer among those of all tenants: salt and id.
type Key = ([u8; 16], String);

/// The fingerprints of recent answers.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    hasher: RandomState,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    fingerprints: HashMap<Key, Arc<Fingerprint>>,
    /// Oldest first.
    order: VecDeque<Key>,
    blocks: usize,
}

impl Answered {
    /// The hash of a part of a request; JSON is hashed as it is written.
    pub(crate) fn hash(&self, part: impl Hash) -> u64 {
        self.hasher.hash_one(part)
    }

    fn fingerprint(&self, parts: Parts, tokens: &[Token]) -> Fingerprint {
        Fingerprint { parts, prompt: PromptMarks::of(&self.hasher, (), tokens) }
    }

    fn find(&self, key: &Key) -> Option<Arc<Fingerprint>> {
        self.lock().fingerprints.get(key).cloned()
    }

    fn remember(&self, key: Key, fingerprint: Fingerprint) {
        let mut memory = self.lock();
        memory.blocks += fingerprint.prompt.chain.len();
        memory.order.push_back(key.clone());
        memory.fingerprints.insert(key, Arc::new(fingerprint));
        while memory.order.len() > ANSWERS_MAX || memory.blocks > BLOCKS_MAX {
            let Some(oldest) = memory.order.pop_front() else { break };
            let forgotten = memory.fingerprints.remove(&oldest);
            memory.blocks -= forgotten.map_or(0, |fingerprint| fingerprint.prompt.chain.len());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        // A panic with the lock held loses a fingerprint at most.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The input of an answer's comparison.
#[derive(Debug)]
pub(crate) struct Comparable {
    /// Id of the answer.
    pub(crate) id: String,
    pub(crate) parts: Parts,
    /// Id of the earlier answer that the client wants this one compared with.
    pub(crate) with: Option<String>,
}

/// The comparison that a request asked for, and the fingerprint to remember when it has been answered.
pub(crate) struct Comparison {
    answered: Arc<Answered>,
    key: Key,
    fingerprint: Option<Fingerprint>,
    diagnosis: Option<Diagnosis>,
}

impl Comparison {
    /// Compares the only one of `requests`; several prompts are neither compared nor remembered.
    pub(crate) fn new(answered: &Arc<Answered>, asked: Comparable, requests: &[Request]) -> Comparison {
        let Comparable { id, parts, with } = asked;
        let answered = answered.clone();
        let [request] = requests else {
            let diagnosis = with.map(|_| Diagnosis::Several);
            return Comparison { answered, key: ([0; 16], id), fingerprint: None, diagnosis };
        };
        let adapters = request.adapters.as_ref().map(AdapterMix::digest);
        let parts = Parts { model: answered.hash((parts.model, adapters)), ..parts };
        let fingerprint = answered.fingerprint(parts, &request.prompt);
        let diagnose = |with| match answered.find(&(request.salt, with)) {
            None => Diagnosis::NotFound,
            Some(earlier) => {
                let common = fingerprint.prompt.common(&answered.hasher, &earlier.prompt, &request.prompt);
                diagnose(&earlier, &fingerprint, common)
            }
        };
        let diagnosis = with.map(diagnose);
        Comparison { key: (request.salt, id), fingerprint: Some(fingerprint), diagnosis, answered }
    }

    /// The result, if a comparison was asked for.
    pub(crate) fn diagnosis(&self) -> Option<Diagnosis> {
        self.diagnosis
    }

    /// Remembers the complete answer, so that later ones can be compared with it.
    pub(crate) fn remember(&mut self) {
        if let Some(fingerprint) = self.fingerprint.take() {
            self.answered.remember(self.key.clone(), fingerprint);
        }
    }
}

fn diagnose(earlier: &Fingerprint, fingerprint: &Fingerprint, common: usize) -> Diagnosis {
    let (earlier_tokens, tokens) = (earlier.prompt.tokens, fingerprint.prompt.tokens);
    let reusable = earlier_tokens.min(tokens);
    // Blocks of another model are not reused, even for equal tokens.
    let common = if earlier.parts.model == fingerprint.parts.model { common } else { 0 };
    // The last token of a prompt is always computed.
    let goes_on = Diagnosis::GoesOn { reusable: common.min(tokens.saturating_sub(1)) };
    match first_change(&earlier.parts, &fingerprint.parts) {
        _ if common == earlier_tokens => goes_on,
        Some(part) => Diagnosis::Changed { part, common, reusable },
        None if common + OPENING_TOKENS >= earlier_tokens => goes_on,
        // The template renders earlier messages differently than before.
        None => Diagnosis::Changed { part: Part::Messages, common, reusable },
    }
}

/// The first part of an earlier request that has changed in this one.
fn first_change(earlier: &Parts, now: &Parts) -> Option<Part> {
    let changed = [
        (Part::Model, earlier.model != now.model),
        (Part::Tools, earlier.tools != now.tools),
        (Part::System, earlier.system != now.system),
        (Part::Settings, earlier.settings != now.settings),
        (Part::Messages, !now.messages.starts_with(&earlier.messages)),
    ];
    changed.into_iter().find(|(_, changed)| *changed).map(|(part, _)| part)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::http::answer::value;

    fn parts(messages: &[u64]) -> Parts {
        Parts { messages: messages.to_vec(), ..Parts::default() }
    }

    /// The diagnosis of a prompt `now` against one of `earlier`, each with its parts.
    fn diagnosis(earlier: (Parts, &[Token]), now: (Parts, &[Token])) -> Diagnosis {
        let answered = Answered::default();
        let earlier = answered.fingerprint(earlier.0, earlier.1);
        let fingerprint = answered.fingerprint(now.0, now.1);
        diagnose(&earlier, &fingerprint, fingerprint.prompt.common(&answered.hasher, &earlier.prompt, now.1))
    }

    #[test]
    fn a_conversation_that_goes_on() {
        let long: Vec<Token> = (0..100).collect();
        for tokens in [16, 17, 40, 99] {
            let found = diagnosis((parts(&[1]), &long[..tokens]), (parts(&[1, 2]), &long));
            assert_eq!(found, Diagnosis::GoesOn { reusable: tokens });
        }
        let again = diagnosis((parts(&[1]), &long), (parts(&[1]), &long));
        assert_eq!(again, Diagnosis::GoesOn { reusable: 99 }, "the last token is always computed");
    }

    #[test]
    fn the_first_part_that_changed_is_named() {
        let (long, mut other): (Vec<Token>, Vec<Token>) = ((0..100).collect(), (0..100).collect());
        other[40] = 7;
        let base = || parts(&[1, 2]);
        let check = |now: Parts, part| {
            let found = diagnosis((base(), &long), (now, &other));
            let common = if part == Part::Model { 0 } else { 32 };
            assert_eq!(found, Diagnosis::Changed { part, common, reusable: 100 });
        };
        check(Parts { model: 9, tools: 9, ..base() }, Part::Model);
        check(Parts { tools: 9, system: 9, ..base() }, Part::Tools);
        check(Parts { system: 9, settings: 9, ..base() }, Part::System);
        check(Parts { settings: 9, ..parts(&[3]) }, Part::Settings);
        check(parts(&[1, 3]), Part::Messages);
        check(parts(&[1]), Part::Messages);
        check(parts(&[1, 2, 3]), Part::Messages);
    }

    #[test]
    fn the_opening_of_an_answer_may_give_way() {
        let (long, mut other): (Vec<Token>, Vec<Token>) = ((0..100).collect(), (0..200).collect());
        other[97] = 7;
        assert_eq!(
            diagnosis((parts(&[1]), &long), (parts(&[1, 2]), &other)),
            Diagnosis::GoesOn { reusable: 96 }
        );
    }

    #[test]
    fn openais_words() {
        let report = |cached_tokens| Report { cached_tokens, ..Report::default() };
        let check = |found: Diagnosis, cached, expect: Value| {
            assert_eq!(value(&found.openai(&report(cached), TokenScale::default())), expect)
        };
        check(Diagnosis::NotFound, 0, json!({"type": "comparison_response_not_found"}));
        check(Diagnosis::Several, 0, json!({"type": "unavailable"}));
        check(Diagnosis::GoesOn { reusable: 96 }, 97, json!({"type": "cache_hit"}));
        check(Diagnosis::GoesOn { reusable: 96 }, 95, json!({"type": "unavailable"}));
        for (part, reason) in [
            (Part::Model, "model_changed"),
            (Part::Tools, "tools_changed"),
            (Part::System, "input_changed"),
            (Part::Messages, "input_changed"),
        ] {
            let miss = json!({
                "type": "cache_miss", "reason": reason,
                "cache_missed_tokens": 70, "comparison_reusable_tokens": 100,
            });
            check(Diagnosis::Changed { part, common: 30, reusable: 100 }, 30, miss);
        }
        let changed = Diagnosis::Changed { part: Part::Messages, common: 30, reusable: 100 };
        let told = value(&changed.openai(&report(30), TokenScale::of(1_000, 300)));
        assert_eq!(
            (&told["cache_missed_tokens"], &told["comparison_reusable_tokens"]),
            (&json!(234), &json!(334))
        );
    }

    #[test]
    fn the_memory_is_bounded_and_forgets_the_oldest() {
        let answered = Answered::default();
        let key = |i: usize| ([0; 16], format!("answer-{i}"));
        for i in 0..ANSWERS_MAX + 10 {
            answered.remember(key(i), answered.fingerprint(Parts::default(), &[1, 2, 3]));
        }
        assert_eq!(answered.lock().fingerprints.len(), ANSWERS_MAX);
        assert!(answered.find(&key(9)).is_none() && answered.find(&key(10)).is_some());
        let prompt = PromptMarks { tokens: 16, chain: vec![0; BLOCKS_MAX] };
        let long = Fingerprint { parts: Parts::default(), prompt };
        answered.remember(key(0), long);
        assert_eq!(answered.lock().fingerprints.len(), 1, "the long one alone fills the memory");
        assert_eq!(answered.lock().blocks, BLOCKS_MAX);
    }

    #[test]
    fn another_tenants_answer_is_not_found() {
        let answered = Answered::default();
        answered.remember(([1; 16], "a".into()), answered.fingerprint(Parts::default(), &[1]));
        assert!(answered.find(&([1; 16], "a".into())).is_some());
        assert!(answered.find(&([2; 16], "a".into())).is_none());
    }
}
