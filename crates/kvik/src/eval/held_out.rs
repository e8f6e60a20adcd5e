//! The embedded model's own held-out files, `models/tiny/eval-*.jsonl`, in the form that the model was trained on.
//!
//! The cases are in the order of `eval-order.json`: the first of each file are a sample in which every group has its
//! share.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

use super::score::Expected;
use super::written::{Question, WrittenCase};

/// A held-out file: its name, its subject, and the function that reads its cases.
pub(crate) struct HeldOut {
    /// `NAME` of `eval-NAME.jsonl` and of the task `tiny.NAME`.
    pub(crate) name: &'static str,
    /// Its subject, in a few words.
    pub(crate) about: &'static str,
    read: fn(HeldOutCase) -> anyhow::Result<WrittenCase>,
}

/// All held-out files.
pub(crate) const FILES: [HeldOut; 4] = [
    HeldOut { name: "recall", about: "facts told in a conversation", read: recall },
    HeldOut { name: "passkey", about: "a number hidden in a text", read: passkey },
    HeldOut { name: "notify", about: "notifications sorted by a long system prompt", read: notify },
    HeldOut { name: "summary", about: "a conversation as a line of facts", read: summary },
];

/// Tokens at the end of a prompt for a summary that count as its question.
const SUMMARY_QUESTION_TOKENS: usize = 32;
const PASSKEY_QUESTION: &str = "\nWhat is the pass key?";

/// A line of a file; fields about the case's generation are not read.
#[derive(Debug, Deserialize)]
struct HeldOutCase {
    id: usize,
    messages: Vec<Value>,
    expected: Value,
    #[serde(default)]
    bucket: String,
    #[serde(default)]
    size: usize,
    #[serde(default)]
    format: String,
    #[serde(default)]
    merge: bool,
}

impl HeldOut {
    /// The first `count` cases of the file in `directory`.
    ///
    /// # Errors
    /// If a file is missing or a line is invalid.
    pub(crate) fn cases(&self, directory: &Path, count: usize) -> anyhow::Result<Vec<WrittenCase>> {
        let path = directory.join(format!("eval-{}.jsonl", self.name));
        let mut cases = BTreeMap::new();
        for (line, number) in read(&path)?.lines().zip(1..) {
            let case: HeldOutCase = serde_json::from_str(line)
                .with_context(|| format!("line {number} of {} is no case", path.display()))?;
            cases.insert(case.id, case);
        }
        let order = self.order(directory)?;
        let first = order.iter().filter_map(|id| cases.remove(id)).take(count);
        first.map(|case| (self.read)(case).with_context(|| format!("in {}", path.display()))).collect()
    }

    /// Ids of the cases in the order in which they are asked.
    fn order(&self, directory: &Path) -> anyhow::Result<Vec<usize>> {
        let path = directory.join("eval-order.json");
        let mut orders: BTreeMap<String, Vec<usize>> = serde_json::from_str(&read(&path)?)
            .with_context(|| format!("{} is no list of orders", path.display()))?;
        orders.remove(self.name).with_context(|| format!("{} has no order of {}", path.display(), self.name))
    }
}

/// The text of one of the model's files.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| {
        let path = path.display();
        format!("cannot read {path}: --held-out must name a directory with the held-out files of models/tiny")
    })
}

fn recall(case: HeldOutCase) -> anyhow::Result<WrittenCase> {
    let expected = case.expected.as_str().context("`expected` must be a text")?.to_owned();
    let group = case.bucket.clone();
    Ok(conversation(case, Question::LastMessage, Expected::Contains(vec![expected]), 40).group(group))
}

fn passkey(case: HeldOutCase) -> anyhow::Result<WrittenCase> {
    let expected = case.expected.as_str().context("`expected` must be a text")?.to_owned();
    let (question, group) = (Question::From(PASSKEY_QUESTION.to_owned()), format!("{} tokens", case.size));
    Ok(conversation(case, question, Expected::Contains(vec![expected]), 24).group(group))
}

fn notify(case: HeldOutCase) -> anyhow::Result<WrittenCase> {
    let (expected, group) = (Expected::Json(case.expected.clone()), case.format.clone());
    Ok(conversation(case, Question::LastMessage, expected, 40).group(group))
}

fn summary(case: HeldOutCase) -> anyhow::Result<WrittenCase> {
    let facts = serde_json::from_value(case.expected.clone()).context("`expected` must be facts")?;
    let group = if case.merge { "merged" } else { "fresh" }.to_owned();
    let question = Question::LastTokens(SUMMARY_QUESTION_TOKENS);
    Ok(conversation(case, question, Expected::Facts(facts), 200).group(group))
}

fn conversation(case: HeldOutCase, question: Question, expected: Expected, limit: usize) -> WrittenCase {
    let (lead, group) = (String::new(), String::new());
    WrittenCase { messages: case.messages, question, thinking: None, lead, expected, limit, group }
}
