//! Derives how a chat template renders tools, by trial: renders tools, calls and results with unique names; the
//! text around the names is the form in which the model writes calls.

use std::sync::Arc;

use serde_json::{Value, json};

use super::ids::CallIds;
use super::messages::{Arguments, MessageFormat};
use super::{ChatTemplate, RenderInput, TemplateError};
use crate::answer::{AnswerDelta, AnswerParser, AnswerStart, ArgumentsForm, Offer, ToolForm};

/// A template's support for tools.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Learned {
    /// Whether the template describes the tools to the model.
    pub(super) offers: bool,
    /// Whether the template describes tools in a field `tools` of the system message, as text.
    pub(super) offers_in_system: bool,
    /// Whether the template renders calls.
    pub(super) calls: bool,
    /// The form of the calls, if it could be derived.
    pub(super) form: Option<ToolForm>,
    /// Whether the template renders the results of calls.
    pub(super) results: bool,
    /// Whether the template accepts a message with the role `system`.
    pub(super) system: bool,
    pub(super) expected: MessageFormat,
    /// Parts that it fails to render, in words, with the reason.
    pub(super) failures: Vec<(&'static str, String)>,
}

// No template contains these, and no two of them share a prefix. They have only letters because
// templates check names, and Mistral's identifiers have nine characters.
const TOOL: &str = "zqToolOffered";
const NAMES: [&str; 2] = ["jvFirstCalled", "wxSecondCalled"];
const KEYS: [&str; 2] = ["qjKeyOne", "xvKeyTwo"];
const VALUES: [&str; 2] = ["zwValueOne", "jqValueTwo"];
const ANSWER: &str = "\u{3a9}zjAnswer";
const RESULT: &str = "vqResultText";
const SYSTEM: &str = "wjSystemText";
pub(super) const QUESTION: &str = "kzQuestionText";

/// Identifiers of calls. Kimi's identifiers contain the name, and its template writes it nowhere else.
const IDS: [[&str; 2]; 2] =
    [["kpfirstid", "hgsecndid"], ["functions.jvFirstCalled:0", "functions.wxSecondCalled:1"]];

/// Identifiers in the usual form of servers, which some templates refuse.
const USUAL_IDS: [&str; 2] = ["call_0_a1b2c3d4e5f60718", "call_1_a1b2c3d4e5f60718"];

/// Texts that end an answer in some templates.
const ENDS: [&str; 8] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "</s>",
    "<end_of_turn>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "<|END_OF_TURN_TOKEN|>",
];

/// Maximum bytes around calls; longer texts are not part of the form but other output of the template.
const AROUND_MAX: usize = 120;

impl Learned {
    pub(super) fn from(template: &ChatTemplate) -> Learned {
        let expected = MessageFormat::guess(template.source());
        let mut trials = Vec::new();
        for null_content in [expected.null_content, false] {
            for arguments in [expected.arguments, Arguments::TextOnly] {
                for ids in IDS {
                    trials.push(Trial {
                        template,
                        expected: MessageFormat { arguments, null_content, ..expected },
                        ids,
                    });
                }
            }
        }
        // A template with a notation of its own for values also writes JSON if it is given JSON.
        let notation = ToolForm::mentioned_in(template.source()).map(|form| form.arguments);
        let is_known = matches!(notation, Some(ArgumentsForm::Python | ArgumentsForm::Dict { .. }));
        let forms = trials.iter().filter(|_| !is_known);
        let forms: Vec<_> = forms.filter_map(|trial| Some((trial.form()?, trial))).collect();
        // No model was trained on arguments that a template prints in Python's notation: a JSON form is preferred.
        let best = forms.iter().find(|(form, _)| form.arguments == ArgumentsForm::Json).or(forms.first());
        let (form, trial) = best.map_or((None, &trials[0]), |(form, trial)| (Some(form.clone()), *trial));
        let wrote = |messages: Value, tools: bool, text: &str| {
            trial.render(messages, tools).is_some_and(|prompt| prompt.contains(text))
        };
        let calls = wrote(json!([user(), trial.calls(1)]), true, VALUES[0]);
        let offers = wrote(json!([user()]), true, TOOL);
        let asked = if calls { trial.calls(1) } else { trial.answer() };
        let results = || {
            wrote(json!([user(), asked, trial.result()]), false, RESULT)
                || wrote(json!([user(), asked, trial.result(), trial.answer()]), false, RESULT)
        };
        // Arguments that the template does not render stay as the request sent them.
        let arguments = if calls { trial.expected.arguments } else { Arguments::TextOnly };
        Learned {
            offers,
            offers_in_system: wrote(
                json!([{"role": "system", "content": SYSTEM, "tools": TOOL}, user()]),
                false,
                TOOL,
            ),
            calls,
            // A template without tools that renders any role need not support results.
            results: (calls || offers) && results(),
            system: wrote(json!([{"role": "system", "content": SYSTEM}, user()]), false, SYSTEM),
            expected: MessageFormat { arguments, ids: trial.call_ids(), ..trial.expected },
            failures: failures(&trials),
            form,
        }
    }
}

/// The parts of a conversation that no trial renders, because the template fails or, of a message, loses its text.
/// Tools, calls and results that it omits are written for it.
fn failures(trials: &[Trial<'_>]) -> Vec<(&'static str, String)> {
    type Messages = fn(&Trial<'_>) -> Value;
    let parts: [(&str, bool, Messages); 4] = [
        ("a message", false, |_| json!([question()])),
        ("tools", true, |_| json!([user()])),
        ("calls of tools", true, |trial| json!([user(), trial.calls(1)])),
        ("results of calls", true, |trial| json!([user(), trial.calls(1), trial.result()])),
    ];
    let failure = |(part, tools, messages): (&'static str, bool, Messages)| {
        let mut errors: Vec<String> = Vec::new();
        for trial in trials {
            match trial.try_render(messages(trial), tools) {
                Ok(text) if !tools && !text.contains(QUESTION) => {
                    errors.push("what it writes does not contain the text".into());
                }
                // A template may refuse input that its model was not trained on.
                Ok(_) | Err(TemplateError::Raised { .. }) => return None,
                Err(error) => errors.push(error.to_string()),
            }
        }
        Some((part, errors.swap_remove(0)))
    };
    parts.into_iter().filter_map(failure).collect()
}

fn user() -> Value {
    json!({"role": "user", "content": "Hi"})
}

/// A message whose text no template contains.
pub(super) fn question() -> Value {
    json!({"role": "user", "content": QUESTION})
}

/// The input of a trial, without messages and tools.
pub(super) fn unasked() -> RenderInput {
    RenderInput {
        messages: json!([]),
        tools: None,
        add_generation_prompt: false,
        enable_thinking: None,
        kwargs: serde_json::Map::new(),
        now: std::time::UNIX_EPOCH,
    }
}

/// A variant of the messages to render.
struct Trial<'t> {
    template: &'t ChatTemplate,
    expected: MessageFormat,
    ids: [&'static str; 2],
}

impl Trial<'_> {
    fn answer(&self) -> Value {
        json!({"role": "assistant", "content": ANSWER})
    }

    fn result(&self) -> Value {
        json!({"role": "tool", "tool_call_id": self.ids[0], "name": NAMES[0], "content": RESULT})
    }

    /// A message with `count` calls.
    fn calls(&self, count: usize) -> Value {
        let call = |i: usize| {
            let arguments = json!({KEYS[0]: VALUES[0], KEYS[1]: VALUES[1]});
            let function = json!({"name": NAMES[i], "arguments": arguments});
            json!({"id": self.ids[i], "type": "function", "function": function})
        };
        let calls: Vec<Value> = (0..count).map(call).collect();
        json!({"role": "assistant", "content": null, "tool_calls": calls})
    }

    fn render(&self, messages: Value, tools: bool) -> Option<String> {
        self.try_render(messages, tools).ok()
    }

    fn try_render(&self, messages: Value, tools: bool) -> Result<String, TemplateError> {
        let tool = json!({"type": "function", "function": {
            "name": TOOL,
            "description": "Does nothing",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "string", "description": "Text"}},
                "required": ["a"],
            },
        }});
        let input = RenderInput { messages, tools: tools.then(|| json!([tool])), ..unasked() };
        self.template.render_as_is(&input, self.expected).map(|prompt| prompt.text)
    }

    /// The identifiers that the template accepts.
    fn call_ids(&self) -> CallIds {
        if self.ids == IDS[1] {
            return CallIds::Named;
        }
        let renders = |ids| {
            let trial = Trial { ids, ..*self };
            trial.render(json!([user(), trial.calls(1), trial.result()]), true).is_some()
        };
        if !renders(USUAL_IDS) && renders(self.ids) { CallIds::Nine } else { CallIds::Any }
    }

    /// Renders a user message and this one. Some templates render calls only if there are tools.
    fn written(&self, last: &Value) -> Option<String> {
        let messages = json!([user(), last]);
        self.render(messages.clone(), true).or_else(|| self.render(messages, false))
    }

    /// The form in which the template renders calls.
    fn form(&self) -> Option<ToolForm> {
        let plain = self.written(&self.answer())?;
        let at = plain.find(ANSWER)?;
        let end = plain[at + ANSWER.len()..].trim();
        let one = self.assistant_text(&self.written(&self.calls(1))?, &plain[..at], end)?;
        let two = self.written(&self.calls(2)).and_then(|two| self.assistant_text(&two, &plain[..at], end));
        let several = two.and_then(|two| {
            let form = self.form_of(&one, Some(&two))?;
            (reads_back(&form, &one, 1) && reads_back(&form, &two, 2)).then_some(form)
        });
        several.or_else(|| self.form_of(&one, None).filter(|form| reads_back(form, &one, 1)))
    }

    /// The assistant's part of a text that begins like `before`.
    fn assistant_text(&self, text: &str, before: &str, end: &str) -> Option<String> {
        let start = whole_tags(common_prefix(text, before)).len();
        let assistant_text = after_reasoning(&text[start..]).trim_start();
        let name = assistant_text.find(NAMES[0])?;
        let ends = ENDS.into_iter().chain([end, self.template.eos_text.as_str()]);
        let first =
            ends.filter(|end| !end.is_empty()).filter_map(|end| assistant_text[name..].find(end)).min();
        Some(assistant_text[..first.map_or(assistant_text.len(), |at| name + at)].trim_end().to_owned())
    }

    /// The form of one call; a text with two calls shows the separator.
    fn form_of(&self, one: &str, two: Option<&str>) -> Option<ToolForm> {
        let call = Call::find(one, NAMES[0], 0)?;
        if call.parameters.is_some() && self.expected.arguments == Arguments::TextOnly {
            return None;
        }
        let (before, after) = (&one[..call.start], without_id(&one[call.end..], &self.ids));
        let mut form = match two {
            Some(two) => self.around_several(two, before, &after)?,
            None => ToolForm { begin: before.into(), end: after, ..ToolForm::empty() },
        };
        form.middle = one[call.start + NAMES[0].len()..call.arguments].to_owned();
        form.loose |=
            [&form.begin, &form.middle].iter().any(|part| self.ids.iter().any(|id| part.contains(id)));
        form.loose |= form.opening.len() > AROUND_MAX || form.closing.len() > AROUND_MAX;
        if let Some(parameters) = call.parameters {
            form.arguments = parameters;
        }
        Some(form)
    }

    /// Splits the text between two calls into the end of the first, a separator, and the beginning of the
    /// second. The rest of the text around one call belongs to the whole section.
    fn around_several(&self, two: &str, before: &str, after: &str) -> Option<ToolForm> {
        let first = Call::find(two, NAMES[0], 0)?;
        let second = Call::find(two, NAMES[1], first.end)?;
        let between = without_id(&two[first.end..second.start], &self.ids);
        let end = whole_tags(common_prefix(&between, after));
        let rest = &between[end.len()..];
        let mut begin = whole_tags_at_end(common_suffix(rest, before)).len();
        let mut separator = &rest[..rest.len() - begin];
        let mut loose = two[first.start + NAMES[0].len()..first.arguments]
            != two[second.start + NAMES[1].len()..second.arguments];
        // A difference within the object of a call is one of its fields, such as a number.
        if let (Some(object), Some(next)) = (object_before(before), object_before(rest))
            && before.len() - object > begin
        {
            (begin, separator, loose) = (before.len() - object, &rest[..next], true);
        }
        let (opening, begin) = before.split_at(before.len() - begin);
        Some(ToolForm {
            opening: opening.to_owned(),
            begin: begin.to_owned(),
            end: end.to_owned(),
            separator: separator.to_owned(),
            closing: after[end.len()..].to_owned(),
            several: true,
            loose,
            ..ToolForm::empty()
        })
    }
}

/// Start of the JSON object in which a text ends.
fn object_before(text: &str) -> Option<usize> {
    let at = text.rfind('{')?;
    text[at + 1..].trim_start().starts_with('"').then_some(at)
}

/// Whether parsing with the form gives the rendered calls.
fn reads_back(form: &ToolForm, text: &str, calls: usize) -> bool {
    let properties = json!({KEYS[0]: {"type": "string"}, KEYS[1]: {"type": "string"}});
    let schema = json!({"type": "object", "properties": properties});
    let tools = NAMES.map(|name| (name.to_owned(), schema.clone())).to_vec();
    let offer = Offer { form: form.clone(), tools, calls_max: usize::MAX, certain: false };
    let mut parser = AnswerParser::new(AnswerStart::usual(false), Some(Arc::new(offer)), "");
    let deltas = [parser.push(text), parser.finish()].concat();
    let wanted = json!({KEYS[0]: VALUES[0], KEYS[1]: VALUES[1]});
    let right = |(i, delta): (usize, &AnswerDelta)| match delta {
        AnswerDelta::ToolCall { name, arguments, .. } => {
            name == NAMES[i] && serde_json::from_str(arguments).ok() == Some(wanted.clone())
        }
        _ => false,
    };
    deltas.len() == calls && deltas.iter().enumerate().all(right)
}

/// Offsets of the parts of a call in a text.
struct Call {
    /// Start of the name.
    start: usize,
    /// Start of the arguments.
    arguments: usize,
    /// End of the arguments, before the closing brace of an object around them.
    end: usize,
    parameters: Option<ArgumentsForm>,
}

impl Call {
    fn find(text: &str, name: &str, from: usize) -> Option<Call> {
        let start = from + text[from..].find(name)?;
        let after = start + name.len();
        let key = after + text[after..].find(KEYS[0])?;
        let opening = text[after..key].find('{').map(|at| after + at);
        let json = opening.and_then(|at| {
            let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
            let value = values.next()?.ok()?;
            (value.get(KEYS[1]).and_then(Value::as_str) == Some(VALUES[1]))
                .then_some((at, at + values.byte_offset()))
        });
        match json {
            Some((arguments, end)) => Some(Call { start, arguments, end, parameters: None }),
            None => Call::with_parameters(text, start, after, key),
        }
    }

    /// Keys and values as text, in sequence.
    fn with_parameters(text: &str, start: usize, after: usize, key: usize) -> Option<Call> {
        let offset = |word: &str, from: usize| Some(from + text[from..].find(word)?);
        let value = offset(VALUES[0], key)?;
        let next_key = offset(KEYS[1], value)?;
        let next_value = offset(VALUES[1], next_key)?;
        // The text between two of them is the end of the first and the beginning of the second, which
        // equals the text before the first.
        let between = &text[value + VALUES[0].len()..next_key];
        let before = whole_tags_at_end(common_suffix(&text[after..key], between));
        if before.trim().is_empty() {
            return None;
        }
        let form = ArgumentsForm::Parameters {
            key: before.to_owned(),
            value: text[key + KEYS[0].len()..value].to_owned(),
            end: between[..between.len() - before.len()].to_owned(),
        };
        let behind = next_value + VALUES[1].len();
        let ArgumentsForm::Parameters { end, .. } = &form else { return None };
        let end = behind + if text[behind..].starts_with(end.as_str()) { end.len() } else { 0 };
        Some(Call { start, arguments: key - before.len(), end, parameters: Some(form) })
    }
}

/// Removes the JSON field with an identifier: models are not asked to generate one.
fn without_id(text: &str, ids: &[&str]) -> String {
    let Some((id, at)) = ids.iter().find_map(|id| Some((id, text.find(id)?))) else { return text.to_owned() };
    let after = at + id.len() + usize::from(text[at + id.len()..].starts_with('"'));
    match text[..at].rfind(',') {
        Some(comma) => [&text[..comma], &text[after..]].concat(),
        None => text.to_owned(),
    }
}

/// Removes reasoning that the template writes before a call.
fn after_reasoning(text: &str) -> &str {
    let tags = [("<think>", "</think>"), ("<|START_THINKING|>", "<|END_THINKING|>"), ("[THINK]", "[/THINK]")];
    let behind =
        |(open, close): (&str, &str)| Some(text.trim_start().strip_prefix(open)?.split_once(close)?.1);
    tags.into_iter().find_map(behind).unwrap_or(text)
}

fn common_prefix<'t>(a: &'t str, b: &str) -> &'t str {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    &a[..same.map(|(c, _)| c.len_utf8()).sum()]
}

fn common_suffix<'t>(a: &str, b: &'t str) -> &'t str {
    let same = a.chars().rev().zip(b.chars().rev()).take_while(|(a, b)| a == b);
    &b[b.len() - same.map(|(c, _)| c.len_utf8()).sum::<usize>()..]
}

/// Removes an incomplete tag at the end: different tags may share a prefix.
fn whole_tags(text: &str) -> &str {
    let open = [('<', '>'), ('[', ']')].into_iter().filter_map(|(open, close)| {
        let at = text.rfind(open)?;
        let inside = &text[at + 1..];
        let tag = !inside.contains(close)
            && inside.len() < 40
            && inside.chars().all(|c| !c.is_whitespace() && c != '{');
        (tag && (open == '<' || !inside.is_empty())).then_some(at)
    });
    &text[..open.min().unwrap_or(text.len())]
}

/// Removes the rest of a tag at the beginning.
fn whole_tags_at_end(text: &str) -> &str {
    match text.find(['<', '>']) {
        Some(at) if text[at..].starts_with('>') => &text[at + 1..],
        _ => text,
    }
}
