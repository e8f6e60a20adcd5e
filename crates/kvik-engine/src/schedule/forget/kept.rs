//! The retained positions of a prefix as a cache entry of their own: shared, immutable, durable.
//!
//! A compressed prefix is stored in the cache like a prompt whose tokens are its key followed by a count, in the
//! namespace of its policy. So eviction, pinning, quotas, the disk and its checks are those of any prompt, and it is
//! found only by requests with the same policy and the same tokens.
//!
//! ```text
//! blocks   [ which positions each head retains ][ tiles of all layers and heads ]
//! tokens   key, 0, 1, 2, ...
//! ```

use kvik_cache::{BLOCK_POSITIONS, Identity, Token};
use kvik_kernels::KvLayout;

/// Identifies the format and its version, which also changes where a policy comes to retain something else of a prompt.
const MAGIC: [u8; 8] = *b"kvikfit2";

/// Retained positions of all heads, `[layers][kv_heads]`, ascending.
pub(in crate::schedule) type Kept = Vec<Vec<Vec<u32>>>;

/// The tokens that stand for the first `blocks` blocks of the compressed prefix that `identity` names.
pub(in crate::schedule) fn key(identity: &Identity, blocks: usize) -> Vec<Token> {
    let (words, _) = identity.0.as_chunks::<4>();
    let words = words.iter().map(|&bytes| Token::from_le_bytes(bytes));
    let padded = words.chain(std::iter::repeat(0)).take(BLOCK_POSITIONS);
    padded.chain(0..).take(blocks * BLOCK_POSITIONS).collect()
}

/// The identity that the tokens of the first block of a compressed prefix name; `None` for those of a prompt, which are
/// below the length of any vocabulary.
pub(in crate::schedule) fn named(tokens: &[Token]) -> Option<Identity> {
    let (words, padding) = tokens.split_at_checked(8)?;
    let is_name = padding.len() == BLOCK_POSITIONS - 8
        && padding.iter().all(|&token| token == 0)
        && words.iter().any(|&word| word >= 1 << 24);
    let mut bytes = [0; 32];
    for (bytes, word) in bytes.chunks_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    is_name.then_some(Identity(bytes))
}

/// Number of blocks for the bitmap of the retained positions among `tokens`.
pub(in crate::schedule) fn header_blocks(layout: &KvLayout, tokens: usize) -> usize {
    let heads: usize = layout.layers().iter().map(|layer| layer.kv_heads).sum();
    (MAGIC.len() + heads * tokens.div_ceil(8)).div_ceil(layout.block_bytes())
}

/// The bytes of these blocks: for each head one bit per position.
pub(in crate::schedule) fn encode(layout: &KvLayout, tokens: usize, kept: &Kept) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for head in kept.iter().flatten() {
        let mut bits = vec![0_u8; tokens.div_ceil(8)];
        head.iter().for_each(|&position| bits[position as usize / 8] |= 1 << (position % 8));
        bytes.extend(bits);
    }
    bytes.resize(header_blocks(layout, tokens) * layout.block_bytes(), 0);
    bytes
}

/// Decodes these bytes; `None` if the version is unknown or the sizes do not fit.
pub(in crate::schedule) fn decode(layout: &KvLayout, tokens: usize, bytes: &[u8]) -> Option<Kept> {
    let mut heads = bytes.strip_prefix(&MAGIC)?.chunks(tokens.div_ceil(8).max(1));
    let mut kept = Kept::new();
    for layer in layout.layers() {
        let mut of_layer = Vec::new();
        for _ in 0..layer.kv_heads {
            let bits = heads.next().filter(|bits| bits.len() == tokens.div_ceil(8))?;
            let is_kept = |&position: &u32| bits[position as usize / 8] >> (position % 8) & 1 == 1;
            of_layer.push((0..tokens as u32).filter(is_kept).collect::<Vec<u32>>());
        }
        kept.push(of_layer);
    }
    kept.iter().flatten().all(|head| !head.is_empty()).then_some(kept)
}

#[cfg(test)]
mod tests {
    use kvik_kernels::{KvFormat, KvLayer};

    use super::*;

    #[test]
    fn what_is_kept_is_read_back() {
        for (layers, heads, tokens) in [(1, 1, 16), (2, 3, 48), (3, 2, 1600)] {
            let layer = KvLayer::full(heads, 8, KvFormat::Q4, KvFormat::Q4);
            let layout = KvLayout::uniform(layers, layer);
            let keeps = |layer: usize, head: usize| {
                (0..tokens as u32)
                    .filter(|position| position % (2 + layer as u32 + head as u32) == 0)
                    .collect()
            };
            let kept: Kept =
                (0..layers).map(|layer| (0..heads).map(|head| keeps(layer, head)).collect()).collect();
            let bytes = encode(&layout, tokens, &kept);
            assert_eq!(bytes.len(), header_blocks(&layout, tokens) * layout.block_bytes());
            assert_eq!(decode(&layout, tokens, &bytes), Some(kept));
            assert_eq!(decode(&layout, tokens, &bytes[1..]), None);
            assert_eq!(decode(&layout, tokens, &vec![0; bytes.len()]), None);
        }
    }

    #[test]
    fn keys_differ_by_prefix_and_count_their_blocks() {
        let (a, b) = (Identity([1; 32]), Identity([2; 32]));
        assert_eq!(key(&a, 3).len(), 48);
        assert_eq!(key(&a, 3)[..32], key(&a, 2));
        assert_ne!(key(&a, 1), key(&b, 1));
    }
}
