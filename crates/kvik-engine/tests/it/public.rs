//! Public prompts: computed once for all tenants that may share them; nothing else is shared.

use crate::fake::memory_disk::MemoryDisk;
use crate::fake::*;
use kvik_cache::{TenantId, Token};
use kvik_engine::api::PinnedPrompt;
use kvik_engine::api::Request;
use kvik_engine::config::EngineConfig;
use kvik_engine::schedule::TenantPart;

fn part(tenant: u32, public: bool) -> TenantPart {
    let tenant = TenantId(tenant);
    TenantPart { salt: [tenant.0 as u8; 16], public, ..TenantPart::own(tenant) }
}

fn ask(world: &mut World, tenant: u32, tokens: &[Token]) -> usize {
    let request =
        Request { salt: [tenant as u8; 16], tenant: TenantId(tenant), ..request(tokens.to_vec(), 3) };
    let client = world.submit(request.clone());
    world.run_until_idle();
    let answer = client.answer().unwrap();
    assert_eq!(answer.choices, solo(&request).choices);
    answer.report.cached_tokens
}

/// Tenant 1 keeps a prompt that all may read.
fn publish(world: &mut World, prompt: &[Token]) {
    let kept = PinnedPrompt {
        tokens: prompt.to_vec(),
        adapters: None,
        salt: [1; 16],
        tenant: TenantId(1),
        retention: None,
    };
    world.submit(kept.request());
    world.run_until_idle();
    world.scheduler.set_public(&[kept]);
}

#[test]
fn a_public_prompt_is_shared_and_its_continuations_are_not() {
    let mut world = World::new(config(), 200);
    let system = prompt(1, 100);
    world.scheduler.set_tenants(&[part(1, true), part(2, true), part(3, true), part(4, false)]);
    publish(&mut world, &system);

    let secret = [system.clone(), prompt(2, 60)].concat();
    assert_eq!(ask(&mut world, 2, &secret), 96, "the whole blocks of the public prompt");
    assert_eq!(ask(&mut world, 3, &secret), 96, "and no block of another tenant's continuation");
    assert_eq!(ask(&mut world, 2, &secret), 159, "it reuses its own continuation");
    assert_eq!(ask(&mut world, 4, &secret), 0, "a tenant that opted out shares nothing");
    assert_eq!(ask(&mut world, 1, &secret), 100, "its owner reuses it to the exact token");

    world.scheduler.set_public(&[]);
    assert_eq!(ask(&mut world, 2, &secret), 0, "no longer public");
    world.scheduler.cache().check().unwrap();
}

/// A public prompt may be withdrawn while requests use it or wait for it: it is released when they have ended.
#[test]
fn a_prompt_withdrawn_while_it_is_used_is_released_afterwards() {
    let parallel_max = 1;
    let mut world = World::new(EngineConfig { parallel_max, ..config() }, 200);
    let system = prompt(1, 96);
    world.scheduler.set_tenants(&[part(1, true), part(2, true), part(3, true)]);
    publish(&mut world, &system);
    let clients: Vec<Client> = [2, 3]
        .map(|tenant: u32| {
            let request = request([&system[..], &prompt(2, 20)].concat(), 20);
            let (salt, tenant) = ([tenant as u8; 16], TenantId(tenant));
            world.submit(Request { salt, tenant, ignore_eos: true, ..request })
        })
        .to_vec();
    (0..3).for_each(|_| world.step());
    assert_eq!((world.scheduler.running(), world.scheduler.queued()), (1, 1));
    world.scheduler.set_public(&[]);
    world.scheduler.release(&system, [1; 16]);
    world.run_until_idle();
    world.check_idle();
    for client in clients {
        assert_eq!(client.answer().unwrap().report.cached_tokens, 96);
    }
    world.scheduler.prefixes.clear(None);
    assert_eq!(world.scheduler.cache().stats().shared, 0, "nothing holds it");
}

/// Copies to a slow disk may be all that still uses a prompt which is public no longer: who needs the room gets it.
#[test]
fn a_prompt_withdrawn_while_it_is_copied_makes_room_at_once() {
    let disk = MemoryDisk::default();
    let mut world = disk.life_with(config(), 6, 0, 1);
    let system = prompt(1, 32);
    world.scheduler.set_tenants(&[part(1, true), part(2, true), part(3, true)]);
    publish(&mut world, &system);
    disk.state().writes_stop = true;
    assert_eq!(ask(&mut world, 2, &[&system[..], &prompt(2, 40)].concat()), 32);
    world.scheduler.set_public(&[]);
    world.scheduler.release(&system, [1; 16]);
    assert!(world.scheduler.cache().stats().evictable < 4, "the copies hold it");
    assert_eq!(ask(&mut world, 3, &prompt(3, 90)), 0, "all six blocks");
    world.scheduler.cache().check().unwrap();
}
