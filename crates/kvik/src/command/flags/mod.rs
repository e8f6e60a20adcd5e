//! Groups of flags that commands share, and what they make of them.

pub(crate) mod access;
pub(crate) mod accounts;
