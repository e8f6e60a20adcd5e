//! Attention beside that of the processor, over the same bytes, and beside itself in other batches.

use kvik_gpu::{AttentionPlan, Device, DeviceArena, DeviceAttention, DeviceRows, PartRoom, Way};
use kvik_kernels::{
    Attention, AttnScratch, KvArena, KvFormat, KvKind, KvLayer, KvLayout, Pool, SeqKv, SeqRow,
};

use crate::{assert_near, bits, device, floats, upload, zeros};

/// The stated tolerance. The processor rounds queries and weights to 16 bits where it stores 8.
fn tolerance(k: KvFormat, v: KvFormat) -> f32 {
    if [k, v].contains(&KvFormat::Q8) { 4e-4 } else { 1e-5 }
}

/// Sequences that end in the first split, at the end of one, and in the third.
const LENS: [u32; 3] = [5, 512, 613];

struct Case {
    heads: usize,
    softcap: Option<f32>,
    /// `[heads]`
    sinks: Option<Vec<f32>>,
    layout: KvLayout,
    arena: KvArena,
    tables: Vec<Vec<u32>>,
}

impl Case {
    /// All positions of the sequences are stored, in blocks out of order; what no position wrote is no number.
    fn new(layer: KvLayer, heads: usize) -> Case {
        let layout = KvLayout::new(vec![layer]);
        let blocks: Vec<u32> = LENS.iter().map(|len| len.div_ceil(16)).collect();
        let count = blocks.iter().sum::<u32>();
        let mut arena = KvArena::new(layout.clone(), count as usize).unwrap();
        (0..count).for_each(|block| arena.block_mut(block).fill(0xff));
        let mut numbers = (0..count).map(|i| i * 17 % count);
        assert!(!count.is_multiple_of(17), "each block once");
        let tables: Vec<Vec<u32>> =
            blocks.iter().map(|&count| numbers.by_ref().take(count as usize).collect()).collect();
        for (seq, len) in (0..).zip(LENS) {
            let rows: Vec<_> = (1..=len).map(|len| SeqRow { seq, len }).collect();
            let numbers = |seed, dim: usize| floats(seed, rows.len() * layer.kv_heads * dim);
            let [k, v] = [numbers(seq.into(), layer.key_dim), numbers(99, layer.value_dim)];
            arena.write(&Pool::new(1), 0, &rows, &seqs(&tables), [&k, &v]);
        }
        Case { heads, softcap: None, sinks: None, layout, arena, tables }
    }

    /// The same with a cap that many scores come near to.
    fn capped(self, cap: f32) -> Case {
        Case { softcap: Some(cap), ..self }
    }

    /// The same with sinks, some of which outweigh all positions.
    fn with_sinks(self) -> Case {
        let sinks = floats(11, self.heads).iter().map(|x| x * 12.0).collect();
        Case { sinks: Some(sinks), ..self }
    }

    fn layer(&self) -> KvLayer {
        self.layout.layers()[0]
    }

    fn scale(&self) -> f32 {
        1.0 / (self.layer().key_dim as f32).sqrt()
    }

    /// `[n, heads, key_dim]`, larger than those of models so that some positions weigh much.
    fn queries(&self, n: usize) -> Vec<f32> {
        floats(3, n * self.heads * self.layer().key_dim).iter().map(|x| x * 4.0).collect()
    }

    fn on_processor(&self, rows: &[SeqRow], q: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; rows.len() * self.heads * self.layer().value_dim];
        let (seqs, scale) = (seqs(&self.tables), self.scale());
        let (softcap, sinks) = (self.softcap, self.sinks.as_deref());
        let attention = Attention {
            arena: &self.arena,
            layer: 0,
            q,
            heads: self.heads,
            rows,
            seqs: &seqs,
            scale,
            softcap,
            sinks,
        };
        attention.run(&Pool::new(1), &mut AttnScratch::new(), &mut out);
        out
    }

    fn on_device(
        &self,
        device: &mut Device,
        arena: &DeviceArena,
        way: Way,
        rows: &[SeqRow],
        q: &[f32],
    ) -> Vec<f32> {
        let rows = DeviceRows::new(device, arena, rows, &seqs(&self.tables)).unwrap();
        let group = self.heads / self.layer().kv_heads;
        let plan = AttentionPlan::new(device, &rows, self.layer().kind, group).unwrap();
        let (q, mut out) =
            (upload(device, q), zeros(device, rows.len() * self.heads * self.layer().value_dim));
        let sinks = self.sinks.as_ref().map(|sinks| upload(device, sinks));
        let (rows, plan, scale) = (&rows, &plan, self.scale());
        let (softcap, sinks) = (self.softcap, sinks.as_ref());
        let attention = DeviceAttention { arena, layer: 0, rows, plan, q: &q, scale, softcap, sinks };
        let mut step = device.step();
        attention.run_as(way, &mut step, &mut PartRoom::default(), &mut out).unwrap();
        step.submit().unwrap();
        device.read(&out).unwrap()
    }

    fn arena_on(&self, device: &Device) -> DeviceArena {
        let mut arena = DeviceArena::new(device, self.layout.clone(), self.arena.blocks()).unwrap();
        for block in 0..self.arena.blocks() as u32 {
            arena.write_block(device, block, self.arena.block(block)).unwrap();
        }
        arena
    }
}

fn seqs(tables: &[Vec<u32>]) -> Vec<SeqKv<'_>> {
    tables.iter().map(|blocks| SeqKv { blocks, tails: &[] }).collect()
}

/// Rows of prefill at the end of the second sequence, and one of decode of each other one.
fn rows() -> Vec<SeqRow> {
    let row = |seq: u32, len| SeqRow { seq, len };
    let prefill = (500..=512).map(|len| row(1, len));
    [row(0, LENS[0])].into_iter().chain(prefill).chain([row(2, LENS[2])]).collect()
}

fn cases() -> Vec<Case> {
    use KvFormat::{F16, Q8};
    let uneven = KvLayer { value_dim: 40, ..KvLayer::full(1, 96, F16, F16) };
    vec![
        Case::new(KvLayer::full(2, 64, F16, F16), 2),
        Case::new(KvLayer::full(2, 128, F16, F16), 6),
        Case::new(KvLayer::full(2, 128, Q8, Q8), 4),
        Case::new(KvLayer::full(1, 64, Q8, F16), 8),
        Case::new(KvLayer::full(1, 256, F16, Q8), 2),
        Case::new(uneven, 3),
        Case::new(KvLayer { k: Q8, v: Q8, ..uneven }, 3),
        Case::new(KvLayer::windowed(2, 64, F16, Q8, 100), 4),
        Case::new(KvLayer { kind: KvKind::Chunk { positions: 150 }, ..KvLayer::full(2, 64, F16, F16) }, 4),
        Case::new(KvLayer::full(2, 64, F16, F16), 4).capped(3.0),
        Case::new(KvLayer::full(2, 64, Q8, F16), 6).with_sinks(),
        Case::new(KvLayer::windowed(1, 64, F16, F16, 300), 3).capped(5.0).with_sinks(),
    ]
}

#[test]
fn attention_is_that_of_the_processor() {
    let Some(mut device) = device() else { return };
    for case in cases().into_iter().step_by(kvik_testing::effort(2, 1)) {
        let arena = case.arena_on(&device);
        let (rows, q) = (rows(), case.queries(rows().len()));
        let expect = case.on_processor(&rows, &q);
        for way in [Way::Whole, Way::Parts] {
            let out = case.on_device(&mut device, &arena, way, &rows, &q);
            let what = format!("{:?} {:?} {:?} {way:?}", case.layer(), case.softcap, case.sinks);
            assert_near(&what, &out, &expect, tolerance(case.layer().k, case.layer().v));
        }
    }
}

#[test]
fn attention_is_the_same_to_the_bit_in_any_batch_and_way() {
    let Some(mut device) = device() else { return };
    for case in cases().into_iter().step_by(kvik_testing::effort(2, 1)) {
        let arena = case.arena_on(&device);
        let (rows, q) = (rows(), case.queries(rows().len()));
        let whole = bits(&case.on_device(&mut device, &arena, Way::Whole, &rows, &q));
        let query = case.heads * case.layer().key_dim;
        for n in [rows.len(), 1, 3, 7] {
            let mut parts = Vec::new();
            for (rows, q) in rows.chunks(n).zip(q.chunks(n * query)) {
                parts.extend(case.on_device(&mut device, &arena, Way::Parts, rows, q));
            }
            assert_eq!(bits(&parts), whole, "{:?} by {n}", case.layer());
        }
    }
}

#[test]
fn few_units_are_spread_and_many_are_not() {
    let Some(device) = device() else { return };
    let case = &cases()[0];
    let arena = case.arena_on(&device);
    let plan = |rows: &[SeqRow]| {
        let rows = DeviceRows::new(&device, &arena, rows, &seqs(&case.tables)).unwrap();
        AttentionPlan::new(&device, &rows, KvKind::Full, 1).unwrap()
    };
    assert_eq!(plan(&rows()).way(2), Way::Parts);
    let many: Vec<_> = (1..=512).map(|len| SeqRow { seq: 1, len }).collect();
    assert_eq!(plan(&many).way(2), Way::Whole);
}
