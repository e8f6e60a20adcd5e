//! `kvik.cache`: how much of a prompt came from the cache, from which tiers, and where and why the match ended.

use std::{
    iter::Sum,
    ops::{Range, Sub},
    sync::Arc,
    time::Duration,
};

use kvik_cache::{
    Eviction, StopReason, Token,
    tier::{ByLevel, Level},
};
use kvik_engine::api::{Probe, Report};
use kvik_session::Texts;
use serde::Serialize;
use serde_json::Value;

use super::spans::{message_spans, messages};
use crate::described::JsonSchema;

/// Characters of text shown on each side of the position where reuse stopped.
const AROUND_CHARS: usize = 60;

/// How much of a prompt came, or would come, from the cache, and why no more.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct CacheReport {
    prompt_tokens: usize,
    cached_tokens: usize,
    by_tier: ByTier,
    /// Prompt tokens that are those of an answer as it was generated, where the tokenizer would have chosen others; absent
    /// where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    retokenised: Option<usize>,
    /// Where in the prompt reuse ended; null where it did not, or where that is not known.
    stopped_at: Option<StoppedAt>,
    reason: Option<&'static str>,
    /// How what comes next was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    evicted: Option<Evicted>,
}

/// Where what comes from the cache is.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct ByTier<T = usize> {
    /// Where it is computed with: in RAM, or in the memory of a GPU.
    ram: T,
    /// In the host's memory, of what a GPU computes with; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<T>,
    disk: T,
    /// From the store that nodes share; absent where nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    remote: Option<T>,
}

impl<T: Copy + Default + Ord + Sub<Output = T> + Sum> ByTier<T> {
    pub(crate) fn new(ram: T, disk: T) -> ByTier<T> {
        ByTier { ram, host: None, disk, remote: None }
    }

    /// Divides what is cached into RAM and the tiers from which it was loaded.
    pub(crate) fn of(cached: T, loaded: ByLevel<T>) -> ByTier<T> {
        let some = |count| (count != T::default()).then_some(count);
        ByTier {
            ram: cached - loaded.total().min(cached),
            host: some(loaded[Level::Host]),
            disk: loaded[Level::Disk],
            remote: some(loaded[Level::Remote]),
        }
    }
}

/// A place in a prompt.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
struct StoppedAt {
    token: usize,
    /// Index of the message that it stands in.
    message: Option<usize>,
    role: Option<String>,
    before: String,
    after: String,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
struct Evicted {
    seconds_ago: f64,
    policy: &'static str,
}

/// A prompt as it was asked, to locate a token in it.
pub(crate) struct Asked {
    pub(crate) texts: Arc<Texts>,
    pub(crate) tokens: Vec<Token>,
    /// The conversation that the tokens were made from, if there was one.
    pub(crate) messages: Option<Value>,
}

/// The part of a prompt that was, or would be, found in the cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// Prompt tokens that need not be computed.
    pub(crate) cached_tokens: usize,
    /// Cached tokens that come from tiers below RAM.
    pub(crate) loaded: ByLevel,
    /// Prompt tokens that are not the tokenizer's choice, but those of an answer as it was generated.
    pub(crate) retokenised: usize,
    /// Why the match ended there; `None` if the engine does not report it.
    pub(crate) stop: Option<StopReason>,
    /// The eviction that removed the next block, if it was evicted.
    pub(crate) evicted: Option<Eviction>,
    /// Time of the lookup, on the clock of the eviction.
    pub(crate) now: Duration,
}

impl From<&Report> for Found {
    fn from(report: &Report) -> Found {
        Found {
            cached_tokens: report.cached_tokens,
            loaded: report.loaded,
            retokenised: report.retokenised,
            stop: report.cache,
            evicted: report.evicted,
            now: report.admitted_at,
        }
    }
}

impl From<Probe> for Found {
    fn from(probe: Probe) -> Found {
        Found {
            cached_tokens: probe.known_tokens,
            loaded: probe.loaded,
            retokenised: probe.retokenised,
            stop: Some(probe.stop),
            evicted: probe.evicted,
            now: probe.at,
        }
    }
}

impl Found {
    pub(crate) fn by_tier(&self) -> ByTier {
        ByTier::of(self.cached_tokens, self.loaded)
    }
}

impl Asked {
    /// The object `kvik.cache`.
    pub(crate) fn cache_report(&self, found: Found) -> CacheReport {
        let ended = !matches!(found.stop, None | Some(StopReason::Complete));
        let evicted = |Eviction { at, policy }| Evicted {
            seconds_ago: found.now.saturating_sub(at).as_millis() as f64 / 1e3,
            policy: policy.name(),
        };
        CacheReport {
            prompt_tokens: self.tokens.len(),
            cached_tokens: found.cached_tokens,
            by_tier: found.by_tier(),
            retokenised: (found.retokenised > 0).then_some(found.retokenised),
            stopped_at: if ended { self.stopped_at(found.cached_tokens) } else { None },
            reason: found.stop.map(StopReason::name),
            evicted: found.evicted.map(evicted),
        }
    }

    /// The location of the token with index `token`; `None` at the end of the prompt.
    fn stopped_at(&self, token: usize) -> Option<StoppedAt> {
        let stopped = *self.tokens.get(token)?;
        let bytes = |token: &Token| self.texts.tokenizer.token_bytes(*token);
        let text: Vec<u8> = self.tokens.iter().flat_map(bytes).copied().collect();
        let start = self.tokens[..token].iter().map(|token| bytes(token).len()).sum();
        let (before, after) = around(&text, start);
        let (message, role) = self.message_at(&text, start..start + bytes(&stopped).len()).unzip();
        Some(StoppedAt { token, message, role, before, after })
    }

    /// Index and role of the message that a piece of the prompt is part of.
    fn message_at(&self, text: &[u8], piece: Range<usize>) -> Option<(usize, String)> {
        let messages = messages(self.messages.as_ref()?);
        let spans = message_spans(std::str::from_utf8(text).ok()?, &messages);
        let touches = |place: &Range<usize>| place.start < piece.end && piece.start < place.end;
        let index = spans.iter().position(|place| place.as_ref().is_some_and(touches))?;
        Some((index, messages[index].role.to_owned()))
    }
}

/// The text on both sides of byte `at`, a bounded number of whole characters; invalid UTF-8 becomes U+FFFD. A character
/// that begins before `at` belongs to the right side.
fn around(text: &[u8], at: usize) -> (String, String) {
    let start = |at: usize| (at.saturating_sub(3)..=at).rev().find(|&i| is_start(text, i)).unwrap_or(at);
    let at = start(at);
    // No character has more than four bytes.
    let from = start(at.saturating_sub(4 * AROUND_CHARS));
    let to = start((at + 4 * AROUND_CHARS).min(text.len()));
    let before = String::from_utf8_lossy(&text[from..at]);
    let after = String::from_utf8_lossy(&text[at..to]);
    let skipped = before.chars().count().saturating_sub(AROUND_CHARS);
    (before.chars().skip(skipped).collect(), after.chars().take(AROUND_CHARS).collect())
}

/// Whether a character begins at byte `at`, or the text ends there.
fn is_start(text: &[u8], at: usize) -> bool {
    text.get(at).is_none_or(|byte| byte & 0xC0 != 0x80)
}

#[cfg(test)]
mod tests {
    use kvik_cache::Policy;

    use serde_json::json;

    use super::*;
    use crate::http::answer::value;
    use kvik_serving::settings::model::ModelArgs;

    fn asked(text: &str, messages: Option<Value>) -> Asked {
        let tokenizer = ModelArgs::embedded().load().unwrap().tokenizer;
        let tokens = tokenizer.encode(text, false, true);
        Asked { texts: Arc::new(Texts::new(tokenizer, None, 0)), tokens, messages }
    }

    fn stopped(cached_tokens: usize, stop: StopReason) -> Found {
        Found {
            cached_tokens,
            loaded: ByLevel::default(),
            retokenised: 0,
            stop: Some(stop),
            evicted: None,
            now: Duration::ZERO,
        }
    }

    #[test]
    fn characters_stay_whole_and_few() {
        let check = |text: &str, at: usize, before: &str, after: &str| {
            assert_eq!(around(text.as_bytes(), at), (before.to_owned(), after.to_owned()));
        };
        check("Grüße", 2, "Gr", "üße");
        check("Grüße", 3, "Gr", "üße");
        check("日本", 0, "", "日本");
        check("日本", 6, "日本", "");
        let (before, after) = around("🎉".repeat(500).as_bytes(), 1001);
        assert_eq!((before, after), ("🎉".repeat(60), "🎉".repeat(60)));
        let (before, after) = around(&[0x80; 1000], 500);
        assert!(before.chars().count() <= 60 && after.chars().count() <= 60);
    }

    #[test]
    fn a_token_is_found_in_its_message() {
        let said = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Which day is it today?"},
        ]);
        let prompt =
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhich day is it today?<|im_end|>\n";
        let asked = asked(prompt, Some(said));
        let inside = |text: &str, piece: &Range<usize>| {
            let start = prompt.find(text).unwrap();
            piece.start < start + text.len() && start < piece.end
        };
        for token in 0..asked.tokens.len() {
            let report = value(&asked.cache_report(stopped(token, StopReason::Diverged)));
            let end = |tokens| asked.texts.tokenizer.decode(&asked.tokens[..tokens]).len();
            let piece = end(token)..end(token + 1);
            let expect = match piece {
                piece if inside("Be brief.", &piece) => json!([0, "system"]),
                piece if inside("Which day is it today?", &piece) => json!([1, "user"]),
                _ => json!([null, null]),
            };
            let stopped = &report["stopped_at"];
            assert_eq!(json!([stopped["message"], stopped["role"]]), expect, "{stopped}");
            assert_eq!(stopped["token"], token);
            let (before, after) = (stopped["before"].as_str().unwrap(), stopped["after"].as_str().unwrap());
            assert!(prompt.contains(&format!("{before}{after}")), "{stopped}");
        }
    }

    #[test]
    fn what_is_complete_stops_nowhere() {
        let asked = asked("Once upon a time", None);
        for stop in [Some(StopReason::Complete), None] {
            let found = Found { stop, ..stopped(3, StopReason::Complete) };
            assert_eq!(value(&asked.cache_report(found))["stopped_at"], Value::Null);
        }
        let past_the_end = value(&asked.cache_report(stopped(asked.tokens.len(), StopReason::Diverged)));
        assert_eq!(past_the_end["stopped_at"], Value::Null);
    }

    #[test]
    fn an_eviction_says_when_and_by_whom() {
        let asked = asked("Once upon a time", None);
        let evicted = Some(Eviction { at: Duration::from_millis(2500), policy: Policy::Lru });
        let found = Found { evicted, now: Duration::from_secs(4), ..stopped(1, StopReason::Evicted) };
        let report = value(&asked.cache_report(found));
        assert_eq!(report["reason"], "evicted");
        assert_eq!(report["evicted"], json!({"seconds_ago": 1.5, "policy": "lru"}));
        assert!(value(&asked.cache_report(stopped(1, StopReason::Diverged))).get("evicted").is_none());
    }

    #[test]
    fn tiers_add_up() {
        let asked = asked("Once upon a time", None);
        for level in Level::ALL {
            let loaded = ByLevel::of(level, 2);
            let found = Found { loaded, ..stopped(3, StopReason::LoadFailed) };
            let report = value(&asked.cache_report(found));
            let by_tier = &report["by_tier"];
            assert_eq!((&by_tier["ram"], &by_tier[level.name()]), (&json!(1), &json!(2)), "{by_tier}");
        }
    }
}
