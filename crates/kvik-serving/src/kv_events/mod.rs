//! Reports cached blocks to routers: KV events in the format of vLLM, so that indexers of vLLM's events work with kvik
//! too.
//!
//! ```text
//! engine's thread ── events of a step ──> wire ──> steps ──┬─> publish    PUB, to subscribers
//!                                         msgpack  numbered, └─> replay   ROUTER, to peers that missed some
//!                                                  bounded
//! ```
//!
//! | module          | cares about                                      |
//! |-----------------|--------------------------------------------------|
//! | `wire`          | the schema: names, order and form of what is sent |
//! | `steps`         | the last steps, by number, within bounds         |
//! | `publish`       | both sockets                                     |
//! | `subscriptions` | topics that a subscriber wants                   |
//! | `zmtp`          | the protocol of ZeroMQ, within bounds            |
//!
//! The engine never waits for a subscriber: it adds a step to a bounded buffer, and both sockets read from there. A
//! subscriber that is too slow sees a gap in the numbers, and requests the missing steps.

mod publish;
mod steps;
mod subscriptions;
mod wire;
mod zmtp;

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use kvik_engine::api::{KvEvent, KvListener};

use steps::Steps;

/// Maximum bytes of buffered steps.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Configuration of the sockets.
#[derive(Debug, Clone)]
pub struct KvEventsConfig {
    /// Address of the events, `host:port`.
    pub publish: String,
    /// Address at which missed steps are requested.
    pub replay: Option<String>,
    /// The first part of each message, by which subscribers filter.
    pub topic: String,
    /// Maximum number of buffered steps.
    pub steps_max: usize,
}

/// The published events of an engine.
#[derive(Debug, Clone)]
pub struct KvEvents {
    steps: Arc<Steps>,
    /// Salts of the tenants whose prompts are published.
    salts: Vec<[u8; 16]>,
}

impl KvEvents {
    /// Opens the sockets, which the tasks of this runtime serve as long as it runs.
    pub async fn open(config: KvEventsConfig, salts: Vec<[u8; 16]>) -> anyhow::Result<KvEvents> {
        let steps = Arc::new(Steps::new(config.steps_max, KEPT_BYTES_MAX));
        let listener = listen(&config.publish).context("--kv-events")?;
        tracing::info!("KV events are published at tcp://{}", listener.local_addr()?);
        publish::publish(listener, config.topic.into(), steps.clone()).context("--kv-events")?;
        if let Some(address) = &config.replay {
            let listener = listen(address).context("--kv-events-replay")?;
            tracing::info!("missed KV events are asked for at tcp://{}", listener.local_addr()?);
            publish::replay(listener, steps.clone()).context("--kv-events-replay")?;
        }
        Ok(KvEvents { steps, salts })
    }

    /// The listener for the engine; `adapters` are the names of mixes of adapters, by their digests.
    pub fn listener(&self, adapters: HashMap<[u8; 32], String>) -> KvListener {
        let steps = self.steps.clone();
        let sink = move |events: Vec<KvEvent>| match wire::encode(SystemTime::now(), &events, &adapters) {
            Ok(payload) => steps.push(payload.into()),
            Err(error) => tracing::error!("KV events are not published: {error}"),
        };
        KvListener { salts: self.salts.clone(), sink: Box::new(sink) }
    }
}

fn listen(address: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))
}

/// Reads what a peer might send.
#[cfg(fuzzing)]
pub fn fuzz_zmtp(bytes: &[u8]) {
    zmtp::fuzz(bytes);
}
