//! Real stores and nodes for tests.
#![allow(dead_code, clippy::unwrap_used)] // each test uses a part, and may fail where it stands

use std::net::TcpListener;
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvik_cache::Identity;
use kvik_cache::tier::runs;
use kvik_engine::store::Waker;
use kvik_engine::store::remote::{Chain, RemoteDone, RemoteStore};
use kvik_remote::backend::Backend;
use kvik_remote::{Budget, FleetKey, Remote, RemoteConfig, RemoteUrl, TTL_DEFAULT};
use kvik_testing::mix;
use tempfile::TempDir;

/// What a test waits for at most.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time limit of a store's response: a machine that has more to do than these tests makes none late.
const NEVER_LATE: Duration = Duration::from_secs(15);
pub(crate) const PAYLOAD_BYTES: usize = 100_000;

/// A store of one kind, empty, for as long as it lives.
pub(crate) struct Store {
    pub(crate) name: &'static str,
    pub(crate) url: String,
    redis: Option<Child>,
    directory: Option<TempDir>,
    turn: Option<MutexGuard<'static, ()>>,
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(redis) = &mut self.redis {
            let _ = redis.kill();
            let _ = redis.wait();
        }
    }
}

impl Store {
    pub(crate) fn directory() -> Store {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("file://{}", directory.path().display());
        Store { name: "file", url, redis: None, directory: Some(directory), turn: None }
    }

    /// A server of its own; none, said plainly, where there is no `redis-server`.
    pub(crate) fn redis() -> Option<Store> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Store::redis_at(&port.to_string())
    }

    pub(crate) fn redis_at(port: &str) -> Option<Store> {
        let mut server = Command::new("redis-server");
        server.args(["--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        let Ok(redis) = server.stdout(Stdio::null()).spawn() else {
            kvik_testing::skip("no redis-server on PATH");
            return None;
        };
        let url = format!("redis://127.0.0.1:{port}");
        Some(Store { name: "redis", url, redis: Some(redis), directory: None, turn: None })
    }

    /// The bucket `kvik` of the server at AWS_ENDPOINT_URL, such as moto's; none, said plainly, without. One test has it at
    /// a time: a server for tests is not fast enough for several.
    pub(crate) fn s3() -> Option<Store> {
        if std::env::var_os("AWS_ENDPOINT_URL").is_none() {
            kvik_testing::skip("no AWS_ENDPOINT_URL with a bucket `kvik`");
            return None;
        }
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Store {
            name: "s3",
            url: "s3://kvik/tests".to_owned(),
            redis: None,
            directory: None,
            turn: Some(turn),
        })
    }

    pub(crate) fn all() -> Vec<Store> {
        [Some(Store::directory()), Store::redis(), Store::s3()].into_iter().flatten().collect()
    }

    pub(crate) fn stop(&mut self) {
        let mut redis = self.redis.take().unwrap();
        redis.kill().unwrap();
        redis.wait().unwrap();
    }
}

/// Another number each time, so that tests in one store see nothing of each other.
pub(crate) fn random() -> u64 {
    let bytes = FleetKey::generate().unwrap();
    bytes.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)))
}

pub(crate) fn config(url: &str, key: u64) -> RemoteConfig {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    RemoteConfig {
        url: RemoteUrl::parse(url).unwrap(),
        key: FleetKey::new(bytes),
        fingerprint: [7; 32],
        payload_bytes: PAYLOAD_BYTES,
        ttl: TTL_DEFAULT,
        budget: Budget::default(),
        deadline_min: NEVER_LATE,
        waker: Waker::default(),
    }
}

/// A node, and what tests ask of it.
pub(crate) struct Node {
    pub(crate) remote: Remote,
    ticket: u64,
}

/// What a fetch gave: blocks by their place, and whether it failed.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) blocks: Vec<(usize, Vec<u8>)>,
    pub(crate) failed: bool,
}

impl Node {
    pub(crate) fn open(config: RemoteConfig) -> Node {
        Node { remote: Remote::open(config).unwrap(), ticket: 0 }
    }

    pub(crate) fn over(backend: Arc<dyn Backend>, config: RemoteConfig) -> Node {
        Node { remote: Remote::over(backend, config).unwrap(), ticket: 0 }
    }

    pub(crate) fn until(&self, is: impl Fn(&Remote) -> bool) {
        let start = Instant::now();
        while !is(&self.remote) {
            assert!(start.elapsed() < PATIENCE, "{:?}", self.remote.stats());
            sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn until_up(&self) {
        self.until(|remote| remote.expected().is_some());
    }

    pub(crate) fn next(&mut self) -> RemoteDone {
        let start = Instant::now();
        loop {
            if let Some(done) = self.remote.done() {
                return done;
            }
            assert!(start.elapsed() < PATIENCE, "{:?}", self.remote.stats());
            sleep(Duration::from_micros(200));
        }
    }

    /// Writes the runs of the first `blocks` that are wanted, and waits until that is done.
    pub(crate) fn write(&mut self, chain: &Chain, blocks: usize, ttl: Option<Duration>) {
        self.offer(chain, blocks, ttl);
        self.until(|remote| remote.stats().writing_blocks == 0);
    }

    /// Offers the runs of the first `blocks` that are wanted.
    pub(crate) fn offer(&mut self, chain: &Chain, blocks: usize, ttl: Option<Duration>) {
        for run in runs(blocks, self.remote.run_max()) {
            let end = chain.blocks[run.end - 1];
            if self.remote.wants(chain.owner, &end, run.len(), ttl) {
                self.remote.offer(chain.owner, end, bytes_of(chain, run), ttl);
            }
        }
    }

    pub(crate) fn look_up(&mut self, chain: &Chain) -> usize {
        self.ticket += 1;
        self.remote.look_up(self.ticket, chain.clone());
        match self.next() {
            RemoteDone::Found { ticket, blocks } if ticket == self.ticket => blocks,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn fetch(&mut self, chain: &Chain, blocks: Range<usize>) -> Fetched {
        self.ticket += 1;
        self.remote.fetch(self.ticket, chain.clone(), blocks);
        let mut fetched = Fetched { blocks: Vec::new(), failed: false };
        loop {
            match self.next() {
                RemoteDone::Read { ticket, first, bytes } if ticket == self.ticket => {
                    let blocks = bytes.chunks_exact(PAYLOAD_BYTES).map(<[u8]>::to_vec).enumerate();
                    fetched.blocks.extend(blocks.map(|(nth, block)| (first + nth, block)));
                }
                RemoteDone::Ended { ticket, failed } if ticket == self.ticket => {
                    return Fetched { failed, ..fetched };
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A prompt of blocks; prompts with one seed begin alike.
pub(crate) fn chain(owner: u64, seed: u64, blocks: usize) -> Chain {
    let name = |nth: usize| {
        let mut name = [0; 32];
        name[..8].copy_from_slice(&mix(seed).to_le_bytes());
        name[8..16].copy_from_slice(&(nth as u64).to_le_bytes());
        Identity(name)
    };
    Chain { owner, blocks: (0..blocks).map(name).collect() }
}

/// The bytes of a block, which its owner and name determine.
pub(crate) fn block(owner: u64, name: &Identity) -> Vec<u8> {
    let start = name.0[..16]
        .chunks(8)
        .fold(owner, |hash, part| mix(hash ^ u64::from_le_bytes(part.try_into().unwrap())));
    mix(start).to_le_bytes().repeat(PAYLOAD_BYTES / 8)
}

pub(crate) fn bytes_of(chain: &Chain, run: Range<usize>) -> Vec<u8> {
    chain.blocks[run].iter().map(|name| block(chain.owner, name)).collect::<Vec<_>>().concat()
}

/// That all blocks are what was written.
pub(crate) fn check(chain: &Chain, fetched: &Fetched) {
    for (nth, bytes) in &fetched.blocks {
        assert!(*bytes == block(chain.owner, &chain.blocks[*nth]), "block {nth} is another's");
    }
}
