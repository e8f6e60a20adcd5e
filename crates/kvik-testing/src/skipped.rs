//! Reporting of skipped tests, in one place, so that CI can count them.
//!
//! A skipped test passes; if `KVIK_SKIPPED` names a file, the test's name and the reason are appended to it.

use std::io::Write;
use std::path::PathBuf;

/// Directory of external data; without it the calling test is skipped.
pub fn outside_data() -> Option<PathBuf> {
    let directory = std::env::var_os("KVIK_DATA").map(PathBuf::from);
    if directory.is_none() {
        skip("KVIK_DATA is not set");
    }
    directory
}

/// Reports that the calling test is skipped, and why.
///
/// # Panics
/// If the list of skipped tests cannot be written.
pub fn skip(why: &str) {
    println!("skipped: {why}");
    let Some(list) = std::env::var_os("KVIK_SKIPPED") else { return };
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    let file = std::fs::OpenOptions::new().create(true).append(true).open(list);
    // A single write, so that lines of several processes do not mix.
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("the list of skipped tests can be written");
}
