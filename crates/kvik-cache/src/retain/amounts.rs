//! How much is kept, over which heads that is divided, what is cut of it, and when: what every policy is combined with.

/// How many positions of a KV head stay, on average over the heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keep {
    /// This share of the sequence's tokens, in (0, 1]. It counts in millionths.
    Share(f32),
    /// So many, at least 2.
    Tokens(usize),
    /// As many as fit into so many bytes of keys and values, all layers and heads together.
    Bytes(u64),
}

/// Over which heads positions compete.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// Each head keeps as many as every other one.
    Head,
    /// Lower layers keep more than higher ones, in even steps (PyramidKV, arXiv 2406.02069).
    Pyramid {
        /// The last layer keeps this many times less than the mean; at least 1.
        beta: f32,
    },
    /// The heads of a layer compete (AdaKV, arXiv 2407.11550).
    Layer {
        /// The share of an equal division that each head keeps in any case.
        floor: f32,
    },
    /// All heads of all layers compete.
    All,
    /// Heads share in proportion to the fifth root of how much they were measured to matter: between an equal
    /// division and DuoAttention's (arXiv 2410.10819), in which some heads keep everything and all others nearly nothing.
    Calibrated,
}

/// Which of the positions that would fit stay. Positions that are kept always stay under each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cut {
    /// Those of the highest scores.
    Top,
    /// Of those, the ones with a score above this.
    Threshold(f32),
    /// Of those, the ones with a score above the head's mean less `beta` standard deviations.
    Dynamic {
        /// Standard deviations below the mean.
        beta: f32,
    },
    /// The sinks, the latest, and the highest scores for the rest (H2O, arXiv 2306.14048).
    Hybrid {
        /// The share of what is kept that the latest positions take.
        recent: f32,
    },
}

/// When a sequence forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At fixed points, which depend on nothing but its tokens.
    Points,
    /// When memory is short and only then, wherever the sequence is.
    Pressure,
    /// At fixed points, and besides when memory is short.
    Either,
}

impl When {
    /// Whether there are fixed points.
    pub fn at_points(self) -> bool {
        self != When::Pressure
    }

    /// Whether the sequence may be told to forget at any time.
    pub fn under_pressure(self) -> bool {
        self != When::Points
    }
}

/// Leading positions that models attend to whatever they hold (StreamingLLM, arXiv 2309.17453).
pub(super) const SINKS: usize = 4;

impl Keep {
    /// How many positions a head keeps on average when the sequence has `at` tokens.
    ///
    /// # Panics
    /// On bytes: [`Retention::resolve`](super::Retention::resolve) makes them tokens.
    pub(super) fn mean(self, at: usize) -> f64 {
        match self {
            Keep::Share(share) => millionths(share) as f64 * at as f64 / 1e6,
            Keep::Tokens(_) | Keep::Bytes(_) => self.positions(at, 1) as f64,
        }
    }

    /// How many positions `heads` heads keep together when the sequence has `at` tokens: at least one each.
    ///
    /// # Panics
    /// On bytes: [`Retention::resolve`](super::Retention::resolve) makes them tokens.
    pub(super) fn positions(self, at: usize, heads: usize) -> usize {
        let positions = match self {
            Keep::Share(share) => (millionths(share) * (at as u128) * (heads as u128) / 1_000_000) as usize,
            Keep::Tokens(tokens) => tokens.min(at) * heads,
            Keep::Bytes(_) => panic!("bytes are resolved to tokens first"),
        };
        positions.max(heads)
    }
}

/// A share as its digits say it, in millionths: 0.7 of 100 is 70, though 0.7 as a number is less.
fn millionths(share: f32) -> u128 {
    (f64::from(share) * 1e6).round() as u128
}
