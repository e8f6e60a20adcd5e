//! Contains a panic in the request that caused it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::api::RequestError;

/// Runs `action` and turns its panic into an error. The caller repairs any state that the panic left inconsistent.
pub(crate) fn contain<T>(action: impl FnOnce() -> T) -> Result<T, RequestError> {
    catch_unwind(AssertUnwindSafe(action)).map_err(|panic| RequestError::Internal(message(panic.as_ref())))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}
