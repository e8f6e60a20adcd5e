//! Traffic on caches whose layers hold something beside blocks: how many tokens of prompts are computed.

use std::time::Duration;

use kvik_cache::replay::TraceRequest;
use kvik_cache::{
    Admission, AuxiliaryState, BLOCK_POSITIONS, Cache, CacheConfig, Lifetime, NamespaceId, Namespaces,
    Policy, Reach, SeqId, Token, Windows,
};

/// Blocks that one id of a trace stands for.
const BLOCKS_OF_ID: usize = 4;
/// Positions of one step.
const STEP: usize = 512;

/// Models by what their layers hold beside a block of so many bytes.
pub(crate) const MODELS: [(&str, AuxiliaryState); 4] = [
    ("small states", AuxiliaryState { block_bytes: 1, windows: None, state_bytes: 20 }),
    ("large states", AuxiliaryState { block_bytes: 1, windows: None, state_bytes: 150 }),
    ("short windows", windows(128, 10, 10)),
    ("long windows", windows(1024, 10, 52)),
];

const fn windows(positions: u32, block_bytes: usize, part_bytes: usize) -> AuxiliaryState {
    let windows = Windows { reach: Reach::Last(positions), part_bytes, step_positions: STEP };
    AuxiliaryState { block_bytes, windows: Some(windows), state_bytes: 0 }
}

/// Tokens of prompts that are computed when these requests come one after the other; the last tokens of each are its
/// answer.
pub(crate) fn computed(
    requests: &[TraceRequest],
    needs: AuxiliaryState,
    blocks: usize,
    policy: Policy,
) -> usize {
    let config = CacheConfig { blocks, policy, ghosts: 1 << 16, pinned_max: 0 };
    let mut cache = Cache::new(config).expect("there are blocks");
    cache.hold_auxiliary(needs);
    let namespaces = Namespaces { model: [0; 32], kv_format: "replay", adapter: None };
    let namespace = cache.namespace(&namespaces.shared([0; 16]));
    let mut computed = 0;
    for (second, request) in (0..).zip(requests) {
        cache.set_now(Duration::from_secs(second));
        let tokens: Vec<Token> = request.iter().flat_map(|&id| tokens_of(id)).collect();
        computed += serve(&mut cache, namespace, &tokens);
    }
    computed
}

/// Computes a request as a scheduler does; how many tokens of its prompt.
fn serve(cache: &mut Cache, namespace: NamespaceId, tokens: &[Token]) -> usize {
    let (seq, positions, lifetime) = (SeqId(1), tokens.len(), Lifetime::default());
    let prompt = &tokens[..tokens.len() - BLOCK_POSITIONS];
    let reuse_max = prompt.len() - 1;
    let admission = Admission { seq, namespace, prompt, reuse_max, positions, lifetime };
    let reused = cache.admit(admission).expect("every request fits").reused;
    let mut stored = reused;
    while stored < tokens.len() {
        let end = (stored + STEP).min(if stored < prompt.len() { prompt.len() } else { tokens.len() });
        cache.prepare(seq, stored, end);
        cache.publish(seq, &tokens[..end]);
        cache.advance(seq, end);
        stored = end;
    }
    cache.finish(seq, tokens);
    cache.take_changes();
    cache.take_kept_states();
    prompt.len() - reused
}

/// The tokens that an id stands for: different ones for different ids.
fn tokens_of(id: u64) -> [Token; BLOCKS_OF_ID * BLOCK_POSITIONS] {
    let mut tokens = [0; BLOCKS_OF_ID * BLOCK_POSITIONS];
    for block in tokens.chunks_mut(BLOCK_POSITIONS) {
        (block[0], block[1]) = (id as Token, (id >> Token::BITS) as Token);
    }
    tokens
}
