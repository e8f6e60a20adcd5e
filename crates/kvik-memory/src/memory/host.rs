//! The interface that memory needs of the surrounding program.

use std::fmt::Display;
use std::sync::Arc;

use kvik_engine::api::{AdapterMix, Report, Request};

use super::{Memory, MemoryError};

/// Checks that the waiting client is still there: returns an error otherwise, which no client gets.
pub type GoesOn<'a, E> = &'a dyn Fn() -> Result<(), E>;

/// Executes the work after answers. Dropping one of its futures cancels the work.
pub trait Host: Send + Sync + Sized + 'static {
    /// Account that the work is done for.
    type Caller: Clone + Send + Sync + 'static;
    /// Errors of the work.
    type Error: From<MemoryError> + Display + Send + 'static;

    /// The memory of conversations.
    fn memory(&self) -> &Arc<Memory<Self>>;

    /// Tenant of a caller, which alone sees its conversations.
    fn tenant(caller: &Self::Caller) -> &str;

    /// Adapters that all summaries are made with: turns with any adapters read them.
    fn adapters(&self) -> Option<AdapterMix>;

    /// Runs a request on the model, at the priority of a waiting caller or in the background; returns the text and the
    /// cost.
    fn said(
        &self,
        caller: &Self::Caller,
        request: Request,
        is_waited_for: bool,
    ) -> impl Future<Output = Result<(String, Report), Self::Error>> + Send;

    /// Runs blocking work on a thread for it, at the priority of a waiting caller or in the background.
    fn apart<T: Send + 'static>(
        &self,
        caller: &Self::Caller,
        is_waited_for: bool,
        work: impl FnOnce(GoesOn<'_, Self::Error>) -> Result<T, Self::Error> + Send + 'static,
    ) -> impl Future<Output = Result<T, Self::Error>> + Send;

    /// Spawns a concurrent task. A panic stays within the task.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static);
}
