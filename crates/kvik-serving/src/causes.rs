//! The text of an error with its causes, without repetition.

/// The messages of an error and of its causes. A cause that an earlier message quotes is omitted: many errors quote
/// theirs in the middle of a sentence, before the remedy.
pub fn with_causes(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |told, cause| {
        let cause = cause.to_string();
        match (told.is_empty(), told.contains(&cause)) {
            (true, _) => cause,
            (false, true) => told,
            (false, false) => format!("{told}: {cause}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failed {
        #[error("/a/b: {source}; choose another directory")]
        Quotes { source: io::Error },
        #[error("the file is broken")]
        Names { source: io::Error },
    }

    #[test]
    fn each_cause_is_said_once() {
        let io = || io::Error::other("no such file");
        let check = |error: anyhow::Error, expect: &str| assert_eq!(with_causes(&error), expect);
        check(Failed::Quotes { source: io() }.into(), "/a/b: no such file; choose another directory");
        check(Failed::Names { source: io() }.into(), "the file is broken: no such file");
        check(
            anyhow::Error::from(Failed::Quotes { source: io() }).context("the model cannot be loaded"),
            "the model cannot be loaded: /a/b: no such file; choose another directory",
        );
        let twice: anyhow::Result<()> = Err(io()).context("no such file");
        check(twice.unwrap_err(), "no such file");
    }
}
