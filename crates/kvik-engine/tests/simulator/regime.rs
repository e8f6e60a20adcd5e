//! The configuration of a world, drawn once from its seed.

use std::time::Duration;

use kvik_cache::tier::WritePolicy;
use kvik_cache::{AuxiliaryState, CacheConfig, Policy, Reach, TenantId, Windows};
use kvik_engine::config::EngineConfig;
use kvik_engine::schedule::TenantPart;

use crate::disk::{Faults, Platter};
use crate::fake::config;
use crate::fake::twin::words;
use crate::runner::{BLOCK_BYTES, SimRunner, StepTime};
use crate::time::{Dice, Time};

/// Number of salts: one without tenants, and three tenants.
pub(crate) const SALTS: u8 = 4;

/// Blocks and slots of a world in which space never runs out.
const ROOMY: usize = 2048;

/// The configuration of a world.
#[derive(Debug, Clone)]
pub(crate) struct Regime {
    pub(crate) engine: EngineConfig,
    pub(crate) blocks: usize,
    /// No block is evicted for lack of space, in RAM or on disk.
    pub(crate) roomy: bool,
    pub(crate) disk: Option<DiskRegime>,
    pub(crate) tenants: bool,
    pub(crate) ttl: bool,
    pub(crate) pins: bool,
    pub(crate) public: bool,
    pub(crate) private: bool,
    pub(crate) panics: bool,
    pub(crate) restarts: bool,
    pub(crate) retention: bool,
    pub(crate) background: bool,
    pub(crate) grammars: bool,
    /// Conversations are deleted; not where prompts are pinned, which stay.
    pub(crate) deletes: bool,
    /// Time of a piece of a pass of a sequence that forgets: a step has room for one piece or for all.
    pub(crate) piece_time: Duration,
    pub(crate) step_time: StepTime,
    /// Requests at a time.
    pub(crate) crowd: usize,
    /// A draft model: its blocks, and whether it says something else.
    pub(crate) draft: Option<(usize, u64)>,
    /// A prediction head, and whether it says something else.
    pub(crate) head: Option<u64>,
    /// Blocks are in the memory of a device.
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "without GPUs blocks are in RAM"))]
    pub(crate) on_device: bool,
}

/// The configuration of its disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskRegime {
    pub(crate) slots: usize,
    /// Slots that fit before the disk is full.
    pub(crate) room: usize,
    pub(crate) faults: Faults,
    pub(crate) writes_max: usize,
    pub(crate) warm_blocks: usize,
    /// Blocks in the host's memory above it, as where a device computes.
    pub(crate) host_blocks: usize,
    pub(crate) writes: WritePolicy,
}

impl Regime {
    pub(crate) fn draw(dice: &mut Dice) -> Regime {
        let auxiliary = draw_beside(dice);
        // Where layers hold something beside blocks, the twin knows bounds of what is reused.
        let roomy = auxiliary.is_nothing() && dice.once_in(2);
        let space = if auxiliary.is_nothing() { 1 } else { dice.pick(&[3, 6, 20]) };
        let rows = dice.pick(&[7, 16, 33, 64, 200]);
        let tenants = dice.once_in(2);
        Regime {
            engine: EngineConfig {
                context_tokens: if roomy { 4096 } else { dice.pick(&[60, 120, 4096]) },
                parallel_max: dice.pick(&[1, 2, 4, 16]),
                waiting_max: 64,
                prefill_rows_max: rows,
                prefill_rows_mixed_max: 1 + dice.roll(rows as u64) as usize,
                draft_rows_max: dice.pick(&[0, 3, 16, 16]),
                block_bytes: BLOCK_BYTES,
                repeat: words(),
                auxiliary,
                ..config()
            },
            blocks: if roomy { ROOMY } else { space * dice.pick(&[6, 8, 12, 20, 40, 100]) },
            roomy,
            disk: (!dice.once_in(4)).then(|| DiskRegime::draw(dice, roomy)),
            tenants,
            ttl: dice.once_in(2),
            pins: dice.once_in(2),
            public: tenants && dice.once_in(2),
            private: dice.once_in(2),
            panics: dice.once_in(3),
            restarts: !dice.once_in(3),
            retention: dice.once_in(2) && auxiliary.is_nothing(),
            background: dice.once_in(2),
            piece_time: Duration::from_millis(dice.pick(&[0, 0, 11])),
            step_time: match dice.once_in(2) {
                true => StepTime { step: Duration::ZERO, row: Duration::from_micros(100) },
                false => StepTime { step: Duration::from_micros(500), row: Duration::from_micros(20) },
            },
            crowd: dice.pick(&[1, 1, 2, 5, 12]),
            draft: dice.pick(&[None, Some((200, 0)), Some((12, 0)), Some((60, 77))]),
            grammars: dice.once_in(2),
            on_device: false,
            head: dice.pick(&[None, Some(0), Some(77)]),
            deletes: dice.once_in(2),
        }
    }

    pub(crate) fn cache(&self) -> CacheConfig {
        CacheConfig { blocks: self.blocks, policy: Policy::Lru, ghosts: 4096, pinned_max: self.pinned_max() }
    }

    pub(crate) fn runner(&self, time: &Time) -> SimRunner {
        let runner = SimRunner::new(
            self.blocks,
            self.engine.batch_rows_max(),
            self.step_time,
            self.piece_time,
            time.clone(),
        )
        .with_beside(self.engine.auxiliary)
        .with_head(self.head);
        #[cfg(feature = "gpu")]
        if self.on_device {
            return runner.on_device();
        }
        runner
    }

    /// Maximum pinned blocks.
    pub(crate) fn pinned_max(&self) -> usize {
        self.blocks / 2
    }

    /// Whether every written block stays readable, also after a restart.
    pub(crate) fn has_sound_disk(&self) -> bool {
        self.roomy && self.disk.is_some_and(|disk| disk.is_sound())
    }

    /// Whether every computed block is written.
    pub(crate) fn writes_all(&self) -> bool {
        self.disk.is_some_and(|disk| disk.writes == WritePolicy::All)
    }

    /// The share of each tenant.
    pub(crate) fn parts(&self) -> Vec<TenantPart> {
        let part = |salt: u8| TenantPart {
            weight: f64::from(salt) + 0.5,
            owner_weight: f64::from(4 - salt),
            owner_ram_bytes: (!self.roomy && salt == 3).then_some((self.blocks / 2 * BLOCK_BYTES) as u64),
            salt: [salt; 16],
            public: self.public && salt != 1,
            ..TenantPart::own(TenantId(salt.into()))
        };
        (1..SALTS).map(part).collect()
    }
}

/// What layers hold beside blocks: nothing in half of the worlds, else windows, chunks, a state, or both.
fn draw_beside(dice: &mut Dice) -> AuxiliaryState {
    let positions = 1 + dice.roll(60) as u32;
    let reach = if dice.once_in(3) { Reach::Chunk(positions) } else { Reach::Last(positions) };
    let windows = Windows { reach, part_bytes: 1 + dice.roll(200) as usize, step_positions: 200 };
    let state_bytes = 8 + dice.roll(800) as usize;
    let auxiliary = AuxiliaryState { block_bytes: 128, windows: Some(windows), state_bytes };
    match dice.roll(8) {
        0..4 => AuxiliaryState::default(),
        4 | 5 => AuxiliaryState { state_bytes: 0, ..auxiliary },
        6 => AuxiliaryState { windows: None, ..auxiliary },
        _ => auxiliary,
    }
}

impl DiskRegime {
    pub(crate) fn draw(dice: &mut Dice, roomy: bool) -> DiskRegime {
        let kind = dice.roll(3);
        let faults = match kind {
            0 => Faults::default(),
            1 => Faults { stalls: dice.pick(&[500, 950]), ..Faults::default() },
            _ => Faults {
                writes: dice.pick(&[0, 50, 200]),
                reads: dice.pick(&[0, 50, 200]),
                rot: dice.pick(&[0, 10, 30]),
                stalls: dice.pick(&[0, 100]),
                lies: dice.pick(&[0, 20]),
            },
        };
        let slots = if roomy { ROOMY } else { 4 + dice.roll(120) as usize };
        let room = if kind == 2 && dice.once_in(2) { 1 + dice.roll(slots as u64) as usize } else { slots };
        let (writes_max, warm_blocks) = (dice.pick(&[1, 4, 18]), dice.pick(&[0, 10, 1000]));
        let host_blocks = dice.pick(&[0, 0, 3, 40, slots]);
        let writes = dice.pick(&[WritePolicy::All, WritePolicy::All, WritePolicy::Reused, WritePolicy::Auto]);
        DiskRegime { slots, room, faults, writes_max, warm_blocks, host_blocks, writes }
    }

    pub(crate) fn platter(&self) -> Platter {
        Platter::new(self.slots, self.room, self.faults)
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.faults.writes + self.faults.reads + self.faults.rot + self.faults.lies == 0
            && self.room == self.slots
    }
}
