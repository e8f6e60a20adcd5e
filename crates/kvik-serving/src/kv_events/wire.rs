//! The schema of the events: that of vLLM, `vllm/distributed/kv_events.py`, as of v0.24 (its pull request 42892).
//!
//! A batch is an array `[time, events, data_parallel_rank]`, an event a map whose `type` is its name. Fields of vLLM
//! with a default that do not apply to kvik are omitted, as vLLM omits them. `docs/nodes.md` documents the meaning of
//! each here.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use kvik_cache::{BLOCK_POSITIONS, Identity};
use kvik_engine::api::{KvEvent, KvStored};
use kvik_memory::hex;
use serde::Serialize;

/// The medium of the blocks that the model computes with, which vLLM has in GPU memory: a hit there costs only the rest
/// of the prompt, and routers weigh it by that.
const MEDIUM: &str = "GPU";
/// The rank of the only engine.
const RANK: u32 = 0;
/// Bytes of the digest that identifies a mix of adapters without a name.
const NAME_BYTES: usize = 8;

/// An event, with fields in the order of vLLM's.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
enum WireEvent<'a> {
    BlockStored {
        block_hashes: Vec<u64>,
        parent_block_hash: Option<u64>,
        token_ids: &'a [u32],
        block_size: usize,
        lora_id: Option<u32>,
        medium: &'static str,
        lora_name: Option<String>,
    },
    BlockRemoved {
        block_hashes: Vec<u64>,
        medium: &'static str,
    },
    AllBlocksCleared,
}

/// The payload of a message.
pub(super) fn encode(
    now: SystemTime,
    events: &[KvEvent],
    adapters: &HashMap<[u8; 32], String>,
) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    let time = now.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let events: Vec<WireEvent<'_>> = events.iter().map(|event| wire(event, adapters)).collect();
    rmp_serde::to_vec_named(&(time, events, RANK))
}

fn wire<'a>(event: &'a KvEvent, adapters: &HashMap<[u8; 32], String>) -> WireEvent<'a> {
    match event {
        KvEvent::Stored(KvStored { parent, blocks, tokens, adapter }) => WireEvent::BlockStored {
            block_hashes: blocks.iter().map(hash).collect(),
            parent_block_hash: parent.as_ref().map(hash),
            token_ids: tokens,
            block_size: BLOCK_POSITIONS,
            lora_id: None,
            medium: MEDIUM,
            lora_name: adapter.as_ref().map(|digest| lora_name(digest, adapters)),
        },
        KvEvent::Removed(blocks) => {
            WireEvent::BlockRemoved { block_hashes: blocks.iter().map(hash).collect(), medium: MEDIUM }
        }
        KvEvent::Cleared => WireEvent::AllBlocksCleared,
    }
}

/// An identity shortened to 64 bits as vLLM does: the last 8 bytes, big-endian. Indexers store keys of this size.
fn hash(identity: &Identity) -> u64 {
    let (_, last) = identity.0.split_last_chunk().expect("an identity has 32 bytes");
    u64::from_be_bytes(*last)
}

/// The name of a mix in requests; for a mix that a request defines itself, a part of its digest.
fn lora_name(digest: &[u8; 32], adapters: &HashMap<[u8; 32], String>) -> String {
    adapters.get(digest).cloned().unwrap_or_else(|| hex::written(&digest[..NAME_BYTES]))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn identity(last: u8) -> Identity {
        Identity(std::array::from_fn(|index| if index == 31 { last } else { 0xf0 }))
    }

    /// The output of `msgspec` for vLLM's types, in Python:
    /// `msgspec.msgpack.encode(KVEventBatch(ts=2.5, events=[BlockStored(...), ...], data_parallel_rank=0)).hex()`.
    #[test]
    fn a_batch_is_what_vllm_writes() {
        let events = [
            KvEvent::Cleared,
            KvEvent::Stored(KvStored {
                parent: None,
                blocks: vec![identity(1)],
                tokens: (0..16).collect(),
                adapter: None,
            }),
            KvEvent::Stored(KvStored {
                parent: Some(identity(1)),
                blocks: vec![identity(2)],
                tokens: (0..16).map(|token| token * 10_000).collect(),
                adapter: Some([7; 32]),
            }),
            KvEvent::Removed(vec![identity(2), identity(1)]),
        ];
        let names = HashMap::from([([7; 32], "sql".to_owned())]);
        let now = UNIX_EPOCH + Duration::from_millis(2500);
        assert_eq!(hex::written(encode(now, &events, &names).unwrap()), include_str!("batch.hex").trim());
        let unnamed = encode(now, &events, &HashMap::new()).unwrap();
        let name = b"0707070707070707";
        assert!(
            unnamed.windows(name.len()).any(|part| part == name),
            "a mix without a name has a part of its digest"
        );
    }
}
