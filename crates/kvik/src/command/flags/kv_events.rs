//! Flags of the events that report cached blocks to routers.

use std::str::FromStr;

use anyhow::bail;
use clap::Args;

use kvik_serving::kv_events::KvEventsConfig;

/// Whether and where to publish what is cached.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Many nodes")]
pub(crate) struct KvEventArgs {
    /// Publish what comes into the cache in memory and what leaves it, as vLLM's KV events over ZeroMQ, at this address:
    /// tcp://*:5557, tcp://10.0.0.7:5557; whoever reaches it reads the tokens of prompts that are not a tenant's own
    #[arg(long, value_name = "ADDRESS")]
    kv_events: Option<Endpoint>,
    /// Send events that a subscriber has missed, at this address, as tcp://*:5558
    #[arg(long, value_name = "ADDRESS")]
    kv_events_replay: Option<Endpoint>,
    /// Topic of the events; llm-d wants kv@POD@MODEL
    #[arg(long, value_name = "TOPIC", default_value = "")]
    kv_events_topic: String,
    /// Steps with events that are kept for those who missed them, 64 MiB of them at most
    #[arg(long, value_name = "STEPS", default_value_t = 10_000)]
    kv_events_steps: usize,
}

/// A ZeroMQ address to listen at, without its `tcp://`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Endpoint(String);

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        let parts = text.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':'));
        let (host, port) = parts.ok_or_else(|| format!("{text:?} is not tcp://HOST:PORT"))?;
        port.parse::<u16>().map_err(|_| format!("{port:?} is no port"))?;
        Ok(Endpoint(format!("{}:{port}", if host == "*" { "0.0.0.0" } else { host })))
    }
}

impl KvEventArgs {
    /// The configuration from the flags; `None` if events are not requested.
    pub(crate) fn config(&self) -> anyhow::Result<Option<KvEventsConfig>> {
        let Some(Endpoint(publish)) = self.kv_events.clone() else {
            if self.kv_events_replay.is_some() {
                bail!("--kv-events-replay sends events again that --kv-events publishes; give that too");
            }
            return Ok(None);
        };
        Ok(Some(KvEventsConfig {
            publish,
            replay: self.kv_events_replay.clone().map(|Endpoint(replay)| replay),
            topic: self.kv_events_topic.clone(),
            steps_max: self.kv_events_steps,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_zeromq() {
        for (text, expect) in [
            ("tcp://*:5557", Some("0.0.0.0:5557")),
            ("tcp://0.0.0.0:5557", Some("0.0.0.0:5557")),
            ("tcp://[::]:5557", Some("[::]:5557")),
            ("tcp://node-1:0", Some("node-1:0")),
            ("127.0.0.1:5557", None),
            ("ipc:///tmp/events", None),
            ("tcp://*", None),
            ("tcp://*:70000", None),
        ] {
            let read = text.parse::<Endpoint>().ok();
            assert_eq!(read.as_ref().map(|Endpoint(address)| address.as_str()), expect, "{text}");
        }
    }
}
