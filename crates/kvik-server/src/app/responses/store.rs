//! The store of all responses.
//!
//! ```text
//! head \0 tenant \0 id      its size, its order of use, the previous response and the ids of its items
//! body \0 tenant \0 id      the record
//! items \0 tenant \0 id     the items of its answer
//! ```
//!
//! A conversation of references names the items of each of its answers. They have small records of their own, because
//! bodies hold whole inputs: reading those for a few items each would take time in the square of the turns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    ResponseError, StoredResponse,
    items::{ItemIds, ItemSource, ReferredItems, is_reference, output_of},
};
use crate::app::prompt_log::PromptLog;
use kvik_memory::deletions::Owner;
use kvik_memory::records::{Records, RecordsError, Table};
use kvik_text::measure::json_bytes;

type Result<T> = std::result::Result<T, ResponseError>;

/// Maximum responses of one tenant.
pub(super) const RESPONSES_MAX: usize = 4096;
/// Maximum bytes of all of them.
pub(super) const BYTES_MAX: u64 = 64 << 20;

/// Key range of all heads.
const HEADS: [&str; 2] = ["head\0", "head\x01"];

/// Tenant and id.
type Key = (String, String);

/// A record in the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Record {
    Head(Head),
    Body(StoredResponse),
    Items(Vec<Value>),
}

/// The facts about a response that are held in memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Head {
    previous: Option<String>,
    bytes: u64,
    /// Larger than that of all responses used earlier.
    order: u64,
    /// By which its items are found.
    #[serde(default)]
    items: ItemIds,
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
    pub(crate) fn used(&self, tenant: &str, id: &str) -> Result<Vec<String>> {
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

    /// Ids of the responses that continue each of a tenant's responses.
    pub(crate) fn continued(&self, tenant: &str) -> BTreeMap<String, Vec<String>> {
        let mut continued: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (id, head) in own(&self.lock(), tenant) {
            if let Some(previous) = &head.previous {
                continued.entry(previous.clone()).or_default().push(id.to_owned());
            }
        }
        continued
    }

    /// Reads the items of a tenant's responses that have these ids, which counts as a use of the responses.
    ///
    /// # Errors
    /// If no stored response has one of them.
    pub(crate) fn items(&self, tenant: &str, ids: &[&str]) -> Result<ReferredItems> {
        let mut found: BTreeMap<String, Value> = BTreeMap::new();
        for (record, wanted) in self.holders(tenant, ids)? {
            found.extend(self.items_in(&record)?.into_iter().filter_map(|item| {
                let id = item["id"].as_str()?.to_owned();
                wanted.contains(id.as_str()).then_some((id, item))
            }));
        }
        // A response may have been deleted since its head was read.
        match ids.iter().find(|id| !found.contains_key(**id)) {
            Some(id) => Err(no_item(id)),
            None => Ok(ReferredItems::of(found)),
        }
    }

    /// Names of the records that have the items, with the ids of those in each. Their responses are marked as used now.
    fn holders<'a>(&self, tenant: &str, ids: &[&'a str]) -> Result<BTreeMap<String, BTreeSet<&'a str>>> {
        let wanted: BTreeSet<&str> = ids.iter().copied().collect();
        let mut heads = self.lock();
        let holders = holders(own(&heads, tenant), &wanted);
        let mut order = next_order(&heads);
        let mut records: BTreeMap<String, BTreeSet<&'a str>> = BTreeMap::new();
        for &id in ids {
            let (source, response) = holders.get(id).ok_or_else(|| no_item(id))?;
            let key = (tenant.to_owned(), response.clone());
            if let Some(head) = heads.get_mut(&key) {
                head.order = order;
                order += 1;
            }
            let [_, body, items] = names(&key);
            let record = if *source == ItemSource::Output { items } else { body };
            records.entry(record).or_default().insert(id);
        }
        Ok(records)
    }

    /// The items in a record: of an answer, or of an input.
    fn items_in(&self, record: &str) -> Result<Vec<Value>> {
        Ok(match self.record(record)? {
            Some(Record::Items(items)) => items,
            Some(Record::Body(stored)) => {
                stored.input.into_iter().filter(|item| !is_reference(item)).collect()
            }
            Some(Record::Head(_)) | None => Vec::new(),
        })
    }

    /// Refuses a response that could not be stored behind `previous`, of which this much is `known`.
    pub(super) fn check_room(&self, tenant: &str, previous: &str, known: &impl Serialize) -> Result<()> {
        check_room(&self.lock(), (tenant, json_bytes(known) as u64), Some(previous))
    }

    /// Stores a response, and deletes the oldest of its tenant beyond the limits, but none that it continues: without
    /// them it could not be continued.
    pub(super) fn keep(&self, tenant: &str, id: &str, stored: &StoredResponse) -> Result<()> {
        let bytes = (json_bytes(stored) + json_bytes(output_of(&stored.response))) as u64;
        if bytes > BYTES_MAX {
            return Err(ResponseError::TooLarge { bytes, max: BYTES_MAX });
        }
        let key = (tenant.to_owned(), id.to_owned());
        let (head, forgotten) = {
            let heads = self.lock();
            check_room(&heads, (tenant, bytes), stored.previous.as_deref())?;
            let (previous, order) = (stored.previous.clone(), next_order(&heads));
            let head = Head { previous, bytes, order, items: ItemIds::of(stored) };
            (head, oldest(&heads, (tenant, bytes), stored.previous.as_deref()))
        };
        let (new, mut records) = (names(&key), records(&key, &head, stored));
        let gone: Vec<String> = forgotten.iter().flat_map(names).collect();
        let changed = new.iter().chain(&gone).map(String::as_str);
        self.table.change_erasing(changed, |name, _| records.remove(name))?;
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

    /// Deletes a response of a tenant, also what of it cannot be read.
    pub(crate) fn delete(&self, tenant: &str, id: &str) -> Result<()> {
        self.check_stored(tenant, id)?;
        let key = (tenant.to_owned(), id.to_owned());
        self.table.change_erasing(names(&key).iter().map(String::as_str), |_, _| None)?;
        self.lock().remove(&key);
        Ok(())
    }

    /// Refuses the id of a response of which nothing is stored, not even what cannot be read.
    pub(crate) fn check_stored(&self, tenant: &str, id: &str) -> Result<()> {
        let key = (tenant.to_owned(), id.to_owned());
        if self.lock().contains_key(&key) {
            return Ok(());
        }
        for name in names(&key) {
            if !self.table.keys_between(&name, &format!("{name}\0"))?.is_empty() {
                return Ok(());
            }
        }
        Err(not_found(id))
    }

    /// The owners of what was computed for all responses, also of those that cannot be read.
    pub(crate) fn owners(&self) -> std::result::Result<Vec<Owner>, RecordsError> {
        let [from, until] = HEADS;
        let keys = self.table.keys_between(from, until)?;
        Ok(keys.iter().filter_map(|name| of_head(name)).map(|(tenant, id)| Owner::new(tenant, id)).collect())
    }

    fn body(&self, key: &Key) -> Result<StoredResponse> {
        let [_, body, _] = names(key);
        match self.record(&body)? {
            Some(Record::Body(stored)) => Ok(stored),
            _ => Err(not_found(&key.1)),
        }
    }

    /// The record of this name.
    fn record(&self, name: &str) -> Result<Option<Record>> {
        let found = self.table.between(name, &format!("{name}\0"))?;
        Ok(found.into_iter().next().map(|(_, record)| record))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Head>> {
        // Every change of the map is one call, so the map is consistent after any panic.
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ids and heads of a tenant's responses.
fn own<'a>(heads: &'a BTreeMap<Key, Head>, tenant: &'a str) -> impl Iterator<Item = (&'a str, &'a Head)> {
    let own = heads.range((tenant.to_owned(), String::new())..).take_while(move |((of, _), _)| of == tenant);
    own.map(|((_, id), head)| (id.as_str(), head))
}

/// Which response has each of the `wanted` items, and where. Of several it is one that answered with the item, and of
/// these the one used last.
fn holders<'a>(
    own: impl Iterator<Item = (&'a str, &'a Head)>,
    wanted: &BTreeSet<&str>,
) -> BTreeMap<String, (ItemSource, String)> {
    let mut best: BTreeMap<&str, (ItemSource, u64, &str)> = BTreeMap::new();
    for (response, head) in own {
        for (item, source) in head.items.all().filter(|(item, _)| wanted.contains(*item)) {
            let candidate = (source, head.order, response);
            let holder = best.entry(item).or_insert(candidate);
            *holder = candidate.max(*holder);
        }
    }
    let found = best.into_iter();
    found.map(|(item, (source, _, response))| (item.to_owned(), (source, response.to_owned()))).collect()
}

/// Refuses a response of `bytes` for which there is no room behind `previous` and all that this one continues.
fn check_room(
    heads: &BTreeMap<Key, Head>,
    (tenant, bytes): (&str, u64),
    previous: Option<&str>,
) -> Result<()> {
    let (mut answers, mut bytes, mut next) = (1, bytes, previous);
    while let Some(id) = next {
        let head = heads.get(&(tenant.to_owned(), id.to_owned())).ok_or_else(|| not_found(id))?;
        (answers, bytes, next) = (answers + 1, bytes + head.bytes, head.previous.as_deref());
    }
    match answers <= RESPONSES_MAX && bytes <= BYTES_MAX {
        true => Ok(()),
        false => Err(ResponseError::ChainFull { answers_max: RESPONSES_MAX, bytes_max: BYTES_MAX }),
    }
}

/// The responses of a tenant to delete to make room for one of `bytes` that continues `previous`.
fn oldest(heads: &BTreeMap<Key, Head>, (tenant, bytes): (&str, u64), previous: Option<&str>) -> Vec<Key> {
    let (count, held) =
        own(heads, tenant).fold((0, 0), |(count, held), (_, head)| (count + 1, held + head.bytes));
    if count < RESPONSES_MAX && held + bytes <= BYTES_MAX {
        return Vec::new();
    }
    let own: BTreeMap<&str, &Head> = own(heads, tenant).collect();
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

/// The records of a response, by their names; an answer without items has no record of them.
fn records(key: &Key, head: &Head, stored: &StoredResponse) -> BTreeMap<String, Record> {
    let [of_head, of_body, of_items] = names(key);
    let output = output_of(&stored.response);
    let items = (!output.is_empty()).then(|| (of_items, Record::Items(output.to_vec())));
    let rest = [(of_head, Record::Head(head.clone())), (of_body, Record::Body(stored.clone()))];
    rest.into_iter().chain(items).collect()
}

/// Names of the records of a response.
fn names((tenant, id): &Key) -> [String; 3] {
    ["head", "body", "items"].map(|kind| format!("{kind}\0{tenant}\0{id}"))
}

/// Tenant and id of a response, by the name of the record of its head.
fn of_head(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("head\0")?.split_once('\0')
}

fn not_found(id: &str) -> ResponseError {
    ResponseError::NotFound(id.to_owned())
}

fn no_item(id: &str) -> ResponseError {
    ResponseError::NoItem(id.to_owned())
}

fn heads(table: &Table<Record>) -> std::result::Result<BTreeMap<Key, Head>, RecordsError> {
    let [from, until] = HEADS;
    let heads = table.between(from, until)?.into_iter().filter_map(|(name, record)| {
        let (tenant, id) = of_head(&name)?;
        match record {
            Record::Head(head) => Some(((tenant.to_owned(), id.to_owned()), head)),
            Record::Body(_) | Record::Items(_) => None,
        }
    });
    Ok(heads.collect())
}
