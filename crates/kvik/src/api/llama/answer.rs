//! The answer of `/completion`, in llama-server's words.

use std::{sync::Arc, time::Instant};

use kvik_engine::api::{Event, FinishReason, GeneratedToken, TokenLogprob};
use serde_json::{Value, json};

use crate::{
    api::{logprobs::finite, progress::Progress},
    app::{
        generation::Answer,
        report::{trailer::Trailer, usage},
        slots::SlotUse,
        wire::Wire,
    },
};

/// What the request said that the answer repeats.
#[derive(Debug, Clone)]
pub(crate) struct Echo {
    pub(crate) model: String,
    /// `generation_settings`.
    pub(crate) settings: Value,
    pub(crate) stop: Vec<String>,
    /// The slot that the client named.
    pub(crate) slot: Option<SlotUse>,
    /// Text of each prompt.
    pub(crate) prompts: Vec<Arc<str>>,
    /// Tokens of an answer at most.
    pub(crate) max_tokens: usize,
    /// Tokens of prompt and answer together at most.
    pub(crate) context: usize,
    /// The client asked for the token ids.
    pub(crate) return_tokens: bool,
    /// The client asked for log-probabilities.
    pub(crate) probabilities: bool,
    /// Since when the prompt is computed, where the client asked how far that is.
    pub(crate) progress: Option<Instant>,
    /// Paths of the fields that the client asked for; all where there are none.
    pub(crate) fields: Vec<String>,
}

/// The answer as far as it is known: one result per choice of each prompt.
#[derive(Debug)]
pub(crate) struct LlamaAnswer {
    echo: Echo,
    choices_per_prompt: usize,
    results: Vec<Choice>,
}

#[derive(Debug, Default)]
struct Choice {
    content: String,
    tokens: Vec<u32>,
    probabilities: Vec<Value>,
    finish: Option<FinishReason>,
}

impl Choice {
    /// Tokens generated: the one that ended the answer is none of its text.
    fn generated(&self) -> usize {
        self.tokens.len() + usize::from(self.finish == Some(FinishReason::Eos))
    }
}

impl LlamaAnswer {
    pub(crate) fn new(echo: Echo, choices_per_prompt: usize) -> LlamaAnswer {
        let count = echo.prompts.len() * choices_per_prompt;
        LlamaAnswer { echo, choices_per_prompt, results: (0..count).map(|_| Choice::default()).collect() }
    }

    fn text(&mut self, index: usize, text: &str, tokens: &[GeneratedToken], frames: &mut Vec<Value>) {
        let slot = self.slot();
        let Some(result) = self.results.get_mut(index) else { return };
        let ids: Vec<u32> = tokens.iter().map(|token| token.token).collect();
        let probabilities: Vec<Value> = tokens.iter().filter_map(probability).collect();
        result.content.push_str(text);
        result.tokens.extend_from_slice(&ids);
        result.probabilities.extend_from_slice(&probabilities);
        let mut frame = json!({
            "index": index,
            "content": text,
            "tokens": ids,
            "stop": false,
            "id_slot": slot,
            "tokens_predicted": result.tokens.len(),
        });
        if !probabilities.is_empty() {
            frame["completion_probabilities"] = Value::Array(probabilities);
        }
        frames.push(frame);
    }

    /// As llama-server numbers it; -1 where the client named none.
    fn slot(&self) -> i64 {
        self.echo.slot.as_ref().map_or(-1, |slot| slot.key.1 as i64)
    }

    /// The report is the whole prompt's; a prompt has one result here unless `n` was sent.
    fn done(&self, prompt: usize, trailer: &Trailer, frames: &mut Vec<Value>) {
        let first = prompt * self.choices_per_prompt;
        for index in first..first + self.choices_per_prompt {
            let mut last = self.result(index, trailer);
            // The content has been streamed already.
            last["content"] = json!("");
            last["tokens"] = json!([]);
            if let Value::Object(last) = &mut last {
                last.remove("completion_probabilities");
            }
            frames.push(self.chosen(last));
        }
    }

    fn result(&self, index: usize, trailer: &Trailer) -> Value {
        let result = &self.results[index];
        let prompt = index / self.choices_per_prompt;
        let report = trailer.report(prompt);
        let (stop_type, stopping_word) = match result.finish {
            Some(FinishReason::StopString(i)) => ("word", self.echo.stop.get(i).map_or("", String::as_str)),
            Some(FinishReason::Length) => ("limit", ""),
            Some(FinishReason::Eos | FinishReason::ConstraintDone) => ("eos", ""),
            None => ("none", ""),
        };
        let predicted = match self.choices_per_prompt {
            1 => report.generated_tokens,
            _ => result.generated(),
        };
        // The context was full before the answer was as long as it might be.
        let ran_out =
            predicted < self.echo.max_tokens || report.prompt_tokens + predicted > self.echo.context;
        let mut json = json!({
            "index": index,
            "content": result.content,
            "tokens": if self.echo.return_tokens { result.tokens.as_slice() } else { &[] },
            "id_slot": self.slot(),
            "stop": true,
            "model": self.echo.model,
            "tokens_predicted": predicted,
            "tokens_evaluated": report.prompt_tokens,
            "tokens_cached": report.cached_tokens,
            "generation_settings": self.echo.settings,
            "prompt": &*self.echo.prompts[prompt],
            "has_new_line": result.content.contains('\n'),
            "truncated": result.finish == Some(FinishReason::Length) && ran_out,
            "stop_type": stop_type,
            "stopping_word": stopping_word,
            "usage": usage::usage(&report),
            "timings": usage::timings(&report),
            "kvik": trailer.kvik(prompt),
        });
        if self.echo.probabilities {
            json["completion_probabilities"] = Value::Array(result.probabilities.clone());
        }
        json
    }

    /// How far a prompt is computed.
    fn progress(&self, prompt: usize, progress: Progress, frames: &mut Vec<Value>) {
        let Some(since) = self.echo.progress else { return };
        frames.push(json!({
            "index": prompt * self.choices_per_prompt,
            "content": "",
            "tokens": [],
            "stop": false,
            "id_slot": self.slot(),
            "tokens_predicted": 0,
            "tokens_evaluated": progress.total,
            "prompt_progress": progress.json(since),
        }));
    }

    /// Of a whole result what the client asked for.
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

    fn take(&mut self, prompt: usize, event: Event, trailer: &Trailer, frames: &mut Vec<Value>) {
        let index = |choice: u32| prompt * self.choices_per_prompt + choice as usize;
        match event {
            Event::Text { choice, text, tokens } => self.text(index(choice), &text, &tokens, frames),
            Event::Finished { choice, reason } => {
                let index = index(choice);
                self.results[index].finish = Some(reason);
                if let Some(slot) = &self.echo.slot {
                    slot.ended(&self.results[index].tokens);
                }
            }
            Event::Done(_) => self.done(prompt, trailer, frames),
            Event::Prefill { cached, done, total } => {
                self.progress(prompt, Progress { cached, done, total }, frames);
            }
            Event::Vector(_) | Event::Failed(_) => {}
        }
    }

    /// One object, or an array of them where there are several.
    fn whole(self, trailer: &Trailer) -> Value {
        let mut results: Vec<Value> =
            (0..self.results.len()).map(|i| self.chosen(self.result(i, trailer))).collect();
        if results.len() == 1 { results.remove(0) } else { Value::Array(results) }
    }
}

fn probability(token: &GeneratedToken) -> Option<Value> {
    let (chosen, likeliest) = token.logprob.as_ref()?;
    let mut entry = entry(chosen);
    entry["top_logprobs"] = likeliest.iter().map(self::entry).collect();
    Some(entry)
}

fn entry(token: &TokenLogprob) -> Value {
    json!({
        "id": token.token,
        "token": String::from_utf8_lossy(&token.bytes),
        "bytes": token.bytes,
        "logprob": finite(token.logprob),
    })
}
