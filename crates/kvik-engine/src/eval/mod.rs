//! Measures the loss of storing keys and values of a model in lower precision, and chooses formats by it.
//!
//! `divergence` compares layouts with keys and values in f32, `sensitivity` does so for one layer at a time, `choice`
//! derives a map from that, and `baseline` draws random maps, which a choice must beat.

pub mod baseline;
pub mod choice;
pub mod divergence;
pub mod sensitivity;

use kvik_kernels::KvFormat;

/// The formats to choose from, from precise to coarse.
pub const FORMATS: [KvFormat; 6] =
    [KvFormat::F16, KvFormat::Q8, KvFormat::Q6, KvFormat::Q5, KvFormat::Q4, KvFormat::Q3];
