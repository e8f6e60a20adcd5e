//! What a conversation may say next: what was said after the same words before.

use super::life::Cache;
use crate::ids::{NamespaceId, Token};
use crate::tree::{FollowerIndex, Followers};

impl Cache {
    /// From now on what is published can be found by the tokens before it, which takes 8 bytes for each position of the
    /// pool and 24 for each block. Nothing may have been published yet.
    pub fn index_followers(&mut self) {
        assert_eq!(self.pool.shared(), 0, "the index would not know what is there already");
        let blocks = u32::try_from(self.pool.len()).expect("blocks have ids");
        self.radix.followers = FollowerIndex::new(blocks);
    }

    /// What followed the last of `tokens` where they stood before in a namespace, at most `most` tokens: of the latest
    /// places the one before which most tokens are the same. None where four of them never stood, or when followers are not
    /// indexed. Changes nothing, not even recency.
    ///
    /// What is private, evicted or dropped is not found, nor what another namespace holds, a base included.
    pub fn followers(&self, namespace: NamespaceId, tokens: &[Token], most: usize) -> Option<Followers> {
        self.radix.followers.as_ref()?.find(namespace, tokens, most, &self.radix.labels)
    }
}
