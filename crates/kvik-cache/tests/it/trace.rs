//! The recorded trace, replayed through the real cache, gives the known hit rates.

use std::time::Duration;

use kvik_cache::Policy;
use kvik_cache::replay::{Capacity, TraceRequest, replay};

#[derive(serde::Deserialize)]
struct Line {
    hash_ids: TraceRequest,
}

#[test]
fn hit_rates_of_the_mooncake_conversation_trace() {
    let Some(data) = kvik_testing::outside_data() else { return };
    let text = std::fs::read_to_string(data.join("mooncake_conversation_trace.jsonl")).unwrap();
    let line = |line| serde_json::from_str::<Line>(line).unwrap().hash_ids;
    let requests: Vec<TraceRequest> = text.lines().map(line).collect();
    assert_eq!(requests.len(), 12_031);
    for (capacity, hits, rate) in [
        (Capacity::Unlimited, 105_710, "0.3664"),
        (Capacity::Blocks(1_000), 12_847, "0.0445"),
        (Capacity::Blocks(5_000), 32_260, "0.1118"),
        (Capacity::Blocks(10_000), 61_046, "0.2116"),
        (Capacity::Blocks(30_000), 93_978, "0.3257"),
    ] {
        let report = replay(&requests, capacity, Policy::Lru, || Duration::ZERO).unwrap();
        assert_eq!((report.hits, format!("{:.4}", report.hit_rate())), (hits, rate.to_owned()), "{capacity}");
        assert_eq!(report.blocks, report.hits + report.first_seen + report.recomputed);
    }
}
