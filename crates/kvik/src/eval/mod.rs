//! What a way to keep keys and values costs on a model: cases, settings, measurements, and reports of them.

mod data;
mod draws;
pub(crate) mod encode;
mod generate;
mod held_out;
mod score;
pub(crate) mod tasks;
mod windows;
mod written;
