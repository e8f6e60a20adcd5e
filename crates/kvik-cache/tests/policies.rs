//! What `auto` promises, on generated traffic of several kinds and on the recorded trace.

#![allow(clippy::unwrap_used)]

#[path = "../../skipped.rs"]
mod skipped;

use std::collections::VecDeque;
use std::time::Duration;

use kvik_cache::Policy;
use kvik_cache::replay::{Capacity, TraceRequest, replay};

/// Hit rates of LRU and `auto`.
fn rates(requests: &[TraceRequest], blocks: usize) -> (f64, f64) {
    let rate =
        |policy| replay(requests, Capacity::Blocks(blocks), policy, || Duration::ZERO).unwrap().hit_rate();
    (rate(Policy::Lru), rate(Policy::Auto))
}

/// `auto` is at most 1% below LRU, and hits at least as often as is promised.
fn check(name: &str, requests: &[TraceRequest], blocks: usize, least: f64) {
    let (lru, auto) = rates(requests, blocks);
    println!("{name:>14} {blocks:>6} blocks: lru {lru:.4}, auto {auto:.4}");
    assert!(auto >= 0.99 * lru && auto >= least, "{name} at {blocks}: lru {lru}, auto {auto}");
}

#[test]
fn chats_that_come_back_after_a_pause() {
    let requests = chats(6_000, 120);
    for (blocks, least) in [(500, 0.05), (2_000, 0.25), (8_000, 0.47)] {
        check("chats", &requests, blocks, least);
    }
}

#[test]
fn a_loop_that_does_not_fit() {
    // LRU finds nothing; 0.7 is what fits.
    let requests: Vec<TraceRequest> = (0..3_000).map(|turn| run(turn % 40, 25)).collect();
    check("loop", &requests, 700, 0.55);
}

#[test]
fn popular_documents_among_scans() {
    let mut random = Random(5);
    let request = |turn: u64| match turn % 2 {
        0 => run(1000 + turn, 20),
        _ => run(zipf(&mut random, 300), 20),
    };
    let requests: Vec<TraceRequest> = (0..8_000).map(request).collect();
    for (blocks, least) in [(500, 0.22), (2_000, 0.33)] {
        check("scans", &requests, blocks, least);
    }
}

#[test]
fn what_is_recent_is_popular() {
    // A window of documents that moves on: LRU is as good as can be.
    let mut random = Random(6);
    let request = |turn: u64| run(turn / 20 + zipf(&mut random, 20), 20);
    let requests: Vec<TraceRequest> = (0..8_000).map(request).collect();
    for (blocks, least) in [(150, 0.5), (400, 0.9), (1_000, 0.93)] {
        check("moving window", &requests, blocks, least);
    }
}

#[test]
fn traffic_that_changes() {
    let mut random = Random(7);
    let window = (0..4_000).map(|turn| run(turn / 20 + zipf(&mut random, 20), 20));
    let mut requests: Vec<TraceRequest> = window.collect();
    requests.extend((0..4_000).map(|turn| run(50_000 + turn % 40, 20)));
    requests.extend((0..4_000).map(|turn| run(90_000 + turn / 20 + zipf(&mut random, 20), 20)));
    check("changes", &requests, 600, 0.75);
}

#[test]
fn the_recorded_trace() {
    let Some(data) = skipped::outside_data() else { return };
    #[derive(serde::Deserialize)]
    struct Line {
        hash_ids: TraceRequest,
    }
    let text = std::fs::read_to_string(data.join("mooncake_conversation_trace.jsonl")).unwrap();
    let line = |line| serde_json::from_str::<Line>(line).unwrap().hash_ids;
    let requests: Vec<TraceRequest> = text.lines().map(line).collect();
    // 1.35 times what LRU has at 1,000 and 5,000 blocks.
    for (blocks, least) in [(1_000, 0.0601), (5_000, 0.1510), (10_000, 0.0), (30_000, 0.0)] {
        check("recorded", &requests, blocks, least);
    }
}

/// A prompt of `length` blocks that shares none with another `document`.
fn run(document: u64, length: u64) -> TraceRequest {
    (0..length).map(|block| (document << 20) + block).collect()
}

/// Conversations of 1 to 8 turns, each turn ten blocks longer, `pause` requests of others apart:
/// half of them end after the first.
fn chats(turns: usize, pause: usize) -> Vec<TraceRequest> {
    let mut random = Random(4);
    let mut open: VecDeque<(u64, u64)> = VecDeque::new();
    let mut requests = Vec::new();
    for next in 0..turns as u64 {
        let back = open.len() > pause || (open.len() > pause / 2 && random.below(2) == 0);
        let (chat, length) = if back { open.pop_front().unwrap() } else { (next, 10) };
        requests.push(run(chat, length));
        if length < 80 && random.below(2) == 0 {
            open.push_back((chat, length + 10));
        }
    }
    requests
}

/// A number below `end`, the lower the likelier: about as one over it.
fn zipf(random: &mut Random, end: u64) -> u64 {
    let uniform = random.below(1 << 20) as f64 / (1 << 20) as f64;
    ((end as f64 + 1.0).powf(uniform) as u64 - 1).min(end - 1)
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
