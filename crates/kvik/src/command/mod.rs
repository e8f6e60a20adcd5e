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
pub(crate) mod status;
mod stop;
mod talk;
mod tenant;
mod usage;
mod variables;

use std::{ffi::OsString, process::ExitCode};

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};

pub(crate) use cli::{Cli, Task};
use serve_args::ServeArgs;

use kvik_serving::settings::{
    domain::DomainArgs,
    logging::{self, LogFormat},
};

/// A command line that was understood, with the settings that hold for it.
struct CommandLine {
    args: Vec<OsString>,
    command: Command,
    matches: ArgMatches,
    task: Task,
}

/// Runs the command named by the arguments of this process.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    output::end_when_closed();
    let CommandLine { args, command, matches, task } = CommandLine::read().map_err(status::unanswered)?;
    let own = own_flags(&matches);
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
        Task::Lint(args) => return status::of_answer(lint::run(&args)),
        Task::Cache(args) => cache::run(&args),
        Task::Prompt(args) => return prompt::run(&args),
        Task::Completions(args) => completions::run(&args, Cli::command()),
        Task::Man(args) => completions::run_man(&args, Cli::command()),
        Task::Health(args) => health::run(&args),
        Task::Stop(args) => stop::run(&args),
        Task::Devices(args) => devices::run(&args, own),
        Task::Doctor(asked) => {
            let config = config::file_of(&args);
            return status::of_answer(doctor::run(*asked, config.as_deref(), args));
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

impl CommandLine {
    /// Reads the arguments of this process, the environment and the configuration file.
    fn read() -> anyhow::Result<CommandLine> {
        let (args, notes) = llama_flags::expand(std::env::args_os().collect())?;
        let command = config::configure(Cli::command(), &args)?;
        let matches = config::matches(&command, &args);
        logging::set_format(matches.as_ref().map(log_format).unwrap_or_default());
        notes.iter().for_each(|note| logging::say(&format!("note: {note}")));
        let matches = matches.or_else(habits::explain)?;
        stay_in_domain(&matches)?;
        let mut task = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).task;
        task.take_model(own_flags(&matches))?;
        Ok(CommandLine { args, command, matches, task })
    }
}

/// The flags of the command itself.
fn own_flags(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, own)| own)
}

/// The format of the lines of `kvik serve`; other commands write for people.
fn log_format(matches: &ArgMatches) -> LogFormat {
    let serve = matches.subcommand_matches("serve");
    serve.and_then(|flags| flags.get_one::<LogFormat>("log").copied()).unwrap_or_default()
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
