//! Sizes of the parts of a conversation that the model reads.

/// Minimum tokens of a summary, however short the context: a few facts.
const SUMMARY_MIN: usize = 128;
/// Minimum tokens of quotes: a handful of short exchanges.
const QUOTES_MIN: usize = 192;
/// Quotes take one in so many tokens of the context at most.
const QUOTES_SHARE: usize = 4;
/// Tokens that must remain for the system prompt and the answer.
const REST_MIN: usize = 128;

/// Bounds on the parts of a conversation, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySettings {
    /// Recent messages that are kept when a new summary is made.
    pub recent_max: usize,
    /// Maximum size of a summary.
    pub summary_max: usize,
    /// Excess of recent messages over `recent_max` at which a new summary of that many tokens is made.
    pub trigger_discard: usize,
    /// Maximum size of the quotes of dropped messages that accompany a question.
    pub quotes_max: usize,
    /// True if the opening exchange is never dropped.
    pub protect_first: bool,
}

/// An error of settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemorySettingsError {
    /// A bound is 0.
    #[error("`{0}` is 0 and must be at least 1")]
    Zero(&'static str),
    /// The bounds together exceed the context.
    #[error(
        "recent_max {recent_max}, trigger_discard {trigger_discard} and summary_max {summary_max} leave less than {REST_MIN} of the context's {context} tokens for the system prompt and the answer; make them smaller or the context larger"
    )]
    TooLarge {
        /// See [`MemorySettings`].
        recent_max: usize,
        /// See [`MemorySettings`].
        trigger_discard: usize,
        /// See [`MemorySettings`].
        summary_max: usize,
        /// Tokens of the context.
        context: usize,
    },
}

impl MemorySettings {
    /// Bounds in proportion to the context. For 8,192 tokens: 3,072 recent ones, a summary of 256, renewed after 2,048.
    /// A design for phones has 4,096 recent ones there; a quarter less reduces the prefill after a new summary by a
    /// quarter, and doubles the number of turns between summaries.
    pub fn scaled_to(context: usize) -> MemorySettings {
        MemorySettings {
            recent_max: context / 8 * 3,
            summary_max: (context / 32).max(SUMMARY_MIN),
            trigger_discard: context / 4,
            quotes_max: (context / 16).max(QUOTES_MIN),
            protect_first: false,
        }
    }

    /// Lowers the bound on quotes to what a context of `context` tokens has for them.
    pub fn quoting_within(self, context: usize) -> MemorySettings {
        MemorySettings { quotes_max: self.quotes_max.min(context / QUOTES_SHARE), ..self }
    }

    /// Lowers the bounds so that a summary is due at `tokens` recent tokens or fewer.
    pub fn due_at(self, tokens: usize) -> MemorySettings {
        let trigger_discard = self.trigger_discard.min(tokens / 3).max(1);
        let recent_max = self.recent_max.min(tokens.saturating_sub(trigger_discard)).max(1);
        MemorySettings { recent_max, trigger_discard, ..self }
    }

    /// The bounds where messages may take `room` tokens. If that is less than a summary is due at, it is due at four fifths
    /// of the room: the rest is for the turns until it is made.
    pub fn within(self, room: usize) -> MemorySettings {
        match self.recent_max.saturating_add(self.trigger_discard) <= room {
            true => self,
            false => self.due_at((room / 5 * 4).max(REST_MIN)),
        }
    }

    /// Checks that the bounds fit a context of `context` tokens.
    pub fn check(&self, context: usize) -> Result<(), MemorySettingsError> {
        let MemorySettings { recent_max, summary_max, trigger_discard, .. } = *self;
        let named =
            [("recent_max", recent_max), ("summary_max", summary_max), ("trigger_discard", trigger_discard)];
        if let Some((name, _)) = named.iter().find(|(_, bound)| *bound == 0) {
            return Err(MemorySettingsError::Zero(name));
        }
        let all = named.iter().fold(REST_MIN, |all, (_, bound)| all.saturating_add(*bound));
        if all > context {
            return Err(MemorySettingsError::TooLarge { recent_max, trigger_discard, summary_max, context });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_fit_every_context_that_holds_a_conversation() {
        for context in [1024, 2048, 4096, 8192, 40_960, 262_144] {
            let settings = MemorySettings::scaled_to(context);
            assert_eq!(settings.check(context), Ok(()), "{context}: {settings:?}");
        }
        let settings = MemorySettings::scaled_to(8192);
        assert_eq!((settings.recent_max, settings.summary_max, settings.trigger_discard), (3072, 256, 2048));
    }

    #[test]
    fn quotes_leave_most_of_the_context_to_others() {
        let quoting = |quotes_max, context| {
            let settings = MemorySettings { quotes_max, ..MemorySettings::scaled_to(context) };
            settings.quoting_within(context).quotes_max
        };
        for (quotes_max, expect) in [(0, 0), (192, 192), (512, 512), (4096, 512), (usize::MAX, 512)] {
            assert_eq!(quoting(quotes_max, 2048), expect, "{quotes_max}");
        }
    }

    #[test]
    fn a_summary_is_due_as_soon_as_is_asked_for() {
        let settings = MemorySettings::scaled_to(2048);
        for tokens in [1, 2, 3, 10, 300, 1535] {
            let due = settings.due_at(tokens);
            assert!(due.recent_max + due.trigger_discard <= tokens.max(2), "{tokens}: {due:?}");
            assert_eq!(due.check(2048), Ok(()), "{tokens}: {due:?}");
        }
        assert_eq!(settings.due_at(100_000), settings, "the context is full before");
    }

    #[test]
    fn a_summary_is_due_before_the_room_is_full() {
        let settings = MemorySettings::scaled_to(2048);
        assert_eq!(settings.within(768 + 512), settings);
        for room in [1279, 1000, 500, 200] {
            let within = settings.within(room);
            let due = within.recent_max + within.trigger_discard;
            assert!(due <= room / 5 * 4 && due + 8 > room / 5 * 4, "{room}: {within:?}");
        }
        assert_eq!(settings.within(0), settings.within(100), "less is not worth a summary");
    }

    #[test]
    fn bounds_that_cannot_be_kept_are_named() {
        let settings = MemorySettings::scaled_to(2048);
        let zero = MemorySettings { recent_max: 0, ..settings };
        assert_eq!(zero.check(2048), Err(MemorySettingsError::Zero("recent_max")));
        let error = settings.check(1500).unwrap_err().to_string();
        assert!(error.contains("recent_max 768") && error.contains("1500"), "{error}");
        let huge = MemorySettings { recent_max: usize::MAX, ..settings };
        assert!(huge.check(usize::MAX).is_ok() && huge.check(2048).is_err());
    }
}
