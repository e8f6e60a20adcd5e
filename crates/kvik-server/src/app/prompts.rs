//! The registry of pinned prompts, which are computed in advance.
//!
//! A prompt is identified by its name within its tenant, and by the SHA-256 of its tokens and the model.
//! While that hash is unchanged, pinning the prompt again does nothing; when it changes, the old prompt is
//! released and the new one computed. Records outlive the process, and so do the blocks on disk.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvik_cache::retain::Retention;
use kvik_engine::api::{PinnedPrompt, Retained};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use kvik_memory::hex;
use kvik_memory::records::{
    FileTurns, Records, RecordsError, Table,
    map::{self, RecordKey},
};
use kvik_serving::lora::WrittenUse;

/// Maximum prompts of one tenant: each is pinned.
pub(crate) const PROMPTS_MAX: usize = 256;

/// The record of a pinned prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PromptRecord {
    /// The request's body: `messages` and `tools`, or `prompt`.
    pub(crate) body: Value,
    /// Whether tenants in the mode `public-prompts` share it.
    #[serde(default)]
    pub(crate) public: bool,
    /// Hash of its tokens and the model, in hexadecimal.
    pub(crate) sha256: String,
    /// Its tokens, to release it when it has changed.
    pub(crate) tokens: Vec<u32>,
    /// Number of times it was computed.
    pub(crate) builds: u64,
    /// The retained positions of its whole blocks, if some were dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retained: Option<RetainedRecord>,
    /// The adapters that it was computed with; empty for the model alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lora: Vec<WrittenUse>,
}

/// The record of a compressed prompt's positions, over all heads of all layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RetainedRecord {
    /// The retention policy, as text.
    retention: String,
    /// Tokens of its whole blocks.
    tokens: usize,
    /// Positions retained and dropped.
    kept: u64,
    dropped: u64,
    /// Positions of the head with the fewest, and with the most.
    smallest_head: usize,
    largest_head: usize,
}

impl RetainedRecord {
    /// The record of a report about a prompt with this retention.
    pub(crate) fn of(retention: &Retention, retained: &Retained) -> RetainedRecord {
        let Retained { tokens, kept, dropped, smallest_head, largest_head, .. } = *retained;
        RetainedRecord {
            retention: retention.to_string(),
            tokens,
            kept,
            dropped,
            smallest_head,
            largest_head,
        }
    }
}

impl PromptRecord {
    /// Its retention; `None` if it is stored in full.
    pub(crate) fn retention(&self) -> Option<Retention> {
        let retention: Retention = self.retained.as_ref()?.retention.parse().ok()?;
        Some(retention.of_prefix())
    }

    /// Its retention report.
    pub(crate) fn retained(&self) -> Option<Retained> {
        let retention = self.retention()?;
        let RetainedRecord { tokens, kept, dropped, smallest_head, largest_head, .. } =
            *self.retained.as_ref()?;
        Some(Retained {
            retention,
            tokens,
            kept,
            dropped,
            smallest_head,
            largest_head,
            tightened: Vec::new(),
            positions: None,
        })
    }
}

/// The tenant and the name of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PromptKey {
    pub(crate) tenant: String,
    pub(crate) name: String,
}

/// All pinned prompts.
pub(crate) struct Registry {
    /// Absent where nothing can be written: prompts then last as long as the process.
    table: Option<Table<PromptRecord>>,
    /// Serialises changes, so that the records agree with `prompts`. Readers do not wait for the file.
    changing: FileTurns,
    prompts: Mutex<BTreeMap<PromptKey, PromptRecord>>,
}

/// The work needed to pin a prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    /// The prompt is already pinned, with the same hash.
    None,
    /// The prompt is new.
    New,
    /// The prompt replaces this one.
    Replaces(Box<PromptRecord>),
}

impl Registry {
    /// Opens the registry with the prompts in the records.
    pub(crate) fn open(records: Option<&Records>) -> Registry {
        let (table, prompts) = map::open(records, "prompts");
        Registry { table, changing: FileTurns::new(1), prompts: Mutex::new(prompts) }
    }

    /// The prompts of a tenant.
    pub(crate) fn of(&self, tenant: &str) -> Vec<(String, PromptRecord)> {
        let prompts = self.lock();
        let mine = prompts.iter().filter(|(key, _)| key.tenant == tenant);
        mine.map(|(key, record)| (key.name.clone(), record.clone())).collect()
    }

    /// All prompts.
    pub(crate) fn all(&self) -> Vec<(PromptKey, PromptRecord)> {
        self.lock().iter().map(|(key, record)| (key.clone(), record.clone())).collect()
    }

    pub(crate) fn get(&self, key: &PromptKey) -> Option<PromptRecord> {
        self.lock().get(key).cloned()
    }

    /// The change that pinning a prompt with this hash under this name makes.
    pub(crate) fn change(&self, key: &PromptKey, sha256: &str) -> Change {
        match self.lock().get(key) {
            None => Change::New,
            Some(record) if record.sha256 == sha256 => Change::None,
            Some(record) => Change::Replaces(Box::new(record.clone())),
        }
    }

    /// Whether any prompt satisfies the predicate.
    pub(crate) fn any(&self, mut is_such: impl FnMut(&PromptKey, &PromptRecord) -> bool) -> bool {
        self.lock().iter().any(|(key, record)| is_such(key, record))
    }

    /// Records a prompt, and returns the previous one of its name.
    pub(crate) fn keep(
        &self,
        key: &PromptKey,
        record: PromptRecord,
    ) -> Result<Option<PromptRecord>, RecordsError> {
        let _changing = self.changing.enter()?;
        if self.lock().get(key) == Some(&record) {
            return Ok(Some(record));
        }
        if let Some(table) = &self.table {
            table.change([key.text().as_str()], |_, _| Some(record.clone()))?;
        }
        Ok(self.lock().insert(key.clone(), record))
    }

    /// Removes a prompt and returns it.
    pub(crate) fn remove(&self, key: &PromptKey) -> Result<Option<PromptRecord>, RecordsError> {
        let _changing = self.changing.enter()?;
        if let Some(table) = &self.table {
            table.change([key.text().as_str()], |_, _| None)?;
        }
        Ok(self.lock().remove(key))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PromptKey, PromptRecord>> {
        // Every change of the map is one call, so the map is consistent after any panic.
        self.prompts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordKey for PromptKey {
    fn parts(&self) -> (&str, String) {
        (&self.tenant, self.name.clone())
    }

    fn of_parts(tenant: &str, name: &str) -> Option<PromptKey> {
        Some(PromptKey { tenant: tenant.to_owned(), name: name.to_owned() })
    }
}

/// The hash by which a change is detected: of the model with its adapters, the prompt's tokens, and its
/// retention.
pub(crate) fn sha256(model: &[u8; 32], prompt: &PinnedPrompt) -> String {
    let mut hasher = Sha256::new();
    hasher.update(model);
    prompt.tokens.iter().for_each(|token| hasher.update(token.to_le_bytes()));
    if let Some(retention) = &prompt.retention {
        // Separator: no token has this value.
        hasher.update(u32::MAX.to_le_bytes());
        hasher.update(retention.to_string());
    }
    if let Some(adapters) = &prompt.adapters {
        hasher.update((u32::MAX - 1).to_le_bytes());
        hasher.update(adapters.digest());
    }
    hex::written(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use kvik_engine::api::{AdapterId, AdapterMix, AdapterUse};
    use serde_json::json;

    use super::*;

    fn record(sha256: &str) -> PromptRecord {
        let (sha256, tokens) = (sha256.to_owned(), vec![1, 2, 3]);
        PromptRecord {
            body: json!({"prompt": "x"}),
            public: false,
            sha256,
            tokens,
            builds: 1,
            retained: None,
            lora: Vec::new(),
        }
    }

    fn key(tenant: &str, name: &str) -> PromptKey {
        PromptKey { tenant: tenant.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn what_is_kept_outlives_the_process() {
        let dir = tempfile::tempdir().unwrap();
        {
            let registry =
                Registry::open(Some(&Records::open(dir.path(), std::time::Duration::ZERO).unwrap()));
            registry.keep(&key("a", "x"), record("1")).unwrap();
            registry.keep(&key("b", "x"), record("2")).unwrap();
            registry.keep(&key("a", "y"), record("3")).unwrap();
            assert_eq!(registry.remove(&key("a", "y")).unwrap(), Some(record("3")));
        }
        let registry = Registry::open(Some(&Records::open(dir.path(), std::time::Duration::ZERO).unwrap()));
        assert_eq!(registry.of("a"), [("x".to_owned(), record("1"))]);
        assert_eq!(registry.get(&key("b", "x")), Some(record("2")));
        assert_eq!(registry.all().len(), 2);
    }

    #[test]
    fn a_change_is_noticed_by_its_hash() {
        let registry = Registry::open(None);
        assert_eq!(registry.change(&key("a", "x"), "1"), Change::New);
        registry.keep(&key("a", "x"), record("1")).unwrap();
        assert_eq!(registry.change(&key("a", "x"), "1"), Change::None);
        assert_eq!(registry.change(&key("a", "x"), "2"), Change::Replaces(Box::new(record("1"))));
        assert_eq!(registry.change(&key("b", "x"), "1"), Change::New, "another tenant's is another one");
    }

    #[test]
    fn what_is_kept_of_a_prompt_is_written_down_and_older_records_are_read() {
        let retention: Retention = "kvzip:0.25,budget=all".parse().unwrap();
        let (tokens, kept, dropped) = (160, 40, 120);
        let retained = Retained {
            retention,
            tokens,
            kept,
            dropped,
            smallest_head: 4,
            largest_head: 9,
            tightened: Vec::new(),
            positions: None,
        };
        let part = PromptRecord { retained: Some(RetainedRecord::of(&retention, &retained)), ..record("1") };
        let read: PromptRecord = serde_json::from_value(serde_json::to_value(&part).unwrap()).unwrap();
        assert_eq!((&read, read.retained(), read.retention()), (&part, Some(retained), Some(retention)));
        let old = json!({"body": {"prompt": "x"}, "sha256": "1", "tokens": [1, 2, 3], "builds": 1});
        assert_eq!(serde_json::from_value::<PromptRecord>(old).unwrap(), record("1"));
    }

    #[test]
    fn the_hash_is_of_tokens_and_model_and_adapters_and_what_is_kept() {
        let prompt = |tokens: &[u32]| PinnedPrompt {
            tokens: tokens.to_vec(),
            adapters: None,
            salt: [0; 16],
            tenant: Default::default(),
            retention: None,
        };
        let base = sha256(&[0; 32], &prompt(&[1, 2]));
        assert_eq!(base.len(), 64);
        assert_eq!(base, sha256(&[0; 32], &prompt(&[1, 2])));
        assert_ne!(base, sha256(&[1; 32], &prompt(&[1, 2])));
        assert_ne!(base, sha256(&[0; 32], &prompt(&[1, 2, 0])));
        let part = |text: &str| PinnedPrompt { retention: Some(text.parse().unwrap()), ..prompt(&[1, 2]) };
        let parts = ["keydiff:0.5", "keydiff:0.25"].map(|text| sha256(&[0; 32], &part(text)));
        assert!(parts[0] != parts[1] && !parts.contains(&base));
        let with = |scale: f32| {
            let used = AdapterUse { adapter: AdapterId(0), scale };
            sha256(
                &[0; 32],
                &PinnedPrompt { adapters: AdapterMix::new([(used, [7; 32])]), ..prompt(&[1, 2]) },
            )
        };
        assert!(with(1.0) != with(0.5) && with(1.0) != base && with(0.0) == base);
    }
}
