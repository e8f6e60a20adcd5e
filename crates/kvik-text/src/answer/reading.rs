//! Parsing of an answer's text into reasoning, content and tool calls.

use std::sync::Arc;

use super::{AnswerDelta, AnswerParser, AnswerStart, ForcedCallParser, Offer};

/// The way in which the text of an answer is parsed.
#[derive(Debug, Clone)]
pub enum Reading {
    /// Reasoning, content and tool calls are separated according to the model's form.
    Tagged {
        /// The form, and the place at which the answer begins.
        start: AnswerStart,
        /// The offered tools.
        offer: Option<Arc<Offer>>,
    },
    /// A constraint shapes the answer: all of it is content.
    Plain,
    /// A constraint makes the whole answer one call: `{"name": ..., "arguments": {...}}`.
    ForcedCall,
}

/// Parses the text of one answer as it arrives.
#[derive(Debug)]
pub enum Reader {
    /// See [`Reading::Tagged`].
    Tagged(Box<AnswerParser>),
    /// See [`Reading::Plain`].
    Plain,
    /// See [`Reading::ForcedCall`].
    ForcedCall(ForcedCallParser),
}

impl Reading {
    /// A reader for one answer. `salt` makes the ids of its calls differ from those of other answers, since
    /// results refer to ids.
    pub fn reader(&self, salt: &str) -> Reader {
        match self {
            Reading::Tagged { start, offer } => {
                Reader::Tagged(Box::new(AnswerParser::new(*start, offer.clone(), salt)))
            }
            Reading::Plain => Reader::Plain,
            Reading::ForcedCall => Reader::ForcedCall(ForcedCallParser::new(format!("call_{salt}"))),
        }
    }

    /// The texts around reasoning and calls: control tokens among them are part of the answer's text.
    pub fn texts(&self) -> Vec<&str> {
        let Reading::Tagged { start, offer } = self else { return Vec::new() };
        let offered = offer.iter().flat_map(|offer| offer.form.texts());
        start.form.texts().into_iter().chain(offered).collect()
    }
}

impl Reader {
    /// See [`AnswerParser::unconstrain`].
    pub fn unconstrain(&mut self) {
        if let Reader::Tagged(parser) = self {
            parser.unconstrain();
        }
    }

    /// Parses more text; returns the resulting deltas.
    pub fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        match self {
            Reader::Tagged(parser) => parser.push(text),
            Reader::Plain if text.is_empty() => Vec::new(),
            Reader::Plain => vec![AnswerDelta::Content(text.to_owned())],
            Reader::ForcedCall(parser) => parser.push(text),
        }
    }

    /// The deltas of held-back text, at the end of the answer.
    pub fn finish(&mut self) -> Vec<AnswerDelta> {
        match self {
            Reader::Tagged(parser) => parser.finish(),
            Reader::Plain => Vec::new(),
            Reader::ForcedCall(parser) => parser.finish(),
        }
    }

    /// Bytes at the end of the text so far that are in no delta yet.
    pub fn held_bytes(&self) -> usize {
        match self {
            Reader::Tagged(parser) => parser.held_bytes(),
            Reader::Plain => 0,
            Reader::ForcedCall(parser) => parser.held_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::offer;
    use super::*;
    use crate::answer::ToolForm;

    #[test]
    fn a_text_ends_where_what_is_held_back_begins() {
        let text = "<think>\nSo.\n</think>\n\n<<b> \n```json\n[1]\n``` <tool_call>\nno call</tool_call>\n<";
        for offer in [None, offer(ToolForm::tagged())] {
            let start = AnswerStart::usual(false);
            let mut reader = Reading::Tagged { start, offer }.reader("x");
            let mut texts = 0;
            for (at, c) in text.char_indices() {
                if let Some(AnswerDelta::Content(said)) = reader.push(c.encode_utf8(&mut [0; 4])).last() {
                    let decided = &text[..at + 1 - reader.held_bytes()];
                    assert!(decided.ends_with(said.as_str()), "{said:?} of {decided:?}");
                    texts += 1;
                }
            }
            assert!(texts > 5, "{texts}");
        }
    }

    #[test]
    fn an_answer_without_text_says_nothing() {
        for reading in [Reading::Plain, Reading::ForcedCall] {
            assert!(reading.reader("x").finish().is_empty(), "{reading:?}");
        }
    }
}
