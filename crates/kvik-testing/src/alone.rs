//! A process of its own for a test that measures or ends its process, in a program that has other tests too.

use std::process::Command;

/// In the environment of a process that runs one test.
const ALONE: &str = "KVIK_TEST_ALONE";

/// Whether the calling test has the process for itself; otherwise the test is run in another process, and its outcome is
/// the caller's. A test begins with `if !kvik_testing::alone() { return }`.
///
/// # Panics
/// When the test fails there.
pub fn alone() -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let thread = std::thread::current();
    // One thread runs tests on the main thread, which has no name of its own.
    let name = thread.name().filter(|name| *name != "main").expect("`--test-threads=1` names no test");
    let program = std::env::current_exe().expect("a program knows its path");
    let mut alone = Command::new(program);
    alone.args([name, "--exact", "--nocapture", "--test-threads=2"]).env(ALONE, "1");
    let output = alone.output().expect("a test program can be run");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} fails in a process of its own: {}", output.status);
    false
}
