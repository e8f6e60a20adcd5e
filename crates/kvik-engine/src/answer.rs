//! Takes a model's answer apart while it streams: thoughts, tool calls, and what is meant for the reader.
//!
//! The result does not depend on where the text was cut into pieces. Text is held back only while it
//! may turn out to be a tag; nothing is lost: a tool call that is no valid JSON becomes content.
//! Line breaks next to tags belong to the format, not to the text, and are dropped.

use serde::de::{DeserializeOwned, IgnoredAny};

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerDelta {
    /// More of what the model thinks.
    Reasoning(String),
    /// More of what it says.
    Content(String),
    /// A complete call of a tool.
    ToolCall {
        /// Position among the calls of this answer, from 0.
        index: usize,
        /// Name for this call, by which its result is sent back.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments as JSON text, spelled as the model wrote them.
        arguments: String,
    },
}

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// Parses one answer.
#[derive(Debug)]
pub struct AnswerParser {
    state: State,
    /// Whether tool calls are looked for.
    tools: bool,
    /// Goes into the ids of tool calls.
    salt: String,
    /// Text that is not decided yet.
    pending: String,
    /// Line breaks that come next follow a tag and are dropped.
    after_tag: bool,
    /// Something other than white space has been said since the last tag.
    spoken: bool,
    /// A tag was seen: white space at the end is format, not text.
    tagged: bool,
    /// Thoughts come before anything else.
    may_think: bool,
    /// A model whose prompt has opened the thought may open it once more.
    may_reopen: bool,
    /// Bytes of a pending call in which there is no end of it.
    searched: usize,
    calls: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Thinking,
    Speaking,
    Calling,
}

impl AnswerParser {
    /// `starts_in_thinking` when the prompt ended inside an open thought; `tools` when the request
    /// offers tools, otherwise their tags are plain text.
    pub fn new(starts_in_thinking: bool, tools: bool) -> AnswerParser {
        AnswerParser {
            state: if starts_in_thinking { State::Thinking } else { State::Speaking },
            tools,
            salt: String::new(),
            pending: String::new(),
            after_tag: starts_in_thinking,
            spoken: false,
            tagged: starts_in_thinking,
            may_think: true,
            may_reopen: starts_in_thinking,
            searched: 0,
            calls: 0,
        }
    }

    /// Makes the ids of this answer's tool calls differ from those of other answers.
    pub fn with_salt(mut self, salt: &str) -> AnswerParser {
        self.salt = salt.into();
        self
    }

    /// Takes more text; returns what is decided by it.
    pub fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        self.pending.push_str(text);
        let mut deltas = Vec::new();
        while self.step(&mut deltas) {}
        deltas
    }

    /// The answer is over; returns what was held back.
    pub fn finish(&mut self) -> Vec<AnswerDelta> {
        let mut deltas = Vec::new();
        loop {
            while self.step(&mut deltas) {}
            let rest = std::mem::take(&mut self.pending);
            match self.state {
                State::Thinking => self.think(&rest, &mut deltas),
                State::Speaking if self.tagged && !self.spoken && rest.trim().is_empty() => {}
                State::Speaking => self.speak(&rest, &mut deltas),
                State::Calling => {
                    self.unfinished_call(rest, &mut deltas);
                    continue;
                }
            }
            return deltas;
        }
    }

    /// Decides as much of the pending text as can be; `true` when the state has changed.
    fn step(&mut self, deltas: &mut Vec<AnswerDelta>) -> bool {
        match self.state {
            State::Thinking => self.step_thinking(deltas),
            State::Speaking => self.step_speaking(deltas),
            State::Calling => self.step_calling(deltas),
        }
    }

    fn step_thinking(&mut self, deltas: &mut Vec<AnswerDelta>) -> bool {
        if self.may_reopen {
            let start = self.pending.trim_start();
            if start.len() < THINK.len() && THINK.starts_with(start) {
                return false;
            }
            if let Some(rest) = start.strip_prefix(THINK) {
                self.pending = rest.to_owned();
            }
            self.may_reopen = false;
        }
        match self.pending.find(THINK_END) {
            Some(at) => {
                let rest = self.pending.split_off(at + THINK_END.len());
                let thought = std::mem::replace(&mut self.pending, rest);
                self.think(thought[..at].trim_end_matches('\n'), deltas);
                self.enter(State::Speaking);
                true
            }
            None => {
                let thought = self.take_decided(&[THINK_END]);
                self.think(&thought, deltas);
                false
            }
        }
    }

    fn step_speaking(&mut self, deltas: &mut Vec<AnswerDelta>) -> bool {
        let tags: &[&str] = match (self.tools, self.may_think) {
            (true, true) => &[CALL, THINK],
            (true, false) => &[CALL],
            (false, true) => &[THINK],
            (false, false) => &[],
        };
        let found = tags.iter().filter_map(|tag| Some((self.pending.find(tag)?, *tag)));
        // Only white space may stand before a thought.
        let allowed = found.filter(|(at, tag)| *tag != THINK || self.pending[..*at].trim().is_empty());
        match allowed.min() {
            Some((at, tag)) => {
                let rest = self.pending.split_off(at + tag.len());
                let text = std::mem::replace(&mut self.pending, rest);
                let text = &text[..at];
                if self.spoken || !text.trim().is_empty() {
                    self.speak(text.trim_end_matches('\n'), deltas);
                }
                self.enter(if tag == THINK { State::Thinking } else { State::Calling });
                true
            }
            None => {
                let text = self.take_decided(tags);
                self.speak(&text, deltas);
                // What was just said may have ruled out thoughts, and with them what is held back.
                !text.is_empty()
            }
        }
    }

    fn step_calling(&mut self, deltas: &mut Vec<AnswerDelta>) -> bool {
        let mut from = self.searched;
        while let Some(found) = self.pending[from..].find(CALL_END) {
            let (at, end) = (from + found, from + found + CALL_END.len());
            match parse_call(&self.pending[..at]) {
                Some(call) => {
                    self.pending.drain(..end);
                    self.call(call, deltas);
                }
                // The tag is part of an argument: the call ends at a later one.
                None if ends_inside_string(&self.pending[..at]) => {
                    from = end;
                    continue;
                }
                None => self.not_a_call(end, deltas),
            }
            return true;
        }
        let tail = self.pending.len().saturating_sub(CALL_END.len());
        self.searched = self.pending.floor_char_boundary(tail).max(from);
        false
    }

    /// The answer has ended inside a call. Some models leave out the last tag.
    fn unfinished_call(&mut self, text: String, deltas: &mut Vec<AnswerDelta>) {
        if let Some(call) = parse_call(&text) {
            return self.call(call, deltas);
        }
        let end = text.find(CALL_END).map_or(text.len(), |at| at + CALL_END.len());
        self.pending = text;
        self.not_a_call(end, deltas);
    }

    fn call(&mut self, (name, arguments): (String, String), deltas: &mut Vec<AnswerDelta>) {
        let index = self.calls;
        let parts = [&self.salt, "\0", &name, "\0", &arguments].concat();
        let id = format!("call_{index}_{}", &blake3::hash(parts.as_bytes()).to_hex()[..16]);
        deltas.push(AnswerDelta::ToolCall { index, id, name, arguments });
        self.calls += 1;
        self.enter(State::Speaking);
    }

    /// Gives back the first `end` bytes, and the tag before them, as they were written.
    fn not_a_call(&mut self, end: usize, deltas: &mut Vec<AnswerDelta>) {
        let text: String = self.pending.drain(..end).collect();
        self.enter(State::Speaking);
        self.after_tag = false;
        self.speak(&format!("{CALL}{text}"), deltas);
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.searched = 0;
        self.after_tag = true;
        self.spoken = false;
        self.tagged = true;
        self.may_think &= state != State::Calling;
    }

    fn think(&mut self, text: &str, deltas: &mut Vec<AnswerDelta>) {
        let text = self.without_breaks_after_tag(text);
        if !text.is_empty() {
            self.spoken = true;
            match deltas.last_mut() {
                Some(AnswerDelta::Reasoning(last)) => last.push_str(text),
                _ => deltas.push(AnswerDelta::Reasoning(text.into())),
            }
        }
    }

    fn speak(&mut self, text: &str, deltas: &mut Vec<AnswerDelta>) {
        let text = self.without_breaks_after_tag(text);
        if !text.is_empty() {
            self.spoken = true;
            self.may_think = false;
            match deltas.last_mut() {
                Some(AnswerDelta::Content(last)) => last.push_str(text),
                _ => deltas.push(AnswerDelta::Content(text.into())),
            }
        }
    }

    fn without_breaks_after_tag<'t>(&mut self, text: &'t str) -> &'t str {
        if !self.after_tag {
            return text;
        }
        let text = text.trim_start_matches('\n');
        self.after_tag = text.is_empty();
        text
    }

    /// Takes the pending text that cannot belong to a tag. White space before a possible tag stays.
    fn take_decided(&mut self, tags: &[&str]) -> String {
        if tags.is_empty() {
            return std::mem::take(&mut self.pending);
        }
        let partial = tags.iter().map(|tag| partial_tag(&self.pending, tag)).max().unwrap_or(0);
        let decided = self.pending[..self.pending.len() - partial].trim_end().len();
        let held = self.pending.split_off(decided);
        std::mem::replace(&mut self.pending, held)
    }
}

/// Bytes at the end of `text` that are the beginning of `tag`.
fn partial_tag(text: &str, tag: &str) -> usize {
    let longest = text.len().min(tag.len() - 1);
    (1..=longest).rev().find(|&len| text.as_bytes().ends_with(&tag.as_bytes()[..len])).unwrap_or(0)
}

/// Name and arguments of `{"name": ..., "arguments": {...}}`.
///
/// The arguments are cut out of the text, not parsed and written again: when they come back as part
/// of the next prompt they must be the same tokens, or the cache cannot serve them.
fn parse_call(text: &str) -> Option<(String, String)> {
    let (mut name, mut arguments) = (None, "{}");
    let mut rest = text.trim().strip_prefix('{')?.trim_start();
    while !rest.starts_with('}') {
        let (key, after_key) = split_value::<String>(rest)?;
        let value_text = after_key.trim_start().strip_prefix(':')?.trim_start();
        let (_, after_value) = split_value::<IgnoredAny>(value_text)?;
        let value = &value_text[..value_text.len() - after_value.len()];
        match key.as_str() {
            "name" => name = Some(serde_json::from_str(value).ok()?),
            // Llama 3 says `parameters`.
            "arguments" | "parameters" => arguments = value,
            _ => {}
        }
        rest = after_value.trim_start();
        match rest.strip_prefix(',') {
            Some(next) => rest = Some(next.trim_start()).filter(|next| next.starts_with('"'))?,
            None if rest == "}" => {}
            None => return None,
        }
    }
    (rest == "}").then_some(())?;
    Some((name?, arguments_text(arguments)?))
}

/// The first JSON value of `text`, and what follows it.
fn split_value<T: DeserializeOwned>(text: &str) -> Option<(T, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

fn arguments_text(value: &str) -> Option<String> {
    match value {
        "null" => Some("{}".into()),
        object if object.starts_with('{') => Some(object.into()),
        // Some models write the arguments as a string of JSON.
        text => serde_json::from_str(text).ok(),
    }
}

fn ends_inside_string(json: &str) -> bool {
    let mut inside = false;
    let mut escaped = false;
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => inside = !inside,
            _ => {}
        }
    }
    inside
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Deltas as text: `R(..)`, `C(..)`, `T0:name(arguments)`, neighbours of one kind joined.
    fn show(deltas: &[AnswerDelta]) -> String {
        let mut out: Vec<(char, String)> = Vec::new();
        for delta in deltas {
            let (kind, text) = match delta {
                AnswerDelta::Reasoning(text) => ('R', text.clone()),
                AnswerDelta::Content(text) => ('C', text.clone()),
                AnswerDelta::ToolCall { index, name, arguments, .. } => {
                    ('T', format!("{index}:{name}:{arguments}"))
                }
            };
            match out.last_mut() {
                Some((last, joined)) if *last == kind && kind != 'T' => joined.push_str(&text),
                _ => out.push((kind, text)),
            }
        }
        out.into_iter().map(|(kind, text)| format!("{kind}({text})")).collect()
    }

    fn run(pieces: &[&str], thinking: bool, tools: bool) -> String {
        let mut parser = AnswerParser::new(thinking, tools);
        let mut deltas: Vec<_> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
        deltas.extend(parser.finish());
        show(&deltas)
    }

    #[test]
    fn answers_are_taken_apart() {
        let check = |text: &str, expect: &str| assert_eq!(run(&[text], false, true), expect, "{text:?}");
        check("Hello <b>.\n", "C(Hello <b>.\n)");
        check(" \n Hi", "C( \n Hi)");
        check("<think>\nHm.\n\n</think>\n\nYes", "R(Hm.)C(Yes)");
        check("\n<think></think>Yes ", "C(Yes )");
        check("<think>\nnever ends\n", "R(never ends\n)");
        check("Say <think> now", "C(Say <think> now)");
        check("a </think> b", "C(a </think> b)");
        check(
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, 2]}}\n</tool_call>",
            "T(0:f:{\"a\": [1, 2]})",
        );
        check(
            "Wait.\n\n<tool_call>{\"name\":\"f\",\"arguments\":\"{}\"}</tool_call>\n <tool_call>{\"name\":\"g\"}</tool_call>\n",
            "C(Wait.)T(0:f:{})T(1:g:{})",
        );
        check("<tool_call>{\"name\":\"f\",\"parameters\":{}}", "T(0:f:{})");
        check("</think><think><tool_call>{\"name\":\"f\"}", "C(</think><think>)T(0:f:{})");
        check("<tool_call>{\"name\":\"f\",}", "C(<tool_call>{\"name\":\"f\",})");
        check("<tool_call>{\"name\":\"f\" \"x\":1}", "C(<tool_call>{\"name\":\"f\" \"x\":1})");
        check("<tool_call>{\"name\":\"f\"}}", "C(<tool_call>{\"name\":\"f\"}})");
        check("<tool_call>{\"arguments\":{}}", "C(<tool_call>{\"arguments\":{}})");
        check("<tool_call>{\"x\":1, \"name\" : \"f\" , \"arguments\" : { } }", "T(0:f:{ })");
        check("x<tool_call>{oops}</tool_call>\ny", "C(x<tool_call>{oops}</tool_call>\ny)");
        check("<tool_call>{\"name\": \"f", "C(<tool_call>{\"name\": \"f)");
        check(
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"t\":\"</tool_call>\"}}</tool_call>",
            "T(0:f:{\"t\":\"</tool_call>\"})",
        );
        check(
            "<tool_call>{\"name\":\"f</tool_call><tool_call>{\"name\":\"g\"}</tool_call>",
            "C(<tool_call>{\"name\":\"f</tool_call>)T(0:g:{})",
        );
    }

    #[test]
    fn a_thought_opened_by_the_prompt_is_a_thought() {
        assert_eq!(run(&["Hm.\n</think>\n\nYes"], true, false), "R(Hm.)C(Yes)");
        assert_eq!(run(&["\n<think>\nHm.</think>Yes"], true, false), "R(Hm.)C(Yes)");
        assert_eq!(run(&["<thinking>x"], true, false), "R(<thinking>x)");
    }

    #[test]
    fn without_tools_their_tags_are_text() {
        let text = "<tool_call>{\"name\":\"f\"}</tool_call>";
        assert_eq!(run(&[text], false, false), format!("C({text})"));
    }

    #[test]
    fn content_streams_at_once() {
        let mut parser = AnswerParser::new(false, true);
        assert_eq!(parser.push("Hello"), [AnswerDelta::Content("Hello".into())]);
        assert_eq!(parser.push(" <to"), []);
        assert_eq!(parser.push("p> x"), [AnswerDelta::Content(" <top> x".into())]);
    }

    #[test]
    fn ids_differ_by_salt_and_place() {
        let text = "<tool_call>{\"name\":\"f\"}</tool_call>".repeat(2);
        let ids = |salt: &str| -> Vec<String> {
            let deltas = AnswerParser::new(false, true).with_salt(salt).push(&text);
            let id = |delta| match delta {
                AnswerDelta::ToolCall { id, .. } => id,
                other => panic!("{other:?}"),
            };
            deltas.into_iter().map(id).collect()
        };
        let (a, b) = (ids("a"), ids("b"));
        assert_eq!(a.len(), 2);
        assert!(a[0] != a[1] && a[0] != b[0]);
    }

    fn fragment() -> impl Strategy<Value = String> {
        let fixed = prop::sample::select(vec![
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "{\"name\": \"f\", \"arguments\": {\"x\": 1}}",
            "{\"name\":\"g\"}",
            "{\"name\":",
            "\"",
            "\\",
            "\n",
            " ",
            "\n\n",
            "<",
            "hello",
            "é🦙",
            "<thin",
            "</",
        ]);
        prop_oneof![8 => fixed.prop_map(str::to_owned), 1 => "\\PC{0,4}"]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]
        #[test]
        fn any_cutting_gives_the_same(
            fragments in prop::collection::vec(fragment(), 0..14),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
            thinking: bool,
            tools: bool,
        ) {
            let text = fragments.concat();
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| places[cut.index(places.len())]).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            let chars: Vec<&str> = places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            let whole = run(&[&text], thinking, tools);
            prop_assert_eq!(&whole, &run(&pieces, thinking, tools), "{:?}", pieces);
            prop_assert_eq!(&whole, &run(&chars, thinking, tools), "{:?}", text);
        }

        #[test]
        fn plain_text_is_kept(text in "[a-z<>/ \n\"{}]{0,60}") {
            prop_assume!(!text.contains("<think>") && !text.contains("<tool_call>"));
            let expect = if text.is_empty() { String::new() } else { format!("C({text})") };
            prop_assert_eq!(run(&[&text], false, true), expect);
        }
    }
}
