//! Default variables of chat templates, for requests that do not set them.

use anyhow::{Context, bail};
use clap::Args;
use kvik_session::TemplateVariables;
use kvik_text::template::RESERVED;
use serde_json::{Map, Value};

/// The flags.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct TemplateArgs {
    /// Variables of the chat template where a request sets none, as a JSON object: {"enable_thinking": false} answers
    /// without thinking; may be repeated
    #[arg(long, value_name = "JSON")]
    chat_template_kwargs: Vec<String>,
}

impl TemplateArgs {
    /// The variables from the flags; the last value of a variable takes precedence.
    pub fn variables(&self) -> anyhow::Result<TemplateVariables> {
        let mut variables = TemplateVariables::default();
        for text in &self.chat_template_kwargs {
            add(&mut variables, text).with_context(|| format!("--chat-template-kwargs {text}"))?;
        }
        Ok(variables)
    }
}

fn add(variables: &mut TemplateVariables, text: &str) -> anyhow::Result<()> {
    let mut object: Map<String, Value> = serde_json::from_str(text).context("it is no JSON object")?;
    if let Some(on) = object.remove("enable_thinking") {
        variables.enable_thinking = Some(on.as_bool().context("`enable_thinking` must be true or false")?);
    }
    if let Some(name) = RESERVED.iter().find(|name| object.contains_key(**name)) {
        bail!("`{name}` comes from the request or the model's file");
    }
    variables.kwargs.extend(object);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(texts: &[&str]) -> anyhow::Result<TemplateVariables> {
        let chat_template_kwargs = texts.iter().map(|&text| text.to_owned()).collect();
        TemplateArgs { chat_template_kwargs }.variables()
    }

    #[test]
    fn variables_are_gathered_and_what_is_wrong_is_named() {
        let two =
            read(&[r#"{"a": 1, "enable_thinking": true}"#, r#"{"a": 2, "enable_thinking": false}"#]).unwrap();
        assert_eq!((two.enable_thinking, &two.kwargs["a"]), (Some(false), &Value::from(2)));
        assert_eq!(read(&[]).unwrap(), TemplateVariables::default());
        for (text, why) in [
            ("7", "no JSON object"),
            ("{", "no JSON object"),
            (r#"{"enable_thinking": "no"}"#, "true or false"),
            (r#"{"messages": []}"#, "`messages`"),
        ] {
            let error = format!("{:#}", read(&[text]).unwrap_err());
            assert!(error.contains(why) && error.contains("--chat-template-kwargs"), "{error}");
        }
    }
}
