//! Incomplete markup of models, and its parse results for every division into pieces.

use serde_json::json;

use super::tests::{run_after, show};
use super::*;

/// The tools `f` and `g`, whose arguments state their types in various ways.
fn offer(form: ToolForm) -> Option<Arc<Offer>> {
    let schema = json!({"type": "object", "properties": {
        "t": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "n": {"$ref": "#/$defs/count"},
        "b": {"type": "boolean"},
    }, "$defs": {"count": {"type": "integer"}}});
    let tools = ["f", "g"].map(|name| (name.to_owned(), schema.clone())).to_vec();
    Some(Arc::new(Offer { form, tools, calls_max: usize::MAX, certain: false }))
}

/// Checks the parse result of a whole answer, of its single characters, and of its halves for every cut.
fn check_after(start: AnswerStart, form: &ToolForm, text: &str, expect: &str) {
    let read = |pieces: &[&str]| run_after(start, pieces, offer(form.clone()));
    assert_eq!(read(&[text]), expect, "{text:?}");
    for (cut, _) in text.char_indices() {
        let (left, right) = text.split_at(cut);
        assert_eq!(read(&[left, right]), expect, "{left:?} | {right:?}");
    }
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(read(&chars), expect, "{text:?} in characters");
}

fn check(form: &ToolForm, text: &str, expect: &str) {
    check_after(AnswerStart::usual(false), form, text, expect);
}

fn parameters(begin: &str, [key, value, end]: [&str; 3], close: &str) -> ToolForm {
    let arguments = ArgumentsForm::Parameters { key: key.into(), value: value.into(), end: end.into() };
    ToolForm { arguments, several: true, ..ToolForm::named(begin, "", close) }
}

fn coder() -> ToolForm {
    let tags = ["\n<parameter=", ">\n", "\n</parameter>"];
    parameters("<tool_call>\n<function=", tags, "\n</function>\n</tool_call>")
}

/// GLM 4.5 and 4.6 write a line for each tag, GLM 4.7 writes none.
fn glms() -> [ToolForm; 2] {
    let lines = ["\n<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"];
    let close = ["<arg_key>", "</arg_key><arg_value>", "</arg_value>"];
    [parameters("<tool_call>", lines, "\n</tool_call>"), parameters("<tool_call>", close, "</tool_call>")]
}

#[test]
fn a_call_of_a_tool_needs_not_all_of_its_tags() {
    let form = coder();
    let body = "<function=f>\n<parameter=t>\na\n</parameter>\n</function>";
    let call = "T(0:f:{\"t\":\"a\"})";
    check(&form, &format!("{body}\n</tool_call>"), call);
    check(&form, body, call);
    check(&form, &format!("I look.\n{body}\n</tool_call>\n"), &format!("C(I look.){call}"));
    check(&form, &format!("{body}\n</tool_call>Done."), &format!("{call}C(Done.)"));
    check(&form, &format!("{body}</tool_call>\n</tool_call>\n"), call);
    check(&form, &format!("{body}{}", body.replace("=f", "=g")), &format!("{call}T(1:g:{{\"t\":\"a\"}})"));
    check(&form, &format!("<tool_call>\n{body}\nDone."), &format!("{call}C(Done.)"));
    check(&form, &format!("<tool_call>\n{}</tool_call>", body.replace("</function>", "")), call);
    check(&form, "<function=f>\n<parameter=t>\na\n</function>\n</tool_call>", call);
    check(
        &form,
        "<function=f>\n<parameter=t>\na\n<parameter=b>\nTrue\n</parameter>\n</function>",
        "T(0:f:{\"t\":\"a\",\"b\":true})",
    );
    check(
        &form,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 3}}\n</tool_call>",
        "T(0:f:{\"n\": 3})",
    );
    // A call without the name of a tool is text, as is a call that was cut off.
    let other = body.replace("=f", "=h");
    check(&form, &other, &format!("C({other})"));
    let cut = "<function=f>\n<parameter=t>\nabc";
    check(&form, cut, &format!("C({cut})"));
    check(&form, "The tag <function= begins a call.", "C(The tag <function= begins a call.)");
    check(
        &form,
        "<function=f>\n<parameter=t>\na\n</function>\nb",
        "C(<function=f>\n<parameter=t>\na\n</function>\nb)",
    );
}

#[test]
fn a_section_of_calls_needs_not_its_opening() {
    let form = ToolForm {
        opening: "<｜tool▁calls▁begin｜>".into(),
        closing: "<｜tool▁calls▁end｜>".into(),
        several: true,
        ..ToolForm::named("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
    };
    let call = |name: &str| format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{{}}<｜tool▁call▁end｜>");
    let both = "T(0:f:{})T(1:g:{})";
    check(&form, &format!("{}{}<｜tool▁calls▁end｜>", call("f"), call("g")), both);
    check(&form, &format!("Hm.{}\n{}", call("f"), call("g")), &format!("C(Hm.){both}"));
    check(&form, &call("h"), &format!("C({})", call("h")));
    let unclosed = call("f").replace("<｜tool▁call▁end｜>", "");
    check(&form, &format!("<｜tool▁calls▁begin｜>{unclosed}{}<｜tool▁calls▁end｜>", call("g")), both);
    let markup = ToolForm {
        opening: "<｜DSML｜function_calls>\n".into(),
        closing: "</｜DSML｜function_calls>".into(),
        ..parameters(
            "<｜DSML｜invoke name=\"",
            ["\n<｜DSML｜parameter name=\"", "\" string=\"true\">", "</｜DSML｜parameter>"],
            "\n</｜DSML｜invoke>\n",
        )
    };
    check(
        &markup,
        "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "T(0:f:{\"n\":3})",
    );
}

#[test]
fn json_that_is_a_call_and_nothing_else_is_one() {
    let form = ToolForm::tagged();
    let json = "{\"name\": \"f\", \"arguments\": {\"t\": \"`x`\"}}";
    let call = "T(0:f:{\"t\": \"`x`\"})";
    let fenced = format!("```json\n{json}\n```");
    for form in [form.clone(), coder(), ToolForm::mentioned_in("[TOOL_CALLS]").unwrap()] {
        check(&form, &fenced, call);
        check(&form, &format!("I call it:\n\n{fenced}\n"), &format!("C(I call it:){call}"));
        check(&form, &format!("{fenced}\n\nWait."), &format!("{call}C(Wait.)"));
        check(&form, json, call);
    }
    check(&form, &format!("{json}\n</tool_call>"), call);
    check(
        &form,
        &format!("{fenced}\n{}", fenced.replace("\"f\"", "\"g\"")),
        &format!("{call}{}", call.replace("0:f", "1:g")),
    );
    check(
        &form,
        &format!("<tool_call>\n{json}\n<tool_call>\n{json}"),
        &format!("{call}{}", call.replace('0', "1")),
    );
    check(&form, &format!("```json\n{json}"), call);
    for text in [
        "```json\n{\"name\": \"Ann\", \"arguments\": {}}\n```",
        "```json\n{\"name\": \"f\"}\n```",
        "```json\n{\"name\": \"f\", \"arguments\": {}, \"why\": 1}\n```",
        "```json\n{\"name\": \"f\", \"arguments\": [1]}\n```",
        "```json\n{\"name\": \"f\", \"arguments\": {}}, 1\n```",
        "```json\n[1, 2]\n```",
        "```jsonc\n{\"name\": \"f\", \"arguments\": {}}\n```",
        "```rust\nlet a = `b`;\n```",
        "{\"name\": \"f\"}",
        "{\"name\": \"Ann\", \"arguments\": {}}",
        "So: {\"name\": \"f\", \"arguments\": {}}",
    ] {
        check(&form, text, &format!("C({text})"));
    }
}

/// No tag becomes part of a value, regardless of the white space between the tags.
#[test]
fn white_space_between_tags_says_nothing() {
    for form in glms() {
        for [name, key, value, pair] in
            [["", "", "", ""], ["\n", "\n", "", "\n"], [" ", " \n ", "\n", "\n\n"], ["\n\n", "\t", "", " "]]
        {
            let text = format!(
                "<tool_call>f{name}<arg_key>{value}n{value}</arg_key>{key}<arg_value>{value}3{value}</arg_value>{pair}\
                 <arg_key>b</arg_key>{key}<arg_value>true</arg_value>{pair}</tool_call>"
            );
            check(&form, &text, "T(0:f:{\"n\":3,\"b\":true})");
        }
        check(
            &form,
            "<tool_call>f\n<arg_key>t</arg_key>\n<arg_value>a </tool_call> b</arg_value>\n</tool_call>",
            "T(0:f:{\"t\":\"a </tool_call> b\"})",
        );
        let forgotten = "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>3\n<arg_key>t</arg_key>\n<arg_value>x</arg_value>\n</tool_call>";
        check(&form, forgotten, "T(0:f:{\"n\":3,\"t\":\"x\"})");
        let next = "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>3\n</tool_call>\n<tool_call>g\n<arg_key>n</arg_key>\n<arg_value>4</arg_value>\n</tool_call>";
        check(&form, next, "T(0:f:{\"n\":3})T(1:g:{\"n\":4})");
        let garbage = "<tool_call>f\n<arg_key>n</arg_key> 3 <arg_value>4</arg_value></tool_call>";
        check(&form, garbage, &format!("C({garbage})"));
    }
}

/// A tag of calls in reasoning is reasoning. A call that ends the answer is made, although its reasoning was
/// not closed.
#[test]
fn calls_in_reasoning_that_is_never_closed_are_made_where_the_answer_ends() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let form = ToolForm::tagged();
    let after = |text: &str, expect: &str| check_after(AnswerStart::usual(true), &form, text, expect);
    after(&format!("Hm.\n\n{call}"), "R(Hm.)T(0:f:{})");
    after(&format!("Hm.\n{call}\n{call}\n"), "R(Hm.)T(0:f:{})T(1:f:{})");
    after(&format!("{call}</think>Yes."), &format!("R({call})C(Yes.)"));
    after(
        &format!("Or {call}? No.\n{call}\n</think>{call}"),
        &format!("R(Or {call}? No.\n{call})T(0:f:{{}})"),
    );
    after(&format!("Or {call}? No."), &format!("R(Or {call}? No.)"));
    after(&format!("Or {call}? No.\n{call}"), &format!("R(Or {call}? No.)T(0:f:{{}})"));
    after("A <tool_call> is", "R(A <tool_call> is)");
    after("A <tool_call>{\"name\": \"f", "R(A <tool_call>{\"name\": \"f)");
    let other = call.replace("\"f\"", "\"h\"");
    after(&format!("Hm.\n{other}"), &format!("R(Hm.\n{other})"));
    check(&form, &format!("<think>Hm.\n{call}"), "R(Hm.)T(0:f:{})");
    check_after(
        AnswerStart::usual(true),
        &coder(),
        "Hm.\n<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
        "R(Hm.)T(0:f:{\"n\":3})",
    );
}

/// However few calls are allowed, reasoning that continues after a call contains no calls.
#[test]
fn reasoning_behind_the_last_call_that_is_allowed_is_reasoning() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let read = |text: &str| {
        let mut offer = offer(ToolForm::tagged()).unwrap();
        Arc::get_mut(&mut offer).unwrap().calls_max = 1;
        run_after(AnswerStart::usual(true), &[text], Some(offer))
    };
    assert_eq!(read(&format!("Or {call}? No.")), format!("R(Or {call}? No.)"));
    assert_eq!(read(&format!("Hm.\n{call}\n{call}")), "R(Hm.)T(0:f:{})");
}

/// While reasoning could still end with a call, only the possible call is held back.
#[test]
fn reasoning_streams_up_to_a_call() {
    let mut parser = AnswerParser::new(AnswerStart::usual(true), offer(ToolForm::tagged()), "");
    assert_eq!(show(&parser.push("Hm, so")), "R(Hm, so)");
    assert_eq!(show(&parser.push(" f? <tool")), "R( f?)");
    assert_eq!(show(&parser.push("_call>")), "");
    assert_eq!(show(&parser.push(" No")), "R( <tool_call> No)");
}
