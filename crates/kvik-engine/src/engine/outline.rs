//! Views of the prefix tree, collected in slices between steps.

use kvik_cache::{NodeName, OutlineScan, TenantId};

use super::Engine;
use crate::api::{NodeView, RequestError, TreeView};
use crate::schedule::{Describing, Prefixes};

impl Engine {
    /// The heaviest nodes of one tenant's or all prefixes in RAM, at most `limit`; if `under` names a node, those below
    /// it, or `None` if there is no such node.
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
        let scan = self.in_slices(OutlineScan::new(tenant), Prefixes::scan_outline)?;
        // Computed on the calling thread, while the engine runs.
        let Some(outline) = scan.heaviest(limit, under) else { return Ok(None) };
        let describing = self.in_slices(Describing::new(outline.nodes, tenant), Prefixes::describe)?;
        let now = self.with_scheduler(|scheduler| scheduler.cache().now())?;
        Ok(Some(TreeView {
            nodes: describing.described(),
            nodes_total: outline.nodes_total,
            tokens_total: outline.tokens_total,
            truncated: outline.truncated,
            now,
        }))
    }

    /// A node of one tenant's or all prefixes in RAM; `None` if it is not there.
    ///
    /// # Errors
    /// When the engine stops.
    pub fn node(&self, name: NodeName, tenant: Option<TenantId>) -> Result<Option<NodeView>, RequestError> {
        let tenant = self.owner(tenant)?;
        self.with_scheduler(move |scheduler| scheduler.prefixes.node(name, tenant))
    }

    /// The owner of a tenant's prompts.
    pub(super) fn owner(&self, tenant: Option<TenantId>) -> Result<Option<TenantId>, RequestError> {
        tenant
            .map(|tenant| self.with_scheduler(move |scheduler| scheduler.prefixes.owner(tenant)))
            .transpose()
    }

    /// Runs `slice` between steps until it returns `false`.
    pub(super) fn in_slices<T: Send + 'static>(
        &self,
        mut work: T,
        slice: fn(&Prefixes, &mut T) -> bool,
    ) -> Result<T, RequestError> {
        loop {
            let more;
            (work, more) = self.with_scheduler(move |scheduler| {
                let more = slice(&scheduler.prefixes, &mut work);
                (work, more)
            })?;
            if !more {
                return Ok(work);
            }
        }
    }
}
