//! Keeping a panic where it belongs: with the request whose work it ended.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::api::RequestError;

/// Does something and makes an error of its panic. Whoever calls sees to what a panic may have left half done.
pub(crate) fn contain<T>(action: impl FnOnce() -> T) -> Result<T, RequestError> {
    catch_unwind(AssertUnwindSafe(action)).map_err(|panic| RequestError::Internal(message(panic.as_ref())))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}
