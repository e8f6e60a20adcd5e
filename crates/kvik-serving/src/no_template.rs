//! The error for a model without a chat template: what it can do, and how to make it answer chats.

use kvik_text::tokenizer::Tokenizer;

use super::Serving;

/// The chat format of a family of models.
#[derive(Debug, PartialEq, Eq)]
struct ChatForm {
    /// A control token that only vocabularies of the family have.
    token: &'static str,
    family: &'static str,
    written: &'static str,
}

/// Families whose base models have the tokens of the chat format but no template. Vocabularies with ChatML's tokens are
/// absent here, since they are given a ChatML template.
const FORMS: [ChatForm; 6] = [
    ChatForm {
        token: "<start_of_turn>",
        family: "Gemma",
        written: "<start_of_turn>user\\nMESSAGE<end_of_turn>\\n<start_of_turn>model\\n",
    },
    ChatForm {
        token: "<|start_header_id|>",
        family: "Llama 3",
        written: "<|start_header_id|>user<|end_header_id|>\\n\\nMESSAGE<|eot_id|><|start_header_id|>assistant<|end_header_id|>\\n\\n",
    },
    ChatForm { token: "[INST]", family: "Mistral", written: "[INST] MESSAGE[/INST]" },
    ChatForm {
        token: "<|start_of_role|>",
        family: "Granite",
        written: "<|start_of_role|>user<|end_of_role|>MESSAGE<|end_of_text|>\\n<|start_of_role|>assistant<|end_of_role|>",
    },
    ChatForm {
        token: "<|START_OF_TURN_TOKEN|>",
        family: "Command R",
        written: "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>MESSAGE<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    },
    ChatForm {
        token: "<|assistant|>",
        family: "Phi 3",
        written: "<|user|>\\nMESSAGE<|end|>\\n<|assistant|>\\n",
    },
];

/// The error for a model without a chat template, with its remedy.
#[derive(Debug, thiserror::Error)]
#[error(
    "the model `{name}` has no chat template, as base models have none: it continues texts (/v1/completions, or `kvik run \
     --raw`), and answers chats if it is started with --chat-template FILE{}",
    remedy(*.form)
)]
pub struct NoTemplate {
    name: String,
    form: Option<&'static ChatForm>,
}

impl NoTemplate {
    /// The error for this model.
    pub(super) fn of(serving: &Serving) -> NoTemplate {
        NoTemplate { name: serving.model.name.clone(), form: form_of(&serving.texts.tokenizer) }
    }
}

fn form_of(tokenizer: &Tokenizer) -> Option<&'static ChatForm> {
    FORMS.iter().find(|form| tokenizer.token_of(form.token).is_some())
}

/// A hint at the chat format of the model's family, if that is known.
fn remedy(form: Option<&ChatForm>) -> String {
    form.map_or_else(String::new, |ChatForm { family, written, .. }| {
        format!("; its vocabulary is that of {family}, whose chats are written {written}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_without_a_template_is_told_what_works_and_what_its_family_has() {
        let told = |form| NoTemplate { name: "base".to_owned(), form }.to_string();
        for form in FORMS.iter().map(Some).chain([None]) {
            let text = told(form);
            for word in ["`base`", "/v1/completions", "kvik run --raw", "--chat-template FILE"] {
                assert!(text.contains(word), "{text} says {word}");
            }
            if let Some(ChatForm { token, family, written }) = form {
                assert!(
                    text.contains(family) && written.contains(token) && written.contains("MESSAGE"),
                    "{text}"
                );
            }
        }
    }
}
