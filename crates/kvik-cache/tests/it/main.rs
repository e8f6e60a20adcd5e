//! Tests of the crate through what it offers, in one program: each file is a subject.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod auxiliary;
mod flood;
mod life;
mod policies;
mod raised;
mod shares;
mod trace;
mod traffic;
