//! KV blocks that several nodes share, in Redis, S3 or a directory.
//!
//! ```text
//!   engine's thread                │ thread "kvik-remote"                       │ the store
//!   look_up, fetch, offer, cancel ─┼─► tasks: names, seals, deadlines, breaker ─┼─► a Backend
//!   done, expected, stats ◄────────┼── probes, in the background                │
//! ```
//!
//! No call on the left blocks. Whatever the store contains or does, a node gets the bytes that a node of its fleet
//! has sealed under this name, or nothing; and an unavailable store does not slow it down, since it is not used.
//! The reasons for this design: docs/decisions/2026-11-26-remote-store.md.
#![forbid(unsafe_code)]

pub mod backend;
mod blocks;
mod breaker;
pub mod budget;
mod config;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod health;
mod known;
mod names;
mod node;
mod probe;
pub mod records;
mod remote;
mod removals;
mod seal;
mod speed;
mod thread;
mod upkeep;

use std::sync::Arc;

pub use config::{Budget, DEADLINE_MIN, FleetKey, RemoteConfig, RemoteUrl, TTL_DEFAULT};
pub use error::{Fault, RemoteError};
pub use names::{Key, Names, OwnerTag};
pub use remote::Remote;
pub use seal::{Corrupt, HEADER_BYTES, Kind, Label, Sealer};

use backend::Backend;
use node::Node;
use records::Records;
use thread::Thread;

/// Maximum number of blocks in a run.
const RUN_MAX: usize = 64;

impl Remote {
    /// Opens a store. An unavailable one is opened too, and used once it is available.
    ///
    /// # Errors
    /// [`RemoteError`] for an invalid address or invalid settings.
    pub fn open(config: RemoteConfig) -> Result<Remote, RemoteError> {
        let fleet = Names::new(&config.key, &[0; 32], 0, 0).fleet();
        Remote::over(backend::open(&config.url, fleet)?, config)
    }

    /// Opens a store with a given backend; the address is only displayed.
    ///
    /// # Errors
    /// [`RemoteError::System`] if the thread cannot be started.
    pub fn over(backend: Arc<dyn Backend>, config: RemoteConfig) -> Result<Remote, RemoteError> {
        let run_max = run_max(backend.target_bytes(), config.payload_bytes);
        let names = Names::new(&config.key, &config.fingerprint, config.payload_bytes, run_max);
        let node = Arc::new(Node::new(backend, names, run_max, config));
        Ok(Remote::new(Arc::clone(&node), Thread::start(node)?))
    }

    /// Its records.
    pub fn records(&self) -> Records {
        Records::new(Arc::clone(self.node()), self.thread().commands())
    }
}

/// The largest power of two of blocks that fits into `target_bytes`, from 1 to [`RUN_MAX`].
fn run_max(target_bytes: usize, payload_bytes: usize) -> usize {
    let blocks = (target_bytes / payload_bytes.max(1)).clamp(1, RUN_MAX);
    1 << blocks.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_as_long_as_the_target_allows() {
        for (target, payload, run) in
            [(1 << 20, 1 << 20, 1), (1 << 20, 100_000, 8), (1 << 20, 1, 64), (1 << 20, 3 << 20, 1), (0, 0, 1)]
        {
            assert_eq!(run_max(target, payload), run, "{payload} of {target}");
        }
    }
}
