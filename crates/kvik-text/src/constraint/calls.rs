//! The grammar of tool calls: free text, and calls in the form that the model was trained on.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::{Value, json};

use super::around::{Around, other_beginnings, thoughts};
use super::literals::{ControlTokens, Text, up_to};
use super::{checked_schema, json_rule, limits, notations};
use crate::forms::{ArgumentsForm, CallForm, CallStart, Calls, JsonText, ReasoningPlace};
use crate::references::move_references;
use crate::stream::Vocabulary;

/// Maximum calls in one answer, regardless of the request.
const CALLS_MAX: usize = 128;

/// The Lark grammar of an answer with these calls.
pub(super) fn lark(calls: &Calls, vocabulary: &Vocabulary) -> Result<String, String> {
    if calls.tools.is_empty() && !matches!(calls.start, CallStart::Forced { instead: Some(_), .. }) {
        return Err("there is no tool to call".to_owned());
    }
    let controls = ControlTokens::of(vocabulary);
    match &calls.start {
        CallStart::Forced { after, instead } => {
            let calling = (!calls.tools.is_empty()).then(|| section(calls, 0, &controls)).transpose()?;
            required(calls, after.as_deref(), calling, instead.as_deref(), &controls)
        }
        CallStart::Free { after, trigger, instead } => {
            let calling = free_section(calls, trigger, &controls);
            required(calls, after.as_deref(), Some(calling), Some(instead), &controls)
        }
        CallStart::Lazy { trigger } => {
            check_trigger(calls, trigger)?;
            // Without an opening for all calls, each call starts with the trigger again.
            let sections = if calls.opening.is_empty() { calls_max(calls) } else { 1 };
            let (around, skipped) = Around::trigger(trigger, sections, calls.reasoning.as_ref(), &controls)?;
            Ok([around.rules(), section(calls, skipped, &controls)?].concat())
        }
        CallStart::LazyAtStart => {
            let other = other_beginnings(&beginnings(calls)?, &controls);
            let around = Around::start(&other, calls.reasoning.as_ref(), &controls)?;
            Ok([around.rules(), section(calls, 0, &controls)?].concat())
        }
    }
}

/// The grammar of an answer that has to be calls, of these rules of `section`, or JSON, after reasoning.
fn required(
    calls: &Calls,
    after: Option<&str>,
    section: Option<String>,
    instead: Option<&JsonText>,
    controls: &ControlTokens,
) -> Result<String, String> {
    let (mut start, mut rules) = (String::new(), String::new());
    if let Some(after) = after {
        start.push_str("lead ");
        rules += &up_to("lead", &Text::free(), after, controls)?;
    }
    // Where a call has to be made, no reasoning delays it.
    let reasoning = calls.reasoning.as_ref().filter(|_| instead.is_some());
    if let Some(reasoning) = reasoning.filter(|reasoning| reasoning.place == ReasoningPlace::Anywhere) {
        start.push_str("thoughts ");
        rules += &thoughts(reasoning, controls)?;
    }
    let said = instead.map(|text| said(text, controls)).transpose()?;
    let ways = [("section", section), ("said", said)];
    let ways: Vec<_> = ways.into_iter().filter_map(|(name, rules)| Some((name, rules?))).collect();
    rules.extend(ways.iter().map(|(_, rules)| rules.as_str()));
    let names: Vec<&str> = ways.iter().map(|(name, _)| *name).collect();
    Ok(format!("start: {start}({})\n{rules}", names.join(" | ")))
}

/// The rules of `said`: a JSON text with the texts around it.
fn said(text: &JsonText, controls: &ControlTokens) -> Result<String, String> {
    let around = text.around.iter().map(|texts| texts.each_ref().map(|text| controls.lark(text)));
    let ways: Vec<String> = around.map(|[open, close]| format!("{open} json_text {close}")).collect();
    let json = json_rule(&checked_schema(&text.schema)?)?;
    Ok(format!("said: {}\njson_text: {json}\n", ways.join(" | ")))
}

/// The rules of `section` where only the beginning of a call is known.
fn free_section(calls: &Calls, trigger: &str, controls: &ControlTokens) -> String {
    let mut texts = vec![&*calls.opening, &*calls.separator, &*calls.closing];
    for CallForm { begin, arguments, end, .. } in &calls.tools {
        texts.extend([&**begin, &**end]);
        texts.extend(arguments.texts());
    }
    let tokens: BTreeSet<_> = texts.into_iter().flat_map(|text| controls.tokens_in(text)).collect();
    let mut parts = vec![Text::free().some];
    parts.extend(tokens.iter().map(|token| format!("<[{token}]>")));
    format!("section: {} free*\nfree: {}\n", controls.lark(trigger), parts.join(" | "))
}

/// The texts before the arguments of each tool.
fn beginnings(calls: &Calls) -> Result<Vec<String>, String> {
    let beginnings: Vec<String> =
        calls.tools.iter().map(|tool| [&*calls.opening, &*tool.begin].concat()).collect();
    if beginnings.iter().any(String::is_empty) {
        return Err("no text says that an answer is a call".to_owned());
    }
    Ok(beginnings)
}

fn check_trigger(calls: &Calls, trigger: &str) -> Result<(), String> {
    let begins = |tool: &CallForm| format!("{}{}", calls.opening, tool.begin).starts_with(trigger);
    if !trigger.is_empty() && calls.tools.iter().all(begins) {
        return Ok(());
    }
    Err(format!("the trigger {trigger:?} does not begin every call"))
}

fn calls_max(calls: &Calls) -> usize {
    calls.calls_max.clamp(1, CALLS_MAX)
}

/// The rules of `section`: calls with the texts around them, without the first `skipped` bytes.
fn section(calls: &Calls, skipped: usize, controls: &ControlTokens) -> Result<String, String> {
    let first = one_of(calls, &calls.opening, skipped, controls)?;
    let more = match (calls_max(calls) - 1, calls.opening.is_empty() && skipped > 0) {
        (0, _) | (_, true) => String::new(),
        (more, false) => {
            let next = one_of(calls, &calls.separator, 0, controls)?;
            format!(" next{{0,{more}}}\nnext: {next}")
        }
    };
    let (repeat, rule) = more.split_once('\n').unwrap_or((&more, ""));
    let closing = controls.lark(&calls.closing);
    Ok(format!(
        "section: first{repeat} {closing}\nfirst: {first}\n{rule}\n{}",
        argument_rules(calls, controls)?
    ))
}

/// A call of any tool after `before`, without its first `skipped` bytes.
fn one_of(calls: &Calls, before: &str, skipped: usize, controls: &ControlTokens) -> Result<String, String> {
    let mut options = Vec::new();
    for (index, (form, _)) in shapes(calls).iter().enumerate() {
        let head = format!("{before}{}", form.begin);
        let head = head.get(skipped..).ok_or("the trigger is longer than what begins a call")?;
        options.push(format!("{} arguments_{index} {}", controls.lark(head), controls.lark(&form.end)));
    }
    Ok(options.join(" | "))
}

fn argument_rules(calls: &Calls, controls: &ControlTokens) -> Result<String, String> {
    let mut rules = String::new();
    for (index, (form, schemas)) in shapes(calls).iter().enumerate() {
        let name = format!("arguments_{index}");
        match (&form.arguments, &schemas[..]) {
            // Writing to a string cannot fail.
            (ArgumentsForm::Json, _) => {
                let _ = writeln!(rules, "{name}: {}", json_rule(&checked_schema(&any_of(schemas))?)?);
            }
            (arguments, [schema, ..]) => {
                rules.push_str(&notations::rules(&name, arguments, schema, controls)?)
            }
            (_, []) => return Err("a call has no schema".to_owned()),
        }
        limits::check_generated(rules.len())?;
    }
    Ok(rules)
}

/// Groups the forms by the texts around their JSON: forms that differ in their schema alone can only be
/// distinguished by the JSON.
fn shapes(calls: &Calls) -> Vec<(&CallForm, Vec<&Value>)> {
    let mut shapes: Vec<(&CallForm, Vec<&Value>)> = Vec::new();
    for tool in &calls.tools {
        match shapes.iter_mut().find(|(form, _)| form.begin == tool.begin && form.end == tool.end) {
            Some((_, schemas)) => schemas.push(&tool.schema),
            None => shapes.push((tool, vec![&tool.schema])),
        }
    }
    shapes
}

fn any_of(schemas: &[&Value]) -> Value {
    if let [schema] = schemas {
        return (*schema).clone();
    }
    let moved = schemas.iter().enumerate().map(|(index, &schema)| {
        let mut schema = schema.clone();
        move_references(&mut schema, &format!("#/anyOf/{index}"));
        schema
    });
    json!({ "anyOf": moved.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use kvik_cache::Token;

    use super::super::tests::{CONTROL, accepted_tokens, accepts};
    use super::*;
    use crate::forms::{Constraint, ReasoningTexts};

    fn arguments() -> Value {
        json!({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
               "additionalProperties": false})
    }

    fn whole(name: &str) -> Value {
        json!({"type": "object", "properties": {"name": {"const": name}, "arguments": {"$ref": "#/$defs/a"}},
               "required": ["name", "arguments"], "additionalProperties": false, "$defs": {"a": arguments()}})
    }

    /// Calls as Hermes and Qwen write them.
    fn tagged(start: CallStart, calls_max: usize) -> Constraint {
        let form = |name| CallForm {
            begin: "<tool_call>\n".into(),
            arguments: ArgumentsForm::Json,
            schema: whole(name),
            end: "\n</tool_call>".into(),
        };
        Constraint::Calls(Calls {
            start,
            tools: vec![form("f"), form("g")],
            opening: String::new(),
            separator: "\n".into(),
            closing: String::new(),
            calls_max,
            reasoning: None,
        })
    }

    /// Calls as functions in a list.
    fn listed(start: CallStart) -> Constraint {
        let form = |name: &str| CallForm {
            begin: format!("{name}("),
            arguments: ArgumentsForm::Json,
            schema: arguments(),
            end: ")".into(),
        };
        Constraint::Calls(Calls {
            start,
            tools: vec![form("f"), form("g")],
            opening: "CALLS[".into(),
            separator: ", ".into(),
            closing: "]".into(),
            calls_max: 2,
            reasoning: None,
        })
    }

    const F: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
    const G: &str = "<tool_call>\n{\"name\":\"g\",\"arguments\":{\"x\":2}}\n</tool_call>";

    #[test]
    fn forced_calls_are_the_whole_answer() {
        let forced = || CallStart::Forced { after: None, instead: None };
        let cases = [
            (tagged(forced(), 2), F.to_owned(), true),
            (tagged(forced(), 2), format!("{F}\n{G}"), true),
            (tagged(forced(), 1), format!("{F}\n{G}"), false),
            (tagged(forced(), 2), "I think".into(), false),
            (tagged(forced(), 2), F.replace("\"f\"", "\"h\""), false),
            (tagged(forced(), 2), F.replace('1', "true"), false),
            (listed(forced()), "CALLS[f({\"x\":1})]".into(), true),
            (listed(forced()), "CALLS[f({\"x\":1}), g({\"x\": 2})]".into(), true),
            (listed(forced()), "CALLS[f({\"x\":1}), g({\"x\": 2}), f({\"x\":1})]".into(), false),
        ];
        for (constraint, text, expect) in cases {
            assert_eq!(accepts(&constraint, &text), expect, "{text:?}");
        }
    }

    #[test]
    fn reasoning_may_precede_a_forced_call() {
        let start = || CallStart::Forced { after: Some("</think>".into()), instead: None };
        assert!(accepts(&tagged(start(), 1), &format!("well, <f> or <g>?</think>{F}")));
        assert!(!accepts(&tagged(start(), 1), &format!("</think>then{F}")));
    }

    /// `{"city": ..}` between any of these texts.
    fn city_text(around: &[[&str; 2]]) -> Box<JsonText> {
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                            "additionalProperties": false});
        Box::new(JsonText { schema, around: around.iter().map(|texts| texts.map(str::to_owned)).collect() })
    }

    #[test]
    fn an_answer_is_calls_or_a_text_of_its_schema() {
        let start = |after: Option<&str>| CallStart::Forced {
            after: after.map(str::to_owned),
            instead: Some(city_text(&[["", ""]])),
        };
        let city = r#"{"city": "Oslo"}"#;
        for (text, expect) in [
            (F.to_owned(), true),
            (format!("{F}\n{G}"), true),
            (city.to_owned(), true),
            (r#"{"town": "Oslo"}"#.to_owned(), false),
            ("Oslo".to_owned(), false),
            (format!("{F}\n{city}"), false),
        ] {
            assert_eq!(accepts(&tagged(start(None), 2), &text), expect, "{text:?}");
            let thought = format!("F or Oslo?</think>{text}");
            assert_eq!(accepts(&tagged(start(Some("</think>")), 2), &thought), expect, "{thought:?}");
        }
        for (text, expect) in [(city, true), ("CALLS[f({\"x\":1})]", true), ("CALLS[]", false)] {
            assert_eq!(accepts(&listed(start(None)), text), expect, "{text:?}");
        }
        let Constraint::Calls(calls) = tagged(start(Some("</think>")), 1) else { panic!("they are calls") };
        let without_tools = Constraint::Calls(Calls { tools: Vec::new(), ..calls });
        for (text, expect) in [(city, true), (F, false), ("", false)] {
            let thought = format!("F or Oslo?</think>{text}");
            assert_eq!(accepts(&without_tools, &thought), expect, "{thought:?}");
        }
    }

    /// Of a form with parts that the model chooses only the first text is known.
    #[test]
    fn an_answer_is_a_free_call_or_a_text_of_its_schema() {
        let start = |after: Option<&str>| CallStart::Free {
            after: after.map(str::to_owned),
            trigger: "CALLS[".to_owned(),
            instead: city_text(&[["", ""], ["<r>", "</r>"]]),
        };
        for (text, expect) in [
            (r#"{"city": "Oslo"}"#, true),
            (r#"<r>{"city": "Oslo"}</r>"#, true),
            (r#"<r>{"city": "Oslo"}"#, false),
            (r#"{"city": 3}"#, false),
            (r#"CALLS[f#abc{"x": 1}]"#, true),
            ("CALLS[f#1{\"x\": 1}]\nCALLS[g#2{}]", true),
            (r#"f#abc{"x": 1}"#, false),
            ("Oslo", false),
            ("", false),
        ] {
            assert_eq!(accepts(&listed(start(None)), text), expect, "{text:?}");
            let thought = format!("F or Oslo?</think>{text}");
            assert_eq!(accepts(&listed(start(Some("</think>"))), &thought), expect, "{thought:?}");
        }
    }

    /// A free call has the control tokens of its form and no others, and a JSON text has none.
    #[test]
    fn a_free_call_has_the_control_tokens_of_its_form() {
        let free = |closing: &str, key: &str| {
            let instead = city_text(&[["", ""]]);
            let start = CallStart::Free { after: None, trigger: "CALLS[".to_owned(), instead };
            let Constraint::Calls(mut calls) = listed(start) else { panic!("they are calls") };
            let (key, value, end) = (key.to_owned(), "=".to_owned(), ";".to_owned());
            calls.tools[1].arguments = ArgumentsForm::Parameters { key, value, end };
            Constraint::Calls(Calls { closing: closing.to_owned(), ..calls })
        };
        let text = |text: &str| text.bytes().map(Token::from).collect::<Vec<_>>();
        let call = [text("CALLS["), vec![CONTROL], text("f#1{}"), vec![CONTROL], text("]")].concat();
        let marked = [vec![CONTROL], text("{\"city\": \"Oslo\"}")].concat();
        for (closing, key, expect) in [("]<|x|>", "", true), ("]", "<|x|>", true), ("]", "", false)] {
            assert_eq!(accepted_tokens(&free(closing, key), &call), expect, "{closing:?} {key:?}");
            assert!(!accepted_tokens(&free(closing, key), &marked), "{closing:?} {key:?}");
        }
    }

    /// Reasoning whose texts are in no other text may precede the JSON, however often, and no call that is required.
    #[test]
    fn a_model_may_reason_before_what_may_be_a_text_of_its_schema() {
        let with = |place: ReasoningPlace, instead: Option<Box<JsonText>>| {
            let Constraint::Calls(calls) = listed(CallStart::Forced { after: None, instead }) else {
                panic!("they are calls")
            };
            let (open, close) = ("<a>".to_owned(), "<e><s>model".to_owned());
            Constraint::Calls(Calls {
                reasoning: Some(ReasoningTexts { open, close, place, begun: false }),
                ..calls
            })
        };
        let (thought, call) = ("<a>Or CALLS[?<e><s>model", "CALLS[f({\"x\":1})]");
        let messages = || Some(city_text(&[["<f>", ""]]));
        for (text, expect) in [
            (format!("{thought}<f>{{\"city\": \"Oslo\"}}"), true),
            (format!("{thought}{{\"city\": \"Oslo\"}}"), false),
            (format!("{thought}{thought}{call}"), true),
            (call.to_owned(), true),
            (format!("<f>{call}"), false),
            (format!("Hm. {thought}{call}"), false),
            (thought.to_owned(), false),
        ] {
            let free = with(ReasoningPlace::Anywhere, messages());
            assert_eq!(accepts(&free, &text), expect, "{text:?}");
            let first = with(ReasoningPlace::First, messages());
            assert_eq!(accepts(&first, &text), expect && text == call, "{text:?}");
            assert_eq!(accepts(&with(ReasoningPlace::Anywhere, None), &text), text == call, "{text:?}");
        }
    }

    #[test]
    fn a_lazy_call_must_have_its_form_and_text_is_free() {
        let start = || CallStart::Lazy { trigger: "<tool_call>".into() };
        let cases = [
            (String::from("Just <b>text</b>."), true),
            (F.to_owned(), true),
            (format!("Wait.\n{F}\n{G}\nDone."), true),
            (F.replace("\"f\"", "\"h\""), false),
            ("text <tool_call> free".into(), false),
        ];
        for (text, expect) in cases {
            assert_eq!(accepts(&tagged(start(), 3), &text), expect, "{text:?}");
        }
        let listed = || listed(CallStart::Lazy { trigger: "CALLS".into() });
        assert!(accepts(&listed(), "so: CALLS[g({\"x\":1}), f({\"x\":2})]"));
        assert!(!accepts(&listed(), "so: CALLS g"));
    }

    /// The form is not enforced before the model has written all that precedes the arguments of a tool.
    #[test]
    fn a_call_at_the_start_counts_only_there_and_with_a_tools_name() {
        let schema = arguments();
        let form =
            CallForm { begin: String::new(), arguments: ArgumentsForm::Json, schema, end: String::new() };
        let calls = |tools: Vec<CallForm>| {
            Constraint::Calls(Calls {
                start: CallStart::LazyAtStart,
                tools,
                opening: String::new(),
                separator: String::new(),
                closing: String::new(),
                calls_max: 1,
                reasoning: None,
            })
        };
        assert!(crate::constraint::tests::compiler().compile(&calls(vec![form.clone()])).is_err());
        let named = |name: &str| CallForm {
            begin: format!("{{\"name\": \"{name}\", \"parameters\": "),
            end: "}".into(),
            ..form.clone()
        };
        let bare = calls(vec![named("f"), named("get")]);
        for (text, expect) in [
            (r#"{"name": "f", "parameters": {"x": 1}}"#, true),
            (r#"{"name": "get", "parameters": {"x":1}}"#, true),
            (r#"{"name": "f", "parameters": {"x": "y"}}"#, false),
            (r#"{"name": "f", "parameters": "#, false),
            (r#"{"name": "Ann", "age": 3}"#, true),
            (r#"{"name": "f", "age": 3}"#, true),
            (r#"{"name": "fun"}"#, true),
            (r#"{"name": "f""#, true),
            (r#"{"names": ["f"]}"#, true),
            (r#"{"city": "Oslo"}"#, true),
            (r#"See {"name": "f", "parameters": 1}"#, true),
        ] {
            assert_eq!(accepts(&bare, text), expect, "{text:?}");
        }
        let listed = listed(CallStart::LazyAtStart);
        for (text, expect) in [
            ("CALLS[f({\"x\":1})]", true),
            ("CALLS[f(", false),
            ("CALLS[h(1)]", true),
            ("CALL", true),
            ("a CALLS[f(", true),
        ] {
            assert_eq!(accepts(&listed, text), expect, "{text:?}");
        }
    }

    /// A tag of calls in reasoning is plain text, wherever the reasoning begins and however it ends.
    #[test]
    fn no_call_begins_in_reasoning() {
        let with = |place: ReasoningPlace, begun: bool, start: CallStart| {
            let Constraint::Calls(calls) = tagged(start, 2) else { panic!("they are calls") };
            let (open, close) = ("<think>".to_owned(), "</think>".to_owned());
            Constraint::Calls(Calls {
                reasoning: Some(ReasoningTexts { open, close, place, begun }),
                ..calls
            })
        };
        use ReasoningPlace::{Anywhere, First};
        let lazy = || CallStart::Lazy { trigger: "<tool_call>".into() };
        let thought = "Or <tool_call> f, or {\"name\": \"f\"}?";
        for (place, begun, text, expect) in [
            (First, false, format!("<think>{thought}</think>Well."), true),
            (First, false, format!("\n<think>{thought}</think>\n{F}"), true),
            (First, false, format!("<think>{thought}</think>\n{F}\n{G}"), true),
            (First, false, format!("<think>{thought}</think><tool_call> free"), false),
            (First, false, format!("<think>{thought}"), true),
            (First, false, format!("<think></think>\n<think>{thought}</think>{F}"), true),
            (First, false, "Say <think> and <tool_call> free".to_owned(), false),
            (First, false, F.to_owned(), true),
            (First, false, "<tool_call> free".to_owned(), false),
            (First, false, "Just <b>text</b>.".to_owned(), true),
            (First, true, format!("{thought}</think>{F}"), true),
            (First, true, format!("{thought}</think>Well: <tool_call> free"), false),
            (First, true, thought.to_owned(), true),
            (Anywhere, false, format!("Well.<think>{thought}</think>{F}<think>{thought}</think>Done."), true),
            (Anywhere, false, format!("Well.<think>{thought}"), true),
            (Anywhere, false, "Well.<tool_call> free".to_owned(), false),
            (Anywhere, true, format!("{thought}</think>Well.<think>{thought}</think>{F}{G}"), true),
        ] {
            assert_eq!(accepts(&with(place, begun, lazy()), &text), expect, "{place:?} {begun} {text:?}");
        }
        let named = |text: &str, begun: bool, expect: bool| {
            let constraint = with(First, begun, CallStart::LazyAtStart);
            assert_eq!(accepts(&constraint, text), expect, "{begun} {text:?}");
        };
        named(&format!("{thought}<tool_call>\n free"), true, true);
        named(&format!("{thought}</think>{F}"), true, true);
        named("</think><tool_call>\n{\"name\": 3}", true, false);
        named(&format!("<think>{thought}</think>{F}"), false, true);
        named("<think><tool_call>\n free", false, true);
    }

    #[test]
    fn a_control_token_is_required_as_a_token() {
        let form = CallForm {
            begin: "f(".into(),
            arguments: ArgumentsForm::Json,
            schema: arguments(),
            end: ")".into(),
        };
        let calls = |start| {
            Constraint::Calls(Calls {
                start,
                tools: vec![form.clone()],
                opening: "<|x|>".into(),
                separator: String::new(),
                closing: String::new(),
                calls_max: 1,
                reasoning: None,
            })
        };
        let text = |text: &str| text.bytes().map(Token::from).collect::<Vec<_>>();
        let call = [vec![CONTROL], text("f({\"x\":1})")].concat();
        for start in
            [CallStart::Forced { after: None, instead: None }, CallStart::Lazy { trigger: "<|x|>".into() }]
        {
            assert!(accepted_tokens(&calls(start.clone()), &call), "{start:?}");
            let bad = [vec![CONTROL], text("g(")].concat();
            assert!(!accepted_tokens(&calls(start.clone()), &bad), "{start:?}");
        }
        let lazy = calls(CallStart::Lazy { trigger: "<|x|>".into() });
        assert!(accepted_tokens(&lazy, &[text("well: <|x|> "), call].concat()));
        assert!(!accepts(&calls(CallStart::Forced { after: None, instead: None }), "<|x|>f({\"x\":1})"));
    }

    /// If the tags of reasoning are control tokens, free text contains none of them and reasoning does.
    #[test]
    fn reasoning_between_control_tokens_is_allowed() {
        let text = |text: &str| text.bytes().map(Token::from).collect::<Vec<_>>();
        for place in [ReasoningPlace::First, ReasoningPlace::Anywhere] {
            let Constraint::Calls(calls) = tagged(CallStart::Lazy { trigger: "<tool_call>".into() }, 1)
            else {
                panic!("they are calls")
            };
            let (open, close) = ("<|x|>".to_owned(), "</think>".to_owned());
            let reasoning = Some(ReasoningTexts { open, close, place, begun: false });
            let constraint = Constraint::Calls(Calls { reasoning, ..calls });
            let thought = [vec![CONTROL], text("Or <tool_call> f?</think>")].concat();
            assert!(accepted_tokens(&constraint, &[thought.clone(), text(F)].concat()), "{place:?}");
            assert!(accepted_tokens(&constraint, &thought), "{place:?}");
            assert!(!accepted_tokens(&constraint, &[thought, text("<tool_call>f")].concat()), "{place:?}");
            assert!(accepts(&constraint, F), "{place:?}");
        }
    }
}
