//! The command line.

use std::path::PathBuf;

use clap::{ArgMatches, Parser, Subcommand};

use super::{
    bench::BenchArgs,
    cache::CacheCommandArgs,
    chat::ChatArgs,
    completions::{CompletionsArgs, ManArgs},
    cp::CpArgs,
    default::DefaultArgs,
    devices::DevicesArgs,
    doctor::DoctorArgs,
    eval::EvalArgs,
    explain::ExplainArgs,
    health::HealthArgs,
    inspect::InspectArgs,
    lint::LintArgs,
    list::ListArgs,
    perplexity::PerplexityArgs,
    plan::PlanArgs,
    prompt::PromptArgs,
    ps::PsArgs,
    pull::PullArgs,
    replay::ReplayArgs,
    rm::RmArgs,
    run::RunArgs,
    search::SearchArgs,
    serve_args::ServeArgs,
    show::ShowArgs,
    stop::StopArgs,
    tenant::TenantArgs,
    usage::UsageArgs,
};

/// kvik: a local LLM server whose centre is the KV cache
///
/// kvik computes a prompt once and reuses it while the cache holds it: for the next request, the
/// next user and the next conversation. Every answer reports how many tokens were reused.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  kvik serve                                   OpenAI's API on http://127.0.0.1:8080, with the model of `kvik default`
  kvik serve -m model.gguf --context 8192      another model
  kvik serve -m hf:Qwen/Qwen3-0.6B-GGUF        downloaded once, then from disk
  kvik pull hf:Qwen/Qwen3-0.6B-GGUF --name qwen3   then -m qwen3
  kvik chat -m model.gguf                      talk in the terminal
  kvik run qwen3:0.6b \"Why is the sky blue?\"    fetched once, then asked

Settings come from flags, then from the environment (--cache-ram is KVIK_CACHE_RAM), then from
config.toml (cache-ram = \"2GiB\") in the user's configuration directory or where --config says.
Without a model every command uses that of `kvik default`: the one that was chosen, or pulled last.
Before the first pull that is the tiny embedded one, a demonstration."
)]
pub(crate) struct Cli {
    /// Configuration file (default: config.toml in the user's configuration directory)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) task: Task,
}

/// The command to run.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Serve OpenAI's API over HTTP
    Serve(Box<ServeArgs>),
    /// Talk with the model in the terminal
    Chat(ChatArgs),
    /// Answer one prompt on standard output
    Run(RunArgs),
    /// Find models: short names, and what the hub has
    Search(SearchArgs),
    /// Fetch a model and give it a name
    Pull(PullArgs),
    /// Show or choose the model of commands that name none
    Default(DefaultArgs),
    /// List the models that have a name
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show what a name stands for
    Show(ShowArgs),
    /// Give a model a second name
    Cp(CpArgs),
    /// Remove names, and the files that no other name uses
    Rm(RmArgs),
    /// Measure the speed of prefill and decode
    Bench(BenchArgs),
    /// Measure how well the model predicts a text
    Perplexity(PerplexityArgs),
    /// Measure what a retention policy or a KV format costs
    Eval(Box<EvalArgs>),
    /// Show what a request would find in the cache of a running server
    Explain(ExplainArgs),
    /// Find the parts of requests that defeat the cache
    Lint(LintArgs),
    /// List, pin and evict what a running server has cached
    Cache(CacheCommandArgs),
    /// Keep a prompt cached: a system prompt, tools, examples
    Prompt(PromptArgs),
    /// List the models of a running server, and which are in memory
    Ps(PsArgs),
    /// Ask a running server whether it answers requests
    Health(HealthArgs),
    /// End a server of this machine, once its answers have ended
    Stop(StopArgs),
    /// List what models can be computed on
    Devices(DevicesArgs),
    /// Look at this machine: what the server would choose, what is wrong, and the remedy
    Doctor(Box<DoctorArgs>),
    /// Show the contents of a model file
    Inspect(InspectArgs),
    /// Show how much memory a model needs, and how many users fit
    Plan(PlanArgs),
    /// Replay a recorded trace through the cache and measure its hit rate
    Replay(ReplayArgs),
    /// Create API keys for tenants
    Tenant(TenantArgs),
    /// Show the usage of tenants, by day and model
    Usage(UsageArgs),
    /// Print what a shell needs to complete commands and flags
    Completions(CompletionsArgs),
    /// Write manual pages, one for each command
    #[command(hide = true)]
    Man(ManArgs),
}

impl Task {
    /// Gives the command its model: that of the word behind it, that of its flags, or the default one.
    ///
    /// `kvik serve` may have a shelf, which `kvik doctor` examines, `kvik run` a prompt, and a server may answer `kvik run`
    /// and `kvik chat`, so these decide about the default themselves.
    pub(crate) fn take_model(&mut self, matches: &ArgMatches) -> anyhow::Result<()> {
        let model = match self {
            Task::Serve(args) => return args.take_model(matches),
            Task::Chat(args) => return args.model.take_word(args.name.take(), matches),
            Task::Doctor(args) => return args.serve.take_model(matches),
            Task::Bench(args) if !args.server => &mut args.model,
            Task::Perplexity(args) => &mut args.model,
            Task::Eval(args) => &mut args.model,
            Task::Lint(args) => &mut args.model,
            Task::Inspect(args) => &mut args.model,
            Task::Plan(args) => &mut args.model,
            _ => return Ok(()),
        };
        model.take_default();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use clap::{Arg, Command, CommandFactory};
    use kvik_serving::settings::{domain::DomainArgs, size::ByteSize};

    use super::*;

    /// Every command that lists, at any depth.
    fn lists(command: &Command) -> Vec<&Command> {
        let below = command.get_subcommands().flat_map(lists);
        let own = command.get_subcommands().filter(|sub| ["ls", "list"].contains(&sub.get_name()));
        own.chain(below).collect()
    }

    #[test]
    fn what_lists_is_called_list_and_ls() {
        let command = Cli::command();
        let lists = lists(&command);
        assert_eq!(lists.len(), 3, "kvik list, kvik cache ls, kvik prompt ls");
        for list in lists {
            let names: Vec<&str> = list.get_all_aliases().chain([list.get_name()]).collect();
            assert!(names.contains(&"ls") && names.contains(&"list"), "{names:?}");
        }
    }

    #[test]
    fn commands_that_compute_have_the_flag_and_others_have_none() {
        let check = |words: &[&str], expect: Option<usize>| {
            let matches = Cli::command().try_get_matches_from(words).unwrap();
            let (_, flags) = matches.subcommand().unwrap();
            assert_eq!(DomainArgs::of(flags).memory_domain, expect, "{words:?}");
        };
        for command in ["serve", "chat", "bench", "doctor"] {
            check(&["kvik", command, "--memory-domain", "7"], Some(7));
            check(&["kvik", command], None);
        }
        check(&["kvik", "run", "--memory-domain", "0", "Hello"], Some(0));
        check(&["kvik", "devices"], None);
        assert!(Cli::command().try_get_matches_from(["kvik", "serve", "--memory-domain", "-1"]).is_err());
    }

    #[test]
    fn a_deadline_that_no_clock_can_represent_is_refused() {
        for flag in ["--grace", "--drain", "--cache-remote-warm"] {
            let read = |seconds: &str| Cli::command().try_get_matches_from(["kvik", "serve", flag, seconds]);
            assert!(read("31536000").is_ok(), "{flag}: a year");
            for seconds in ["31536001", "10000000000000000000", "18446744073709551615"] {
                assert!(read(seconds).is_err(), "{flag} {seconds}");
            }
        }
    }

    #[test]
    fn every_command_has_a_row_in_the_readme() {
        let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
        let readme = std::fs::read_to_string(readme).unwrap();
        let rows: Vec<&str> = readme.lines().filter(|line| line.starts_with("| `kvik ")).collect();
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let names = [format!("`kvik {name}`"), format!("`kvik {name} "), format!("`{name}`")];
            let has_row = rows.iter().any(|row| names.iter().any(|name| row.contains(name)));
            assert!(has_row, "README.md has no row for `kvik {name}`");
        }
    }

    /// Checks every flag whose value is a SIZE, of every command.
    #[test]
    fn every_size_flag_refuses_a_number_without_a_unit() {
        let mut flags = 0;
        for command in Cli::command().get_subcommands() {
            let of_sizes = |arg: &&Arg| arg.get_value_parser().type_id() == TypeId::of::<ByteSize>();
            for flag in command.get_arguments().filter(of_sizes) {
                let long = format!("--{}", flag.get_long().unwrap());
                let words = ["kvik", command.get_name(), &long, "2"];
                let error = Cli::command().try_get_matches_from(words).unwrap_err().to_string();
                assert!(error.contains(&long) && error.contains("2GiB"), "{words:?}: {error}");
                flags += 1;
            }
        }
        assert!(flags > 10, "{flags} flags take a size");
    }
}
