//! `kvik lint`: finds the parts of requests that defeat the cache.
//!
//! The cache reuses a prompt up to the first token that differs. Lint looks for parts that differ between requests: in
//! a single request by patterns such as dates, in several by comparing them. It then applies the advised fix, tokenizes
//! both versions, and counts: a finding reports the gain of its fix on top of the findings before it.

mod fix;
mod report;
mod request;
#[cfg(test)]
mod tests;

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use kvik_memory::{alignment, volatile};

use super::output;
use fix::{Fix, Pair, alike, equal};
use kvik_serving::settings::model::ModelArgs;
use request::RequestBody;

pub(crate) use request::PromptEncoder;

/// Minimum gain in tokens of a reported fix: a block of the cache has 16.
const GAIN_MIN: usize = 16;
/// Maximum candidates tried in one pair of requests: each takes rendering two prompts.
const CANDIDATES_MAX: usize = 24;

/// Finds the parts of requests that defeat the cache: dates, ids, counters and reordered tools near the front
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik lint request.json                 parts that look as if they change at every request
  kvik lint monday.json tuesday.json     and the differences between two requests
  kvik lint -m model.gguf request.json   counted with the tokens and the template of that model
  kvik lint --json request.json          the findings as JSON

A request is the body of a chat, as OpenAI's clients, Anthropic's or Codex send it (`messages`, `input`),
or of a completion (`prompt`, a text). A prompt is
reused up to its first token that differs, so changing parts belong at its end: each line says
how many tokens of every later request a move saves.

Exit status: 0 when nothing was found, 1 when something was, 2 when the requests could not be examined.")]
pub(crate) struct LintArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Bodies of requests, as JSON
    #[arg(required = true, value_name = "REQUEST.JSON")]
    requests: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A part of a request that defeats the cache, and its fix.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finding {
    /// Its kind, in one word.
    pub(crate) kind: &'static str,
    /// Index of the message or of the tool; `None` for the template and the order of tools.
    pub(crate) index: Option<usize>,
    /// Role of the message, `prompt`, `tools` or `template`.
    pub(crate) role: String,
    /// Bytes of the text before it.
    pub(crate) offset: usize,
    /// The text itself.
    pub(crate) text: String,
    /// Leading tokens that two requests share with this fix, beyond those of the fixes before it.
    pub(crate) saved_tokens: usize,
    fix: Fix,
}

impl Finding {
    /// A sentence of a text; `sentence` is its byte range in each request.
    fn of_text(
        kind: &'static str,
        index: usize,
        role: &str,
        text: &str,
        sentence: [Range<usize>; 2],
    ) -> Finding {
        Finding {
            kind,
            index: Some(index),
            role: role.to_owned(),
            offset: sentence[0].start,
            text: text[sentence[0].clone()].to_owned(),
            saved_tokens: 0,
            fix: Fix::MoveToEnd { text: index, sentence },
        }
    }

    fn of_tools(kind: &'static str, index: Option<usize>, text: String, fix: Fix) -> Finding {
        Finding { kind, index, role: "tools".to_owned(), offset: 0, text, saved_tokens: 0, fix }
    }

    fn of_template() -> Finding {
        let (role, text) = ("template".to_owned(), String::new());
        Finding { kind: "time", index: None, role, offset: 0, text, saved_tokens: 0, fix: Fix::OneTime }
    }

    /// Whether both concern the same part.
    fn is_same(&self, other: &Finding) -> bool {
        (&self.role, self.index, &self.text) == (&other.role, other.index, &other.text)
    }
}

/// Runs the command; returns whether there are findings.
pub(crate) fn run(args: &LintArgs) -> anyhow::Result<bool> {
    let loaded = args.model.load()?;
    let template = loaded.own_template()?;
    let encoder = PromptEncoder { tokenizer: &loaded.tokenizer, template: template.as_ref() };
    let now = SystemTime::now();
    let requests: Vec<RequestBody> =
        args.requests.iter().map(|path| read(path, now)).collect::<anyhow::Result<_>>()?;
    let findings = lint(&requests, encoder)?;
    output::print(&match args.json {
        true => Value::Array(findings.iter().map(Finding::json).collect()).to_string(),
        false => report::table(&findings, requests.len()),
    })?;
    Ok(!findings.is_empty())
}

fn read(path: &Path, now: SystemTime) -> anyhow::Result<RequestBody> {
    let source = || format!("the request {}", path.display());
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    RequestBody::new(serde_json::from_str(&text).with_context(source)?, now).with_context(source)
}

/// The findings of these requests: the first is compared with each other one; a single one is searched for patterns
/// that look variable. Text that several requests share is no finding, whatever it looks like.
pub(crate) fn lint(requests: &[RequestBody], encoder: PromptEncoder<'_>) -> anyhow::Result<Vec<Finding>> {
    let Some((first, others)) = requests.split_first() else { return Ok(Vec::new()) };
    let mut findings: Vec<Finding> = Vec::new();
    let by_itself = if others.is_empty() { alone(first) } else { later(first) };
    let pairs = others.iter().map(|other| compared(first, other)).chain([by_itself]);
    for (pair, mut candidates) in pairs {
        candidates.truncate(CANDIDATES_MAX);
        // Earlier findings are fixed here too, so that later ones become visible.
        for finding in gains(&pair, candidates, encoder)? {
            if !findings.iter().any(|old| old.is_same(&finding)) {
                findings.push(finding);
            }
        }
    }
    Ok(findings)
}

/// The candidates whose fixes gain tokens, in the order of fixing.
fn gains(
    pair: &Pair,
    mut candidates: Vec<Finding>,
    encoder: PromptEncoder<'_>,
) -> anyhow::Result<Vec<Finding>> {
    let (mut fixes, mut found) = (Vec::new(), Vec::new());
    let mut shared = pair.shared_tokens(encoder)?;
    while let Some(group) = next_group(pair, (&fixes, shared), &candidates, encoder)? {
        for index in group.into_iter().rev() {
            found.push(candidates.remove(index));
        }
        // They were removed from back to front.
        let start = fixes.len();
        found[start..].reverse();
        for finding in &mut found[start..] {
            fixes.push(finding.fix.clone());
            let with = pair.fixed(&fixes).shared_tokens(encoder)?;
            finding.saved_tokens = with.saturating_sub(shared);
            shared = shared.max(with);
        }
    }
    Ok(found)
}

/// The indexes of the candidates to fix next: one that gains tokens over `fixes`, with which the pair shares `shared`;
/// or several that gain them only together, as two differences a few words apart do.
fn next_group(
    pair: &Pair,
    (fixes, shared): (&[Fix], usize),
    candidates: &[Finding],
    encoder: PromptEncoder<'_>,
) -> anyhow::Result<Option<Vec<usize>>> {
    let gain = |group: &[usize]| -> anyhow::Result<bool> {
        let more = group.iter().map(|&index| candidates[index].fix.clone());
        let fixes: Vec<Fix> = fixes.iter().cloned().chain(more).collect();
        Ok(pair.fixed(&fixes).shared_tokens(encoder)? >= shared + GAIN_MIN)
    };
    for index in 0..candidates.len() {
        if gain(&[index])? {
            return Ok(Some(vec![index]));
        }
    }
    let all: Vec<usize> = (0..candidates.len()).collect();
    let mut until = 2;
    while until <= all.len() && !gain(&all[..until])? {
        until += 1;
    }
    if until > all.len() {
        return Ok(None);
    }
    // Drops each candidate without which the others still gain tokens.
    let mut group = all[..until].to_vec();
    let mut at = 0;
    while at < group.len() {
        let without: Vec<usize> = group.iter().copied().filter(|index| *index != group[at]).collect();
        match gain(&without)? {
            true => group = without,
            false => at += 1,
        }
    }
    Ok(Some(group))
}

/// A request as it is sent again later: only the template's output differs.
fn later(request: &RequestBody) -> (Pair, Vec<Finding>) {
    let mut twin = request.clone();
    // Forty days and a bit, so that every part of a date and of a time changes.
    twin.now += Duration::from_secs(3600 * 24 * 40 + 3723);
    (Pair([request.clone(), twin]), vec![Finding::of_template()])
}

/// A request and its likely next version, with the candidates that differ between the two.
fn alone(request: &RequestBody) -> (Pair, Vec<Finding>) {
    let (Pair([_, mut twin]), mut candidates) = later(request);
    let mut tools = twin.tools().to_vec();
    for (index, tool) in tools.iter_mut().enumerate() {
        candidates.extend(twin_of_tool(index, tool));
    }
    if !tools.is_empty() {
        twin.set_tools(tools);
    }
    for (index, (role, text)) in request.texts().into_iter().enumerate() {
        // Earlier messages do not change: only the application's own texts can.
        if matches!(role.as_str(), "system" | "developer" | "prompt") {
            candidates.extend(volatile_sentences(index, &role, &text));
            twin.set_text(index, volatile::twin(&text));
        }
    }
    (Pair([request.clone(), twin]), candidates)
}

/// Changes the volatile pieces in the texts of a tool; returns the first of them.
fn twin_of_tool(index: usize, tool: &mut Value) -> Option<Finding> {
    match tool {
        Value::String(text) => {
            let piece = volatile::find(text).into_iter().next()?;
            let (kind, shown) = (piece.kind.name(), text[piece.range].to_owned());
            *text = volatile::twin(text);
            Some(Finding::of_tools(kind, Some(index), shown, Fix::OneTool(index)))
        }
        Value::Array(items) => first(items.iter_mut().map(|item| twin_of_tool(index, item))),
        Value::Object(fields) => first(fields.values_mut().map(|value| twin_of_tool(index, value))),
        _ => None,
    }
}

/// The first `Some`, after all items were evaluated.
fn first<T>(all: impl Iterator<Item = Option<T>>) -> Option<T> {
    all.fold(None, |first, next| first.or(next))
}

/// The sentences of a text that contain volatile pieces. A date may contain what looks like the end of a sentence, so that
/// the sentences of two pieces overlap: these are one.
fn volatile_sentences(index: usize, role: &str, text: &str) -> Vec<Finding> {
    let mut sentences: Vec<(volatile::Kind, Range<usize>)> = Vec::new();
    for piece in volatile::find(text) {
        let sentence = volatile::sentence(text, &piece.range);
        match sentences.last_mut() {
            Some((_, last)) if sentence.start < last.end => last.end = last.end.max(sentence.end),
            _ => sentences.push((piece.kind, sentence)),
        }
    }
    let finding = |(kind, sentence): (volatile::Kind, Range<usize>)| {
        Finding::of_text(kind.name(), index, role, text, [sentence.clone(), sentence])
    };
    sentences.into_iter().map(finding).collect()
}

/// Two requests, with the candidates that differ between them.
fn compared(first: &RequestBody, other: &RequestBody) -> (Pair, Vec<Finding>) {
    let mut candidates = Vec::new();
    let (tools, other_tools) = (first.tools(), other.tools());
    let same = |a: &[Value], b: &[Value]| a.iter().all(|tool| b.iter().any(|other| equal(tool, other)));
    if !alike(tools, other_tools) && same(tools, other_tools) && same(other_tools, tools) {
        let reordered = tools.iter().zip(other_tools).position(|(tool, other)| !equal(tool, other));
        let kind = if reordered.is_some() { "tool_order" } else { "key_order" };
        let text =
            reordered.map(|index| tools[index]["function"]["name"].as_str().unwrap_or_default().to_owned());
        candidates.push(Finding::of_tools(kind, reordered, text.unwrap_or_default(), Fix::OneToolOrder));
    }
    candidates.extend(differing_tools(tools, other_tools));
    let (texts, other_texts) = (first.texts(), other.texts());
    let is_question = |index: usize| index + 1 >= texts.len().min(other_texts.len());
    for (index, ((role, left), (other_role, right))) in texts.iter().zip(&other_texts).enumerate() {
        if role != other_role || left == right {
            continue;
        }
        let found = differing_sentences(index, role, left, right);
        match role.as_str() {
            "system" | "developer" | "prompt" => candidates.extend(found),
            // The context that an application supplies before the question, such as the directory, is also a user
            // message.
            "user" if !is_question(index) && are_alike(left, right) => candidates.extend(found),
            _ => {}
        }
    }
    (Pair([first.clone(), other.clone()]), candidates)
}

/// Tools with the same name and position in both requests that differ.
fn differing_tools(tools: &[Value], others: &[Value]) -> Vec<Finding> {
    let name = |tool: &Value| tool["function"]["name"].as_str().unwrap_or_default().to_owned();
    let pairs = tools.iter().zip(others).enumerate();
    let differing = pairs.filter(|(_, (tool, other))| name(tool) == name(other) && !equal(tool, other));
    let finding = |(index, (tool, _)): (usize, (&Value, &Value))| {
        Finding::of_tools("differs", Some(index), name(tool), Fix::OneTool(index))
    };
    differing.map(finding).collect()
}

/// Whether two texts have half of their sentences in common.
fn are_alike(left: &str, right: &str) -> bool {
    let sentences = [left, right].map(|text| volatile::sentences(text).len());
    alignment::common(left, right) * 2 >= sentences.into_iter().max().unwrap_or_default()
}

/// The sentences that occur in only one of two texts of the same role.
fn differing_sentences(index: usize, role: &str, left: &str, right: &str) -> Vec<Finding> {
    let finding = |[a, b]: [Range<usize>; 2]| {
        // A sentence that only the other request has is shown from there.
        let shown = if a.is_empty() { &right[b.clone()] } else { &left[a.clone()] };
        let kind = volatile::find(shown).first().map_or("differs", |piece| piece.kind.name());
        Finding { text: shown.to_owned(), ..Finding::of_text(kind, index, role, left, [a, b]) }
    };
    alignment::differences(left, right).into_iter().map(finding).collect()
}
