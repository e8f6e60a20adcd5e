//! One request of a chat, from its arrival to the request that computes the turn after it.

use std::hash::BuildHasher;

use kvik_cache::{Lifetime, Token};
use kvik_engine::api::{AdapterMix, Event, EventSink, Pace, Request, Wants};
use kvik_engine::schedule::prefix::common_prefix;
use kvik_text::tokenizer::encoding_for;
use serde_json::Value;

use super::records::Expected;
use super::{AheadMode, AheadSink, NextTurns, Reserved};
use crate::chat::Chat;
use crate::marks::PromptMarks;
use crate::texts::Texts;

/// Tokens that have to be new: fewer are computed with the next question at no cost.
const GAIN_MIN: usize = 32;
/// Priority of the blocks until a request uses them: of what may be evicted they come first.
const PRIORITY: i8 = -50;
/// Characters of a system message that tell one client from another; more may hold a date or a directory.
const CLIENT_CHARS: usize = 200;

/// A request that is answered.
#[derive(Debug)]
pub struct Turn {
    turns: NextTurns,
    expected: Option<Expected>,
    /// Present if the turn after it may be computed ahead.
    followed: Option<Followed>,
}

/// The parts of a request that decide the next turn.
#[derive(Debug)]
struct Followed {
    /// The chat without its messages.
    settings: Chat,
    /// The request that computes the next turn, without its prompt.
    request: Request,
    /// Of the request's prompt.
    marks: PromptMarks,
    generated: Vec<Token>,
}

/// A turn that may be computed ahead. Dropping it gives its place up.
#[derive(Debug)]
pub struct Upcoming {
    reserved: Reserved,
    /// The chat with its answer.
    chat: Chat,
    request: Request,
    prompt_tokens: usize,
    /// Tokens of the prompt and the answer.
    computed: Vec<Token>,
}

impl Turn {
    /// Notes a request that is about to be submitted, signed. `settings` are those of its chat, without messages; `None`
    /// if nothing is computed after it.
    pub fn arrived(turns: &NextTurns, request: &Request, settings: Option<Chat>) -> Turn {
        let turns = turns.clone();
        if turns.mode == AheadMode::Off || !request.reuse {
            return Turn { turns, expected: None, followed: None };
        }
        let marks = marks(&turns, request, &request.prompt);
        let expected = turns.lock().arrived(&turns.hasher, &marks, &request.prompt);
        let followed = settings.filter(|settings| is_followed(request, settings)).map(|settings| Followed {
            settings,
            request: ahead_of(request),
            marks,
            generated: Vec::new(),
        });
        Turn { turns, expected, followed }
    }

    /// Notes an event of its answer.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Text { tokens, .. } => {
                let generated = self.followed.iter_mut().map(|followed| &mut followed.generated);
                generated.for_each(|generated| generated.extend(tokens.iter().map(|token| token.token)));
            }
            Event::Done(report) => {
                let expected = self.expected.take();
                expected
                    .into_iter()
                    .for_each(|expected| self.turns.lock().found(expected, report.cached_tokens));
            }
            _ => {}
        }
    }

    /// The turn after this one, which was answered to `prompt`, the prompt of `messages`, with the message `answer`.
    /// `thoughts_return` says that the client's protocol has it send thoughts back.
    pub fn ended(
        &mut self,
        prompt: &[Token],
        messages: Vec<Value>,
        answer: Value,
        thoughts_return: bool,
    ) -> Option<Upcoming> {
        let Followed { settings, request, marks, generated } = self.followed.take()?;
        let turns = self.turns.clone();
        let client = turns.hasher.hash_one((request.salt, client_text(&messages)));
        let id = turns.lock().reserve(turns.mode, client, marks)?;
        let reserved = Reserved { turns, id };
        let answer = echoed(&messages, answer, thoughts_return);
        let messages = messages.into_iter().chain([answer]).collect();
        let chat = Chat { messages: Value::Array(messages), ..settings };
        let computed = [prompt, &generated].concat();
        Some(Upcoming { reserved, chat, request, prompt_tokens: prompt.len(), computed })
    }
}

impl Upcoming {
    /// The request that computes it, and its sink; `None` if little of it is new, the template refuses it, or its
    /// conversation has gone on. Renders and tokenizes the chat; `as_generated` gives answers in it the tokens with which
    /// they were generated.
    pub fn prepare(
        self,
        texts: &Texts,
        as_generated: impl FnOnce(&mut Request),
    ) -> Option<(Request, Box<dyn EventSink>)> {
        let Upcoming { reserved, chat, mut request, prompt_tokens, computed } = self;
        request.prompt = encoding_for(request.tenant, || texts.shared_tokens(&chat)).ok()?;
        as_generated(&mut request);
        let tokens = request.prompt.len();
        let known = common_prefix(&request.prompt, &computed);
        if tokens < known + GAIN_MIN || tokens >= texts.context_tokens {
            return None;
        }
        let of = |tokens: &[Token]| marks(&reserved.turns, &request, tokens);
        let (shared, whole) = (of(&request.prompt[..known.min(prompt_tokens)]), of(&request.prompt));
        let is_dropped = reserved.turns.lock().begin(reserved.id, shared, whole)?;
        Some((request, Box::new(AheadSink { reserved, is_dropped })))
    }
}

/// Whether the turn after a request may be computed: the request is one answer that is cached, and reads all of its
/// prompt.
fn is_followed(request: &Request, settings: &Chat) -> bool {
    let is_answer = request.wants == Wants::Text && request.choices == 1 && request.max_tokens > 0;
    let reads_all = request.retention.is_none() && request.kept_prefix.is_none();
    is_answer && reads_all && request.background.is_none() && settings.add_generation_prompt
}

/// The request that computes a prompt after this one, without its tokens.
fn ahead_of(request: &Request) -> Request {
    let Lifetime { ttl, priority, .. } = request.lifetime;
    Request {
        prompt_is_text: request.prompt_is_text,
        ignore_eos: true,
        adapters: request.adapters.clone(),
        salt: request.salt,
        tenant: request.tenant,
        lifetime: Lifetime { ttl, priority: priority.min(PRIORITY), ..Lifetime::default() },
        background: Some(Pace::default()),
        ..Request::new(Vec::new(), 0)
    }
}

fn marks(turns: &NextTurns, request: &Request, prompt: &[Token]) -> PromptMarks {
    let world = (request.salt, request.adapters.as_ref().map(AdapterMix::digest));
    PromptMarks::of(&turns.hasher, world, prompt)
}

/// The text by which clients are told apart: the beginning of their system message.
fn client_text(messages: &[Value]) -> Option<String> {
    let system = messages.first().filter(|message| message["role"] != "user")?;
    let text = match &system["content"] {
        Value::Array(parts) => parts.first().and_then(|part| part["text"].as_str()),
        content => content.as_str(),
    };
    Some(text?.chars().take(CLIENT_CHARS).collect())
}

/// An answer as its client sends it back: with its thoughts where the client has sent thoughts before, or its protocol
/// has it do so.
fn echoed(messages: &[Value], mut answer: Value, thoughts_return: bool) -> Value {
    let returned =
        |message: &Value| message["reasoning_content"].as_str().is_some_and(|text| !text.is_empty());
    if !thoughts_return && !messages.iter().any(returned) {
        answer.as_object_mut().map(|answer| answer.remove("reasoning_content"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use kvik_engine::api::{GeneratedToken, Report};
    use kvik_model::load::LoadedModel;
    use kvik_text::tools::Tools;
    use serde_json::json;

    use super::*;

    const LONG: &str =
        "The kettle boils, the door is open, the newsletter came, and nobody reads any of it before noon.";

    /// Writes thoughts of messages behind the last question only.
    const STRIPPING: &str = "{% set last = namespace(at=-1) %}\
        {% for m in messages %}{% if m.role == 'user' %}{% set last.at = loop.index0 %}{% endif %}{% endfor %}\
        {% for m in messages %}<|im_start|>{{ m.role }}\n\
        {% if m.reasoning_content and loop.index0 > last.at %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}\
        {{ m.content or '' }}{% for call in m.tool_calls or [] %}\n<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}\
        <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    fn texts(template: Option<&str>) -> Texts {
        let loaded = LoadedModel::open(&kvik_testing::tiny_model()).unwrap();
        let template = Some(loaded.template(template).unwrap());
        Texts::new(loaded.tokenizer, template, 2048)
    }

    fn chat(messages: Vec<Value>) -> Chat {
        Chat::new(Value::Array(messages), Tools::none(), None)
    }

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    fn calls() -> Value {
        let call = json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
        json!({"role": "assistant", "content": LONG, "reasoning_content": LONG, "tool_calls": [call]})
    }

    /// A question, a call behind thoughts, and its result: the answer to it is the last message of its question.
    fn loop_of_calls() -> Vec<Value> {
        vec![user("Who is there?"), calls(), json!({"role": "tool", "tool_call_id": "c1", "content": LONG})]
    }

    /// What is computed behind an answer to these messages, with the prompt of the answer.
    fn ahead(
        turns: &NextTurns,
        texts: &Texts,
        messages: &[Value],
        answer: Value,
    ) -> Option<(Request, Box<dyn EventSink>)> {
        let prompt = texts.tokens(&chat(messages.to_vec())).unwrap();
        let request = Request::new(prompt, 8);
        let mut turn = Turn::arrived(turns, &request, Some(chat(Vec::new())));
        let text = answer["content"].as_str().unwrap_or_default();
        let tokens = texts.tokenizer.encode(text, false, false);
        let tokens = tokens.into_iter().map(|token| GeneratedToken { token, logprob: None }).collect();
        turn.note(&Event::Text { choice: 0, text: text.to_owned(), tokens });
        turn.ended(&request.prompt, messages.to_vec(), answer, false)?.prepare(texts, |_| {})
    }

    fn said() -> Value {
        json!({"role": "assistant", "content": "Nobody.", "reasoning_content": LONG})
    }

    #[test]
    fn all_but_the_next_message_is_computed_where_thoughts_are_left_out() {
        let texts = texts(Some(STRIPPING));
        let messages = loop_of_calls();
        let (request, _sink) = ahead(&NextTurns::default(), &texts, &messages, said()).unwrap();
        assert_eq!((request.max_tokens, request.lifetime.priority), (0, PRIORITY));
        assert!(request.background.is_some() && request.reuse);
        for (question, echo) in
            [("Why?", json!({"role": "assistant", "content": "Nobody."})), ("And now?", said())]
        {
            let next = texts.tokens(&chat([&messages[..], &[echo, user(question)]].concat())).unwrap();
            assert!(next.starts_with(&request.prompt), "{}", texts.tokenizer.decode(&next));
            let new = texts.tokenizer.decode(&next[request.prompt.len()..]);
            assert_eq!(new, format!("{question}<|im_end|>\n<|im_start|>assistant\n"));
        }
    }

    #[test]
    fn behind_calls_comes_a_result() {
        let texts = texts(Some(STRIPPING));
        let (request, _sink) = ahead(&NextTurns::default(), &texts, &loop_of_calls()[..1], calls()).unwrap();
        let text = texts.tokenizer.decode(&request.prompt);
        assert!(text.ends_with("</tool_call><|im_end|>\n<|im_start|>tool\n"), "{text}");
        assert!(!text.contains("<think>"), "the client has sent no thoughts so far: {text}");
        let with_thoughts = [loop_of_calls(), vec![]].concat();
        assert_eq!(echoed(&with_thoughts, said(), false), said(), "it has");
        assert_eq!(echoed(&[], said(), true), said(), "its protocol has it do so");
    }

    #[test]
    fn nothing_is_computed_where_all_is_known_or_the_request_leaves_nothing() {
        let embedded = texts(None);
        let messages = [user(LONG)];
        let answer = json!({"role": "assistant", "content": LONG});
        assert!(ahead(&NextTurns::default(), &embedded, &messages, answer.clone()).is_none());
        let stripping = texts(Some(STRIPPING));
        assert!(ahead(&NextTurns::new(AheadMode::Off), &stripping, &loop_of_calls(), said()).is_none());
        let request = Request::new(vec![1; 40], 8);
        let follows = |request: Request| {
            Turn::arrived(&NextTurns::default(), &request, Some(chat(Vec::new()))).followed.is_some()
        };
        assert!(follows(request.clone()));
        for request in [
            Request { reuse: false, ..request.clone() },
            Request { choices: 2, ..request.clone() },
            Request { max_tokens: 0, ..request.clone() },
            Request { kept_prefix: Some(16), ..request.clone() },
            Request { background: Some(Pace::default()), ..request.clone() },
        ] {
            assert!(!follows(request));
        }
    }

    #[test]
    fn a_turn_that_is_expected_is_computed_whatever_its_client_found_before() {
        let (turns, texts) = (NextTurns::default(), texts(Some(STRIPPING)));
        let computed = |turns: &NextTurns| {
            let computed = ahead(turns, &texts, &loop_of_calls(), said());
            computed.map(|(_, mut sink)| {
                sink.given_up(&Report { computed_tokens: 48, ..Report::default() });
            })
        };
        while computed(&turns).is_some() {}
        assert!(computed(&turns.expected()).is_some());
        assert!(computed(&turns).is_none(), "others are as before");
        assert!(computed(&NextTurns::new(AheadMode::Off).expected()).is_none(), "the server's owner decides");
    }

    #[test]
    fn the_next_turn_ends_the_work_and_counts_what_it_finds() {
        let (turns, texts) = (NextTurns::default(), texts(Some(STRIPPING)));
        let messages = loop_of_calls();
        let (request, mut sink) = ahead(&turns, &texts, &messages, said()).unwrap();
        let other = Request { salt: [1; 16], ..Request::new(request.prompt.clone(), 8) };
        Turn::arrived(&turns, &other, None);
        assert!(!sink.is_closed(), "it is another tenant's");
        let next = texts.tokens(&chat([&messages[..], &[said(), user("Why?")]].concat())).unwrap();
        let mut turn = Turn::arrived(&turns, &Request::new(next, 8), None);
        assert!(sink.is_closed());
        let total = request.prompt.len();
        sink.given_up(&Report { cached_tokens: 20, computed_tokens: 48, ..Report::default() });
        drop(sink);
        turn.note(&Event::Done(Report { cached_tokens: total.min(68), ..Report::default() }));
        assert_eq!(turns.counts(), crate::AheadCounts { computed: 48, used: 48 });
    }

    /// Qwen3's template, with thoughts in a loop of calls.
    #[test]
    fn a_published_template_is_known_up_to_the_next_message() {
        let Some(data) = kvik_testing::outside_data() else { return };
        let source = std::fs::read_to_string(data.join("templates/Qwen-Qwen3-0.6B.jinja")).unwrap();
        let texts = texts(Some(&source));
        let messages = loop_of_calls();
        let (request, _sink) = ahead(&NextTurns::default(), &texts, &messages, said()).unwrap();
        let next = texts.tokens(&chat([&messages[..], &[said(), user("Why?")]].concat())).unwrap();
        assert!(next.starts_with(&request.prompt));
        let new = texts.tokenizer.decode(&next[request.prompt.len()..]);
        assert!(new.starts_with("Why?"), "{new}");
        assert!(!texts.tokenizer.decode(&request.prompt).contains("<think>"));
    }
}
