//! The active router, which changes while connections are open.

use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;

/// The active router: one until the model is loaded, another afterwards.
pub struct Front(RwLock<Router>);

impl Front {
    /// A front of these routes.
    pub fn new(router: Router) -> Arc<Front> {
        Arc::new(Front(RwLock::new(router)))
    }

    /// Replaces the router, also for connections that are open.
    pub fn replace(&self, router: Router) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = router;
    }

    pub(super) fn router(&self) -> Router {
        // A panic leaves the router intact.
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
