//! Divides the space among tenants when it is short, and chooses the victim tenant.
//!
//! Owns the tenant of every namespace and the block counts of every tenant. The division maximises the sum of `weight x
//! log(blocks)` over the tenants: it splits the space by weight, except that no tenant gets more than it asks for.
//! Evicting from the tenant with the most blocks for its weight leads there, block by block, and never takes from a
//! tenant that has less than its share: so a flood of one tenant ends where the working sets of the others begin.
//!
//! A tenant without a request in the last [`DEMAND`] counts with `floor` times its weight: it keeps at least that
//! part of its share, and tenants with demand may use the rest.

use std::cmp::Ordering;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::ids::{NamespaceId, TenantId};

/// A tenant that has admitted nothing for this long has no demand.
const DEMAND: Duration = Duration::from_secs(600);
/// A positive floor close to 0, since it is a divisor.
const FLOOR_MIN: f64 = 1e-9;
/// Weight of a tenant that is gone, which makes way for every other. Not 0 for the same reason.
const GONE: f64 = 1e-30;

/// The tenant of a namespace, and its share of the space.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// The tenant; it may have several namespaces.
    pub tenant: TenantId,
    /// Its weight relative to the other tenants when space is short; more than 0.
    pub weight: f64,
    /// Maximum number of blocks that it keeps, auxiliary state counted in blocks; its running sequences may exceed
    /// it.
    pub quota_blocks: Option<usize>,
    /// Maximum number of blocks that it may pin, within the quota; only the limit for all tenants when `None`.
    pub pinned_max: Option<usize>,
}

/// Holdings and counters of a tenant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TenantStats {
    /// The tenant and its share.
    pub share: Share,
    /// Its blocks in the tree.
    pub blocks: usize,
    /// Pinned blocks among them.
    pub pinned: usize,
    /// Blocks that are withheld for its places.
    pub place_blocks: usize,
    /// Sequences admitted.
    pub admitted: u64,
    /// Admitted sequences that reused at least one token.
    pub hits: u64,
    /// Tokens of the admitted prompts.
    pub prompt_tokens: u64,
    /// Reused tokens among them.
    pub reused_tokens: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// When a sequence was last admitted, on the caller's clock.
    pub(crate) asked: Duration,
    /// Evictable blocks among those in the tree.
    pub(crate) evictable: usize,
}

/// The holdings of a namespace in the tree, which move along when it is assigned to another tenant.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Holding {
    pub(crate) blocks: usize,
    pub(crate) pinned: usize,
    pub(crate) evictable: usize,
    pub(crate) place_blocks: usize,
}

/// All tenants.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Index of the tenant of each namespace.
    owners: FxHashMap<NamespaceId, usize>,
    tenants: Vec<TenantStats>,
    /// Part of its share that a tenant without demand keeps, 0 to 1.
    floor: f64,
}

impl Shares {
    /// No namespaces; each belongs to tenant 0 until [`set`](Shares::set) assigns it to another.
    pub(crate) fn new() -> Shares {
        Shares { owners: FxHashMap::default(), tenants: Vec::new(), floor: 0.5 }
    }

    pub(crate) fn set_floor(&mut self, floor: f64) {
        self.floor = floor.clamp(FLOOR_MIN, 1.0);
    }

    /// Adds a namespace, which belongs to tenant 0.
    pub(crate) fn add_namespace(&mut self, namespace: NamespaceId) {
        let owner =
            self.index_of(Share { tenant: TenantId(0), weight: 1.0, quota_blocks: None, pinned_max: None });
        self.owners.insert(namespace, owner);
    }

    /// Removes a namespace that has no blocks; the counters of its tenant remain.
    pub(crate) fn remove_namespace(&mut self, namespace: NamespaceId) {
        self.owners.remove(&namespace);
    }

    /// Assigns a namespace, with its holdings in the tree, to a tenant.
    pub(crate) fn set(&mut self, namespace: NamespaceId, share: Share, moved: Holding) {
        let (from, to) = (self.owners[&namespace], self.index_of(share));
        self.owners.insert(namespace, to);
        self.tenants[to].share = share;
        self.tenants[from].lose(moved);
        self.tenants[to].gain(moved);
    }

    /// Takes back the shares of all tenants but tenant 0, to which namespaces of nobody belong.
    pub(crate) fn withdraw(&mut self) {
        let tenants = self.tenants.iter_mut().filter(|tenant| tenant.share.tenant != TenantId(0));
        tenants.for_each(|tenant| tenant.share.weight = GONE);
    }

    fn index_of(&mut self, share: Share) -> usize {
        let known = self.tenants.iter().position(|tenant| tenant.share.tenant == share.tenant);
        known.unwrap_or_else(|| {
            self.tenants.push(TenantStats::new(share));
            self.tenants.len() - 1
        })
    }

    /// The tenant of a namespace.
    pub(crate) fn owner(&self, namespace: NamespaceId) -> TenantId {
        self.of(namespace).share.tenant
    }

    /// Blocks of a tenant in the tree.
    pub(crate) fn blocks_of(&self, tenant: TenantId) -> usize {
        self.tenants.iter().find(|known| known.share.tenant == tenant).map_or(0, |known| known.blocks)
    }

    pub(crate) fn of(&self, namespace: NamespaceId) -> &TenantStats {
        &self.tenants[self.owners[&namespace]]
    }

    pub(crate) fn of_mut(&mut self, namespace: NamespaceId) -> &mut TenantStats {
        &mut self.tenants[self.owners[&namespace]]
    }

    pub(crate) fn all(&self) -> &[TenantStats] {
        &self.tenants
    }

    /// The only tenant with blocks in the tree, if there is exactly one.
    pub(crate) fn only_holder(&self) -> Option<TenantId> {
        let mut holders = self.tenants.iter().filter(|tenant| tenant.blocks > 0);
        let first = holders.next()?;
        holders.next().is_none().then_some(first.share.tenant)
    }

    /// The tenants in the order in which they yield victims: most blocks for the weight first.
    ///
    /// `owned` returns the blocks that running sequences of a tenant hold outside the tree.
    pub(crate) fn victim_tenants(&self, now: Duration, owned: impl Fn(TenantId) -> usize) -> Vec<Claim> {
        let claim = |stats: &TenantStats| {
            let demand = if now.saturating_sub(stats.asked) <= DEMAND { 1.0 } else { self.floor };
            let tenant = stats.share.tenant;
            Claim { tenant, held: stats.held() + owned(tenant), weight: stats.share.weight * demand }
        };
        let mut claims: Vec<Claim> = self.tenants.iter().map(claim).collect();
        claims.sort_by(|a, b| a.order(0, b));
        claims
    }
}

/// The blocks and the weight of a tenant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) tenant: TenantId,
    held: usize,
    weight: f64,
}

impl Claim {
    /// How many blocks to evict from this tenant, at most `count` and at least one, before `next` becomes the
    /// victim tenant.
    pub(crate) fn victims(&self, count: usize, next: Option<&Claim>) -> usize {
        let is_first = |evicted: &usize| next.is_none_or(|next| self.order(*evicted, next).is_lt());
        1 + (1..count).take_while(is_first).count()
    }

    /// The order of victim tenants after `evicted` blocks of this one are gone; ties are broken by the lower id.
    fn order(&self, evicted: usize, other: &Claim) -> Ordering {
        let excess = |claim: &Claim, held: usize| held as f64 / claim.weight;
        let by_excess = excess(other, other.held).total_cmp(&excess(self, self.held.saturating_sub(evicted)));
        by_excess.then(self.tenant.cmp(&other.tenant))
    }
}

impl TenantStats {
    /// Blocks in the tree, and those withheld for places.
    pub(crate) fn held(&self) -> usize {
        self.blocks + self.place_blocks
    }

    fn gain(&mut self, moved: Holding) {
        self.blocks += moved.blocks;
        self.pinned += moved.pinned;
        self.evictable += moved.evictable;
        self.place_blocks += moved.place_blocks;
    }

    fn lose(&mut self, moved: Holding) {
        self.blocks -= moved.blocks;
        self.pinned -= moved.pinned;
        self.evictable -= moved.evictable;
        self.place_blocks -= moved.place_blocks;
    }

    pub(crate) fn count_admission(&mut self, prompt_tokens: u64, reused_tokens: u64, now: Duration) {
        self.admitted += 1;
        self.hits += u64::from(reused_tokens > 0);
        self.prompt_tokens += prompt_tokens;
        self.reused_tokens += reused_tokens;
        self.asked = now;
    }

    fn new(share: Share) -> TenantStats {
        TenantStats {
            share,
            blocks: 0,
            pinned: 0,
            place_blocks: 0,
            admitted: 0,
            hits: 0,
            prompt_tokens: 0,
            reused_tokens: 0,
            evicted: 0,
            asked: Duration::ZERO,
            evictable: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(blocks: &[(f64, usize)]) -> Shares {
        let mut shares = Shares::new();
        for (index, &(weight, blocks)) in blocks.iter().enumerate() {
            let namespace = NamespaceId(index as u32);
            shares.add_namespace(namespace);
            shares.of_mut(namespace).blocks += blocks;
            let tenant = TenantId(index as u32 + 1);
            let holding = Holding { blocks, ..Holding::default() };
            shares.set(namespace, Share { tenant, weight, quota_blocks: None, pinned_max: None }, holding);
        }
        shares
    }

    #[test]
    fn the_victim_tenant_has_the_most_for_its_weight() {
        let shares = shares(&[(1.0, 10), (3.0, 24), (1.0, 9)]);
        let first = |owned: [usize; 3]| {
            shares.victim_tenants(Duration::ZERO, |tenant| {
                // `Nobody`, tenant 0, owns nothing.
                let index = (tenant.0 as usize).checked_sub(1);
                index.and_then(|index| owned.get(index).copied()).unwrap_or(0)
            })[0]
                .tenant
        };
        assert_eq!(first([0, 0, 0]), TenantId(1));
        assert_eq!(first([0, 7, 0]), TenantId(2), "what its sequences hold counts");
        assert_eq!(first([0, 0, 2]), TenantId(3));
    }

    #[test]
    fn a_victim_tenant_yields_until_another_has_more() {
        let claims = [(1, 10, 1.0), (2, 6, 1.0)].map(|(tenant, held, weight)| Claim {
            tenant: TenantId(tenant),
            held,
            weight,
        });
        let victims = |from: usize, count| claims[from].victims(count, claims.get(from + 1));
        // From 10 to 5: at 6 both have equal excess, and the lower id comes first.
        assert_eq!((victims(0, 100), victims(0, 3), victims(1, 4)), (5, 3, 4));
    }

    #[test]
    fn a_tenant_whose_share_is_taken_back_yields_first_until_it_is_set_again() {
        let mut shares = shares(&[(1.0, 2), (0.001, 900)]);
        let first = |shares: &Shares| shares.victim_tenants(Duration::ZERO, |_| 0)[0].tenant;
        assert_eq!(first(&shares), TenantId(2));
        shares.withdraw();
        let share = |tenant, weight| Share { tenant, weight, quota_blocks: None, pinned_max: None };
        shares.set(NamespaceId(1), share(TenantId(2), 0.001), Holding::default());
        assert_eq!(first(&shares), TenantId(1));
        shares.set(NamespaceId(0), share(TenantId(1), 1.0), Holding::default());
        assert_eq!(first(&shares), TenantId(2));
        assert_eq!(shares.all()[0].share.weight, 1.0, "tenant 0 is never gone");
    }

    #[test]
    fn without_demand_the_floor_is_kept() {
        let mut shares = shares(&[(1.0, 10), (1.0, 14)]);
        let later = DEMAND + Duration::from_secs(1);
        shares.of_mut(NamespaceId(1)).asked = later;
        let first = |shares: &Shares| shares.victim_tenants(later, |_| 0)[0].tenant;
        assert_eq!(first(&shares), TenantId(1), "10 blocks at half a share are more than 14 at a whole one");
        shares.set_floor(0.9);
        assert_eq!(first(&shares), TenantId(2));
    }
}
