//! `kvik health`: checks that a server answers, for containers and scripts.

use clap::Args;
use ureq::http::Method;

use super::remote::ServerArgs;

/// Asks a running server whether it answers requests
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik health                                   on this machine
  kvik health --url http://127.0.0.1:9000       at another port
  until kvik health; do sleep 1; done           waits for the model to be loaded

Needs no key. Exit status: 0 when the server answers requests, 1 while it loads its model, when its engine stands still,
and when there is no server.")]
pub(crate) struct HealthArgs {
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs the command.
pub(crate) fn run(args: &HealthArgs) -> anyhow::Result<()> {
    args.server.call(Method::GET, "/health", None)?;
    println!("ok");
    Ok(())
}
