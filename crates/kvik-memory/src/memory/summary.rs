//! Making of a summary: requested at the end of the conversation itself, whose beginning is in the cache; or of the
//! dropped messages, shortened and in pieces, each together with the summary so far.
//!
//! What the model gives is [judged](crate::context::summaries). If it cannot be used, the facts of the pieces are
//! requested, and if these cannot either, sentences of a piece stand for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvik_text::answer::{AnswerDelta, AnswerParser, AnswerPlace, AnswerStart};

use crate::context::{
    chain::text_of,
    lighten::{Lighten, TOOL_CHARS_MIN, lighten, shortened},
    segments::exchanges,
    summaries::{Extraction, Flaw, Replaced, SummaryDraft, complete, extract, judge},
};
use kvik_cache::{Lifetime, Token};
use kvik_engine::api::{Pace, Report, Request, Sampling};
use serde_json::{Value, json};

use super::Memory;
use super::book::{Summary, SummaryKind};
use super::host::{GoesOn, Host, Spoken};
use super::job::Rebuild;
use super::latest::{Ahead, Wanted};
use super::observer::SummaryOutcome;
use super::render::{ComputeTerms, Purpose, Render};
use crate::clock::unix_seconds;

/// Maximum number of pieces of a history that are summarised one after the other; a longer history is sampled.
const PIECES_MAX: usize = 8;
/// Share of the conversation's remaining room that a summary may use, and share of the room left after it that the
/// prefill after it may use; the prefill of messages that came meanwhile uses the same share again, and so on.
const SUMMARY_SHARE: f64 = 0.3;
const AHEAD_SHARE: f64 = 0.6;
/// Maximum characters of a tool's output in the input of a summary.
const TOOL_CHARS: usize = 1024;
/// Characters of a token at most in the first attempt to shorten a message.
const CHARS_PER_TOKEN: usize = 4;
/// Requests apart from the conversation, in the order in which they are tried.
static APART: [SummaryKind; 2] = [SummaryKind::Summary, SummaryKind::Facts];
/// Temperature for facts: a model whose likeliest answer says nothing would mostly give it again.
const FACTS_TEMPERATURE: f32 = 0.6;

/// A summary in the making.
pub(super) struct Making<H: Host> {
    host: Arc<H>,
    caller: H::Caller,
    rebuild: Arc<Rebuild<H::Error>>,
    pub(super) wanted: Wanted,
    /// True if a client waits for it.
    is_waited_for: bool,
    /// Cost so far.
    spent: Mutex<Report>,
}

impl<H: Host> Making<H> {
    /// Makes the summary in the background.
    pub(super) fn new(
        host: Arc<H>,
        caller: H::Caller,
        rebuild: Arc<Rebuild<H::Error>>,
        wanted: Wanted,
    ) -> Making<H> {
        Making { host, caller, rebuild, wanted, is_waited_for: false, spent: Mutex::default() }
    }

    /// Makes the summary for a client that waits.
    pub(super) fn waited_for(self) -> Making<H> {
        Making { is_waited_for: true, ..self }
    }

    /// The memory of conversations.
    pub(super) fn memory(&self) -> &Memory<H> {
        self.host.memory()
    }

    /// Cost so far.
    pub(super) fn spent(&self) -> Report {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Report> {
        // A panic leaves the sums consistent.
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs blocking work on a thread for it.
    async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Memory<H>, &Rebuild<H::Error>, GoesOn<'_, H::Error>) -> Result<T, H::Error>
        + Send
        + 'static,
    ) -> Result<T, H::Error> {
        let (memory, rebuild) = (self.host.memory().clone(), self.rebuild.clone());
        let work = move |goes_on: GoesOn<'_, H::Error>| work(&memory, &rebuild, goes_on);
        self.host.apart(&self.caller, self.is_waited_for, work).await
    }
}

impl<H: Host> Making<H> {
    /// Makes the summary, and prefills the conversation that continues after it.
    pub(super) async fn run(&self) -> Result<(), H::Error> {
        let book = &self.memory().book;
        // A turn that began before the summary existed ends after it: then only its messages are prefilled.
        let summary = match book.get(self.wanted.key()) {
            Some(summary) => summary,
            None => self.summary().await?,
        };
        if !self.wanted.keep(summary.clone(), book) {
            return Ok(());
        }
        // Turns that were answered meanwhile are prefilled too, so that the next turn finds all of it in the cache.
        while let Some((turns, ahead)) = self.wanted.ahead() {
            self.compute(&summary, ahead).await?;
            if self.wanted.ends(turns, book) {
                break;
            }
        }
        Ok(())
    }

    /// The new summary; the text of the old one if the model gives none and no sentence can be extracted.
    pub(super) async fn summary(&self) -> Result<Summary, H::Error> {
        let before = self.rebuild.before.as_ref();
        let NewText { text, kind, failed } = match self.said_in_place().await? {
            Some(Ok(text)) => NewText { text, kind: SummaryKind::Summary, failed: None },
            // Asked in the same words apart, the model mostly answers the same.
            Some(Err(_)) => self.said_of_pieces(&APART[1..]).await?,
            None => self.said_of_pieces(&APART).await?,
        };
        let outcome = failed.as_ref().map_or(SummaryOutcome::Made(kind), |_| SummaryOutcome::Empty);
        self.memory().observer.summary(outcome);
        let updates = before.map_or(0, |summary| summary.updates) + 1;
        let made = unix_seconds();
        Ok(Summary {
            text,
            kind,
            covers: self.rebuild.covers,
            updates,
            made,
            used: made,
            ready: false,
            failed,
            corrected: false,
            read: false,
        })
    }

    /// Text of the model after the dropped messages, or its flaw. They are the beginning of what the last turns read, so
    /// only the question is prefilled. `None` if the request is not possible.
    async fn said_in_place(&self) -> Result<Option<Result<String, Flaw>>, H::Error> {
        match self.apart(|memory, rebuild, _| Ok(asked_in_place(memory, rebuild))).await? {
            Some(prompt) => self.judged(prompt, 0.0, None).await.map(Some),
            None => Ok(None),
        }
    }

    /// Summarises piece after piece, each by the first of these requests whose text can be used.
    async fn said_of_pieces(&self, requests: &[SummaryKind]) -> Result<NewText, H::Error> {
        let pieces = self.apart(pieces).await?;
        let no_summary = || Some("the model gave no summary".to_owned());
        let mut said = NewText {
            text: self.rebuild.old().to_owned(),
            kind: SummaryKind::Summary,
            failed: if pieces.is_empty() { no_summary() } else { None },
        };
        for messages in pieces {
            let piece = Arc::new(Piece { summary: said.text.clone(), messages });
            match self.said_of_piece(&piece, requests).await? {
                (text, _) if text.is_empty() => said.failed = no_summary(),
                (text, kind) => (said.text, said.kind) = (text, said.kind.max(kind)),
            }
        }
        Ok(said)
    }

    /// Text that stands for a piece, and how it came about; empty if nothing can stand for it.
    async fn said_of_piece(
        &self,
        piece: &Arc<Piece>,
        requests: &[SummaryKind],
    ) -> Result<(String, SummaryKind), H::Error> {
        for &kind in requests {
            let asked = piece.clone();
            let prompt = self.apart(move |_, rebuild, _| asked_apart(rebuild, &asked, kind)).await?;
            let temperature = if kind == SummaryKind::Facts { FACTS_TEMPERATURE } else { 0.0 };
            if let Ok(text) = self.judged(prompt, temperature, Some(piece.clone())).await? {
                return Ok((text, kind));
            }
        }
        let piece = piece.clone();
        let extracted = self.apart(move |memory, rebuild, _| Ok(extracted(memory, rebuild, &piece))).await?;
        Ok((extracted, SummaryKind::Extracted))
    }

    /// Text of the model for a prompt that asks for a summary of `piece`, or of all dropped messages; or its flaw.
    async fn judged(
        &self,
        prompt: Vec<Token>,
        temperature: f32,
        piece: Option<Arc<Piece>>,
    ) -> Result<Result<String, Flaw>, H::Error> {
        let (text, tokens) = self.say(prompt, temperature).await?;
        let judged = self.apart(move |memory, rebuild, _| {
            let draft = SummaryDraft { text: &text, tokens, tokens_max: rebuild.summary_max };
            let replaced = piece.as_ref().map_or_else(|| rebuild.replaced(), |piece| piece.replaced());
            let complete = |text: &str| {
                extraction(memory, rebuild, replaced.messages, |how| complete(text, &replaced, how))
            };
            Ok(judge(&draft, &replaced).map(complete).inspect_err(|&flaw| {
                memory.observer.refused(flaw);
                tracing::debug!("a summary of {tokens} tokens is not used: {}", flaw.name());
            }))
        });
        judged.await
    }

    /// Text of the model for a prompt that asks for a summary, without thoughts, and its tokens with them. The same prompt
    /// and temperature give the same text.
    async fn say(&self, prompt: Vec<Token>, temperature: f32) -> Result<(String, usize), H::Error> {
        let is_waited_for = self.is_waited_for;
        let (form, show) = self.memory().measure.reasoning();
        let terms = ComputeTerms { adapters: self.host.adapters(), ..self.rebuild.terms };
        let request = Request {
            show,
            sampling: Sampling { temperature, ..Sampling::GREEDY },
            max_tokens: self.rebuild.summary_max,
            ignore_eos: false,
            ..request(prompt, &terms, (!is_waited_for).then(|| self.wanted.pace(SUMMARY_SHARE)))
        };
        let Spoken { text, is_cut, report } = self.host.said(&self.caller, request, is_waited_for).await?;
        self.lock().add(&report);
        let mut parser = AnswerParser::new(AnswerStart { form, place: AnswerPlace::Begin }, None, "");
        let deltas = parser.push(&text).into_iter().chain(parser.finish());
        let content: String = deltas
            .filter_map(|delta| match delta {
                AnswerDelta::Content(text) => Some(text),
                _ => None,
            })
            .collect();
        // One that was cut before its limit, for want of room, is as little whole as one that reached it.
        Ok((content, if is_cut { self.rebuild.summary_max } else { report.generated_tokens }))
    }

    /// Prefills the continuation of the conversation after `summary`.
    async fn compute(&self, summary: &Summary, ahead: Ahead) -> Result<(), H::Error> {
        let (wording, text) = (self.rebuild.wording.clone(), summary.text.clone());
        let messages = move || {
            let history = &ahead.history;
            wording.telling(&text).told(&text, history.prefix(), history.systems, &ahead.recent())
        };
        let how = (&self.rebuild.render, &self.rebuild.terms, self.wanted.pace(AHEAD_SHARE));
        compute(&*self.host, &self.caller, how, messages).await
    }
}

/// The text of a new summary.
struct NewText {
    text: String,
    kind: SummaryKind,
    /// Reason why not all pieces are in it.
    failed: Option<String>,
}

/// Messages that are summarised together, and the summary of those before.
struct Piece {
    summary: String,
    messages: Vec<Value>,
}

impl Piece {
    fn replaced(&self) -> Replaced<'_> {
        Replaced { summary: &self.summary, messages: &self.messages }
    }
}

/// Prefills a conversation, to leave it in the cache.
pub(super) async fn compute<H: Host>(
    host: &H,
    caller: &H::Caller,
    (render, terms, pace): (&Render<H::Error>, &ComputeTerms, Pace),
    messages: impl FnOnce() -> Vec<Value> + Send + 'static,
) -> Result<(), H::Error> {
    let render = render.clone();
    let prompt = host.apart(caller, false, move |_| render(&messages(), Purpose::Ahead)).await?;
    if prompt.len() > host.memory().measure.context() {
        return Ok(());
    }
    host.said(caller, request(prompt, terms, Some(pace)), false).await.map(drop)
}

/// The prompt that asks for a summary at the end of the conversation itself; `None` if there is no room for it.
fn asked_in_place<H: Host>(memory: &Memory<H>, rebuild: &Rebuild<H::Error>) -> Option<Vec<Token>> {
    let Rebuild { history, wording, summary_max, .. } = rebuild;
    if !memory.measure.may_fit(rebuild.let_go()) {
        return None;
    }
    let (old, let_go) = (rebuild.old(), rebuild.let_go());
    let read = [history.question(history.covered), let_go].concat();
    let told = wording.telling(old).told(old, history.prefix(), history.systems, &read);
    let asked = wording.asking(let_go).ask_in_place(told)?;
    // A template may refuse another question there; then the pieces are summarised.
    let prompt = (rebuild.render)(&asked, Purpose::InPlace).ok()?;
    (prompt.len() + summary_max <= memory.measure.context()).then_some(prompt)
}

/// The prompt that asks for a summary of a piece, or for its facts.
fn asked_apart<E>(rebuild: &Rebuild<E>, piece: &Piece, kind: SummaryKind) -> Result<Vec<Token>, E> {
    let Piece { summary, messages } = piece;
    let words = rebuild.wording.asking(messages);
    let asked = match kind {
        SummaryKind::Facts => words.ask_facts(summary, messages),
        _ => words.ask(summary, messages),
    };
    (rebuild.render)(&asked, Purpose::Summary)
}

/// Sentences that stand for a piece.
fn extracted<H: Host>(memory: &Memory<H>, rebuild: &Rebuild<H::Error>, piece: &Piece) -> String {
    let replaced = piece.replaced();
    extraction(memory, rebuild, &piece.messages, |how| complete(&extract(&replaced, how), &replaced, how))
}

/// Calls `take` with the parameters of sentences that are taken from these messages.
fn extraction<H: Host>(
    memory: &Memory<H>,
    rebuild: &Rebuild<H::Error>,
    messages: &[Value],
    take: impl FnOnce(&Extraction<'_>) -> String,
) -> String {
    let recent = rebuild.history.behind(rebuild.covers).unwrap_or_default();
    let mut said = rebuild.history.question(rebuild.covers).iter().chain(recent).rev();
    let question = said.find(|message| message["role"] == "user");
    let words = rebuild.wording.asking(messages);
    take(&Extraction {
        question: &question.map(text_of).unwrap_or_default(),
        tokens_max: rebuild.summary_max,
        measure: &|text| memory.measure.text(text),
        speaker: &|message| words.speaker(message).unwrap_or_default().to_owned(),
    })
}

/// The dropped messages, in pieces that fit the context. An exchange that is longer than a piece is divided between its
/// messages.
fn pieces<H: Host>(
    memory: &Memory<H>,
    rebuild: &Rebuild<H::Error>,
    goes_on: GoesOn<'_, H::Error>,
) -> Result<Vec<Vec<Value>>, H::Error> {
    let (mut messages, tokens_max) = (rebuild.let_go().to_vec(), rebuild.chunk_max);
    lighten(&mut messages, &Lighten { tool_chars: TOOL_CHARS });
    let mut pieces: Vec<(usize, Vec<Value>)> = Vec::new();
    let mut add = |messages: &[Value], tokens: usize| match pieces.last_mut() {
        Some((all, piece)) if *all + tokens <= tokens_max => {
            *all += tokens;
            piece.extend_from_slice(messages);
        }
        _ => pieces.push((tokens, messages.to_vec())),
    };
    for exchange in exchanges(&messages) {
        goes_on()?;
        let exchange = &messages[exchange];
        let tokens: usize = exchange.iter().map(|message| memory.measure.message(message)).sum();
        if tokens <= tokens_max {
            add(exchange, tokens);
            continue;
        }
        for message in exchange {
            goes_on()?;
            let (message, tokens) = as_text(memory, message, tokens_max);
            add(&[message], tokens);
        }
    }
    Ok(sample(pieces.into_iter().map(|(_, piece)| piece).collect()))
}

/// The text of a message, and its tokens: the beginning and the end of it if it has more than `tokens_max`.
fn as_text<H: Host>(memory: &Memory<H>, message: &Value, tokens_max: usize) -> (Value, usize) {
    let text = text_of(message);
    let mut told = json!({"role": message["role"], "content": text});
    let mut chars = tokens_max.saturating_mul(CHARS_PER_TOKEN).max(TOOL_CHARS_MIN);
    loop {
        let tokens = memory.measure.message(&told);
        if tokens <= tokens_max || chars < TOOL_CHARS_MIN {
            return (told, tokens);
        }
        if let Some(shorter) = shortened(&text, chars) {
            told["content"] = Value::String(shorter);
        }
        chars /= 2;
    }
}

/// A request that prefills a prompt, at the pace of `background` or for a client that waits.
fn request(tokens: Vec<Token>, terms: &ComputeTerms, background: Option<Pace>) -> Request {
    Request {
        prompt_is_text: true,
        ignore_eos: true,
        adapters: terms.adapters.clone(),
        lifetime: Lifetime { pin: false, ..terms.lifetime },
        background,
        ..Request::new(tokens, 0)
    }
}

/// The first and the last quarter of the pieces, and in between as many as fit, evenly spaced: as document 002 thins
/// the input of a summary.
fn sample(pieces: Vec<Vec<Value>>) -> Vec<Vec<Value>> {
    if pieces.len() <= PIECES_MAX {
        return pieces;
    }
    let quarter = PIECES_MAX / 4;
    let (middle, between) = (PIECES_MAX - 2 * quarter, pieces.len() - 2 * quarter);
    let wanted = |index: usize| {
        let inner = index.checked_sub(quarter).filter(|&inner| inner < between);
        inner.is_none_or(|inner| inner * middle % between < middle)
    };
    pieces.into_iter().enumerate().filter(|(index, _)| wanted(*index)).map(|(_, piece)| piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_history_head_tail_and_even_middle_are_read() {
        let pieces = |count: usize| (0..count).map(|i| vec![json!(i)]).collect::<Vec<_>>();
        let sampled = |count: usize| -> Vec<u64> {
            sample(pieces(count)).iter().map(|piece| piece[0].as_u64().unwrap()).collect()
        };
        assert_eq!(sampled(8), (0..8).collect::<Vec<u64>>());
        assert_eq!(sampled(9).len(), PIECES_MAX);
        assert_eq!(sampled(24), [0, 1, 2, 7, 12, 17, 22, 23]);
        assert_eq!(sampled(1000).len(), PIECES_MAX);
    }
}
