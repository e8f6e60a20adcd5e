//! Leases of sequences that compute nothing, and how the room is divided among tenants.

use crate::cache::{Cache, CacheError};
use crate::evict::{Policy, Share, TenantStats};
use crate::ids::{BLOCK_POSITIONS, NamespaceId, NodeId, SeqId, Token, whole_blocks};
use crate::retain::Retain;
use crate::table::Table;

impl Cache {
    /// Keeps the known whole blocks of `tokens` in the table of a sequence that computes nothing, until it
    /// is [abandoned](Cache::abandon); how many tokens that is. It is no request and counts as none.
    pub fn lease(&mut self, seq: SeqId, namespace: NamespaceId, tokens: &[Token]) -> usize {
        assert!(!self.sequences.contains_key(&seq), "{seq:?} is running already");
        let whole = whole_blocks(tokens);
        let walk = self.radix.walk(self.roots[namespace.index()], whole);
        let shared = self.radix.blocks_of(&walk);
        let held = shared.len() * BLOCK_POSITIONS;
        let lease = self.radix.cut(walk.node, walk.blocks);
        let table = Table::new(shared, lease, Retain::default(), &mut self.radix);
        self.sequences.insert(seq, table);
        held
    }

    /// Gives a namespace to a tenant, and says what is meant for that tenant.
    ///
    /// Costs time in proportion to the tree when the namespace changes hands.
    pub fn set_share(&mut self, namespace: NamespaceId, share: Share) -> Result<(), CacheError> {
        if !(share.weight.is_finite() && share.weight > 0.0) {
            return Err(CacheError::BadWeight(share.tenant));
        }
        self.radix.set_share(namespace, share);
        self.keep_quota(namespace, 0);
        Ok(())
    }

    /// Sets which part of its share a tenant keeps that has asked for nothing for ten minutes, when
    /// others need the room: 0 to 1; 0.5 unless it is set.
    pub fn set_share_floor(&mut self, floor: f64) {
        self.radix.shares.set_floor(floor);
    }

    /// The eviction policy that ranks now; under `auto`, the one that is followed.
    pub fn policy(&self) -> Policy {
        self.radix.evictor.policy()
    }

    /// What every tenant has and did.
    pub fn tenants(&self) -> &[TenantStats] {
        self.radix.shares.all()
    }

    /// Where the whole blocks of `tokens` end, when there are any and all are known: a node, and
    /// how many of its blocks.
    pub(crate) fn whole_prefix(&self, namespace: NamespaceId, tokens: &[Token]) -> Option<(NodeId, usize)> {
        let whole = whole_blocks(tokens);
        let walk = self.radix.walk(self.roots[namespace.index()], whole);
        (walk.tokens == whole.len() && walk.blocks > 0).then_some((walk.node, walk.blocks))
    }
}
