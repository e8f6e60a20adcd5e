//! When space is short, tenants get what maximises the sum of weight x log(blocks).

use kvik_cache::{
    Admission, Cache, CacheConfig, Lifetime, NamespaceId, Namespaces, Policy, SeqId, Share, TenantId, Token,
};

const BLOCKS: usize = 1_000;
/// Blocks of one request.
const REQUEST: usize = 5;

/// A tenant that goes round `demand` blocks, in requests of five.
struct Tenant {
    namespace: NamespaceId,
    weight: f64,
    demand: usize,
    asked: usize,
}

impl Tenant {
    fn ask(&mut self, cache: &mut Cache) {
        let turn = self.asked % (self.demand / REQUEST);
        let first = (turn * REQUEST * 16) as Token;
        let prompt: Vec<Token> = (first..first + REQUEST as Token * 16).collect();
        self.asked += 1;
        let (seq, prompt, namespace) = (SeqId(0), &prompt[..], self.namespace);
        let (reuse_max, positions, lifetime) = (prompt.len() - 1, prompt.len(), Lifetime::default());
        cache.admit(Admission { seq, namespace, prompt, reuse_max, positions, lifetime }).unwrap();
        cache.finish(seq, prompt);
    }
}

/// The division that maximises the sum of weight x log(blocks), none above its demand: everybody
/// gets the same for his weight, except who wants less.
fn best_division(tenants: &[Tenant]) -> Vec<f64> {
    let given = |level: f64| tenants.iter().map(move |t| (t.weight * level).min(t.demand as f64));
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if given(middle).sum::<f64>() > BLOCKS as f64 { high = middle } else { low = middle }
    }
    given(low).collect()
}

fn check(seed: u64) {
    let mut random = Random(seed);
    let mut cache =
        Cache::new(CacheConfig { blocks: BLOCKS, policy: Policy::Lru, ghosts: 0, pinned_max: 0 }).unwrap();
    let count = 2 + random.below(4);
    let mut tenants: Vec<Tenant> = (0..count)
        .map(|index| {
            let namespaces = Namespaces { model: [0; 32], kv_format: "f16/f16", adapter: None };
            let namespace = cache.namespace(&namespaces.shared([index as u8; 16]));
            let weight = 0.5 + random.below(8) as f64 / 2.0;
            let share =
                Share { tenant: TenantId(index as u32 + 1), weight, quota_blocks: None, pinned_max: None };
            cache.set_share(namespace, share).unwrap();
            let demand = REQUEST * (5 + random.below([20, 400][index as usize % 2]) as usize);
            Tenant { namespace, weight, demand, asked: 0 }
        })
        .collect();
    for _ in 0..8_000 {
        let index = random.below(count) as usize;
        tenants[index].ask(&mut cache);
    }
    cache.check().unwrap();
    let best = best_division(&tenants);
    for (index, (tenant, best)) in tenants.iter().zip(best).enumerate() {
        let stats = cache.tenants().iter().find(|t| t.share.tenant == TenantId(index as u32 + 1)).unwrap();
        let (blocks, slack) = (stats.blocks as f64, 2.0 * (REQUEST * tenants.len()) as f64);
        assert!((blocks - best).abs() <= slack, "seed {seed}: tenant {index} has {blocks}, best is {best}");
        assert!(blocks <= tenant.demand as f64);
    }
}

#[test]
fn the_division_is_the_best_for_all() {
    (0..60).for_each(check);
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % end
    }
}
