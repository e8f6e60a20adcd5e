//! The commands of kvik: all that its binary does, as a library, so that fuzzing reaches the routes.
//!
//! Nothing else is meant to be used from outside.

#![forbid(unsafe_code)]

mod accounts;
mod api;
mod app;
mod command;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod http;
mod hub;
mod random;
mod serving;
mod settings;

use std::process::ExitCode;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    settings::file_limit::make_it_an_error();
    match command::run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
