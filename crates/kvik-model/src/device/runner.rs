//! A model on a device with its blocks and buffers: runs the scheduler's batches.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvik_cache::{AuxiliaryState, BlockId, Token};
use kvik_gpu::{Buffer, Device, DeviceArena, DeviceError, Part, PartRoom, replace_elements};
use kvik_kernels::{KvLayout, Pool};

use super::DeviceModel;
use super::copies::Copies;
use super::forward::{Pass, Room};
use super::front::Front;
use super::rows::{BatchRows, Wanted};
use super::scratch::{Buffers, Scratch};
use super::warm::{WarmBatch, compare};
use crate::batch::{Batch, Computed, Runner, RunnerFault, StepSize};
use crate::device_work::{DeviceWork, KernelTime};
use crate::observation::Watched;
use crate::pulse::Pulse;
use crate::rope::Rotation;
use crate::{ModelConfig, ModelError};

/// Runs batches of a model on a device, with KV blocks in its memory.
pub struct DeviceRunner {
    model: DeviceModel,
    pool: Arc<Pool>,
    room: BlockRoom,
    /// The first layers, if the processor computes them, with their part of the blocks.
    front: Option<Front>,
    /// `None` while the device is lost.
    stored: Option<Stored>,
    scratch: Scratch,
    batch_outputs: BatchOutputs,
    /// Keys and values between two steps, if they are not on the device.
    copies: Option<Copies>,
    /// Time spent uploading and recording batches, and waiting for their results.
    preparing: Duration,
    waiting: Duration,
    /// The current fault. A failing read of a block changes only this.
    fault: RefCell<Option<DeviceError>>,
    pulse: Arc<Pulse>,
}

/// Memory requirements on the device.
#[derive(Debug, Clone)]
struct BlockRoom {
    /// The layout of all layers, including those that the device does not compute.
    layout: KvLayout,
    blocks: usize,
    /// Number of positions with precomputed angles.
    context: usize,
    /// The largest step.
    step: StepSize,
}

/// Device memory in addition to weights and scratch.
struct Stored {
    arena: DeviceArena,
    /// Cosine and sine of every position, in the order of `ModelConfig::ropes`.
    angles: Vec<Buffer<[f32; 2]>>,
    /// Results of attention splits.
    parts: PartRoom,
}

/// The results of the last batch.
#[derive(Default)]
struct BatchOutputs {
    /// Logits, then hidden states.
    outputs: Vec<f32>,
    likeliest: Vec<Token>,
}

impl BatchOutputs {
    /// The parts of buffers that hold the results of a batch.
    fn parts<'b>(
        config: &ModelConfig,
        (buffers, logits): (&'b Buffers, &'b Buffer<f32>),
        wanted: &Wanted,
    ) -> [Part<'b>; 3] {
        let unembedded = wanted.unembedded();
        let hidden = unembedded * config.d_model..wanted.rows.len() * config.d_model;
        [
            logits.part(0..wanted.logits * config.vocab),
            buffers.h.part(hidden),
            buffers.likeliest.part(wanted.logits..unembedded),
        ]
    }

    /// Takes the bytes of these parts: numbers, and behind them the most likely tokens of some rows.
    fn take(&mut self, bytes: &[u8], likeliest: usize) {
        let (outputs, tokens) = bytes.split_at(bytes.len() - likeliest * size_of::<Token>());
        replace_elements(&mut self.outputs, outputs);
        replace_elements(&mut self.likeliest, tokens);
    }
}

impl DeviceRunner {
    /// Allocates `blocks` KV blocks on the device of a model, the angles of `context` positions, and what a step of up to
    /// `step` needs; the processor's part runs on `pool`. Runs some batches, so that a kernel that the driver does not
    /// compile, or that computes other bits than another one, is detected before the first request.
    ///
    /// # Errors
    /// If kernels lack a format of the layout, the device has no memory for the blocks or the step, it refuses a kernel,
    /// or a row's results depend on its batch.
    pub fn new(
        model: DeviceModel,
        pool: impl Into<Arc<Pool>>,
        layout: KvLayout,
        blocks: usize,
        context: usize,
        step: StepSize,
    ) -> Result<DeviceRunner, DeviceError> {
        let (room, pool) = (BlockRoom { layout, blocks, context, step }, pool.into());
        let front = model.front.clone();
        let front = front.map(|front| Front::new(front, pool.clone(), &room.layout, blocks, context));
        let mut runner = DeviceRunner {
            stored: Some(Stored::new(&model, &room)?),
            front: front.transpose()?,
            model,
            pool,
            room,
            scratch: Scratch::default(),
            batch_outputs: BatchOutputs::default(),
            copies: None,
            preparing: Duration::ZERO,
            waiting: Duration::ZERO,
            fault: RefCell::default(),
            pulse: Arc::default(),
        };
        runner.reserve()?;
        runner.warm()?;
        Ok(runner)
    }

    /// Makes the buffers of the largest step, so that none fails for lack of memory.
    fn reserve(&mut self) -> Result<(), DeviceError> {
        let DeviceModel { device, config, .. } = &self.model;
        self.scratch.reserve(device, config, self.room.step)
    }

    /// The auxiliary state of sequences with blocks of a layout: none. Windowed layers store all positions of a block,
    /// as the other layers do.
    pub fn auxiliary(layout: &KvLayout) -> AuxiliaryState {
        AuxiliaryState { block_bytes: layout.block_bytes(), windows: None, state_bytes: 0 }
    }

    /// As `self`, with keys and values that do not stay on the device: each step copies in the blocks it reads and
    /// copies out those it writes. The results are equal; for comparison.
    pub fn with_copies(self) -> DeviceRunner {
        DeviceRunner { copies: Some(Copies::default()), ..self }
    }

    /// The model.
    pub fn model(&self) -> &DeviceModel {
        &self.model
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Device {
        &self.model.device
    }

    /// The layout of a block.
    pub fn layout(&self) -> &KvLayout {
        &self.room.layout
    }

    /// Computes a batch of each size for which kernels differ, and compares a row of them.
    fn warm(&mut self) -> Result<(), DeviceError> {
        let (name, batches) = (self.model.info().name.clone(), WarmBatch::all(&self.model.config));
        compare(&name, batches, |batch| {
            let (rows, sequences) = (batch.rows(), batch.sequences());
            self.run(&Batch { rows: &rows, sequences: &sequences })?;
            Ok(self.batch_outputs.outputs.iter().map(|logit| logit.to_bits()).collect())
        })
    }

    /// Computes a batch, and reads back the results.
    fn run(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        let DeviceRunner { model, stored, front, scratch, batch_outputs, copies, preparing, waiting, .. } =
            self;
        let lost = || DeviceError::Lost { reason: "it was lost before".to_owned() };
        let Stored { arena, angles, parts } = stored.as_mut().ok_or_else(lost)?;
        let (weights, config, device) =
            (model.weights.as_ref().ok_or_else(lost)?, &model.config, &mut model.device);
        let wanted = Wanted::of(batch);
        let unembedded = wanted.unembedded();
        let (buffers, logits) = scratch.grown(device, config, [batch.rows.len(), unembedded])?;
        if let Some(front) = front {
            device.write(&mut buffers.x, 0, front.stream(batch))?;
        }
        if let Some(copies) = copies {
            copies.bring(device, arena, batch)?;
        }
        let started = Instant::now();
        let (readings, temperature) = (weights.readings(), config.extras.temperature.as_ref());
        let rows = BatchRows::upload(device, arena, (&readings, temperature), (batch, wanted), buffers)?;
        let mut step = device.step();
        let pass = Pass { config, weights, angles, rows: &rows };
        pass.record(&mut step, &mut Room { arena, parts, buffers, logits })?;
        let reading = step.submit_reading(&BatchOutputs::parts(config, (buffers, logits), &rows.wanted))?;
        *preparing += started.elapsed();
        let (submitted, likeliest) = (Instant::now(), rows.wanted.likeliest);
        device.finish_reading(reading, |bytes| batch_outputs.take(bytes, likeliest))?;
        *waiting += submitted.elapsed();
        rows.release(device);
        if let Some(copies) = copies {
            copies.fetch(device, arena, batch)?;
        }
        Ok(())
    }

    /// Records the first fault: later ones follow from it.
    fn note(&self, done: Result<(), DeviceError>) {
        if let Err(error) = done {
            self.fault.borrow_mut().get_or_insert(error);
        }
    }

    /// Reopens a lost device, with the weights and with empty blocks.
    fn reopen(&mut self) -> Result<(), ModelError> {
        (self.stored, self.scratch) = (None, Scratch::default());
        self.copies = self.copies.take().map(|_| Copies::default());
        self.model.reopen(&self.pool)?;
        self.stored = Some(Stored::new(&self.model, &self.room)?);
        Ok(self.reserve()?)
    }
}

impl Stored {
    fn new(model: &DeviceModel, room: &BlockRoom) -> Result<Stored, DeviceError> {
        let device = &model.device;
        let angles = |(index, rotation): (usize, &Rotation)| {
            // Those of one position stand for a rotation that no layer has: a buffer is not empty.
            let positions = if model.config.has_rotation(index) { room.context } else { 1 };
            let table = rotation.table(positions);
            let angles =
                (0..positions as u32).flat_map(|position| table.mean_rotation(position..position + 1));
            device.upload("the angles of positions", &angles.collect::<Vec<_>>())
        };
        let layout = model.layout_on_device(&room.layout);
        Ok(Stored {
            parts: PartRoom::reserve(device, &layout, room.context)?,
            arena: DeviceArena::new(device, layout, room.blocks)?,
            angles: model
                .weights
                .iter()
                .flat_map(|weights| &weights.rotations)
                .enumerate()
                .map(angles)
                .collect::<Result<_, _>>()?,
        })
    }
}

/// Whether the contents of the device's memory are invalid after this error.
fn loses_blocks(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Lost { .. } | DeviceError::Refused { .. })
}

impl Runner for DeviceRunner {
    fn vocab_len(&self) -> usize {
        self.model.config.vocab
    }

    fn threads(&self) -> Option<Arc<Pool>> {
        Some(self.pool.clone())
    }

    fn set_pulse(&mut self, pulse: Arc<Pulse>) {
        if let Some(front) = &mut self.front {
            front.set_pulse(pulse.clone());
        }
        self.pulse = pulse;
    }

    fn copy_partial(&mut self, from: BlockId, to: BlockId, positions: usize) {
        if let Some(front) = &mut self.front {
            front.copy_partial(from, to, positions);
        }
        // The whole block is copied: positions after the copied ones are stored again before they are read.
        let Some(stored) = &mut self.stored else { return };
        let mut step = self.model.device.step();
        step.copy_block(&mut stored.arena, from.0, to.0);
        let copied = step.submit();
        if let Some(copies) = &mut self.copies {
            copies.copy(from.0, to.0);
        }
        self.note(copied);
    }

    fn read_block(&self, block: BlockId, bytes: &mut [u8]) {
        let Some(stored) = &self.stored else { return };
        let read = |bytes: &mut [u8]| stored.arena.read_block(&self.model.device, block.0, bytes);
        self.note(match &self.front {
            Some(front) => front.read(block, bytes, read),
            None => read(bytes),
        });
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) {
        let Some(stored) = &mut self.stored else { return };
        let bytes = match &mut self.front {
            Some(front) => Cow::Owned(front.write(block, bytes)),
            None => Cow::Borrowed(bytes),
        };
        let written = stored.arena.write_block(&self.model.device, block.0, &bytes);
        if let Some(copies) = &mut self.copies {
            copies.replace(block.0, &bytes);
        }
        self.note(written);
    }

    fn release_block(&mut self, block: BlockId, all: bool) {
        // Blocks are stored whole: no part is released before the rest.
        if let Some(front) = self.front.as_mut().filter(|_| all) {
            front.release(block);
        }
    }

    fn bytes_moved(&self) -> u64 {
        self.copies.as_ref().map_or(0, |copies| copies.bytes_moved)
    }

    fn preparing(&self) -> Duration {
        self.preparing
    }

    fn work(&self) -> DeviceWork {
        let work = self.model.device.work();
        DeviceWork {
            preparing: self.preparing,
            waiting: self.waiting,
            submissions: work.submissions,
            dispatches: work.dispatches,
            groups: work.groups,
            uploads: work.uploads,
            allocations: work.allocations,
            weight_bytes: [work.weight_bytes, work.weight_bytes_least],
            kv_bytes: [work.kv_bytes, work.kv_bytes_least],
        }
    }

    fn time_kernels(&mut self, on: bool) -> bool {
        self.model.device.time_kernels(on).is_ok()
    }

    fn kernel_times(&self) -> Vec<KernelTime> {
        let times = self.model.device.kernel_times().into_iter();
        times
            .map(|kvik_gpu::KernelTime { kernel, runs, groups, ns }| KernelTime { kernel, runs, groups, ns })
            .collect()
    }

    /// # Panics
    /// If [`Runner::compute`] fails.
    fn forward(&mut self, batch: &Batch<'_>, watched: &mut [Watched<'_>]) -> &[f32] {
        self.compute(batch, watched)
            .map(|computed| computed.outputs)
            .unwrap_or_else(|fault| panic!("{}", fault.message))
    }

    fn chooses(&self) -> bool {
        true
    }

    fn compute(
        &mut self,
        batch: &Batch<'_>,
        watched: &mut [Watched<'_>],
    ) -> Result<Computed<'_>, RunnerFault> {
        assert!(watched.is_empty(), "sequences on a device do not forget");
        self.pulse.beat();
        if self.fault.get_mut().is_none() {
            let run = self.run(batch);
            self.note(run);
        }
        self.pulse.beat();
        match self.fault() {
            None => Ok(Computed {
                outputs: &self.batch_outputs.outputs,
                likeliest: &self.batch_outputs.likeliest,
            }),
            Some(fault) => Err(fault),
        }
    }

    fn fault(&self) -> Option<RunnerFault> {
        let fault = self.fault.borrow();
        fault
            .as_ref()
            .map(|error| RunnerFault { message: error.to_string(), blocks_lost: loses_blocks(error) })
    }

    fn restore(&mut self) {
        let fault = self.fault.get_mut().take();
        if !fault.as_ref().is_some_and(loses_blocks) {
            return;
        }
        match self.reopen() {
            Ok(()) => tracing::warn!("{} was opened again", self.model.info().name),
            Err(error) => {
                let reason = format!("it cannot be opened again: {error}");
                *self.fault.get_mut() = Some(DeviceError::Lost { reason });
            }
        }
    }
}
