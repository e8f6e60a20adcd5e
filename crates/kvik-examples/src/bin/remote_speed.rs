//! How fast a store gives and takes values of different sizes, sealed as nodes do it: what `target_bytes` is chosen by.
//!
//! ```sh
//! cargo run --release -p kvik-examples --bin remote_speed -- redis://127.0.0.1 file:///tmp/shared s3://bucket/prefix
//! ```

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use kvik_cache::Identity;
use kvik_remote::backend::{self, Backend, Retention};
use kvik_remote::{Fault, FleetKey, Key, Kind, Label, Names, RemoteUrl, Sealer};

type Failure = Box<dyn std::error::Error>;

/// Bytes of a size that are written and read.
const BYTES: usize = 64 << 20;
/// Values of a size.
const VALUES_MAX: usize = 512;
/// Reads at a time, as in a fetch, and writes.
const READS: usize = 8;
const WRITES: usize = 2;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    for url in std::env::args().skip(1) {
        let url = RemoteUrl::parse(&url)?;
        println!("{url}");
        println!(
            "| value | one read | reads, 1 at a time | reads, {READS} | writes, {WRITES} |\n| --- | --- | --- | --- | --- |"
        );
        let key = FleetKey::parse(&FleetKey::generate()?)?;
        let names = Names::new(&key, &[0; 32], 0, 1);
        let backend = backend::open(&url, names.fleet())?;
        backend.connect().await?;
        let bench = Bench { backend: &*backend, names, sealer: Sealer::new(&key) };
        for log in 14..=23 {
            bench.measure(1 << log).await?;
        }
    }
    Ok(())
}

struct Bench<'a> {
    backend: &'a dyn Backend,
    names: Names,
    sealer: Sealer,
}

impl Bench<'_> {
    async fn measure(&self, bytes: usize) -> Result<(), Failure> {
        let values = (BYTES / bytes).min(VALUES_MAX);
        let plain = vec![7; bytes];
        let write = self.all(values, WRITES, async |key| self.write(key, &plain).await).await?;
        let one = self.all(values, 1, async |key| self.read(key, bytes).await).await?;
        let many = self.all(values, READS, async |key| self.read(key, bytes).await).await?;
        self.all(values, READS, async |key| self.backend.delete(&key).await).await?;
        let rate = |time: Duration| (values * bytes) as f64 / time.as_secs_f64() / 1e6;
        let each_ms = one.as_secs_f64() * 1e3 / values as f64;
        let (one, many, write) = (rate(one), rate(many), rate(write));
        println!(
            "| {} KiB | {each_ms:.2} ms | {one:.0} MB/s | {many:.0} MB/s | {write:.0} MB/s |",
            bytes >> 10
        );
        Ok(())
    }

    /// Does something for all values, so many at a time.
    async fn all(
        &self,
        values: usize,
        at_a_time: usize,
        work: impl AsyncFn(Key) -> Result<(), Fault>,
    ) -> Result<Duration, Fault> {
        let start = Instant::now();
        let name = |value: usize| {
            let mut name = [0; 32];
            name[..8].copy_from_slice(&(value as u64).to_le_bytes());
            Identity(name)
        };
        let tasks = (0..values).map(|value| work(self.names.run(0, &name(value))));
        let done: Vec<()> = stream::iter(tasks).buffered(at_a_time).try_collect().await?;
        debug_assert_eq!(done.len(), values);
        Ok(start.elapsed())
    }

    async fn write(&self, key: Key, plain: &[u8]) -> Result<(), Fault> {
        let retention = Retention { ttl: Duration::from_secs(600), total_max: None, owner_max: None };
        let failed = || Fault::Failed("no random numbers".to_owned());
        let value = self.sealer.seal(label(&key), retention.ttl, plain).ok_or_else(failed)?;
        self.backend.put(&key, value, &retention).await
    }

    async fn read(&self, key: Key, bytes: usize) -> Result<(), Fault> {
        let value = self.backend.get(&key, 2 * bytes + 1024).await?;
        let opened = value.and_then(|value| self.sealer.open(label(&key), value.bytes).ok());
        let is_right = opened.is_some_and(|(plain, _)| plain.len() == bytes);
        if is_right { Ok(()) } else { Err(Fault::Failed("a value was not what was written".to_owned())) }
    }
}

fn label(key: &Key) -> Label<'_> {
    Label { kind: Kind::Run, count: 1, owner: 0, what: &key.name }
}
