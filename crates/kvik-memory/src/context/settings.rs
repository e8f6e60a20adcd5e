//! How much of a conversation is read as it was said.

/// Tokens of a summary at the least, however short the context: a few facts.
const SUMMARY_MIN: usize = 128;
/// Tokens of quotes at the least: a handful of short exchanges.
const QUOTES_MIN: usize = 192;
/// Tokens that must be left for the system prompt and the answer.
const REST_MIN: usize = 128;

/// Bounds of the segments of a conversation, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySettings {
    /// Recent messages that a rebuilt conversation goes on with.
    pub recent_max: usize,
    /// A summary.
    pub summary_max: usize,
    /// What recent messages may be beyond `recent_max` before a new summary is made of so much.
    pub trigger_discard: usize,
    /// What is quoted at a question of messages that were let go.
    pub quotes_max: usize,
    /// The opening exchange is never let go.
    pub protect_first: bool,
}

/// Why settings cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemorySettingsError {
    /// A bound is 0.
    #[error("`{0}` is 0 and must be at least 1")]
    Zero(&'static str),
    /// All segments together do not fit.
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
    /// For a context of 8,192 tokens: 3,072 recent ones, a summary of 256, made anew after 2,048; and in proportion. A
    /// design for phones has 4,096 recent ones there; a quarter less costs a quarter less to compute behind a summary, and
    /// leaves twice as many turns until that must be done.
    pub fn scaled_to(context: usize) -> MemorySettings {
        MemorySettings {
            recent_max: context / 8 * 3,
            summary_max: (context / 32).max(SUMMARY_MIN),
            trigger_discard: context / 4,
            quotes_max: (context / 16).max(QUOTES_MIN),
            protect_first: false,
        }
    }

    /// The same where a summary is due at so many recent tokens or before.
    pub fn due_at(self, tokens: usize) -> MemorySettings {
        let trigger_discard = self.trigger_discard.min(tokens / 3).max(1);
        let recent_max = self.recent_max.min(tokens.saturating_sub(trigger_discard)).max(1);
        MemorySettings { recent_max, trigger_discard, ..self }
    }

    /// Whether a context of so many tokens has room for them.
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
