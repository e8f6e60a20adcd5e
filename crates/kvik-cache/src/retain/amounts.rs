//! The settings with which every policy is combined: how much is retained, how heads share it, the cut, and the time.

/// Number of positions that a KV head retains, on average over the heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keep {
    /// This share of the sequence's tokens, in (0, 1], rounded to millionths.
    Share(f32),
    /// This many, at least 2.
    Tokens(usize),
    /// As many as fit into this many bytes of keys and values, all layers and heads together.
    Bytes(u64),
}

/// The heads among which positions compete.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// No competition: each head retains the same number.
    Head,
    /// No competition: lower layers retain more than higher ones, in even steps (PyramidKV, arXiv 2406.02069).
    Pyramid {
        /// The last layer retains this many times less than the mean; at least 1.
        beta: f32,
    },
    /// The heads of a layer compete (AdaKV, arXiv 2407.11550).
    Layer {
        /// The fraction of an equal division that each head retains in any case.
        floor: f32,
    },
    /// All heads of all layers compete.
    All,
    /// Heads share in proportion to the fifth root of their measured importance: between an equal division and
    /// DuoAttention's (arXiv 2410.10819), in which some heads retain everything and all others nearly nothing.
    Calibrated,
}

/// Which of the positions that fit the quota are retained. Forced positions are retained under every cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cut {
    /// The positions with the highest scores.
    Top,
    /// The highest scores, if above this value.
    Threshold(f32),
    /// The highest scores, if above the head's mean less `beta` standard deviations.
    Dynamic {
        /// Standard deviations below the mean.
        beta: f32,
    },
    /// The sinks, the latest positions, and the highest scores for the rest (H2O, arXiv 2306.14048).
    Hybrid {
        /// The share of the quota that the latest positions take.
        recent: f32,
    },
}

/// When a sequence evicts positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At fixed points, which depend only on the retention, the prompt's length and the context.
    Points,
    /// Only when memory is short, at any position of the sequence.
    Pressure,
    /// At fixed points, and also when memory is short.
    Either,
}

impl When {
    /// Returns whether there are fixed points.
    pub fn at_points(self) -> bool {
        self != When::Pressure
    }

    /// Returns whether the sequence may be told to evict positions at any time.
    pub fn under_pressure(self) -> bool {
        self != When::Points
    }
}

/// Default of the leading positions that every policy retains, since models attend to them regardless of content
/// (StreamingLLM, arXiv 2309.17453): a policy by score that drops them ruins the text that follows.
pub(super) const SINKS: usize = 4;

impl Keep {
    /// The average number of positions that a head retains when the sequence has `at` tokens.
    ///
    /// # Panics
    /// If `self` is in bytes: [`Retention::resolve`](super::Retention::resolve) converts them to tokens.
    pub(super) fn mean(self, at: usize) -> f64 {
        match self {
            Keep::Share(share) => millionths(share) as f64 * at as f64 / 1e6,
            Keep::Tokens(_) | Keep::Bytes(_) => self.positions(at, 1) as f64,
        }
    }

    /// The number of positions that `heads` heads retain together when the sequence has `at` tokens: at least one
    /// each.
    ///
    /// # Panics
    /// If `self` is in bytes: [`Retention::resolve`](super::Retention::resolve) converts them to tokens.
    pub(super) fn positions(self, at: usize, heads: usize) -> usize {
        let positions = match self {
            Keep::Share(share) => (millionths(share) * (at as u128) * (heads as u128) / 1_000_000) as usize,
            Keep::Tokens(tokens) => tokens.min(at) * heads,
            Keep::Bytes(_) => panic!("bytes are resolved to tokens first"),
        };
        positions.max(heads)
    }
}

/// A share rounded to millionths, as its decimal digits mean it: 0.7 of 100 is 70, although the `f32` 0.7 is less.
fn millionths(share: f32) -> u128 {
    (f64::from(share) * 1e6).round() as u128
}
