//! Blocks of prompts in the store: the tasks of its thread, one per lookup and per fetch, and one that writes.

mod fetch;
mod lookup;
mod search;
mod write;

pub(crate) use fetch::fetch;
pub(crate) use lookup::look_up;
pub(crate) use write::{Offer, forget, renew, write_all};
