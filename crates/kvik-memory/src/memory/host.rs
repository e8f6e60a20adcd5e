//! The interface that memory needs of the surrounding program.

use std::fmt::Display;
use std::sync::Arc;

use kvik_engine::api::{AdapterMix, Report, Request};

use super::{Memory, MemoryError};

/// Checks that the waiting client is still there: returns an error otherwise, which no client gets.
pub type GoesOn<'a, E> = &'a dyn Fn() -> Result<(), E>;

/// What the model answered to a request of the memory.
#[derive(Debug, Default)]
pub struct Spoken {
    /// Its text.
    pub text: String,
    /// The text ended because there was no room, or no token, for more of it.
    pub is_cut: bool,
    /// The cost.
    pub report: Report,
}

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

    /// Runs a request on the model, at the priority of a waiting caller or in the background.
    fn said(
        &self,
        caller: &Self::Caller,
        request: Request,
        is_waited_for: bool,
    ) -> impl Future<Output = Result<Spoken, Self::Error>> + Send;

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
