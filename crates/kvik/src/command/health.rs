//! `kvik health`: checks that a server answers, for containers and scripts.

use std::{
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use ureq::http::Method;

use super::{client::AskError, remote::ServerArgs};

/// Pause between two requests while it is waited for an answer.
const PAUSE: Duration = Duration::from_millis(200);
/// How long one of these requests may take at least and at most: what listens there may never answer.
const ASK_TIME: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// Asks a running server whether it answers requests
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik health                                   on this machine
  kvik health --url http://127.0.0.1:9000       at another port
  kvik health --wait 60                         waits up to a minute for the model to be loaded

Needs no key. Exit status: 0 when the server answers requests, 1 while it loads its model, when its engine stands still,
and when there is no server.")]
pub(crate) struct HealthArgs {
    /// Ask again for so long, until the server answers requests; else end with the last error
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
    wait: u32,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs the command.
pub(crate) fn run(args: &HealthArgs) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs(args.wait.into());
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let limit = (args.wait > 0).then(|| left.clamp(ASK_TIME[0], ASK_TIME[1]));
        match args.server.call_within(limit, Method::GET, "/health", None) {
            Ok(_) => break,
            Err(error) if left.is_zero() || is_final(&error) => return Err(error),
            Err(_) => thread::sleep(PAUSE),
        }
    }
    println!("ok");
    Ok(())
}

/// Whether waiting does not help against an error.
fn is_final(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<AskError>(),
        Some(AskError::BadAddress { .. } | AskError::Key { .. } | AskError::SeveralRun { .. })
    )
}
