//! Tenants share the model fairly: a flood of requests of one does not take the share of the others.

use crate::fake::*;
use kvik_cache::{TenantId, Token};
use kvik_engine::api::{Event, Pace, Request};
use kvik_engine::config::EngineConfig;
use kvik_engine::schedule::TenantPart;

fn by(tenant: u32, prompt: Vec<Token>, max_tokens: usize) -> Request {
    Request {
        tenant: TenantId(tenant),
        salt: [tenant as u8; 16],
        ignore_eos: true,
        ..request(prompt, max_tokens)
    }
}

/// Submits requests of a tenant with different prompts.
fn flood(world: &mut World, tenant: u32, count: u64, tokens: usize) -> Vec<Client> {
    (0..count).map(|i| world.submit(by(tenant, prompt(1000 * u64::from(tenant) + i, tokens), 4))).collect()
}

fn narrow(parallel_max: usize) -> EngineConfig {
    EngineConfig { parallel_max, ..config() }
}

/// Whether a request has been admitted.
fn is_admitted(client: &Client) -> bool {
    client.events().iter().any(|event| matches!(event, Event::Prefill { .. } | Event::Text { .. }))
}

fn admitted(clients: &[Client]) -> usize {
    clients.iter().filter(|client| is_admitted(client)).count()
}

/// Steps until `client` is admitted; returns how many of `others` were admitted meanwhile.
fn admitted_before(world: &mut World, client: &Client, others: &[Client]) -> usize {
    let before = admitted(others);
    for _ in 0..100_000 {
        if is_admitted(client) {
            return admitted(others) - before;
        }
        world.step();
    }
    panic!("a request was not admitted");
}

#[test]
fn a_flood_delays_another_tenants_request_only_by_the_running_requests() {
    for parallel in [1, 2, 8] {
        for waiting in [10, 300, 2000] {
            let mut world = World::new(narrow(parallel), 400);
            let flood = flood(&mut world, 1, waiting, 40);
            (0..20).for_each(|_| world.step());
            let single = world.submit(by(2, prompt(7, 40), 4));
            let others = admitted_before(&mut world, &single, &flood);
            assert!(
                others <= parallel,
                "{others} of {waiting} were admitted first with {parallel} at a time"
            );
        }
    }
}

#[test]
fn every_tenants_first_request_is_admitted_before_any_second_one() {
    let mut world = World::new(narrow(1), 400);
    let crowd = flood(&mut world, 1, 500, 40);
    let singles: Vec<Client> =
        (2..30).map(|tenant| world.submit(by(tenant, prompt(u64::from(tenant), 40), 4))).collect();
    while admitted(&singles) < singles.len() {
        world.step();
        assert!(admitted(&crowd) <= 2, "the crowd had its turn again");
    }
}

/// Ratio of the rows computed for two tenants that always have requests waiting.
fn shares(weights: [f64; 2], tokens: [usize; 2]) -> f64 {
    let mut world = World::new(narrow(2), 2000);
    world
        .scheduler
        .set_tenants(&[1, 2].map(|i| TenantPart { weight: weights[i - 1], ..part(i as u32, None) }));
    let floods = [1, 2].map(|tenant: u32| flood(&mut world, tenant, 600, tokens[tenant as usize - 1]));
    let done = |clients: &[Client]| clients.iter().filter(|client| client.has_ended()).count();
    while floods.iter().all(|clients| done(clients) < 550)
        && floods.iter().map(|c| done(c)).sum::<usize>() < 700
    {
        world.step();
    }
    let rows = |i: usize| (done(&floods[i]) * (tokens[i] + 3)) as f64;
    rows(0) / rows(1)
}

#[test]
fn work_is_shared_by_weight_for_any_size_of_requests() {
    for (weights, tokens) in
        [([1.0, 1.0], [40, 40]), ([1.0, 1.0], [20, 100]), ([3.0, 1.0], [40, 40]), ([1.0, 2.5], [90, 30])]
    {
        let (expect, got) = (weights[0] / weights[1], shares(weights, tokens));
        assert!((0.85..1.18).contains(&(got / expect)), "{weights:?} {tokens:?}: {got} for {expect}");
    }
}

/// A request that needs most of the cache, among small requests of other tenants that always fit.
#[test]
fn large_requests_do_not_starve() {
    let mut world = World::new(narrow(8), 40);
    let small = flood(&mut world, 1, 400, 30);
    (0..10).for_each(|_| world.step());
    let large = world.submit(by(2, prompt(7, 560), 4));
    let others = admitted_before(&mut world, &large, &small);
    // It is overtaken eight times, then no request is admitted before it; running ones have to end.
    assert!(others <= 16, "{others} small ones were admitted first");
    world.settle();
    assert!(small.iter().chain([&large]).all(|client| client.answer().is_some()));
}

#[test]
fn an_idle_tenant_accumulates_no_credit() {
    let mut world = World::new(narrow(1), 400);
    let busy = flood(&mut world, 1, 200, 40);
    while busy.iter().filter(|client| client.has_ended()).count() < 100 {
        world.step();
    }
    let back = flood(&mut world, 2, 50, 40);
    let before = admitted(&busy);
    while admitted(&back) < 40 {
        world.step();
    }
    let others = admitted(&busy) - before;
    assert!((38..=42).contains(&others), "{others} of the other tenant beside 40");
}

/// The first two choices take both places, and the others wait for their tenant's turn.
#[test]
fn the_choices_of_one_request_come_before_no_other_tenant() {
    let mut world = World::new(EngineConfig { choices_max: 16, ..narrow(2) }, 400);
    let many = world.submit(Request { choices: 16, ..by(1, prompt(1, 40), 20) });
    (0..5).for_each(|_| world.step());
    let single = world.submit(by(2, prompt(7, 40), 4));
    while !is_admitted(&single) {
        world.step();
    }
    let ended = many.events().iter().filter(|event| matches!(event, Event::Finished { .. })).count();
    assert!(ended <= 2, "{ended} choices had ended before");
    world.settle();
    assert_eq!(many.answer().unwrap().choices.len(), 16);
}

/// Rows that are promised to prompts whose clients go are never computed, and nobody waits for them.
#[test]
fn cancelled_prompts_delay_no_other_tenant() {
    for comes_before in [false, true] {
        let mut world = World::new(narrow(4), 1000);
        let _stream = world.submit(by(1, prompt(1, 20), 3000));
        let long: Vec<Client> = (0..3).map(|i| world.submit(by(1, prompt(10 + i, 2000), 4))).collect();
        (0..3).for_each(|_| world.step());
        assert_eq!(admitted(&long), 3);
        let ask = |world: &mut World| world.submit(by(2, prompt(7, 40), 4));
        let early = comes_before.then(|| ask(&mut world));
        long.iter().for_each(Client::close);
        let flood = flood(&mut world, 1, 100, 40);
        let single = early.unwrap_or_else(|| ask(&mut world));
        let others = admitted_before(&mut world, &single, &flood);
        assert!(others <= 4, "{others} were admitted first, of a tenant that came before: {comes_before}");
    }
}

#[test]
fn background_rows_do_not_count_in_the_foreground() {
    let mut world = World::new(narrow(1), 400);
    world.submit(Request { background: Some(Pace::default()), ..by(1, prompt(1, 2000), 4) });
    world.settle();
    let floods = [1, 2].map(|tenant| flood(&mut world, tenant, 50, 40));
    while admitted(&floods[0]) < 20 {
        world.step();
    }
    let others = admitted(&floods[1]);
    assert!((18..=22).contains(&others), "{others} of the other tenant beside 20");
}

/// Runs all requests; returns the order in which they were admitted.
fn order(world: &mut World, clients: &[Client]) -> Vec<usize> {
    let mut order = Vec::new();
    while !world.scheduler.is_idle() {
        world.step();
        let new = (0..clients.len()).filter(|i| is_admitted(&clients[*i]) && !order.contains(i));
        order.extend(new.collect::<Vec<_>>());
    }
    order
}

/// With one tenant the order does not depend on the tenant or its weight.
#[test]
fn the_order_of_a_single_tenant_does_not_depend_on_its_weight() {
    let run = |tenant: u32, weight: f64| {
        let mut world = World::new(narrow(2), 60);
        world.scheduler.set_tenants(&[TenantPart { weight, ..part(tenant, None) }]);
        let lengths = [40, 300, 20, 55, 200, 35, 35, 90, 310, 25];
        let clients: Vec<Client> = (0..40)
            .map(|i| {
                let mut tokens = prompt(i % 3, 32);
                tokens.extend(prompt(100 + i, lengths[i as usize % lengths.len()]));
                world.submit(Request { salt: [1; 16], ..by(tenant, tokens, 6) })
            })
            .collect();
        order(&mut world, &clients)
    };
    let expect = run(0, 1.0);
    assert_eq!(expect.len(), 40);
    assert!(expect.windows(2).any(|pair| pair[0] > pair[1]), "known prefixes go first");
    assert_eq!(run(5, 0.01), expect);
}

/// Hit rate of a tenant that repeats its prompts, while another floods with new ones.
fn hit_rate_beside_a_flood(parts: &[TenantPart], flooding: bool) -> f64 {
    let mut world = World::new(narrow(4), 120);
    world.scheduler.set_tenants(parts);
    let mut clients = Vec::new();
    for round in 0..30 {
        for own in 0..6 {
            clients.push(world.submit(by(1, prompt(own, 128), 2)));
        }
        if flooding {
            (0..20).for_each(|i| drop(world.submit(by(2, prompt(10_000 + 100 * round + i, 128), 2))));
        }
        world.settle();
    }
    let reports = clients.iter().skip(6).map(|client| client.answer().unwrap().report);
    let (cached, prompt) = reports.fold((0, 0), |(cached, prompt), report| {
        (cached + report.cached_tokens, prompt + report.prompt_tokens)
    });
    cached as f64 / prompt as f64
}

fn part(tenant: u32, owner_ram_bytes: Option<u64>) -> TenantPart {
    let tenant = TenantId(tenant);
    TenantPart { owner_ram_bytes, salt: [tenant.0 as u8; 16], ..TenantPart::own(tenant) }
}

#[test]
fn a_flood_does_not_evict_another_tenants_working_set() {
    let parts = [part(1, None), part(2, None)];
    let (quiet, flooded) = (hit_rate_beside_a_flood(&parts, false), hit_rate_beside_a_flood(&parts, true));
    assert!(quiet > 0.9 && flooded > quiet - 0.02, "{quiet} alone, {flooded} beside a flood");
    // The same without separate shares: all prompts belong to one owner.
    let one = parts.map(|part| TenantPart { owner: TenantId(9), ..part });
    let shared = hit_rate_beside_a_flood(&one, true);
    assert!(shared < 0.5, "the flood is large enough to evict: {shared}");
}

#[test]
fn a_quota_bounds_the_blocks_of_a_tenant() {
    // Blocks of 1 KiB: six prompts of 8 blocks do not fit into 20.
    let bounded = hit_rate_beside_a_flood(&[part(1, Some(20 << 10)), part(2, None)], false);
    let free = hit_rate_beside_a_flood(&[part(1, Some(60 << 10)), part(2, None)], false);
    assert!(bounded < 0.5 && free > 0.9, "{bounded} within a quota, {free} without");
}
