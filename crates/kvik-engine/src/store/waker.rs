//! Notifies the engine that the store has completed an operation.

use std::sync::{Arc, OnceLock};

type Wake = Box<dyn Fn() + Send + Sync>;

/// Wakes the engine, which may register only after the store has been opened.
#[derive(Clone, Default)]
pub struct Waker(Arc<OnceLock<Wake>>);

impl Waker {
    /// Reports a completed operation.
    pub fn wake(&self) {
        if let Some(wake) = self.0.get() {
            wake();
        }
    }

    /// Registers `wake` and calls it once for operations completed before; later registrations are ignored.
    pub(crate) fn listen(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(wake));
        self.wake();
    }
}
