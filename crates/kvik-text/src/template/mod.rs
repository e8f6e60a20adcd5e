//! Chat templates: render a conversation in the prompt format that the model was trained on.
//!
//! Templates are Jinja from model files, so they are hostile too: their work, memory and output are
//! limited, and their exceptions are errors for the caller. The clock is an argument.

mod generic;
mod ids;
mod learn;
mod messages;
mod switches;
mod tools;
mod unseen;

use std::ops::Range;
use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::Map;

use super::answer::{ReasoningForm, ToolForm};
use super::jinja::{Fault, Program, RenderLimits, Rendered, Variable};
use super::tokenizer::Tokenizer;
pub use messages::{check_question, without_empty_answers};
pub use switches::{is_switch, may_reason};
pub use unseen::{drop_unseen, has_images, question_start, says_nothing, text_of_part, unseen};

use learn::Learned;
use messages::MessageFormat;
use switches::needs_thinking_set;

/// Questions that begin with different tokens after any text: two prompts that end with them share exactly the
/// prefix that all prompts with the same beginning share.
pub const QUESTIONS: [&str; 2] = ["a", "0"];

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    program: Program,
    source: String,
    bos_text: String,
    eos_text: String,
    /// The form of the model's reasoning.
    reasoning: ReasoningForm,
    /// Whether the template reads `enable_thinking` without checking whether it is set.
    needs_thinking_set: bool,
    /// Its support for tools; derived at the first use.
    learned: OnceLock<Learned>,
    /// Whether it reads content as a list of parts only; derived at the first use.
    takes_parts: OnceLock<bool>,
    /// The template for conversations with tools, if the model has a separate one.
    for_tools: Option<Box<ChatTemplate>>,
}

/// A rendered conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The text of the prompt.
    pub text: String,
    /// Ranges of the text that came from the request and not from the template, ascending: within them a
    /// control token's name is plain text.
    pub inputs: Vec<Range<usize>>,
}

/// The input of a prompt.
#[derive(Debug, Clone)]
pub struct RenderInput {
    /// Messages in OpenAI's shape: an array of objects with `role` and `content`.
    pub messages: serde_json::Value,
    /// Tool definitions in OpenAI's shape.
    pub tools: Option<serde_json::Value>,
    /// End the prompt where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Switches reasoning on or off, for models that have it; `None` leaves it to the template. `false` closes
    /// reasoning that the template opens regardless.
    pub enable_thinking: Option<bool>,
    /// Further variables; none may have a name of [`RESERVED`].
    pub kwargs: Map<String, serde_json::Value>,
    /// The time for `strftime_now`.
    pub now: SystemTime,
}

/// Variables that a request cannot set: they come from its other fields or from the model file.
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

/// The template of models that have none but use ChatML.
const CHATML: &str = include_str!("chatml.jinja");

/// Steps of any template, plus steps for every message and tool, plus one for every byte of them: common
/// templates take some hundred per message. Four million take about a quarter of a second.
const STEPS_BASE: u64 = 4_000_000;
const STEPS_PER_ITEM: u64 = 5_000;

/// Bytes of values alive at the same time, plus bytes for every byte of the conversation: small values
/// take more memory than their text.
const MEMORY_BASE: usize = 128 << 20;
const MEMORY_PER_BYTE: usize = 8;
const MEMORY_MAX: usize = 1 << 30;

/// Maximum bytes of a prompt.
const OUTPUT_MAX: usize = 64 << 20;

impl ChatTemplate {
    /// Compiles a template. `bos_text` and `eos_text` are the texts of the model's begin and end tokens, or empty.
    pub fn new(source: &str, bos_text: &str, eos_text: &str) -> Result<ChatTemplate, TemplateError> {
        let program = Program::new(source).map_err(|error| match is_go(source) {
            true => TemplateError::Go,
            false => TemplateError::Syntax { reason: format!("{} (line {})", error.reason, error.line) },
        })?;
        Ok(ChatTemplate {
            program,
            source: source.into(),
            bos_text: bos_text.into(),
            eos_text: eos_text.into(),
            reasoning: ReasoningForm::of_template(source),
            needs_thinking_set: needs_thinking_set(source),
            learned: OnceLock::new(),
            takes_parts: OnceLock::new(),
            for_tools: None,
        })
    }

    /// Adds another template for conversations in which tools are offered or were called; models that have one
    /// name it `tool_use`.
    ///
    /// # Errors
    /// If that template cannot be read.
    pub fn and_for_tools(mut self, source: &str) -> Result<ChatTemplate, TemplateError> {
        let mut for_tools = ChatTemplate::new(source, &self.bos_text, &self.eos_text)?;
        if self.reasoning == ReasoningForm::default() {
            self.reasoning = for_tools.reasoning;
        }
        for_tools.reasoning = self.reasoning;
        self.for_tools = Some(Box::new(for_tools));
        Ok(self)
    }

    /// A line for each part of a conversation that the template fails to render, with the reason: kvik then
    /// writes that part in a form of its own. All parts are tried, which takes some milliseconds.
    pub fn failures(&self) -> Vec<String> {
        let template = self.for_tools.as_deref().unwrap_or(self);
        let failures = template.learned().failures.iter();
        failures.map(|(part, error)| format!("the chat template does not render {part}: {error}")).collect()
    }

    /// ChatML, for models without a template whose vocabulary has its tokens.
    pub fn chatml(tokenizer: &Tokenizer) -> Option<&'static str> {
        tokenizer.token_of("<|im_start|>").map(|_| CHATML)
    }

    /// Compiles a template with the special tokens of a tokenizer.
    pub fn with_tokens_of(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, TemplateError> {
        let text = |token: Option<_>| token.and_then(|token| tokenizer.token_text(token)).unwrap_or_default();
        ChatTemplate::new(source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The form of the model's reasoning.
    pub fn reasoning_form(&self) -> ReasoningForm {
        self.reasoning
    }

    /// The form of the model's tool calls: that of its messages, the one that its template renders, or the one
    /// that it mentions; else the most common one. If the template does not describe the tools, an instruction
    /// requests this form.
    pub fn tool_form(&self) -> ToolForm {
        if let Some(for_tools) = &self.for_tools {
            return for_tools.tool_form();
        }
        if self.reasoning == ReasoningForm::Channels {
            return ToolForm::channels();
        }
        let learned = self.learned().form.clone();
        learned.or_else(|| ToolForm::mentioned_in(&self.source)).unwrap_or_else(ToolForm::tagged)
    }

    fn learned(&self) -> &Learned {
        self.learned.get_or_init(|| Learned::from(self))
    }

    /// Whether the template loses the text of a message unless it is in a list of parts, as in SmolVLM.
    fn takes_parts(&self) -> bool {
        *self.takes_parts.get_or_init(|| {
            let renders = |messages: &[serde_json::Value]| {
                let written = self.write_messages(&learn::unasked(), None, messages);
                written.is_ok_and(|prompt| prompt.text.contains(learn::QUESTION))
            };
            let question = [learn::question()];
            !renders(&question) && renders(&messages::in_parts(&question))
        })
    }

    /// Renders a prompt.
    pub fn render(&self, input: &RenderInput) -> Result<Prompt, TemplateError> {
        if let Some(name) = RESERVED.iter().find(|name| input.kwargs.contains_key(**name)) {
            return Err(TemplateError::Reserved { name });
        }
        if let Some(for_tools) = self.for_tools.as_ref().filter(|_| uses_tools(input)) {
            return for_tools.render(input);
        }
        let learned = uses_tools(input).then(|| self.learned());
        let expected = learned.map_or_else(|| MessageFormat::guess(&self.source), |learned| learned.expected);
        let mut messages = messages::normalise(&input.messages, expected)?;
        if messages::has_system(&messages) && !self.learned().system {
            messages = messages::fold_system(messages);
        }
        let tools = input.tools.as_ref().map(tools::complete);
        if let Some(learned) = learned {
            generic::explain(&mut messages, tools.as_ref(), learned, &self.tool_form());
        }
        let mut prompt = self.write(input, tools.as_ref(), &messages)?;
        // With channels, an answer that begins in its content could not make calls.
        let may_call = input.tools.is_some() && self.reasoning == ReasoningForm::Channels;
        if input.add_generation_prompt && input.enable_thinking == Some(false) && !may_call {
            self.reasoning.close_in(&mut prompt.text);
        }
        Ok(prompt)
    }

    /// Renders a conversation without describing tools in messages.
    fn render_as_is(&self, input: &RenderInput, expected: MessageFormat) -> Result<Prompt, TemplateError> {
        self.write(input, input.tools.as_ref(), &messages::normalise(&input.messages, expected)?)
    }

    fn write(
        &self,
        input: &RenderInput,
        tools: Option<&serde_json::Value>,
        messages: &[serde_json::Value],
    ) -> Result<Prompt, TemplateError> {
        let error = match self.write_with(input, tools, messages) {
            Err(error @ (TemplateError::Failed { .. } | TemplateError::Raised { .. })) => error,
            written => return written,
        };
        // Some templates read fields that most requests have without checking for them.
        let (tools, messages) = (tools::explicit(tools), messages::explicit(messages));
        self.write_with(input, Some(&tools), &messages).map_err(|_| error)
    }

    /// Writes messages whose content is text, in the shape that the template reads.
    fn write_with(
        &self,
        input: &RenderInput,
        tools: Option<&serde_json::Value>,
        messages: &[serde_json::Value],
    ) -> Result<Prompt, TemplateError> {
        match self.takes_parts() {
            true => self.write_messages(input, tools, &messages::in_parts(messages)),
            false => self.write_messages(input, tools, messages),
        }
    }

    fn write_messages(
        &self,
        input: &RenderInput,
        tools: Option<&serde_json::Value>,
        messages: &[serde_json::Value],
    ) -> Result<Prompt, TemplateError> {
        let mut kwargs = input.kwargs.clone();
        switches::add(&mut kwargs, input.enable_thinking, &self.source, self.reasoning);
        let variables = self.variables(input, tools, &kwargs, messages);
        let limits = limits(input);
        let written = self.program.render(&variables, &limits, input.now);
        let Rendered { text, inputs } = written.map_err(|fault| TemplateError::of(fault, &limits))?;
        Ok(Prompt { text, inputs })
    }

    fn variables<'a>(
        &'a self,
        input: &RenderInput,
        tools: Option<&'a serde_json::Value>,
        kwargs: &'a Map<String, serde_json::Value>,
        messages: &'a [serde_json::Value],
    ) -> Vec<(&'a str, Variable<'a>)> {
        let mut variables = vec![
            ("messages", Variable::Messages(messages)),
            ("tools", tools.map_or(Variable::None, Variable::Input)),
            ("documents", Variable::None),
            ("add_generation_prompt", Variable::Flag(input.add_generation_prompt)),
            ("bos_token", Variable::Trusted(&self.bos_text)),
            ("eos_token", Variable::Trusted(&self.eos_text)),
        ];
        // A template that does not check the variable reasons if it is true; undefined would count as false
        // and switch reasoning off in every answer.
        let thinking = input.enable_thinking.or(self.needs_thinking_set.then_some(true));
        variables.extend(thinking.map(|on| ("enable_thinking", Variable::Flag(on))));
        // Of these variables a request may set only `documents`, for retrieval templates.
        variables.retain(|(name, _)| !kwargs.contains_key(*name));
        variables.extend(kwargs.iter().map(|(name, value)| (name.as_str(), Variable::Input(value))));
        variables
    }
}

/// Whether a text is a template in Go's language, as in Ollama's models: an action there begins with a field,
/// such as `.Messages`, or a function before one.
fn is_go(source: &str) -> bool {
    let actions = source.split("{{").skip(1).map(|action| action.trim_start_matches('-').trim_start());
    let mut words =
        actions.flat_map(|action| action.split("}}").next().unwrap_or_default().split_whitespace());
    words.any(|word| word.starts_with(['.', '$']) && word.len() > 1)
}

/// Whether the request has tools, or earlier calls of tools.
fn uses_tools(input: &RenderInput) -> bool {
    let messages = input.messages.as_array().map_or(&[][..], Vec::as_slice);
    let called = |message: &serde_json::Value| message["role"] == "tool" || !message["tool_calls"].is_null();
    input.tools.is_some() || messages.iter().any(called)
}

/// The limits for rendering this conversation.
fn limits(input: &RenderInput) -> RenderLimits {
    let parts = || [Some(&input.messages), input.tools.as_ref()].into_iter().flatten();
    let items: u64 = parts().map(|part| part.as_array().map_or(0, Vec::len) as u64).sum();
    let bytes: usize = parts().chain(input.kwargs.values()).map(text_bytes).sum();
    RenderLimits {
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

/// The reason why a prompt cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The model has no template and no known chat format.
    #[error("this model has no chat template; give one with --chat-template FILE or use /v1/completions")]
    Missing,
    /// The template is in a language other than Jinja.
    #[error(
        "the chat template is one of Go, as Ollama's models have them, and kvik reads Jinja; give the model's own with --chat-template FILE"
    )]
    Go,
    /// The template is not valid Jinja.
    #[error("the chat template cannot be read: {reason}; give another one with --chat-template FILE")]
    Syntax {
        /// The error, with the line.
        reason: String,
    },
    /// The messages are not valid.
    #[error("{field}: {reason}")]
    BadMessages {
        /// The field, such as `messages[2].content`.
        field: String,
        /// The reason.
        reason: String,
    },
    /// A variable of the request has a reserved name.
    #[error(
        "`chat_template_kwargs.{name}` cannot be set: the name belongs to kvik; send it as a field of its own, or leave it out"
    )]
    Reserved {
        /// The name.
        name: &'static str,
    },
    /// The template raised an exception.
    #[error("the chat template refuses this conversation: {message}")]
    Raised {
        /// Its message.
        message: String,
    },
    /// The template took too many steps.
    #[error("the chat template was stopped after {steps} steps; it probably loops forever")]
    OutOfSteps {
        /// The limit.
        steps: u64,
    },
    /// The template's values took too much memory.
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
        /// The error, with the line.
        reason: String,
    },
}

impl TemplateError {
    fn of(fault: Fault, limits: &RenderLimits) -> TemplateError {
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
mod tests_families;
#[cfg(test)]
mod tests_published;
#[cfg(test)]
mod tests_shapes;
#[cfg(test)]
mod tests_tools;
