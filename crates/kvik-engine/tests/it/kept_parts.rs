//! Prompts of which a part is kept, as kept prompts: made ahead, pinned, found after a restart, released.

use std::time::Duration;

use crate::fake::memory_disk::MemoryDisk;
use crate::fake::*;
use kvik_cache::tier::Level;
use kvik_cache::{Lifetime, TenantId, Token};
use kvik_engine::api::{Cached, PinnedPrompt, Request};

const RETENTION: &str = "keydiff:0.25";

/// What is kept of a prompt of tenant `tenant`.
fn part(tenant: u32, tokens: &[Token], retention: &str) -> PinnedPrompt {
    PinnedPrompt {
        tokens: tokens.to_vec(),
        adapters: None,
        salt: [tenant as u8; 16],
        tenant: TenantId(tenant),
        retention: Some(retention.parse().unwrap()),
    }
}

/// A request that reads the part of its first whole blocks.
fn reading(kept: &PinnedPrompt, question: &[Token]) -> Request {
    let prompt = [&kept.tokens, question].concat();
    let (salt, tenant, retention) = (kept.salt, kept.tenant, kept.retention);
    let kept_prefix = Some(kept.tokens.len() / 16 * 16);
    Request { salt, tenant, retention, kept_prefix, ignore_eos: true, ..request(prompt, 20) }
}

/// The same for the exact prefix.
fn exact(kept: &PinnedPrompt, question: &[Token]) -> Request {
    Request { retention: None, kept_prefix: None, ..reading(kept, question) }
}

fn ask(world: &mut World, request: Request) -> Answer {
    let client = world.submit(request);
    world.run_until_idle();
    world.scheduler.cache().check().unwrap();
    client.answer().unwrap_or_else(|| panic!("{:?}", client.error()))
}

fn pinned(world: &World) -> usize {
    world.scheduler.cache().stats().pinned
}

#[test]
fn a_part_is_made_ahead_pinned_and_released() {
    let mut world = World::new(config(), 200);
    let kept = part(0, &prompt(1, 165), RETENTION);
    assert_eq!(
        world.scheduler.prefixes.cached(&kept),
        Cached { tokens: 160, ram: 0, disk: 0, pinned: false }
    );
    let made = ask(&mut world, kept.request()).report;
    assert_eq!((made.computed_tokens, made.retained.unwrap().kept), (160, 40));
    assert_eq!(
        world.scheduler.prefixes.cached(&kept),
        Cached { tokens: 160, ram: 160, disk: 0, pinned: true }
    );
    assert_eq!(pinned(&world), 1 + 3, "which positions, and 40 of them; the exact prompt is not pinned");
    assert!(world.scheduler.prefixes.cached(&PinnedPrompt { retention: None, ..kept.clone() }).ram >= 160);

    let again = ask(&mut world, kept.request()).report;
    assert_eq!((again.computed_tokens, again.retained.unwrap().kept), (0, 40));
    // The parts of others, and of other policies, are others.
    for other in [part(1, &kept.tokens, RETENTION), part(0, &kept.tokens, "keydiff:0.5")] {
        assert_eq!(world.scheduler.prefixes.cached(&other).ram, 0);
    }
    let retention = kept.retention.unwrap();
    assert_eq!(world.scheduler.release_part(&kept, &retention), 4);
    assert_eq!(world.scheduler.prefixes.cached(&kept).ram, 0);
    world.check_idle();
}

/// What a request left there is pinned when it is kept under a name later.
#[test]
fn a_part_that_is_there_already_is_pinned() {
    let disk = MemoryDisk::default();
    let mut world = disk.life(config(), 200, 0);
    let kept = part(0, &prompt(1, 160), RETENTION);
    ask(&mut world, reading(&kept, &[9, 9]));
    assert_eq!((pinned(&world), world.scheduler.prefixes.cached(&kept).ram), (0, 160));
    ask(&mut world, kept.request());
    assert_eq!(pinned(&world), 4);
    let on_disk = disk.state().blocks.values().filter(|(record, _)| record.pinned).count();
    assert_eq!(on_disk, 1, "its last block, for the next start");
}

/// Memory is short, and others use all of it: the pinned part stays, the exact prompt does not.
#[test]
fn a_pinned_part_outlives_what_is_evicted() {
    let mut world = World::new(config(), 40);
    let kept = part(0, &prompt(1, 160), RETENTION);
    let made = ask(&mut world, kept.request());
    assert!(made.report.retained.is_some());
    let first = ask(&mut world, reading(&kept, &[9, 9])).choices;
    (10..20).for_each(|seed| drop(ask(&mut world, request(prompt(seed, 300), 2))));
    assert_eq!(world.scheduler.prefixes.cached(&PinnedPrompt { retention: None, ..kept.clone() }).ram, 0);
    let again = ask(&mut world, reading(&kept, &[9, 9]));
    assert_eq!((again.choices, again.report.cached_tokens), (first, 160));
}

#[test]
fn a_part_is_found_after_a_restart_and_those_that_do_not_ask_get_the_exact_prefix() {
    let disk = MemoryDisk::default();
    let kept = part(0, &prompt(1, 165), RETENTION);
    let mut world = disk.life(config(), 200, 0);
    ask(&mut world, kept.request());
    let question = [9, 9, 8];
    let before = ask(&mut world, reading(&kept, &question)).choices;
    drop(world);

    let mut world = disk.life(config(), 200, 0);
    let restored = ask(&mut world, kept.request()).report;
    assert_eq!((restored.computed_tokens, restored.loaded[Level::Disk]), (0, 160), "{restored:?}");
    assert_eq!(restored.retained.unwrap().kept, 40);
    assert!(world.scheduler.prefixes.cached(&kept).pinned);
    let after = ask(&mut world, reading(&kept, &question));
    assert_eq!((&after.choices, after.report.cached_tokens), (&before, 160));

    let alone = solo(&exact(&kept, &question)).choices;
    assert_eq!(ask(&mut world, exact(&kept, &question)).choices, alone);
    assert_ne!(before, alone, "three quarters of the prefix are missing");
}

#[test]
fn a_use_of_a_part_restarts_its_time_to_live_on_disk_too() {
    let disk = MemoryDisk::default();
    let kept = part(0, &prompt(1, 160), RETENTION);
    let lifetime = Lifetime { ttl: Some(Duration::from_secs(60)), ..Lifetime::default() };
    let brief = |seed| Request { lifetime, ..reading(&kept, &prompt(seed, 3)) };
    let mut world = disk.life(config(), 200, 0);
    for seed in [2, 3] {
        ask(&mut world, brief(seed));
        (0..20).for_each(|_| world.step());
        disk.pass(Duration::from_secs(50));
    }
    let report = ask(&mut disk.life(config(), 200, 0), brief(4)).report;
    assert_eq!((report.cached_tokens, report.loaded[Level::Disk]), (160, 160), "{report:?}");
}

#[test]
fn what_is_released_does_not_return_from_the_disk() {
    let disk = MemoryDisk::default();
    let kept = part(0, &prompt(1, 160), RETENTION);
    let retention = kept.retention.unwrap();
    let exact = PinnedPrompt { retention: None, ..kept.clone() };
    for evicts in [false, true] {
        let mut world = disk.life(config(), 200, 0);
        ask(&mut world, kept.request());
        // What is being written stays on disk until it is.
        (0..3).for_each(|_| world.step());
        match evicts {
            true => assert_eq!(world.scheduler.evict(&exact.tokens, exact.salt).pins, 1),
            false => drop(world.scheduler.release_part(&kept, &retention)),
        }
        world.check_idle();
        drop(world);
        let mut world = disk.life(config(), 200, 0);
        assert!(disk.state().blocks.values().all(|(record, _)| !record.pinned));
        let again = ask(&mut world, kept.request()).report;
        assert!(again.retained.is_some());
        assert_eq!(again.loaded[Level::Disk] == 160, !evicts, "the exact prompt stays, unless it is evicted");
        world.scheduler.release_part(&kept, &retention);
    }
}

/// A pin that is withdrawn while it is made must not come back.
#[test]
fn a_part_that_is_released_while_it_is_made_is_not_pinned() {
    let kept = part(0, &prompt(1, 320), RETENTION);
    let retention = kept.retention.unwrap();
    for steps in [1, 3, 5] {
        let mut world = World::new(config(), 200);
        world.submit(kept.request());
        (0..steps).for_each(|_| world.step());
        world.scheduler.release_part(&kept, &retention);
        world.run_until_idle();
        assert_eq!(pinned(&world), 0);
        world.check_idle();
    }
}

#[test]
fn clearing_a_tenants_cache_clears_its_parts() {
    let mut world = World::new(config(), 200);
    let kept = [part(1, &prompt(1, 160), RETENTION), part(2, &prompt(1, 160), RETENTION)];
    kept.iter().for_each(|kept| drop(ask(&mut world, reading(kept, &[9]))));
    world.scheduler.prefixes.clear(Some([1; 16]));
    assert_eq!(kept.map(|kept| world.scheduler.prefixes.cached(&kept).ram), [0, 160]);
}

/// A part forgets once, at the end of its prefix, whatever its policy says of when: it has one name.
#[test]
fn a_part_is_found_and_released_whatever_it_says_of_when() {
    for when in ["either", "pressure"] {
        let mut world = World::new(config(), 200);
        let kept = part(0, &prompt(1, 165), &format!("{RETENTION},when={when}"));
        ask(&mut world, kept.request());
        let whole = Cached { tokens: 160, ram: 160, disk: 0, pinned: true };
        assert_eq!(world.scheduler.prefixes.cached(&kept), whole, "{when}");
        let plain = part(0, &kept.tokens, RETENTION);
        assert_eq!(world.scheduler.prefixes.cached(&plain), whole, "the same part");
        let again = ask(&mut world, kept.request()).report;
        assert_eq!((again.computed_tokens, pinned(&world)), (0, 4));
        world.scheduler.release_part(&kept, &kept.retention.unwrap());
        assert_eq!((world.scheduler.prefixes.cached(&kept).ram, pinned(&world)), (0, 0), "{when}");
        world.check_idle();
    }
}

/// An eviction by the beginning of a prompt reaches what is kept of longer ones, in RAM and, after a restart too, on disk.
#[test]
fn evicting_a_prompt_evicts_the_parts_of_those_that_begin_with_it() {
    let disk = MemoryDisk::default();
    let (kept, other) = (part(1, &prompt(1, 165), RETENTION), part(1, &prompt(2, 165), RETENTION));
    let stranger = part(2, &kept.tokens, RETENTION);
    let all = [&kept, &other, &stranger];
    let mut world = disk.life(config(), 200, 0);
    all.iter().for_each(|kept| drop(ask(&mut world, kept.request())));
    let found = |world: &World| all.map(|kept| world.scheduler.prefixes.cached(kept).ram);
    assert_eq!(found(&world), [160, 160, 160]);
    assert_eq!(
        world.scheduler.evict(&kept.tokens[..10], kept.salt).pins,
        0,
        "less than a block names nothing"
    );
    assert_eq!(world.scheduler.evict(&kept.tokens[..48], kept.salt).pins, 1);
    assert_eq!(found(&world), [0, 160, 160]);
    assert_eq!(world.scheduler.prefixes.cached(&kept).disk, 0);
    (0..5).for_each(|_| world.step());

    ask(&mut world, reading(&kept, &[9, 9]));
    (0..5).for_each(|_| world.step());
    drop(world);
    let mut world = disk.life(config(), 200, 0);
    let is_mine =
        |owner: u64| disk.state().blocks.values().filter(|(record, _)| record.owner == owner).count();
    let owners: std::collections::BTreeSet<u64> =
        disk.state().blocks.values().map(|(record, _)| record.owner).collect();
    let before: Vec<usize> = owners.iter().map(|&owner| is_mine(owner)).collect();
    ask(&mut world, other.request());
    world.scheduler.evict(&kept.tokens[..48], kept.salt);
    (0..5).for_each(|_| world.step());
    let after: Vec<usize> = owners.iter().map(|&owner| is_mine(owner)).collect();
    assert!(
        before.iter().zip(&after).filter(|(before, after)| before != after).count() == 1,
        "{before:?} {after:?}"
    );
    assert_eq!(ask(&mut world, stranger.request()).report.loaded[Level::Disk], 160, "another tenant's stays");
    assert_eq!(found(&world)[1], 160, "so does what is known to be of another prompt");
    let again = ask(&mut world, reading(&kept, &[9, 9])).report;
    assert_eq!((again.cached_tokens, again.loaded[Level::Disk]), (0, 0), "{again:?}");
}
