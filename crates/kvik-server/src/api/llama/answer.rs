//! The answer of `/completion`, in llama-server's format.

use std::{mem, sync::Arc, time::Instant};

use kvik_engine::api::{Event, FinishReason, GeneratedToken, Request, TokenLogprob};
use kvik_text::measure::json_bytes;
use serde::Serialize;
use serde_json::{Map, Value};

use super::settings::Settings;
use crate::{
    api::{
        logprobs::{finite, text_bytes},
        progress::{Progress, PromptProgress},
    },
    app::{
        generation::Answer,
        report::{
            loops,
            trailer::{KvikReport, Trailer},
            usage::{Timings, Usage},
        },
        slots::SlotUse,
        wire::Wire,
    },
    described::JsonSchema,
    http::answer::{OneOrAll, value, written},
};

/// An answer. Where the request names fields, those alone are there, under their paths.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LlamaCompletion")]
pub(super) struct Completion {
    index: usize,
    content: String,
    tokens: Vec<u32>,
    id_slot: i64,
    stop: bool,
    model: String,
    tokens_predicted: usize,
    tokens_evaluated: usize,
    tokens_cached: usize,
    generation_settings: Settings,
    prompt: String,
    has_new_line: bool,
    truncated: bool,
    stop_type: StopType,
    stopping_word: String,
    usage: Usage,
    timings: Timings,
    kvik: KvikReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_probabilities: Option<Vec<Probability>>,
}

/// The fields of an answer that `response_fields` names, by their paths.
#[derive(JsonSchema)]
#[schemars(rename = "LlamaChosen")]
#[allow(dead_code, reason = "a description: `chosen` picks from an answer")]
pub(super) struct Chosen(Map<String, Value>);

/// What is answered.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
#[allow(dead_code, clippy::large_enum_variant, reason = "a description: `whole` is one of these")]
pub(super) enum Whole {
    One(Completion),
    Several(Vec<Completion>),
    Chosen(Chosen),
    SeveralChosen(Vec<Chosen>),
}

/// The data of an event: more of an answer, or its end.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
#[allow(dead_code, clippy::large_enum_variant, reason = "a description: each is sent by itself")]
pub(super) enum Sent {
    More(Frame),
    End(Completion),
    Chosen(Chosen),
}

/// Why an answer ends.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum StopType {
    Word,
    Limit,
    Eos,
    None,
}

/// What is new of an answer, or how far its prompt is computed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LlamaFrame")]
pub(super) struct Frame {
    index: usize,
    content: String,
    tokens: Vec<u32>,
    stop: bool,
    id_slot: i64,
    tokens_predicted: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_evaluated: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<PromptProgress>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    completion_probabilities: Vec<Probability>,
}

/// A generated token, with the likeliest ones beside it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "LlamaProbability")]
struct Probability {
    #[serde(flatten)]
    chosen: TokenEntry,
    top_logprobs: Vec<TokenEntry>,
}

/// A token and how likely it was.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "LlamaToken")]
struct TokenEntry {
    id: u32,
    token: String,
    /// Those that it adds to the text: none of a control token, of which `token` is the name.
    bytes: Vec<u8>,
    /// -9999 of one that is forbidden.
    logprob: f64,
}

/// Request settings that the answer repeats or depends on.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct Echo {
    pub(crate) model: String,
    /// All but the seed, which is each prompt's own.
    pub(super) settings: Settings,
    /// Seed of each prompt.
    pub(crate) seeds: Vec<u64>,
    pub(crate) stop: Vec<String>,
    /// The slot that the client named.
    pub(crate) slot: Option<SlotUse>,
    /// Text of each prompt.
    pub(crate) prompts: Vec<Arc<str>>,
    /// Maximum tokens of an answer.
    pub(crate) max_tokens: usize,
    /// Maximum tokens of prompt and answer together.
    pub(crate) context: usize,
    /// An answer may also end at a line.
    pub(crate) ends_at_lines: bool,
    /// The client asked for the token ids.
    pub(crate) return_tokens: bool,
    /// The client asked for log-probabilities.
    pub(crate) probabilities: bool,
    /// Start time for progress reports, if the client asked for them.
    pub(crate) progress: Option<Instant>,
    /// Paths of the fields that the client asked for; if empty, all fields.
    pub(crate) fields: Vec<String>,
}

/// The answer as generated so far: one result per choice of each prompt.
#[derive(Debug)]
pub(crate) struct LlamaAnswer {
    echo: Echo,
    choices_per_prompt: usize,
    results: Vec<Choice>,
    /// Whether log-probabilities are kept for the whole answer; a stream has sent them.
    keeps_probabilities: bool,
}

#[derive(Debug, Default)]
struct Choice {
    content: String,
    tokens: Vec<u32>,
    probabilities: Vec<Probability>,
    finish: Option<FinishReason>,
}

impl LlamaAnswer {
    pub(crate) fn new(echo: Echo, choices_per_prompt: usize) -> LlamaAnswer {
        let count = echo.prompts.len() * choices_per_prompt;
        let results = (0..count).map(|_| Choice::default()).collect();
        LlamaAnswer { echo, choices_per_prompt, results, keeps_probabilities: true }
    }

    fn text(&mut self, index: usize, text: &str, tokens: &[GeneratedToken], frames: &mut Vec<Value>) {
        let slot = self.slot();
        let Some(result) = self.results.get_mut(index) else { return };
        let ids: Vec<u32> = tokens.iter().map(|token| token.token).collect();
        let completion_probabilities: Vec<Probability> = tokens.iter().filter_map(probability).collect();
        result.content.push_str(text);
        result.tokens.extend_from_slice(&ids);
        if self.keeps_probabilities {
            result.probabilities.extend_from_slice(&completion_probabilities);
        }
        frames.push(value(&Frame {
            index,
            content: text.to_owned(),
            tokens: ids,
            stop: false,
            id_slot: slot,
            tokens_predicted: result.tokens.len(),
            tokens_evaluated: None,
            prompt_progress: None,
            completion_probabilities,
        }));
    }

    /// Returns the number of the slot in llama-server's format; -1 if the client named none.
    fn slot(&self) -> i64 {
        self.echo.slot.as_ref().map_or(-1, |slot| slot.key.1 as i64)
    }

    /// Sends the last frames of a prompt, which has one result unless `n` was sent.
    fn done(&self, prompt: usize, trailer: &Trailer, frames: &mut Vec<Value>) {
        let first = prompt * self.choices_per_prompt;
        for index in first..first + self.choices_per_prompt {
            // The content was streamed already.
            let last =
                Completion { content: String::new(), tokens: Vec::new(), ..self.result(index, trailer) };
            frames.push(self.chosen(value(&last)));
        }
    }

    /// Formats a result without its log-probabilities.
    fn result(&self, index: usize, trailer: &Trailer) -> Completion {
        let result = &self.results[index];
        let (prompt, choice) = (index / self.choices_per_prompt, index % self.choices_per_prompt);
        let report = trailer.report_of_choice(prompt, choice);
        let (stop_type, stopping_word) = match result.finish {
            Some(FinishReason::StopString(i)) => {
                (StopType::Word, self.echo.stop.get(i).cloned().unwrap_or_default())
            }
            Some(FinishReason::Length) => (StopType::Limit, String::new()),
            Some(FinishReason::Eos | FinishReason::ConstraintDone | FinishReason::Loop(_)) => {
                (StopType::Eos, String::new())
            }
            None => (StopType::None, String::new()),
        };
        let predicted = report.generated_tokens;
        // The context was full before the answer reached its maximum length, unless a line ended it.
        let is_short = predicted < self.echo.max_tokens && !self.echo.ends_at_lines;
        let ran_out = is_short || report.prompt_tokens + predicted > self.echo.context;
        Completion {
            index,
            content: result.content.clone(),
            tokens: if self.echo.return_tokens { result.tokens.clone() } else { Vec::new() },
            id_slot: self.slot(),
            stop: true,
            model: self.echo.model.clone(),
            tokens_predicted: predicted,
            tokens_evaluated: report.prompt_tokens,
            tokens_cached: report.cached_tokens,
            generation_settings: self.echo.settings.with_seed(self.echo.seeds[prompt]),
            prompt: self.echo.prompts[prompt].to_string(),
            has_new_line: result.content.contains('\n'),
            truncated: result.finish == Some(FinishReason::Length) && ran_out,
            stop_type,
            stopping_word,
            usage: trailer.usage_of_choice(&report, choice),
            timings: Timings::of(&report),
            kvik: trailer.kvik(prompt),
            completion_probabilities: None,
        }
    }

    /// Sends the progress of a prompt, if the client asked for it.
    fn progress(&self, prompt: usize, progress: Progress, frames: &mut Vec<Value>) {
        let Some(since) = self.echo.progress else { return };
        frames.push(value(&Frame {
            index: prompt * self.choices_per_prompt,
            content: String::new(),
            tokens: Vec::new(),
            stop: false,
            id_slot: self.slot(),
            tokens_predicted: 0,
            tokens_evaluated: Some(progress.total),
            prompt_progress: Some(progress.since(since)),
            completion_probabilities: Vec::new(),
        }));
    }

    /// Selects the fields of a complete result that the client asked for.
    fn chosen(&self, result: Value) -> Value {
        if self.echo.fields.is_empty() {
            return result;
        }
        let found = |path: &String| {
            let value = path.split('/').try_fold(&result, |value, name| value.get(name))?;
            Some((path.clone(), value.clone()))
        };
        Value::Object(self.echo.fields.iter().filter_map(found).collect())
    }
}

impl Answer for LlamaAnswer {
    const WIRE: Wire = Wire::Data { last: None };

    /// Each prompt and its settings, and both in the result of each choice and in its text.
    fn repeated_bytes(&self) -> u64 {
        let settings = self.echo.prompts.len() * json_bytes(&self.echo.settings);
        let prompts: usize = self.echo.prompts.iter().map(|prompt| prompt.len()).sum();
        ((1 + 2 * self.choices_per_prompt) * (prompts + settings)) as u64
    }

    /// A stream sends log-probabilities with their tokens, and never again.
    fn start(&mut self, _frames: &mut Vec<Value>) {
        self.keeps_probabilities = false;
    }

    fn asks(&mut self, requests: &[Request]) {
        if let (Some(slot), [request]) = (&mut self.echo.slot, requests) {
            slot.prompt.clone_from(&request.prompt);
        }
    }

    fn take(&mut self, prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>) {
        let index = |choice: u32| prompt * self.choices_per_prompt + choice as usize;
        match event {
            Event::Text { choice, text, tokens } => self.text(index(choice), &text, &tokens, frames),
            Event::Finished { choice, reason } => {
                let index = index(choice);
                self.results[index].finish = Some(reason);
                loops::cut(&mut self.results[index].content, reason);
                if let Some(slot) = &self.echo.slot {
                    slot.ended(&self.results[index].tokens);
                }
            }
            Event::Done(_) => self.done(prompt, trailer, frames),
            Event::Prefill { cached, done, total } => {
                self.progress(prompt, Progress { cached, done, total }, frames);
            }
            Event::Unconstrained(_) | Event::Vector(_) | Event::Failed(_) => {}
        }
    }

    /// Formats one object, or an array if there are several results.
    fn whole(mut self, trailer: &Trailer) -> Vec<u8> {
        let results: Vec<Completion> = (0..self.results.len())
            .map(|i| {
                let probabilities = mem::take(&mut self.results[i].probabilities);
                let completion_probabilities = self.echo.probabilities.then_some(probabilities);
                Completion { completion_probabilities, ..self.result(i, trailer) }
            })
            .collect();
        if self.echo.fields.is_empty() {
            return written(&OneOrAll::from(results));
        }
        let chosen: Vec<Value> = results.iter().map(|result| self.chosen(value(result))).collect();
        written(&OneOrAll::from(chosen))
    }
}

fn probability(token: &GeneratedToken) -> Option<Probability> {
    let (chosen, likeliest) = token.logprob.as_ref()?;
    Some(Probability { chosen: entry(chosen), top_logprobs: likeliest.iter().map(entry).collect() })
}

fn entry(token: &TokenLogprob) -> TokenEntry {
    TokenEntry {
        id: token.token,
        token: String::from_utf8_lossy(&token.bytes).into_owned(),
        bytes: text_bytes(token).to_vec(),
        logprob: finite(token.logprob),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tests::token;

    #[test]
    fn each_choice_repeats_its_prompt() {
        let answer = |prompts: usize, choices: usize| {
            let echo = Echo { prompts: vec!["x".repeat(1000).into(); prompts], ..Echo::default() };
            LlamaAnswer::new(echo, choices).repeated_bytes()
        };
        assert!((3000..6000).contains(&answer(1, 1)), "{}", answer(1, 1));
        assert_eq!([answer(1, 4), answer(2, 4)], [3 * answer(1, 1), 6 * answer(1, 1)]);
    }

    #[test]
    fn a_stream_holds_no_log_probabilities() {
        for (is_stream, held) in [(true, 0), (false, 1000)] {
            let echo = Echo { prompts: vec!["Hi".into()], probabilities: true, ..Echo::default() };
            let (mut answer, mut frames) = (LlamaAnswer::new(echo, 1), Vec::new());
            if is_stream {
                answer.start(&mut frames);
            }
            for id in 0..1000 {
                answer.text(0, "x", &[token(id, "x", true)], &mut frames);
            }
            assert_eq!(answer.results[0].probabilities.len(), held);
            let sent = frames.iter().filter_map(|frame| frame["completion_probabilities"].as_array());
            assert_eq!(sent.map(Vec::len).sum::<usize>(), 1000);
        }
    }
}
