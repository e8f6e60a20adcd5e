//! Where parts meet below HTTP: each test is named by a row of `docs/where-parts-meet.md`.

use std::sync::Arc;

use kvik_text::constraint::{Compiler, Guide};

use crate::fake::memory_disk::MemoryDisk;
use crate::fake::*;
use kvik_cache::{TenantId, Token};
use kvik_engine::api::{Constraint, PinnedPrompt, Request, Sampling};
use kvik_engine::config::EngineConfig;
use kvik_engine::schedule::{DraftSetup, Submission, TenantPart};
use kvik_engine::stats::DraftSource;

fn part(tenant: u32) -> TenantPart {
    let tenant = TenantId(tenant);
    TenantPart { salt: [tenant.0 as u8; 16], ..TenantPart::own(tenant) }
}

fn kept(uses: &[(u32, f32)], tokens: &[Token]) -> PinnedPrompt {
    PinnedPrompt {
        tokens: tokens.to_vec(),
        adapters: adapters(uses),
        salt: [1; 16],
        tenant: TenantId(1),
        retention: None,
    }
}

/// The model alone, and two mixes.
const MIXES: [&[(u32, f32)]; 3] = [&[], &[(0, 1.0)], &[(0, 0.5), (1, 1.0)]];

/// What a tenant asks with adapters.
fn asked_by(tenant: u8, uses: &[(u32, f32)], tokens: Vec<Token>) -> Request {
    let tenant_id = TenantId(tenant.into());
    Request { adapters: adapters(uses), tenant: tenant_id, salt: [tenant; 16], ..request(tokens, 2) }
}

/// After a start nobody has named the adapters yet with which something on disk was computed.
#[test]
fn a_prompt_is_dropped_from_disk_with_adapters_that_nobody_has_named_since_the_start() {
    let tokens = prompt(3, 64);
    let longer = [&tokens[..], &prompt(4, 40)].concat();
    for releases in [true, false] {
        let disk = MemoryDisk::default();
        let life = || {
            let mut world = disk.life(config(), 200, 0);
            world.scheduler.set_tenants(&[part(1), part(2)]);
            world
        };
        let count = |of: &dyn Fn(u64) -> bool| {
            disk.state().blocks.values().filter(|(record, _)| of(record.owner)).count()
        };
        let mut world = life();
        for uses in MIXES {
            world.submit(kept(uses, &tokens).request());
            // A prompt is released as far as nothing continues it, and evicted with what does.
            if !releases {
                world.submit(asked_by(1, uses, longer.clone()));
            }
        }
        world.run_until_idle();
        let owner = disk.state().blocks.values().map(|(record, _)| record.owner).next().unwrap();
        MIXES.iter().for_each(|uses| drop(world.submit(asked_by(2, uses, longer.clone()))));
        world.run_until_idle();
        let (own, others) = (count(&|of| of == owner), count(&|of| of != owner));
        assert!(own >= 3 * 4 && others >= 3 * 6, "{own} and {others} blocks are on disk");
        let mut world = life();
        match releases {
            true => drop(world.scheduler.release(&tokens, [1; 16])),
            false => drop(world.scheduler.evict(&tokens, [1; 16])),
        }
        (0..5).for_each(|_| world.step());
        assert!(disk.state().blocks.values().all(|(record, _)| !record.pinned), "no pin is left");
        assert_eq!(count(&|of| of == owner), 0, "of {own} blocks");
        assert_eq!(count(&|of| of != owner), others, "another tenant's");
        for uses in MIXES {
            let client = world.submit(asked_by(1, uses, longer.clone()));
            world.run_until_idle();
            assert_eq!(client.answer().unwrap().report.cached_tokens, 0, "{uses:?}");
        }
    }
}

/// What a tenant keeps no longer is gone from the draft model's cache too.
#[test]
fn a_prompt_that_is_kept_no_longer_is_gone_from_the_draft_models_cache() {
    let mut world = World::new(config(), 200);
    let runner = Box::new(FakeRunner::new(100, 64));
    world.scheduler.attach_draft(DraftSetup { runner, cache: cache_config(100), vocab_len: VOCAB }).unwrap();
    let tokens = prompt(1, 64);
    let asked = Request { ignore_eos: true, ..request(tokens.clone(), 60) };
    world.submit(asked);
    world.settle();
    let held = |world: &World| world.scheduler.prefixes.draft_cache().unwrap().stats().shared;
    assert!(held(&world) >= 4, "it reads the prompt");
    world.scheduler.release(&tokens, [0; 16]);
    assert!(held(&world) < 4, "{} blocks are left", held(&world));
}

/// Says letters, then a word that is long and the only way to go on, and then letters again.
fn guide() -> Guide {
    let constraint = Constraint::Regex("[a-z]{0,9}abcdefghijklmnopqrstuvwxyz[a-z]{3}".to_owned());
    Compiler::new(Arc::new(vocabulary()), VOCAB).compile(&constraint).unwrap()
}

fn submit_guided(world: &mut World, request: &Request) -> Client {
    let client = Client::default();
    let submission =
        Submission { request: request.clone(), guide: Some(guide()), sink: Box::new(client.clone()) };
    world.scheduler.submit(submission, &world.limits);
    client
}

/// The second time the tree knows the whole answer, so that drafts of the tree and of the grammar are in every step.
/// Whoever leaves at whatever step leaves nothing behind but what the next one says all the same.
#[test]
fn who_leaves_in_the_middle_of_a_tree_draft_under_a_grammar_leaves_the_answer_as_it_is() {
    let mut world = World::new(config(), 200);
    let asked = Request { choices: 2, ..request(prompt(1, 40), 60) };
    let first = submit_guided(&mut world, &asked);
    let plain = world.settle();
    let answer = first.answer().unwrap().choices;
    let accepted =
        |world: &World, source: DraftSource| world.scheduler.counters().accepted_tokens[source as usize];
    let mut cancelled = 0;
    for steps in 0..plain {
        let (leaves, stays) = (submit_guided(&mut world, &asked), submit_guided(&mut world, &asked));
        (0..steps).for_each(|_| world.step());
        cancelled += usize::from(!leaves.has_ended());
        leaves.close();
        world.settle();
        assert_eq!(stays.answer().unwrap().choices, answer, "beside one that left at step {steps}");
    }
    assert!(cancelled >= 4, "{cancelled} of {plain} left in the middle");
    let drawn = [DraftSource::Tree, DraftSource::Grammar].map(|source| accepted(&world, source));
    assert!(drawn.iter().all(|&drawn| drawn > 10), "{drawn:?} drafted tokens were drawn");
    let again = submit_guided(&mut world, &asked);
    assert!(world.settle() * 2 < plain, "it is drafted");
    assert_eq!(again.answer().unwrap().choices, answer);
}

/// The tree of one mix drafts for no other, however alike their prompts are.
#[test]
fn nothing_is_drafted_from_what_was_answered_with_other_adapters() {
    let mut world = World::new(config(), 300);
    let ask = |world: &mut World, uses: &[(u32, f32)]| {
        let asked = Request { ignore_eos: true, adapters: adapters(uses), ..request(prompt(1, 40), 100) };
        let tree = |world: &World| world.scheduler.counters().accepted_tokens[DraftSource::Tree as usize];
        let before = tree(world);
        let client = world.submit(asked.clone());
        world.settle();
        assert_eq!(client.answer().unwrap().choices, solo(&asked).choices);
        tree(world) - before
    };
    let mixes = [&[][..], &[(0, 1.0)], &[(0, 0.5)], &[(1, 1.0)]];
    for uses in mixes {
        assert_eq!(ask(&mut world, uses), 0, "{uses:?} find nothing of others");
        let again = ask(&mut world, uses);
        assert!(again > 60, "{uses:?} find their own: {again}");
    }
}

/// What is kept of a prefix is made of the blocks in which others were drafted for, and drafts that were not drawn stood.
#[test]
fn what_is_kept_of_a_prefix_knows_nothing_of_drafts_that_were_not_drawn() {
    let config = EngineConfig { repeat: twin::words(), ..config() };
    let context = config.context_tokens;
    let mut world = World::new(config, 600);
    let beginning = prompt(1, 40);
    let mut clients = Vec::new();
    for seed in 0..12 {
        let sampling = Sampling { temperature: 1.0, seed: seed % 6, ..Sampling::GREEDY };
        let asked = Request { sampling, ignore_eos: true, ..request(beginning.clone(), 70) };
        clients.push(world.submit(asked));
        (0..9).for_each(|_| world.step());
    }
    world.settle();
    let counters = world.scheduler.counters();
    let [drafted, drawn]: [u64; 2] =
        [counters.drafted_tokens, counters.accepted_tokens].map(|tokens| tokens.iter().sum());
    assert!(drawn > 20 && drafted > drawn + 20, "{drawn} of {drafted} drafted tokens were drawn");
    for (client, policy) in
        clients.iter().zip(["keydiff:0.5", "h2o:0.4", "knorm:24", "kvzip:0.5,budget=head"].iter().cycle())
    {
        let answer = client.answer().unwrap().choices[0].1.clone();
        let tokens = [&beginning[..], &answer, &prompt(2, 5)].concat();
        let asked = Request {
            retention: Some(policy.parse().unwrap()),
            kept_prefix: Some(96),
            ignore_eos: true,
            ..request(tokens, 12)
        };
        for _ in 0..2 {
            let reads = world.submit(asked.clone());
            world.settle();
            let said = reads.answer().unwrap();
            assert_eq!(said.choices[0].1, twin_answer(&asked, context), "{policy}");
        }
    }
}
