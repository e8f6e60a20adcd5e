//! A handle on a running engine for the code that started it.

use std::time::Duration;

use kvik_engine::{engine::Engine, schedule::TenantPart};

use super::fleet::Fleet;

/// Controls the engine: shutdown, tenants, and its exchange with other nodes.
#[derive(Clone)]
pub struct Handle {
    engine: Engine,
    fleet: Option<Fleet>,
}

impl Handle {
    /// A handle on an engine, of a node of a fleet or a single one.
    pub(super) fn new(engine: Engine, fleet: Option<Fleet>) -> Handle {
        Handle { engine, fleet }
    }

    /// Gives running requests up to `grace` to finish.
    pub fn shutdown(&self, grace: Duration) {
        self.engine.shutdown(grace);
    }

    /// Whether the engine belongs to a fleet.
    pub fn is_node(&self) -> bool {
        self.fleet.is_some()
    }

    /// Prefetches the prefixes that other nodes use, for at most `within`.
    pub fn warm(&self, within: Duration) {
        if let Some(fleet) = &self.fleet {
            fleet.warm(&self.engine, within);
        }
    }

    /// Hands hot blocks over to other nodes, for at most `within`.
    pub fn leave(&self, within: Duration) {
        if let Some(fleet) = &self.fleet {
            fleet.leave(&self.engine, within);
        }
    }

    /// Takes back what was reported to other nodes, before the model goes out of memory.
    pub fn forget(&self) {
        if let Some(fleet) = &self.fleet {
            fleet.forget();
        }
    }

    /// Reports the prefixes in use on this node to other nodes.
    pub fn tell(&self) {
        if let Some(fleet) = &self.fleet {
            fleet.renew(&self.engine);
        }
    }

    /// Sets the tenants' weights and quotas.
    pub fn set_tenants(&self, parts: Vec<TenantPart>) {
        // Only a stopping engine refuses, and then weights no longer matter.
        let _ = self.engine.set_tenants(parts);
    }
}
