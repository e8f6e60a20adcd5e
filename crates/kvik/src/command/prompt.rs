//! `kvik prompt`: manages the pinned prompts of a running server.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use kvik_cache::retain::{Keep, Retention};
use serde_json::{Value, json};
use ureq::http::Method;

use super::{
    output::print,
    remote::{ServedModelArgs, ServerArgs, escaped, read_json},
};
use kvik_serving::settings::retain::RetainChoice;

/// Keep a prompt cached: a system prompt, tools, examples
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik prompt add notify --system \"You sort notifications.\"   a system prompt
  kvik prompt add agent agent.json                            messages and tools, as in a chat request
  kvik prompt add manual manual.json --retain kvzip --keep 0.25   a quarter of it, for requests that ask for that
  kvik prompt ls                                              the kept prompts, and how much of each is computed
  kvik prompt check agent agent.json                          whether the file equals the kept prompt
  kvik prompt rm agent

The server computes a kept prompt once, pins it in memory and on disk, and restores it after a restart
before the first request needs it. Adding it again changes nothing unless its tokens or the model have changed.

With --retain a policy decides which of its tokens are kept, and the part is what is pinned and restored. A request
that begins with the prompt reads it where it says \"kvik\": {\"kept_prefix\": \"NAME\"}, at that share of the memory,
and its answer says what was dropped and what that was measured to lose; all others read the exact prompt, as if
there were no part. See docs/retention.md for the policies, `kvik eval` for what they lose on a model.")]
pub(crate) struct PromptArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    model: ServedModelArgs,
    #[command(subcommand)]
    task: PromptTask,
}

#[derive(Debug, Subcommand)]
enum PromptTask {
    /// Computes a prompt and keeps it
    Add {
        name: String,
        #[command(flatten)]
        content: Content,
        #[command(flatten)]
        retain: RetainedPart,
        /// Share it with tenants in the mode public-prompts; requires the admin's key
        #[arg(long)]
        public: bool,
    },
    /// Lists the kept prompts
    #[command(visible_alias = "list")]
    Ls,
    /// Removes a prompt
    Rm { name: String },
    /// Checks that a prompt is kept, computed, and equal to the given one; exit status 1 when not
    Check {
        name: String,
        #[command(flatten)]
        content: Content,
    },
}

#[derive(Debug, Args)]
struct Content {
    /// A JSON file with `messages` (and `tools`) or `prompt`, as in a request
    #[arg(value_name = "FILE.JSON", conflicts_with = "system")]
    file: Option<PathBuf>,
    /// The text of a system message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
}

#[derive(Debug, Args)]
struct RetainedPart {
    /// Keep a part of it, as a policy chooses: kvzip, kvzip:0.25,budget=all, or auto for the best measured one
    #[arg(long, value_name = "POLICY")]
    retain: Option<String>,
    /// How much of it: a share as 0.25, tokens as 512, or bytes as 64MiB
    #[arg(long, value_name = "AMOUNT", requires = "retain")]
    keep: Option<Keep>,
}

impl RetainedPart {
    /// The field `retain` of a body, if requested.
    fn text(&self) -> anyhow::Result<Option<String>> {
        let (Some(text), Some(keep)) = (&self.retain, self.keep) else { return Ok(self.retain.clone()) };
        let choice: RetainChoice = text.parse().with_context(|| format!("--retain {text}"))?;
        let RetainChoice::Chosen(retention) = choice else {
            bail!("--keep says how much a policy keeps, and --retain {text} names none; leave --keep out");
        };
        Ok(Some(Retention { keep, ..retention }.to_string()))
    }
}

impl Content {
    fn read(&self) -> anyhow::Result<Option<Value>> {
        if let Some(text) = &self.system {
            return Ok(Some(json!({"messages": [{"role": "system", "content": text}]})));
        }
        self.file.as_deref().map(read_json).transpose()
    }
}

/// Runs the command.
pub(crate) fn run(args: &PromptArgs) -> anyhow::Result<()> {
    let call = |method: Method, path: &str, body: Option<&Value>| {
        args.server.call(method, &args.model.path(path), body)
    };
    match &args.task {
        PromptTask::Add { name, content, retain, public } => {
            let mut body = content.read()?.context("give the prompt to keep: a file, or --system TEXT")?;
            if *public {
                body["public"] = json!(true);
            }
            if let Some(retain) = retain.text()? {
                body["retain"] = json!(retain);
            }
            let kept = call(Method::PUT, &path(name), Some(&body))?;
            println!("{name}: {} tokens, {}", kept["tokens"], done(&kept));
            if let Some(part) = part(&kept) {
                println!("{part}");
            }
        }
        PromptTask::Ls => list(&call(Method::GET, "/v1/prompts", None)?),
        PromptTask::Rm { name } => {
            call(Method::DELETE, &path(name), None)?;
            println!("{name}: removed");
        }
        PromptTask::Check { name, content } => {
            let state = match content.read()? {
                Some(body) => call(Method::POST, &format!("{}/check", path(name)), Some(&body))?,
                None => call(Method::GET, &path(name), None)?,
            };
            check(name, &state)?;
        }
    }
    Ok(())
}

fn path(name: &str) -> String {
    format!("/v1/prompts/{}", escaped(name))
}

/// Words for the work of keeping a prompt. An answer without usage is of a prompt that was kept before.
fn done(kept: &Value) -> String {
    match (&kept["usage"], kept["built"].as_bool()) {
        (Value::Null, _) => "kept already, and unchanged".to_owned(),
        (_, Some(true)) => format!("kept; {} of them computed", kept["computed_tokens"]),
        _ => "kept; all of them were in the cache".to_owned(),
    }
}

/// Prints how a prompt stands, and ends with status 1 if it is not kept as it is.
fn check(name: &str, state: &Value) -> anyhow::Result<()> {
    let lines = [Some(format!("{name}: {}", words(state))), part(state)];
    print(&lines.into_iter().flatten().collect::<Vec<String>>().join("\n"))?;
    if state["cached"] != json!(true) || state["changed"] == json!(true) {
        std::process::exit(1);
    }
    Ok(())
}

/// The retained part of a prompt, if some positions were dropped.
fn part(prompt: &Value) -> Option<String> {
    let retain = prompt.get("retain")?;
    let share = 100.0 * retain["share_kept"].as_f64().unwrap_or(1.0);
    let loss = match retain["loss"]["worst_percent"].as_f64() {
        Some(percent) => format!("measured to lose {percent:.1}% in {}", retain["loss"]["worst_task"]),
        None => "what it loses was not measured (kvik eval)".to_owned(),
    };
    let policy = retain["policy"].as_str().unwrap_or_default();
    let positions = format!(
        "{} of its positions kept, {} dropped",
        retain["positions_kept"], retain["positions_dropped"]
    );
    Some(format!("  {policy}: {share:.1}% kept; {positions}; {loss}"))
}

fn words(state: &Value) -> String {
    let cached = if state["cached"] == json!(true) { "computed" } else { "not computed" };
    let changed = match state["changed"].as_bool() {
        Some(true) => ", different from the kept prompt",
        Some(false) => ", equal to the kept prompt",
        None => "",
    };
    format!("{} tokens, {cached} (memory {}, disk {}){changed}", state["tokens"], state["ram"], state["disk"])
}

fn list(prompts: &Value) {
    let prompts = prompts["data"].as_array().map_or(&[][..], Vec::as_slice);
    if prompts.is_empty() {
        println!("no prompts are kept; `kvik prompt add NAME --system TEXT` keeps one");
        return;
    }
    println!(
        "{:<24} {:>8} {:>8} {:>8}  {:<9} {:<12}  kept",
        "name", "tokens", "memory", "disk", "shared", "sha256"
    );
    for prompt in prompts {
        let text = |key: &str| prompt[key].as_str().unwrap_or_default().to_owned();
        let shared = if prompt["public"] == json!(true) { "public" } else { "-" };
        println!(
            "{:<24} {:>8} {:>8} {:>8}  {shared:<9} {:.12}  {}",
            text("name"),
            prompt["tokens"],
            prompt["ram"],
            prompt["disk"],
            text("sha256"),
            kept(prompt),
        );
    }
}

/// The share of a listed prompt's positions that is retained, and the policy.
fn kept(prompt: &Value) -> String {
    let Some(retain) = prompt.get("retain") else { return "all".to_owned() };
    let share = 100.0 * retain["share_kept"].as_f64().unwrap_or(1.0);
    let loss = retain["loss"]["worst_percent"].as_f64();
    let loss = loss.map_or("loss not measured".to_owned(), |percent| format!("{percent:.1}% lost"));
    format!("{share:.1}% by {}, {loss}", retain["policy"].as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_that_was_cached_is_told_from_one_that_was_kept() {
        let check = |built: bool, usage: Value, expect: &str| {
            assert_eq!(done(&json!({"built": built, "computed_tokens": 7, "usage": usage})), expect);
        };
        check(true, json!({"total_tokens": 9}), "kept; 7 of them computed");
        check(false, json!({"total_tokens": 9}), "kept; all of them were in the cache");
        check(false, Value::Null, "kept already, and unchanged");
    }

    #[test]
    fn how_much_is_kept_is_a_part_of_the_policy() {
        let text = |retain: &str, keep: Option<&str>| {
            let keep = keep.map(|keep| keep.parse().unwrap());
            RetainedPart { retain: Some(retain.to_owned()), keep }.text()
        };
        let check = |retain: &str, keep, expect: &str| {
            assert_eq!(text(retain, keep).unwrap().as_deref(), Some(expect), "{retain}");
        };
        check("kvzip", Some("0.25"), "kvzip:0.25");
        check("keydiff:0.5,budget=all", Some("512"), "keydiff:512,budget=all");
        check("auto:5", None, "auto:5");
        assert_eq!(RetainedPart { retain: None, keep: None }.text().unwrap(), None);
        for wrong in ["auto", "none", "nonsense"] {
            let error = format!("{:#}", text(wrong, Some("0.25")).unwrap_err());
            assert!(error.contains("--retain") && error.contains(wrong), "{error}");
        }
    }
}
