//! The rows of a batch in the form that the device reads.

use kvik_gpu::{AttentionPlan, Device, DeviceArena, DeviceError, DeviceRows};
use kvik_kernels::{KvKind, SeqKv, SeqRow};

use super::scratch::Buffers;
use crate::Temperature;
use crate::arch::LayerShape;
use crate::batch::{Batch, Output};

/// The properties of a layer on which the attention plan depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    /// The positions that a row attends to.
    kind: KvKind,
    /// Query heads that share a KV head.
    group: usize,
}

impl From<&LayerShape> for Reading {
    fn from(shape: &LayerShape) -> Reading {
        Reading { kind: shape.kind, group: shape.heads / shape.kv_heads }
    }
}

/// The storage of the rows' keys and values, and what they attend to.
pub(super) struct Stored {
    pub(super) rows: DeviceRows,
    plans: Vec<(Reading, AttentionPlan)>,
}

impl Stored {
    /// The storage of `rows` in `seqs`, with plans for these readings.
    pub(super) fn new(
        device: &Device,
        arena: &DeviceArena,
        readings: &[Reading],
        rows: &[SeqRow],
        seqs: &[SeqKv<'_>],
    ) -> Result<Stored, DeviceError> {
        let rows = DeviceRows::new(device, arena, rows, seqs)?;
        let plan = |&reading: &Reading| {
            let Reading { kind, group } = reading;
            Ok((reading, AttentionPlan::new(device, &rows, kind, group)?))
        };
        let plans = readings.iter().map(plan).collect::<Result<_, DeviceError>>()?;
        Ok(Stored { rows, plans })
    }

    /// Leaves the buffers of a submitted step to later ones.
    fn release(self, device: &Device) {
        self.rows.release(device);
        self.plans.into_iter().for_each(|(_, plan)| plan.release(device));
    }

    pub(super) fn plan(&self, reading: Reading) -> &AttentionPlan {
        let (_, plan) = self.plans.iter().find(|(of, _)| *of == reading).expect("a plan for every layer");
        plan
    }
}

/// The rows of a batch whose output is needed, in the order in which results are read back.
pub(super) struct Wanted {
    /// Indices of rows in the batch.
    pub(super) rows: Vec<u32>,
    /// Number of first rows that need logits.
    pub(super) logits: usize,
    /// Number of rows after these that need the most likely token; the others need hidden states.
    pub(super) likeliest: usize,
}

impl Wanted {
    pub(super) fn of(batch: &Batch<'_>) -> Wanted {
        let of = |wanted: Output| {
            let rows = (0..).zip(batch.rows).filter(move |(_, row)| row.output == wanted);
            rows.map(|(index, _)| index).collect::<Vec<u32>>()
        };
        let [logits, likeliest, hidden] = [Output::Logits, Output::Likeliest, Output::Hidden].map(of);
        Wanted {
            logits: logits.len(),
            likeliest: likeliest.len(),
            rows: [logits, likeliest, hidden].concat(),
        }
    }

    /// Number of rows that are multiplied by the output matrix.
    pub(super) fn unembedded(&self) -> usize {
        self.logits + self.likeliest
    }
}

/// A batch on the device.
pub(super) struct BatchRows {
    pub(super) n: usize,
    /// All rows.
    pub(super) all: Stored,
    pub(super) wanted: Wanted,
    /// The rows needed, for the last layer; `None` if these are all rows, in order, or none.
    pub(super) last: Option<Stored>,
}

impl BatchRows {
    /// Uploads a batch; the last of `readings` is that of the last layer.
    pub(super) fn upload(
        device: &Device,
        arena: &DeviceArena,
        (readings, temperature): (&[Reading], Option<&Temperature>),
        (batch, wanted): (&Batch<'_>, Wanted),
        buffers: &mut Buffers,
    ) -> Result<BatchRows, DeviceError> {
        let tokens: Vec<u32> = batch.rows.iter().map(|row| row.token).collect();
        let positions: Vec<u32> = batch.rows.iter().map(|row| row.position).collect();
        device.write(&mut buffers.tokens, 0, &tokens)?;
        device.write(&mut buffers.positions, 0, &positions)?;
        let is_part = !wanted.rows.is_empty() && !wanted.rows.iter().copied().eq(0..batch.rows.len() as u32);
        if is_part {
            device.write(&mut buffers.wanted, 0, &wanted.rows)?;
        }
        if let Some(temperature) = temperature {
            let factors: Vec<f32> = positions.iter().map(|&position| temperature.factor(position)).collect();
            device.write(&mut buffers.warmth, 0, &factors)?;
        }
        if batch.sequences.iter().any(|sequence| !sequence.tails.is_empty()) {
            return Err(DeviceError::Unsupported { what: "sequences that have forgotten".to_owned() });
        }
        let blocks: Vec<Vec<u32>> = batch
            .sequences
            .iter()
            .map(|sequence| sequence.blocks.iter().map(|block| block.0).collect())
            .collect();
        let seqs: Vec<SeqKv<'_>> = blocks.iter().map(|blocks| SeqKv { blocks, tails: &[] }).collect();
        let stored = |index: usize| {
            let row = &batch.rows[index];
            SeqRow { seq: row.sequence, len: row.cache_position + 1 }
        };
        let all: Vec<SeqRow> = (0..batch.rows.len()).map(stored).collect();
        let of_last = &readings[readings.len() - 1..];
        let last = is_part.then(|| {
            let last: Vec<SeqRow> = wanted.rows.iter().map(|&row| stored(row as usize)).collect();
            Stored::new(device, arena, of_last, &last, &seqs)
        });
        let all = Stored::new(device, arena, readings, &all, &seqs)?;
        Ok(BatchRows { n: batch.rows.len(), all, last: last.transpose()?, wanted })
    }

    /// Leaves the buffers of the submitted batch to later ones.
    pub(super) fn release(self, device: &Device) {
        [Some(self.all), self.last].into_iter().flatten().for_each(|stored| stored.release(device));
    }
}
