//! Draft continuations: the tokens that followed the same tokens before.

use super::life::Cache;
use crate::ids::{NamespaceId, Token};
use crate::tree::{FollowerIndex, Followers};

impl Cache {
    /// Indexes what is published from now on by the tokens before it, which takes 8 bytes for each position of the
    /// pool and 24 for each block. Nothing may have been published yet.
    pub fn index_followers(&mut self) {
        assert_eq!(self.pool.shared(), 0, "the index would not know what is there already");
        let blocks = u32::try_from(self.pool.len()).expect("blocks have ids");
        self.radix.followers = FollowerIndex::new(blocks);
    }

    /// Returns at most `most` tokens that followed the end of `tokens` where it occurred before in a namespace: of
    /// the latest occurrences the one with the longest common context. `None` when the last four tokens occur
    /// nowhere, or followers are not indexed. Changes nothing, not even recency.
    ///
    /// Private, evicted and dropped tokens are not found, nor those of another namespace, a base included.
    pub fn followers(&self, namespace: NamespaceId, tokens: &[Token], most: usize) -> Option<Followers> {
        self.radix.followers.as_ref()?.find(namespace, tokens, most, &self.radix.labels)
    }
}
