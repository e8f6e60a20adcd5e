//! The registry of pinned prompts, which are computed in advance.
//!
//! A prompt is identified by its name within its tenant, and by the SHA-256 of its tokens and the model.
//! While that hash is unchanged, pinning the prompt again does nothing; when it changes, the old prompt is
//! released and the new one computed. Records outlive the process, and so do the blocks on disk. While it runs,
//! all of them are in memory, so they have limits, and whoever reads one shares it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use kvik_cache::{BLOCK_POSITIONS, Token, retain::Retention};
use kvik_engine::api::{PinnedPrompt, Retained};
use serde::{Deserialize, Serialize};
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};
use sha2::{Digest, Sha256};

use crate::http::error::ApiError;
use kvik_memory::hex;
use kvik_memory::records::{
    FileTurns, Records, RecordsError, Table,
    map::{self, RecordKey},
};
use kvik_serving::lora::WrittenUse;

/// Maximum prompts of one tenant: each is pinned.
const PROMPTS_MAX: usize = 256;
/// Maximum bytes of one prompt's record: a million tokens, written as numbers, take 11 MiB.
const BYTES_MAX: u64 = 16 << 20;
/// Maximum bytes of all records of one tenant.
const TENANT_BYTES_MAX: u64 = 64 << 20;

/// The record of a pinned prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PromptRecord {
    /// The request's body: `messages` and `tools`, or `prompt`.
    pub(crate) body: PromptBody,
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

/// The fields from which a prompt is computed again, as the text of a JSON object: its values would take up to a
/// hundred times as much memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct PromptBody(Box<RawValue>);

impl PromptBody {
    /// The text of these fields.
    pub(crate) fn of(fields: &Value) -> PromptBody {
        PromptBody(to_raw_value(fields).expect("a value is written as JSON"))
    }

    pub(crate) fn text(&self) -> &str {
        self.0.get()
    }
}

impl PartialEq for PromptBody {
    fn eq(&self, other: &PromptBody) -> bool {
        self.text() == other.text()
    }
}

/// Bytes of a record that has this body and these tokens.
pub(crate) fn record_bytes(body: &PromptBody, tokens: &[Token]) -> u64 {
    (body.text().len() + size_of_val(tokens)) as u64
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
    fn bytes(&self) -> u64 {
        record_bytes(&self.body, &self.tokens)
    }

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
    prompts: Mutex<BTreeMap<PromptKey, Arc<PromptRecord>>>,
}

/// Reasons why a prompt is not kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PromptError {
    #[error("{PROMPTS_MAX} prompts are kept, which is the limit; delete one first")]
    TooMany,
    #[error(
        "the prompt would take {bytes} bytes with its messages and tools, and {BYTES_MAX} is the limit; send only what its template reads"
    )]
    TooLarge { bytes: u64 },
    #[error(
        "all kept prompts together would take {bytes} bytes, and {TENANT_BYTES_MAX} is the limit; delete one first"
    )]
    AllTooLarge { bytes: u64 },
    #[error(transparent)]
    Records(#[from] RecordsError),
}

impl From<PromptError> for ApiError {
    fn from(error: PromptError) -> ApiError {
        match error {
            PromptError::Records(error) => error.into(),
            limit => ApiError::new(StatusCode::BAD_REQUEST, Some("prompt_limit"), limit.to_string()),
        }
    }
}

/// The work needed to pin a prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    /// The prompt is already pinned, with the same hash.
    None,
    /// The prompt is new.
    New,
    /// The prompt replaces this one.
    Replaces(Arc<PromptRecord>),
}

impl Registry {
    /// Opens the registry with the prompts in the records.
    pub(crate) fn open(records: Option<&Records>) -> Registry {
        let (table, prompts) = map::open::<PromptKey, PromptRecord>(records, "prompts");
        let prompts = prompts.into_iter().map(|(key, record)| (key, Arc::new(record))).collect();
        Registry { table, changing: FileTurns::new(1), prompts: Mutex::new(prompts) }
    }

    /// The prompts of a tenant.
    pub(crate) fn of(&self, tenant: &str) -> Vec<(String, Arc<PromptRecord>)> {
        let prompts = self.lock();
        let mine = prompts.iter().filter(|(key, _)| key.tenant == tenant);
        mine.map(|(key, record)| (key.name.clone(), record.clone())).collect()
    }

    /// All prompts.
    pub(crate) fn all(&self) -> Vec<(PromptKey, Arc<PromptRecord>)> {
        self.lock().iter().map(|(key, record)| (key.clone(), record.clone())).collect()
    }

    /// The prompts of tenants that begin with a block of one of these.
    pub(crate) fn beside(&self, prompts: &[Vec<Token>], is_of: impl Fn(&str) -> bool) -> Vec<Vec<Token>> {
        let begins_alike = |tokens: &[Token]| {
            let first = tokens.get(..BLOCK_POSITIONS);
            first.is_some_and(|first| prompts.iter().any(|prompt| prompt.starts_with(first)))
        };
        let all = self.lock();
        let beside = all.iter().filter(|(key, record)| begins_alike(&record.tokens) && is_of(&key.tenant));
        beside.map(|(_, record)| record.tokens.clone()).collect()
    }

    pub(crate) fn get(&self, key: &PromptKey) -> Option<Arc<PromptRecord>> {
        self.lock().get(key).cloned()
    }

    /// The change that pinning a prompt with this hash under this name makes.
    pub(crate) fn change(&self, key: &PromptKey, sha256: &str) -> Change {
        match self.lock().get(key) {
            None => Change::New,
            Some(record) if record.sha256 == sha256 => Change::None,
            Some(record) => Change::Replaces(record.clone()),
        }
    }

    /// Refuses a record of `bytes` bytes that would exceed a limit of its tenant. One that is no larger than the one
    /// before it passes: that may be older than the limits, and is computed again when the model changes.
    pub(crate) fn check_room(&self, key: &PromptKey, bytes: u64) -> Result<(), PromptError> {
        let prompts = self.lock();
        let others = prompts.iter().filter(|(other, _)| other.tenant == key.tenant && **other != *key);
        let (count, all) =
            others.fold((0, bytes), |(count, all), (_, record)| (count + 1, all + record.bytes()));
        match prompts.get(key) {
            Some(before) if bytes <= before.bytes() => Ok(()),
            None if count >= PROMPTS_MAX => Err(PromptError::TooMany),
            _ if bytes > BYTES_MAX => Err(PromptError::TooLarge { bytes }),
            _ if all > TENANT_BYTES_MAX => Err(PromptError::AllTooLarge { bytes: all }),
            _ => Ok(()),
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
    ) -> Result<Option<Arc<PromptRecord>>, PromptError> {
        let _changing = self.changing.enter().map_err(RecordsError::from)?;
        let before = self.get(key);
        if before.as_deref() == Some(&record) {
            return Ok(before);
        }
        self.check_room(key, record.bytes())?;
        if let Some(table) = &self.table {
            table.change([key.text().as_str()], |_, _| Some(record.clone()))?;
        }
        Ok(self.lock().insert(key.clone(), Arc::new(record)))
    }

    /// Removes a prompt and returns it.
    pub(crate) fn remove(&self, key: &PromptKey) -> Result<Option<Arc<PromptRecord>>, RecordsError> {
        let _changing = self.changing.enter()?;
        if let Some(table) = &self.table {
            table.change([key.text().as_str()], |_, _| None)?;
        }
        Ok(self.lock().remove(key))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PromptKey, Arc<PromptRecord>>> {
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
            body: PromptBody::of(&json!({"prompt": "x"})),
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
            assert_eq!(registry.remove(&key("a", "y")).unwrap(), Some(Arc::new(record("3"))));
        }
        let registry = Registry::open(Some(&Records::open(dir.path(), std::time::Duration::ZERO).unwrap()));
        assert_eq!(registry.of("a"), [("x".to_owned(), Arc::new(record("1")))]);
        assert_eq!(registry.get(&key("b", "x")), Some(Arc::new(record("2"))));
        assert_eq!(registry.all().len(), 2);
    }

    #[test]
    fn a_change_is_noticed_by_its_hash() {
        let registry = Registry::open(None);
        assert_eq!(registry.change(&key("a", "x"), "1"), Change::New);
        registry.keep(&key("a", "x"), record("1")).unwrap();
        assert_eq!(registry.change(&key("a", "x"), "1"), Change::None);
        assert_eq!(registry.change(&key("a", "x"), "2"), Change::Replaces(Arc::new(record("1"))));
        assert_eq!(registry.change(&key("b", "x"), "1"), Change::New, "another tenant's is another one");
    }

    #[test]
    fn the_prompts_of_a_tenant_have_limits_also_where_one_replaces_another() {
        let registry = Registry::open(None);
        let keep = |tenant: &str, name: &str, mebibytes: usize| {
            let body = PromptBody::of(&json!("x".repeat(mebibytes << 20)));
            registry.keep(&key(tenant, name), PromptRecord { body, ..record("1") }).map(drop)
        };
        assert!(matches!(keep("a", "0", 17), Err(PromptError::TooLarge { .. })));
        for name in ["1", "2", "3", "4"] {
            keep("a", name, 15).unwrap();
        }
        assert!(matches!(keep("a", "5", 15), Err(PromptError::AllTooLarge { .. })));
        keep("a", "5", 1).unwrap();
        assert!(
            matches!(keep("a", "5", 5), Err(PromptError::AllTooLarge { .. })),
            "in the place of a small one"
        );
        keep("a", "4", 2).unwrap();
        keep("a", "5", 5).unwrap();
        keep("b", "5", 15).unwrap();
        for name in 6..=PROMPTS_MAX {
            keep("a", &name.to_string(), 0).unwrap();
        }
        assert!(matches!(keep("a", "more", 0), Err(PromptError::TooMany)));
        keep("a", "6", 1).unwrap();
    }

    #[test]
    fn whoever_reads_a_prompt_shares_it() {
        let registry = Registry::open(None);
        registry.keep(&key("a", "x"), record("1")).unwrap();
        let there = registry.get(&key("a", "x")).unwrap();
        assert!(Arc::ptr_eq(&there, &registry.of("a")[0].1) && Arc::ptr_eq(&there, &registry.all()[0].1));
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
