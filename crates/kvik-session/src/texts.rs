//! Tokens of texts and chats, and the form of the answers to them.

use std::time::SystemTime;

use kvik_cache::Token;
use kvik_engine::api::Constraint;
use kvik_engine::schedule::prefix::common_prefix;
use kvik_memory::memory::MemoryModel;
use kvik_text::answer::{Reading, ReasoningForm};
use kvik_text::template::{ChatTemplate, Prompt, QUESTIONS};
use kvik_text::tokenizer::{Tokenizer, text_bytes_max};
use serde_json::json;

use crate::chat::{Chat, ChatError, TemplateVariables};

/// The texts of a model.
#[derive(Debug)]
pub struct Texts {
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template, if it has one.
    pub template: Option<ChatTemplate>,
    /// Variables of the template where a chat sets none.
    pub variables: TemplateVariables,
    /// Tokens of a prompt and its answer together.
    pub context_tokens: usize,
}

/// A chat as the engine takes it.
#[derive(Debug)]
pub struct EncodedChat {
    /// The prompt.
    pub tokens: Vec<Token>,
    /// How the text of the answer is read.
    pub reading: Reading,
    /// Holds the answer to a form.
    pub constraint: Option<Constraint>,
    /// Control tokens with which the answer writes reasoning and calls.
    pub show: Vec<Token>,
}

impl Texts {
    /// The texts of a model with this tokenizer and template.
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>, context_tokens: usize) -> Texts {
        Texts { tokenizer, template, variables: TemplateVariables::default(), context_tokens }
    }

    /// The prompt of a chat, and the parts of it that are the messages' own.
    ///
    /// # Errors
    /// If there is no template, it refuses the messages, or their text cannot fit the context.
    pub fn render(&self, chat: &Chat) -> Result<Prompt, ChatError> {
        let template = self.template.as_ref().ok_or(ChatError::NoTemplate)?;
        let prompt = chat.prompt(template, &self.variables, SystemTime::now())?;
        self.check_length(&prompt.text)?;
        Ok(prompt)
    }

    /// The request for the answer to a chat that was rendered. Where tools are offered, the answer is held to their form;
    /// where `constraint` asks for JSON, to calls or that JSON after the reasoning that the prompt begins; any other
    /// constraint is the form of the whole answer.
    pub fn encode(&self, chat: &Chat, mut prompt: Prompt, constraint: Option<Constraint>) -> EncodedChat {
        let form = self.reasoning_form();
        let both = constraint.as_ref().and_then(|constraint| self.calls_or_json(chat, &prompt, constraint));
        let (reading, constraint) = match (both, constraint) {
            (Some((reading, both)), _) => (reading, Some(both)),
            // The constraint says all that is written, so that the prompt ends where the content begins.
            (None, Some(constraint)) => {
                if chat.add_generation_prompt {
                    form.close_in(&mut prompt.text);
                }
                (Reading::Plain, Some(constraint))
            }
            (None, None) => {
                let template = self.template.as_ref().filter(|_| chat.tools.offered.is_some());
                chat.tools.reading(chat.start(form, &prompt.text), template.map(ChatTemplate::tool_form))
            }
        };
        let show = self.tokenizer.controls_in(reading.texts());
        EncodedChat { tokens: self.encode_rendered(&prompt), reading, constraint, show }
    }

    /// Calls of the offered tools, or the JSON that a constraint asks for, after reasoning that has begun: the form of an
    /// answer's text says nothing of either. `None` if the constraint is no JSON, there is nothing beside it, or no grammar has
    /// all of it.
    fn calls_or_json(
        &self,
        chat: &Chat,
        prompt: &Prompt,
        constraint: &Constraint,
    ) -> Option<(Reading, Constraint)> {
        let schema = match constraint {
            Constraint::JsonObject => json!({"type": "object"}),
            Constraint::JsonSchema(schema) => schema.clone(),
            Constraint::Regex(_) | Constraint::Lark(_) | Constraint::Calls(_) => return None,
        };
        let template = self.template.as_ref().filter(|_| chat.tools.offered.is_some());
        let start = chat.start(self.reasoning_form(), &prompt.text);
        chat.tools.reading_or_json(start, template.map(ChatTemplate::tool_form), schema)
    }

    /// Whether the answer to a chat begins with reasoning; `None` leaves it to the template.
    pub fn thinks(&self, chat: &Chat) -> Option<bool> {
        chat.thinks_or(&self.variables)
    }

    /// Tokens of a chat.
    ///
    /// # Errors
    /// As [`Texts::render`].
    pub fn tokens(&self, chat: &Chat) -> Result<Vec<Token>, ChatError> {
        Ok(self.encode_rendered(&self.render(chat)?))
    }

    /// The tokens with which every chat begins that goes on from these messages: those that two of them share whose
    /// next messages differ. A template may write a system message into the first question.
    ///
    /// # Errors
    /// As [`Texts::render`].
    pub fn shared_tokens(&self, chat: &Chat) -> Result<Vec<Token>, ChatError> {
        let [one, other] = QUESTIONS.map(|question| self.tokens(&chat.and_asked(question)));
        let (mut one, other) = (one?, other?);
        one.truncate(common_prefix(&one, &other));
        Ok(one)
    }

    /// Tokens of a rendered chat. The messages' own strings are encoded as plain text: the name of a control token in them
    /// is no control token.
    pub fn encode_rendered(&self, prompt: &Prompt) -> Vec<Token> {
        self.tokenizer.encode_chat(&prompt.text, &prompt.inputs)
    }

    /// Refuses a text that cannot fit the context, before seconds and memory are spent on its tokens.
    ///
    /// # Errors
    /// If its tokens are more than the context holds, however they are cut.
    pub fn check_length(&self, text: &str) -> Result<(), ChatError> {
        if text.len() <= self.text_bytes_max() {
            return Ok(());
        }
        let context_tokens = self.context_tokens;
        let tokens_min = self.tokenizer.tokens_at_least(text.len()).max(context_tokens + 1);
        Err(ChatError::TooLong { tokens_min, context_tokens })
    }

    /// Longest text that is tokenized as part of a prompt, in bytes.
    pub fn text_bytes_max(&self) -> usize {
        text_bytes_max(self.context_tokens)
    }

    /// The form in which the model writes its reasoning.
    pub fn reasoning_form(&self) -> ReasoningForm {
        self.template.as_ref().map(ChatTemplate::reasoning_form).unwrap_or_default()
    }
}

impl MemoryModel for Texts {
    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    fn context(&self) -> usize {
        self.context_tokens
    }
}

#[cfg(test)]
mod tests {
    use kvik_model::load::LoadedModel;
    use kvik_text::tools::Tools;

    use super::*;

    /// Writes the system message into the first question.
    const MERGING: &str = "{% if messages[0].role == 'system' %}{% set first = messages[0].content ~ '\n' %}{% set messages = messages[1:] %}{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n{% if loop.first and first is defined %}{{ first }}{% endif %}{{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    fn texts(template: Option<&str>) -> Texts {
        let loaded = LoadedModel::open(&kvik_testing::tiny_model()).unwrap();
        let template = Some(loaded.template(template).unwrap());
        Texts::new(loaded.tokenizer, template, 2048)
    }

    #[test]
    fn chats_that_begin_with_the_same_messages_share_their_tokens() {
        let system = json!({"role": "system", "content": "You sort notifications: now, later or never."});
        for template in [None, Some(MERGING)] {
            let texts = texts(template);
            let chat = |messages| Chat::new(messages, Tools::none(), None);
            let shared = texts.shared_tokens(&chat(json!([system]))).unwrap();
            assert!(texts.tokenizer.decode(&shared).contains("now, later or never."), "{template:?}");
            for question in ["The kettle boils.", "A newsletter came."] {
                let asked = chat(json!([system, {"role": "user", "content": question}]));
                assert!(texts.tokens(&asked).unwrap().starts_with(&shared), "{template:?}");
            }
        }
    }

    #[test]
    fn a_text_that_cannot_fit_is_refused_before_it_is_tokenized() {
        let texts = texts(None);
        let long = "a ".repeat(texts.text_bytes_max());
        let chat = Chat::new(json!([{"role": "user", "content": long}]), Tools::none(), None);
        let refused = texts.tokens(&chat).unwrap_err();
        assert!(
            matches!(refused, ChatError::TooLong { tokens_min: 2049.., context_tokens: 2048 }),
            "{refused}"
        );
    }
}
