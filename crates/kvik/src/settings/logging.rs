//! Log lines on standard error: readable, or JSON for machines.

use clap::ValueEnum;
use tracing_subscriber::{EnvFilter, fmt, prelude::*};

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One readable line per event
    #[default]
    Text,
    /// One JSON object per event
    Json,
}

/// Starts logging. `KVIK_LOG` (or `RUST_LOG`) sets the level, as `debug` or `kvik=debug,warn`.
pub(crate) fn start(format: LogFormat, default_level: &str) {
    let wanted = ["KVIK_LOG", "RUST_LOG"].into_iter().find_map(|name| std::env::var(name).ok());
    let filter = EnvFilter::new(wanted.as_deref().unwrap_or(default_level));
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => {
            let lines = fmt::layer().with_writer(std::io::stderr).with_target(false).compact();
            registry.with(lines).init();
        }
        LogFormat::Json => {
            let lines = fmt::layer().with_writer(std::io::stderr).json().flatten_event(true);
            registry.with(lines).init();
        }
    }
}
