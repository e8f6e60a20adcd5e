//! Values of body fields that a request leaves out.
//!
//! They are the same in every dialect: an application that changes its API does not change its answers.

use kvik_engine::api::Sampling;
use kvik_memory::random::random;
use kvik_model::load::SamplingDefaults;
use kvik_session::Chat;

use crate::app::state::App;

/// Mask of seeds that kvik draws and reports: JavaScript represents them exactly.
const SEED_BITS: u64 = (1 << 53) - 1;

/// Values of what a request leaves out.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestDefaults {
    /// Settings of the sampler.
    pub(crate) sampling: SamplingDefaults,
    /// Seed; random with `None`.
    pub(super) seed: Option<u64>,
    /// Maximum tokens of an answer; the dialect's with `None`.
    max_tokens: Option<usize>,
}

impl RequestDefaults {
    /// Values of a server: its flags, else those of its model.
    pub(crate) fn of(app: &App) -> RequestDefaults {
        let flags = &app.config.sampling;
        RequestDefaults { sampling: app.sampling(), seed: flags.seed(), max_tokens: flags.max_tokens() }
    }

    /// Values of a server for the answer to a chat, which may switch thinking off.
    pub(crate) fn of_chat(app: &App, chat: &Chat) -> RequestDefaults {
        let usual = RequestDefaults::of(app);
        let sampling = usual.sampling.for_thinking(app.serving.texts.thinks(chat));
        RequestDefaults { sampling, ..usual }
    }

    /// The sampling of a request that sets nothing.
    pub(crate) fn sampling(&self) -> Sampling {
        Sampling { seed: self.seed(), ..self.sampling.sampling() }
    }

    /// Maximum length of the answer to a request that sets `set`. A negative number means the context size, which is
    /// no limit of the request's own: the server's holds there too.
    pub(crate) fn length(&self, set: Option<i64>) -> Option<i64> {
        match self.max_tokens {
            Some(usual) => Some(set.filter(|&tokens| tokens >= 0).unwrap_or(usual as i64)),
            None => set,
        }
    }

    /// The seed of a request that sets none.
    pub(super) fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(random_seed)
    }
}

/// A random seed that JavaScript represents exactly.
pub(super) fn random_seed() -> u64 {
    random() & SEED_BITS
}
