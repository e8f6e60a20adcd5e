//! The commands of the `kvik` binary, as a library so that fuzzing reaches the HTTP routes.
//!
//! Its only other user is `main.rs`.

#![forbid(unsafe_code)]

mod command;
mod eval;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;

use std::process::ExitCode;

use kvik_serving::{causes, open, settings, system};

/// Runs the command line of this process; `embedded` is the model of commands that name none.
pub fn main(embedded: Option<&'static [u8]>) -> ExitCode {
    embedded.into_iter().for_each(open::bring);
    settings::logging::await_format();
    if let Err(error) = system::fail_writes_beyond_limit() {
        let warning = format!("warning: a limit on the size of files will end this process: {error}");
        settings::logging::say(&warning);
    }
    let code = command::run().unwrap_or_else(|error| {
        settings::logging::say(&format!("error: {}", causes::with_causes(&error)));
        ExitCode::from(command::status::of_error(&error))
    });
    settings::logging::finish();
    code
}
