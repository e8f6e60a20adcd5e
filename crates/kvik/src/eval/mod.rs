//! The loss of a retention policy or KV format on a model: cases, settings, measurements, and reports of them.
//!
//! ```text
//! generate, held_out, data ──▶ WrittenCase ──▶ encode ──▶ EvalCase ┐
//!                                   windows ──▶ Window ────────────┤
//!                        setting ──▶ Retention, seen or unseen ────┴──▶ exam ──▶ results ──▶ report ──▶ table, html
//! ```
//!
//! Nothing here depends on flags or the scheduler: a laboratory of the engine runs the model.

pub(crate) mod calibrate;
mod data;
pub(crate) mod draws;
pub(crate) mod encode;
mod exam;
mod generate;
mod held_out;
pub(crate) mod html;
mod interval;
mod predict;
pub(crate) mod report;
pub(crate) mod results;
pub(crate) mod run;
mod score;
pub(crate) mod setting;
mod speed;
pub(crate) mod table;
pub(crate) mod tasks;
#[cfg(test)]
mod tests;
pub(crate) mod windows;
mod written;
