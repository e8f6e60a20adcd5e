//! The messages of a chat, and what else decides its prompt.

use std::time::SystemTime;

use kvik_memory::memory::Purpose;
use kvik_text::answer::{AnswerStart, ReasoningForm};
use kvik_text::template::{ChatTemplate, Prompt, RenderInput, TemplateError, check_question, is_switch};
use kvik_text::tools::Tools;
use serde_json::{Map, Value, json};

use crate::continuation::{self, NotContinued};

/// A chat, as the template is given it.
#[derive(Debug, Clone)]
pub struct Chat {
    /// An array of messages in OpenAI's shape.
    pub messages: Value,
    /// Tools that the answer may call.
    pub tools: Tools,
    /// Let the assistant begin a message.
    pub add_generation_prompt: bool,
    /// The answer goes on from the last message.
    pub continues: bool,
    /// Switches reasoning on or off; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// The request itself switches reasoning off. A summary in place only leaves it out, and begins as the request does.
    pub is_switched_off: bool,
    /// Other variables of the template.
    pub kwargs: Map<String, Value>,
}

/// Variables of a template where a chat sets none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TemplateVariables {
    /// The switch for reasoning.
    pub enable_thinking: Option<bool>,
    /// The others.
    pub kwargs: Map<String, Value>,
}

/// Why a chat has no prompt.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template refuses the messages.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The last message cannot be continued.
    #[error(transparent)]
    NotContinued(#[from] NotContinued),
    /// The text cannot fit the context.
    #[error(
        "the prompt has at least {tokens_min} tokens and the context holds {context_tokens}; shorten it, or open the model \
         with a larger context"
    )]
    TooLong {
        /// Tokens that the text has at least.
        tokens_min: usize,
        /// Tokens of the context.
        context_tokens: usize,
    },
}

impl Chat {
    /// A chat whose last message is to be answered.
    pub fn new(messages: Value, tools: Tools, enable_thinking: Option<bool>) -> Chat {
        let (add_generation_prompt, continues, kwargs) = (true, false, Map::new());
        let is_switched_off = enable_thinking == Some(false);
        Chat { messages, tools, add_generation_prompt, continues, enable_thinking, is_switched_off, kwargs }
    }

    /// The chat, whose answer goes on from the last message where that is the assistant's.
    #[must_use]
    pub fn continuing(mut self) -> Chat {
        self.continues = continuation::continuable_text(&self.messages).is_some();
        self.add_generation_prompt = !self.continues;
        self
    }

    /// Its messages.
    pub fn messages(&self) -> &[Value] {
        self.messages.as_array().map_or(&[], Vec::as_slice)
    }

    /// The chat without its messages, and these.
    pub fn apart(self) -> (Chat, Vec<Value>) {
        let messages = match self.messages {
            Value::Array(messages) => messages,
            _ => Vec::new(),
        };
        (Chat { messages: Value::Null, ..self }, messages)
    }

    /// Other messages with the same settings; without the tools and the settings where they are to be summarised as a
    /// text.
    #[must_use]
    pub fn with_messages(&self, messages: &[Value], purpose: Purpose) -> Chat {
        let mut other = Chat {
            messages: Value::Array(messages.to_vec()),
            tools: self.tools.clone(),
            kwargs: self.kwargs.clone(),
            ..*self
        };
        other.add_generation_prompt = purpose != Purpose::Ahead && self.add_generation_prompt;
        if purpose == Purpose::Summary {
            (other.tools, other.kwargs) = (Tools::none(), Map::new());
        }
        if matches!(purpose, Purpose::InPlace | Purpose::Summary) {
            (other.enable_thinking, other.add_generation_prompt) = (Some(false), true);
        }
        other
    }

    /// The chat with a message of this text behind it: a question of the user, or the result of a call that it ends with.
    #[must_use]
    pub fn and_asked(&self, text: &str) -> Chat {
        let mut asked = self.clone();
        if let Value::Array(messages) = &mut asked.messages {
            messages.push(match messages.last().map(|last| &last["tool_calls"][0]["id"]) {
                Some(Value::String(id)) => json!({"role": "tool", "tool_call_id": id, "content": text}),
                _ => json!({"role": "user", "content": text}),
            });
        }
        asked.continues = false;
        asked
    }

    /// The switch for reasoning. A call that has to be made leaves no room for reasoning before it.
    pub fn thinks(&self) -> Option<bool> {
        if self.tools.forced { Some(false) } else { self.enable_thinking }
    }

    /// The switch for reasoning; that of `usual` where the chat sets none and does not say otherwise.
    pub(crate) fn thinks_or(&self, usual: &TemplateVariables) -> Option<bool> {
        self.thinks().or(usual.enable_thinking.filter(|&on| !self.contradicts(on)))
    }

    /// Whether the chat says otherwise than a switch for reasoning of this value, under any name.
    fn contradicts(&self, on: bool) -> bool {
        let own = self.kwargs.iter().filter(|(name, _)| is_switch(name)).map(|(_, value)| is_on(value));
        own.chain(self.thinks()).any(|said| said != on)
    }

    /// Its variables, and those of `usual` that it does not set. A template reads one of several switches for reasoning, so
    /// one that the chat sets replaces all that say otherwise; where it is off there is no effort.
    fn variables(&self, usual: &TemplateVariables) -> Map<String, Value> {
        let mut kwargs = usual.kwargs.clone();
        kwargs.retain(|name, value| match name.as_str() {
            "reasoning_effort" => !self.is_switched_off,
            name => !is_switch(name) || !self.contradicts(is_on(value)),
        });
        kwargs.extend(self.kwargs.clone());
        kwargs
    }

    /// The prompt as `template` writes it at that time, with the variables of `usual` where the chat sets none.
    ///
    /// # Errors
    /// If the template refuses the messages, or does not write the last one so that it can be continued.
    pub fn prompt(
        &self,
        template: &ChatTemplate,
        usual: &TemplateVariables,
        now: SystemTime,
    ) -> Result<Prompt, ChatError> {
        let mut messages = self.messages.clone();
        if self.continues {
            // What has begun is no answer to the question yet.
            check_question(self.messages().split_last().map_or(&[][..], |(_, before)| before))?;
            continuation::mark(&mut messages);
        }
        let input = RenderInput {
            messages,
            tools: self.tools.offered.clone(),
            add_generation_prompt: self.add_generation_prompt,
            enable_thinking: self.thinks_or(usual),
            kwargs: self.variables(usual),
            now,
        };
        let prompt = template.render(&input)?;
        Ok(if self.continues { continuation::cut(prompt)? } else { prompt })
    }

    /// The place in the model's form of reasoning where the answer to this prompt begins.
    pub(crate) fn start(&self, form: ReasoningForm, prompt: &str) -> AnswerStart {
        match self.continues {
            true => continuation::start(form, &self.messages, prompt),
            false => AnswerStart::after(form, prompt),
        }
    }
}

/// Whether a switch of this value, or a budget of so many tokens, lets the model reason.
fn is_on(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false)) && *value != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ (m.content.split('</think>')|last)|trim }}[end]{% endfor %}\
        {% if add_generation_prompt %}[assistant]{% endif %}{% if enable_thinking is false %}<no thoughts>{% endif %}";

    fn text(chat: &Chat) -> String {
        let template = ChatTemplate::new(TEMPLATE, "", "").unwrap();
        chat.prompt(&template, &TemplateVariables::default(), SystemTime::UNIX_EPOCH).unwrap().text
    }

    fn chat(last: Value) -> Chat {
        Chat::new(json!([{"role": "user", "content": "hi"}, last]), Tools::none(), None)
    }

    #[test]
    fn the_answer_goes_on_where_the_last_message_ends() {
        let check = |content: Value| {
            let chat = chat(json!({"role": "assistant", "content": content})).continuing();
            assert_eq!(text(&chat), "[user]hi[end][assistant]Once ", "{content}");
        };
        check(json!("Once "));
        check(json!([{"type": "text", "text": "Once "}]));
        check(json!("<think>so</think>Once "));
        let asked = chat(json!({"role": "user", "content": "there"})).continuing();
        assert_eq!(text(&asked), "[user]hi[end][user]there[end][assistant]", "a question is answered");
    }

    #[test]
    fn what_a_chat_says_of_reasoning_replaces_the_usual_under_every_name() {
        let source = "{{ thinking|d('-')|tojson }} {{ thinking_budget|d('-')|tojson }} {{ reasoning_effort|d('-')|tojson }}";
        let template = ChatTemplate::new(source, "", "").unwrap();
        let fields = |value: &Value| value.as_object().unwrap().clone();
        let check = |usual: (Option<bool>, Value), (on, kwargs): (Option<bool>, Value), expect: &str| {
            let usual = TemplateVariables { enable_thinking: usual.0, kwargs: fields(&usual.1) };
            let chat = Chat { kwargs: fields(&kwargs), ..Chat::new(json!([]), Tools::none(), on) };
            let prompt = chat.prompt(&template, &usual, SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(prompt.text, expect, "{usual:?} {on:?} {kwargs}");
        };
        let nothing = || (None, json!({}));
        let off = || (Some(false), json!({}));
        check((None, json!({"thinking": true, "reasoning_effort": "high"})), nothing(), r#"true "-" "high""#);
        check((None, json!({"thinking": true})), off(), r#"false 0 "-""#);
        check((None, json!({"thinking_budget": 512})), off(), r#"false 0 "-""#);
        check((None, json!({"reasoning_effort": "high"})), off(), r#"false 0 "-""#);
        let on = (Some(true), json!({"reasoning_effort": "low"}));
        check(
            (Some(false), json!({"thinking_budget": 0, "reasoning_effort": "high"})),
            on,
            r#"true "-" "low""#,
        );
        check((Some(false), json!({})), nothing(), r#"false 0 "-""#);
        check((Some(false), json!({})), (None, json!({"thinking": true})), r#"true "-" "-""#);
        check((Some(false), json!({})), (None, json!({"thinking_budget": 9})), r#""-" 9 "-""#);
        let in_place = Chat::new(json!([]), Tools::none(), None).with_messages(&[], Purpose::InPlace);
        let high = fields(&json!({"reasoning_effort": "high"}));
        assert_eq!(
            in_place.variables(&TemplateVariables { enable_thinking: None, kwargs: high.clone() }),
            high
        );
        // What does not say otherwise stays: a limit, and the switch under the name that the template reads.
        check((None, json!({"thinking_budget": 512})), (Some(true), json!({})), r#"true 512 "-""#);
        check((Some(false), json!({})), (None, json!({"reasoning": false})), r#"false 0 "-""#);
        check((None, json!({"thinking": true})), (None, json!({"reasoning": true})), r#"true "-" "-""#);
    }

    #[test]
    fn a_purpose_decides_the_end_of_the_prompt_and_its_settings() {
        let asked = Chat {
            kwargs: json!({"a": 1}).as_object().unwrap().clone(),
            ..chat(json!({"role": "user", "content": "there"}))
        };
        let messages = [json!({"role": "user", "content": "hi"})];
        let of = |purpose| text(&asked.with_messages(&messages, purpose));
        assert_eq!(of(Purpose::Answer), "[user]hi[end][assistant]");
        assert_eq!(of(Purpose::Ahead), "[user]hi[end]");
        assert_eq!(of(Purpose::InPlace), "[user]hi[end][assistant]<no thoughts>");
        assert_eq!(of(Purpose::Summary), "[user]hi[end][assistant]<no thoughts>");
        assert!(asked.with_messages(&messages, Purpose::Summary).kwargs.is_empty());
        assert!(!asked.with_messages(&messages, Purpose::InPlace).kwargs.is_empty());
    }
}
