//! Lists of the prompts that nodes of a fleet use: each node keeps its own in the store that all share.
//!
//! A node that starts reads the lists of the others and prefetches the prompts used most. One that leaves writes its
//! hot blocks that are not shared yet. In between each renews its list, so that a node that is killed leaves one too.
//! Nobody renews that one: it names what is deleted later, until it is removed.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvik_cache::Identity;
use kvik_engine::{api::HotPrefix, engine::Engine};
use kvik_memory::hex;
use kvik_memory::shared::{SharedError, SharedRecord, SharedRecords};
use kvik_remote::records::{RecordError, Records};
use kvik_remote::{Fault, Remote};
use serde::{Deserialize, Serialize};

use kvik_memory::clock::unix_seconds;

/// The kind of the lists among the records.
const KIND: &str = "hot-prompts";
/// Maximum prefixes of a list.
const PREFIXES_MAX: usize = 256;
/// Maximum tokens of a list.
const TOKENS_MAX: usize = 1 << 20;
/// Age in seconds above which a list is stale and removed.
const OLD_S: u64 = 24 * 3600;
/// How long a start waits for the store to answer.
const PROBE_TIME: Duration = Duration::from_secs(2);
/// Maximum lists that are used, the latest ones.
const LISTS_MAX: usize = 64;
/// Time after which the node of a list, which renews it every minute, is taken to have ended.
const UNRENEWED: Duration = Duration::from_secs(5 * 60);
/// Maximum names that a node remembers of lists that may still be there, because the store did not answer.
const NAMES_MAX: usize = 16;

/// A node of a fleet.
#[derive(Clone)]
pub struct Fleet {
    records: Records,
    /// Unique name of this node and model.
    name: String,
    own: Arc<Mutex<OwnLists>>,
}

/// The lists of a node in the store.
#[derive(Default)]
struct OwnLists {
    /// The name of the current one, after those of earlier ones that may still be there.
    names: Vec<String>,
    /// Number of lists so far.
    count: u64,
    /// Whether no more are written.
    are_over: bool,
}

/// The lists of all nodes, which stay when their nodes have ended.
pub struct HotLists {
    records: Arc<dyn SharedRecords>,
    /// Whether something was deleted since the lists were last looked at.
    is_deleted: AtomicBool,
    /// The lists that were there then, which may name it, and since when this process knows them: the clocks of their
    /// nodes may differ from its own.
    suspects: Mutex<HashMap<String, Instant>>,
}

/// The list of the prefixes that a node uses.
#[derive(Serialize, Deserialize)]
struct HotList {
    /// Time of writing, in seconds since 1970.
    at_s: u64,
    prefixes: Vec<ListedPrefix>,
}

#[derive(Serialize, Deserialize)]
struct ListedPrefix {
    root: [u8; 32],
    tokens: Vec<u32>,
    uses: u32,
}

impl Fleet {
    /// A new node among those that share these records.
    pub fn new(records: Records) -> Fleet {
        let bytes: [u8; 8] = kvik_memory::random::random().to_le_bytes();
        Fleet { records, name: hex::written(bytes), own: Arc::default() }
    }

    /// Prefetches the prefixes that other nodes use, for at most `within`.
    pub fn warm(&self, engine: &Engine, within: Duration) {
        if within.is_zero() {
            return;
        }
        let started = Instant::now();
        // Waits until the store's state is known.
        while !engine.stats().remote.is_some_and(|remote| remote.is_up)
            && started.elapsed() < within.min(PROBE_TIME)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        let lists = match self.lists(within.saturating_sub(started.elapsed())) {
            Ok(lists) => lists,
            Err(error) => return tracing::info!("beginning without what other nodes use: {error}"),
        };
        let prefixes = merged(lists);
        if prefixes.is_empty() {
            return;
        }
        let (count, left) = (prefixes.len(), within.saturating_sub(started.elapsed()));
        match engine.warm(prefixes, left) {
            Ok(true) => tracing::info!(
                "fetched what other nodes use, {count} prompts, in {:.1} s",
                started.elapsed().as_secs_f64()
            ),
            Ok(false) => tracing::info!("beginning with a part of the {count} prompts that other nodes use"),
            // The engine is stopping.
            Err(_) => {}
        }
    }

    /// Writes this node's hot blocks and their list to the store, for at most `within`.
    pub fn leave(&self, engine: &Engine, within: Duration) {
        let Ok(hot) = engine.hottest(PREFIXES_MAX) else { return };
        if let Ok(false) = engine.share(&hot, within) {
            tracing::info!("leaving before all that is hot was shared: --grace gives it more time");
        }
        self.list(hot);
    }

    /// Renews the list of the prefixes that this node uses.
    pub fn renew(&self, engine: &Engine) {
        if let Ok(mut hot) = engine.hottest(PREFIXES_MAX) {
            // Prefixes that were not reused were not written to the store.
            hot.retain(|prefix| prefix.uses > 0);
            self.list(hot);
        }
    }

    fn list(&self, hot: Vec<HotPrefix>) {
        let mut tokens = 0;
        let fits = |prefix: &HotPrefix| {
            tokens += prefix.tokens.len();
            tokens <= TOKENS_MAX
        };
        let prefixes = hot.into_iter().take_while(fits).map(ListedPrefix::from).collect();
        let list = HotList { at_s: unix_seconds(), prefixes };
        match rmp_serde::to_vec(&list) {
            Ok(bytes) => self.write(list.at_s, bytes),
            Err(error) => tracing::debug!("the list of what this node uses cannot be written: {error}"),
        }
    }

    /// Writes a list, and removes the earlier ones: prefixes that are no longer used, or were deleted, must not remain in
    /// any. Each has a name of its own, which tells its age without reading it.
    fn write(&self, at_s: u64, bytes: Vec<u8>) {
        let mut own = self.own();
        if own.are_over {
            return;
        }
        own.count += 1;
        let name = format!("{}-{at_s}-{}", self.name, own.count);
        // Noted before: a write whose answer is lost may have succeeded.
        own.names.push(name.clone());
        match self.records.put(KIND, &name, 0, bytes) {
            Ok(_) => self.remove(&mut own, Some(&name)),
            Err(error) => {
                tracing::debug!("the list of what this node uses was not written: {error}");
                let surplus = own.names.len().saturating_sub(NAMES_MAX);
                own.names.drain(..surplus);
            }
        }
    }

    /// Removes this node's list and writes no more, because its model goes out of memory: nobody would take from it what
    /// is deleted later.
    pub fn forget(&self) {
        let mut own = self.own();
        own.are_over = true;
        self.remove(&mut own, None);
    }

    /// Removes the lists of this node except one.
    fn remove(&self, own: &mut OwnLists, kept: Option<&str>) {
        let is_left = |name: &str| {
            let removed = self.records.delete(KIND, name);
            let log = |error: &RecordError| tracing::debug!("a list of this node is still there: {error}");
            removed.inspect_err(log).is_err()
        };
        own.names.retain(|name| kept == Some(name.as_str()) || is_left(name));
    }

    fn own(&self) -> MutexGuard<'_, OwnLists> {
        // Every change leaves the names of all lists that may be there.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current lists of other nodes, the latest ones, as many as are read within some time; stale lists and invalid
    /// ones are removed. A list that cannot be read does not affect the others.
    ///
    /// # Errors
    /// If the store cannot list the records.
    fn lists(&self, within: Duration) -> Result<Vec<HotList>, RecordError> {
        let started = Instant::now();
        let mut others = self.records.list(KIND)?;
        others.retain(|name| !name.starts_with(&self.name));
        // Those that nodes have left behind do not keep back those of nodes that live.
        others.sort_unstable_by_key(|name| Reverse(written_s(name)));
        let asked = others.iter().take_while(|_| started.elapsed() < within);
        Ok(asked.filter_map(|name| self.list_of(name)).take(LISTS_MAX).collect())
    }

    /// The list of another node.
    fn list_of(&self, name: &str) -> Option<HotList> {
        let list = match self.records.get(KIND, name) {
            Ok(record) => rmp_serde::from_slice::<HotList>(&record?.bytes).ok(),
            // The record is damaged, and a node that has left will not rewrite it.
            Err(RecordError::Corrupt) => None,
            Err(error) => {
                tracing::debug!("a list of what another node uses was not read: {error}");
                return None;
            }
        };
        let list = list.filter(|list| list.at_s.saturating_add(OLD_S) > unix_seconds());
        if list.is_none()
            && let Err(error) = self.records.delete(KIND, name)
        {
            tracing::debug!("an old list of what another node used was not removed: {error}");
        }
        list
    }
}

impl HotLists {
    /// The lists in this store.
    pub fn new(records: Arc<dyn SharedRecords>) -> HotLists {
        HotLists { records, is_deleted: AtomicBool::default(), suspects: Mutex::default() }
    }

    /// Notes that something was deleted, which the lists of nodes that have ended may still name.
    pub fn note_deletion(&self) {
        self.is_deleted.store(true, Ordering::Relaxed);
    }

    /// Removes the lists from before the last deletion that nobody renews any more. To be called again and again with the
    /// time: a node that ended just now may still be renewing its list. Blocking.
    pub fn sweep(&self, now: Instant) {
        // Every change leaves lists that are there.
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        let is_deleted = self.is_deleted.swap(false, Ordering::Relaxed);
        if !is_deleted && suspects.is_empty() {
            return;
        }
        let names: HashSet<String> = match self.records.list(KIND) {
            Ok(names) => names.into_iter().collect(),
            Err(error) => {
                self.is_deleted.fetch_or(is_deleted, Ordering::Relaxed);
                return tracing::debug!("lists of nodes that have ended are still there: {error}");
            }
        };
        // A list that is renewed has another name.
        suspects.retain(|name, _| names.contains(name));
        if is_deleted {
            for name in names {
                suspects.entry(name).or_insert(now);
            }
        }
        suspects.retain(|name, since| {
            now.duration_since(*since) < UNRENEWED || self.records.delete(KIND, name).is_err()
        });
    }
}

/// When a list was written, in seconds since 1970, as its name tells.
fn written_s(name: &str) -> Option<u64> {
    name.split('-').nth(1)?.parse().ok()
}

/// The store's records, adapted to the memory crate's interface.
pub struct FleetRecords {
    records: Records,
    /// The store, which is open for them alone and closes with them.
    _store: Mutex<Remote>,
}

impl FleetRecords {
    /// The records of a store that is open for them alone.
    pub(crate) fn of(store: Remote) -> FleetRecords {
        FleetRecords { records: store.records(), _store: Mutex::new(store) }
    }
}

impl SharedRecords for FleetRecords {
    fn get(&self, kind: &str, name: &str) -> Result<Option<SharedRecord>, SharedError> {
        let record = self.records.get(kind, name).map_err(shared)?;
        Ok(record.map(|record| SharedRecord { version: record.version, bytes: record.bytes }))
    }

    fn put(&self, kind: &str, name: &str, after: u64, bytes: Vec<u8>) -> Result<u64, SharedError> {
        self.records.put(kind, name, after, bytes).map_err(shared)
    }

    fn delete(&self, kind: &str, name: &str) -> Result<(), SharedError> {
        self.records.delete(kind, name).map_err(shared)
    }

    fn forget_older(&self, kind: &str, name: &str) -> Result<(), SharedError> {
        self.records.forget_older(kind, name).map_err(shared)
    }

    fn list(&self, kind: &str) -> Result<Vec<String>, SharedError> {
        self.records.list(kind).map_err(shared)
    }
}

fn shared(error: RecordError) -> SharedError {
    match error {
        RecordError::Conflict { version } => SharedError::Conflict { version },
        RecordError::Down | RecordError::Closed | RecordError::Fault(Fault::Unreachable(_) | Fault::Late) => {
            SharedError::Down
        }
        other => SharedError::Failed(other.to_string()),
    }
}

impl From<HotPrefix> for ListedPrefix {
    fn from(prefix: HotPrefix) -> ListedPrefix {
        ListedPrefix { root: prefix.root.0, tokens: prefix.tokens, uses: prefix.uses }
    }
}

/// The prefixes of all lists, those used most first, each once.
fn merged(lists: Vec<HotList>) -> Vec<HotPrefix> {
    let mut uses: HashMap<(Identity, Vec<u32>), u32> = HashMap::new();
    for ListedPrefix { root, tokens, uses: times } in lists.into_iter().flat_map(|list| list.prefixes) {
        let sum = uses.entry((Identity(root), tokens)).or_default();
        *sum = sum.saturating_add(times);
    }
    let named = |((root, tokens), uses)| HotPrefix { root, tokens, uses };
    let mut prefixes: Vec<HotPrefix> = uses.into_iter().map(named).collect();
    // Among equals the longer ones first, since fetching them includes their prefixes.
    prefixes.sort_by(|a, b| {
        b.uses.cmp(&a.uses).then(b.tokens.len().cmp(&a.tokens.len())).then(a.tokens.cmp(&b.tokens))
    });
    prefixes
}

#[cfg(test)]
mod tests {
    use kvik_engine::store::Waker;
    use kvik_remote::backend::memory::Memory;
    use kvik_remote::{Budget, DEADLINE_MIN, FleetKey, Remote, RemoteConfig, RemoteUrl, TTL_DEFAULT};

    use super::*;

    /// A node with this key among those that share a store.
    fn node(store: &Arc<Memory>, key: u8) -> (Remote, Fleet) {
        let config = RemoteConfig {
            url: RemoteUrl::parse("file:///nowhere").unwrap(),
            key: FleetKey::new([key; 32]),
            fingerprint: [7; 32],
            payload_bytes: 100,
            ttl: TTL_DEFAULT,
            budget: Budget::default(),
            deadline_min: DEADLINE_MIN,
            waker: Waker::default(),
        };
        let remote = Remote::over(store.clone(), config).unwrap();
        let fleet = Fleet::new(remote.records());
        (remote, fleet)
    }

    #[test]
    fn a_list_that_cannot_be_read_keeps_back_no_other() {
        let store = Arc::new(Memory::new(1 << 20, 16));
        let nodes: Vec<_> = (0..6).map(|_| node(&store, 1)).collect();
        let (_reading, reader) = node(&store, 1);
        for (index, (_, fleet)) in nodes.iter().enumerate() {
            fleet.list(vec![HotPrefix { root: Identity([1; 32]), tokens: vec![index as u32], uses: 1 }]);
        }
        assert_eq!(reader.lists(Duration::from_secs(60)).unwrap().len(), 6);
        let damages: [fn(Vec<u8>) -> Vec<u8>; 4] = [
            |_| Vec::new(),
            |bytes| bytes[..9].to_vec(),
            |bytes| bytes.iter().map(|byte| byte ^ 1).collect(),
            |_| vec![7; 99],
        ];
        for damage in damages {
            store.change_record(damage);
            let left = reader.lists(Duration::from_secs(60)).unwrap().len();
            assert!(left >= 2, "{left} of those that were written are read");
        }
        let (_, fleet) = &nodes[0];
        fleet.records.put(KIND, "no list", 0, b"nonsense".to_vec()).unwrap();
        let old = HotList { at_s: 1, prefixes: Vec::new() };
        fleet.records.put(KIND, "old", 0, rmp_serde::to_vec(&old).unwrap()).unwrap();
        let left = reader.lists(Duration::from_secs(60)).unwrap().len();
        assert_eq!((left, fleet.records.list(KIND).unwrap().len()), (left, left), "those are removed");
    }

    #[test]
    fn a_start_asks_for_no_more_lists_than_it_has_time_for() {
        let (_remote, fleet) = node(&Arc::new(Memory::new(1 << 20, 16)), 1);
        let old = rmp_serde::to_vec(&HotList { at_s: 1, prefixes: Vec::new() }).unwrap();
        for number in 0..100 {
            fleet.records.put(KIND, &format!("old {number}"), 0, old.clone()).unwrap();
        }
        let left = || fleet.records.list(KIND).unwrap().len();
        assert_eq!((fleet.lists(Duration::ZERO).unwrap().len(), left()), (0, 100), "there is no time");
        assert_eq!((fleet.lists(Duration::from_secs(60)).unwrap().len(), left()), (0, 0));
    }

    /// A list with one prefix.
    fn hot() -> Vec<HotPrefix> {
        vec![HotPrefix { root: Identity([1; 32]), tokens: vec![7], uses: 1 }]
    }

    #[test]
    fn lists_that_were_left_behind_keep_back_none_of_a_node_that_lives() {
        let store = Arc::new(Memory::new(1 << 20, 16));
        let ((_live, fleet), (_reading, reader)) = (node(&store, 1), node(&store, 1));
        let left = rmp_serde::to_vec(&HotList { at_s: u64::MAX, prefixes: Vec::new() }).unwrap();
        for number in 0..LISTS_MAX {
            fleet.records.put(KIND, &format!("ended{number}-1-1"), 0, left.clone()).unwrap();
        }
        fleet.list(hot());
        let lists = reader.lists(Duration::from_secs(60)).unwrap();
        assert_eq!((lists.len(), lists[0].prefixes.len()), (LISTS_MAX, 1), "the latest is the first");
    }

    #[test]
    fn a_model_that_goes_out_of_memory_leaves_no_list() {
        let store = Arc::new(Memory::new(1 << 20, 16));
        let (_reading, reader) = node(&store, 1);
        let lists = || reader.records.list(KIND).unwrap().len();
        for _ in 0..3 {
            let (_remote, fleet) = node(&store, 1);
            (0..2).for_each(|_| fleet.list(hot()));
            assert_eq!(lists(), 1, "the newest");
            fleet.forget();
            // As of a report that was under way.
            fleet.list(hot());
            assert_eq!(lists(), 0);
        }
    }

    #[test]
    fn after_a_deletion_lists_that_nobody_renews_are_removed() {
        let store = Arc::new(Memory::new(1 << 20, 16));
        let (remote, fleet) = node(&store, 1);
        let (records, all) = (fleet.records.clone(), HotLists::new(Arc::new(FleetRecords::of(remote))));
        let start = Instant::now();
        let put = |name: &str| {
            records.put(KIND, name, 0, Vec::new()).unwrap();
        };
        let names = || {
            let mut names = records.list(KIND).unwrap();
            names.sort_unstable();
            names
        };
        let sweep = |after: Duration| all.sweep(start + after);
        // By the clocks of their nodes one ended long ago, and one is yet to come.
        ["ended-7-1", "killed-99999999999-1", "lives-7-1"].into_iter().for_each(put);
        sweep(2 * UNRENEWED);
        assert_eq!(names().len(), 3, "nothing was deleted");
        all.note_deletion();
        sweep(Duration::ZERO);
        records.delete(KIND, "lives-7-1").unwrap();
        put("lives-7-2");
        sweep(UNRENEWED / 2);
        let all_names = ["ended-7-1", "killed-99999999999-1", "lives-7-2"];
        assert_eq!(names(), all_names, "they may still live");
        all.note_deletion();
        sweep(UNRENEWED);
        assert_eq!(names(), ["lives-7-2"], "another deletion gives them no more time");
        records.delete(KIND, "lives-7-2").unwrap();
        put("lives-7-3");
        sweep(UNRENEWED * 3);
        assert_eq!(names(), ["lives-7-3"]);
        assert!(all.suspects.lock().unwrap().is_empty(), "and nobody asks any more");
    }

    #[test]
    fn what_several_nodes_use_comes_first() {
        let list = |prefixes: &[(&[u32], u32)]| HotList {
            at_s: 0,
            prefixes: prefixes
                .iter()
                .map(|&(tokens, uses)| ListedPrefix { root: [1; 32], tokens: tokens.to_vec(), uses })
                .collect(),
        };
        let merged = merged(vec![list(&[(&[1, 2], 3), (&[7], 4)]), list(&[(&[1, 2], 2), (&[7, 8], 4)])]);
        let order: Vec<(&[u32], u32)> = merged.iter().map(|it| (&it.tokens[..], it.uses)).collect();
        assert_eq!(order, [(&[1, 2][..], 5), (&[7, 8], 4), (&[7], 4)]);
    }
}
