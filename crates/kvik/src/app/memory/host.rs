//! What memory needs of the server that it is part of.

use std::sync::Arc;

use kvik_engine::api::{Report, Request};

use super::Memory;
use crate::app::keys::Caller;
use crate::http::error::ApiError;

/// Runs the requests that are made behind answers.
pub(crate) trait Host: Send + Sync + 'static {
    /// What is remembered.
    fn memory(&self) -> &Arc<Memory>;

    /// What the model says to a request of a caller who waits, or else of the background, and what that has cost. Whoever
    /// stops waiting cancels.
    fn said(
        &self,
        caller: &Caller,
        request: Request,
        is_waited_for: bool,
    ) -> impl Future<Output = Result<(String, Report), ApiError>> + Send;
}
