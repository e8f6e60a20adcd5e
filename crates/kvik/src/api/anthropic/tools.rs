//! `tools` and `tool_choice` in Anthropic's form.

use kvik_engine::text::tools::{OfferedTool, ToolChoice, Tools};
use serde_json::Value;

use super::messages::cache_control;
use crate::{
    api::request::{place::Place, tools::offered as offered_tools},
    http::error::ApiError,
};

type Result<T> = std::result::Result<T, ApiError>;

/// Fields of a tool that say how it is offered, not what it is.
const KNOWN: [&str; 9] = [
    "type",
    "name",
    "description",
    "input_schema",
    "cache_control",
    "strict",
    "eager_input_streaming",
    "input_examples",
    "defer_loading",
];

/// The tools, and the lifetimes that their `cache_control` asks for.
pub(super) fn tools(
    tools: Option<&Value>,
    choice: Option<&Value>,
    times: &mut Vec<Option<&'static str>>,
) -> Result<Tools> {
    let mut offered = Vec::new();
    if let Some(tools) = tools {
        for tool in Place::new("tools", tools).items()? {
            times.extend(cache_control(&tool)?);
            offered.push(read(&tool)?);
        }
    }
    let (choice, several) = choice
        .map_or(Ok((ToolChoice::Auto, None)), |value| read_choice(&Place::new("tool_choice", value)))?;
    offered_tools(offered, choice, several)
}

fn read(tool: &Place<'_>) -> Result<OfferedTool> {
    if let Some(kind) = tool.get("type").filter(|kind| kind.value != "custom") {
        return Err(kind.error(
            "is a tool that Anthropic's servers run; kvik runs none: offer it as a tool of your own, with `input_schema`",
        ));
    }
    tool.only(&KNOWN)?;
    let schema = tool.need("input_schema")?;
    if !schema.value.is_object() {
        return Err(schema.wrong("a JSON schema (an object)"));
    }
    let description = tool.get("description").map(|text| text.text()).transpose()?;
    Ok(OfferedTool {
        name: tool.need_text("name")?.to_owned(),
        description: description.map(str::to_owned),
        parameters: schema.value.clone(),
    })
}

/// The choice, and whether an answer may have several calls, where it says so.
fn read_choice(choice: &Place<'_>) -> Result<(ToolChoice, Option<bool>)> {
    let kind = choice.need("type")?;
    let read = match kind.text()? {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" => ToolChoice::Any,
        "tool" => ToolChoice::Named(choice.need_text("name")?.to_owned()),
        _ => return Err(kind.error("must be `auto`, `any`, `tool` or `none`")),
    };
    let single = choice.get("disable_parallel_tool_use").map(|single| single.bool()).transpose()?;
    // Their answers have several calls unless that is disabled, also where one has to be made.
    Ok((read, Some(!single.unwrap_or(false))))
}
