//! What a long conversation holds where layers have windows, and what of it comes back.

use kvik_cache::{
    Admission, AuxiliaryState, BLOCK_POSITIONS, Cache, CacheConfig, Lifetime, NamespaceId, Namespaces,
    Policy, Reach, SeqId, Share, StopReason, TenantId, TenantStats, Token, Windows,
};

/// Of 62 layers, 10 that see all positions and 52 that see the last 1,024, as in Gemma 3 27B; a layer's part of a block is
/// the unit of bytes.
const GEMMA: AuxiliaryState = AuxiliaryState {
    block_bytes: 10,
    windows: Some(Windows { reach: Reach::Last(1024), part_bytes: 52, step_positions: 640 }),
    state_bytes: 0,
};
const LAYERS: usize = 62;
const TOKENS: usize = 32_768;
const STEP: usize = 512;

fn cache(auxiliary: AuxiliaryState, blocks: usize) -> (Cache, NamespaceId) {
    let config = CacheConfig { blocks, policy: Policy::Lru, ghosts: 64, pinned_max: 0 };
    let mut cache = Cache::new(config).unwrap();
    cache.hold_auxiliary(auxiliary);
    let namespaces = Namespaces { model: [1; 32], kv_format: "f16", adapter: None };
    let namespace = cache.namespace(&namespaces.shared([0; 16]));
    (cache, namespace)
}

/// Computes all of `tokens` as a scheduler does, and returns the tokens reused and the blocks' worth held at most.
fn compute(cache: &mut Cache, namespace: NamespaceId, seq: u64, tokens: &[Token]) -> (usize, usize) {
    let seq = SeqId(seq);
    let (positions, lifetime) = (tokens.len(), Lifetime::default());
    let reuse_max = tokens.len() - 1;
    let admission = Admission { seq, namespace, prompt: tokens, reuse_max, positions, lifetime };
    let reused = cache.admit(admission).unwrap().reused;
    let (mut stored, mut most) = (reused, 0);
    while stored < tokens.len() {
        let end = (stored + STEP).min(tokens.len());
        cache.prepare(seq, stored, end);
        cache.publish(seq, &tokens[..end]);
        cache.advance(seq, end);
        stored = end;
        let stats = cache.stats();
        most = most.max(stats.owned + stats.shared + stats.withheld);
    }
    cache.finish(seq, tokens);
    cache.check().unwrap();
    (reused, most)
}

#[test]
fn a_long_conversation_holds_less_than_a_third_of_a_full_cache() {
    let full = TOKENS / BLOCK_POSITIONS * LAYERS / GEMMA.block_bytes;
    let (mut cache, namespace) = cache(GEMMA, full);
    let tokens: Vec<Token> = (0..TOKENS as Token).collect();
    let (reused, most) = compute(&mut cache, namespace, 1, &tokens);
    assert_eq!(reused, 0);
    let share = most as f64 / full as f64;
    println!("at most {most} of {full} blocks' worth: {:.1}%", 100.0 * share);
    assert!(share < 0.3, "{share}");

    // Its next turn goes on at its end, another answer at the end of its prompt.
    let next: Vec<Token> = tokens.iter().copied().chain(1_000_000..1_000_200).collect();
    assert_eq!(cache.lookup(namespace, &next).tokens, TOKENS);
    // A window that nobody kept is said to be what is missing.
    let forked: Vec<Token> = tokens[..TOKENS / 2].iter().copied().chain([7]).collect();
    let found = cache.lookup(namespace, &forked);
    assert_eq!((found.tokens, found.stop), (0, StopReason::WindowDropped));
    // It is kept where prompts part once this was seen.
    assert_eq!(compute(&mut cache, namespace, 2, &forked).0, 0);
    let again: Vec<Token> = tokens[..TOKENS / 2].iter().copied().chain([8, 9]).collect();
    assert_eq!(cache.lookup(namespace, &again).tokens, TOKENS / 2);
}

/// A fork in the middle of a run goes on from the nearest state, and the distances between states double.
#[test]
fn a_fork_goes_on_from_the_nearest_state() {
    let auxiliary = AuxiliaryState { block_bytes: 1, windows: None, state_bytes: 20 };
    let (mut cache, namespace) = cache(auxiliary, 10_000);
    let tokens: Vec<Token> = (0..8192).collect();
    compute(&mut cache, namespace, 1, &tokens);
    for fork in (64..8192).step_by(333) {
        let prompt: Vec<Token> = tokens[..fork].iter().copied().chain([9_999]).collect();
        let found = cache.lookup(namespace, &prompt);
        let lost = fork - found.tokens;
        let before_end = 8192 - fork;
        assert!(
            lost <= 2 * before_end.max(128),
            "{lost} tokens are computed again {before_end} before the end"
        );
    }
    let same = cache.lookup(namespace, &tokens);
    assert_eq!((same.tokens, same.stop), (8192, StopReason::Complete));
}

/// A sequence computes the last token of its prompt, so it cannot go on from the state after it.
#[test]
fn a_state_behind_what_may_be_reused_is_of_no_use() {
    let auxiliary = AuxiliaryState { block_bytes: 1, windows: None, state_bytes: 20 };
    let (mut cache, namespace) = cache(auxiliary, 1_000);
    let prompt: Vec<Token> = (0..40).collect();
    compute(&mut cache, namespace, 1, &prompt);
    let check = |reuse_max: usize, expect| {
        let found = cache.lookup_up_to(namespace, &prompt, reuse_max);
        assert_eq!((found.tokens, found.stop), expect, "up to {reuse_max}");
    };
    check(40, (40, StopReason::Complete));
    check(39, (32, StopReason::NoStateKept));
    check(32, (32, StopReason::Complete));
    check(31, (0, StopReason::NoStateKept));
    let lifetime = Lifetime::default();
    let admission =
        Admission { seq: SeqId(2), namespace, prompt: &prompt, reuse_max: 39, positions: 40, lifetime };
    let admitted = cache.admit(admission).unwrap();
    assert_eq!((admitted.reused, admitted.stop), (32, StopReason::NoStateKept));
}

/// States of 20 blocks' worth; a namespace of each of two tenants, of which the first has this quota.
fn two_tenants(quota_blocks: Option<usize>) -> (Cache, [NamespaceId; 2]) {
    let (mut cache, _) = cache(AuxiliaryState { block_bytes: 1, windows: None, state_bytes: 20 }, 1_000);
    let namespaces = Namespaces { model: [1; 32], kv_format: "f16", adapter: None };
    let owned = [1, 2].map(|tenant| {
        let namespace = cache.namespace(&namespaces.shared([tenant; 16]));
        let quota_blocks = quota_blocks.filter(|_| tenant == 1);
        let tenant = TenantId(tenant.into());
        cache.set_share(namespace, Share { tenant, weight: 1.0, quota_blocks, pinned_max: None }).unwrap();
        namespace
    });
    (cache, owned)
}

fn held(cache: &Cache, tenant: u32) -> TenantStats {
    *cache.tenants().iter().find(|stats| stats.share.tenant == TenantId(tenant)).unwrap()
}

#[test]
fn a_flood_of_one_tenant_takes_no_places_of_another_below_its_share() {
    let (mut cache, [flood, calm]) = two_tenants(None);
    let prompt: Vec<Token> = (0..2000).collect();
    compute(&mut cache, calm, 1, &prompt);
    let before = held(&cache, 2);
    assert!(before.place_blocks >= 80 && before.blocks + before.place_blocks < 500, "{before:?}");
    for seq in 2..60 {
        let other: Vec<Token> = (0..500).map(|token| 10_000 * seq + token).collect();
        compute(&mut cache, flood, seq.into(), &other);
    }
    let (flooded, after) = (held(&cache, 1), held(&cache, 2));
    assert_eq!((after.blocks, after.place_blocks, after.evicted), (before.blocks, before.place_blocks, 0));
    assert!(flooded.evicted > 0 && cache.stats().totals.places_evicted > 0);
    assert_eq!(cache.lookup(calm, &prompt).tokens, 2000);
}

#[test]
fn a_quota_counts_what_stands_beside_blocks() {
    let (mut cache, [bound, free]) = two_tenants(Some(100));
    for seq in 1..20 {
        let prompt: Vec<Token> = (0..500).map(|token| 10_000 * seq + token).collect();
        for namespace in [bound, free] {
            compute(&mut cache, namespace, u64::from(seq), &prompt);
        }
        let TenantStats { blocks, place_blocks, .. } = held(&cache, 1);
        assert!(blocks + place_blocks <= 100 && place_blocks >= 20, "{blocks} and {place_blocks}");
        assert_eq!(cache.lookup(bound, &prompt).tokens, 500, "the last one is there");
    }
    assert!(held(&cache, 2).place_blocks > 100);
}

/// A round of prompts that needs five sixths of the pool for states, which nothing else needs, is found again.
#[test]
fn places_have_as_much_of_the_pool_as_they_are_worth() {
    let (mut cache, namespace) =
        cache(AuxiliaryState { block_bytes: 1, windows: None, state_bytes: 20 }, 1_000);
    let mut round = |seqs: std::ops::Range<u64>| {
        let prompt = |index: u64| (0..100).map(|token| (10_000 * index + token) as Token).collect::<Vec<_>>();
        seqs.map(|seq| compute(&mut cache, namespace, seq, &prompt(seq % 18)).0).collect::<Vec<usize>>()
    };
    assert_eq!(round(0..18), [0; 18]);
    assert_eq!(round(18..36), [80; 18]);
    assert!(cache.stats().places_evictable > 700, "{:?}", cache.stats());
}

/// The simulator found this: what is read of a long prefix leaves out the windowed parts of its first blocks, and one of
/// those took over the place of a partial block that it extends, as if it had the part that the place keeps.
#[test]
fn a_block_without_its_windowed_part_takes_over_no_place() {
    let windows = Windows { reach: Reach::Last(8), part_bytes: 1, step_positions: STEP };
    let (mut cache, namespace) =
        cache(AuxiliaryState { block_bytes: 1, windows: Some(windows), state_bytes: 0 }, 200);
    let long: Vec<Token> = (0..128).collect();
    compute(&mut cache, namespace, 1, &long[..20]);
    let other = [&long[..20], &[9_999; 20]].concat();
    assert_eq!(cache.lookup(namespace, &other).tokens, 20);

    let read = SeqId(2);
    cache.lease(read, namespace, &[]);
    cache.set_lifetime(read, Lifetime::default());
    cache.reserve(read, long.len()).unwrap();
    cache.advance(read, long.len());
    cache.publish(read, &long);
    assert!(!cache.needs_part(read, 1) && !cache.has_part(cache.table(read)[1]));
    cache.finish(read, &long);
    cache.check().unwrap();
    assert_eq!(cache.lookup(namespace, &other).tokens, 0);
    assert_eq!(cache.lookup(namespace, &long).tokens, 128);
}
