//! What the bodies of all dialects have in common: prompts, options of the answer, fields of the cache.

pub(crate) mod keep;
pub(crate) mod options;
pub(crate) mod prompt;
pub(crate) mod unsupported;
