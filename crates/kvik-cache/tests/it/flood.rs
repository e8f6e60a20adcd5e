//! One tenant's flood does not push out another's working set.

use kvik_cache::{
    Admission, Cache, CacheConfig, Lifetime, NamespaceId, Namespaces, Policy, SeqId, Share, TenantId, Token,
};

const BLOCKS: usize = 2_000;
const ROUNDS: u32 = 400;
/// Conversations of tenant A; each turn adds two blocks, so they come to about 800 blocks.
const CONVERSATIONS: usize = 16;

/// Two tenants of equal weight, or A alone with half of the room.
struct Service {
    cache: Cache,
    a: NamespaceId,
    b: NamespaceId,
    conversations: Vec<Vec<Token>>,
    unique: Token,
}

impl Service {
    fn new(blocks: usize, policy: Policy, shared: bool) -> Service {
        let mut cache = Cache::new(CacheConfig { blocks, policy, ghosts: blocks, pinned_max: 0 }).unwrap();
        let [a, b] = [1, 2].map(|salt| {
            let namespaces = Namespaces { model: [0; 32], kv_format: "f16/f16", adapter: None };
            cache.namespace(&namespaces.shared([salt; 16]))
        });
        if !shared {
            for (namespace, tenant) in [(a, 1), (b, 2)] {
                let share =
                    Share { tenant: TenantId(tenant), weight: 1.0, quota_blocks: None, pinned_max: None };
                cache.set_share(namespace, share).unwrap();
            }
        }
        Service { cache, a, b, conversations: vec![Vec::new(); CONVERSATIONS], unique: 1 << 20 }
    }

    fn request(&mut self, namespace: NamespaceId, prompt: &[Token]) -> usize {
        let (seq, reuse_max) = (SeqId(0), prompt.len() - 1);
        let lifetime = Lifetime::default();
        let admission = Admission { seq, namespace, prompt, reuse_max, positions: prompt.len(), lifetime };
        let reused = self.cache.admit(admission).unwrap().reused;
        self.cache.finish(seq, prompt);
        reused
    }

    /// The next turn of one of A's conversations; it starts anew when it has become long.
    fn turn(&mut self, round: u32) -> (usize, usize) {
        let index = round as usize % CONVERSATIONS;
        let mut prompt = std::mem::take(&mut self.conversations[index]);
        prompt.extend((0..32).map(|token| round * 32 + token));
        let reused = self.request(self.a, &prompt);
        let length = prompt.len();
        self.conversations[index] = prompt;
        (reused, length)
    }

    /// Ten prompts of 100 blocks that nobody ever sends again.
    fn flood(&mut self) {
        for _ in 0..10 {
            let prompt: Vec<Token> = (self.unique..self.unique + 1600).collect();
            self.unique += 1600;
            self.request(self.b, &prompt);
        }
    }
}

/// The share of A's prompt tokens that were reused, over the second half of the rounds.
fn hit_rate_of_a(mut service: Service, flooded: bool) -> f64 {
    let (mut reused, mut all) = (0, 0);
    for round in 0..ROUNDS {
        if flooded {
            service.flood();
        }
        let (hits, length) = service.turn(round);
        if round >= ROUNDS / 2 {
            (reused, all) = (reused + hits, all + length);
        }
    }
    service.cache.check().unwrap();
    reused as f64 / all as f64
}

#[test]
fn a_flood_takes_two_points_at_most() {
    for policy in Policy::ALL {
        let alone = hit_rate_of_a(Service::new(BLOCKS / 2, policy, false), false);
        let flooded = hit_rate_of_a(Service::new(BLOCKS, policy, false), true);
        assert!(alone > 0.9, "{}: alone {alone}", policy.name());
        assert!(flooded > alone - 0.02, "{}: {flooded} under the flood, {alone} alone", policy.name());
    }
    // Without shares the same flood does push it out: the test would see it.
    let shared = hit_rate_of_a(Service::new(BLOCKS, Policy::Lru, true), true);
    assert!(shared < 0.5, "one tenant for both: {shared}");
}
