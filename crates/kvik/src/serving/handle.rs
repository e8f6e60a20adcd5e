//! A running engine in the hands of whoever started it.

use std::{sync::Arc, time::Duration};

use kvik_engine::engine::Engine;
use kvik_memory::shared::SharedRecords;

use super::fleet::Fleet;
use crate::accounts::tenants::Tenants;

/// Controls the engine: shutdown, tenants, and what it tells other nodes.
#[derive(Clone)]
pub(crate) struct Handle {
    engine: Engine,
    fleet: Option<Fleet>,
}

impl Handle {
    /// Of an engine, which is a node of a fleet or alone.
    pub(super) fn new(engine: Engine, fleet: Option<Fleet>) -> Handle {
        Handle { engine, fleet }
    }

    /// Gives running requests up to `grace` to finish.
    pub(crate) fn shutdown(&self, grace: Duration) {
        self.engine.shutdown(grace);
    }

    /// What it shares with other nodes besides blocks.
    pub(crate) fn shared_records(&self) -> Option<Arc<dyn SharedRecords>> {
        self.fleet.as_ref().map(Fleet::records)
    }

    /// Whether it is one node of many.
    pub(crate) fn is_node(&self) -> bool {
        self.fleet.is_some()
    }

    /// Takes over what other nodes use, for at most `within`.
    pub(crate) fn warm(&self, within: Duration) {
        if let Some(fleet) = &self.fleet {
            fleet.warm(&self.engine, within);
        }
    }

    /// Leaves what is hot to other nodes, for at most `within`.
    pub(crate) fn leave(&self, within: Duration) {
        if let Some(fleet) = &self.fleet {
            fleet.leave(&self.engine, within);
        }
    }

    /// Tells other nodes what is used here.
    pub(crate) fn tell(&self) {
        if let Some(fleet) = &self.fleet {
            fleet.renew(&self.engine);
        }
    }

    /// Sets the tenants' weights and quotas.
    pub(crate) fn set_tenants(&self, tenants: &Tenants) {
        // Only a stopping engine refuses, and then weights no longer matter.
        let _ = self.engine.set_tenants(tenants.parts());
    }
}
