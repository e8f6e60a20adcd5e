//! kvik in Kotlin, Swift and Python: one definition, from which uniffi generates their sources.
//!
//! It adds to `kvik-library` only what crossing a language needs: signed numbers, records, handles that can be closed
//! while other threads use them, and answers that are read in batches. Each language has a small interface of its own
//! over the generated sources, in `bindings/`; types whose names end in `Handle` are for these interfaces.
//!
//! ```text
//! error         errors of calls
//! options       options of a model and of an answer
//! prompt        messages and texts
//! sampling      settings of the sampler, and their sources
//! model         opening, asking, closing
//! answer        pieces and the report
//! conversation  stored conversations and their summaries
//! kept          pinned prompts, the cost of a prompt, embeddings and logits
//! system        memory, background, statistics
//! ```

#![deny(unsafe_code)]

mod answer;
mod conversation;
mod error;
mod kept;
mod model;
mod options;
mod prompt;
mod sampling;
mod system;

pub use answer::*;
pub use conversation::*;
pub use error::*;
pub use kept::*;
pub use model::*;
pub use options::*;
pub use prompt::*;
pub use sampling::*;
pub use system::*;

uniffi::setup_scaffolding!("kvik");
