//! Statuses of calls, and the conversion of errors to them.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use kvik_library::{ConstraintError, Error, RequestError, StartError};

/// Status of a call; `kvik_last_error` has the reason of a failure.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvikStatus {
    /// The call succeeded.
    Ok = 0,
    /// A pointer is null, a text is not UTF-8, or a number is out of its range.
    InvalidArgument = 1,
    /// The model cannot be read or used.
    Model = 2,
    /// The memory or the sizes cannot be provided.
    Memory = 3,
    /// The directory on disk cannot be used.
    Disk = 4,
    /// The engine refused the request, or the request failed.
    Request = 5,
    /// The buffer of the result is too small; the size it needs was written.
    TooSmall = 6,
    /// An internal failure. Other calls are not affected.
    Internal = 7,
}

/// Error of a call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: KvikStatus,
    pub(crate) message: String,
}

thread_local! {
    /// Reason of the last failure on this thread.
    static LAST: RefCell<CString> = RefCell::default();
}

impl Failure {
    pub(crate) fn argument(name: &str, wrong: &str) -> Failure {
        Failure { status: KvikStatus::InvalidArgument, message: format!("`{name}` {wrong}") }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match error {
            Error::Source(_)
            | Error::Load(_)
            | Error::Weights(_)
            | Error::Template(_)
            | Error::NoTemplate
            | Error::Isa(_) => KvikStatus::Model,
            Error::BudgetTooSmall { .. }
            | Error::BudgetTooLarge { .. }
            | Error::ContextTooLarge { .. }
            | Error::NoMemory { .. } => KvikStatus::Memory,
            Error::Start(StartError::Thread(_)) => KvikStatus::Internal,
            Error::Start(_) | Error::Threads(_) => KvikStatus::InvalidArgument,
            Error::Disk(_) | Error::KeptPrompts { .. } | Error::Records(_) | Error::NotForgotten(_) => {
                KvikStatus::Disk
            }
            Error::Request(
                RequestError::Internal(_) | RequestError::Constraint(ConstraintError::NoThread(_)),
            ) => KvikStatus::Internal,
            Error::Request(_)
            | Error::PromptTooLong { .. }
            | Error::TextTooLong { .. }
            | Error::OverBudget { .. }
            | Error::NoRoomToKeep { .. }
            | Error::TooManyKept { .. }
            | Error::KeptTooLong { .. }
            | Error::BadTools(_)
            | Error::Tools(_)
            | Error::TwoForms
            | Error::Conversation(_)
            | Error::Memory(_)
            | Error::Correction(_) => KvikStatus::Request,
            _ => KvikStatus::Internal,
        };
        Failure { status, message: error.to_string() }
    }
}

/// Runs the body of a function. Panics are caught: C could not catch them.
pub(crate) fn call(action: impl FnOnce() -> Result<(), Failure>) -> KvikStatus {
    let outcome = catch_unwind(AssertUnwindSafe(action)).unwrap_or_else(|_| {
        let message = "a panic inside kvik; the model goes on".to_owned();
        Err(Failure { status: KvikStatus::Internal, message })
    });
    match outcome {
        Ok(()) => KvikStatus::Ok,
        Err(Failure { status, message }) => {
            let message = CString::new(message.replace('\0', "\u{fffd}")).unwrap_or_default();
            LAST.with(|last| last.replace(message));
            status
        }
    }
}

/// Reason of the last failure on this thread, as a text; empty if no call has failed. Never null, and valid until another
/// call on this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn kvik_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn last() -> String {
        // SAFETY: it is never null, ends with a nul, and no call fails while it is read.
        unsafe { CStr::from_ptr(kvik_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn errors_of_requests_have_their_status() {
        let check = |error: RequestError, expect: KvikStatus| {
            assert_eq!(Failure::from(Error::from(error)).status, expect);
        };
        check(RequestError::Internal("it broke".to_owned()), KvikStatus::Internal);
        check(ConstraintError::NoThread("none".to_owned()).into(), KvikStatus::Internal);
        check(ConstraintError::Busy { retry_after_s: 2 }.into(), KvikStatus::Request);
        check(RequestError::EmptyPrompt, KvikStatus::Request);
    }

    #[test]
    fn a_failure_is_its_status_and_its_words_and_a_panic_is_one() {
        assert_eq!((call(|| Ok(())), last()), (KvikStatus::Ok, String::new()));
        let fails = || Err(Failure::argument("model", "is null"));
        assert_eq!((call(fails), last()), (KvikStatus::InvalidArgument, "`model` is null".to_owned()));
        assert_eq!(call(|| panic!("it broke")), KvikStatus::Internal);
        assert!(last().contains("panic"), "{}", last());
        let with_nul = || Err(Failure::argument("id", "has\0in it"));
        assert_eq!(
            (call(with_nul), last()),
            (KvikStatus::InvalidArgument, "`id` has\u{fffd}in it".to_owned())
        );
        assert_eq!(call(|| Ok(())), KvikStatus::Ok);
        assert!(last().contains("in it"), "a call that does not fail leaves it");
        let other = std::thread::spawn(last).join().unwrap();
        assert_eq!(other, "", "it is this thread's");
    }
}
