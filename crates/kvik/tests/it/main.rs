//! Tests of the crate through what it offers, in one program: each file is a subject.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod asking;
mod circles;
mod closed_output;
mod doors;
mod kv_map;
mod library;
mod links;
mod listed;
mod pull;
mod retained;
mod serve;
mod tidy;
mod troubleshooting;
