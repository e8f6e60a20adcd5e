//! Exit statuses. A command that fails ends with 1. Of a command that answers by its status, 1 is the answer no; where it
//! could not answer it ends with 2, as grep and diff do.

use std::process::ExitCode;

/// The status of a command that could not answer, and of any whose words or settings are not understood: it is clap's.
const UNANSWERED: u8 = 2;

/// Why a command that answers by its status could not.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Unanswered(anyhow::Error);

/// The status of an answer, which is no where the command found something or something was not as it should be.
pub(super) fn of_answer(is_no: anyhow::Result<bool>) -> anyhow::Result<ExitCode> {
    is_no.map(|is_no| ExitCode::from(u8::from(is_no))).map_err(unanswered)
}

/// The error with which a command ends that could not answer.
pub(super) fn unanswered(error: anyhow::Error) -> anyhow::Error {
    Unanswered(error).into()
}

/// The status of an error with which a command ends.
pub(crate) fn of_error(error: &anyhow::Error) -> u8 {
    if error.is::<Unanswered>() { UNANSWERED } else { 1 }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};
    use kvik_serving::causes::with_causes;

    use super::*;

    #[test]
    fn an_error_is_told_from_an_answer_and_says_the_same() {
        let error = || Err::<bool, _>(anyhow!("no such file")).context("the request cannot be read");
        let (plain, marked) = (error().unwrap_err(), of_answer(error()).unwrap_err());
        assert_eq!([&plain, &marked].map(of_error), [1, 2]);
        assert_eq!(with_causes(&marked), with_causes(&plain));
    }
}
