//! Forms of tool calls that are recognised by a text of the template; a new one is a row of [`KNOWN`].

use super::form::{ArgumentsForm, ToolForm};

type Form = fn() -> ToolForm;

/// Forms by a text that a template contains if its model was trained on them, the most specific first.
const KNOWN: [(&str, Form); 14] = [
    ("<|tool_call>call:", || dict("<|tool_call>call:", "<tool_call|>", "<|\"|>")),
    ("<start_function_call>", || dict("<start_function_call>call:", "<end_function_call>", "<escape>")),
    ("<|tool_call_start|>", || python("<|tool_call_start|>[", ", ", "]<|tool_call_end|>")),
    ("<|tool_list_start|>", || python("<|tool_call_start|>[", ", ", "]<|tool_call_end|>")),
    ("List of tools: [", || python("<|tool_call_start|>[", ", ", "]<|tool_call_end|>")),
    ("<function_calls>", || python("<function_calls>", "\n", "</function_calls>")),
    ("[func_name1(params_name1=", || python("[", ", ", "]")),
    ("<|im_system|>tool_declare<|im_middle|>", kimi),
    ("<|/tool|>", || objects("<|tool_call|>[", "]<|/tool_call|>", "arguments")),
    ("<tool_call>", ToolForm::tagged),
    ("[TOOL_CALLS]", || objects("[TOOL_CALLS][", "]", "arguments")),
    ("<|tool_call|>", || objects("<|tool_call|>[", "]", "arguments")),
    ("<|python_tag|>", || ToolForm { separator: "; ".into(), ..objects("", "", "parameters") }),
    ("<function=", || ToolForm { several: true, ..ToolForm::named("<function=", ">", "</function>") }),
];

impl ToolForm {
    /// The form of a template that mentions its tag without rendering calls.
    pub fn mentioned_in(source: &str) -> Option<ToolForm> {
        KNOWN.iter().find(|(text, _)| source.contains(text)).map(|(_, form)| form())
    }

    /// JSON objects in tags, as Hermes and Qwen write them. Models without a trained form are instructed to
    /// use this one too.
    pub fn tagged() -> ToolForm {
        ToolForm {
            separator: "\n".into(),
            several: true,
            ..ToolForm::named("<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>")
        }
    }

    /// Messages to functions, in OpenAI's harmony format. The token that ends one ends the answer.
    pub fn channels() -> ToolForm {
        ToolForm::named("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "")
    }
}

/// Kimi K2's calls: the identifier contains the name of the tool and the number of the call.
fn kimi() -> ToolForm {
    ToolForm {
        opening: "<|tool_calls_section_begin|>".into(),
        closing: "<|tool_calls_section_end|>".into(),
        several: true,
        loose: true,
        ..ToolForm::named(
            "<|tool_call_begin|>functions.",
            ":0<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        )
    }
}

/// JSON objects in a list.
fn objects(opening: &str, closing: &str, arguments: &str) -> ToolForm {
    ToolForm {
        opening: opening.into(),
        separator: ", ".into(),
        closing: closing.into(),
        several: true,
        ..ToolForm::named("{\"name\": \"", &format!("\", \"{arguments}\": "), "}")
    }
}

/// Calls of functions in Python's notation.
fn python(opening: &str, separator: &str, closing: &str) -> ToolForm {
    ToolForm {
        opening: opening.into(),
        separator: separator.into(),
        closing: closing.into(),
        arguments: ArgumentsForm::Python,
        several: true,
        ..ToolForm::empty()
    }
}

/// A name followed by an object in Gemma's notation.
fn dict(begin: &str, end: &str, quote: &str) -> ToolForm {
    let arguments = ArgumentsForm::Dict { quote: quote.into() };
    ToolForm { arguments, several: true, ..ToolForm::named(begin, "", end) }
}
