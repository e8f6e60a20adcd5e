//! The matrix units (AMX): eight registers of up to 16 rows of 64 bytes, and products between them.

mod presence;

pub(crate) use presence::usable;
