//! `kvik stop`: ends a server of this machine.

use std::{
    net::{ToSocketAddrs, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use ureq::http::Uri;

use super::{
    pid_file::{self, RunningServer},
    remote::ServerArgs,
};
use kvik_serving::settings::logging::say;

/// How often it is looked whether the server has ended.
const LOOK: Duration = Duration::from_millis(50);
/// How long to wait without a word.
const QUIET: Duration = Duration::from_secs(1);

/// Ends a server of this machine: running answers finish first, as after SIGTERM
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik stop                                 the server of this machine's settings
  kvik stop --port 9000                     the one on another port
  kvik stop --url http://127.0.0.1:9000     the same

It sends SIGTERM to the process that `kvik serve` has written down for its port, and waits until that has ended;
Ctrl-C ends the waiting alone. A process that ends already gets no second SIGTERM, which would cut its answers off.
Only servers of this user on this machine are found. One that systemd runs is ended by `systemctl stop kvik`.")]
pub(crate) struct StopArgs {
    // Ollama's `stop` takes a model out of memory.
    #[arg(value_name = "NAME", hide = true)]
    model: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs the command.
pub(crate) fn run(args: &StopArgs) -> anyhow::Result<()> {
    if let Some(name) = &args.model {
        bail!("`kvik stop` ends a whole server; `kvik ps --unload {name}` takes one model out of its memory");
    }
    let url = args.server.url()?;
    let port = port_of(&url)?;
    let found = pid_file::find(port).context("the file of the server's process cannot be read")?;
    let Some(mut server) = found else {
        bail!(
            "this user has no `kvik serve` on port {port} of this machine that has written itself down; \
             `kvik health` says whether one answers there, and --port names another port"
        );
    };
    // A second signal would cut its answers off. The server that listens there by now is written down after it.
    while server.is_leaving {
        let Some(next) = wait_for_end(port, &server)? else {
            println!("stopped {url}, process {}", server.pid());
            return Ok(());
        };
        server = next;
    }
    server.terminate().with_context(|| format!("process {} cannot be told to end", server.pid()))?;
    wait_for_end(port, &server)?;
    println!("stopped {url}, process {}", server.pid());
    Ok(())
}

/// Waits until a server has ended; returns the one that is written down for its port then.
fn wait_for_end(port: u16, server: &RunningServer) -> anyhow::Result<Option<RunningServer>> {
    let start = Instant::now();
    let mut is_quiet = true;
    loop {
        let found = pid_file::find(port)?;
        if found.as_ref().is_none_or(|found| found.pid() != server.pid()) {
            return Ok(found);
        }
        if is_quiet && start.elapsed() > QUIET {
            is_quiet = false;
            say(&format!("process {} lets its running answers finish", server.pid()));
        }
        thread::sleep(LOOK);
    }
}

/// The port of a URL, which must be of this machine.
fn port_of(url: &str) -> anyhow::Result<u16> {
    let uri: Uri = url.parse().with_context(|| format!("{url} is no URL"))?;
    let host = uri.host().with_context(|| format!("{url} names no host"))?.trim_matches(['[', ']']);
    ensure!(
        is_here(host),
        "{host} is another machine, and `kvik stop` ends servers of this one; run it there"
    );
    let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    Ok(uri.port_u16().unwrap_or(usual))
}

/// Whether an address or a host's name is of this machine: only then can a socket be bound to it.
fn is_here(host: &str) -> bool {
    (host, 0).to_socket_addrs().is_ok_and(|mut found| found.any(|address| UdpSocket::bind(address).is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_this_machine_is_named_by_its_port() {
        for (url, expect) in [
            ("http://127.0.0.1:8080", 8080),
            ("http://localhost:9000/v1", 9000),
            ("http://127.0.0.1", 80),
            ("https://127.0.0.1", 443),
        ] {
            assert_eq!(port_of(url).unwrap(), expect, "{url}");
        }
    }

    #[test]
    fn other_machines_are_refused() {
        // An address for documents (RFC 5737), which no machine has.
        for (url, says) in
            [("http://192.0.2.1:80", "another machine"), ("/health", "no host"), ("http://a b", "no URL")]
        {
            let error = port_of(url).unwrap_err().to_string();
            assert!(error.contains(says), "{error} says {says}");
        }
    }
}
