//! What every answer says at its end: what it cost, how long it took, and what the cache did.

use std::sync::Arc;

use kvik_engine::api::{Event, Report, Request};
use serde_json::{Map, Value, json};

use super::{
    cache::Asked,
    comparison::{Comparable, Comparison, Diagnosis},
    retain::Given,
    usage,
};
use crate::{
    app::{
        conversations::{ConversationTurn, Writing},
        kept_prefix::KeptPrefix,
        memory::turn::RememberedTurn,
        responses::ResponseTurn,
        spans::{AnswerSpan, Came},
        state::App,
    },
    serving::retaining::Retaining,
};

/// What the prompts of a request were made from.
#[derive(Default)]
pub(crate) struct Origin {
    /// The conversation, of a chat.
    pub(crate) messages: Option<Value>,
    /// What the answer can be compared by, where the API has a way to ask for it.
    pub(crate) comparable: Option<Comparable>,
    /// What of a schema is not enforced.
    pub(crate) schema_notes: Vec<String>,
    /// Of which prefix of each prompt what is kept is read.
    pub(crate) kept_prefix: Option<KeptPrefix>,
    /// What is read of a conversation that may be longer than the context.
    pub(crate) memory: Option<RememberedTurn>,
    /// The turn of a conversation that the server keeps.
    pub(crate) conversation: Option<ConversationTurn>,
    /// An answer that is to be stored.
    pub(crate) response: Option<ResponseTurn>,
}

impl Origin {
    /// The prompts of `requests`, one each; a conversation has one prompt.
    pub(crate) fn asked(self, app: &App, requests: &[Request]) -> Vec<Asked> {
        let mut messages = self.messages;
        let asked = |request: &Request| Asked {
            tokenizer: app.serving.tokenizer.clone(),
            tokens: request.prompt.clone(),
            messages: messages.take(),
        };
        requests.iter().map(asked).collect()
    }
}

/// Gathers the reports of the prompts of one request.
pub(crate) struct Trailer {
    /// One per prompt.
    asked: Vec<Asked>,
    /// What each was given to keep.
    given: Vec<Given>,
    retaining: Arc<Retaining>,
    /// What the engine reported of each, and how that is worded; absent until it has ended.
    ended: Vec<Option<Ended>>,
    comparison: Option<Comparison>,
    schema_notes: Vec<String>,
    memory: Option<Remembering>,
    /// The object `kvik.conversation`.
    conversation: Option<Value>,
    /// Until all prompts have ended.
    unwritten: Option<Unwritten>,
    /// For who watches the server.
    span: Option<AnswerSpan>,
}

/// What is to be written down of an answer.
pub(crate) struct Unwritten {
    conversation: Option<ConversationTurn>,
    response: Option<ResponseTurn>,
}

impl Unwritten {
    fn take(origin: &mut Origin) -> Option<Unwritten> {
        let unwritten =
            Unwritten { conversation: origin.conversation.take(), response: origin.response.take() };
        (unwritten.conversation.is_some() || unwritten.response.is_some()).then_some(unwritten)
    }

    /// Writes down the answer as a message, and as it is stored where clients may read it again.
    pub(crate) fn write(self, message: Value, stored: Option<Value>) -> Writing {
        let Unwritten { conversation, response } = self;
        tokio::task::spawn_blocking(move || {
            if let Some((response, stored)) = response.zip(stored) {
                response.write(message.clone(), stored)?;
            }
            conversation.map_or(Ok(()), |turn| turn.write(message))
        })
    }
}

/// A turn of a conversation that is remembered, and its answer so far.
struct Remembering {
    turn: RememberedTurn,
    answer: String,
}

struct Ended {
    report: Report,
    /// The object `kvik.cache`.
    cache: Value,
    /// The object `kvik.retain`, where the prompt has a retention.
    retain: Option<Value>,
}

impl Trailer {
    /// The trailer of an answer to `requests`, one per prompt, which were made from `origin`.
    pub(crate) fn new(app: &App, mut origin: Origin, came: Came, requests: &[Request]) -> Trailer {
        let ended = requests.iter().map(|_| None).collect();
        let comparable = origin.comparable.take();
        let id = comparable.as_ref().map(|comparable| comparable.id.as_str());
        let span = app.config.spans.as_ref().map(|spans| AnswerSpan::new(spans, came, id, requests));
        let comparison = comparable.map(|asked| Comparison::new(&app.answered, asked, requests));
        let schema_notes = std::mem::take(&mut origin.schema_notes);
        let given = requests.iter().map(Given::to).collect();
        let retaining = app.serving.retaining.clone();
        let memory = origin.memory.take().map(|turn| Remembering { turn, answer: String::new() });
        let conversation = origin.conversation.as_ref().map(ConversationTurn::report);
        let unwritten = Unwritten::take(&mut origin);
        let asked = origin.asked(app, requests);
        Trailer {
            asked,
            given,
            retaining,
            ended,
            comparison,
            schema_notes,
            memory,
            conversation,
            unwritten,
            span,
        }
    }

    /// Notes what happens to the prompt with this index.
    pub(crate) fn note(&mut self, prompt: usize, event: &Event) {
        if let Event::Done(report) = event {
            let cache = self.asked[prompt].cache_report(report.into());
            let retain = self.given[prompt].report(report.retained.as_deref(), &self.retaining);
            self.ended[prompt] = Some(Ended { report: report.clone(), cache, retain });
        }
        if let (Some(memory), Event::Text { choice: 0, text, .. }) = (&mut self.memory, event) {
            memory.answer.push_str(text);
        }
        self.span.iter_mut().for_each(|span| span.note(event));
        if self.is_complete() {
            let total = self.total();
            self.span.iter_mut().for_each(|span| span.end(&total));
            self.comparison.iter_mut().for_each(Comparison::remember);
            self.memory.iter_mut().for_each(|memory| memory.turn.answered(&memory.answer));
        }
    }

    /// What is to be written down, once all prompts have ended.
    pub(crate) fn take_unwritten(&mut self) -> Option<Unwritten> {
        if self.is_complete() { self.unwritten.take() } else { None }
    }

    /// There will be no answer: nothing is written of it, and the next may come.
    pub(crate) fn fail(&mut self, error: &str) {
        self.unwritten = None;
        self.span.iter_mut().for_each(|span| span.fail(error));
    }

    /// Whether all prompts have ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.ended.iter().all(Option::is_some)
    }

    /// OpenAI's `usage`, of all prompts together.
    pub(crate) fn usage(&self) -> Value {
        usage::usage(&self.total())
    }

    /// Adds what all prompts together cost in time, what the cache did for each and what each kept (an object
    /// for a single prompt, an array for several), and the comparison that was asked for.
    pub(crate) fn add_to(&self, answer: &mut Map<String, Value>) {
        let caches = self.ended.iter().flatten().map(|ended| ended.cache.clone()).collect();
        let mut kvik = json!({"cache": one_or_all(caches)});
        let retains: Vec<Value> =
            self.ended.iter().flatten().filter_map(|ended| ended.retain.clone()).collect();
        if !retains.is_empty() {
            kvik["retain"] = one_or_all(retains);
        }
        answer.insert("timings".to_owned(), usage::timings(&self.total()));
        answer.insert("kvik".to_owned(), self.with_notes(kvik));
        if let Some(diagnosis) = self.diagnosis() {
            answer.insert("prompt_cache_diagnostics".to_owned(), diagnosis.openai(&self.total()));
        }
    }

    /// The report of one prompt; an empty one while it has not ended.
    pub(crate) fn report(&self, prompt: usize) -> Report {
        self.ended[prompt].as_ref().map(|ended| ended.report.clone()).unwrap_or_default()
    }

    /// The object `kvik` of one prompt.
    pub(crate) fn kvik(&self, prompt: usize) -> Value {
        let ended = self.ended[prompt].as_ref();
        let mut kvik = json!({"cache": ended.map(|ended| &ended.cache)});
        if let Some(retain) = ended.and_then(|ended| ended.retain.as_ref()) {
            kvik["retain"] = retain.clone();
        }
        self.with_notes(kvik)
    }

    /// The object `kvik` with the conversation and what is remembered of it, and what of the schema was not enforced.
    fn with_notes(&self, mut kvik: Value) -> Value {
        if let Some(memory) = &self.memory {
            kvik["memory"] = memory.turn.report().clone();
        }
        if let Some(conversation) = &self.conversation {
            kvik["conversation"] = conversation.clone();
        }
        if !self.schema_notes.is_empty() {
            kvik["schema_notes"] = json!(self.schema_notes);
        }
        kvik
    }

    /// What the comparison that was asked for has found.
    pub(crate) fn diagnosis(&self) -> Option<Diagnosis> {
        self.comparison.as_ref().and_then(Comparison::diagnosis)
    }

    /// What was computed and generated for all prompts together.
    pub(crate) fn total(&self) -> Report {
        let mut total = Report::default();
        self.ended.iter().flatten().for_each(|ended| usage::add(&mut total, &ended.report));
        total
    }
}

/// A single one as it is, several as an array.
pub(crate) fn one_or_all(mut caches: Vec<Value>) -> Value {
    if caches.len() == 1 { caches.remove(0) } else { Value::Array(caches) }
}
