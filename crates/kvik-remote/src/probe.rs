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

/// Probes at the start, whenever the store is down and whenever its speed is doubted, forever.
pub(crate) async fn watch(node: &Node) {
    let (mut wait, mut since) = (WAIT_MIN, Instant::now());
    loop {
        let was_up = node.health.is_up();
        match timeout(PROBE_MAX, probe(&*node.backend, &node.names, &node.sealer)).await {
            Ok(Ok(Probed { sample, full })) => {
                if !was_up {
                    since = Instant::now();
                    // The store may have lost values while it was down.
                    node.known().clear();
                }
                full.iter().for_each(|fault| node.health.fault(fault));
                node.health.probed(sample);
                node.done.wake();
                node.health.until_probe().await;
                if node.health.is_up() {
                    continue;
                }
                if since.elapsed() >= STABLE {
                    wait = WAIT_MIN;
                }
            }
            Ok(Err(fault)) => node.health.probe_failed(&fault),
            // One that is in use may be late once, as with all that is asked of it.
            Err(_) if was_up => node.health.late(),
            Err(_) => node.health.probe_failed(&Fault::Late),
        }
        node.done.wake();
        sleep(wait).await;
        wait = (wait * 2).min(WAIT_MAX);
    }
}

/// The result of a successful probe.
struct Probed {
    sample: Sample,
    /// The fault of a store that takes no values.
    full: Option<Fault>,
}

/// Carries out a probe, with a random name.
async fn probe(backend: &dyn Backend, names: &Names, sealer: &Sealer) -> Result<Probed, Fault> {
    let mut name = [0; 32];
    getrandom::fill(&mut name).map_err(|_| no_random_numbers())?;
    let key = names.run(0, &Identity(name));
    let label = Label { kind: Kind::Run, count: 0, owner: 0, what: &name };
    let plain = vec![name[0]; PROBE_BYTES];
    let value = sealer.seal(label, STABLE, &plain).ok_or_else(no_random_numbers)?;

    backend.connect().await?;
    let full = put(backend, &key, value).await?;
    let asked = questions(key, backend.questions_max());
    let (there, latency) = timed(backend.exists(&asked)).await?;
    let is_there = there.first() == Some(&true);
    let read = async {
        let value = backend.get(&key, PROBE_BYTES + HEADER_BYTES + 1).await?;
        Ok(value.map(|value| sealer.open(label, value.bytes)))
    };
    let (opened, time) = timed(read).await?;
    backend.delete(&key).await?;
    let is_right = match opened {
        Some(opened) => full.is_none() && is_there && opened.is_ok_and(|(opened, _)| opened == plain),
        // The time of the empty answer stands for that of a value, until one is read.
        None => full.is_some() && !is_there,
    };
    let sample = Sample { latency, byte_s: byte_s(PROBE_BYTES as u64, time, latency) };
    let wrong = || Fault::Failed("it does not give what it was given".to_owned());
    if is_right { Ok(Probed { sample, full }) } else { Err(wrong()) }
}

/// Writes the value of a probe. A full store can still be read, and returns its fault.
async fn put(backend: &dyn Backend, key: &Key, value: Vec<u8>) -> Result<Option<Fault>, Fault> {
    let retention = Retention { ttl: STABLE, total_max: None, owner_max: None };
    match backend.put(key, value, &retention).await {
        Err(full @ Fault::Full(_)) => Ok(Some(full)),
        put => put.map(|()| None),
    }
}

/// Returns the answer to a request, and the time that it took.
async fn timed<T>(request: impl Future<Output = Result<T, Fault>>) -> Result<(T, Duration), Fault> {
    let asked = Instant::now();
    let answer = request.await?;
    Ok((answer, asked.elapsed()))
}

fn no_random_numbers() -> Fault {
    Fault::Failed("the system has no random numbers".to_owned())
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

    use super::*;
    use crate::backend::memory::Memory;
    use crate::node::tests::node_over;

    const REFUSED: Fault = Fault::Failed(String::new());

    /// A watched node over a store in memory.
    fn watched(memory: &Arc<Memory>) -> Arc<Node> {
        let node = node_over(memory);
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

    /// Nothing else would measure it: from one that is too slow, nothing is read.
    #[tokio::test(start_paused = true)]
    async fn one_that_is_said_to_be_too_slow_is_measured_again_once_a_minute() {
        let memory = Arc::new(Memory::new(1 << 20, 4096));
        memory.set_delay(Duration::from_millis(500));
        let node = watched(&memory);
        seconds_until_up(&node).await;
        let key = node.run(0, &Identity([1; 32]));
        node.known().insert(key, false);
        memory.set_delay(Duration::from_millis(20));
        let latency = || node.health.expected(1000).map(|expected| expected.latency);
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(latency(), Some(Duration::from_millis(500)), "nobody has wanted to read");
        for (pause_s, probes) in [(0, 1), (30, 0), (29, 0), (1, 1), (0, 0)] {
            sleep(Duration::from_secs(pause_s)).await;
            let before = memory.requests();
            node.health.too_slow();
            sleep(Duration::from_millis(150)).await;
            assert_eq!(memory.requests() - before, 5 * probes, "after {pause_s} s more");
            assert_eq!(latency(), Some(Duration::from_millis(20)));
        }
        assert!(node.known().contains(&key), "it has lost nothing");
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

    #[tokio::test(start_paused = true)]
    async fn one_that_is_full_from_the_start_is_read() {
        let memory = Arc::new(Memory::new(1 << 20, 4096));
        memory.set_delay(Duration::from_millis(20));
        memory.set_write_fault(Some(Fault::Full("no room".to_owned())));
        let node = watched(&memory);
        assert_eq!(seconds_until_up(&node).await, 0);
        assert!(!node.health.takes_writes());
        let expected = node.health.expected(1000).unwrap();
        assert_eq!(expected.latency, Duration::from_millis(20));
        assert!(!expected.block.is_zero(), "reading takes time");
        memory.set_write_fault(None);
        sleep(Duration::from_secs(31)).await;
        assert!(node.health.takes_writes());
    }
}
