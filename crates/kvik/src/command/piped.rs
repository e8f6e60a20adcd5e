//! Standard input as a prompt.

use std::{
    io::{IsTerminal, Read},
    sync::mpsc::channel,
    thread,
    time::Duration,
};

use anyhow::{Context, ensure};

use kvik_serving::settings::logging::say;

/// Maximum bytes of a prompt.
const BYTES_MAX: u64 = 64 << 20;
/// How long to wait silently for a prompt on standard input that was not requested explicitly.
const QUIET: Duration = Duration::from_secs(2);

/// All of standard input, which was requested explicitly.
pub(super) fn all() -> anyhow::Result<String> {
    let mut text = String::new();
    let read = std::io::stdin().take(BYTES_MAX + 1).read_to_string(&mut text);
    read.context("standard input cannot be read as text")?;
    ensure!(text.len() as u64 <= BYTES_MAX, "standard input is longer than 64 MiB, which is no prompt");
    Ok(text)
}

/// The text in standard input in addition to a prompt argument; `None` if it is neither a pipe nor a file.
pub(super) fn behind_prompt() -> anyhow::Result<Option<String>> {
    if !is_put_there() {
        return Ok(None);
    }
    // The parent process may leave a pipe open that it never writes to.
    let (sender, read) = channel();
    thread::Builder::new().name("kvik-stdin".to_owned()).spawn(move || sender.send(all()))?;
    let text = read.recv_timeout(QUIET).or_else(|_| {
        say("note: waiting for the end of standard input; `< /dev/null` says that there is none");
        read.recv()
    });
    let text = text.context("standard input could not be read")??;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Whether standard input is a pipe or a file, as opposed to a terminal, `/dev/null` or a service manager's descriptor.
#[cfg(unix)]
fn is_put_there() -> bool {
    use rustix::fs::{FileType, fstat};
    let stdin = std::io::stdin();
    let kind = fstat(&stdin).map(|found| FileType::from_raw_mode(found.st_mode));
    !stdin.is_terminal() && matches!(kind, Ok(FileType::Fifo | FileType::RegularFile))
}

#[cfg(not(unix))]
fn is_put_there() -> bool {
    !std::io::stdin().is_terminal()
}
