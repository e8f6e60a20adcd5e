//! Opens the store that nodes share.

use std::time::Duration;

use kvik_engine::{
    schedule::disk::{DiskSetup, RemoteSetup, bits_name},
    store::Waker,
};
use kvik_remote::{Budget, DEADLINE_MIN, Remote, RemoteConfig, records::Records};
use kvik_session::KvBudget;

use super::disk::OpenDisk;
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
    let Some(RemotePlace { url, key }) = args.place()? else { return Ok(None) };
    let mut fingerprint = blake3::Hasher::new_derive_key(FINGERPRINT_CONTEXT);
    fingerprint.update(&model).update(bits_name(&budget.kv, place).as_bytes());
    let line = url.to_string();
    let remote = Remote::open(RemoteConfig {
        url,
        key,
        fingerprint: *fingerprint.finalize().as_bytes(),
        payload_bytes: budget.stored_bytes,
        ttl: args.cache_remote_ttl.0.unwrap_or(FOREVER),
        budget: Budget {
            total: args.cache_remote_size.map(|size| size.0),
            owner: args.cache_remote_tenant_size.map(|size| size.0),
        },
        deadline_min: DEADLINE_MIN,
        waker: waker.clone(),
    })?;
    let records = remote.records();
    let setup =
        RemoteSetup { store: Box::new(remote), writes: args.writes(), block_bytes: budget.stored_bytes };
    Ok(Some(OpenRemote { setup, waker, records, line }))
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
