//! Requests with different adapters in one engine: they share batches and the pool of blocks, and never a block.

use crate::fake::memory_disk::MemoryDisk;
use crate::fake::*;
use kvik_cache::tier::Level;
use kvik_cache::{Lifetime, StopReason, TenantId, Token};
use kvik_engine::api::{AdapterMix, PinnedPrompt, Request, RequestError};
use kvik_engine::schedule::TenantPart;
use proptest::prelude::*;

/// The mixes of these tests: the first is the model alone, the last two the same.
fn mixes() -> [Option<AdapterMix>; 6] {
    let pair = [(0, 1.0), (1, 0.5)];
    [
        None,
        adapters(&[(0, 1.0)]),
        adapters(&[(0, 0.5)]),
        adapters(&[(1, 1.0)]),
        adapters(&pair),
        adapters(&[pair[1], (2, 0.0), pair[0]]),
    ]
}

/// Mixes that compute the same have the same number.
fn same(mix: usize) -> usize {
    mix.min(4)
}

fn part(tenant: u32) -> TenantPart {
    let tenant = TenantId(tenant);
    TenantPart { salt: [tenant.0 as u8; 16], public: true, ..TenantPart::own(tenant) }
}

fn kept(mix: usize, tokens: &[Token]) -> PinnedPrompt {
    PinnedPrompt {
        tokens: tokens.to_vec(),
        adapters: mixes()[mix].clone(),
        salt: [1; 16],
        tenant: TenantId(1),
        retention: None,
    }
}

/// What of a request is drawn.
#[derive(Debug, Clone)]
struct Asked {
    mix: usize,
    tenant: u32,
    /// Two stems, and how much of a prompt is one of them.
    stem: u64,
    common: usize,
    retained: bool,
    reuse: bool,
    /// Steps before the next one arrives.
    steps: usize,
}

fn asked() -> impl Strategy<Value = Asked> {
    (0..6usize, 1..3u32, 0..2u64, 1..90usize, 0..6u8, 0..6usize).prop_map(
        |(mix, tenant, stem, common, kind, steps)| Asked {
            mix,
            tenant,
            stem,
            common,
            retained: kind == 0,
            reuse: kind != 1,
            steps,
        },
    )
}

fn request_of(asked: &Asked, index: usize) -> Request {
    let stem = prompt(asked.stem, 90);
    let tokens = [&stem[..asked.common], &prompt(100 + index as u64 % 3, 12)].concat();
    Request {
        adapters: mixes()[asked.mix].clone(),
        tenant: TenantId(asked.tenant),
        salt: [asked.tenant as u8; 16],
        reuse: asked.reuse,
        retention: asked.retained.then(|| "sinks:48".parse().unwrap()),
        ignore_eos: true,
        ..request(tokens, 6)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The cache is so small that it evicts; tenants share a public prompt, which is computed with a mix of its own;
    /// some forget. Every answer is that of the request alone in a fresh engine.
    #[test]
    fn answers_depend_on_the_adapters_of_their_request_alone(
        asked in prop::collection::vec(asked(), 1..30),
        public in 0..6usize,
    ) {
        let mut world = World::new(config(), 90);
        world.scheduler.set_tenants(&[part(1), part(2)]);
        let kept = kept(public, &prompt(0, 48));
        world.submit(kept.request());
        world.run_until_idle();
        world.scheduler.set_public(std::slice::from_ref(&kept));
        let mut clients = Vec::new();
        for (index, asked) in asked.iter().enumerate() {
            let request = request_of(asked, index);
            clients.push((world.submit(request.clone()), request));
            (0..asked.steps).for_each(|_| world.step());
        }
        world.run_until_idle();
        world.scheduler.cache().check().unwrap();
        for (client, request) in clients {
            prop_assert_eq!(client.answer().unwrap().choices, solo(&request).choices);
        }
    }

    /// What was asked with one mix is found with the same one, after a restart too, and with no other.
    #[test]
    fn prefixes_are_found_by_the_same_mix_alone(
        first in 0..6usize,
        second in 0..6usize,
        restarts: bool,
    ) {
        let disk = MemoryDisk::default();
        let tokens = prompt(7, 100);
        let with = |mix: usize| Request { adapters: mixes()[mix].clone(), ..request(tokens.clone(), 3) };
        let mut world = disk.life(config(), 100, 0);
        let ask = |world: &mut World, mix: usize| {
            let client = world.submit(with(mix));
            world.settle();
            client.answer().unwrap()
        };
        ask(&mut world, first);
        if restarts {
            world = disk.life(config(), 100, 0);
        }
        let answer = ask(&mut world, second);
        prop_assert_eq!(&answer.choices, &solo(&with(second)).choices);
        let report = answer.report;
        let expect = if same(first) == same(second) {
            (99, if restarts { 99 } else { 0 }, Some(StopReason::Complete))
        } else {
            (0, 0, Some(StopReason::FirstSeen))
        };
        prop_assert_eq!((report.cached_tokens, report.loaded[Level::Disk], report.cache), expect);
    }
}

#[test]
fn a_public_prompt_is_shared_by_those_with_its_adapters() {
    let mut world = World::new(config(), 200);
    world.scheduler.set_tenants(&[part(1), part(2)]);
    let system = prompt(1, 96);
    let prompt_of_one = kept(1, &system);
    world.submit(prompt_of_one.request());
    world.run_until_idle();
    world.scheduler.set_public(std::slice::from_ref(&prompt_of_one));
    for (mix, expect) in [(0, 0), (1, 96), (2, 0), (4, 0)] {
        let adapters = mixes()[mix].clone();
        let tokens = [&system[..], &prompt(2, 20)].concat();
        let request = Request { adapters, salt: [2; 16], tenant: TenantId(2), ..request(tokens, 3) };
        let client = world.submit(request);
        world.run_until_idle();
        assert_eq!(client.answer().unwrap().report.cached_tokens, expect, "mix {mix}");
    }
}

/// Whatever it was computed with, a prompt is released, evicted and cleared by its tokens.
#[test]
fn a_prompt_is_dropped_with_all_its_adapters() {
    let disk = MemoryDisk::default();
    let tokens = prompt(3, 64);
    let salt = [1; 16];
    let mut world = disk.life(config(), 100, 0);
    world.scheduler.set_tenants(&[part(1)]);
    let keep = |world: &mut World| {
        for mix in [0, 1, 3] {
            world.submit(kept(mix, &tokens).request());
        }
        world.run_until_idle();
        let found = [0, 1, 3].map(|mix| world.scheduler.prefixes.cached(&kept(mix, &tokens)));
        assert!(found.iter().all(|cached| cached.pinned && cached.ram == 64), "{found:?}");
    };
    let gone = |world: &mut World| {
        let found = [0, 1, 3].map(|mix| world.scheduler.prefixes.cached(&kept(mix, &tokens)));
        assert!(
            found.iter().all(|cached| !cached.pinned && cached.ram == 0 && cached.disk == 0),
            "{found:?}"
        );
    };
    keep(&mut world);
    assert_eq!(world.scheduler.release(&tokens, salt), 12);
    // What was being written at that moment does not come back when it has been.
    world.settle();
    gone(&mut world);
    keep(&mut world);
    let evicted = world.scheduler.evict(&tokens, salt);
    assert_eq!((evicted.blocks, evicted.pins), (12, 3));
    world.settle();
    gone(&mut world);
    let unpinned = Request { lifetime: Lifetime::default(), ..kept(1, &tokens).request() };
    world.submit(unpinned);
    world.settle();
    assert_eq!(world.scheduler.prefixes.clear(Some(salt)).0, 4);
    gone(&mut world);
}

#[test]
fn an_adapter_that_is_not_there_is_refused() {
    let mut world = World::new(config(), 20);
    let with = |id| Request { adapters: adapters(&[(0, 1.0), (id, 1.0)]), ..request(vec![4], 1) };
    let refused = world.limits.check(&with(ADAPTERS as u32));
    assert_eq!(refused, Err(RequestError::UnknownAdapter { adapter: 3, adapters: 3 }));
    world.submit(with(2));
    world.settle();
}

/// A request with a scale that nobody has had before.
fn scaled(scale: f32, tokens: Vec<Token>) -> Request {
    Request { adapters: adapters(&[(0, scale)]), salt: [1; 16], tenant: TenantId(1), ..request(tokens, 1) }
}

#[test]
fn who_only_asks_what_is_known_makes_no_namespace() {
    let mut world = World::new(config(), 60);
    world.scheduler.set_tenants(&[part(1), part(2)]);
    let before = world.scheduler.cache().namespaces();
    for index in 1..=50 {
        let scale = index as f32 / 100.0;
        assert_eq!(world.scheduler.probe(&scaled(scale, prompt(1, 40))).stop, StopReason::FirstSeen);
        let kept = PinnedPrompt { adapters: adapters(&[(0, scale)]), ..kept(0, &prompt(1, 40)) };
        assert_eq!(world.scheduler.prefixes.cached(&kept).ram, 0);
        let retention = Some("keydiff:0.5".parse().unwrap());
        assert_eq!(world.scheduler.prefixes.cached(&PinnedPrompt { retention, ..kept.clone() }).ram, 0);
    }
    assert_eq!(world.scheduler.cache().namespaces(), before);
}

/// A client writes the scales, so there is no end of them: what holds nothing any more is dropped, and what is cached,
/// pinned or on disk is found and released as before.
#[test]
fn namespaces_of_scales_that_hold_nothing_are_dropped() {
    for on_disk in [false, true] {
        let disk = MemoryDisk::default();
        let mut world = if on_disk { disk.life(config(), 60, 0) } else { World::new(config(), 60) };
        let pinned = Request {
            lifetime: Lifetime { pin: true, ..Lifetime::default() },
            ..scaled(1000.0, prompt(1, 40))
        };
        world.submit(pinned.clone());
        world.run_until_idle();
        for index in 1..=3000 {
            let client = world.submit(scaled(index as f32 / 100.0, prompt(2, 40)));
            world.run_until_idle();
            assert!(client.answer().is_some());
        }
        world.scheduler.cache().check().unwrap();
        let most = 256 + 4 * (60 + disk.state().blocks.len());
        let namespaces = world.scheduler.cache().namespaces();
        assert!(namespaces < most, "{namespaces} of {most}");
        assert_eq!(world.scheduler.probe(&pinned).known_tokens, 32);
        assert_eq!(world.scheduler.evict(&prompt(1, 40), [1; 16]).pins, 1);
        world.scheduler.evict(&prompt(2, 40), [1; 16]);
        // What is being written stays on disk until it is.
        (0..5).for_each(|_| world.step());
        assert!(disk.state().blocks.is_empty(), "what is on disk is found with all scales");
    }
}
