//! Chat templates: from a conversation to the text of a prompt, as the model was trained to see it.
//!
//! Templates are Jinja and come from model files, so they are hostile too: work, memory and output are
//! limited, and what they raise is an error for the caller. The clock is an argument.

mod generic;
mod learn;
mod messages;

use std::ops::Range;
use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::Map;

use super::answer::ToolForm;
use super::jinja::{Fault, Limits, Program, Variable, Written};
use super::tokenizer::Tokenizer;
use learn::Learned;
use messages::Expected;

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    program: Program,
    source: String,
    bos_text: String,
    eos_text: String,
    /// The template reads `enable_thinking` and takes for granted that it is set.
    needs_thinking_set: bool,
    /// What it does with tools; learned when it is first asked.
    learned: OnceLock<Learned>,
}

/// A rendered conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// What the model reads.
    pub text: String,
    /// Ranges of the text that were written by the request and not by the template, ascending: a
    /// control token's name in there is text like any other.
    pub inputs: Vec<Range<usize>>,
}

/// What a prompt is made from.
#[derive(Debug, Clone)]
pub struct RenderInput {
    /// Messages in OpenAI's shape: an array of objects with `role` and `content`.
    pub messages: serde_json::Value,
    /// Tool definitions in OpenAI's shape.
    pub tools: Option<serde_json::Value>,
    /// End the prompt where the assistant begins to speak.
    pub add_generation_prompt: bool,
    /// For models that can think before they answer; `None` leaves it to the template. `false` closes a
    /// thought that the template opens without asking.
    pub enable_thinking: Option<bool>,
    /// Further variables; none may have a name of [`RESERVED`].
    pub kwargs: Map<String, serde_json::Value>,
    /// The time that `strftime_now` sees.
    pub now: SystemTime,
}

/// Variables that a request cannot set: what it says in its own fields, and what the model file says.
pub const RESERVED: [&str; 11] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "enable_thinking",
    "bos_token",
    "eos_token",
    "strftime_now",
    "raise_exception",
    "namespace",
    "range",
    "dict",
];

/// The template of models that have none but speak ChatML.
const CHATML: &str = include_str!("chatml.jinja");

/// Steps that any template may take, more for every message and tool, and one for every byte of them:
/// the templates in use take some hundred a message. Four million take about a quarter of a second.
const STEPS_BASE: u64 = 4_000_000;
const STEPS_PER_ITEM: u64 = 5_000;

/// Bytes of values alive at the same time, and more for every byte of the conversation: small values
/// take more room than their text.
const MEMORY_BASE: usize = 128 << 20;
const MEMORY_PER_BYTE: usize = 8;
const MEMORY_MAX: usize = 1 << 30;

/// Bytes of a prompt.
const OUTPUT_MAX: usize = 64 << 20;

impl ChatTemplate {
    /// Compiles a template. The texts are those of the model's begin and end tokens, or empty.
    pub fn new(source: &str, bos_text: &str, eos_text: &str) -> Result<ChatTemplate, TemplateError> {
        let program = Program::new(source).map_err(|error| TemplateError::Syntax {
            reason: format!("{} (line {})", error.reason, error.line),
        })?;
        Ok(ChatTemplate {
            program,
            source: source.into(),
            bos_text: bos_text.into(),
            eos_text: eos_text.into(),
            needs_thinking_set: needs_thinking_set(source),
            learned: OnceLock::new(),
        })
    }

    /// ChatML, for models that come without a template and whose vocabulary has its tokens.
    pub(crate) fn chatml(tokenizer: &Tokenizer) -> Option<&'static str> {
        tokenizer.token_of("<|im_start|>").map(|_| CHATML)
    }

    /// A template in the words of a tokenizer's special tokens.
    pub fn with_tokens_of(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, TemplateError> {
        let text = |token: Option<_>| token.and_then(|token| tokenizer.token_text(token)).unwrap_or_default();
        ChatTemplate::new(source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// How the model writes calls of tools: as its template does, else as it is asked to.
    pub fn tool_form(&self) -> ToolForm {
        let learned = self.learned();
        match (&learned.form, learned.offers) {
            (Some(form), true) => form.clone(),
            (None, true) => ToolForm::mentioned_in(&self.source).unwrap_or_else(ToolForm::tagged),
            (_, false) => ToolForm::tagged(),
        }
    }

    fn learned(&self) -> &Learned {
        self.learned.get_or_init(|| Learned::from(self))
    }

    /// Renders a prompt.
    pub fn render(&self, input: &RenderInput) -> Result<Prompt, TemplateError> {
        if let Some(name) = RESERVED.iter().find(|name| input.kwargs.contains_key(**name)) {
            return Err(TemplateError::Reserved { name });
        }
        let learned = uses_tools(input).then(|| self.learned());
        let expected = learned.map_or_else(|| Expected::by(&self.source), |learned| learned.expected);
        let mut messages = messages::normalise(&input.messages, expected)?;
        if let Some(learned) = learned {
            generic::explain(&mut messages, input.tools.as_ref(), learned);
        }
        let mut prompt = self.write(input, &messages)?;
        if input.add_generation_prompt && input.enable_thinking == Some(false) {
            prompt.close_thought();
        }
        Ok(prompt)
    }

    /// What the template itself makes of a conversation.
    fn render_as_is(&self, input: &RenderInput, expected: Expected) -> Result<Prompt, TemplateError> {
        self.write(input, &messages::normalise(&input.messages, expected)?)
    }

    fn write(&self, input: &RenderInput, messages: &[serde_json::Value]) -> Result<Prompt, TemplateError> {
        let variables = self.variables(input, messages);
        let limits = limits(input);
        let written = self.program.render(&variables, &limits, input.now);
        let Written { text, inputs } = written.map_err(|fault| TemplateError::of(fault, &limits))?;
        Ok(Prompt { text, inputs })
    }

    fn variables<'a>(
        &'a self,
        input: &'a RenderInput,
        messages: &'a [serde_json::Value],
    ) -> Vec<(&'a str, Variable<'a>)> {
        let mut variables = vec![
            ("messages", Variable::Messages(messages)),
            ("tools", input.tools.as_ref().map_or(Variable::None, Variable::Input)),
            ("documents", Variable::None),
            ("add_generation_prompt", Variable::Flag(input.add_generation_prompt)),
            ("bos_token", Variable::Trusted(&self.bos_text)),
            ("eos_token", Variable::Trusted(&self.eos_text)),
        ];
        // A template that takes the variable for granted means thinking where it is true; undefined, it
        // would be false, and close the thought of every answer.
        let thinking = input.enable_thinking.or(self.needs_thinking_set.then_some(true));
        variables.extend(thinking.map(|on| ("enable_thinking", Variable::Flag(on))));
        // `documents` is the one of them that a request may set, for templates that retrieve.
        variables.retain(|(name, _)| !input.kwargs.contains_key(*name));
        variables.extend(input.kwargs.iter().map(|(name, value)| (name.as_str(), Variable::Input(value))));
        variables
    }
}

impl Prompt {
    /// Ends a thought that the prompt has opened, in the way of models that can leave it out.
    fn close_thought(&mut self) {
        if ends_in_thinking(&self.text) {
            self.text.truncate(self.text.trim_end().len());
            self.text.push_str("\n\n</think>\n\n");
        }
    }
}

/// Whether a template reads `enable_thinking` without asking whether it is set.
fn needs_thinking_set(source: &str) -> bool {
    let source: String = source.split_whitespace().collect();
    let asks = ["isdefined", "isnotdefined", "isundefined", "isnotundefined", "isnone", "isnotnone", "|d"];
    let mut uses = source.match_indices("enable_thinking").map(|(at, name)| &source[at + name.len()..]);
    let asked = |rest: &str| asks.iter().any(|question| rest.starts_with(question));
    let assigned = |rest: &str| rest.starts_with('=') && !rest.starts_with("==");
    source.contains("enable_thinking") && !uses.any(|rest| asked(rest) || assigned(rest))
}

/// Whether a prompt leaves the model inside an open thought, so that its answer begins there.
pub fn ends_in_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with("<think>")
}

/// Whether tools are offered, or were called.
fn uses_tools(input: &RenderInput) -> bool {
    let messages = input.messages.as_array().map_or(&[][..], Vec::as_slice);
    let called = |message: &serde_json::Value| message["role"] == "tool" || !message["tool_calls"].is_null();
    input.tools.is_some() || messages.iter().any(called)
}

/// What a template may use for this conversation.
fn limits(input: &RenderInput) -> Limits {
    let parts = || [Some(&input.messages), input.tools.as_ref()].into_iter().flatten();
    let items: u64 = parts().map(|part| part.as_array().map_or(0, Vec::len) as u64).sum();
    let bytes: usize = parts().chain(input.kwargs.values()).map(text_bytes).sum();
    Limits {
        steps: STEPS_BASE + STEPS_PER_ITEM * items + bytes as u64,
        memory_bytes: (MEMORY_BASE + MEMORY_PER_BYTE * bytes).min(MEMORY_MAX),
        output_bytes: OUTPUT_MAX,
    }
}

/// Bytes of the strings of a value.
fn text_bytes(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(items) => items.iter().map(text_bytes).sum(),
        serde_json::Value::Object(fields) => {
            fields.iter().map(|(name, value)| name.len() + text_bytes(value)).sum()
        }
        _ => 0,
    }
}

/// Why there is no prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The model has no template and no known chat format.
    #[error("this model has no chat template; give one with --chat-template FILE or use /v1/completions")]
    Missing,
    /// The template is not valid Jinja.
    #[error("the chat template cannot be read: {reason}")]
    Syntax {
        /// What is wrong, with the line.
        reason: String,
    },
    /// The conversation is not one.
    #[error("{field}: {reason}")]
    BadMessages {
        /// The field, such as `messages[2].content`.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A variable of the request has a name that is taken.
    #[error(
        "`chat_template_kwargs.{name}` cannot be set: the name belongs to kvik; send it as a field of its own, or leave it out"
    )]
    Reserved {
        /// The name.
        name: &'static str,
    },
    /// The template refuses the conversation, in its own words.
    #[error("the chat template refuses this conversation: {message}")]
    Raised {
        /// What it says.
        message: String,
    },
    /// The template does not come to an end.
    #[error("the chat template was stopped after {steps} steps; it probably loops forever")]
    OutOfSteps {
        /// The limit.
        steps: u64,
    },
    /// The template builds values without end.
    #[error("the chat template was stopped at {limit} bytes of memory; its values are too large")]
    OutOfMemory {
        /// The limit.
        limit: usize,
    },
    /// The prompt is too long.
    #[error("the chat template was stopped after {limit} bytes of output")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// The template failed.
    #[error("the chat template failed: {reason}")]
    Failed {
        /// What went wrong, with the line.
        reason: String,
    },
}

impl TemplateError {
    fn of(fault: Fault, limits: &Limits) -> TemplateError {
        match fault {
            Fault::Steps => TemplateError::OutOfSteps { steps: limits.steps },
            Fault::Memory => TemplateError::OutOfMemory { limit: limits.memory_bytes },
            Fault::Output => TemplateError::TooLong { limit: limits.output_bytes },
            Fault::Raised(message) => TemplateError::Raised { message },
            Fault::Failed { reason, line: Some(line) } => {
                TemplateError::Failed { reason: format!("{reason} (line {line})") }
            }
            Fault::Failed { reason, line: None } => TemplateError::Failed { reason },
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_tools;
