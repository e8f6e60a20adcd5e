//! `kvik doctor`: describes this machine, the choices the server would make on it, and problems with their remedies.
//!
//! The choices come from the same functions that the server calls at its start, with the same flags. Files written for
//! a check are removed again.

mod access;
mod domains;
mod hardware;
mod model;
mod places;
mod report;

use std::{ffi::OsString, path::Path};

use clap::Args;

use super::{output, serve_args::ServeArgs, shelf};
use report::{Diagnosis, Report};

/// Looks at this machine as `kvik serve` would: what it would choose, what is wrong, and the remedy
#[derive(Debug, Args)]
#[command(
    about = "Look at this machine: what the server would choose, what is wrong, and the remedy",
    long_about = None,
    after_help = "Examples:
  kvik doctor                                  this machine, with the settings that `kvik serve` would have
  kvik doctor --port 9000 --cache-ram 4GiB     with other ones: it takes all flags of `kvik serve`
  kvik doctor -m model.gguf -c 8192 -ngl 99    also those of llama-server
  kvik doctor --json                           the same for programs

It measures how fast memory and disk are, which takes two to three seconds, and leaves nothing behind.

Exit status: 0 when the server would start, 1 when something is wrong, 2 when that could not be found out."
)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(super) serve: ServeArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command with the settings of this configuration file, if there is one; true if something is wrong.
/// `words` is the command line.
pub(crate) fn run(args: DoctorArgs, config: Option<&Path>, words: Vec<OsString>) -> anyhow::Result<bool> {
    let report = Report(examine(args.serve, (config, words), Path::new("/")));
    // The status tells what is wrong also where nobody reads the report to its end.
    match args.json {
        true => output::print(&serde_json::to_string_pretty(&report.json())?)?,
        false => output::write(report.table().as_bytes()).or_else(output::unless_closed)?,
    }
    Ok(report.is_wrong())
}

/// All checks, with `root` as the root of `/proc` and `/sys`.
fn examine(
    mut args: ServeArgs,
    (config, words): (Option<&Path>, Vec<OsString>),
    root: &Path,
) -> Vec<Diagnosis> {
    let shelf = shelf::models(&args, words).map(|shelf| shelf.map(|(_, models)| models));
    if matches!(shelf, Ok(None)) {
        args.model.take_default();
    }
    let mut all = hardware::all(&args.model, &args.cache, root);
    all.extend(model::all(&args, shelf));
    all.extend(places::all(&args, config));
    all.extend(access::all(&args));
    all
}
