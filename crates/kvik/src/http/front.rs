//! The routes that answer, which change while connections are open.

use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;

/// What answers: one router until the model is loaded, another afterwards.
pub(crate) struct Front(RwLock<Router>);

impl Front {
    pub(crate) fn new(router: Router) -> Arc<Front> {
        Arc::new(Front(RwLock::new(router)))
    }

    /// From now on `router` answers, also on connections that are open.
    pub(crate) fn replace(&self, router: Router) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = router;
    }

    pub(super) fn router(&self) -> Router {
        // A router is whole whatever panicked.
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
