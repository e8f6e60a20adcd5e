//! The store of all responses.
//!
//! ```text
//! head \0 tenant \0 id      its size, its order of use and the previous response
//! body \0 tenant \0 id      the record
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ResponseError, StoredResponse};
use crate::app::prompt_log::PromptLog;
use kvik_memory::deletions::Owner;
use kvik_memory::records::{Records, RecordsError, Table};

type Result<T> = std::result::Result<T, ResponseError>;

/// Maximum responses of one tenant.
pub(super) const RESPONSES_MAX: usize = 4096;
/// Maximum bytes of all of them.
pub(super) const BYTES_MAX: u64 = 64 << 20;

/// Tenant and id.
type Key = (String, String);

/// A record in the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Record {
    Head(Head),
    Body(StoredResponse),
}

/// The facts about a response that are held in memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Head {
    previous: Option<String>,
    bytes: u64,
    /// Larger than that of all responses used earlier.
    order: u64,
}

/// All stored responses.
pub(crate) struct Responses {
    table: Table<Record>,
    heads: Mutex<BTreeMap<Key, Head>>,
    /// Log of the prompts computed for them, cleared when they are deleted.
    log: Arc<PromptLog>,
}

impl Responses {
    /// Opens the responses in the records; without records they last as long as the process.
    pub(crate) fn open(records: Option<&Records>, log: Arc<PromptLog>) -> Arc<Responses> {
        let table: Table<Record> = records.map_or_else(Records::in_memory, Records::clone).table("responses");
        let heads = heads(&table).unwrap_or_else(|error| {
            tracing::warn!("the stored responses cannot be read: {error}");
            BTreeMap::new()
        });
        Arc::new(Responses { table, heads: Mutex::new(heads), log })
    }

    /// Bytes of one response of a tenant, without reading it.
    pub(crate) fn bytes(&self, tenant: &str, id: &str) -> Result<u64> {
        let key = (tenant.to_owned(), id.to_owned());
        self.lock().get(&key).map(|head| head.bytes).ok_or_else(|| not_found(id))
    }

    /// Reads a response of a tenant.
    pub(crate) fn get(&self, tenant: &str, id: &str) -> Result<StoredResponse> {
        let key = (tenant.to_owned(), id.to_owned());
        if !self.lock().contains_key(&key) {
            return Err(not_found(id));
        }
        self.body(&key)
    }

    /// All messages up to and including a response, which counts as a use of it.
    pub(crate) fn said_up_to(&self, tenant: &str, id: &str) -> Result<Vec<Value>> {
        let chain = self.used(tenant, id)?;
        let mut said = Vec::new();
        for id in chain.into_iter().rev() {
            said.extend(self.body(&(tenant.to_owned(), id))?.said);
        }
        Ok(said)
    }

    /// Ids from this response, which is marked as used now, back to the first.
    fn used(&self, tenant: &str, id: &str) -> Result<Vec<String>> {
        let mut heads = self.lock();
        let order = next_order(&heads);
        let mut chain = Vec::new();
        let mut next = Some(id.to_owned());
        while let Some(id) = next.take() {
            let head = heads.get_mut(&(tenant.to_owned(), id.clone())).ok_or_else(|| not_found(&id))?;
            if chain.is_empty() {
                head.order = order;
            }
            next.clone_from(&head.previous);
            chain.push(id);
        }
        Ok(chain)
    }

    /// Stores a response, and deletes the oldest of its tenant beyond the limits.
    pub(super) fn keep(&self, tenant: &str, id: &str, stored: &StoredResponse) -> Result<()> {
        let bytes = serde_json::to_vec(stored).map_or(0, |text| text.len() as u64);
        if bytes > BYTES_MAX {
            return Err(ResponseError::TooLarge { bytes, max: BYTES_MAX });
        }
        let key = (tenant.to_owned(), id.to_owned());
        let (head, forgotten) = {
            let heads = self.lock();
            let head = Head { previous: stored.previous.clone(), bytes, order: next_order(&heads) };
            (head, oldest(&heads, (tenant, bytes), stored.previous.as_deref()))
        };
        let record = |name: &str| match name.starts_with("head") {
            true => Record::Head(head.clone()),
            false => Record::Body(stored.clone()),
        };
        let new = names(&key);
        let gone: Vec<String> = forgotten.iter().flat_map(names).collect();
        self.table.change(new.iter().chain(&gone).map(String::as_str), |name, _| {
            new.iter().any(|new| new == name).then(|| record(name))
        })?;
        let mut heads = self.lock();
        forgotten.iter().for_each(|key| drop(heads.remove(key)));
        heads.insert(key, head);
        drop(heads);
        for (tenant, id) in &forgotten {
            if let Err(error) = self.log.forget(&Owner::new(tenant, id)) {
                tracing::debug!("it stays noted what was computed for a response that is gone: {error}");
            }
        }
        Ok(())
    }

    /// Deletes a response of a tenant.
    pub(crate) fn delete(&self, tenant: &str, id: &str) -> Result<()> {
        let key = (tenant.to_owned(), id.to_owned());
        if !self.lock().contains_key(&key) {
            return Err(not_found(id));
        }
        self.table.change(names(&key).iter().map(String::as_str), |_, _| None)?;
        self.lock().remove(&key);
        Ok(())
    }

    fn body(&self, key: &Key) -> Result<StoredResponse> {
        let [_, body] = names(key);
        let found = self.table.between(&body, &format!("{body}\0"))?;
        found
            .into_iter()
            .find_map(|(_, record)| match record {
                Record::Body(stored) => Some(stored),
                Record::Head(_) => None,
            })
            .ok_or_else(|| not_found(&key.1))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Head>> {
        // Every change of the map is one call, so the map is consistent after any panic.
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The responses of a tenant to delete to make room for one of `bytes` that continues `previous`.
fn oldest(heads: &BTreeMap<Key, Head>, (tenant, bytes): (&str, u64), previous: Option<&str>) -> Vec<Key> {
    let own = heads.range((tenant.to_owned(), String::new())..).take_while(|((of, _), _)| of == tenant);
    let own: BTreeMap<&str, &Head> = own.map(|((_, id), head)| (id.as_str(), head)).collect();
    let ranked = ranked(&own, previous);
    let mut all = bytes;
    let kept = ranked.iter().take(RESPONSES_MAX - 1).take_while(|id| {
        all += own[*id].bytes;
        all <= BYTES_MAX
    });
    let kept = kept.count();
    ranked[kept..].iter().map(|id| (tenant.to_owned(), (*id).to_owned())).collect()
}

/// Responses from the most to the least worth keeping: an ancestor is worth as much as the newest response that continues
/// it, and stands before all of these. `newest` is continued now.
fn ranked<'a>(own: &BTreeMap<&'a str, &'a Head>, newest: Option<&'a str>) -> Vec<&'a str> {
    let mut by_use: Vec<(&str, u64)> = own.iter().map(|(id, head)| (*id, head.order)).collect();
    by_use.sort_unstable_by_key(|&(_, order)| std::cmp::Reverse(order));
    let mut ranked = Vec::with_capacity(own.len());
    let mut seen = BTreeSet::new();
    for start in newest.into_iter().chain(by_use.into_iter().map(|(id, _)| id)) {
        let first = ranked.len();
        let mut next = Some(start);
        while let Some((id, head)) =
            next.and_then(|id| own.get_key_value(id)).filter(|(id, _)| seen.insert(**id))
        {
            ranked.push(*id);
            next = head.previous.as_deref();
        }
        ranked[first..].reverse();
    }
    ranked
}

fn next_order(heads: &BTreeMap<Key, Head>) -> u64 {
    heads.values().map(|head| head.order).max().map_or(0, |order| order + 1)
}

/// Names of the records of a response.
fn names((tenant, id): &Key) -> [String; 2] {
    ["head", "body"].map(|kind| format!("{kind}\0{tenant}\0{id}"))
}

fn not_found(id: &str) -> ResponseError {
    ResponseError::NotFound(id.to_owned())
}

fn heads(table: &Table<Record>) -> std::result::Result<BTreeMap<Key, Head>, RecordsError> {
    let heads = table.between("head\0", "head\x01")?.into_iter().filter_map(|(name, record)| {
        let (tenant, id) = name.strip_prefix("head\0")?.split_once('\0')?;
        match record {
            Record::Head(head) => Some(((tenant.to_owned(), id.to_owned()), head)),
            Record::Body(_) => None,
        }
    });
    Ok(heads.collect())
}
