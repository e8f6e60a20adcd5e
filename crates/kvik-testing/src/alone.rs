//! A process of its own for a test that measures or ends its process, in a program with other tests.

use std::process::Command;

/// Environment variable of a process that runs one test.
const ALONE: &str = "KVIK_TEST_ALONE";

/// True if the calling test has the process for itself; otherwise the test is run in another process, with the same
/// outcome for the caller. A test begins with `if !kvik_testing::alone() { return }`.
///
/// # Panics
/// If the test fails in the other process.
pub fn alone() -> bool {
    alone_with(&[])
}

/// As [`alone`], in a process with these environment variables.
///
/// # Panics
/// If the test fails in the other process.
pub fn alone_with(variables: &[(&str, &str)]) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let thread = std::thread::current();
    // With one thread, tests run on the main thread, which does not have the test's name.
    let name = thread.name().filter(|name| *name != "main").expect("`--test-threads=1` names no test");
    let program = std::env::current_exe().expect("a program knows its path");
    let mut alone = Command::new(program);
    alone
        .args([name, "--exact", "--nocapture", "--test-threads=2"])
        .env(ALONE, "1")
        .envs(variables.iter().copied());
    let output = alone.output().expect("a test program can be run");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} fails in a process of its own: {}", output.status);
    false
}
