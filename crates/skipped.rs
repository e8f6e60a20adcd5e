//! Tests that lack something say so here, in one place, so that CI can count them.
//!
//! Not a module of any crate: tests of several include it by its path. A test that is skipped passes; where
//! `KVIK_SKIPPED` names a file, its name and the reason are added there.

#![allow(dead_code, unreachable_pub)] // each includer uses some of it

use std::io::Write;
use std::path::PathBuf;

/// The directory of outside data; without it the calling test is skipped.
pub(crate) fn outside_data() -> Option<PathBuf> {
    let directory = std::env::var_os("KVIK_DATA").map(PathBuf::from);
    if directory.is_none() {
        skip("KVIK_DATA is not set");
    }
    directory
}

/// Says that the calling test is skipped, and why.
pub(crate) fn skip(why: &str) {
    println!("skipped: {why}");
    let Some(list) = std::env::var_os("KVIK_SKIPPED") else { return };
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    let file = std::fs::OpenOptions::new().create(true).append(true).open(list);
    // One write, so that lines of several processes do not mix.
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("the list of skipped tests can be written");
}
