//! Two schedulers on one directory: the second answers with blocks of the first, drops what that erases, and writes when
//! it has ended.

use std::thread::sleep;
use std::time::{Duration, Instant};

use kvik_cache::TenantId;
use kvik_cache::tier::Level;

use crate::disk::{ask, life};
use crate::fake::*;
use kvik_engine::schedule::TenantPart;
use kvik_engine::stats::{DiskRole, DiskStats};

fn until(world: &mut World, what: &str, is_so: impl Fn(&DiskStats) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so(&world.scheduler.prefixes.disk_stats().unwrap()) {
        world.step();
        assert!(Instant::now() < deadline, "{what}: {:?}", world.scheduler.prefixes.disk_stats());
        sleep(Duration::from_micros(200));
    }
}

fn used(world: &World) -> usize {
    world.scheduler.prefixes.disk_stats().unwrap().tier.used
}

fn sees_as_much(reader: &mut World, writer: &World) {
    let blocks = used(writer);
    until(reader, "the reader has seen what the writer holds", |disk| disk.tier.used == blocks);
}

#[test]
fn a_second_scheduler_reads_what_the_first_writes_and_takes_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = life(dir.path(), 0);
    let mut second = life(dir.path(), 0);
    let role = |world: &World| world.scheduler.prefixes.disk_stats().unwrap().role;
    assert_eq!(role(&first), DiskRole::Writer);
    assert_eq!(role(&second), DiskRole::Reader { of: Some(std::process::id()) });
    let long = request(prompt(1, 200), 12);
    ask(&mut first, &long);
    sees_as_much(&mut second, &first);
    let report = ask(&mut second, &long).report;
    assert_eq!((report.loaded[Level::Disk], report.computed_tokens), (199, 1));
    // What the second computes is in its memory alone.
    let own = request(prompt(2, 100), 4);
    ask(&mut second, &own);
    assert_eq!(ask(&mut second, &own).report.cached_tokens, 99);
    assert_eq!(used(&second), used(&first));

    drop(first);
    until(&mut second, "the second writes", |disk| disk.role == DiskRole::Writer);
    let before = used(&second);
    assert!(before > 0, "what was there is still there");
    let late = request(prompt(3, 64), 4);
    ask(&mut second, &late);
    ask(&mut second, &own);
    assert!(used(&second) > before, "new prompts are written, and old ones when they are used");
    drop(second);
    let mut third = life(dir.path(), 0);
    for asked in [long, own, late] {
        let report = ask(&mut third, &asked).report;
        assert_eq!(report.loaded[Level::Disk], asked.prompt.len() - 1, "of the first and of the second");
    }
}

/// The second has loaded a prompt and has computed more behind it; the first erases the prompt.
#[test]
fn what_the_writer_erases_leaves_the_memory_of_the_reader_and_nothing_else_does() {
    let dir = tempfile::tempdir().unwrap();
    let (mut first, mut second) = (life(dir.path(), 0), life(dir.path(), 0));
    let system = prompt(1, 64);
    let (gone, stays) = ([&system[..], &prompt(2, 64)].concat(), [&system[..], &prompt(3, 64)].concat());
    for tokens in [&gone, &stays] {
        ask(&mut first, &request(tokens.clone(), 4));
    }
    sees_as_much(&mut second, &first);
    let longer = [&gone[..], &prompt(4, 40)].concat();
    for tokens in [&gone, &stays, &longer] {
        ask(&mut second, &request(tokens.clone(), 4));
    }
    assert_eq!(ask(&mut second, &request(longer.clone(), 4)).report.cached_tokens, longer.len() - 1);

    first.scheduler.evict(&gone, [0; 16]);
    sees_as_much(&mut second, &first);
    second.step();
    let known = |world: &mut World, tokens: &[kvik_cache::Token]| {
        let report = ask(world, &request(tokens.to_vec(), 4)).report;
        (report.cached_tokens, report.loaded[Level::Disk])
    };
    assert_eq!(known(&mut second, &stays), (127, 0), "it shares its beginning, which stays");
    let (cached, _) = known(&mut second, &longer);
    assert!((64..80).contains(&cached), "{cached}: what followed the erased blocks is gone with them");
}

/// Its blocks made room: they are as good as before.
#[test]
fn what_a_lowered_quota_evicts_stays_in_the_memory_of_the_reader() {
    let dir = tempfile::tempdir().unwrap();
    let (mut first, mut second) = (life(dir.path(), 0), life(dir.path(), 0));
    let long = request(prompt(1, 200), 4);
    ask(&mut first, &long);
    sees_as_much(&mut second, &first);
    assert_eq!(ask(&mut second, &long).report.loaded[Level::Disk], 199);
    let owner_disk_bytes = Some(4 * config().block_bytes as u64);
    first.scheduler.set_tenants(&[TenantPart { owner_disk_bytes, ..TenantPart::own(TenantId(0)) }]);
    until(&mut first, "the quota is kept", |disk| disk.tier.used == 4);
    sees_as_much(&mut second, &first);
    second.step();
    let report = ask(&mut second, &long).report;
    assert_eq!((report.cached_tokens, report.loaded[Level::Disk]), (199, 0));
}
