//! Fixes: changes to two requests that make their prompts share more tokens.

use std::ops::Range;

use serde_json::Value;

use super::request::{PromptEncoder, RequestBody};

/// A change to a pair of requests.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fix {
    /// Move sentences of one text to the end of the last text; `sentence` is their byte range in each request.
    MoveToEnd { text: usize, sentence: [Range<usize>; 2] },
    /// Send tools, equal up to their order or the order of their keys, as the first request does.
    OneToolOrder,
    /// Send this tool as the first request does.
    OneTool(usize),
    /// Render the template at the same time.
    OneTime,
}

/// Two requests whose prompts should share a prefix.
#[derive(Debug, Clone)]
pub(crate) struct Pair(pub(crate) [RequestBody; 2]);

impl Pair {
    /// Leading tokens that the two prompts share.
    pub(crate) fn shared_tokens(&self, encoder: PromptEncoder<'_>) -> anyhow::Result<usize> {
        let [left, right] = &self.0;
        let (left, right) = (left.tokens(encoder)?, right.tokens(encoder)?);
        Ok(left.iter().zip(&right).take_while(|(left, right)| left == right).count())
    }

    /// The pair after these fixes.
    pub(crate) fn fixed(&self, fixes: &[Fix]) -> Pair {
        let mut fixed = self.clone();
        fixed.move_sentences(fixes);
        let [left, right] = &mut fixed.0;
        for fix in fixes {
            match fix {
                Fix::MoveToEnd { .. } => {}
                Fix::OneToolOrder => right.set_tools(in_order_of(left.tools(), right.tools())),
                Fix::OneTool(index) => {
                    let mut tools = right.tools().to_vec();
                    if let (Some(right), Some(left)) = (tools.get_mut(*index), left.tools().get(*index)) {
                        right.clone_from(left);
                    }
                    right.set_tools(tools);
                }
                Fix::OneTime => right.now = left.now,
            }
        }
        fixed
    }

    /// Removes the sentences from back to front, so that the ranges of the others stay valid, and
    /// appends them to the last text in their order.
    fn move_sentences(&mut self, fixes: &[Fix]) {
        for (side, request) in self.0.iter_mut().enumerate() {
            let mut moves: Vec<(usize, Range<usize>)> =
                fixes.iter().filter_map(|fix| fix.moved(side)).collect();
            moves.sort_by_key(|(text, sentence)| (*text, sentence.start));
            let mut texts: Vec<String> = request.texts().into_iter().map(|(_, text)| text).collect();
            let mut moved = Vec::new();
            for (text, sentence) in moves.into_iter().rev() {
                let taken: String = texts[text].drain(sentence).collect();
                request.set_text(text, texts[text].clone());
                if !taken.trim().is_empty() {
                    moved.push(taken.trim().to_owned());
                }
            }
            if let Some(mut last) = texts.pop().filter(|_| !moved.is_empty()) {
                moved
                    .into_iter()
                    .rev()
                    .for_each(|sentence| last = format!("{}\n{sentence}", last.trim_end()));
                request.set_text(texts.len(), last);
            }
        }
    }
}

impl Fix {
    /// The text and the moved sentence in the request of this side.
    fn moved(&self, side: usize) -> Option<(usize, Range<usize>)> {
        match self {
            Fix::MoveToEnd { text, sentence } => Some((*text, sentence[side].clone())),
            _ => None,
        }
    }
}

/// `tools` in the order and the key order of `model`; tools that `model` lacks follow.
fn in_order_of(model: &[Value], tools: &[Value]) -> Vec<Value> {
    let same: Vec<Value> =
        model.iter().filter(|tool| tools.iter().any(|other| equal(tool, other))).cloned().collect();
    let others = tools.iter().filter(|tool| !model.iter().any(|other| equal(tool, other)));
    same.iter().chain(others).cloned().collect()
}

/// Whether two values are equal up to the order of keys, which maps keep and do not compare.
pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    a == b
}

/// Whether two values are equal, the order of keys included.
pub(crate) fn alike(a: &[Value], b: &[Value]) -> bool {
    let written = |values: &[Value]| values.iter().map(Value::to_string).collect::<Vec<_>>();
    written(a) == written(b)
}
