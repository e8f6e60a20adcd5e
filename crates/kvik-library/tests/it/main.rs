//! Tests of the crate through what it offers, in one program: each file is a subject.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod answers;
mod common;
mod conversations;
mod cycles;
mod forms;
mod generated;
mod kept;
mod killed;
mod pressure;
mod resident;
mod time_share;
