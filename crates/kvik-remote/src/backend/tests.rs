//! Features of particular stores: accounting, sweeping, passwords and TLS.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use kvik_testing::mix;
use object_store::aws::AmazonS3Builder;
use tokio::time::sleep;

use super::*;

const OWNERS: u64 = 3;
const TTL: Duration = Duration::from_secs(3600);

/// A server that is killed at the end of the test.
struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Redis with these settings; `None`, with a message, if there is no `redis-server`.
fn redis_server(port_flag: &str, settings: &[&str]) -> Option<Server> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Command::new("redis-server");
    if port_flag != "--port" {
        server.args(["--port", "0"]);
    }
    server.args([port_flag, &port.to_string(), "--bind", "127.0.0.1", "--save", ""]).args(settings);
    match server.stdout(Stdio::null()).spawn() {
        Ok(child) => Some(Server { child, port }),
        Err(_) => {
            kvik_testing::skip("no redis-server on PATH");
            None
        }
    }
}

async fn connect(backend: &dyn Backend) -> Result<(), Fault> {
    for _ in 0..1000 {
        match backend.connect().await {
            Err(Fault::Unreachable(_)) => sleep(Duration::from_millis(10)).await,
            result => return result,
        }
    }
    panic!("the server does not start");
}

fn opened(url: &str) -> Arc<dyn Backend> {
    open(&RemoteUrl::parse(url).unwrap(), OwnerTag([1; 8])).unwrap()
}

fn unlimited(ttl: Duration) -> Retention {
    Retention { ttl, total_max: None, owner_max: None }
}

fn key(number: u64) -> Key {
    Key { owner: OwnerTag([(number % OWNERS) as u8; 8]), name: u128::from(number).to_le_bytes() }
}

/// A model of the budgets: a list of values, the least recently used first.
#[derive(Default)]
struct Model(Vec<(u64, usize)>);

impl Model {
    fn put(&mut self, number: u64, bytes: usize, retention: &Retention) {
        self.0.retain(|(other, _)| *other != number);
        let owner_max = retention.owner_max.unwrap() as usize;
        let total_max = retention.total_max.unwrap() as usize;
        if bytes > owner_max || bytes > total_max {
            return;
        }
        self.0.push((number, bytes));
        self.shrink(owner_max, |other| other % OWNERS == number % OWNERS);
        self.shrink(total_max, |_| true);
    }

    fn shrink(&mut self, max: usize, counts: impl Fn(u64) -> bool) {
        let counts = |(number, _): &&(u64, usize)| counts(*number);
        while self.0.iter().filter(counts).map(|(_, bytes)| bytes).sum::<usize>() > max {
            let oldest = self.0.iter().position(|value| counts(&value)).unwrap();
            self.0.remove(oldest);
        }
    }

    fn renew(&mut self, number: u64) {
        if let Some(at) = self.0.iter().position(|(other, _)| *other == number) {
            let value = self.0.remove(at);
            self.0.push(value);
        }
    }
}

#[tokio::test]
async fn redis_keeps_to_budgets_as_a_plain_list_does() {
    let Some(server) = redis_server("--port", &[]) else { return };
    let backend = opened(&format!("redis://127.0.0.1:{}/3", server.port));
    connect(&*backend).await.unwrap();
    let retention = Retention { ttl: TTL, total_max: Some(1000), owner_max: Some(500) };
    let (mut model, all) = (Model::default(), (0..30).map(key).collect::<Vec<_>>());
    for step in 0..400_u64 {
        let (number, bytes) = (mix(step) % 30, 1 + (mix(step + 1000) % 600) as usize);
        match mix(step + 2000) % 3 {
            0 => {
                backend.renew(&key(number), &retention).await.unwrap();
                model.renew(number);
            }
            _ => {
                backend.put(&key(number), vec![1; bytes], &retention).await.unwrap();
                model.put(number, bytes, &retention);
            }
        }
        let there = backend.exists(&all).await.unwrap();
        let expected: Vec<bool> =
            (0..30).map(|number| model.0.iter().any(|(other, _)| *other == number)).collect();
        assert_eq!(there, expected, "step {step}");
        // The server orders uses by milliseconds.
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn what_expires_leaves_the_account_of_redis() {
    let Some(server) = redis_server("--port", &[]) else { return };
    let backend = opened(&format!("redis://127.0.0.1:{}", server.port));
    connect(&*backend).await.unwrap();
    let for_now = Retention { ttl: Duration::from_millis(20), total_max: Some(1000), owner_max: None };
    for number in 0..5 {
        backend.put(&key(number), vec![1; 150], &for_now).await.unwrap();
    }
    sleep(Duration::from_millis(50)).await;
    let retention = Retention { ttl: TTL, ..for_now };
    for number in 5..11 {
        backend.put(&key(number), vec![1; 150], &retention).await.unwrap();
    }
    let there = backend.exists(&(0..11).map(key).collect::<Vec<_>>()).await.unwrap();
    assert_eq!(there, [vec![false; 5], vec![true; 6]].concat(), "the expired ones count no more");
}

/// A value that clients with different times to live share stays for the longest.
#[tokio::test]
async fn a_renewal_never_shortens_and_says_what_is_gone() {
    let server = redis_server("--port", &[]);
    let mut backends: Vec<Arc<dyn Backend>> = vec![Arc::new(memory::Memory::new(1 << 20, 16))];
    backends.extend(server.iter().map(|server| opened(&format!("redis://127.0.0.1:{}", server.port))));
    let (short, keys) = (Duration::from_secs(2), [key(0), key(1), key(2), key(3)]);
    for backend in &backends {
        connect(&**backend).await.unwrap();
        // With an account of sizes and without.
        for (keys, total_max) in [(&keys[..2], None), (&keys[2..], Some(1 << 20))] {
            let retention = |ttl| Retention { ttl, total_max, owner_max: None };
            for (key, before, after) in [(&keys[0], TTL, short), (&keys[1], short, TTL)] {
                backend.put(key, vec![1; 10], &retention(before)).await.unwrap();
                assert_eq!(backend.renew(key, &retention(after)).await, Ok(true));
            }
            assert_eq!(backend.renew(&key(99), &retention(TTL)).await, Ok(false));
        }
    }
    sleep(short + short / 10).await;
    for backend in &backends {
        assert_eq!(backend.exists(&keys).await, Ok(vec![true; 4]));
        // The account removes what it takes for expired.
        let limited = Retention { total_max: Some(1 << 20), ..unlimited(TTL) };
        backend.put(&key(4), vec![1; 10], &limited).await.unwrap();
        assert_eq!(backend.exists(&keys).await, Ok(vec![true; 4]));
    }
}

#[tokio::test]
async fn redis_says_what_is_wrong_with_a_password() {
    let Some(server) = redis_server("--port", &["--requirepass", "secret"]) else { return };
    let url = |login: &str| format!("redis://{login}127.0.0.1:{}", server.port);
    connect(&*opened(&url(":secret@"))).await.unwrap();
    let refused = opened(&url(":wrong@")).connect().await.unwrap_err();
    assert!(matches!(refused, Fault::Refused(_)), "{refused:?}");
    assert!(!refused.to_string().contains("wrong@"));
    let backend = opened(&url(""));
    let refused = match backend.connect().await {
        Ok(()) => backend.get(&key(0), 1).await.map(drop).unwrap_err(),
        Err(fault) => fault,
    };
    assert!(matches!(refused, Fault::Refused(_)), "{refused:?}");
}

#[tokio::test]
async fn a_full_redis_says_so() {
    let Some(server) = redis_server("--port", &["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"])
    else {
        return;
    };
    let backend = opened(&format!("redis://127.0.0.1:{}", server.port));
    connect(&*backend).await.unwrap();
    for (total_max, first) in [(None, 0), (Some(1 << 40), 100)] {
        let retention = Retention { ttl: TTL, total_max, owner_max: None };
        let mut outcome = Ok(());
        for number in first..first + 20 {
            outcome = outcome.and(backend.put(&key(number), vec![1; 1 << 20], &retention).await);
        }
        assert!(matches!(outcome, Err(Fault::Full(_))), "{outcome:?}");
    }
}

fn certificates() -> PathBuf {
    kvik_testing::repository().join("crates/kvik-shelf/src/tests/tls")
}

#[tokio::test]
async fn redis_is_spoken_to_through_tls() {
    let file = |name: &str| certificates().join(name).display().to_string();
    let (certificate, key_file) = (file("leaf.pem"), file("leaf.key"));
    let settings = ["--tls-cert-file", &certificate, "--tls-key-file", &key_file, "--tls-auth-clients", "no"];
    let Some(server) = redis_server("--tls-port", &settings) else { return };
    let url = url::Url::parse(&format!("redis://localhost:{}", server.port)).unwrap();
    let trusting = kvik_shelf::tls::client_trusting(Some(certificates().join("ca.pem").as_os_str())).unwrap();
    let backend = redis::Redis::new(&url, Some(trusting), OwnerTag([1; 8])).unwrap();
    connect(&backend).await.unwrap();
    let retention = Retention { ttl: TTL, total_max: None, owner_max: None };
    backend.put(&key(1), vec![3; 1 << 20], &retention).await.unwrap();
    assert_eq!(backend.get(&key(1), 2 << 20).await.unwrap().unwrap().bytes, vec![3; 1 << 20]);

    let stranger = kvik_shelf::tls::client_trusting(None).unwrap();
    let stranger = redis::Redis::new(&url, Some(stranger), OwnerTag([1; 8])).unwrap();
    let refused = stranger.connect().await.unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
}

/// A directory with values of 100 bytes, the first the oldest, one minute apart.
async fn aged_directory(values: u64) -> (tempfile::TempDir, Arc<dyn Backend>) {
    let directory = tempfile::tempdir().unwrap();
    let backend = opened(&format!("file://{}", directory.path().display()));
    backend.connect().await.unwrap();
    let retention = Retention { ttl: TTL, total_max: None, owner_max: None };
    for number in 0..values {
        backend.put(&key(number), vec![1; 100], &retention).await.unwrap();
        let file = file_of(directory.path(), number);
        let minutes = u32::try_from(values - number).unwrap();
        let file = std::fs::File::options().append(true).open(file).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(60) * minutes).unwrap();
    }
    (directory, backend)
}

fn file_of(directory: &std::path::Path, number: u64) -> PathBuf {
    let name: String = key(number).name.iter().map(|byte| format!("{byte:02x}")).collect();
    let owner = directory.join("kvik1-0101010101010101/b").join(key(number).owner.to_string());
    owner.join(&name[..2]).join(name)
}

#[tokio::test]
async fn a_directory_is_swept_by_one_node_in_a_while() {
    let (directory, backend) = aged_directory(12).await;
    let names: Vec<Key> = (0..12).map(key).collect();
    assert_eq!(backend.renew(&key(0), &unlimited(TTL)).await, Ok(true));
    assert_eq!(backend.renew(&key(99), &unlimited(TTL)).await, Ok(false), "it is not there");
    let (ttl, every) = (Duration::from_secs(8 * 60 + 30), Duration::from_secs(60));
    let rules = SweepRules { ttl, total_max: Some(500), owner_max: Some(200), every };
    backend.sweep(&rules).await.unwrap();
    let there = backend.exists(&names).await.unwrap();
    // 1 to 3 have expired, 4 to 6 exceed their owners' limits, 7 exceeds the total limit; 0 was used.
    let expected: Vec<bool> = (0..12).map(|number| number == 0 || number >= 8).collect();
    assert_eq!(there, expected);

    let stricter = SweepRules { total_max: Some(0), ..rules };
    let other = opened(&format!("file://{}", directory.path().display()));
    other.connect().await.unwrap();
    other.sweep(&stricter).await.unwrap();
    assert_eq!(backend.exists(&names).await.unwrap(), expected, "it was swept a moment ago");
    backend.sweep(&SweepRules { every: Duration::ZERO, ..stricter }).await.unwrap();
    assert!(backend.exists(&names).await.unwrap().iter().all(|there| !there));
}

/// A clock that was ahead once would end all sweeps until then.
#[tokio::test]
async fn a_mark_of_a_time_to_come_keeps_back_no_sweep() {
    let (directory, backend) = aged_directory(2).await;
    let every = Duration::from_secs(600);
    let rules = SweepRules { ttl: TTL, total_max: Some(0), owner_max: None, every };
    let mark = directory.path().join("kvik1-0101010101010101/swept");
    std::fs::write(&mark, b"").unwrap();
    for (ahead, stay) in [(every / 2, true), (every * 1000, false)] {
        let file = std::fs::File::options().append(true).open(&mark).unwrap();
        file.set_modified(SystemTime::now() + ahead).unwrap();
        backend.sweep(&rules).await.unwrap();
        assert_eq!(backend.exists(&[key(0), key(1)]).await, Ok(vec![stay; 2]), "{ahead:?}");
    }
    let marked = std::fs::metadata(&mark).unwrap().modified().unwrap();
    assert!(marked < SystemTime::now() + every, "it is written anew");
}

#[tokio::test]
async fn a_use_is_dated_by_the_clock_of_the_store_and_never_back() {
    let directory = tempfile::tempdir().unwrap();
    let backend = object::Objects::directory(directory.path(), OwnerTag([1; 8]));
    backend.connect().await.unwrap();
    backend.put(&key(1), vec![1; 10], &unlimited(TTL)).await.unwrap();
    let modified = || std::fs::metadata(file_of(directory.path(), 1)).unwrap().modified().unwrap();
    let (written, hour) = (modified(), Duration::from_secs(3600));
    let later = written + 2 * hour;
    for (told, expected) in [(written - hour, written), (later, later), (written + hour, later)] {
        backend.clock.set(told);
        assert_eq!(backend.renew(&key(1), &unlimited(TTL)).await, Ok(true));
        let after = modified().duration_since(expected);
        assert!(after.is_ok_and(|after| after < hour / 2), "{told:?}");
    }
}

#[tokio::test]
async fn a_directory_that_is_away_is_a_fault_and_nothing_is_made_in_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let mount = directory.path().join("mount");
    let backend = opened(&format!("file://{}/shared", mount.display()));
    assert!(matches!(backend.connect().await, Err(Fault::Unreachable(_))));
    assert!(matches!(backend.get(&key(1), 1).await, Err(Fault::Unreachable(_))));
    assert!(!mount.exists());
    std::fs::create_dir(&mount).unwrap();
    backend.connect().await.unwrap();
    assert_eq!(backend.get(&key(1), 1).await, Ok(None));
}

/// A bucket whose server answers each request as `answer` does to its head.
fn bucket(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> object::Objects {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let builder = AmazonS3Builder::new()
        .with_bucket_name("bucket")
        .with_endpoint(format!("http://{}", listener.local_addr().unwrap()))
        .with_region("us-east-1")
        .with_access_key_id("id")
        .with_secret_access_key("secret");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (mut reader, mut head) = (BufReader::new(&stream), String::new());
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|bytes| bytes > 0) {}
            // A connection with bytes that were not read would be reset.
            let _ = reader.take(body_bytes(&head)).read_to_end(&mut Vec::new());
            let _ = (&stream).write_all(&answer(&head));
        }
    });
    object::Objects::in_bucket(builder, "", OwnerTag([1; 8])).unwrap()
}

fn body_bytes(head: &str) -> u64 {
    let length = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok();
    head.lines().find_map(length).unwrap_or(0)
}

/// An answer that announces `length` bytes.
fn announcing(length: u64, body: &[u8]) -> Vec<u8> {
    let time = "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT";
    let head = format!(
        "HTTP/1.1 200 OK\r\n{time}\r\nETag: \"x\"\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Memory for as many bytes as the server announces would end the process.
#[tokio::test]
async fn a_value_that_a_server_calls_huge_is_not_renewed() {
    for listed in [1 << 46, 100] {
        let bucket = bucket(move |head| match head.starts_with("HEAD") {
            true => announcing(listed, &[]),
            false => announcing(1 << 46, &[1; 100]),
        });
        assert_eq!(bucket.renew(&key(1), &unlimited(TTL)).await, Ok(true), "{listed}");
    }
}

/// Renewals are the only order of uses by which a limited size is kept to.
#[tokio::test]
async fn an_object_is_renewed_within_an_hour_where_the_size_is_limited() {
    let writes = Arc::new(AtomicUsize::new(0));
    let written = Arc::clone(&writes);
    let bucket = bucket(move |head| match head.split(' ').next() {
        Some("HEAD") => announcing(100, &[]),
        Some("GET") => announcing(100, &[1; 100]),
        _ => {
            written.fetch_add(1, Ordering::SeqCst);
            announcing(0, &[])
        }
    });
    // The object was written years ago, and this is less than half of its time to live.
    let ttl = Duration::from_secs(200 * 365 * 24 * 3600);
    for (owner_max, expected) in [(None, 0), (Some(1 << 30), 1)] {
        let retention = Retention { owner_max, ..unlimited(ttl) };
        assert_eq!(bucket.renew(&key(1), &retention).await, Ok(true));
        assert_eq!(writes.load(Ordering::SeqCst), expected, "{owner_max:?}");
    }
    assert_eq!(bucket.renew_after(&unlimited(TTL)), TTL / 2);
}

/// A node whose clock is years ahead would remove everything.
#[tokio::test]
async fn what_is_swept_is_old_by_the_clock_of_the_store() {
    let removals = Arc::new(AtomicUsize::new(0));
    let removed = Arc::clone(&removals);
    let name = "ab".repeat(16);
    let path = format!("kvik1-0101010101010101/b/0101010101010101/ab/{name}");
    // Written 28 minutes before the store's time.
    let value = format!(
        "<Contents><Key>{path}</Key><Size>9</Size><LastModified>2015-10-21T07:00:00Z</LastModified></Contents>"
    );
    let list = format!("<ListBucketResult><KeyCount>1</KeyCount>{value}</ListBucketResult>");
    let bucket = bucket(move |head| match head.split(' ').next() {
        Some("GET") => announcing(list.len() as u64, list.as_bytes()),
        Some("POST") => {
            removed.fetch_add(1, Ordering::SeqCst);
            let done = b"<DeleteResult><Deleted><Key>x</Key></Deleted></DeleteResult>";
            announcing(done.len() as u64, done)
        }
        _ => announcing(0, &[]),
    });
    for (minutes, expected) in [(60, 1), (20, 3)] {
        let ttl = Duration::from_secs(60 * minutes);
        let rules = SweepRules { ttl, total_max: None, owner_max: None, every: Duration::ZERO };
        bucket.sweep(&rules).await.unwrap();
        assert_eq!(removals.load(Ordering::SeqCst), expected, "the earlier mark, and the value if it is old");
    }
}

/// A node whose clock is years ahead would have everything removed that it reads.
#[tokio::test]
async fn what_is_read_is_old_by_the_clock_of_the_store() {
    let bucket = bucket(|head| match head.starts_with("GET") {
        true => announcing(100, &[1; 100]),
        false => announcing(0, &[]),
    });
    bucket.connect().await.unwrap();
    let read = bucket.get(&key(1), 1000).await.unwrap().unwrap();
    assert!(read.age.is_some_and(|age| age < TTL), "{:?}", read.age);
}

#[tokio::test]
async fn s3_says_why_it_refuses_and_the_remedy_fits() {
    let refusing = |status: &'static str, code: &'static str| {
        let body = format!("<Error><Code>{code}</Code><Message>a message</Message></Error>");
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        bucket(move |_| (head.clone() + &body).into_bytes())
    };
    for (code, expected, remedy) in [
        ("RequestTimeTooSkewed", "RequestTimeTooSkewed", "clock"),
        ("InvalidAccessKeyId", "InvalidAccessKeyId", "password"),
        ("no code\n", "permission denied", "password"),
    ] {
        let refused = refusing("403 Forbidden", code).get(&key(1), 10).await.unwrap_err();
        assert_eq!(refused, Fault::Refused(expected.to_owned()));
        assert!(refused.remedy().contains(remedy), "{code}: {}", refused.remedy());
    }
    let full = refusing("507 Insufficient Storage", "XMinioStorageFull").get(&key(1), 10).await;
    assert_eq!(full, Err(Fault::Full("XMinioStorageFull".to_owned())));
}

#[tokio::test]
async fn a_list_without_end_is_not_collected() {
    let list = "<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>";
    for (space, is_read) in [(0, true), (ANSWER_BYTES_MAX, false)] {
        let text = list.to_owned() + &" ".repeat(space);
        let bucket = bucket(move |_| announcing(text.len() as u64, text.as_bytes()));
        assert_eq!(bucket.records(OwnerTag([2; 8])).await.is_ok(), is_read, "{space}");
    }
}

#[tokio::test]
async fn values_larger_than_asked_for_are_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let redis = redis_server("--port", &[]);
    let mut backends = vec![opened(&format!("file://{}", directory.path().display()))];
    backends.extend(redis.iter().map(|server| opened(&format!("redis://127.0.0.1:{}", server.port))));
    for backend in backends {
        connect(&*backend).await.unwrap();
        let retention = Retention { ttl: TTL, total_max: None, owner_max: None };
        backend.put(&key(1), vec![1; 10_000], &retention).await.unwrap();
        let value = backend.get(&key(1), 100).await.unwrap().unwrap();
        assert!(value.bytes.len() <= 101, "{}", value.bytes.len());
    }
}

#[tokio::test]
async fn versions_of_a_record_leave_when_they_have_been_replaced_for_long() {
    let directory = tempfile::tempdir().unwrap();
    let backend = opened(&format!("file://{}", directory.path().display()));
    backend.connect().await.unwrap();
    let record = RecordKey { kind: OwnerTag([2; 8]), name: "name".to_owned() };
    let place = directory.path().join("kvik1-0101010101010101/r").join(record.kind.to_string()).join("name");
    let versions = || std::fs::read_dir(&place).unwrap().count();
    for after in 0..5 {
        assert_eq!(backend.put_record(&record, after, vec![after as u8]).await, Ok(Ok(())));
    }
    assert_eq!(versions(), 5);
    for (version, seconds) in [(1, 300), (2, 200), (3, 100), (4, 20)] {
        let file = std::fs::File::options().append(true).open(place.join(format!("{version:016x}"))).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }
    assert_eq!(backend.put_record(&record, 5, vec![5]).await, Ok(Ok(())));
    assert_eq!(versions(), 4, "1 and 2 left, 3 was replaced 20 s ago");
    assert_eq!(backend.record(&record, 100).await, Ok(Some((6, vec![5]))));
    backend.delete_record(&record).await.unwrap();
    assert_eq!(backend.record(&record, 100).await, Ok(None));
}

#[tokio::test]
async fn a_removed_record_leaves_no_folder() {
    let directory = tempfile::tempdir().unwrap();
    let backend = opened(&format!("file://{}", directory.path().display()));
    backend.connect().await.unwrap();
    let [one, other] =
        ["one", "other"].map(|name| RecordKey { kind: OwnerTag([2; 8]), name: name.to_owned() });
    for record in [&one, &other] {
        assert_eq!(backend.put_record(record, 0, vec![1]).await, Ok(Ok(())));
    }
    let kind = directory.path().join("kvik1-0101010101010101/r").join(one.kind.to_string());
    let folders = || std::fs::read_dir(&kind).unwrap().map(|entry| entry.unwrap().file_name());
    for _ in 0..2 {
        backend.delete_record(&one).await.unwrap();
        assert_eq!(folders().collect::<Vec<_>>(), ["other"]);
    }
    assert_eq!(backend.put_record(&one, 0, vec![1]).await, Ok(Ok(())));
    assert_eq!(folders().count(), 2);
}

/// `object_store` neither lists what a killed process was writing nor removes folders.
#[cfg(unix)]
#[tokio::test]
async fn a_sweep_removes_what_is_never_listed_from_a_directory() {
    let (directory, backend) = aged_directory(2).await;
    let root = directory.path().join("kvik1-0101010101010101");
    let value = file_of(directory.path(), 0);
    let old = SystemTime::now() - Duration::from_secs(7200);
    let age = |path: &std::path::Path| std::fs::File::open(path).unwrap().set_modified(old).unwrap();
    let [left, new, foreign] = ["1#1", "1#2", "notes.txt"].map(|name| value.with_file_name(name));
    let empty = root.join("r/0202020202020202/name");
    std::fs::create_dir_all(&empty).unwrap();
    for path in [&left, &new, &foreign] {
        std::fs::write(path, [1; 10]).unwrap();
    }
    [&left, &foreign, &empty].into_iter().for_each(|path| age(path));
    let beside = root.join("r/0202020202020202/new");
    std::fs::create_dir(&beside).unwrap();
    let rules = SweepRules { ttl: TTL, total_max: None, owner_max: None, every: Duration::ZERO };
    backend.sweep(&rules).await.unwrap();
    assert!(!left.exists() && !empty.exists());
    assert!([&new, &foreign, &value, &beside].iter().all(|path| path.exists()), "what may be in use stays");
    assert_eq!(backend.exists(&[key(0), key(1)]).await, Ok(vec![true; 2]));
}

/// The file system had its name on the disk, and not its content.
#[tokio::test]
async fn a_version_that_a_loss_of_power_has_emptied_does_not_count() {
    let directory = tempfile::tempdir().unwrap();
    let backend = opened(&format!("file://{}", directory.path().display()));
    backend.connect().await.unwrap();
    let record = RecordKey { kind: OwnerTag([2; 8]), name: "name".to_owned() };
    let place = directory.path().join("kvik1-0101010101010101/r").join(record.kind.to_string()).join("name");
    for lost in [Vec::new(), vec![0; 9]] {
        backend.delete_record(&record).await.unwrap();
        for after in 0..2 {
            assert_eq!(backend.put_record(&record, after, vec![7; 9]).await, Ok(Ok(())));
        }
        let newest = place.join(format!("{:016x}", 2));
        std::fs::write(&newest, &lost).unwrap();
        assert_eq!(backend.record(&record, 100).await, Ok(Some((2, lost))), "it may be being replaced");
        let file = std::fs::File::options().append(true).open(&newest).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(100)).unwrap();
        assert_eq!(backend.record(&record, 100).await, Ok(Some((1, vec![7; 9]))));
        assert_eq!(backend.put_record(&record, 1, vec![8; 9]).await, Ok(Ok(())));
    }
    let file = std::fs::File::options().append(true).open(place.join(format!("{:016x}", 2))).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(100)).unwrap();
    assert_eq!(backend.record(&record, 5).await, Ok(Some((2, Vec::new()))), "it is too large, and not lost");
}

#[tokio::test]
async fn nothing_is_read_of_versions_that_are_forgotten_and_none_is_written_twice() {
    let directory = tempfile::tempdir().unwrap();
    let backend = opened(&format!("file://{}", directory.path().display()));
    backend.connect().await.unwrap();
    let record = RecordKey { kind: OwnerTag([2; 8]), name: "name".to_owned() };
    for after in 0..3 {
        let bytes = format!("secret {after}").into_bytes();
        assert_eq!(backend.put_record(&record, after, bytes).await, Ok(Ok(())));
    }
    for _ in 0..2 {
        backend.forget_older(&record).await.unwrap();
        assert_eq!(backend.record(&record, 100).await, Ok(Some((3, b"secret 2".to_vec()))));
    }
    let place = directory.path().join("kvik1-0101010101010101/r").join(record.kind.to_string()).join("name");
    let held = |file: std::io::Result<std::fs::DirEntry>| std::fs::read(file.unwrap().path()).unwrap();
    let mut all: Vec<Vec<u8>> = std::fs::read_dir(place).unwrap().map(held).collect();
    all.sort();
    assert_eq!(all, [Vec::new(), Vec::new(), b"secret 2".to_vec()]);
    assert_eq!(backend.put_record(&record, 1, vec![1]).await, Ok(Err(Outdated { version: 3 })));
    assert_eq!(backend.put_record(&record, 3, vec![4]).await, Ok(Ok(())));
}
