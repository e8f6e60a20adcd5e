//! `kvik prompt`: manages the pinned prompts of a running server.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use kvik_cache::retain::{Keep, Retention};
use serde_json::{Value, json};
use ureq::http::{Method, StatusCode};

use super::{
    client::AskError,
    output::{count, print},
    remote::{ServedModelArgs, ServerArgs, escaped, read_json},
    status,
};
use kvik_serving::settings::retain::RetainChoice;

/// How the server's message begins about a prompt that it does not keep.
const NOT_KEPT: &str = "no prompt is kept";

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
    /// Checks that a prompt is kept, computed, and equal to the given one; exit status 1 when not, 2 when that could not be
    /// found out
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
pub(crate) fn run(args: &PromptArgs) -> anyhow::Result<ExitCode> {
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
            let state = content.read().and_then(|body| match body {
                Some(body) => call(Method::POST, &format!("{}/check", path(name)), Some(&body)),
                None => call(Method::GET, &path(name), None),
            });
            return status::of_answer(check(name, state));
        }
    }
    Ok(ExitCode::SUCCESS)
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

/// Prints how a prompt stands, and returns whether it is not kept as it is.
fn check(name: &str, state: anyhow::Result<Value>) -> anyhow::Result<bool> {
    let state = match state {
        Err(error) if is_not_kept(&error) => return print(&format!("{name}: {error}")).map(|()| true),
        state => state?,
    };
    let lines = [Some(format!("{name}: {}", words(&state))), part(&state)];
    print(&lines.into_iter().flatten().collect::<Vec<String>>().join("\n"))?;
    Ok(state["cached"] != json!(true) || state["changed"] == json!(true))
}

/// Whether the server answered that it keeps no prompt of this name. It has no model of a name with the same status.
fn is_not_kept(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<AskError>();
    matches!(refused, Some(AskError::Refused { status: StatusCode::NOT_FOUND, message }) if message.starts_with(NOT_KEPT))
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
    println!("{}", row(["name", "tokens", "memory", "disk", "shared", "sha256", "kept"]));
    prompts.iter().for_each(|prompt| println!("{}", row_of(prompt)));
}

fn row_of(prompt: &Value) -> String {
    let [name, sha256] = ["name", "sha256"].map(|field| prompt[field].as_str().unwrap_or_default());
    let [tokens, ram, disk] = ["tokens", "ram", "disk"].map(|field| count(&prompt[field]));
    let shared = if prompt["public"] == json!(true) { "public" } else { "-" };
    row([name, &tokens, &ram, &disk, shared, sha256, &kept(prompt)])
}

fn row([name, tokens, ram, disk, shared, sha256, kept]: [&str; 7]) -> String {
    format!("{name:<24} {tokens:>8} {ram:>8} {disk:>8}  {shared:<9} {sha256:<12.12}  {kept}")
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
    fn a_prompt_that_is_not_kept_is_an_answer_and_a_server_that_gives_none_is_not() {
        let refused =
            |status, message: &str| Err(AskError::Refused { status, message: message.to_owned() }.into());
        let kept = json!({"tokens": 9, "cached": true, "ram": 9, "disk": 0});
        let mut changed = kept.clone();
        changed["changed"] = json!(true);
        for (state, expect) in [
            (Ok(kept), Some(false)),
            (Ok(changed), Some(true)),
            (refused(StatusCode::NOT_FOUND, "no prompt is kept under the name `a`"), Some(true)),
            (refused(StatusCode::NOT_FOUND, "there is no model `b`"), None),
            (Err(AskError::NoneRuns.into()), None),
        ] {
            let told = format!("{state:?}");
            assert_eq!(check("a", state).ok(), expect, "{told}");
        }
    }

    #[test]
    fn cells_are_below_their_heads() {
        let prompt = json!({
            "name": "agent", "tokens": 1200, "ram": 1200, "disk": 0, "public": true, "sha256": "0123456789abcdef",
        });
        let heads = ["name", "tokens", "memory", "disk", "shared", "sha256", "kept"];
        assert_eq!(
            [row(heads), row_of(&prompt)],
            [
                "name                       tokens   memory     disk  shared    sha256        kept",
                "agent                        1200     1200        0  public    0123456789ab  all",
            ]
        );
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
