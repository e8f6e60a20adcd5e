//! Tests that lack something say so here, in one place, so that CI can count them.
//!
//! A test that is skipped passes; where `KVIK_SKIPPED` names a file, its name and the reason are added there.

use std::io::Write;
use std::path::PathBuf;

/// The directory of outside data; without it the calling test is skipped.
pub fn outside_data() -> Option<PathBuf> {
    let directory = std::env::var_os("KVIK_DATA").map(PathBuf::from);
    if directory.is_none() {
        skip("KVIK_DATA is not set");
    }
    directory
}

/// Says that the calling test is skipped, and why.
///
/// # Panics
/// When the list of skipped tests cannot be written.
pub fn skip(why: &str) {
    println!("skipped: {why}");
    let Some(list) = std::env::var_os("KVIK_SKIPPED") else { return };
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    let file = std::fs::OpenOptions::new().create(true).append(true).open(list);
    // One write, so that lines of several processes do not mix.
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("the list of skipped tests can be written");
}
