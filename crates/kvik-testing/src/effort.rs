//! Amount of work of a test: a sample for every change, all of it for a release.

/// Returns `sample`, or `all` if `KVIK_FULL` is set, as `.ci/run full` does.
pub fn effort<T>(sample: T, all: T) -> T {
    if std::env::var_os("KVIK_FULL").is_some() { all } else { sample }
}
