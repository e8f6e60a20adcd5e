//! `tools` and `tool_choice` in the form of Responses.

use kvik_engine::text::tools::{OfferedTool, ToolChoice, Tools};
use serde_json::{Value, json};

use crate::{
    api::request::{place::Place, tools::offered as offered_tools},
    http::error::ApiError,
};

type Result<T> = std::result::Result<T, ApiError>;

/// The tools that are offered, and which are called.
pub(super) fn tools(tools: Option<&Value>, choice: Option<&Value>, several: Option<bool>) -> Result<Tools> {
    let mut offered = Vec::new();
    if let Some(tools) = tools {
        for tool in Place::new("tools", tools).items()? {
            offered.push(read(&tool)?);
        }
    }
    let choice =
        choice.map_or(Ok(ToolChoice::Auto), |value| read_choice(&Place::new("tool_choice", value)))?;
    offered_tools(offered, choice, several)
}

fn read(tool: &Place<'_>) -> Result<OfferedTool> {
    let kind = tool.need("type")?;
    if kind.text()? != "function" {
        let text = format!("is {}, which kvik does not run; offer a tool of type `function`", kind.value);
        return Err(kind.error(&text));
    }
    let parameters = tool.get("parameters");
    if let Some(parameters) = parameters.as_ref().filter(|parameters| !parameters.value.is_object()) {
        return Err(parameters.wrong("a JSON schema (an object)"));
    }
    let description = tool.get("description").map(|text| text.text()).transpose()?;
    Ok(OfferedTool {
        name: tool.need_text("name")?.to_owned(),
        description: description.map(str::to_owned),
        parameters: parameters.map_or_else(|| json!({"type": "object"}), |schema| schema.value.clone()),
    })
}

fn read_choice(choice: &Place<'_>) -> Result<ToolChoice> {
    if let Some(word) = choice.value.as_str() {
        return match word {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" => Ok(ToolChoice::Any),
            _ => Err(choice.error("must be `none`, `auto`, `required`, a function or allowed tools")),
        };
    }
    let kind = choice.need("type")?;
    match kind.text()? {
        "function" => Ok(ToolChoice::Named(choice.need_text("name")?.to_owned())),
        "allowed_tools" => {
            let mode = choice.need("mode")?;
            let required = match mode.text()? {
                "auto" => false,
                "required" => true,
                _ => return Err(mode.error("must be `auto` or `required`")),
            };
            let names = choice.need("tools")?.items()?.map(|tool| Ok(tool.need_text("name")?.to_owned()));
            Ok(ToolChoice::Allowed { names: names.collect::<Result<_>>()?, required })
        }
        _ => Err(kind.error("must be `function` or `allowed_tools`")),
    }
}
