//! Blocks of prompts in the store: the tasks of its thread, one per lookup and per fetch, one that
//! writes, and some that renew and remove.

mod fetch;
mod lookup;
mod search;
mod write;

pub(crate) use fetch::fetch;
pub(crate) use lookup::look_up;
pub(crate) use write::{Offer, forget, keep_up, write_all};
