//! Answers of models of each family, and their parse results for every division into pieces.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::tests::{offer, run_after};
use super::*;

/// A family: a text of its template that determines the form of its reasoning, and the form of its calls.
struct Family {
    template: &'static str,
    form: ToolForm,
}

impl Family {
    fn read(&self, prompt: &str, pieces: &[&str]) -> String {
        let start = AnswerStart::after(ReasoningForm::of_template(self.template), prompt);
        run_after(start, pieces, offer(self.form.clone()))
    }

    /// Checks the parse result of a whole answer, of its single characters, and of its halves for every cut.
    fn check(&self, prompt: &str, text: &str, expect: &str) {
        assert_eq!(self.read(prompt, &[text]), expect, "{text:?}");
        let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for &cut in &cuts {
            let (left, right) = text.split_at(cut);
            assert_eq!(self.read(prompt, &[left, right]), expect, "{left:?} | {right:?}");
        }
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
        assert_eq!(self.read(prompt, &chars), expect, "{text:?} in characters");
    }
}

fn mentioned(template: &'static str) -> Family {
    Family { template, form: ToolForm::mentioned_in(template).unwrap() }
}

fn channels() -> Family {
    Family { template: "<|channel|>analysis", form: ToolForm::channels() }
}

#[test]
fn gpt_oss() {
    let (family, begun) = (channels(), "<|start|>user<|message|>Hi<|end|><|start|>assistant");
    let check = |text: &str, expect: &str| family.check(begun, text, expect);
    check("<|channel|>final<|message|>Yes.", "C(Yes.)");
    check("<|channel|>commentary<|message|>I look.<|end|>", "C(I look.)");
    check(
        "<|channel|>analysis<|message|>Hm.\n<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        "R(Hm.\n)C(Yes.)",
    );
    check("<|channel|>analysis<|message|>Hm", "R(Hm)");
    check("<|channel|>anal", "");
    check("Yes.", "C(Yes.)");
    check(" <b>", "C( <b>)");
    let call = "{\"t\": \"<end>\"}<|call|>";
    for header in [
        "<|channel|>commentary to=functions.f <|constrain|>json",
        "<|channel|>commentary to=functions.f",
        " to=functions.f<|channel|>commentary <|constrain|>json",
        " to=functions.f<|channel|>analysis json",
        "<|channel|>commentary to=assistant<|channel|>analysis<|message|><|end|><|start|>assistant to=functions.f<|channel|>commentary",
    ] {
        check(&format!("{header}<|message|>{call}"), "T(0:f:{\"t\": \"<end>\"})");
    }
    check(
        "<|channel|>analysis<|message|>Two.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>\
         <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"t\":1}<|call|>\
         <|start|>assistant to=functions.g<|channel|>commentary json<|message|><|call|>",
        "R(Two.)C(I look.)T(0:f:{\"t\":1})T(1:g:{})",
    );
    // Invalid JSON is not lost, nor are messages to tools that were not offered.
    check("<|channel|>commentary to=functions.f<|message|>{\"t\": oops<|call|>", "C({\"t\": oops)");
    check("<|channel|>analysis to=python<|message|>print(1)", "C(print(1))");
    check(
        "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "R(Hm.)C(Yes.)",
    );
    // The answer continues the message that the prompt has begun.
    let inside = [begun, "<|channel|>final<|message|>Once"].concat();
    family.check(&inside, " upon<|return|>", "C( upon)");
    let inside = [begun, "<|channel|>analysis<|message|>Once"].concat();
    family.check(&inside, "?<|end|><|start|>assistant<|channel|>final<|message|>Yes", "R(?)C(Yes)");
    // Plain text of any length where a header is expected.
    let long = "<|channel|>".to_owned() + &"a".repeat(600);
    assert!(family.read(begun, &[&long]).ends_with("aaa)"));
}

#[test]
fn gemma() {
    let family = mentioned("<|channel>thought <|tool_call>call:");
    let check = |text: &str, expect: &str| family.check("<|turn>model\n", text, expect);
    check("Yes.", "C(Yes.)");
    check("<|channel>thought\nHm.\nSo.\n<channel|>Yes.", "R(Hm.\nSo.)C(Yes.)");
    check("<|channel>thought\n<channel|>Yes.<channel|>", "C(Yes.)");
    check("Well.<|channel>thought\nHm.<channel|>Yes.", "C(Well.)R(Hm.)C(Yes.)");
    check(
        "<|tool_call>call:f{t:<|\"|>a \"b\" }<|\"|>,n:-3.5}<tool_call|>",
        "T(0:f:{\"t\": \"a \\\"b\\\" }\", \"n\": -3.5})",
    );
    check(
        "I look.<|tool_call>call:f{}<tool_call|><|tool_call>call:g{l:[<|\"|>x<|\"|>,null],o:{a:true}}<tool_call|>",
        "C(I look.)T(0:f:{})T(1:g:{\"l\": [\"x\", null], \"o\": {\"a\": true}})",
    );
    check("<|tool_call>call:f{t:oops}<tool_call|>", "C(<|tool_call>call:f{t:oops}<tool_call|>)");
    check("<|tool_call>call:f{t:<|\"|>cut", "C(<|tool_call>call:f{t:<|\"|>cut)");
    check("<|tool_call>call:f{t:<|\"|><tool_call|><|\"|>}", "T(0:f:{\"t\": \"<tool_call|>\"})");
    let function = mentioned("<start_function_call>");
    function.check(
        "",
        "<start_function_call>call:f{t:<escape>x<escape>}<end_function_call>",
        "T(0:f:{\"t\": \"x\"})",
    );
}

#[test]
fn mistral() {
    let named = |middle: &str| Family {
        template: "[THINK]",
        form: ToolForm { middle: middle.into(), several: true, ..ToolForm::named("[TOOL_CALLS]", "", "") },
    };
    for (family, text) in [
        (named(""), "[TOOL_CALLS]f{\"t\": 1}[TOOL_CALLS]g{}"),
        (named("[ARGS]"), "[TOOL_CALLS]f[ARGS]{\"t\": 1}[TOOL_CALLS]g[ARGS]{}"),
        (
            named("[CALL_ID]123456789[ARGS]"),
            "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"t\": 1}[TOOL_CALLS]g[ARGS]{}",
        ),
    ] {
        family.check("", text, "T(0:f:{\"t\": 1})T(1:g:{})");
        let reasoned = format!("[THINK]Or [TOOL_CALLS]f[ARGS]{{}}?[/THINK]Well.{text}");
        family.check("", &reasoned, "R(Or [TOOL_CALLS]f[ARGS]{}?)C(Well.)T(0:f:{\"t\": 1})T(1:g:{})");
        family.check("", "[TOOL_CALLS]f[ARGS]{\"t\": ", "C([TOOL_CALLS]f[ARGS]{\"t\": )");
    }
    let listed = mentioned("[TOOL_CALLS]");
    listed.check(
        "",
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"t\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
        "T(0:f:{\"t\": 1})T(1:g:{})",
    );
    listed.check("", "[TOOL_CALLS][{\"name\": \"f\", oops}]", "C([TOOL_CALLS][{\"name\": \"f\", oops}])");
}

#[test]
fn llama() {
    let three = mentioned("<|python_tag|>");
    three.check("", "{\"name\": \"f\", \"parameters\": {\"t\": 1}}", "T(0:f:{\"t\": 1})");
    three.check("", "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "T(0:f:{})");
    three.check("", "<|python_tag|>print(1)", "C(<|python_tag|>print(1))");
    let four = mentioned("[func_name1(params_name1=params_value1)]");
    four.check("", "[f(t='a, b', n=[1, None]), g()]", "T(0:f:{\"t\": \"a, b\", \"n\": [1, null]})T(1:g:{})");
    four.check("", "<|python_start|>[f(t=True)]", "T(0:f:{\"t\": true})");
    four.check("", "[1, 2] is a list", "C([1, 2] is a list)");
    four.check("", "[h(t=1)]", "C([h(t=1)])");
    four.check("", "[f(1)]", "C([f(1)])");
}

#[test]
fn lfm_and_olmo() {
    let lfm = mentioned("List of tools: <|tool_list_start|>[");
    lfm.check(
        "",
        "<|tool_call_start|>[f(t=\"a)\"), g(n=1)]<|tool_call_end|>Done.",
        "T(0:f:{\"t\": \"a)\"})T(1:g:{\"n\": 1})C(Done.)",
    );
    lfm.check(
        "",
        "<think>Or <|tool_call_start|>[f()]?</think>I look.<|tool_call_start|>[f()]<|tool_call_end|>",
        "R(Or <|tool_call_start|>[f()]?)C(I look.)T(0:f:{})",
    );
    lfm.check(
        "",
        "<|tool_call_start|>[f(t=oops)]<|tool_call_end|>",
        "C(<|tool_call_start|>[f(t=oops)]<|tool_call_end|>)",
    );
    let olmo = mentioned("<function_calls>");
    olmo.check(
        "",
        "<function_calls>\nf(t=\"x\", n=null)\ng()\n</function_calls>",
        "T(0:f:{\"t\": \"x\", \"n\": null})T(1:g:{})",
    );
}

#[test]
fn granite_phi_and_nemotron() {
    let granite = mentioned("<response></response> <|tool_call|>");
    granite.check(
        "",
        "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"t\": 1}}, {\"name\": \"g\"}]",
        "T(0:f:{\"t\": 1})T(1:g:{})",
    );
    granite.check(
        "",
        "<think>Hm.</think>\n<response>Yes: <response>.</response>\n",
        "R(Hm.)C(Yes: <response>.)",
    );
    granite.check("", "An <response> tag.", "C(An <response> tag.)");
    let phi = mentioned("<|tool|>{{ tools }}<|/tool|>");
    phi.check(
        "",
        "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"t\": 1}}]<|/tool_call|>",
        "T(0:f:{\"t\": 1})",
    );
    let nemotron = Family {
        template: "",
        form: ToolForm {
            opening: "<TOOLCALL>[".into(),
            closing: "]</TOOLCALL>".into(),
            ..mentioned("[TOOL_CALLS]").form
        },
    };
    nemotron.check(
        "Assistant\n<think>\n",
        "Hm.</think>\n<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"t\": 1}}, {\"name\": \"g\", \"arguments\": {}}]</TOOLCALL>",
        "R(Hm.)T(0:f:{\"t\": 1})T(1:g:{})",
    );
}

#[test]
fn kimi() {
    let call = |name: &str, number: usize, arguments: &str| {
        format!(
            "<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        )
    };
    let calls = [call("f", 0, "{\"t\": 1}"), call("g", 1, "{}")].concat();
    mentioned("<|im_system|>tool_declare<|im_middle|>").check(
        "",
        &format!("I look.<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"),
        "C(I look.)T(0:f:{\"t\": 1})T(1:g:{})",
    );
}

#[test]
fn command_r() {
    let form = ToolForm {
        opening: "<|START_ACTION|>[\n    ".into(),
        separator: ",\n    ".into(),
        closing: "\n]<|END_ACTION|>".into(),
        several: true,
        loose: true,
        ..ToolForm::named("{\"tool_call_id\": \"0\", \"tool_name\": \"", "\", \"parameters\": ", "}")
    };
    let family = Family { template: "<|START_THINKING|>", form };
    family.check("", "<|START_RESPONSE|>Yes.<|END_RESPONSE|>", "C(Yes.)");
    family.check(
        "",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
        "R(Hm.)C(Yes.)",
    );
    family.check(
        "",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"t\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
        "R(Hm.)T(0:f:{\"t\": 1})T(1:g:{})",
    );
    family.check("<|START_THINKING|>", "Hm.<|END_THINKING|><|START_RESPONSE|>Yes.", "R(Hm.)C(Yes.)");
}

/// GLM, Qwen3-Coder, Nemotron 3, and the markup of DeepSeek V3.2: keys and values as text.
#[test]
fn parameters_as_text() {
    let parameters = |begin: &str, [key, value, end]: [&str; 3], close: &str| {
        let arguments = ArgumentsForm::Parameters { key: key.into(), value: value.into(), end: end.into() };
        Family {
            template: "",
            form: ToolForm { arguments, several: true, ..ToolForm::named(begin, "", close) },
        }
    };
    let glm = parameters(
        "<tool_call>",
        ["\n<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"],
        "\n</tool_call>",
    );
    glm.check(
        "",
        "<think>Hm.</think>\nI look.\n<tool_call>f\n<arg_key>t</arg_key>\n<arg_value>3</arg_value>\n<arg_key>n</arg_key>\n<arg_value>[3]</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
        "R(Hm.)C(I look.)T(0:f:{\"t\":\"3\",\"n\":[3]})T(1:g:{})",
    );
    let coder = parameters(
        "<tool_call>\n<function=",
        ["\n<parameter=", ">\n", "\n</parameter>"],
        "\n</function>\n</tool_call>",
    );
    coder.check(
        "",
        "<tool_call>\n<function=f>\n<parameter=t>\na\nb\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        "T(0:f:{\"t\":\"a\\nb\"})T(1:g:{})",
    );
    let markup = parameters(
        "<｜DSML｜invoke name=\"",
        ["\n<｜DSML｜parameter name=\"", "\" string=\"true\">", "</｜DSML｜parameter>"],
        "\n</｜DSML｜invoke>\n",
    );
    let form = ToolForm {
        opening: "<｜DSML｜function_calls>\n".into(),
        closing: "</｜DSML｜function_calls>".into(),
        ..markup.form
    };
    Family { form, ..markup }.check(
        "<think>",
        "Hm.</think><｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"t\" string=\"true\">x</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "R(Hm.)T(0:f:{\"t\":\"x\",\"n\":3})",
    );
}

#[test]
fn deepseek() {
    let form = |begin: &str, middle: &str, end: &str| ToolForm {
        opening: "<｜tool▁calls▁begin｜>".into(),
        closing: "<｜tool▁calls▁end｜>".into(),
        several: true,
        ..ToolForm::named(begin, middle, end)
    };
    let older =
        form("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>");
    let newer = form("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>");
    Family { template: "", form: older }.check(
        "<｜Assistant｜><think>\n",
        "Hm.</think>I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"t\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "R(Hm.)C(I look.)T(0:f:{\"t\": 1})T(1:g:{})",
    );
    Family { template: "", form: newer }.check(
        "<｜Assistant｜></think>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"t\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "T(0:f:{\"t\": 1})T(1:g:{})",
    );
}

/// Whatever a call's text is held back for, it is not searched from its beginning with every token.
#[test]
fn a_long_call_takes_hardly_longer_than_other_text() {
    let arguments = format!("{{\"t\": \"{}\"}}", "a".repeat(200 << 10));
    let tagged = Family { template: "", form: ToolForm::tagged() };
    for (family, prompt, begin, end) in [
        (channels(), "", "<|channel|>commentary to=functions.f<|message|>", "<|call|>"),
        (tagged, "<think>", "<tool_call>{\"name\": \"f\", \"arguments\": ", "}</tool_call>"),
    ] {
        let timed = |text: &str| -> (String, Duration) {
            let pieces: Vec<&str> = (0..text.len()).map(|at| &text[at..=at]).collect();
            let started = Instant::now();
            let read = family.read(prompt, &pieces);
            (read, started.elapsed())
        };
        let (other, usual) = timed(&arguments);
        assert!(!other.contains("T("), "without its tags it is no call");
        let (call, took) = timed(&[begin, &arguments, end].concat());
        assert_eq!(call, format!("T(0:f:{arguments})"));
        assert!(took < 20 * usual, "{begin}: {took:?}, of other text {usual:?}");
    }
}

/// Calls written into a conversation are parsed like calls of an answer.
#[test]
fn written_calls_are_read() {
    let arguments = serde_json::json!({"t": "it's \"x\"\n", "n": [1.5, null, true, {"k": "v"}]});
    for form in [
        ToolForm::tagged(),
        mentioned("<|tool_call>call:").form,
        mentioned("<|tool_call_start|>").form,
        mentioned("<function_calls>").form,
        mentioned("[func_name1(params_name1=").form,
        mentioned("<|/tool|>").form,
        mentioned("[TOOL_CALLS]").form,
    ] {
        let text = form.write(&[("f", arguments.clone()), ("g", serde_json::Value::String("{}".into()))]);
        let mut parser = AnswerParser::new(AnswerStart::usual(false), offer(form), "");
        let calls = [parser.push(&text), parser.finish()].concat();
        let read: Vec<(String, serde_json::Value)> = calls
            .into_iter()
            .map(|delta| match delta {
                AnswerDelta::ToolCall { name, arguments, .. } => {
                    (name, serde_json::from_str(&arguments).unwrap())
                }
                other => panic!("{text:?} gives {other:?}"),
            })
            .collect();
        assert_eq!(
            read,
            [("f".to_owned(), arguments.clone()), ("g".to_owned(), serde_json::json!({}))],
            "{text:?}"
        );
    }
}

const PARTS: [&str; 44] = [
    "<|channel|>",
    "analysis",
    "commentary",
    "final",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "assistant",
    " to=functions.f",
    "<|constrain|>",
    "json",
    "<|call|>",
    "<|return|>",
    "{\"t\": 1}",
    "{}",
    "<|channel>thought",
    "<channel|>",
    "\n",
    " ",
    "hello",
    "<|tool_call>",
    "call:f",
    "{t:<|\"|>x<|\"|>}",
    "<tool_call|>",
    "<|\"|>",
    "<|tool_call_start|>",
    "[",
    "f(t='x')",
    ", ",
    "g()",
    "]",
    "<|tool_call_end|>",
    "<think>",
    "</think>",
    "<response>",
    "</response>",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "é🦙",
    "<",
    "(",
    "{",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() })]
    #[test]
    fn the_result_does_not_depend_on_the_cuts_in_any_family(
        parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..14),
        cut in any::<prop::sample::Index>(),
        family in 0..6usize,
    ) {
        let family = match family {
            0 => channels(),
            1 => mentioned("<|channel>thought <|tool_call>call:"),
            2 => mentioned("<|tool_call_start|>"),
            3 => mentioned("[func_name1(params_name1="),
            4 => mentioned("<response></response> <|tool_call|>"),
            _ => Family { template: "<|START_THINKING|>", form: ToolForm::tagged() },
        };
        let text = parts.concat();
        let offsets: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let (left, right) = text.split_at(offsets[cut.index(offsets.len())]);
        let chars: Vec<&str> = offsets.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        let whole = family.read("", &[&text]);
        prop_assert_eq!(&whole, &family.read("", &[left, right]), "{:?}|{:?}", left, right);
        prop_assert_eq!(&whole, &family.read("", &chars), "{:?}", text);
    }
}
