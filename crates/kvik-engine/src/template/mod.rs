//! Chat templates: from a conversation to the text of a prompt, as the model was trained to see it.
//!
//! Templates are Jinja and come from model files, so they are hostile too: instructions, recursion and
//! output are limited, and what they raise is an error for the caller. The clock is an argument.

mod json;
mod messages;
mod source;
mod strftime;

use std::fmt;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::Map;

use crate::load::LoadedModel;
use messages::Arguments;

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_text: String,
    eos_text: String,
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
    /// For models that can think before they answer; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Further variables; they override the ones above.
    pub kwargs: Map<String, serde_json::Value>,
    /// The time that `strftime_now` sees.
    pub now: SystemTime,
}

/// The template of models that have none but speak ChatML.
const CHATML: &str = include_str!("chatml.jinja");

const NAME: &str = "chat_template";

/// Instructions that any template may spend, and more for every message and tool.
const FUEL_BASE: u64 = 1_000_000;
const FUEL_PER_ITEM: u64 = 5_000;

/// Bytes of a prompt beyond those of the conversation itself.
const OUTPUT_MAX: usize = 64 << 20;

/// A template can nest values about as deep as its fuel lasts, and dropping them recurses.
/// The stack is only reserved, pages that are not reached cost nothing.
const STACK_BYTES: usize = 512 << 20;

impl ChatTemplate {
    /// Compiles a template. The texts are those of the model's begin and end tokens, or empty.
    pub fn new(source: &str, bos_text: &str, eos_text: &str) -> Result<ChatTemplate, TemplateError> {
        let mut environment = environment();
        environment
            .add_template_owned(NAME, source::without_generation_tags(source))
            .map_err(|error| TemplateError::Syntax { reason: describe(&error) })?;
        Ok(ChatTemplate {
            environment,
            source: source.into(),
            bos_text: bos_text.into(),
            eos_text: eos_text.into(),
        })
    }

    /// The template for a model: the one given, else the model's own, else ChatML where the
    /// vocabulary speaks it.
    pub fn for_model(model: &LoadedModel, given: Option<&str>) -> Result<ChatTemplate, TemplateError> {
        let tokenizer = &model.tokenizer;
        let chatml = tokenizer.token_of("<|im_start|>").map(|_| CHATML);
        let source = given.or(model.chat_template.as_deref()).or(chatml).ok_or(TemplateError::Missing)?;
        let text = |token: Option<_>| token.and_then(|token| tokenizer.token_text(token)).unwrap_or_default();
        ChatTemplate::new(source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template looks at tool definitions at all.
    pub fn uses_tools(&self) -> bool {
        self.source.contains("tools")
    }

    /// Renders a prompt.
    pub fn render(&self, input: &RenderInput) -> Result<String, TemplateError> {
        let arguments = Arguments::expected_by(&self.source);
        let messages = messages::normalise(&input.messages, arguments)?;
        let context = self.context(input, messages);
        let fuel = FUEL_BASE + FUEL_PER_ITEM * items(input);
        // A thread of its own, for its stack; starting one takes some 30 us.
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("chat-template".into()).stack_size(STACK_BYTES);
            let thread = builder
                .spawn_scoped(scope, || self.render_here(context, fuel))
                .map_err(|error| TemplateError::Failed { reason: error.to_string() })?;
            let gone = |_| TemplateError::Failed { reason: "the template engine panicked".into() };
            thread.join().map_err(gone)?
        })
    }

    fn context(&self, input: &RenderInput, messages: Vec<serde_json::Value>) -> Value {
        let now = input.now;
        let mut pairs = vec![
            ("messages", Value::from(Serde(&messages))),
            ("tools", input.tools.as_ref().map_or(Value::from(()), |tools| Value::from(Serde(tools)))),
            ("documents", Value::from(())),
            ("add_generation_prompt", input.add_generation_prompt.into()),
            ("bos_token", self.bos_text.as_str().into()),
            ("eos_token", self.eos_text.as_str().into()),
            ("strftime_now", Value::from_function(move |format: &str| strftime::format(now, format))),
        ];
        pairs.extend(input.enable_thinking.map(|on| ("enable_thinking", on.into())));
        let kwargs = input.kwargs.iter().map(|(key, value)| (key.as_str(), Value::from(Serde(value))));
        Value::from_pairs(pairs.into_iter().chain(kwargs))
    }

    fn render_here(&self, context: Value, fuel: u64) -> Result<String, TemplateError> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let mut output = Capped { bytes: Vec::new(), left: OUTPUT_MAX };
        let result = environment
            .get_template(NAME)
            .and_then(|template| template.render_captured_to(context, &mut output).map(drop));
        match result {
            Ok(()) => String::from_utf8(output.bytes)
                .map_err(|_| TemplateError::Failed { reason: "the prompt is not UTF-8".into() }),
            Err(_) if output.left == 0 => Err(TemplateError::TooLong { limit: OUTPUT_MAX }),
            Err(error) => Err(TemplateError::from_error(&error, fuel)),
        }
    }
}

/// Whether a prompt leaves the model inside an open thought, so that its answer begins there.
pub fn ends_in_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with("<think>")
}

fn items(input: &RenderInput) -> u64 {
    let len = |value: &serde_json::Value| value.as_array().map_or(0, Vec::len) as u64;
    len(&input.messages) + input.tools.as_ref().map_or(0, len)
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    environment.set_syntax(syntax.build().expect("the delimiters are the default ones"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise);
    environment
}

/// Python's `json.dumps` as Hugging Face calls it: no HTML escaping, Unicode kept.
fn to_json(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let sorted: Option<bool> = kwargs.get("sort_keys")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    kwargs.assert_all_used()?;
    let style = json::Style::new(indent, ascii.unwrap_or(false), sorted.unwrap_or(false), separators)?;
    json::dumps(value, &style)
}

fn raise(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// What a template raised, carried through the engine's own error.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Output that ends when it is full.
struct Capped {
    bytes: Vec<u8>,
    left: usize,
}

impl std::io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > self.left {
            self.left = 0;
            return Err(std::io::Error::other("the prompt is too long"));
        }
        self.left -= bytes.len();
        self.bytes.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
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
    /// The template refuses the conversation, in its own words.
    #[error("the chat template refuses this conversation: {message}")]
    Raised {
        /// What it says.
        message: String,
    },
    /// The template does not come to an end.
    #[error("the chat template was stopped after {fuel} instructions; it probably loops forever")]
    OutOfFuel {
        /// The limit.
        fuel: u64,
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
    fn from_error(error: &Error, fuel: u64) -> TemplateError {
        if let Some(Raised(message)) = raised(error) {
            return TemplateError::Raised { message: message.clone() };
        }
        match error.kind() {
            ErrorKind::OutOfFuel => TemplateError::OutOfFuel { fuel },
            _ => TemplateError::Failed { reason: describe(error) },
        }
    }
}

fn raised(error: &Error) -> Option<&Raised> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(raised) = error.downcast_ref() {
            return Some(raised);
        }
        source = error.source();
    }
    None
}

/// One line: what and where.
fn describe(error: &Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}

#[cfg(test)]
mod tests;
