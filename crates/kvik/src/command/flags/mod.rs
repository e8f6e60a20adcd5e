//! Groups of flags that commands share.

pub(crate) mod access;
pub(crate) mod accounts;
pub(crate) mod embedding;
pub(crate) mod kv_events;
pub(crate) mod memory;
