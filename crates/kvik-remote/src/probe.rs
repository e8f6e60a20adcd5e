//! Probes the store in the background, so that no request has to: writes a value, queries it, reads it and removes
//! it.

use std::time::Duration;

use kvik_cache::Identity;
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{Backend, Retention};
use crate::error::Fault;
use crate::names::{Key, Names};
use crate::node::Node;
use crate::seal::{HEADER_BYTES, Kind, Label, Sealer};
use crate::speed::{Sample, byte_s};

/// Size of the value: enough to measure a rate, without burdening the store.
const PROBE_BYTES: usize = 256 << 10;
/// Maximum number of names queried.
const QUESTIONS: usize = 32;
/// Time limit of a probe.
const PROBE_MAX: Duration = Duration::from_secs(5);
/// Time between probes of a store that is down, initially and at most.
const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Time up after which the wait between probes is reset.
const STABLE: Duration = Duration::from_secs(60);

/// Probes at the start and whenever the store is down, forever.
pub(crate) async fn watch(node: &Node) {
    let mut wait = WAIT_MIN;
    loop {
        match timeout(PROBE_MAX, probe(&*node.backend, &node.names, &node.sealer)).await {
            Ok(Ok(sample)) => {
                let since = Instant::now();
                node.health.probed(sample);
                node.done.wake();
                node.health.until_down().await;
                if since.elapsed() >= STABLE {
                    wait = WAIT_MIN;
                }
            }
            Ok(Err(fault)) => node.health.probe_failed(&fault),
            Err(_) => node.health.probe_failed(&Fault::Late),
        }
        node.done.wake();
        sleep(wait).await;
        wait = (wait * 2).min(WAIT_MAX);
    }
}

/// Carries out a probe, with a random name.
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
    let is_there = backend.exists(&questions(key, backend.questions_max())).await?.first() == Some(&true);
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

/// The key and others: as many as a lookup queries, where each is a request, so that a lookup finds open connections.
fn questions(key: Key, max: usize) -> Vec<Key> {
    let other = |nth: usize| Key { name: (u128::from_le_bytes(key.name) ^ nth as u128).to_le_bytes(), ..key };
    (0..max.min(QUESTIONS)).map(other).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use std::sync::Arc;

    use kvik_engine::store::Waker;

    use super::*;
    use crate::backend::memory::Memory;
    use crate::config::{Budget, DEADLINE_MIN, FleetKey, RemoteConfig, RemoteUrl};

    const REFUSED: Fault = Fault::Failed(String::new());

    /// A watched node over a store in memory.
    fn watched(memory: &Arc<Memory>) -> Arc<Node> {
        let config = RemoteConfig {
            url: RemoteUrl::parse("file:///nowhere").unwrap(),
            key: FleetKey::new([1; 32]),
            fingerprint: [2; 32],
            payload_bytes: 1000,
            ttl: STABLE,
            budget: Budget::default(),
            deadline_min: DEADLINE_MIN,
            waker: Waker::default(),
        };
        let names = Names::new(&config.key, &config.fingerprint, config.payload_bytes, 8);
        let node = Arc::new(Node::new(Arc::clone(memory) as Arc<dyn Backend>, names, 8, config));
        let watched = Arc::clone(&node);
        tokio::spawn(async move { watch(&watched).await });
        node
    }

    /// Seconds until it is up, by a clock that advances only while all tasks wait.
    async fn seconds_until_up(node: &Node) -> u64 {
        let start = Instant::now();
        while !node.health.is_up() {
            sleep(Duration::from_millis(10)).await;
        }
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_is_measured_before_it_is_asked() {
        let memory = Arc::new(Memory::new(1 << 20, 4096));
        memory.set_delay(Duration::from_millis(20));
        let node = watched(&memory);
        assert_eq!(node.health.expected(1000), None);
        assert_eq!(seconds_until_up(&node).await, 0);
        let expected = node.health.expected(1000).unwrap();
        assert_eq!(expected.latency, Duration::from_millis(20));
        assert_eq!(node.health.deadline(0), Some(Duration::from_millis(80)));
        assert_eq!(memory.values(), [], "the probe leaves nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn probes_become_rarer_and_never_stop() {
        let memory = Arc::new(Memory::new(1 << 20, 4096));
        memory.set_fault(Some(REFUSED));
        let node = watched(&memory);
        sleep(Duration::from_secs(100)).await;
        // At 0, 1, 3, 7, 15, 31, 61 and 91 s.
        assert_eq!(memory.requests(), 8);
        memory.set_fault(None);
        assert!(seconds_until_up(&node).await <= 21);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_is_down_and_comes_back() {
        let memory = Arc::new(Memory::new(1 << 20, 4096));
        let node = watched(&memory);
        seconds_until_up(&node).await;
        sleep(STABLE).await;
        memory.set_delay(Duration::from_secs(3600));
        node.health.fault(&Fault::Late);
        assert!(!node.health.is_up() && node.health.deadline(0).is_none());
        sleep(Duration::from_secs(20)).await;
        assert!(!node.health.is_up());
        memory.set_delay(Duration::ZERO);
        assert!(seconds_until_up(&node).await <= 30);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_fails_again_and_again_is_tried_less_often() {
        let memory = Arc::new(Memory::new(1 << 20, 4096));
        let node = watched(&memory);
        let mut waits = Vec::new();
        for _ in 0..6 {
            waits.push(seconds_until_up(&node).await);
            node.health.fault(&REFUSED);
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 16]);
        waits.push(seconds_until_up(&node).await);
        sleep(STABLE).await;
        node.health.fault(&REFUSED);
        assert_eq!(seconds_until_up(&node).await, 1, "it had been up for long");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_gives_other_bytes_is_not_used() {
        let memory = Arc::new(Memory::new(1 << 20, 4096));
        memory.set_tamper(|_, value| {
            value.map(|mut value| {
                value[100] ^= 1;
                value
            })
        });
        let node = watched(&memory);
        sleep(Duration::from_secs(40)).await;
        assert!(!node.health.is_up());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_full_is_read() {
        let memory = Arc::new(Memory::new(1 << 20, 4096));
        let node = watched(&memory);
        seconds_until_up(&node).await;
        node.health.fault(&Fault::Full(String::new()));
        assert!(node.health.is_up() && !node.health.takes_writes());
        sleep(Duration::from_secs(31)).await;
        assert!(node.health.takes_writes());
        node.health.fault(&Fault::Full(String::new()));
        assert!(!node.health.takes_writes());
        node.health.wrote();
        assert!(node.health.takes_writes(), "a value was taken meanwhile");
    }
}
