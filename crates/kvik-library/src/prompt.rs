//! Prompts: a text to continue, or messages to answer.

use std::time::SystemTime;

use kvik_cache::Token;
use kvik_engine::api::Constraint;
use kvik_engine::schedule::prefix::common_prefix;
use kvik_memory::memory::Purpose;
use kvik_text::answer::{Reading, ReasoningForm};
use kvik_text::template::{ChatTemplate, Prompt as Rendered, QUESTIONS, RenderInput};
use kvik_text::tools::Tools;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::message::Message;
use crate::texts::Texts;

/// A prompt of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// A text to continue as it is. Names of control tokens in it are parsed as these tokens, so users' texts belong in
    /// messages.
    Text(String),
    /// Messages, rendered by the model's chat template. Nothing in them is parsed as a control token.
    Messages(Vec<Message>),
}

/// A prompt as the engine takes it.
pub(crate) struct Encoded {
    pub(crate) tokens: Vec<Token>,
    /// Parsing of the answer.
    pub(crate) reading: Reading,
    /// Constraint on the form of the answer.
    pub(crate) constraint: Option<Constraint>,
}

/// Purpose of a prompt.
#[derive(Debug, Clone, Copy)]
pub(crate) enum For<'a> {
    /// The prompt is answered with these options.
    Answer(&'a Asked),
    /// The prompt is pinned as a prefix of other prompts.
    Kept,
}

/// The options of an answer that determine its prompt and its form.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) tools: Tools,
    /// `None` leaves the choice to the template.
    pub(crate) reasoning: Option<bool>,
    pub(crate) constraint: Option<Constraint>,
}

impl Asked {
    /// Options of a plain answer.
    pub(crate) fn plainly() -> Asked {
        Asked { tools: Tools::none(), reasoning: None, constraint: None }
    }

    /// True if the model reasons first. A forced call leaves no room for reasoning before it.
    fn thinks(&self) -> Option<bool> {
        if self.tools.forced { Some(false) } else { self.reasoning }
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Prompt {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Prompt {
        Prompt::Text(text)
    }
}

impl From<Vec<Message>> for Prompt {
    fn from(messages: Vec<Message>) -> Prompt {
        Prompt::Messages(messages)
    }
}

impl From<&[Message]> for Prompt {
    fn from(messages: &[Message]) -> Prompt {
        Prompt::Messages(messages.to_vec())
    }
}

impl Prompt {
    /// Tokens of the prompt for a purpose.
    pub(crate) fn encode(&self, texts: &Texts, purpose: For<'_>) -> Result<Encoded, Error> {
        match (self, purpose) {
            (Prompt::Text(text), _) => {
                let constraint = match purpose {
                    For::Answer(asked) => asked.constraint.clone(),
                    For::Kept => None,
                };
                let tokens = texts.tokenizer.encode(text, true, true);
                Ok(Encoded { tokens, reading: Reading::Plain, constraint })
            }
            (Prompt::Messages(messages), For::Kept) => {
                let tokens = texts.shared_tokens(&json_of(messages))?;
                Ok(Encoded { tokens, reading: Reading::Plain, constraint: None })
            }
            (Prompt::Messages(messages), For::Answer(asked)) => texts.encode_chat(json_of(messages), asked),
        }
    }
}

impl Texts {
    /// The prompt of a chat, the parsing of its answer, and the constraint on it.
    pub(crate) fn encode_chat(&self, messages: Vec<Value>, asked: &Asked) -> Result<Encoded, Error> {
        let template = self.template()?;
        let mut prompt = template.render(&asked_input(messages, asked))?;
        let form = template.reasoning_form();
        if let Some(constraint) = &asked.constraint {
            // The constraint covers all of the generated text, so the header of the message belongs to the prompt.
            if form == ReasoningForm::Channels {
                form.close_in(&mut prompt.text);
            }
            let constraint = Some(constraint.clone());
            return Ok(Encoded { tokens: self.tokens(&prompt), reading: Reading::Plain, constraint });
        }
        let start = template.answer_after(&prompt.text);
        let (reading, constraint) = asked.tools.reading(start, Some(template.tool_form()));
        Ok(Encoded { tokens: self.tokens(&prompt), reading, constraint })
    }

    /// Tokens with which every chat after these messages begins: the common prefix of two chats with different
    /// questions. A template may write a system message into the first question.
    fn shared_tokens(&self, messages: &[Value]) -> Result<Vec<Token>, Error> {
        let with = |question: &str| {
            let asked = Message::user(question).json();
            let messages = messages.iter().chain([&asked]).cloned().collect();
            Ok::<_, Error>(self.tokens(&self.template()?.render(&render_input(messages, None))?))
        };
        let [one, other] = QUESTIONS.map(with);
        let (mut one, other) = (one?, other?);
        one.truncate(common_prefix(&one, &other));
        Ok(one)
    }

    /// Tokens of messages for a purpose of memory.
    pub(crate) fn render(
        &self,
        messages: &[Value],
        asked: &Asked,
        purpose: Purpose,
    ) -> Result<Vec<Token>, Error> {
        let input = asked_input(messages.to_vec(), asked);
        let input = match purpose {
            Purpose::Answer => input,
            Purpose::Ahead => RenderInput { add_generation_prompt: false, ..input },
            Purpose::InPlace => RenderInput { enable_thinking: Some(false), ..input },
            Purpose::Summary => RenderInput { enable_thinking: Some(false), tools: None, ..input },
        };
        Ok(self.tokens(&self.template()?.render(&input)?))
    }

    fn template(&self) -> Result<&ChatTemplate, Error> {
        self.template.as_ref().ok_or(Error::NoTemplate)
    }

    fn tokens(&self, prompt: &Rendered) -> Vec<Token> {
        self.tokenizer.encode_chat(&prompt.text, &prompt.inputs)
    }
}

fn asked_input(messages: Vec<Value>, asked: &Asked) -> RenderInput {
    RenderInput { tools: asked.tools.offered.clone(), ..render_input(messages, asked.thinks()) }
}

fn render_input(messages: Vec<Value>, enable_thinking: Option<bool>) -> RenderInput {
    RenderInput {
        messages: Value::Array(messages),
        tools: None,
        add_generation_prompt: true,
        enable_thinking,
        kwargs: Map::new(),
        now: SystemTime::now(),
    }
}

pub(crate) fn json_of(messages: &[Message]) -> Vec<Value> {
    messages.iter().map(Message::json).collect()
}

#[cfg(test)]
mod tests {
    use kvik_engine::load::LoadedModel;

    use super::*;

    /// A template that writes the system message into the first question.
    const MERGING: &str = "{% if messages[0].role == 'system' %}{% set first = messages[0].content ~ '\n' %}{% set messages = messages[1:] %}{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n{% if loop.first and first is defined %}{{ first }}{% endif %}{{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    #[test]
    fn what_is_kept_is_what_chats_begin_with() {
        for source in [None, Some(MERGING)] {
            let loaded = LoadedModel::open(&kvik_testing::tiny_model()).unwrap();
            let template = Some(loaded.template(source).unwrap());
            let texts = Texts { tokenizer: loaded.tokenizer, template, context_tokens: 2048 };
            let system = Message::system("You sort notifications: now, later or never.");
            let kept = Prompt::Messages(vec![system.clone()]).encode(&texts, For::Kept).unwrap().tokens;
            assert!(texts.tokenizer.decode(&kept).contains("now, later or never."), "{source:?}");
            for question in ["The kettle boils.", "A newsletter came."] {
                let chat = Prompt::Messages(vec![system.clone(), Message::user(question)]);
                let asked = chat.encode(&texts, For::Answer(&Asked::plainly())).unwrap().tokens;
                assert!(asked.starts_with(&kept), "{source:?}");
            }
        }
    }
}
