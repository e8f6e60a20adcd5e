//! How much a test tries: a sample with every change, all of it where a release is proven.

/// `sample` of something, or `all` where `KVIK_FULL` is set, as `.ci/run full` does.
pub fn effort<T>(sample: T, all: T) -> T {
    if std::env::var_os("KVIK_FULL").is_some() { all } else { sample }
}
