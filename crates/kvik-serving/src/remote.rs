//! Opens the store that nodes share.

use std::sync::Arc;
use std::time::Duration;

use kvik_engine::{
    schedule::disk::{DiskSetup, RemoteSetup, bits_name},
    store::Waker,
};
use kvik_memory::shared::SharedRecords;
use kvik_remote::{Budget, DEADLINE_MIN, Remote, RemoteConfig, records::Records};
use kvik_session::KvBudget;

use super::{disk::OpenDisk, fleet::FleetRecords};
use crate::settings::remote::{RemoteArgs, RemotePlace};

/// Separates the blocks of models and KV formats; changing it orphans all stored blocks.
const FINGERPRINT_CONTEXT: &str = "kvik 2026-11-26 shared blocks, fingerprint v1";

/// Longer than the lifetime of any store.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// An open store.
pub(crate) struct OpenRemote {
    setup: RemoteSetup,
    waker: Waker,
    /// Records that nodes exchange.
    pub(crate) records: Records,
    /// Its line in the banner.
    pub(crate) line: String,
}

/// Opens the store that the flags name, for the blocks of a model that is computed on the device `place`; `None` if no
/// store is configured.
///
/// # Errors
/// If the flags are invalid. An unreachable store is not an error.
pub(crate) fn open(
    args: &RemoteArgs,
    budget: &KvBudget,
    (model, place): ([u8; 32], &str),
    waker: Waker,
) -> anyhow::Result<Option<OpenRemote>> {
    let Some(store) = args.place()? else { return Ok(None) };
    let mut fingerprint = blake3::Hasher::new_derive_key(FINGERPRINT_CONTEXT);
    fingerprint.update(&model).update(bits_name(&budget.kv, place).as_bytes());
    let line = store.url.to_string();
    let blocks = (*fingerprint.finalize().as_bytes(), budget.stored_bytes);
    let remote = Remote::open(config(args, store, blocks, waker.clone()))?;
    let records = remote.records();
    let setup =
        RemoteSetup { store: Box::new(remote), writes: args.writes(), block_bytes: budget.stored_bytes };
    Ok(Some(OpenRemote { setup, waker, records, line }))
}

/// Opens the store that the flags name for its records alone, which a server needs for longer than any of its models;
/// `None` if no store is configured.
///
/// # Errors
/// If the flags are invalid. An unreachable store is not an error.
pub fn open_records(args: &RemoteArgs) -> anyhow::Result<Option<Arc<dyn SharedRecords>>> {
    let Some(store) = args.place()? else { return Ok(None) };
    // Neither names nor seals of records depend on a model.
    let remote = Remote::open(config(args, store, ([0; 32], 1), Waker::default()))?;
    Ok(Some(Arc::new(FleetRecords::of(remote))))
}

/// The configuration of a store for blocks of this fingerprint and size.
fn config(
    args: &RemoteArgs,
    RemotePlace { url, key }: RemotePlace,
    (fingerprint, payload_bytes): ([u8; 32], usize),
    waker: Waker,
) -> RemoteConfig {
    RemoteConfig {
        url,
        key,
        fingerprint,
        payload_bytes,
        ttl: args.cache_remote_ttl.0.map_or(FOREVER, |ttl| ttl.min(FOREVER)),
        budget: Budget {
            total: args.cache_remote_size.map(|size| size.0),
            owner: args.cache_remote_tenant_size.map(|size| size.0),
        },
        deadline_min: DEADLINE_MIN,
        waker,
    }
}

/// Puts the store behind the tiers of this node, or uses it alone.
pub(crate) fn behind(
    disk: Option<OpenDisk>,
    remote: Option<OpenRemote>,
) -> (Option<DiskSetup>, Option<Records>) {
    let disk = disk.map(|disk| disk.setup);
    let Some(OpenRemote { setup, waker, records, .. }) = remote else { return (disk, None) };
    let disk = disk.unwrap_or_else(|| DiskSetup { waker, ..DiskSetup::none() });
    (Some(DiskSetup { remote: Some(setup), ..disk }), Some(records))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kvik_remote::{FleetKey, RemoteUrl};

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        remote: RemoteArgs,
    }

    #[test]
    fn no_time_to_live_is_longer_than_for_ever() {
        for (time, expect) in
            [("1h", 3600), ("forever", FOREVER.as_secs()), ("200000000000000d", FOREVER.as_secs())]
        {
            let args = Flags::try_parse_from(["kvik", "--cache-remote-ttl", time]).unwrap().remote;
            let url = RemoteUrl::parse("file:///nowhere").unwrap();
            let place = RemotePlace { url, key: FleetKey::parse(&"0".repeat(64)).unwrap() };
            let config = config(&args, place, ([0; 32], 1), Waker::default());
            assert_eq!(config.ttl, Duration::from_secs(expect), "{time}");
        }
    }
}
