//! Per-tenant records that are all in memory while the server runs.

use std::collections::BTreeMap;

use serde::{Serialize, de::DeserializeOwned};

use super::{Records, Table};

/// The tenant and the name of a record.
pub trait RecordKey: Ord + Sized {
    /// The tenant, and the record's name within the tenant. Neither holds control characters.
    fn parts(&self) -> (&str, String);

    /// The inverse of [`parts`](RecordKey::parts); `None` for values that `parts` never returns.
    fn of_parts(tenant: &str, name: &str) -> Option<Self>;

    /// The database key of the record.
    fn text(&self) -> String {
        let (tenant, name) = self.parts();
        format!("{tenant}\0{name}")
    }

    /// The inverse of [`text`](RecordKey::text).
    fn parse(text: &str) -> Option<Self> {
        let (tenant, name) = text.split_once('\0')?;
        Self::of_parts(tenant, name)
    }
}

/// Opens the table `name` and returns it with its stored records. Without `records`, or if the table cannot
/// be read, there are no stored records.
pub fn open<K: RecordKey, T: Serialize + DeserializeOwned>(
    records: Option<&Records>,
    name: &'static str,
) -> (Option<Table<T>>, BTreeMap<K, T>) {
    let table = records.map(|records| records.table(name));
    let known = table.as_ref().map(|table: &Table<T>| table.all_from("")).transpose();
    let known = known.unwrap_or_else(|error| {
        tracing::warn!("the records of {name} cannot be read: {error}");
        None
    });
    let known = known.map(|found| found.records).unwrap_or_default().into_iter();
    (table, known.filter_map(|(key, record)| Some((K::parse(&key)?, record))).collect())
}
