//! `kvik cache`: what a running server keeps.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;
use ureq::http::Method;

use crate::{
    remote::{ServerArgs, read_json},
    size::ByteSize,
};

/// See and change what a running server keeps
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik cache ls                     the largest prefixes
  kvik cache ls --by hits -n 50     the most used ones
  kvik cache show                   memory, disk, hit rate
  kvik cache pin agent.json         compute a prompt and keep it
  kvik cache evict agent.json       drop what is known of it, pinned or not
  kvik cache clear                  drop all that is not in use and not pinned")]
pub(crate) struct CacheCommandArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Lists prefixes
    Ls {
        /// Largest or most used first: blocks, hits
        #[arg(long, value_name = "ORDER", default_value = "blocks", value_parser = ["blocks", "hits"])]
        by: String,
        /// How many
        #[arg(short, long, value_name = "N", default_value_t = 20)]
        n: usize,
    },
    /// Shows memory, disk and hit rate
    Show,
    /// Computes a prompt and keeps it
    Pin {
        /// `messages` or `prompt`, as a request has them
        file: PathBuf,
    },
    /// Drops what is known of a prompt, in memory and on disk
    Evict {
        /// `messages` or `prompt`, as a request has them
        file: PathBuf,
    },
    /// Drops all that is neither in use nor pinned
    Clear,
}

/// Runs the command.
pub(crate) fn run(args: &CacheCommandArgs) -> anyhow::Result<()> {
    let server = &args.server;
    match &args.task {
        Task::Ls { by, n } => {
            let path = format!("/v1/cache?order={by}&limit={n}");
            list(&server.call(Method::GET, &path, None)?);
        }
        Task::Show => show(&server.call(Method::GET, "/v1/cache?limit=0", None)?),
        Task::Pin { file } => {
            let answer = server.call(Method::POST, "/v1/cache/pin", Some(&read_json(file)?))?;
            println!("{} tokens pinned, {} of them computed", answer["tokens"], answer["computed_tokens"]);
        }
        Task::Evict { file } => {
            let answer = server.call(Method::POST, "/v1/cache/evict", Some(&read_json(file)?))?;
            println!("{} blocks of {} tokens dropped", answer["blocks"], answer["tokens"]);
        }
        Task::Clear => {
            let answer = server.call(Method::DELETE, "/v1/cache", None)?;
            println!(
                "dropped {} blocks in memory and {} on disk",
                answer["blocks"]["ram"], answer["blocks"]["disk"]
            );
        }
    }
    Ok(())
}

fn list(answer: &Value) {
    let prefixes = answer["prefixes"].as_array().map_or(&[][..], Vec::as_slice);
    if prefixes.is_empty() {
        println!("nothing is kept");
        return;
    }
    println!("{:>8} {:>10} {:>6} {:>9}  {:<7} text", "tokens", "size", "hits", "idle", "");
    for prefix in prefixes {
        let size = ByteSize(prefix["bytes"].as_u64().unwrap_or_default()).to_string();
        let idle = prefix["idle_s"].as_f64().map_or_else(|| "in use".to_owned(), |s| format!("{s:.0} s"));
        let mark = if prefix["pinned"] == Value::Bool(true) { "pinned" } else { "" };
        let text: String = prefix["text"].as_str().unwrap_or_default().chars().take(60).collect();
        let text = text.replace(char::is_control, " ");
        println!("{:>8} {size:>10} {:>6} {idle:>9}  {mark:<7} {text}", prefix["tokens"], prefix["hits"]);
    }
}

fn show(answer: &Value) {
    let bytes = |value: &Value| ByteSize(value.as_u64().unwrap_or_default()).to_string();
    let (ram, disk) = (&answer["ram"], &answer["disk"]);
    if ram.is_null() {
        println!("this key sees its own prefixes only: kvik cache ls");
        return;
    }
    println!("memory  {} of {}, {} tokens", bytes(&ram["used_bytes"]), bytes(&ram["bytes"]), ram["tokens"]);
    println!("        {:.1}% of prompt tokens reused", 100.0 * ram["hit_rate"].as_f64().unwrap_or_default());
    match disk {
        Value::Null => println!("disk    off"),
        disk => {
            println!("disk    {} of {}", bytes(&disk["used_bytes"]), bytes(&disk["bytes"]));
            println!(
                "        {} blocks found at the start, {} written, {} read, {} faults",
                disk["found_at_start"], disk["written_blocks"], disk["read_blocks"], disk["faults"]
            );
        }
    }
}
