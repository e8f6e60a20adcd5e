use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Deltas as text: `R(..)`, `C(..)`, `T0:name(arguments)`, with adjacent deltas of one kind joined.
pub(super) fn show(deltas: &[AnswerDelta]) -> String {
    let mut out: Vec<(char, String)> = Vec::new();
    for delta in deltas {
        let (kind, text) = match delta {
            AnswerDelta::Reasoning(text) => ('R', text.clone()),
            AnswerDelta::Content(text) => ('C', text.clone()),
            AnswerDelta::ToolCall { index, name, arguments, .. } => {
                ('T', format!("{index}:{name}:{arguments}"))
            }
            AnswerDelta::Arguments { text, .. } => {
                out.last_mut().unwrap().1.push_str(text);
                continue;
            }
        };
        match out.last_mut() {
            Some((last, joined)) if *last == kind && kind != 'T' => joined.push_str(&text),
            _ => out.push((kind, text)),
        }
    }
    out.into_iter().map(|(kind, text)| format!("{kind}({text})")).collect()
}

/// Offers the tools `f` and `g`, whose argument `t` is a string.
pub(super) fn offer(form: ToolForm) -> Option<Arc<Offer>> {
    let schema = json!({"type": "object", "properties": {"t": {"type": "string"}}});
    let tools = ["f", "g"].map(|name| (name.to_owned(), schema.clone())).to_vec();
    Some(Arc::new(Offer { form, tools, calls_max: usize::MAX, certain: false }))
}

fn run(pieces: &[&str], thinking: bool, tools: bool) -> String {
    run_with(pieces, thinking, if tools { offer(ToolForm::tagged()) } else { None })
}

fn run_with(pieces: &[&str], thinking: bool, offer: Option<Arc<Offer>>) -> String {
    run_after(AnswerStart::usual(thinking), pieces, offer)
}

/// The parsed deltas of an answer that arrives in these pieces.
pub(super) fn run_after(start: AnswerStart, pieces: &[&str], offer: Option<Arc<Offer>>) -> String {
    let mut parser = AnswerParser::new(start, offer, "");
    let mut deltas: Vec<_> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish());
    show(&deltas)
}

#[test]
fn answers_are_split_into_reasoning_content_and_calls() {
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
    check("x\n\n<tool_call>{oops}", "C(x\n\n<tool_call>{oops})");
    check(" \n<tool_call>{oops}", "C( \n<tool_call>{oops})");
    check("<think>Hm.</think>\n\n<tool_call>{oops}", "R(Hm.)C(<tool_call>{oops})");
    check("<think>Hm.</think>\n\n{\"x\": 1}", "R(Hm.)C({\"x\": 1})");
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
fn reasoning_opened_by_the_prompt_is_reasoning() {
    assert_eq!(run(&["Hm.\n</think>\n\nYes"], true, false), "R(Hm.)C(Yes)");
    assert_eq!(run(&["\n<think>\nHm.</think>Yes"], true, false), "R(Hm.)C(Yes)");
    assert_eq!(run(&["<thinking>x"], true, false), "R(<thinking>x)");
}

#[test]
fn without_tools_their_tags_are_content() {
    let text = "<tool_call>{\"name\":\"f\"}</tool_call>";
    assert_eq!(run(&[text], false, false), format!("C({text})"));
}

#[test]
fn content_streams_immediately() {
    let mut parser = AnswerParser::new(AnswerStart::usual(false), offer(ToolForm::tagged()), "");
    assert_eq!(parser.push("Hello"), [AnswerDelta::Content("Hello".into())]);
    assert_eq!(parser.push(" <to"), []);
    assert_eq!(parser.push("p> x"), [AnswerDelta::Content(" <top> x".into())]);
}

#[test]
fn call_ids_differ_by_salt_and_index() {
    let text = "<tool_call>{\"name\":\"f\"}</tool_call>".repeat(2);
    let ids = |salt: &str| -> Vec<String> {
        let deltas =
            AnswerParser::new(AnswerStart::usual(false), offer(ToolForm::tagged()), salt).push(&text);
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
    fn the_result_does_not_depend_on_the_cuts(
        fragments in prop::collection::vec(fragment(), 0..14),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        thinking: bool,
        tools: bool,
    ) {
        let text = fragments.concat();
        let offsets: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| offsets[cut.index(offsets.len())]).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        let chars: Vec<&str> = offsets.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
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

    #[test]
    fn what_begins_like_a_call_and_is_none_is_kept(
        parts in prop::collection::vec(prop::sample::select(&NO_CALLS[..]), 1..12),
    ) {
        let text = parts.concat();
        prop_assert_eq!(run(&[&text], false, true), format!("C({text})"));
    }
}

/// Parts of calls, of which no call can be made.
const NO_CALLS: [&str; 10] =
    ["<tool_call>", "</tool_call>", "```json", "```", "\n", " ", "hello", "{", "\"", "}"];

/// `[TOOL_CALLS][{"name": .., "arguments": ..}, ..]`
fn listed() -> ToolForm {
    ToolForm {
        opening: "[TOOL_CALLS][".into(),
        separator: ", ".into(),
        closing: "]".into(),
        end: "}".into(),
        begin: "{\"name\": \"".into(),
        ..ToolForm::tagged()
    }
}

fn bare() -> ToolForm {
    ToolForm { opening: String::new(), closing: String::new(), ..listed() }
}

fn functions() -> ToolForm {
    ToolForm {
        begin: "<function=".into(),
        middle: ">".into(),
        end: "</function>".into(),
        separator: String::new(),
        ..ToolForm::tagged()
    }
}

fn sections() -> ToolForm {
    ToolForm {
        opening: "<calls>".into(),
        begin: "<call>".into(),
        middle: "<sep>".into(),
        end: "</call>".into(),
        closing: "</calls>".into(),
        ..ToolForm::tagged()
    }
}

fn parameters() -> ToolForm {
    let arguments = ArgumentsForm::Parameters {
        key: "\n<parameter=".into(),
        value: ">\n".into(),
        end: "\n</parameter>".into(),
    };
    ToolForm {
        begin: "<tool_call>\n<function=".into(),
        middle: String::new(),
        end: "\n</function>\n</tool_call>".into(),
        arguments,
        ..ToolForm::tagged()
    }
}

#[test]
fn calls_are_read_in_the_form_of_the_model() {
    let check = |form: fn() -> ToolForm, text: &str, expect: &str| {
        assert_eq!(run_with(&[text], false, offer(form())), expect, "{text:?}");
    };
    // Mistral's list, with and without white space, brackets and identifiers.
    check(listed, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "T(0:f:{\"a\": 1})");
    check(
        listed,
        "Wait.[TOOL_CALLS] [{\"name\":\"f\"}, {\"name\":\"g\",\"id\":\"x\"}]",
        "C(Wait.)T(0:f:{})T(1:g:{})",
    );
    check(listed, "[TOOL_CALLS]{\"name\":\"f\"}", "T(0:f:{})");
    check(listed, "[TOOL_CALLS][{\"name\":\"f\"}] done", "T(0:f:{})C( done)");
    check(listed, "[TOOL_CALLS] are great", "C([TOOL_CALLS] are great)");
    check(listed, "[TOOL_CALLS][{\"name\":\"f\"", "C([TOOL_CALLS][{\"name\":\"f\")");
    check(listed, "[TOOL_CALLS][{\"name\":\"f\"}, {oops}]", "T(0:f:{})C(, {oops}])");
    // Llama's bare JSON: only at the start, and only with the name of a tool.
    check(bare, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "T(0:f:{\"a\": 1})");
    check(bare, "\n<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "T(0:f:{})");
    check(bare, "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "T(0:f:{})");
    check(bare, "{\"name\":\"f\"}; {\"name\":\"g\"}\n", "T(0:f:{})T(1:g:{})");
    check(bare, "{\"name\": \"Ann\", \"age\": 3}", "C({\"name\": \"Ann\", \"age\": 3})");
    check(bare, " {\"answer\": 3}", "C( {\"answer\": 3})");
    check(bare, "So: {\"name\":\"f\"}", "C(So: {\"name\":\"f\"})");
    check(bare, "<think>Hm.</think>\n{\"name\":\"f\"}", "R(Hm.)T(0:f:{})");
    // Functions with JSON.
    check(functions, "<function=f>{\"a\": \"</function>\"}</function>", "T(0:f:{\"a\": \"</function>\"})");
    check(
        functions,
        "Hm <function=f>{}</function><function=g>{\"x\":2}</function>",
        "C(Hm )T(0:f:{})T(1:g:{\"x\":2})",
    );
    check(functions, "<function=f>nothing", "C(<function=f>nothing)");
    check(functions, "a <function= b", "C(a <function= b)");
    // Sections of calls, as DeepSeek writes them.
    check(
        sections,
        "<calls><call>f<sep>{\"a\":1}</call>\n<call>g<sep>{}</call></calls>",
        "T(0:f:{\"a\":1})T(1:g:{})",
    );
    check(sections, "<calls><call>f<sep>{}</call></calls>after", "T(0:f:{})C(after)");
    // Parameters, whose types come from the schema.
    check(
        parameters,
        "<tool_call>\n<function=f>\n<parameter=t>\n3\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
        "T(0:f:{\"t\":\"3\",\"n\":3})",
    );
    check(parameters, "<tool_call>\n<function=g>\n</function>\n</tool_call>", "T(0:g:{})");
    check(
        parameters,
        "<tool_call><function=f><parameter=t>\na\n</function>\nb\n</parameter>\n</function></tool_call>",
        "T(0:f:{\"t\":\"a\\n</function>\\nb\"})",
    );
}

#[test]
fn no_more_calls_are_read_than_the_maximum() {
    let one = |form: ToolForm, text: &str| {
        let mut offer = offer(form).unwrap();
        Arc::get_mut(&mut offer).unwrap().calls_max = 1;
        run_with(&[text], false, Some(offer))
    };
    let tagged = "<tool_call>{\"name\":\"f\"}</tool_call>";
    assert_eq!(one(ToolForm::tagged(), &format!("Hm.{tagged}\n{tagged} x")), "C(Hm.)T(0:f:{})");
    assert_eq!(one(listed(), "[TOOL_CALLS][{\"name\":\"f\"}, {\"name\":\"g\"}]"), "T(0:f:{})");
}

#[test]
fn text_before_a_call_streams() {
    let mut parser = AnswerParser::new(AnswerStart::usual(false), offer(listed()), "");
    assert_eq!(parser.push("I look"), [AnswerDelta::Content("I look".into())]);
    assert_eq!(parser.push(". [TOOL_"), [AnswerDelta::Content(".".into())]);
    let mut parser = AnswerParser::new(AnswerStart::usual(false), offer(bare()), "");
    assert_eq!(parser.push("{\"na"), []);
    assert_eq!(parser.push("ture\":"), [AnswerDelta::Content("{\"nature\":".into())]);
}

fn part_of_a_call() -> impl Strategy<Value = String> {
    prop::sample::select(&PARTS[..]).prop_map(str::to_owned)
}

const PARTS: [&str; 34] = [
    "[TOOL_CALLS]",
    "[",
    "]",
    ", ",
    ";",
    "{\"name\": \"f\", \"arguments\": {\"t\": 1}}",
    "{\"name\":\"g\"}",
    "{\"a\":",
    "<function=f>",
    "<function=",
    "{}",
    "</function>",
    "<calls>",
    "</calls>",
    "<call>",
    "f",
    "<sep>",
    "</call>",
    "<tool_call>",
    "</tool_call>",
    "<parameter=t>",
    "</parameter>",
    "\n",
    " ",
    "hello",
    "\"",
    "}",
    "<think>",
    "</think>",
    "<|python_tag|>",
    "<",
    "\\",
    "é🦙",
    "{",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() })]
    #[test]
    fn the_result_does_not_depend_on_the_cuts_in_any_form(
        parts in prop::collection::vec(part_of_a_call(), 0..16),
        cut in any::<prop::sample::Index>(),
        form in 0..6usize,
    ) {
        let forms = [ToolForm::tagged, listed, bare, functions, sections, parameters];
        let text = parts.concat();
        let offsets: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let (left, right) = text.split_at(offsets[cut.index(offsets.len())]);
        let chars: Vec<&str> = offsets.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        let whole = run_with(&[&text], false, offer(forms[form]()));
        prop_assert_eq!(&whole, &run_with(&[left, right], false, offer(forms[form]())), "{:?}|{:?}", left, right);
        prop_assert_eq!(&whole, &run_with(&chars, false, offer(forms[form]())), "{:?}", text);
    }
}

/// Constrained answers: prose, then calls exactly in the form.
fn constrained(form: &ToolForm, prose: &str, calls: &[(bool, String)]) -> String {
    let calls = calls.iter().map(|(g, text)| {
        let arguments = json!({"t": text, "n": [1, {"x": "}"}]});
        let name = if *g { "g" } else { "f" };
        [&form.begin, name, &form.middle, &arguments.to_string(), &form.end].concat()
    });
    let calls: Vec<String> = calls.collect();
    let prose = if form.marker().is_empty() { "" } else { prose };
    if calls.is_empty() {
        return prose.to_owned();
    }
    [prose, &form.opening, &calls.join(&form.separator), &form.closing].concat()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]
    #[test]
    fn certain_calls_say_the_same_while_their_arguments_stream(
        prose in "[a-z. ]{0,8}",
        calls in prop::collection::vec((any::<bool>(), "[a-z\"\\\\{}<>é ]{0,12}"), 0..3),
        cut in any::<prop::sample::Index>(),
        form in 0..5usize,
    ) {
        let form = [ToolForm::tagged, listed, bare, functions, sections][form]();
        let certain = || {
            let mut offer = offer(form.clone()).unwrap();
            Arc::get_mut(&mut offer).unwrap().certain = true;
            Some(offer)
        };
        let text = constrained(&form, &prose, &calls);
        prop_assert_eq!(run_with(&[&text], false, certain()), run_with(&[&text], false, offer(form.clone())));
        let offsets: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let cut = &text[..offsets[cut.index(offsets.len())]];
        let chars: Vec<String> = cut.chars().map(String::from).collect();
        let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
        let streamed = run_with(&chars, false, certain());
        prop_assert_eq!(&run_with(&[cut], false, certain()), &streamed, "{:?}", cut);
    }
}

#[test]
fn arguments_of_a_certain_call_stream_as_they_come() {
    let mut offer = offer(ToolForm::tagged()).unwrap();
    Arc::get_mut(&mut offer).unwrap().certain = true;
    let mut parser = AnswerParser::new(AnswerStart::usual(false), Some(offer), "");
    assert_eq!(parser.push("<tool_call>\n{\"name\": \"f\", \"arguments\": "), []);
    let begun = parser.push("{\"t\"");
    assert!(
        matches!(&begun[..], [AnswerDelta::ToolCall { index: 0, name, arguments, .. }] if name == "f" && arguments == "{\"t\""),
        "{begun:?}"
    );
    assert_eq!(parser.push(": \"x"), [AnswerDelta::Arguments { index: 0, text: ": \"x".into() }]);
    assert_eq!(parser.push("\"}}\n</tool"), [AnswerDelta::Arguments { index: 0, text: "\"}".into() }]);
    assert_eq!((parser.push("_call>"), parser.finish()), (vec![], vec![]));
}

/// A constraint that was to hold calls to their form and could not be compiled leaves text that begins like one.
#[test]
fn an_unconstrained_answer_loses_no_text() {
    let text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"t\": 'a'}}\n</tool_call>\nSorry, I cannot.";
    let certain = || {
        let mut offer = offer(ToolForm::tagged()).unwrap();
        Arc::get_mut(&mut offer).unwrap().certain = true;
        offer
    };
    let mut parser = AnswerParser::new(AnswerStart::usual(false), Some(certain()), "");
    parser.unconstrain();
    let mut deltas: Vec<_> = text.chars().flat_map(|c| parser.push(c.encode_utf8(&mut [0; 4]))).collect();
    deltas.extend(parser.finish());
    assert_eq!(show(&deltas), format!("C({text})"));
    assert_eq!(run_with(&[text], false, Some(certain())), format!("C({text})"), "a whole text is known");
}
