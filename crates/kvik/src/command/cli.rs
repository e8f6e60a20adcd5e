//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::{
    bench::BenchArgs, cache::CacheCommandArgs, chat::ChatArgs, explain::ExplainArgs, inspect::InspectArgs,
    lint::LintArgs, perplexity::PerplexityArgs, plan::PlanArgs, prompt::PromptArgs, replay::ReplayArgs,
    run::RunArgs, serve::ServeArgs, tenant::TenantArgs, usage::UsageArgs,
};

/// kvik: a local LLM server whose centre is the KV cache
///
/// A prompt that has been computed is never computed again while there is room to keep it:
/// not for the next request, the next user or the next conversation. Every answer says how many
/// tokens were reused.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  kvik serve                                   OpenAI's API on http://127.0.0.1:8080, with the model inside
  kvik serve -m model.gguf --context 8192      another model
  kvik serve -m hf:Qwen/Qwen3-0.6B-GGUF        downloaded once, then from disk
  kvik chat -m model.gguf                      talk in the terminal
  kvik run -m model.gguf \"Why is the sky blue?\"

Settings come from flags, then from the environment (--cache-ram is KVIK_CACHE_RAM), then from
config.toml (cache-ram = \"2GiB\") in the user's configuration directory or where --config says.
Without -m every command uses the tiny model inside the program."
)]
pub(crate) struct Cli {
    /// Configuration file (default: config.toml in the user's configuration directory)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) task: Task,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Serve OpenAI's API over HTTP
    Serve(Box<ServeArgs>),
    /// Talk with the model in the terminal
    Chat(ChatArgs),
    /// Answer one prompt on standard output
    Run(RunArgs),
    /// Measure the speed of prefill and decode
    Bench(BenchArgs),
    /// Measure how well the model foretells a text
    Perplexity(PerplexityArgs),
    /// Say what a request would find in the cache of a running server
    Explain(ExplainArgs),
    /// Find what in requests will defeat the cache
    Lint(LintArgs),
    /// See and change what a running server keeps
    Cache(CacheCommandArgs),
    /// Keep a prompt computed: a system prompt, tools, examples
    Prompt(PromptArgs),
    /// Show what is in a model file
    Inspect(InspectArgs),
    /// Show how much memory a model needs, and how many users fit
    Plan(PlanArgs),
    /// Measure how well a cache of a given size would have served a recorded trace
    Replay(ReplayArgs),
    /// Make keys for the tenants of a server
    Tenant(TenantArgs),
    /// Show what tenants have had, by day and model
    Usage(UsageArgs),
}
