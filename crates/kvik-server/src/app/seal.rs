//! Compaction items: the beginning of a conversation in a form that a client stores and sends back in its place.
//!
//! An item holds the summary, the recent messages after it and its position in the chain of messages, so a server
//! without any state of the conversation understands it. A client can neither read, make nor alter one, nor use another
//! tenant's: it is sealed with a key derived from the server's secret and the tenant's name.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use chacha20poly1305::{ChaCha20Poly1305, KeyInit, Nonce, aead::Aead};
use kvik_memory::memory::Compaction;
use serde_json::{Value, json};

use crate::accounts::tenants::Secret;
use crate::http::json::fit_in_a_body;

/// Context of the derivation of a tenant's key; changing it invalidates all items.
const KEY_CONTEXT: &str = "kvik 2026-11-22 compaction item v1";

/// Bytes of the nonce at the front of an item.
const NONCE_BYTES: usize = 12;

/// Seals and opens items.
pub(crate) struct Seal(Secret);

/// The error for an item that this server has not made for this tenant, or that was altered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "is no compaction item that this server has made for you, or was altered; send the messages that it stood for instead"
)]
pub(crate) struct ForeignItem;

impl Seal {
    pub(crate) fn new(secret: Secret) -> Seal {
        Seal(secret)
    }

    fn cipher(&self, tenant: &str) -> ChaCha20Poly1305 {
        ChaCha20Poly1305::new(&self.0.key(KEY_CONTEXT, tenant).into())
    }

    /// The item as clients receive it; `None` if the system provides no random numbers, or if its messages would not
    /// fit in a body, since an item is opened without a size check.
    pub(crate) fn item(&self, tenant: &str, compaction: &Compaction) -> Option<Value> {
        let Compaction { systems, opening, recent, .. } = compaction;
        if ![systems, opening, recent].into_iter().all(|messages| fit_in_a_body(messages)) {
            return None;
        }
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).ok()?;
        let plain = serde_json::to_vec(compaction).ok()?;
        let sealed = self.cipher(tenant).encrypt(&Nonce::from(nonce), plain.as_slice()).ok()?;
        let content = BASE64_URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat());
        let id = format!("cmp_{}", blake3::hash(content.as_bytes()).to_hex().get(..24)?);
        Some(json!({"id": id, "type": "compaction", "encrypted_content": content}))
    }

    /// Opens the content of an item.
    ///
    /// # Errors
    /// If this server has not made it for this tenant.
    pub(crate) fn open(&self, tenant: &str, content: &str) -> Result<Compaction, ForeignItem> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(content).map_err(|_| ForeignItem)?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_BYTES>().ok_or(ForeignItem)?;
        let open = self.cipher(tenant).decrypt(&Nonce::from(*nonce), sealed).map_err(|_| ForeignItem)?;
        serde_json::from_slice(&open).map_err(|_| ForeignItem)
    }
}

#[cfg(test)]
mod tests {
    use kvik_memory::memory::Summary;
    use proptest::prelude::*;

    use super::*;

    fn compaction(text: &str) -> Compaction {
        let summary = Summary {
            text: text.to_owned(),
            kind: Default::default(),
            covers: 4,
            updates: 2,
            made: 7,
            used: 0,
            ready: true,
            corrected: false,
            failed: None,
            read: false,
        };
        let message = |role: &str| json!({"role": role, "content": text});
        Compaction {
            systems: vec![message("system")],
            opening: Vec::new(),
            summary,
            chain: [9; 32],
            recent: vec![message("user"), message("assistant")],
        }
    }

    fn content(item: &Value) -> String {
        item["encrypted_content"].as_str().unwrap().to_owned()
    }

    /// Each turn may add as much again as one body may hold.
    #[test]
    fn no_item_is_made_of_more_values_than_a_body_may_hold() {
        let seal = Seal::new(Secret::of_this_process());
        let heavy = json!({"role": "user", "content": "x", "more": vec![json!([1]); 120_000]});
        let of = |count: usize| Compaction { recent: vec![heavy.clone(); count], ..compaction("x") };
        assert!(seal.item("acme", &of(1)).is_some());
        assert_eq!(seal.item("acme", &of(2)), None);
    }

    proptest! {
        #[test]
        fn an_item_is_its_tenants_alone_and_shows_nothing(text in "\\PC{12,40}", at in 0..400_usize) {
            let seal = Seal::new(Secret::of_this_process());
            let item = content(&seal.item("acme", &compaction(&text)).unwrap());
            prop_assert_eq!(seal.open("acme", &item), Ok(compaction(&text)));
            prop_assert_eq!(seal.open("beta", &item), Err(ForeignItem));
            let other = Seal::new(Secret::of_this_process());
            prop_assert_eq!(other.open("acme", &item), Err(ForeignItem), "another server's");
            let bytes = BASE64_URL_SAFE_NO_PAD.decode(&item).unwrap();
            prop_assert!(!String::from_utf8_lossy(&bytes).contains(&text));

            let mut altered = bytes.clone();
            altered[at % bytes.len()] ^= 1;
            prop_assert_eq!(seal.open("acme", &BASE64_URL_SAFE_NO_PAD.encode(altered)), Err(ForeignItem));
            let cut = BASE64_URL_SAFE_NO_PAD.encode(&bytes[..at % bytes.len()]);
            prop_assert_eq!(seal.open("acme", &cut), Err(ForeignItem));
        }

        #[test]
        fn any_text_is_refused_without_a_panic(text in "\\PC{0,80}") {
            let seal = Seal::new(Secret::of_this_process());
            prop_assert_eq!(seal.open("acme", &text), Err(ForeignItem));
        }
    }
}
