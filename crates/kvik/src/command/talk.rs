//! Code shared by `chat` and `run`: flags of an answer, its pieces, and an answer directly from the engine.

mod set;

use std::{
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant},
};

use anyhow::anyhow;
use clap::Args;
use kvik_cache::Token;
use kvik_engine::api::{Event, EventSink, Report, Request, Sampling};
use kvik_memory::random::random;
use kvik_model::load::{SamplingDefaults, SamplingSource};
use kvik_session::{Chat, EncodedChat};
use kvik_text::answer::{AnswerDelta, Reader};
use kvik_text::tools::Tools;
use serde_json::Value;

use kvik_serving::{
    Serving,
    settings::{logging::say_dimmed, model::ModelArgs, sampling::SamplingArgs},
};

/// Short name of a model that answers well enough, and runs on any machine.
const RECOMMENDED: &str = "qwen3:0.6b";

/// Flags of the system message and of sampling.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Answer")]
pub(crate) struct TalkArgs {
    /// The system message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Answer without reasoning first, where the model supports it
    #[arg(long)]
    no_think: bool,
    /// Say which sampling is in force, and where each value comes from: a flag, the model's file, its family or kvik
    #[arg(long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// The statistics of one answer.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) report: Report,
    /// Time from the submission to the first token.
    pub(crate) first_token: Duration,
}

/// A piece of an answer as it arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AnswerPiece<'a> {
    Reasoning(&'a str),
    Content(&'a str),
}

/// Says that the embedded model is a demonstration, where it answers, and how to get another.
pub(crate) fn tell_of_demonstration(model: &ModelArgs) {
    if model.is_embedded() {
        say_dimmed(&format!(
            "the embedded model answers: it is a demonstration that knows little; `kvik pull {RECOMMENDED}` fetches a real one, which then answers"
        ));
    }
}

impl TalkArgs {
    /// The sampling in force: that of the flags, else that of `model`.
    pub(crate) fn sampling_of(&self, model: &SamplingDefaults) -> SamplingDefaults {
        model.under(&self.sampling.options(), SamplingSource::Flag)
    }

    /// The flags that are set, as fields of a request to the server's routes.
    pub(crate) fn fields(&self) -> Value {
        let set = self.sampling.options();
        let fields = [
            ("temperature", set.temperature.map(Value::from)),
            ("top_k", set.top_k.map(Value::from)),
            ("top_p", set.top_p.map(Value::from)),
            ("min_p", set.min_p.map(Value::from)),
            ("repeat_penalty", set.repetition_penalty.map(Value::from)),
            ("presence_penalty", set.presence_penalty.map(Value::from)),
            ("frequency_penalty", set.frequency_penalty.map(Value::from)),
            ("repeat_last_n", set.penalty_last_n.map(Value::from)),
            ("seed", self.sampling.seed().map(Value::from)),
            ("max_tokens", self.sampling.max_tokens().map(Value::from)),
            ("enable_thinking", self.no_think.then_some(Value::Bool(false))),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    /// The engine's request for a prompt.
    pub(crate) fn request(&self, serving: &Serving, prompt: Vec<Token>) -> Request {
        let seed = self.sampling.seed().unwrap_or_else(random);
        let max_tokens = self.sampling.max_tokens().unwrap_or(serving.model.context);
        Request {
            sampling: Sampling { seed, ..self.sampling_of(&serving.model.sampling).sampling() },
            adapters: serving.lora.usual(),
            retention: serving.retaining.usual(),
            ..Request::new(prompt, max_tokens)
        }
    }

    /// Answers the conversation so far; `show` is called with every piece as it arrives.
    pub(crate) fn chat(
        &self,
        serving: &Serving,
        messages: &[Value],
        show: &mut dyn FnMut(AnswerPiece<'_>),
    ) -> anyhow::Result<Turn> {
        serving.chat_template()?;
        let messages = Value::Array(messages.to_vec());
        let chat = Chat::new(messages, Tools::none(), self.no_think.then_some(false));
        let texts = &serving.texts;
        let prompt = texts.render(&chat)?;
        let EncodedChat { tokens, reading, show: controls, .. } = texts.encode(&chat, prompt, None);
        let request = Request { show: controls, ..self.request(serving, tokens) };
        answer(serving, request, reading.reader(""), show)
    }
}

/// Runs a request to its end.
pub(crate) fn answer(
    serving: &Serving,
    request: Request,
    mut reader: Reader,
    show: &mut dyn FnMut(AnswerPiece<'_>),
) -> anyhow::Result<Turn> {
    let start = Instant::now();
    let mut first_token = None;
    for event in submit(serving, request)? {
        match event {
            Event::Text { text, tokens, .. } => {
                if !tokens.is_empty() {
                    first_token.get_or_insert_with(|| start.elapsed());
                }
                show_deltas(reader.push(&text), show);
            }
            Event::Done(report) => {
                show_deltas(reader.finish(), show);
                let first_token = first_token.unwrap_or_else(|| start.elapsed());
                return Ok(Turn { report, first_token });
            }
            Event::Failed(error) => return Err(error.into()),
            Event::Prefill { .. } | Event::Vector(_) | Event::Finished { .. } => {}
        }
    }
    Err(anyhow!("the engine stopped before the answer was complete"))
}

/// Shows the pieces of an answer.
fn show_deltas(deltas: Vec<AnswerDelta>, show: &mut dyn FnMut(AnswerPiece<'_>)) {
    for delta in deltas {
        match delta {
            AnswerDelta::Reasoning(text) => show(AnswerPiece::Reasoning(&text)),
            AnswerDelta::Content(text) => show(AnswerPiece::Content(&text)),
            // No tools were offered.
            AnswerDelta::ToolCall { .. } | AnswerDelta::Arguments { .. } => {}
        }
    }
}

/// The events of one request, as they arrive.
fn submit(serving: &Serving, request: Request) -> anyhow::Result<Receiver<Event>> {
    struct Events(Sender<Event>);
    impl EventSink for Events {
        fn send(&mut self, event: Event) -> bool {
            self.0.send(event).is_ok()
        }
        fn is_closed(&self) -> bool {
            // This process reads every answer to its end.
            false
        }
    }
    let (sender, events) = channel();
    serving.engine.submit(request, Box::new(Events(sender)))?;
    Ok(events)
}

impl Turn {
    /// A summary on one line: tokens reused, computed and generated, and the speed.
    pub(crate) fn summary(&self) -> String {
        let report = &self.report;
        let seconds = report.decode.as_secs_f64();
        let speed = if seconds > 0.0 { report.generated_tokens as f64 / seconds } else { 0.0 };
        format!(
            "{} prompt tokens: {} reused, {} computed; first token after {:.0} ms; {} generated at {speed:.1} tokens/s",
            report.prompt_tokens,
            report.cached_tokens,
            report.computed_tokens,
            self.first_token.as_secs_f64() * 1e3,
            report.generated_tokens,
        )
    }
}
