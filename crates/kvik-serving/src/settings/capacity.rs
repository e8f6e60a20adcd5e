//! The number of requests that an engine admits, and its sources of drafts.

use std::str::FromStr;

use clap::{Args, builder::TypedValueParser, value_parser};
use kvik_engine::config::usual::PARALLEL_MAX;
use kvik_engine::stats::{DraftSource, DraftSources};

/// How many requests run and wait at a time.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Capacity")]
pub struct Capacity {
    /// Sequences computed at the same time
    #[arg(long, value_name = "N", default_value = "16", value_parser = value_parser!(u16).range(1..=PARALLEL_MAX as i64).map(usize::from))]
    pub parallel: usize,
    /// Requests that may wait; further requests are answered 429
    #[arg(long, value_name = "N", default_value = "256", value_parser = value_parser!(u16).range(1..).map(usize::from))]
    pub queue: usize,
    /// Where tokens are tried from that may come next, which never changes an answer: lookup, tree, grammar, head (the
    /// model's own, if its file has one), with commas between them, all or none
    #[arg(long, value_name = "SOURCES", default_value = "all")]
    pub speculate: Speculate,
}

/// The sources of drafts for speculative decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speculate(pub DraftSources);

impl FromStr for Speculate {
    type Err = String;

    fn from_str(text: &str) -> Result<Speculate, String> {
        let named = |name: &str| match name {
            // A draft model is selected with --draft, which enables it.
            "lookup" => Ok(DraftSource::Lookup),
            "tree" => Ok(DraftSource::Tree),
            "grammar" => Ok(DraftSource::Grammar),
            "head" => Ok(DraftSource::Head),
            _ => Err(format!(
                "{name:?} is no source of drafts; there are lookup, tree, grammar, head, all and none"
            )),
        };
        match text {
            "none" => Ok(Speculate(DraftSources::NONE)),
            "all" => Ok(Speculate(DraftSources::ALL)),
            _ => {
                let mut sources = text.split(',').map(named);
                sources.try_fold(DraftSources::NONE, |all, source| Ok(all.with(source?))).map(Speculate)
            }
        }
    }
}

impl Capacity {
    /// Capacity for a single conversation.
    pub const ONE: Capacity = Capacity { parallel: 1, queue: 1, speculate: Speculate(DraftSources::ALL) };
}
