//! `kvik prompt`: the prompts that a running server computes ahead and keeps.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use ureq::http::Method;

use super::remote::{ServerArgs, escaped, read_json};

/// Keep a prompt cached: a system prompt, tools, examples
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik prompt add notify --system \"You sort notifications.\"   a system prompt
  kvik prompt add agent agent.json                            messages and tools, as in a chat request
  kvik prompt ls                                              the kept prompts, and how much of each is computed
  kvik prompt check agent agent.json                          whether the file equals the kept prompt
  kvik prompt rm agent

The server computes a kept prompt once, pins it in memory and on disk, and restores it after a restart
before the first request needs it. Adding it again changes nothing unless its tokens or the model have changed.")]
pub(crate) struct PromptArgs {
    #[command(flatten)]
    server: ServerArgs,
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
        /// Share it with tenants in the mode public-prompts; requires the admin's key
        #[arg(long)]
        public: bool,
    },
    /// Lists the kept prompts
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
    match &args.task {
        PromptTask::Add { name, content, public } => {
            let mut body = content.read()?.context("give the prompt to keep: a file, or --system TEXT")?;
            if *public {
                body["public"] = json!(true);
            }
            let kept = args.server.call(Method::PUT, &path(name), Some(&body))?;
            println!("{name}: {} tokens, {}", kept["tokens"], done(&kept));
        }
        PromptTask::Ls => list(&args.server.call(Method::GET, "/v1/prompts", None)?),
        PromptTask::Rm { name } => {
            args.server.call(Method::DELETE, &path(name), None)?;
            println!("{name}: removed");
        }
        PromptTask::Check { name, content } => check(&args.server, name, content.read()?)?,
    }
    Ok(())
}

fn path(name: &str) -> String {
    format!("/v1/prompts/{}", escaped(name))
}

fn done(kept: &Value) -> String {
    match kept["built"].as_bool() {
        Some(true) => format!("{} of them computed", kept["computed_tokens"]),
        _ => "unchanged and computed already".to_owned(),
    }
}

fn check(server: &ServerArgs, name: &str, body: Option<Value>) -> anyhow::Result<()> {
    let state = match body {
        Some(body) => server.call(Method::POST, &format!("{}/check", path(name)), Some(&body))?,
        None => server.call(Method::GET, &path(name), None)?,
    };
    println!("{name}: {}", words(&state));
    if state["cached"] != json!(true) || state["changed"] == json!(true) {
        std::process::exit(1);
    }
    Ok(())
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
    println!("{:<24} {:>8} {:>8} {:>8}  {:<9} sha256", "name", "tokens", "memory", "disk", "shared");
    for prompt in prompts {
        let text = |key: &str| prompt[key].as_str().unwrap_or_default().to_owned();
        let shared = if prompt["public"] == json!(true) { "public" } else { "-" };
        println!(
            "{:<24} {:>8} {:>8} {:>8}  {shared:<9} {:.12}",
            text("name"),
            prompt["tokens"],
            prompt["ram"],
            prompt["disk"],
            text("sha256"),
        );
    }
}
