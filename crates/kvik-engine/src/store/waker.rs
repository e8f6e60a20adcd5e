//! How a store tells that it has completed something.

use std::sync::{Arc, OnceLock};

type Wake = Box<dyn Fn() + Send + Sync>;

/// Wakes whoever waits for a store; it may not listen yet.
#[derive(Clone, Default)]
pub struct Waker(Arc<OnceLock<Wake>>);

impl Waker {
    /// Something is completed.
    pub fn wake(&self) {
        if let Some(wake) = self.0.get() {
            wake();
        }
    }

    /// From now on `wake` is called, also for what was completed before; only the first caller listens.
    pub(crate) fn listen(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(wake));
        self.wake();
    }
}
