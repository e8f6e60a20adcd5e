//! Tries the store in the background, so that no request does: writes a value, asks for it, reads it and removes it.

use std::time::Duration;

use kvik_cache::Identity;
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{Backend, Retention};
use crate::error::Fault;
use crate::names::Names;
use crate::node::Node;
use crate::seal::{HEADER_BYTES, Kind, Label, Sealer};
use crate::speed::{Sample, byte_s};

/// Bytes of the value: enough to measure a rate, and no burden.
const PROBE_BYTES: usize = 256 << 10;
/// A probe that takes longer has failed.
const PROBE_MAX: Duration = Duration::from_secs(5);
/// Time between probes of a store that is down, at first and at most.
const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(30);
/// A store that goes down sooner after a probe is not probed again as soon as one that was up for long.
const STABLE: Duration = Duration::from_secs(60);

/// Probes at the start and whenever the store is down, for ever.
pub(crate) async fn watch(node: &Node) {
    let mut wait = WAIT_MIN;
    loop {
        match timeout(PROBE_MAX, probe(&*node.backend, &node.names, &node.sealer)).await {
            Ok(Ok(sample)) => {
                let since = Instant::now();
                node.health.probed(sample);
                node.health.until_down().await;
                if since.elapsed() >= STABLE {
                    wait = WAIT_MIN;
                }
            }
            Ok(Err(fault)) => node.health.probe_failed(&fault),
            Err(_) => node.health.probe_failed(&Fault::Late),
        }
        sleep(wait).await;
        wait = (wait * 2).min(WAIT_MAX);
    }
}

/// One probe, with a name that nobody else has.
async fn probe(backend: &dyn Backend, names: &Names, sealer: &Sealer) -> Result<Sample, Fault> {
    let system = |_| Fault::Failed("the system has no random numbers".to_owned());
    let mut name = [0; 32];
    getrandom::fill(&mut name).map_err(system)?;
    let key = names.run(0, &Identity(name));
    let label = Label { kind: Kind::Run, count: 0, owner: 0, what: &name };
    let plain = vec![name[0]; PROBE_BYTES];
    let retention = Retention { ttl: STABLE, total_max: None, owner_max: None };
    let value = sealer.seal(label, STABLE, &plain).ok_or_else(|| system(getrandom::Error::UNSUPPORTED))?;

    backend.connect().await?;
    backend.put(&key, value, &retention).await?;
    let asked = Instant::now();
    let is_there = backend.exists(&[key]).await? == [true];
    let latency = asked.elapsed();
    let asked = Instant::now();
    let value = backend.get(&key, PROBE_BYTES + HEADER_BYTES + 1).await?;
    let opened = value.map(|value| sealer.open(label, value.bytes));
    let time = asked.elapsed();
    backend.delete(&key).await?;
    match opened {
        Some(Ok((opened, _))) if is_there && opened == plain => {
            Ok(Sample { latency, byte_s: byte_s(PROBE_BYTES as u64, time, latency) })
        }
        _ => Err(Fault::Failed("it does not give what it was given".to_owned())),
    }
}
