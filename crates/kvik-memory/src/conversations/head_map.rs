//! The heads of all conversations, and the bytes that those of each tenant count: every turn asks for them, under a lock
//! that all tenants share.

use std::collections::BTreeMap;
use std::ops::Deref;

use super::head::{ConversationHead, ConversationKey};

/// Heads by key; read as a map.
#[derive(Default)]
pub(super) struct HeadMap {
    heads: BTreeMap<ConversationKey, ConversationHead>,
    /// Bytes of all messages and all metadata, by tenant.
    bytes: BTreeMap<String, u64>,
}

impl HeadMap {
    /// Sets the head of a conversation.
    pub(super) fn insert(&mut self, key: ConversationKey, head: ConversationHead) {
        self.remove(&key);
        *self.bytes.entry(key.tenant.clone()).or_default() += head.counted_bytes();
        self.heads.insert(key, head);
    }

    pub(super) fn remove(&mut self, key: &ConversationKey) {
        let Some(head) = self.heads.remove(key) else { return };
        let Some(bytes) = self.bytes.get_mut(&key.tenant) else { return };
        *bytes -= head.counted_bytes();
        if *bytes == 0 {
            self.bytes.remove(&key.tenant);
        }
    }

    /// Conversations of a tenant, by id.
    pub(super) fn of<'a>(
        &'a self,
        tenant: &'a str,
    ) -> impl Iterator<Item = (&'a ConversationKey, &'a ConversationHead)> {
        let first = ConversationKey { tenant: tenant.to_owned(), id: String::new() };
        self.heads.range(first..).take_while(move |(key, _)| key.tenant == tenant)
    }

    /// Bytes of all messages and all metadata in a tenant's conversations.
    pub(super) fn bytes(&self, tenant: &str) -> u64 {
        let bytes = self.bytes.get(tenant).copied().unwrap_or(0);
        debug_assert_eq!(bytes, self.of(tenant).map(|(_, head)| head.counted_bytes()).sum::<u64>());
        bytes
    }
}

impl Deref for HeadMap {
    type Target = BTreeMap<ConversationKey, ConversationHead>;

    fn deref(&self) -> &Self::Target {
        &self.heads
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Heads are set, set anew, and removed, also those that are not there.
        #[test]
        fn the_bytes_of_a_tenant_are_those_of_its_heads(
            changes in prop::collection::vec(
                (0..2_usize, 0..3_usize, prop::option::of((0..9_u64, 0..9_usize))),
                0..40,
            ),
        ) {
            let tenants = ["a", "ab"];
            let mut map = HeadMap::default();
            for (tenant, id, head) in changes {
                let key = ConversationKey { tenant: tenants[tenant].to_owned(), id: format!("conv_{id}") };
                match head {
                    Some((bytes, length)) => {
                        let metadata = BTreeMap::from([("key".to_owned(), "x".repeat(length))]);
                        map.insert(key, ConversationHead { bytes, metadata, ..ConversationHead::default() });
                    }
                    None => map.remove(&key),
                }
                for tenant in tenants {
                    let own = map.iter().filter(|(key, _)| key.tenant == tenant);
                    let counted = |head: &ConversationHead| head.bytes + 3 + head.metadata["key"].len() as u64;
                    let sum: u64 = own.map(|(_, head)| counted(head)).sum();
                    prop_assert_eq!(map.bytes(tenant), sum);
                }
            }
            prop_assert!(map.bytes.values().all(|bytes| *bytes > 0), "tenants without conversations are dropped");
        }
    }
}
