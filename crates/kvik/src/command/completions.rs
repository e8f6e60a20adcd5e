//! `kvik completions` and `kvik man`: shell completions and manual pages, generated from the command line itself.
//!
//! Both describe the flags without the values of a configuration file: packages are built on other machines.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use super::output;

/// Prints what a shell needs to complete commands and flags
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik completions bash > ~/.local/share/bash-completion/completions/kvik
  kvik completions zsh > ~/.zfunc/_kvik               with `fpath+=~/.zfunc` before compinit in .zshrc
  kvik completions fish > ~/.config/fish/completions/kvik.fish
  kvik completions powershell >> $PROFILE

The packages of kvik install them.")]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Writes manual pages, one for each command
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory to write them to
    dir: PathBuf,
}

/// Runs `kvik completions`.
pub(crate) fn run(args: &CompletionsArgs, mut command: Command) -> anyhow::Result<()> {
    // Generated first and written at once: a partial script would complete only some commands, and generation panics on
    // a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "kvik", &mut script);
    output::write(&script).or_else(output::unless_closed)
}

/// Runs `kvik man`.
pub(crate) fn run_man(args: &ManArgs, command: Command) -> anyhow::Result<()> {
    let cannot = || format!("the manual pages cannot be written to {}", args.dir.display());
    std::fs::create_dir_all(&args.dir).with_context(cannot)?;
    clap_mangen::generate_to(command, &args.dir).with_context(cannot)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    fn commands() -> Vec<String> {
        let command = Cli::command();
        let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        shown.map(|sub| sub.get_name().to_owned()).collect()
    }

    #[test]
    fn every_command_has_a_page_and_is_completed() {
        let dir = tempfile::tempdir().unwrap();
        run_man(&ManArgs { dir: dir.path().to_owned() }, Cli::command()).unwrap();
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Cli::command(), "kvik", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(commands().len() > 20);
        for name in commands() {
            let page = std::fs::read_to_string(dir.path().join(format!("kvik-{name}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{name}");
            assert!(script.contains(&format!("kvik,{name})")), "{name}");
        }
        let main = std::fs::read_to_string(dir.path().join("kvik.1")).unwrap();
        assert!(main.contains("prefix") || main.contains("prompt"), "{main}");
    }

    #[test]
    fn pages_that_cannot_be_written_are_an_error_with_the_place() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error =
            run_man(&ManArgs { dir: file.path().join("man") }, Cli::command()).unwrap_err().to_string();
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
    }
}
