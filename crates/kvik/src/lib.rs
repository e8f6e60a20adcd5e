//! The commands of kvik: all that its binary does, as a library, so that fuzzing reaches the routes.
//!
//! Nothing else is meant to be used from outside.

mod access_args;
mod account_args;
mod bench;
mod cache_cmd;
mod chat;
mod cli;
mod config;
mod dirs;
mod disk;
mod example;
mod explain;
mod file_limit;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod http;
mod hub;
mod inspect;
mod ledger;
mod lint;
mod load;
mod logging;
mod memory;
mod model_args;
mod perplexity;
mod places;
mod plan;
mod prices;
mod prompt_cmd;
mod prompts;
mod random;
mod remote;
mod replay;
mod run;
mod serve;
mod serving;
mod size;
mod talk;
mod tenants;
mod upkeep;
mod usage;

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory, FromArgMatches};

use cli::{Cli, Task};

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    file_limit::make_it_an_error();
    match start() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> anyhow::Result<ExitCode> {
    let args: Vec<OsString> = std::env::args_os().collect();
    let matches = config::configure(Cli::command(), &args)?.get_matches_from(args);
    match Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).task {
        Task::Serve(args) => serve::run(&args),
        Task::Chat(args) => chat::run(&args),
        Task::Run(args) => run::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Perplexity(args) => perplexity::run(&args),
        Task::Explain(args) => explain::run(&args),
        Task::Lint(args) => return lint::run(&args).map(|found| ExitCode::from(u8::from(found))),
        Task::Cache(args) => cache_cmd::run(&args),
        Task::Prompt(args) => prompt_cmd::run(&args),
        Task::Inspect(args) => inspect::run(&args),
        Task::Plan(args) => plan::run(&args),
        Task::Replay(args) => replay::run(args),
        Task::Tenant(args) => tenants::command::run(&args),
        Task::Usage(args) => usage::run(&args, matches.subcommand().map_or(&matches, |(_, matches)| matches)),
    }?;
    Ok(ExitCode::SUCCESS)
}
