//! The trailer of every answer: its cost, its times, and its cache statistics.

use std::{sync::Arc, time::Duration};

use kvik_engine::api::{Event, Report, Request};
use kvik_memory::{
    conversations::ConversationTurn,
    deletions::{Deletion, Deletions, Owner},
    memory::TurnReport,
};
use kvik_session::Chat;
use serde::Serialize;
use serde_json::Value;

use super::{
    cache::{Asked, CacheReport},
    comparison::{CacheDiagnostics, Comparable, Comparison, Diagnosis},
    loops::{self, LoopReport},
    retain::{Given, RetainReport},
    token_scale::TokenScale,
    usage::{Timings, Usage, cost, of_choice},
};
use crate::{
    accounts::prices::Prices,
    app::{
        conversations::{ConversationReport, Writing},
        kept_prefix::KeptPrefix,
        memory::{RegisteredWork, RememberedTurn},
        next_turn::NextTurn,
        prompt_log::FirstNotes,
        responses::{ResponseError, ResponseTurn},
        running_answers::ResumableTurn,
        settled::SettledPiece,
        spans::{AnswerSpan, Came},
        state::App,
    },
    clock::Clock,
    described::JsonSchema,
    http::{answer::OneOrAll, json::bytes_taken},
};
use kvik_serving::retaining::Retaining;

/// What the cache did, and what else kvik says of an answer.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Kvik")]
pub(crate) struct KvikReport {
    /// One object for a single prompt, an array for several; null while the prompt has not ended.
    cache: Option<OneOrAll<CacheReport>>,
    /// The window that clients assume under this name: counts outside this object are told as if it were the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    told_window: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retain: Option<OneOrAll<RetainReport>>,
    /// What was read of a conversation that is remembered beyond the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<super::memory::MemoryReport>")]
    memory: Option<TurnReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation: Option<ConversationReport>,
    /// Where an answer fell into a loop; an array for several answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    r#loop: Option<OneOrAll<LoopReport>>,
    /// What of the system message was read behind what is said before the first answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    settled: Vec<SettledPiece>,
    /// What of a schema is not enforced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    schema_notes: Vec<String>,
    /// What of the request was ignored, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// What an answer in OpenAI's shape has behind its usage.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Ending {
    timings: Timings,
    kvik: KvikReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_diagnostics: Option<CacheDiagnostics>,
}

/// The sources of a request's prompts.
#[derive(Default)]
pub(crate) struct Origin {
    /// The conversation, of a chat.
    pub(crate) messages: Option<Value>,
    /// The input of the answer's comparison, where the API supports one.
    pub(crate) comparable: Option<Comparable>,
    /// What of the system message is read elsewhere.
    pub(crate) settled: Vec<SettledPiece>,
    /// Parts of a schema that are not enforced.
    pub(crate) schema_notes: Vec<String>,
    /// Fields of the body that were ignored, known once all of it was read.
    pub(crate) notes: Vec<String>,
    /// The scale in which the client is told token counts.
    pub(crate) scale: TokenScale,
    /// The compressed prefix that each prompt reads.
    pub(crate) kept_prefix: Option<KeptPrefix>,
    /// A turn of a conversation that may be longer than the context.
    pub(crate) memory: Option<RememberedTurn>,
    /// The turn of a stored conversation.
    pub(crate) conversation: Option<ConversationTurn>,
    /// An answer that is to be stored.
    pub(crate) response: Option<ResponseTurn>,
    /// The question of an answer that goes on without its client.
    pub(crate) question: Option<ResumableTurn>,
    /// The settings of a chat whose next turn may be computed ahead.
    pub(crate) goes_on: Option<Chat>,
    /// Whether its client says that there will be one.
    pub(crate) is_expected: bool,
}

impl Origin {
    /// The tenant's deletable objects for which the prompts are computed.
    pub(crate) fn owners(&self, tenant: &str) -> Vec<Owner> {
        let conversation = self.conversation.as_ref().map(|turn| turn.key().owner());
        let response = self.response.as_ref().map(|turn| Owner::new(tenant, &turn.id));
        conversation.into_iter().chain(response).collect()
    }

    /// Bytes of the request that the trailer keeps until the end of the answer.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.messages.as_ref().map_or(0, bytes_taken)
    }

    /// The prompts of `requests`, one each; a conversation has one prompt.
    pub(crate) fn asked(self, app: &App, requests: &[Request]) -> Vec<Asked> {
        let mut messages = self.messages;
        let asked = |request: &Request| Asked {
            texts: app.serving.texts.clone(),
            tokens: request.prompt.clone(),
            messages: messages.take(),
        };
        requests.iter().map(asked).collect()
    }
}

/// Collects the reports of the prompts of one request.
pub(crate) struct Trailer {
    /// The prompts, to report on their cache hits.
    asked: Vec<Asked>,
    /// The retention of each.
    given: Vec<Given>,
    retaining: Arc<Retaining>,
    /// The engine's report of each and its wording; `None` until the prompt has ended.
    ended: Vec<Option<Ended>>,
    /// The loops of answers, with the prompts' indexes.
    loops: Vec<(usize, LoopReport)>,
    comparison: Option<Comparison>,
    settled: Vec<SettledPiece>,
    schema_notes: Vec<String>,
    notes: Vec<String>,
    memory: Option<Remembering>,
    conversation: Option<ConversationReport>,
    /// Present until the answer has ended.
    next: Option<NextTurn>,
    /// Prices; without them an answer reports no cost.
    prices: Option<Prices>,
    scale: TokenScale,
    /// Present until all prompts have ended.
    unwritten: Option<Unwritten>,
    /// Span for tracing.
    span: Option<AnswerSpan>,
    arrival: Arrival,
}

/// When a request arrived, and how long it then waited for its model.
struct Arrival {
    clock: Clock,
    at: Duration,
    loading: Duration,
}

/// The records that an answer writes.
pub(crate) struct Unwritten {
    conversation: Option<(ConversationTurn, Option<FirstNotes>)>,
    response: Option<(ResponseTurn, FirstNotes)>,
    /// Begun once they are written: no deletion finds a summary of what is not.
    work: Option<Box<RegisteredWork>>,
    deletions: Arc<Deletions>,
}

impl Unwritten {
    fn take(app: &App, origin: &mut Origin) -> Option<Unwritten> {
        let log = &app.server.prompt_log;
        let conversation = origin.conversation.take().map(|turn| {
            let notes = turn.is_first().then(|| FirstNotes::new(log.clone(), turn.key().owner()));
            (turn, notes)
        });
        let response = origin.response.take().map(|turn| {
            let notes = FirstNotes::new(log.clone(), Owner::new(&turn.tenant, &turn.id));
            (turn, notes)
        });
        let is_stored = conversation.is_some() || response.is_some();
        let deletions = app.server.deletions.clone();
        is_stored.then_some(Unwritten { conversation, response, work: None, deletions })
    }

    /// Writes the answer as a message, and in its stored form where clients may read it again.
    pub(crate) fn write(self, message: Value, stored: Option<Value>) -> Writing {
        let Unwritten { conversation, response, work, deletions } = self;
        tokio::task::spawn_blocking(move || {
            let mut is_remembered = true;
            if let Some((response, stored)) = response.zip(stored) {
                is_remembered = store(response, (message.clone(), stored), &deletions)?;
            }
            if let Some((turn, notes)) = conversation {
                turn.write(message)?;
                notes.into_iter().for_each(FirstNotes::keep);
            }
            work.into_iter().filter(|_| is_remembered).for_each(|work| work.start());
            Ok(())
        })
    }
}

/// Stores a response, and returns whether it did. What it continues may have been deleted meanwhile: then its client has the
/// answer, and what was computed for both is deleted by the notes of this one, of which nothing else is kept.
fn store(
    (turn, notes): (ResponseTurn, FirstNotes),
    (message, stored): (Value, Value),
    deletions: &Deletions,
) -> Result<bool, ResponseError> {
    let owner = Owner::new(&turn.tenant, &turn.id);
    let written = match turn.write(message, stored) {
        Err(ResponseError::NotFound(_)) if deletions.begin(&owner, Deletion::default().removed()).is_ok() => {
            Ok(false)
        }
        written => written.map(|()| true),
    };
    if written.is_ok() {
        notes.keep();
    }
    written
}

/// A turn of a conversation that outgrows the context, and its answer so far.
struct Remembering {
    turn: RememberedTurn,
    answer: String,
}

struct Ended {
    report: Report,
    cache: CacheReport,
    /// Present if the prompt has a retention.
    retain: Option<RetainReport>,
}

impl Trailer {
    /// The trailer of an answer to `requests`, one per prompt, which were made from `origin`.
    pub(crate) fn new(
        app: &App,
        mut origin: Origin,
        came: Came,
        requests: &[Request],
        (prices, owners): (Option<Prices>, Vec<Owner>),
    ) -> Trailer {
        let ended = requests.iter().map(|_| None).collect();
        let arrival = Arrival { clock: app.config.clock.clone(), at: came.arrived, loading: came.loading };
        let comparable = origin.comparable.take();
        let id = comparable.as_ref().map(|comparable| comparable.id.as_str());
        let span = app.config.spans.as_ref().map(|spans| AnswerSpan::new(spans, came, id, requests));
        let comparison = comparable.map(|asked| Comparison::new(&app.answered, asked, requests));
        let settled = std::mem::take(&mut origin.settled);
        let schema_notes = std::mem::take(&mut origin.schema_notes);
        let notes = std::mem::take(&mut origin.notes);
        let scale = origin.scale;
        let given = requests.iter().map(Given::to).collect();
        let retaining = app.serving.retaining.clone();
        let next = NextTurn::of(app, requests, (origin.goes_on.take(), origin.is_expected), owners);
        let memory = origin.memory.take().map(|turn| Remembering { turn, answer: String::new() });
        let conversation = origin.conversation.as_ref().map(ConversationReport::of);
        let unwritten = Unwritten::take(app, &mut origin);
        let asked = origin.asked(app, requests);
        Trailer {
            asked,
            given,
            retaining,
            ended,
            loops: Vec::new(),
            comparison,
            settled,
            schema_notes,
            notes,
            memory,
            conversation,
            next,
            prices,
            scale,
            unwritten,
            span,
            arrival,
        }
    }

    /// Whether the conversation goes on beyond the context; the model summarises it after the answer has been read.
    pub(crate) fn remembers(&self) -> bool {
        self.memory.is_some()
    }

    /// Notes an event of the prompt with this index.
    pub(crate) fn note(&mut self, prompt: usize, event: &Event) {
        if let Event::Unconstrained(error) = event {
            self.notes.push(format!("calls of `tools` are not held to their form and schemas: {error}"));
        }
        if let Event::Done(report) = event {
            let cache = self.asked[prompt].cache_report(report.into());
            let retain = self.given[prompt].report(report.retained.as_deref(), &self.retaining);
            self.ended[prompt] = Some(Ended { report: report.clone(), cache, retain });
        }
        if let (Some(memory), &Event::Finished { choice: 0, reason }) = (&mut self.memory, event) {
            loops::cut(&mut memory.answer, reason);
        }
        self.loops.extend(LoopReport::of(event).map(|found| (prompt, found)));
        if let (Some(memory), Event::Text { choice: 0, text, .. }) = (&mut self.memory, event) {
            memory.answer.push_str(text);
        }
        self.next.iter_mut().for_each(|next| next.note(event));
        self.span.iter_mut().for_each(|span| span.note(event));
        if self.is_complete() {
            let total = self.total();
            self.span.iter_mut().for_each(|span| span.end(&total));
            self.comparison.iter_mut().for_each(Comparison::remember);
            self.remember();
        }
    }

    /// Has the conversation summarised, once the answer is written if it is stored.
    fn remember(&mut self) {
        let Some(Remembering { turn, answer }) = &mut self.memory else { return };
        let work = turn.register(answer);
        match &mut self.unwritten {
            Some(unwritten) => unwritten.work = Some(Box::new(work)),
            None => work.start(),
        }
    }

    /// Takes the records to write, once all prompts have ended.
    pub(crate) fn take_unwritten(&mut self) -> Option<Unwritten> {
        if self.is_complete() { self.unwritten.take() } else { None }
    }

    /// Has the next turn computed, once the answer has ended. `thoughts_return` says that clients of its dialect send
    /// thoughts back; a conversation that the server keeps has them.
    pub(crate) fn compute_next(&mut self, answer: impl FnOnce() -> Option<Value>, thoughts_return: bool) {
        let Some(next) = self.next.take_if(|_| self.ended.iter().all(Option::is_some)) else { return };
        if let (Some(answer), Some(asked)) = (answer(), self.asked.first_mut()) {
            let thoughts_return = thoughts_return || self.conversation.is_some();
            next.compute((&asked.tokens, asked.messages.take()), answer, thoughts_return);
        }
    }

    /// Marks the answer as failed: nothing of it is written, and the conversation's next turn may begin.
    pub(crate) fn fail(&mut self, error: &str) {
        (self.unwritten, self.next) = (None, None);
        self.span.iter_mut().for_each(|span| span.fail(error));
    }

    /// Notes that the engine did not accept the requests: there is no answer that a span could be of.
    pub(crate) fn refuse(&mut self) {
        if let Some(span) = self.span.take() {
            span.discard();
        }
    }

    /// Whether all prompts have ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.ended.iter().all(Option::is_some)
    }

    /// OpenAI's `usage`, of all prompts together.
    pub(crate) fn usage(&self) -> Usage {
        Usage::of(&self.total(), self.prices.as_ref()).told(self.scale)
    }

    /// The same, with the number of thinking tokens in the answers.
    pub(crate) fn usage_with_thoughts(&self, reasoning_tokens: usize) -> Usage {
        Usage::of(&self.total(), self.prices.as_ref()).with_thoughts(reasoning_tokens).told(self.scale)
    }

    /// OpenAI's `usage` of one choice, from [its report](Trailer::report_of_choice).
    pub(crate) fn usage_of_choice(&self, own: &Report, choice: usize) -> Usage {
        Usage::of_choice(own, choice, self.prices.as_ref()).told(self.scale)
    }

    /// The cost of a report, where there are prices.
    pub(crate) fn cost(&self, report: &Report) -> Option<f64> {
        self.prices.as_ref().map(|prices| cost(report, prices))
    }

    /// The time since the request arrived.
    pub(crate) fn elapsed(&self) -> Duration {
        (self.arrival.clock)().saturating_sub(self.arrival.at)
    }

    /// The part of it in which the request waited for its model.
    pub(crate) fn loading(&self) -> Duration {
        self.arrival.loading
    }

    /// The scale in which the client is told token counts.
    pub(crate) fn scale(&self) -> TokenScale {
        self.scale
    }

    /// The ending of the answer: times of all prompts together, cache and retention of each (an object for a single
    /// prompt, an array for several), and the comparison that was asked for.
    pub(crate) fn ending(&self) -> Ending {
        let ended = || self.ended.iter().flatten();
        let caches: Vec<CacheReport> = ended().map(|ended| ended.cache.clone()).collect();
        let retains: Vec<RetainReport> = ended().filter_map(|ended| ended.retain.clone()).collect();
        let retain = (!retains.is_empty()).then(|| retains.into());
        Ending {
            timings: Timings::of(&self.total()),
            kvik: self.kvik_of(Some(caches.into()), retain, |_| true),
            prompt_cache_diagnostics: self
                .diagnosis()
                .map(|diagnosis| diagnosis.openai(&self.total(), self.scale)),
        }
    }

    /// The report of one choice of a prompt; an empty one while the prompt has not ended.
    pub(crate) fn report_of_choice(&self, prompt: usize, choice: usize) -> Report {
        self.ended[prompt].as_ref().map(|ended| of_choice(&ended.report, choice)).unwrap_or_default()
    }

    /// The object `kvik` of one prompt.
    pub(crate) fn kvik(&self, prompt: usize) -> KvikReport {
        let ended = self.ended[prompt].as_ref();
        let cache = ended.map(|ended| OneOrAll::One(ended.cache.clone()));
        let retain = ended.and_then(|ended| ended.retain.clone()).map(OneOrAll::One);
        self.kvik_of(cache, retain, |of| of == prompt)
    }

    /// The object `kvik` with the loops of the answers to these prompts, the conversation's reports and the parts of the
    /// schema that were not enforced.
    fn kvik_of(
        &self,
        cache: Option<OneOrAll<CacheReport>>,
        retain: Option<OneOrAll<RetainReport>>,
        is_reported: impl Fn(usize) -> bool,
    ) -> KvikReport {
        let loops = self.loops.iter().filter(|(prompt, _)| is_reported(*prompt));
        let loops: Vec<LoopReport> = loops.map(|(_, found)| found.clone()).collect();
        KvikReport {
            cache,
            told_window: self.scale.window(),
            retain,
            r#loop: (!loops.is_empty()).then(|| loops.into()),
            memory: self.memory.as_ref().map(|memory| memory.turn.report().clone()),
            conversation: self.conversation.clone(),
            settled: self.settled.clone(),
            schema_notes: self.schema_notes.clone(),
            notes: self.notes.clone(),
        }
    }

    /// The result of the comparison that was asked for.
    pub(crate) fn diagnosis(&self) -> Option<Diagnosis> {
        self.comparison.as_ref().and_then(Comparison::diagnosis)
    }

    /// The sum of the reports of all prompts.
    pub(crate) fn total(&self) -> Report {
        let mut total = Report::default();
        self.ended.iter().flatten().for_each(|ended| total.add(&ended.report));
        total
    }
}
