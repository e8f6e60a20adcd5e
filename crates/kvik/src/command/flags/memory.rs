//! Flags of conversations that outgrow the context.

use std::path::PathBuf;

use clap::{Args, ValueEnum, builder::FalseyValueParser};

use kvik_memory::memory::{MemoryConfig, Words, WordsError};

/// How long conversations go on.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Memory")]
pub(crate) struct MemoryArgs {
    /// Answer conversations that are longer than the context, from their system prompt, a summary of their beginning
    /// and their recent messages; a request may say it itself with "kvik": {"memory": true} [default: on for
    /// chat, off for serve]
    #[arg(long, value_name = "on|off", value_enum)]
    memory: Option<Switch>,
    /// Tokens of recent messages that a summary leaves [default: three eighths of the context]
    #[arg(long, value_name = "TOKENS")]
    memory_recent: Option<usize>,
    /// Tokens of a summary at most [default: a 32nd of the context, 128 at least]
    #[arg(long, value_name = "TOKENS")]
    memory_summary: Option<usize>,
    /// Tokens beyond the recent ones of which a new summary is made [default: a quarter of the context]
    #[arg(long, value_name = "TOKENS")]
    memory_trigger: Option<usize>,
    /// Tokens of messages let go that are quoted at a question which they fit; 0 quotes none [default: a 16th of the
    /// context, 192 at least; a quarter of it at most]
    #[arg(long, value_name = "TOKENS")]
    memory_quotes: Option<usize>,
    /// Never let go of the opening exchange
    #[arg(long, value_parser = FalseyValueParser::new())]
    memory_protect_first: bool,
    /// A file of words that summaries are asked for and told with, instead of those of the conversation's language
    #[arg(long, value_name = "FILE")]
    pub(crate) memory_words: Option<PathBuf>,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl MemoryArgs {
    /// The configuration from the flags; `usual` is the default of whether memory is on.
    pub(crate) fn config(&self, usual: bool) -> Result<MemoryConfig, WordsError> {
        Ok(MemoryConfig {
            on: self.memory.map_or(usual, |memory| memory == Switch::On),
            recent_max: self.memory_recent,
            summary_max: self.memory_summary,
            trigger_discard: self.memory_trigger,
            quotes_max: self.memory_quotes,
            protect_first: self.memory_protect_first,
            words: self.memory_words.as_deref().map(Words::read).transpose()?,
        })
    }
}
