//! The flags of the store that nodes share.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::{Args, ValueEnum};
use kvik_engine::schedule::disk::RemoteWrites;
use kvik_remote::{FleetKey, RemoteUrl};

use super::keep_alive::KeepAlive;
use super::{SECONDS_MAX, size::ByteSize};
use crate::system::warn_if_readable_by_others;

/// The store that nodes share.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cache of a fleet")]
pub struct RemoteArgs {
    /// Share the cache with other nodes through redis://HOST, rediss://HOST, s3://BUCKET/PREFIX or file:///DIRECTORY
    // It needs the key, which `place` asks for: clap's `requires` does not count one of config.toml.
    #[arg(long, value_name = "URL", value_parser = RemoteUrl::parse)]
    cache_remote: Option<RemoteUrl>,
    /// A file with the key of all nodes, without which nobody reads what they share: `kvik cache key` makes one
    #[arg(long, value_name = "FILE")]
    pub cache_remote_key: Option<PathBuf>,
    /// What all nodes together keep there at most [default: as much as the store takes]
    #[arg(long, value_name = "SIZE")]
    pub cache_remote_size: Option<ByteSize>,
    /// What is kept there of one tenant at most [default: --cache-remote-size]
    #[arg(long, value_name = "SIZE")]
    pub cache_remote_tenant_size: Option<ByteSize>,
    /// How long it is kept there without a use: 1h, 2d, forever
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub cache_remote_ttl: KeepAlive,
    /// What this node writes there
    #[arg(long, value_enum, value_name = "WHAT", default_value = "reused")]
    cache_remote_write: RemoteWrite,
    /// Seconds at the start in which what other nodes use most is fetched, before /ready says yes
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(..=SECONDS_MAX))]
    cache_remote_warm: u64,
}

/// What a node writes to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RemoteWrite {
    /// Beginnings of prompts that were used a second time
    Reused,
    /// These first, and all else that is computed
    All,
}

/// A store and its key.
pub struct RemotePlace {
    /// Address of the store.
    pub url: RemoteUrl,
    /// Key that seals its values.
    pub key: FleetKey,
}

impl RemoteArgs {
    /// The store and its key; `None` if no store is configured.
    pub fn place(&self) -> anyhow::Result<Option<RemotePlace>> {
        let Some(url) = self.cache_remote.clone() else { return Ok(None) };
        let key = self.key()?.context("--cache-remote asks for --cache-remote-key")?;
        Ok(Some(RemotePlace { url, key }))
    }

    /// The key of the fleet, if one is configured.
    pub fn key(&self) -> anyhow::Result<Option<FleetKey>> {
        let Some(path) = self.cache_remote_key.as_deref() else { return Ok(None) };
        warn_if_readable_by_others(path, "the key of --cache-remote-key");
        FleetKey::read(path).map(Some).context("--cache-remote-key")
    }

    /// The blocks that this node writes to the store.
    pub fn writes(&self) -> RemoteWrites {
        match self.cache_remote_write {
            RemoteWrite::Reused => RemoteWrites::Reused,
            RemoteWrite::All => RemoteWrites::All,
        }
    }

    /// Maximum time at start for prefetching the prompts that other nodes use.
    pub fn warm(&self) -> Duration {
        Duration::from_secs(self.cache_remote_warm)
    }
}

impl Default for RemoteArgs {
    /// No store is configured.
    fn default() -> RemoteArgs {
        RemoteArgs {
            cache_remote: None,
            cache_remote_key: None,
            cache_remote_size: None,
            cache_remote_tenant_size: None,
            cache_remote_ttl: KeepAlive(None),
            cache_remote_write: RemoteWrite::Reused,
            cache_remote_warm: 0,
        }
    }
}
