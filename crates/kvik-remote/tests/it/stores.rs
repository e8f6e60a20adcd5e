//! Every store does the same for nodes that share it.

use std::time::{Duration, Instant};

use crate::common::{Node, Store, chain, check, config, random};
use kvik_engine::store::remote::RemoteStore;
use kvik_remote::records::RecordError;

#[test]
fn what_one_node_writes_another_reads() {
    for store in Store::all() {
        let key = random();
        let (mut one, mut two) = (Node::open(config(&store.url, key)), Node::open(config(&store.url, key)));
        one.until_up();
        two.until_up();
        let prompt = chain(1, key, 45);
        assert_eq!(two.look_up(&prompt), 0, "{}", store.name);
        one.write(&prompt, 43, None);
        assert_eq!(one.remote.stats().written_blocks, 43);
        assert_eq!(two.look_up(&prompt), 43, "{}", store.name);
        let fetched = two.fetch(&prompt, 0..43);
        check(&prompt, &fetched);
        assert!(!fetched.failed, "{}", store.name);
        assert_eq!(
            fetched.blocks.iter().map(|(nth, _)| *nth).collect::<Vec<_>>(),
            (0..43).collect::<Vec<_>>()
        );

        let fetched = two.fetch(&prompt, 41..43);
        let first = fetched.blocks[0].0;
        assert!(!fetched.failed && first <= 41 && first > 41 - two.remote.run_max(), "no more than its runs");
        assert!(two.fetch(&prompt, 0..45).failed, "the last blocks are not there");
        assert_eq!(two.look_up(&chain(2, key, 45)), 0, "another owner's");
        assert_eq!(two.remote.stats().faults + two.remote.stats().corrupt, 0, "{:?}", two.remote.stats());
    }
}

#[test]
fn what_is_there_is_not_written_again() {
    for store in Store::all() {
        let key = random();
        let (mut one, mut two) = (Node::open(config(&store.url, key)), Node::open(config(&store.url, key)));
        one.until_up();
        two.until_up();
        let prompt = chain(1, key, 8);
        one.write(&prompt, 8, None);
        let written = one.remote.stats();
        one.write(&prompt, 8, None);
        assert_eq!(one.remote.stats().written_bytes, written.written_bytes);
        two.write(&prompt, 8, None);
        assert_eq!(two.remote.stats().written_bytes, 0, "{}", store.name);
        assert!(!two.remote.wants(1, &prompt.blocks[7], 8, None), "it is known by now");
    }
}

#[test]
fn nodes_with_another_key_or_model_see_nothing() {
    for store in Store::all() {
        let key = random();
        let mut one = Node::open(config(&store.url, key));
        let other_model = {
            let mut config = config(&store.url, key);
            config.fingerprint[0] ^= 1;
            config
        };
        one.until_up();
        one.write(&chain(1, key, 8), 8, None);
        for config in [config(&store.url, key + 1), other_model] {
            let mut other = Node::open(config);
            other.until_up();
            assert_eq!(other.look_up(&chain(1, key, 8)), 0, "{}", store.name);
            assert!(other.fetch(&chain(1, key, 8), 0..8).failed);
        }
    }
}

#[test]
fn records_have_versions_that_one_writer_gets() {
    for store in Store::all() {
        let key = random();
        let (one, two) = (Node::open(config(&store.url, key)), Node::open(config(&store.url, key)));
        one.until_up();
        two.until_up();
        let (one, two) = (one.remote.records(), two.remote.records());
        assert_eq!(one.get("talk", "a/b c"), Ok(None), "{}", store.name);
        assert_eq!(one.put("talk", "a/b c", 0, b"first".to_vec()), Ok(1));
        assert_eq!(two.put("talk", "a/b c", 0, b"late".to_vec()), Err(RecordError::Conflict { version: 1 }));
        assert_eq!(two.put("talk", "a/b c", 1, vec![2; 1 << 20]), Ok(2));
        let record = one.get("talk", "a/b c").unwrap().unwrap();
        assert_eq!((record.version, record.bytes), (2, vec![2; 1 << 20]));
        assert_eq!(one.put("talk", "a/b c", 7, Vec::new()), Err(RecordError::Conflict { version: 2 }));
        assert_eq!(one.put("talk", "ø", 0, Vec::new()), Ok(1));
        assert_eq!(one.put("other", "x", 0, b"x".to_vec()), Ok(1));
        let mut names = two.list("talk").unwrap();
        names.sort();
        assert_eq!(names, ["a/b c", "ø"]);
        one.delete("talk", "a/b c").unwrap();
        one.delete("talk", "a/b c").unwrap();
        assert_eq!(two.get("talk", "a/b c"), Ok(None));
        assert_eq!(two.list("talk").unwrap(), ["ø"]);
        assert_eq!(two.put("talk", "a/b c", 0, b"anew".to_vec()), Ok(1));
    }
}

#[test]
fn of_many_writers_of_a_record_one_gets_each_version() {
    for store in Store::all() {
        let key = random();
        let nodes: Vec<Node> = (0..3).map(|_| Node::open(config(&store.url, key))).collect();
        nodes.iter().for_each(Node::until_up);
        std::thread::scope(|scope| {
            for node in &nodes {
                let records = node.remote.records();
                scope.spawn(move || add_five(&records));
            }
        });
        let record = nodes[0].remote.records().get("count", "n").unwrap().unwrap();
        assert_eq!((record.version, record.bytes), (15, vec![15]), "{}", store.name);
    }
}

fn add_five(records: &kvik_remote::records::Records) {
    for _ in 0..5 {
        loop {
            let found = records.get("count", "n").unwrap();
            let (version, count) = found.map_or((0, 0), |found| (found.version, found.bytes[0]));
            match records.put("count", "n", version, vec![count + 1]) {
                Ok(_) => break,
                Err(RecordError::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_value_is_gone_after_its_time() {
    for store in [Some(Store::directory()), Store::redis()].into_iter().flatten() {
        let key = random();
        let mut node = Node::open(config(&store.url, key));
        node.until_up();
        let (prompt, ttl, began) = (chain(1, key, 4), Duration::from_secs(1), Instant::now());
        node.write(&prompt, 4, Some(ttl));
        assert!(!node.fetch(&prompt, 0..4).failed || began.elapsed() >= ttl, "{}", store.name);
        std::thread::sleep(Duration::from_millis(2100));
        assert!(node.fetch(&prompt, 0..4).failed, "{}", store.name);
        assert_eq!(node.remote.stats().faults, 0);
        // The fetch had it removed in the background, so that it can be written for longer.
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < Duration::from_secs(20), "{}", store.name);
            node.write(&prompt, 4, None);
            std::thread::sleep(Duration::from_millis(1200));
            if !node.fetch(&prompt, 0..4).failed {
                break;
            }
        }
    }
}
