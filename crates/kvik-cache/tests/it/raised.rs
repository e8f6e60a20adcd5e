//! Priorities that end, on recorded sessions of which some ask for them.

use std::time::Duration;

use kvik_cache::replay::TraceRequest;
use kvik_cache::{
    Admission, BLOCK_POSITIONS, Cache, CacheConfig, Lifetime, Namespaces, Policy, RaisedPriority, SeqId,
    Token,
};

use crate::policies::recorded_times;
use crate::traffic;

/// Whether the session of a request asks for a lifetime: those with two thirds of the blocks do.
fn asks(request: &[u64]) -> bool {
    request[0] % 7 < 4
}

/// The tokens of a recorded prompt.
fn prompt(request: &[u64]) -> Vec<Token> {
    let tokens_of = |&id: &u64| {
        let mut tokens = [0; BLOCK_POSITIONS];
        (tokens[0], tokens[1]) = (id as Token, (id >> Token::BITS) as Token);
        tokens
    };
    request.iter().flat_map(tokens_of).collect()
}

/// Hit rates of the sessions that ask for this lifetime, of the others, and of all.
fn rates(
    (requests, times): (&[TraceRequest], &[Duration]),
    (policy, kept): (Policy, usize),
    lifetime: Lifetime,
) -> [f64; 3] {
    let longest = requests.iter().map(Vec::len).max().unwrap();
    let config = CacheConfig { blocks: kept + longest, policy, ghosts: 1 << 16, pinned_max: 0 };
    let mut cache = Cache::new(config).unwrap();
    let namespaces = Namespaces { model: [0; 32], kv_format: "replay", adapter: None };
    let namespace = cache.namespace(&namespaces.shared([0; 16]));
    let mut counts = [(0, 0); 3];
    for (request, &at) in requests.iter().zip(times) {
        cache.set_now(at);
        let (asks, prompt) = (asks(request), prompt(request));
        let hits = cache.lookup(namespace, &prompt).tokens / BLOCK_POSITIONS;
        for count in [usize::from(!asks), 2] {
            counts[count] = (counts[count].0 + hits, counts[count].1 + request.len());
        }
        let (seq, reuse_max, positions) = (SeqId(0), prompt.len(), prompt.len());
        let lifetime = if asks { lifetime } else { Lifetime::default() };
        cache.admit(Admission { seq, namespace, prompt: &prompt, reuse_max, positions, lifetime }).unwrap();
        cache.finish(seq, &prompt);
        cache.shrink(kept);
    }
    counts.map(|(hits, blocks)| hits as f64 / blocks as f64)
}

/// The table of docs/decisions/2026-11-29-hints.md; a debug build takes a second for each row.
#[test]
fn sessions_that_ended_leave_their_space_to_clients_that_ask_for_nothing() {
    let Some(data) = kvik_testing::outside_data() else { return };
    let text = std::fs::read_to_string(data.join("claude-code-60-sessions.jsonl")).unwrap();
    let (requests, times) = (traffic::recorded(&text), recorded_times(&text));
    let raised = |priority, secs| {
        let raised = Some(RaisedPriority { priority, lasts: Duration::from_secs(secs) });
        Lifetime { raised, ..Lifetime::default() }
    };
    let for_ever = Lifetime { priority: 25, ..Lifetime::default() };
    let asked = [Lifetime::default(), raised(25, 300), raised(50, 3600), for_ever];
    for &kept in kvik_testing::effort(&[5_000][..], &[500, 1_000, 2_000, 5_000][..]) {
        let rates = asked.map(|lifetime| rates((&requests, &times), (Policy::Rhythm, kept), lifetime));
        println!("{kept} blocks: nothing, 5 minutes, an hour, for ever: {rates:.4?}");
        let [nothing, minutes, hour, for_ever] = rates;
        assert!(minutes[0] > nothing[0] && hour[0] > nothing[0], "who asks is kept");
        assert!(minutes[1] > hour[1] && hour[1] > for_ever[1], "the others get what has ended");
        assert!(minutes[1] >= 4.0 * for_ever[1] && minutes[2] > for_ever[2], "{kept}: {rates:.4?}");
    }
}
