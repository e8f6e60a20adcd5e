//! The internal request to which every dialect's body is converted, and the fields that bodies share.

mod billing;
pub(crate) mod bounds;
pub(crate) mod cache;
pub(crate) mod compaction;
pub(crate) mod constraint;
pub(crate) mod continues;
pub(crate) mod conversation;
pub(crate) mod defaults;
pub(crate) mod fill;
pub(crate) mod generation;
pub(crate) mod hints;
mod kept_prefix;
mod logit_bias;
pub(crate) mod messages;
pub(crate) mod metadata;
pub(crate) mod number;
pub(crate) mod parts;
pub(crate) mod place;
pub(crate) mod prompt;
pub(crate) mod retain;
mod samplers;
pub(crate) mod sampling;
pub(crate) mod tools;
mod unsupported;
