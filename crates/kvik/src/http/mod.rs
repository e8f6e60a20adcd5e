//! Connections and what is the same for every body that comes over one: bounded, slow, hostile or not.
//!
//! It knows neither model nor tenants.

pub(crate) mod answer;
pub(crate) mod body_memory;
mod connections;
pub(crate) mod error;
mod exchange;
mod front;
mod half_open;
mod inherited;
pub(crate) mod json;
mod listen;
pub(crate) mod origins;
pub(crate) mod readers;
pub(crate) mod tagged;

pub(crate) use front::Front;
pub(crate) use inherited::inherited;
pub(crate) use listen::{ConnectionLimits, serve};
pub(crate) use origins::{AllowedHost, AllowedOrigin, Hosts, Senders};
