//! An unbounded stream of text: how well a model predicts it while it retains only a part of the positions.

use std::{sync::Arc, time::Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use kvik_cache::{Token, retain::Retention};
use kvik_engine::engine::perplexity::Perplexity;
use kvik_engine::retain::stream::Stream;
use serde_json::json;

use super::PerplexityArgs;
use kvik_serving::{kv, open, retaining::importance, settings::size::ByteSize};

/// Tokens covered by one output line.
const PIECE: usize = 10_000;
/// Tokens read at a time.
const STEP: usize = 256;

/// Measurements of one piece of the text.
struct Piece {
    /// Tokens read at its end.
    end: usize,
    perplexity: Perplexity,
    /// Bytes of blocks in use at its end.
    kv_bytes: u64,
    tokens_per_second: f64,
}

/// Reads the text as one stream, repeated as often as `--tokens` requires.
pub(super) fn run(args: &PerplexityArgs, text: &str, retention: Retention) -> anyhow::Result<()> {
    let pool = args.model.pool()?;
    let loaded = open::model_without_states(&args.model, &pool)?;
    let tokens = loaded.tokenizer.encode(text.strip_suffix('\n').unwrap_or(text), true, false);
    anyhow::ensure!(tokens.len() > 1, "the text {} has no token to predict", args.file.display());
    let layout = kv::layout(&args.model.kv, &loaded.model)?;
    let (block_bytes, format) = (layout.block_bytes(), layout.format_name());
    let heads = importance(&retention, &layout, || loaded.model.digest());
    let stream = Stream::new(Arc::new(loaded.model), pool, layout, (retention, heads))
        .with_context(|| format!("--retain {retention}"))?;
    let total = args.tokens.map_or(tokens.len(), std::num::NonZeroUsize::get);
    if !args.json {
        println!("kept by {retention}, kv {format}\n");
        println!("{:>10}  {:>10}  {:>10}  {:>8}", "tokens", "perplexity", "kv", "tok/s");
    }
    let pieces = read(stream, &tokens, (total, PIECE), block_bytes, |piece| {
        if !args.json {
            println!("{}", piece.line());
        }
    });
    if args.json {
        let pieces: Vec<_> = pieces.iter().map(Piece::json).collect();
        let summary = json!({"model": args.model.source(), "retain": retention.to_string(), "kv": format, "pieces": pieces});
        println!("{}", serde_json::to_string_pretty(&summary)?);
    }
    Ok(())
}

/// Reads `total` tokens by repeating the text, in pieces of `piece` tokens; calls `done` after each with a scored token.
///
/// The last token of the text predicts nothing, since that the text begins again is not in it: its first token is never
/// scored.
fn read(
    mut stream: Stream,
    text: &[Token],
    (total, piece): (usize, usize),
    block_bytes: usize,
    mut done: impl FnMut(&Piece),
) -> Vec<Piece> {
    let token = |position: usize| text[position % text.len()];
    let bar = progress(total);
    let mut pieces = Vec::new();
    for start in (0..total).step_by(piece) {
        let end = total.min(start + piece);
        let (began, mut perplexity, mut position) = (Instant::now(), Perplexity::default(), start);
        for start in (start..end).step_by(STEP) {
            let next: Vec<Token> = (start..end.min(start + STEP)).map(token).collect();
            stream.read(&next, &mut |logits| {
                position += 1;
                if !position.is_multiple_of(text.len()) {
                    perplexity.score(logits, token(position));
                }
            });
            bar.set_position(position as u64);
        }
        if perplexity.tokens == 0 {
            continue;
        }
        let seconds = began.elapsed().as_secs_f64().max(1e-9);
        let kv_bytes = stream.blocks() as u64 * block_bytes as u64;
        let piece = Piece { end, perplexity, kv_bytes, tokens_per_second: (end - start) as f64 / seconds };
        bar.suspend(|| done(&piece));
        pieces.push(piece);
    }
    bar.finish_and_clear();
    pieces
}

impl Piece {
    fn line(&self) -> String {
        let (value, speed) = (self.perplexity.value(), self.tokens_per_second);
        format!("{:>10}  {value:>10.4}  {:>10}  {speed:>8.0}", self.end, ByteSize(self.kv_bytes).to_string())
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "tokens": self.end,
            "perplexity": self.perplexity.value(),
            "kv_bytes": self.kv_bytes,
            "tokens_per_second": self.tokens_per_second,
        })
    }
}

/// A progress bar; indicatif hides it where standard error is not a terminal.
fn progress(tokens: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} tokens, {eta} left");
    ProgressBar::new(tokens as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use kvik_kernels::KvFormat;
    use kvik_model::ModelRunner;
    use kvik_serving::settings::model::ModelArgs;

    use super::*;

    #[test]
    fn only_tokens_that_the_text_has_next_are_scored() {
        let args = ModelArgs::embedded();
        let loaded = open::model_without_states(&args, &args.pool().unwrap()).unwrap();
        let layout = ModelRunner::layout(loaded.model.config(), &KvFormat::F16.into()).unwrap();
        let retention = "sinks:64".parse().unwrap();
        let (model, block_bytes) = (Arc::new(loaded.model), layout.block_bytes());
        let text = loaded.tokenizer.encode(&" a small cat".repeat(50), false, false);
        let scored = |len: usize, total: usize, piece: usize| -> Vec<usize> {
            let pool = args.pool().unwrap();
            let stream = Stream::new(model.clone(), pool, layout.clone(), (retention, None)).unwrap();
            let pieces = read(stream, &text[..len], (total, piece), block_bytes, |_| {});
            assert!(pieces.iter().all(|piece| piece.perplexity.value().is_finite()), "{len} {total}");
            pieces.iter().map(|piece| piece.perplexity.tokens).collect()
        };
        assert_eq!(scored(40, 40, PIECE), [39], "the last token predicts nothing");
        assert_eq!(scored(40, 30, PIECE), [30], "the text goes on");
        assert_eq!(scored(40, 100, PIECE), [98], "it was begun twice more");
        assert_eq!(scored(20, 41, 40), [38, 1], "so in every piece");
        assert_eq!(scored(41, 41, 40), [40], "a piece without a scored token has no perplexity");
    }
}
