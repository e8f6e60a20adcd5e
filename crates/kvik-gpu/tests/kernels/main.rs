//! Every kernel on the first device of the machine, beside what `kvik-kernels` states, and beside itself in other
//! batches. Where there is no device, each test says so and is skipped.

#![allow(clippy::unwrap_used)] // a test may fail where it stands

mod attention;
mod experts;
mod faults;
mod kv;
mod matmul;
mod rows;

use kvik_gpu::{Buffer, Choice, Device, devices};

/// The first device, also one of software.
fn device() -> Option<Device> {
    if devices().is_empty() {
        kvik_testing::skip("no GPU was found, nor a driver that computes on the processor");
        return None;
    }
    Some(Device::open(Choice::Index(0)).unwrap())
}

/// `count` numbers from -1 to 1.
fn floats(seed: u64, count: usize) -> Vec<f32> {
    let float = |i: u64| (kvik_testing::mix(seed << 32 | i) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    (0..count as u64).map(float).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn upload(device: &Device, values: &[f32]) -> Buffer<f32> {
    device.upload("numbers of a test", values).unwrap()
}

fn zeros(device: &Device, len: usize) -> Buffer<f32> {
    device.zeros("results of a test", len).unwrap()
}

/// Fails unless each number is as near to the expected one as `tolerance` times the size of both, or times 1.
fn assert_near(what: &str, actual: &[f32], expect: &[f32], tolerance: f32) {
    assert_eq!(actual.len(), expect.len(), "{what}");
    for (i, (actual, expect)) in actual.iter().zip(expect).enumerate() {
        let bound = tolerance * expect.abs().max(1.0);
        assert!((actual - expect).abs() <= bound, "{what}: {actual} at {i}, not {expect}");
    }
}
