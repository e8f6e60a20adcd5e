//! What memory needs of the program that it is part of.

use std::fmt::Display;
use std::sync::Arc;

use kvik_engine::api::{Report, Request};

use super::{Memory, MemoryError};

/// Asks after whether whoever waits is still there: an error where not, which nobody will see.
pub type GoesOn<'a, E> = &'a dyn Fn() -> Result<(), E>;

/// Runs what is done behind answers. Whoever stops waiting for one of its futures cancels the work.
pub trait Host: Send + Sync + Sized + 'static {
    /// On whose account work is done.
    type Caller: Clone + Send + Sync + 'static;
    /// Why something is not done.
    type Error: From<MemoryError> + Display + Send + 'static;

    /// What is remembered.
    fn memory(&self) -> &Arc<Memory<Self>>;

    /// The tenant of a caller: its conversations exist for it alone.
    fn tenant(caller: &Self::Caller) -> &str;

    /// What the model says to a request of a caller who waits, or else of the background, and what that has cost.
    fn said(
        &self,
        caller: &Self::Caller,
        request: Request,
        is_waited_for: bool,
    ) -> impl Future<Output = Result<(String, Report), Self::Error>> + Send;

    /// Does what takes its time on a thread for that, when it is the turn of a caller who waits, or else of the background.
    fn apart<T: Send + 'static>(
        &self,
        caller: &Self::Caller,
        is_waited_for: bool,
        work: impl FnOnce(GoesOn<'_, Self::Error>) -> Result<T, Self::Error> + Send + 'static,
    ) -> impl Future<Output = Result<T, Self::Error>> + Send;

    /// Runs this beside everything else. A panic of it is its own.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static);
}
