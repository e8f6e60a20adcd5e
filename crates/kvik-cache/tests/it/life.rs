//! The life of sequences, told as short stories through the public interface.

use kvik_cache::{
    Admission, Admitted, Cache, CacheConfig, CacheError, Lifetime, Namespace, NamespaceId, Namespaces,
    NoSpace, Policy, RaisedPriority, SeqId, StopReason, Token,
};

fn cache(blocks: usize) -> (Cache, NamespaceId) {
    let mut cache =
        Cache::new(CacheConfig { blocks, policy: Policy::Lru, ghosts: 64, pinned_max: blocks / 2 }).unwrap();
    let namespace = cache.namespace(&namespace_of(0));
    (cache, namespace)
}

fn namespace_of(salt: u8) -> Namespace {
    Namespaces { model: [1; 32], kv_format: "f16/f16", adapter: None }.shared([salt; 16])
}

/// Admits `prompt`, leaving its last token to compute.
fn admit(cache: &mut Cache, namespace: NamespaceId, seq: u64, prompt: &[Token]) -> Result<Admitted, NoSpace> {
    let (reuse_max, positions) = (prompt.len() - 1, prompt.len());
    let lifetime = Lifetime::default();
    cache.admit(Admission { seq: SeqId(seq), namespace, prompt, reuse_max, positions, lifetime })
}

/// Runs `tokens` from start to end.
fn run(cache: &mut Cache, namespace: NamespaceId, tokens: &[Token]) -> Admitted {
    let admitted = admit(cache, namespace, u64::MAX, tokens).unwrap();
    cache.finish(SeqId(u64::MAX), tokens);
    cache.check().unwrap();
    admitted
}

fn tokens(range: std::ops::Range<u32>) -> Vec<Token> {
    range.collect()
}

#[test]
fn a_follow_up_turn_reuses_to_the_exact_token() {
    let (mut cache, namespace) = cache(16);
    run(&mut cache, namespace, &tokens(0..37));
    let known = cache.lookup(namespace, &tokens(0..100));
    assert_eq!((known.tokens, known.stop), (37, StopReason::FirstSeen));
    let admitted = admit(&mut cache, namespace, 1, &tokens(0..100)).unwrap();
    let copy = admitted.copy.expect("the tail of 5 tokens is copied");
    assert_eq!((admitted.reused, copy.positions), (37, 5));
    assert_eq!(copy.to, cache.table(SeqId(1))[2]);
    cache.finish(SeqId(1), &tokens(0..100));
    cache.check().unwrap();
    let stats = cache.stats();
    assert_eq!((stats.tokens, stats.shared), (100, 7), "the full block supersedes the partial one");
    assert_eq!(cache.lookup(namespace, &tokens(0..100)).stop, StopReason::Complete);
}

#[test]
fn a_prompt_that_diverges_inside_a_block_copies_the_partial_block() {
    let (mut cache, namespace) = cache(16);
    run(&mut cache, namespace, &tokens(0..64));
    let mut prompt = tokens(0..64);
    prompt[39] = 1000;
    let admitted = admit(&mut cache, namespace, 1, &prompt).unwrap();
    assert_eq!((admitted.reused, admitted.stop), (39, StopReason::Diverged));
    assert_eq!(admitted.copy.unwrap().positions, 7);
    cache.abandon(SeqId(1));
    cache.check().unwrap();
}

#[test]
fn equal_sequences_that_run_together_end_up_on_the_same_blocks() {
    let (mut cache, namespace) = cache(8);
    let prompt = tokens(0..48);
    for seq in [1, 2] {
        assert_eq!(admit(&mut cache, namespace, seq, &prompt).unwrap().reused, 0);
    }
    for seq in [1, 2] {
        cache.publish(SeqId(seq), &prompt);
        cache.check().unwrap();
    }
    assert_eq!(cache.table(SeqId(1)), cache.table(SeqId(2)));
    let stats = cache.stats();
    assert_eq!((stats.shared, stats.owned, stats.totals.duplicates), (3, 0, 3));
}

#[test]
fn what_runs_is_never_evicted_and_what_does_not_fit_changes_nothing() {
    let (mut cache, namespace) = cache(4);
    run(&mut cache, namespace, &tokens(100..132));
    admit(&mut cache, namespace, 1, &tokens(0..48)).unwrap();
    let before = cache.stats();
    assert_eq!((before.free, before.owned, before.evictable), (0, 3, 1));
    let refused = admit(&mut cache, namespace, 2, &tokens(200..240)).unwrap_err();
    assert_eq!(refused, NoSpace { needed: 3, available: 1 });
    assert_eq!(cache.reserve(SeqId(1), 81), Err(NoSpace { needed: 3, available: 1 }));
    let after = cache.stats();
    assert_eq!((after.free, after.owned, after.evictable), (0, 3, 1));
    cache.reserve(SeqId(1), 64).unwrap();
    assert_eq!(cache.stats().shared, 0);
    cache.check().unwrap();
}

#[test]
fn the_tail_of_the_longest_unused_prefix_goes_first() {
    let (mut cache, namespace) = cache(4);
    run(&mut cache, namespace, &tokens(0..32));
    run(&mut cache, namespace, &tokens(100..132));
    run(&mut cache, namespace, &tokens(200..216));
    let known = |cache: &Cache, from| cache.lookup(namespace, &tokens(from..from + 32));
    assert_eq!((known(&cache, 0).tokens, known(&cache, 0).stop), (16, StopReason::Evicted));
    assert_eq!(known(&cache, 100).tokens, 32);
    run(&mut cache, namespace, &tokens(0..32));
    assert_eq!(known(&cache, 0).tokens, 32);
    assert_eq!(known(&cache, 100).tokens, 16, "the use of 0..32 made it newer");
}

/// A board that starts in 1970 is told the time after its first requests.
#[test]
fn an_eviction_is_as_long_ago_as_it_was_before_the_clock_was_set() {
    use std::time::Duration;
    let (mut cache, namespace) = cache(4);
    let (secs, told) = (Duration::from_secs, Duration::from_secs(56 * 365 * 24 * 3600));
    let ago = |cache: &Cache, from: u32| {
        let evicted = cache.lookup(namespace, &tokens(from..from + 32)).evicted.unwrap();
        cache.now() - evicted.at
    };
    cache.set_now(secs(10));
    run(&mut cache, namespace, &tokens(0..32));
    run(&mut cache, namespace, &tokens(100..132));
    run(&mut cache, namespace, &tokens(200..216));
    for now in [secs(15), told] {
        cache.set_now(now);
        assert_eq!(ago(&cache, 0), secs(5), "at {now:?}");
    }
    run(&mut cache, namespace, &tokens(0..32));
    cache.set_now(told + secs(3));
    assert_eq!(ago(&cache, 100), secs(3));
}

#[test]
fn a_fork_shares_full_blocks_and_copies_the_tail() {
    let (mut cache, namespace) = cache(8);
    let prompt = tokens(0..40);
    admit(&mut cache, namespace, 1, &prompt).unwrap();
    let copy = cache.fork(SeqId(1), SeqId(2), &prompt).unwrap().copy.unwrap();
    assert_eq!((copy.from, copy.to, copy.positions), (cache.table(SeqId(1))[2], cache.table(SeqId(2))[2], 8));
    assert_eq!(cache.table(SeqId(1))[..2], cache.table(SeqId(2))[..2]);
    assert_eq!(cache.fork(SeqId(1), SeqId(3), &prompt[..32]).unwrap().copy, None);
    cache.check().unwrap();
    assert_eq!((cache.stats().shared, cache.stats().owned), (2, 2));
}

#[test]
fn a_cancelled_prefill_leaves_its_finished_blocks() {
    let (mut cache, namespace) = cache(8);
    let prompt = tokens(0..64);
    admit(&mut cache, namespace, 1, &prompt).unwrap();
    cache.publish(SeqId(1), &prompt[..40]);
    cache.abandon(SeqId(1));
    cache.check().unwrap();
    assert_eq!(cache.lookup(namespace, &prompt).tokens, 32);
    assert_eq!(cache.stats().free, 6);
}

#[test]
fn namespaces_never_share() {
    let (mut cache, namespace) = cache(8);
    run(&mut cache, namespace, &tokens(0..32));
    let other = cache.namespace(&namespace_of(9));
    assert_ne!(namespace, other);
    assert_eq!(namespace, cache.namespace(&namespace_of(0)));
    assert_eq!(cache.lookup(other, &tokens(0..32)).tokens, 0);
    assert_eq!(run(&mut cache, other, &tokens(0..32)).reused, 0);
    assert_eq!(cache.stats().shared, 4);
}

#[test]
fn a_thousand_conversations_hold_their_common_prompt_once() {
    let (mut cache, namespace) = cache(4096);
    for conversation in 0..1000 {
        let mut prompt = tokens(0..2000);
        prompt.extend([10_000 + conversation; 20]);
        run(&mut cache, namespace, &prompt);
    }
    assert_eq!(cache.stats().shared, 125 + 2 * 1000, "2,000 tokens are 125 blocks");
}

#[test]
fn the_closest_of_many_siblings_is_found() {
    let (mut cache, namespace) = cache(40_000);
    run(&mut cache, namespace, &tokens(0..16));
    let sibling = |number: u32| [tokens(0..16), vec![number / 100, number % 100, 7], vec![3; 13]].concat();
    for number in (0..20_000).step_by(2) {
        let prompt = sibling(number);
        admit(&mut cache, namespace, 1, &prompt).unwrap();
        cache.finish(SeqId(1), &prompt);
    }
    cache.check().unwrap();
    for number in 0..20_000 {
        let known = cache.lookup(namespace, &sibling(number));
        let expected = if number % 2 == 0 { (32, StopReason::Complete) } else { (17, StopReason::Diverged) };
        assert_eq!((known.tokens, known.stop), expected, "sibling {number}");
    }
}

#[test]
fn a_cache_without_blocks_is_refused() {
    let config = CacheConfig { blocks: 0, policy: Policy::Lru, ghosts: 0, pinned_max: 0 };
    assert_eq!(Cache::new(config).unwrap_err(), CacheError::NoBlocks);
}

#[test]
fn tenants_share_a_public_prompt_and_nothing_else() {
    let (mut cache, public) = cache(64);
    let prompt = tokens(0..100);
    run(&mut cache, public, &prompt);
    let [a, b] = [1, 2].map(|salt| cache.derive_namespace(public, &prompt, &namespace_of(salt)).unwrap());
    assert_ne!(a, b);
    let question: Vec<Token> = tokens(0..96).into_iter().chain(tokens(500..540)).collect();
    assert_eq!(run(&mut cache, a, &question).reused, 96, "whole blocks of the public prompt");
    assert_eq!(run(&mut cache, a, &question).reused, 135);
    let known = cache.lookup(b, &question);
    assert_eq!((known.tokens, known.stop), (96, StopReason::FirstSeen), "as if nobody had asked it");
    assert_eq!(cache.lookup(public, &question).tokens, 96);
    assert!(!cache.continues(a, &tokens(0..96)) && !cache.continues(a, &tokens(7..300)));
    assert_eq!(cache.lookup(a, &tokens(7..300)).tokens, 0);

    assert_eq!(cache.stats().shared, 7 + 3, "the public prompt is there once");
    cache.clear(Some(public));
    assert_eq!(cache.lookup(a, &question).tokens, 136, "the base of a derived namespace stays");
    assert!(
        cache.drop_derived(a)
            && cache.drop_derived(b)
            && !cache.drop_derived(b)
            && !cache.drop_derived(public)
    );
    assert_eq!(cache.clear(None), 6);
    cache.check().unwrap();
}

/// The simulator found it: 17 tokens that were to be kept for ever went with the 40 that continued them.
#[test]
fn what_replaces_a_partial_block_is_kept_as_long_as_that_was_asked_for() {
    let (mut cache, namespace) = cache(16);
    run(&mut cache, namespace, &tokens(0..17));
    let (prompt, ttl) = (tokens(0..40), Some(std::time::Duration::from_secs(60)));
    let lifetime = Lifetime { ttl, ..Lifetime::default() };
    let admission =
        Admission { seq: SeqId(1), namespace, prompt: &prompt, reuse_max: 40, positions: 40, lifetime };
    cache.admit(admission).unwrap();
    cache.finish(SeqId(1), &prompt);
    cache.check().unwrap();
    cache.set_now(std::time::Duration::from_secs(61));
    assert_eq!(
        cache.lookup(namespace, &prompt).tokens,
        32,
        "the block that holds token 16 stays, the last one goes"
    );
}

/// The simulator found it: a copy for the disk leases what it copies, and that was kept for ever from then on.
#[test]
fn a_lease_prolongs_no_time_to_live() {
    use std::time::Duration;
    let (mut cache, namespace) = cache(16);
    let (prompt, ttl) = (tokens(0..64), Some(Duration::from_secs(60)));
    let lifetime = Lifetime { ttl, priority: -50, ..Lifetime::default() };
    let admission =
        Admission { seq: SeqId(1), namespace, prompt: &prompt, reuse_max: 64, positions: 64, lifetime };
    cache.admit(admission).unwrap();
    cache.finish(SeqId(1), &prompt);
    assert_eq!(cache.lease(SeqId(2), namespace, &prompt), 64);
    cache.set_now(Duration::from_secs(40));
    cache.abandon(SeqId(2));
    cache.check().unwrap();
    assert_eq!(cache.next_expiry(), Some(Duration::from_secs(60)), "nor does one that has ended");
    assert_eq!(cache.lease(SeqId(3), namespace, &prompt), 64);
    let (short, long) = (Some(Duration::from_secs(5)), Some(Duration::from_secs(600)));
    let asked = [ttl, short, long, None].map(|asked| cache.longest_ttl(SeqId(3), 3, asked));
    assert_eq!(asked, [ttl, ttl, long, None]);
    assert_eq!(cache.longest_ttl(SeqId(3), 4, short), short, "that block is not published");
    assert_eq!((cache.next_expiry(), cache.now()), (None, Duration::from_secs(40)));
    cache.set_now(Duration::from_secs(70));
    assert_eq!(cache.lookup(namespace, &prompt).tokens, 64, "what is held does not expire");
    cache.abandon(SeqId(3));
    cache.check().unwrap();
    assert_eq!(cache.lookup(namespace, &prompt).tokens, 0, "it was not used for 70 s");
}

/// What is copied to the disk is what has not been used for the longest time.
#[test]
fn a_lease_is_no_use_until_it_asks_for_a_lifetime() {
    for (is_use, left) in [(false, [0, 64]), (true, [64, 0])] {
        let (mut cache, namespace) = cache(8);
        let prompts = [tokens(0..64), tokens(1000..1064)];
        for prompt in &prompts {
            run(&mut cache, namespace, prompt);
        }
        assert_eq!(cache.lease(SeqId(1), namespace, &prompts[0]), 64);
        if is_use {
            cache.set_lifetime(SeqId(1), Lifetime::default());
        }
        cache.check().unwrap();
        cache.abandon(SeqId(1));
        run(&mut cache, namespace, &tokens(2000..2064));
        assert_eq!(prompts.map(|prompt| cache.lookup(namespace, &prompt).tokens), left, "{is_use}");
    }
}

/// A user that leaves while a copy holds the same blocks has used them then.
#[test]
fn a_use_that_ends_during_a_copy_counts() {
    let (mut cache, namespace) = cache(8);
    let prompts = [tokens(0..64), tokens(1000..1064)];
    admit(&mut cache, namespace, 1, &prompts[0]).unwrap();
    cache.publish(SeqId(1), &prompts[0]);
    assert_eq!(cache.lease(SeqId(2), namespace, &prompts[0]), 64);
    cache.finish(SeqId(1), &prompts[0]);
    cache.check().unwrap();
    run(&mut cache, namespace, &prompts[1]);
    cache.abandon(SeqId(2));
    run(&mut cache, namespace, &tokens(2000..2064));
    assert_eq!(prompts.map(|prompt| cache.lookup(namespace, &prompt).tokens), [0, 64], "it left first");
}

#[test]
fn a_raised_priority_keeps_a_prefix_until_it_was_not_used_for_that_long() {
    use std::time::Duration;
    let (mut cache, namespace) = cache(16);
    let raised = Some(RaisedPriority { priority: 50, lasts: Duration::from_secs(60) });
    let prompt = tokens(0..64);
    let reuse_max = prompt.len();
    let lifetime = Lifetime { raised, ..Lifetime::default() };
    let admission =
        Admission { seq: SeqId(1), namespace, prompt: &prompt, reuse_max, positions: 64, lifetime };
    cache.admit(admission).unwrap();
    cache.finish(SeqId(1), &prompt);
    let mut others = (1..).map(|number| tokens(number * 1000..number * 1000 + 64));
    let mut press = |cache: &mut Cache| {
        for other in others.by_ref().take(8) {
            run(cache, namespace, &other);
        }
    };
    press(&mut cache);
    assert_eq!(cache.lookup(namespace, &prompt).tokens, 64, "the least recently used, and kept");
    cache.set_now(Duration::from_secs(59));
    assert_eq!(run(&mut cache, namespace, &prompt).reused, 63, "a use without a hint renews it");
    cache.set_now(Duration::from_secs(118));
    press(&mut cache);
    assert_eq!(cache.lookup(namespace, &prompt).tokens, 64);
    cache.set_now(Duration::from_secs(119));
    cache.check().unwrap();
    assert_eq!(cache.lookup(namespace, &prompt).tokens, 64, "nothing is dropped for that");
    press(&mut cache);
    assert_eq!(cache.lookup(namespace, &prompt).tokens, 0, "it is like any other");
}
