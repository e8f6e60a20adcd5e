//! Measures what a way to store keys and values costs on a model, and chooses one by it.
//!
//! `divergence` compares layouts with keys and values in f32, `sensitivity` does so for one layer at a time,
//! `choice` makes a map of it, and `baseline` draws maps at random, which a choice must beat.

pub mod baseline;
pub mod choice;
pub mod divergence;
pub mod sensitivity;

use kvik_kernels::KvFormat;

/// The formats that a choice is made among, from precise to coarse.
pub const FORMATS: [KvFormat; 4] = [KvFormat::F16, KvFormat::Q8, KvFormat::Q4, KvFormat::Q4S];
