//! What the prefix tree holds, asked for in slices between steps.

use kvik_cache::{NodeName, OutlineScan, TenantId};

use super::Engine;
use crate::api::{NodeView, RequestError, TreeView};
use crate::schedule::{Describing, Scheduler};

impl Engine {
    /// The heaviest nodes of what one tenant or all have in RAM, at most `limit`; of the part under one node when it is
    /// named, and none when that is not there.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn outline(
        &self,
        tenant: Option<TenantId>,
        limit: usize,
        under: Option<NodeName>,
    ) -> Result<Option<TreeView>, RequestError> {
        let tenant = self.owner(tenant)?;
        let scan = self.in_slices(OutlineScan::new(tenant), Scheduler::scan_outline)?;
        // Put together on this thread, while the engine computes.
        let Some(outline) = scan.heaviest(limit, under) else { return Ok(None) };
        let describing = self.in_slices(Describing::new(outline.nodes, tenant), Scheduler::describe)?;
        let now = self.with_scheduler(|scheduler| scheduler.now())?;
        Ok(Some(TreeView {
            nodes: describing.described(),
            nodes_total: outline.nodes_total,
            tokens_total: outline.tokens_total,
            truncated: outline.truncated,
            now,
        }))
    }

    /// One node of what one tenant or all have in RAM; none when it is not there.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn node(&self, name: NodeName, tenant: Option<TenantId>) -> Result<Option<NodeView>, RequestError> {
        let tenant = self.owner(tenant)?;
        self.with_scheduler(move |scheduler| scheduler.node(name, tenant))
    }

    /// Who owns the prompts of a tenant.
    pub(super) fn owner(&self, tenant: Option<TenantId>) -> Result<Option<TenantId>, RequestError> {
        tenant.map(|tenant| self.with_scheduler(move |scheduler| scheduler.owner(tenant))).transpose()
    }

    /// Takes work to its end, a slice between two steps at a time: `slice` says whether there is another one.
    pub(super) fn in_slices<T: Send + 'static>(
        &self,
        mut work: T,
        slice: fn(&Scheduler, &mut T) -> bool,
    ) -> Result<T, RequestError> {
        loop {
            let more;
            (work, more) = self.with_scheduler(move |scheduler| {
                let more = slice(scheduler, &mut work);
                (work, more)
            })?;
            if !more {
                return Ok(work);
            }
        }
    }
}
