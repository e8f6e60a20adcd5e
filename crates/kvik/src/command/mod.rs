//! The commands, one file each: it reads the flags, runs the command and prints the result.

mod backend;
mod bench;
mod cache;
mod chat;
mod cli;
mod client;
mod completions;
mod config;
mod cp;
mod default;
mod devices;
mod doctor;
mod eval;
pub(crate) mod example;
mod explain;
pub(crate) mod flags;
mod habits;
mod health;
mod images;
mod inspect;
mod lint;
mod list;
mod llama_flags;
mod output;
mod perplexity;
mod pid_file;
mod piped;
mod plan;
mod prompt;
mod ps;
mod pull;
mod remote;
mod replay;
mod rm;
mod run;
mod search;
pub(crate) mod serve;
pub(crate) mod serve_args;
pub(crate) mod shelf;
mod show;
mod stop;
mod talk;
mod tenant;
mod usage;
mod variables;

use std::{ffi::OsString, process::ExitCode};

use clap::{ArgMatches, CommandFactory, FromArgMatches};

pub(crate) use cli::{Cli, Task};
use serve_args::ServeArgs;

use kvik_serving::settings::{domain::DomainArgs, logging};

/// Runs the command named by the arguments of this process.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    output::end_when_closed();
    let (args, notes) = llama_flags::expand(std::env::args_os().collect::<Vec<OsString>>())?;
    notes.iter().for_each(|note| logging::say(&format!("note: {note}")));
    let command = config::configure(Cli::command(), &args)?;
    let matches = config::matches(&command, &args).or_else(habits::explain)?;
    stay_in_domain(&matches)?;
    let mut task = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).task;
    let own = matches.subcommand().map_or(&matches, |(_, matches)| matches);
    task.take_model(own)?;
    let sub = matches.subcommand_name().and_then(|name| command.find_subcommand(name)).unwrap_or(&command);
    let loading = backend::loading_flag(sub, own);
    match task {
        Task::Serve(serve) => run_server(*serve, args),
        Task::Chat(args) => {
            let failed = chat::run(&args, loading.as_deref());
            return failed.map(|failed| ExitCode::from(u8::from(failed)));
        }
        Task::Run(args) => run::run(&args, (own, loading.as_deref()), &command),
        Task::Search(args) => search::run(&args),
        Task::Pull(args) => pull::run(&args),
        Task::Default(args) => default::run(&args),
        Task::List(args) => list::run(&args),
        Task::Show(args) => show::run(&args),
        Task::Cp(args) => cp::run(&args),
        Task::Rm(args) => rm::run(&args),
        Task::Bench(args) => bench::run(&args, (own, loading.as_deref())),
        Task::Perplexity(args) => perplexity::run(&args),
        Task::Eval(args) => eval::run(&args),
        Task::Explain(args) => explain::run(&args),
        Task::Lint(args) => return lint::run(&args).map(|found| ExitCode::from(u8::from(found))),
        Task::Cache(args) => cache::run(&args),
        Task::Prompt(args) => prompt::run(&args),
        Task::Completions(args) => completions::run(&args, Cli::command()),
        Task::Man(args) => completions::run_man(&args, Cli::command()),
        Task::Health(args) => health::run(&args),
        Task::Stop(args) => stop::run(&args),
        Task::Devices(args) => devices::run(&args, own),
        Task::Doctor(asked) => {
            let config = config::file_of(&args);
            return doctor::run(*asked, config.as_deref(), args).map(|wrong| ExitCode::from(u8::from(wrong)));
        }
        Task::Ps(args) => ps::run(&args),
        Task::Inspect(args) => inspect::run(&args),
        Task::Plan(args) => plan::run(&args),
        Task::Replay(args) => replay::run(args),
        Task::Tenant(args) => tenant::run(&args),
        Task::Usage(args) => usage::run(&args, own),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Serves the models of a shelf, the one that is named, or the default one.
fn run_server(mut serve: ServeArgs, args: Vec<OsString>) -> anyhow::Result<()> {
    let shelf = shelf::models(&serve, args)?;
    if shelf.is_none() {
        serve.model.take_default();
    }
    serve::run(&serve, shelf)
}

/// Binds this process to the memory domain that its flags name. `kvik doctor` does so itself, and reports the outcome.
fn stay_in_domain(matches: &ArgMatches) -> anyhow::Result<()> {
    match matches.subcommand() {
        Some((command, flags)) if command != "doctor" => DomainArgs::of(flags).stay().map(drop),
        _ => Ok(()),
    }
}
