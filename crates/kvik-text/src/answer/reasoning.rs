//! The form in which a model writes its reasoning, and the place in it at which a prompt ends.
//!
//! The form is chosen by a text of the chat template; a new one is a row of [`KNOWN`].

use crate::forms::{ReasoningPlace, ReasoningTexts};

/// The separation of reasoning from the rest of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningForm {
    /// Reasoning is enclosed by two texts.
    Tags(ReasoningTags),
    /// Every message of an answer names its channel, as in OpenAI's harmony format.
    Channels,
}

/// The texts around reasoning, and around the content if the model marks it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningTags {
    /// Text before reasoning.
    pub open: &'static str,
    /// Text after it.
    pub close: &'static str,
    /// Texts around the content that follows reasoning.
    pub response: Option<[&'static str; 2]>,
    /// Whether the texts are reserved tokens, so that reasoning may begin anywhere and a lone end tag is not
    /// content.
    pub reserved: bool,
}

/// A place in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerPlace {
    /// Before any text of the answer.
    Begin,
    /// Inside reasoning.
    Reasoning,
    /// Inside content.
    Content,
}

/// The form of an answer's reasoning, and the place at which the answer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerStart {
    /// The form.
    pub form: ReasoningForm,
    /// The place.
    pub place: AnswerPlace,
}

pub(super) const CHANNEL: &str = "<|channel|>";
pub(super) const MESSAGE: &str = "<|message|>";
pub(super) const START: &str = "<|start|>";
pub(super) const END: &str = "<|end|>";
pub(super) const CALL: &str = "<|call|>";
pub(super) const RETURN: &str = "<|return|>";
pub(super) const CONSTRAIN: &str = "<|constrain|>";

/// The header of a content message.
const FINAL: &str = "<|channel|>final<|message|>";
/// The header of a reasoning message, and its end up to the header of the next message.
const ANALYSIS: [&str; 2] = ["<|channel|>analysis<|message|>", "<|end|><|start|>assistant"];

const THINK: ReasoningTags =
    ReasoningTags { open: "<think>", close: "</think>", response: None, reserved: false };

const fn reserved(
    open: &'static str,
    close: &'static str,
    response: Option<[&'static str; 2]>,
) -> ReasoningForm {
    ReasoningForm::Tags(ReasoningTags { open, close, response, reserved: true })
}

/// Forms by a text that a template contains if its model was trained on them.
const KNOWN: [(&str, ReasoningForm); 7] = [
    ("<|channel|>analysis", ReasoningForm::Channels),
    ("<|channel>thought", reserved("<|channel>thought", "<channel|>", None)),
    ("[THINK]", reserved("[THINK]", "[/THINK]", None)),
    (
        "<|START_TEXT|>",
        reserved("<|START_THINKING|>", "<|END_THINKING|>", Some(["<|START_TEXT|>", "<|END_TEXT|>"])),
    ),
    (
        "<|START_THINKING|>",
        reserved("<|START_THINKING|>", "<|END_THINKING|>", Some(["<|START_RESPONSE|>", "<|END_RESPONSE|>"])),
    ),
    ("<seed:think>", reserved("<seed:think>", "</seed:think>", None)),
    (
        "<response></response>",
        ReasoningForm::Tags(ReasoningTags { response: Some(["<response>", "</response>"]), ..THINK }),
    ),
];

impl Default for ReasoningForm {
    /// The form of most models: `<think>` and `</think>`.
    fn default() -> ReasoningForm {
        ReasoningForm::Tags(THINK)
    }
}

impl ReasoningForm {
    /// The form of a template's model.
    pub fn of_template(source: &str) -> ReasoningForm {
        KNOWN.iter().find(|(text, _)| source.contains(text)).map(|&(_, form)| form).unwrap_or_default()
    }

    /// The place at which an answer to this prompt begins.
    pub fn place_after(&self, prompt: &str) -> AnswerPlace {
        match self {
            ReasoningForm::Tags(tags) if prompt.trim_end().ends_with(tags.open) => AnswerPlace::Reasoning,
            ReasoningForm::Tags(_) => AnswerPlace::Begin,
            ReasoningForm::Channels => place_in_channels(prompt),
        }
    }

    /// Whether a text of the assistant ends inside reasoning.
    pub fn is_open_in(&self, text: &str) -> bool {
        match self {
            ReasoningForm::Tags(tags) => {
                text.rfind(tags.open).is_some_and(|start| !text[start..].contains(tags.close))
            }
            ReasoningForm::Channels => false,
        }
    }

    /// Closes reasoning that a prompt has opened, as models with optional reasoning do. With channels, makes the
    /// answer begin in its content.
    pub fn close_in(&self, prompt: &mut String) {
        match self {
            ReasoningForm::Tags(tags) if self.place_after(prompt) == AnswerPlace::Reasoning => {
                prompt.truncate(prompt.trim_end().len());
                let around = if tags.reserved { "" } else { "\n\n" };
                prompt.extend([around, tags.close, around]);
            }
            ReasoningForm::Channels if place_in_channels(prompt) == AnswerPlace::Begin => {
                prompt.push_str(FINAL);
            }
            _ => {}
        }
    }

    /// The texts of the form. Control tokens in them are part of the answer.
    pub fn texts(&self) -> Vec<&'static str> {
        match self {
            ReasoningForm::Tags(tags) => {
                [tags.open, tags.close].into_iter().chain(tags.response.into_iter().flatten()).collect()
            }
            ReasoningForm::Channels => vec![CHANNEL, MESSAGE, START, END, CALL, RETURN, CONSTRAIN],
        }
    }
}

impl AnswerStart {
    /// An answer in this form that follows a prompt.
    pub fn after(form: ReasoningForm, prompt: &str) -> AnswerStart {
        AnswerStart { form, place: form.place_after(prompt) }
    }

    /// An answer in the form of most models.
    pub fn usual(in_reasoning: bool) -> AnswerStart {
        let place = if in_reasoning { AnswerPlace::Reasoning } else { AnswerPlace::Begin };
        AnswerStart { form: ReasoningForm::default(), place }
    }

    /// The texts around the answer's reasoning.
    pub fn reasoning_texts(&self) -> ReasoningTexts {
        let ([open, close], place) = match self.form {
            ReasoningForm::Tags(tags) if tags.reserved => ([tags.open, tags.close], ReasoningPlace::Anywhere),
            ReasoningForm::Tags(tags) => ([tags.open, tags.close], ReasoningPlace::First),
            ReasoningForm::Channels => (ANALYSIS, ReasoningPlace::Anywhere),
        };
        ReasoningTexts { open: open.to_owned(), close: close.to_owned(), place, begun: self.in_reasoning() }
    }

    /// The texts before and after the answer's content, in each way in which the model may write it. Every message has a
    /// header; with tags, the model may mark its content, if its marks are reserved tokens: others might be content.
    pub fn content_texts(&self) -> Vec<[String; 2]> {
        let ways: Vec<[&str; 2]> = match self.form {
            ReasoningForm::Tags(tags) => {
                let marks = tags.response.filter(|_| tags.reserved);
                [Some(["", ""]), marks].into_iter().flatten().collect()
            }
            ReasoningForm::Channels => vec![[FINAL, ""]],
        };
        ways.into_iter().map(|texts| texts.map(str::to_owned)).collect()
    }

    /// Whether the answer may be a call: with channels, the message that the prompt has begun decides what it is.
    pub fn may_call(&self) -> bool {
        self.form != ReasoningForm::Channels || self.place != AnswerPlace::Content
    }

    /// Whether the answer begins inside reasoning.
    pub fn in_reasoning(&self) -> bool {
        self.place == AnswerPlace::Reasoning
    }
}

/// The place at the end of a prompt, which ends with the header of the answer's first message, or inside a
/// continued message.
fn place_in_channels(prompt: &str) -> AnswerPlace {
    let header_at = prompt.rfind(START).unwrap_or(0);
    let Some((header, _)) = prompt[header_at..].split_once(MESSAGE) else { return AnswerPlace::Begin };
    match header.contains("analysis") {
        true => AnswerPlace::Reasoning,
        false => AnswerPlace::Content,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_says_the_form() {
        let open = |source: &str| match ReasoningForm::of_template(source) {
            ReasoningForm::Tags(tags) => tags.open,
            ReasoningForm::Channels => "channels",
        };
        assert_eq!(open("{{ messages }}"), "<think>");
        assert_eq!(open("'<|channel>thought\n'"), "<|channel>thought");
        assert_eq!(open("[THINK]{{ text }}[/THINK]"), "[THINK]");
        assert_eq!(open("<|channel|>analysis<|message|>"), "channels");
    }

    #[test]
    fn a_prompt_says_where_its_answer_begins() {
        use AnswerPlace::{Begin, Content, Reasoning};
        let check = |form: ReasoningForm, prompt: &str, expect: AnswerPlace| {
            assert_eq!(form.place_after(prompt), expect, "{prompt:?}");
        };
        let think = ReasoningForm::default();
        check(think, "<|im_start|>assistant\n<think>\n", Reasoning);
        check(think, "what does <think> mean?", Begin);
        let channels = ReasoningForm::Channels;
        check(channels, "<|start|>user<|message|>Hi<|end|><|start|>assistant", Begin);
        check(channels, "<|start|>assistant<|channel|>final<|message|>Once upon", Content);
        check(channels, "<|start|>assistant<|channel|>analysis<|message|>Well", Reasoning);
    }

    #[test]
    fn reasoning_is_closed_in_its_form() {
        let closed = |source: &str, prompt: &str| {
            let mut prompt = prompt.to_owned();
            ReasoningForm::of_template(source).close_in(&mut prompt);
            prompt
        };
        assert_eq!(closed("", "A<think>\n"), "A<think>\n\n</think>\n\n");
        assert_eq!(closed("", "A"), "A");
        assert_eq!(
            closed("<|START_THINKING|>", "A<|START_THINKING|>"),
            "A<|START_THINKING|><|END_THINKING|>"
        );
        let begun = "<|start|>assistant";
        assert_eq!(closed("<|channel|>analysis", begun), "<|start|>assistant<|channel|>final<|message|>");
    }
}
