//! What rows store in blocks beside what the processor stores there.

use kvik_gpu::{Device, DeviceArena, DeviceError, DeviceRows};
use kvik_kernels::{HeadTail, KvArena, KvFormat, KvLayer, KvLayout, Pool, SeqKv, SeqRow};

use crate::{device, floats, upload};

const FORMATS: [KvFormat; 2] = [KvFormat::F16, KvFormat::Q8];

/// Two layers that differ in everything, of which the second one is written.
fn layout(k: KvFormat, v: KvFormat) -> KvLayout {
    let written = KvLayer { value_dim: 40, ..KvLayer::full(2, 96, k, v) };
    KvLayout::new(vec![KvLayer::full(3, 64, KvFormat::F16, KvFormat::Q8), written])
}

/// Rows in blocks out of order, of two sequences, of which one goes on in the middle of a block.
const BLOCKS: [&[u32]; 2] = [&[4, 1, 3], &[0, 2]];

fn rows() -> Vec<SeqRow> {
    let of = |seq, lens: std::ops::RangeInclusive<u32>| lens.map(move |len| SeqRow { seq, len });
    of(0, 1..=37).chain(of(1, 3..=20)).collect()
}

fn seqs() -> [SeqKv<'static>; 2] {
    BLOCKS.map(|blocks| SeqKv { blocks, tails: &[] })
}

/// Both arenas with the same rows in them; what no row wrote is `before`.
fn stored(device: &mut Device, layout: &KvLayout, before: u8) -> (KvArena, DeviceArena) {
    let mut processor = KvArena::new(layout.clone(), 5).unwrap();
    let mut arena = DeviceArena::new(device, layout.clone(), 5).unwrap();
    for block in 0..5 {
        processor.block_mut(block).fill(before);
        arena.write_block(device, block, processor.block(block)).unwrap();
    }
    let (rows, seqs) = (rows(), seqs());
    let (mut k, v) = (floats(1, rows.len() * 2 * 96), floats(2, rows.len() * 2 * 40));
    // Numbers that half floats hold only nearly or not at all, and vectors of zeros.
    k[..6].copy_from_slice(&[1e-7, -3e-8, 65504.0, 1e6, -1e-5, 2049.0]);
    k[200..296].fill(0.0);
    processor.write(&Pool::new(1), 1, &rows, &seqs, [&k, &v]);
    let on_device = DeviceRows::new(device, &arena, &rows, &seqs).unwrap();
    let [k, v] = [k, v].map(|numbers| upload(device, &numbers));
    let mut step = device.step();
    step.store(&mut arena, 1, &on_device, [&k, &v]).unwrap();
    step.submit().unwrap();
    (processor, arena)
}

fn block_of(arena: &DeviceArena, device: &Device, block: u32) -> Vec<u8> {
    let mut bytes = vec![0; arena.layout().block_bytes()];
    arena.read_block(device, block, &mut bytes).unwrap();
    bytes
}

#[test]
fn half_floats_are_stored_to_the_byte_as_on_the_processor() {
    let Some(mut device) = device() else { return };
    for before in [0, 0xff] {
        let (processor, arena) = stored(&mut device, &layout(KvFormat::F16, KvFormat::F16), before);
        for block in 0..5 {
            assert!(block_of(&arena, &device, block) == processor.block(block), "block {block}");
        }
    }
}

#[test]
fn eight_bits_are_stored_as_on_the_processor_but_for_rounding() {
    let Some(mut device) = device() else { return };
    for (k, v) in FORMATS.into_iter().flat_map(|k| FORMATS.map(|v| (k, v))) {
        let (processor, arena) = stored(&mut device, &layout(k, v), 0);
        let (mut bytes, mut others) = (0, 0);
        for block in 0..5 {
            let read = block_of(&arena, &device, block);
            for (at, (a, b)) in read.iter().zip(processor.block(block)).enumerate() {
                bytes += 1;
                others += usize::from(a != b);
                let apart = (i32::from(*a as i8) - i32::from(*b as i8)).abs();
                assert!(apart <= 1 || apart == 255, "{k}/{v}: {a} at {at} of {block}, not {b}");
            }
        }
        assert!(others * 1000 <= bytes, "{k}/{v}: {others} of {bytes} bytes");
    }
}

#[test]
fn rows_are_stored_the_same_in_any_batch() {
    let Some(mut device) = device() else { return };
    for (k, v) in FORMATS.into_iter().flat_map(|k| FORMATS.map(|v| (k, v))) {
        let layout = layout(k, v);
        let (_, at_once) = stored(&mut device, &layout, 0);
        let mut one_by_one = DeviceArena::new(&device, layout, 5).unwrap();
        let (all, seqs) = (rows(), seqs());
        let (mut keys, values) = (floats(1, all.len() * 2 * 96), floats(2, all.len() * 2 * 40));
        keys[..6].copy_from_slice(&[1e-7, -3e-8, 65504.0, 1e6, -1e-5, 2049.0]);
        keys[200..296].fill(0.0);
        let vectors = all.iter().zip(keys.chunks_exact(2 * 96).zip(values.chunks_exact(2 * 40)));
        for (row, (key, value)) in vectors.rev() {
            let rows = DeviceRows::new(&device, &one_by_one, &[*row], &seqs).unwrap();
            let [key, value] = [key, value].map(|numbers| upload(&device, numbers));
            let mut step = device.step();
            step.store(&mut one_by_one, 1, &rows, [&key, &value]).unwrap();
            step.submit().unwrap();
        }
        for block in 0..5 {
            let [a, b] = [&at_once, &one_by_one].map(|arena| block_of(arena, &device, block));
            assert!(a == b, "{k}/{v}: block {block}");
        }
    }
}

#[test]
fn blocks_are_copied_out_and_in_and_among_themselves() {
    let Some(mut device) = device() else { return };
    let full = KvLayer::full(3, 64, KvFormat::F16, KvFormat::Q8);
    let layout = KvLayout::new(vec![KvLayer::windowed(2, 32, KvFormat::Q8, KvFormat::F16, 64), full]);
    let mut processor = KvArena::new(layout.clone(), 3).unwrap();
    let mut arena = DeviceArena::new(&device, layout.clone(), 3).unwrap();
    // What no layer stores is zero: pages are filled up with it.
    let numbers = floats(1, 16 * 3 * 64);
    for (layer, dim) in [(0, 2 * 32), (1, 3 * 64)] {
        let rows: Vec<_> = (1..=16).map(|len| SeqRow { seq: 0, len }).collect();
        let seqs = [SeqKv { blocks: &[2], tails: &[] }];
        processor.write(&Pool::new(1), layer, &rows, &seqs, [&numbers[..16 * dim], &numbers[..16 * dim]]);
    }
    arena.write_block(&device, 2, processor.block(2)).unwrap();
    assert!(block_of(&arena, &device, 2) == processor.block(2));
    let mut step = device.step();
    step.copy_block(&mut arena, 2, 0);
    step.submit().unwrap();
    assert!(block_of(&arena, &device, 0) == processor.block(2));
    assert!(block_of(&arena, &device, 1).iter().all(|&byte| byte == 0));
}

#[test]
fn sequences_that_have_forgotten_are_refused() {
    let Some(device) = device() else { return };
    let arena = DeviceArena::new(&device, layout(KvFormat::F16, KvFormat::F16), 1).unwrap();
    let tails = [HeadTail { tiles: &[0], dropped: 3 }; 2];
    let seqs = [SeqKv { blocks: &[0], tails: &tails }];
    let error = DeviceRows::new(&device, &arena, &[], &seqs).unwrap_err();
    assert!(matches!(error, DeviceError::Unsupported { .. }), "{error}");
}
