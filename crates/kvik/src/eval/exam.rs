//! The exam: one exact reading of a prompt, then every setting keeps a part of it, and all answer together.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use kvik_cache::retain::{Decision, HeadImportance, Retention};
use kvik_cache::{BLOCK_POSITIONS, Token, blocks_for};
use kvik_engine::retain::lab::{Lab, Variant};
use kvik_engine::retain::repeat::RepeatPrompt;
use kvik_kernels::{KvLayer, KvLayout, Pool};
use kvik_model::Model;
use kvik_model::gates::Gates;
use kvik_text::tokenizer::Tokenizer;

use super::results::{Kept, ResultRow};
use super::setting::Sight;
use super::tasks::EvalCase;

/// The model and the memory limits of an exam.
pub(crate) struct ExamSetup {
    pub(crate) model: Arc<Model>,
    pub(crate) layout: KvLayout,
    pub(crate) repeat: RepeatPrompt,
    /// Tokens of the longest prompt.
    pub(crate) prompt_max: usize,
    /// Maximum tokens that follow a prompt.
    pub(crate) answer_max: usize,
    /// Bytes for the variants of one prompt; at least one variant always fits.
    pub(crate) bytes: usize,
    /// The importance of heads, if it was measured.
    pub(crate) importance: Option<HeadImportance>,
    /// The gates of the model, if they were trained.
    pub(crate) gates: Option<Arc<Gates>>,
}

/// An exam of a model with one KV format.
pub(crate) struct Exam {
    lab: Lab,
    layout: KvLayout,
    importance: Option<HeadImportance>,
    /// Blocks for variants.
    blocks: usize,
    /// Tokens of the prompt that was read.
    prompt: usize,
    vocab: usize,
}

/// A setting's decision about the current prompt.
pub(crate) struct Decided {
    /// The row of the setting.
    pub(crate) row: usize,
    pub(crate) decision: Decision,
}

impl Exam {
    /// An exam with memory for the longest prompt.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(crate) fn new(setup: &ExamSetup, pool: Pool) -> anyhow::Result<Exam> {
        let (model, layout) = (setup.model.clone(), setup.layout.clone());
        let vocab = model.config().vocab;
        let one = blocks_for(setup.prompt_max + setup.answer_max) + 1;
        let blocks = (setup.bytes / layout.block_bytes()).max(one);
        let lab = Lab::new(model, pool, layout.clone(), setup.repeat.clone(), (setup.prompt_max, blocks))
            .context("no memory for the exam; lower --memory or --length")?;
        let lab = lab.with_gates(setup.gates.clone());
        Ok(Exam { lab, layout, importance: setup.importance.clone(), blocks, prompt: 0, vocab })
    }

    /// Answers a case under every setting and adds the results to the rows of the settings.
    pub(crate) fn ask(&mut self, case: &EvalCase, task: &str, rows: &mut [ResultRow], grader: &Grader<'_>) {
        for sight in [Sight::Unseen, Sight::Seen] {
            let chosen: Vec<usize> =
                (0..rows.len()).filter(|&row| rows[row].setting.sight == sight).collect();
            if chosen.is_empty() {
                continue;
            }
            let first = match sight {
                Sight::Unseen => self.read(&case.prompt.context, retentions(&chosen, rows)),
                Sight::Seen => self.read(&case.prompt.whole(), retentions(&chosen, rows)),
            };
            for group in self.decide(&chosen, rows, case.prompt.question.len() + case.limit) {
                let mut variants = self.keep(&group, rows);
                let answers = match sight {
                    Sight::Unseen => {
                        self.lab.answer(&mut variants, &case.prompt.question, case.limit, grader.stop)
                    }
                    Sight::Seen => self.go_on(&mut variants, first, case.limit, grader.stop),
                };
                variants.into_iter().for_each(|variant| self.lab.drop(variant));
                for (decided, answer) in group.iter().zip(answers) {
                    rows[decided.row].answered(task, case, &grader.tokenizer.decode(&answer));
                }
            }
        }
    }

    /// Reads a prompt and observes the statistics that `retentions` need. Returns the most likely next token.
    pub(crate) fn read(
        &mut self,
        tokens: &[Token],
        retentions: impl IntoIterator<Item = Retention>,
    ) -> Token {
        self.prompt = tokens.len();
        let token_bytes = self.layout.token_bytes();
        let retentions: Vec<Retention> =
            retentions.into_iter().map(|retention| retention.resolve(token_bytes)).collect();
        likeliest(&self.lab.read(tokens, &retentions))
    }

    /// The decisions of all `chosen` settings, in groups whose variants fit in memory together with `more` tokens each.
    pub(crate) fn decide(
        &mut self,
        chosen: &[usize],
        rows: &mut [ResultRow],
        more: usize,
    ) -> Vec<Vec<Decided>> {
        let (mut groups, mut room): (Vec<Vec<Decided>>, usize) = (Vec::new(), 0);
        for &row in chosen {
            let start = Instant::now();
            let decision = self.decision(rows[row].setting.retention.as_ref());
            rows[row].decided(start.elapsed());
            let needed = self.blocks_needed(&decision, more);
            if groups.is_empty() || needed > room {
                groups.push(Vec::new());
                room = self.blocks;
            }
            room -= needed;
            groups.last_mut().expect("a group was begun").push(Decided { row, decision });
        }
        groups
    }

    /// A retention's decision about the current prompt; `None` keeps everything.
    pub(crate) fn decision(&mut self, retention: Option<&Retention>) -> Decision {
        match retention {
            None => self.lab.everything(),
            Some(retention) => {
                let retention = retention.resolve(self.layout.token_bytes());
                self.lab.decide(&retention, self.importance.as_ref())
            }
        }
    }

    /// Stores the positions that each setting retains.
    pub(crate) fn keep(&mut self, group: &[Decided], rows: &mut [ResultRow]) -> Vec<Variant> {
        let keep = |decided: &Decided| {
            let start = Instant::now();
            let variant = self.lab.keep(&decided.decision, rows[decided.row].setting.retention.as_ref());
            rows[decided.row].kept(&self.stored(&decided.decision, self.prompt), start.elapsed());
            variant
        };
        group.iter().map(keep).collect()
    }

    /// The laboratory itself.
    pub(crate) fn lab(&mut self) -> &mut Lab {
        &mut self.lab
    }

    /// Size of the vocabulary.
    pub(crate) fn vocab(&self) -> usize {
        self.vocab
    }

    /// KV heads of every layer.
    pub(crate) fn shape(&self) -> Vec<usize> {
        self.layout.layers().iter().map(|layer| layer.kv_heads).collect()
    }

    /// The storage that a decision needs for a prompt of `prompt` tokens.
    fn stored(&self, decision: &Decision, prompt: usize) -> Kept {
        let counts = || decision.kept.iter().flatten().map(Vec::len);
        let bytes = decision.kept.iter().zip(self.layout.layers()).map(|(heads, layer)| {
            let head_bytes = head_bytes(layer);
            heads.iter().map(|kept| kept.len() * head_bytes).sum::<usize>()
        });
        let share = |count: usize| count as f64 / prompt as f64;
        Kept {
            mean: share(counts().sum()) / counts().count() as f64,
            smallest: share(counts().min().unwrap_or(0)),
            largest: share(counts().max().unwrap_or(0)),
            token_bytes: share(bytes.sum()),
        }
    }

    /// Blocks for a variant followed by `more` tokens.
    fn blocks_needed(&self, decision: &Decision, more: usize) -> usize {
        let classes = 0..self.layout.layers().len();
        let needed = classes.map(|class| {
            let (mut tiles, mut heads) = (0, 0);
            for (layer, kept) in decision.kept.iter().enumerate() {
                if self.layout.tile_class(layer) == class {
                    heads += kept.len();
                    tiles +=
                        kept.iter().map(|kept| (kept.len() + more).div_ceil(BLOCK_POSITIONS)).sum::<usize>();
                }
            }
            tiles.div_ceil(heads.max(1))
        });
        // One more: a head may begin a tile while the tiles of others still have space.
        needed.max().unwrap_or(0) + 1
    }

    /// Number of variants of this decision's size that fit in memory together.
    pub(crate) fn room(&self, decision: &Decision, more: usize) -> usize {
        (self.blocks / self.blocks_needed(decision, more)).max(1)
    }

    /// Answers that begin with `first`, which the exact reading predicted.
    fn go_on(
        &mut self,
        variants: &mut [Variant],
        first: Token,
        limit: usize,
        stop: &[Token],
    ) -> Vec<Vec<Token>> {
        if stop.contains(&first) {
            return vec![Vec::new(); variants.len()];
        }
        if limit == 1 {
            return vec![vec![first]; variants.len()];
        }
        let answers = self.lab.answer(variants, &[first], limit - 1, stop);
        answers.into_iter().map(|answer| [vec![first], answer].concat()).collect()
    }
}

/// The retentions of some rows.
pub(crate) fn retentions(chosen: &[usize], rows: &[ResultRow]) -> Vec<Retention> {
    chosen.iter().filter_map(|&row| rows[row].setting.retention).collect()
}

/// Decodes answers for grading.
pub(crate) struct Grader<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// Tokens that end an answer.
    pub(crate) stop: &'a [Token],
}

/// The most likely token; the first one of equals.
pub(crate) fn likeliest(logits: &[f32]) -> Token {
    let best = logits.iter().enumerate().max_by(|(i, a), (j, b)| a.total_cmp(b).then(j.cmp(i)));
    best.map_or(0, |(token, _)| token as Token)
}

/// Bytes that a KV head of a layer stores for a position, without what a block of layers with windows is rounded up to.
fn head_bytes(layer: &KvLayer) -> usize {
    layer.part_bytes().iter().sum::<usize>() / BLOCK_POSITIONS / layer.kv_heads
}

#[cfg(test)]
mod tests {
    use kvik_kernels::KvFormat;

    use super::*;

    #[test]
    fn a_window_does_not_change_what_a_position_takes() {
        for (format, bytes) in [(KvFormat::F16, 1024), (KvFormat::Q8, 520), (KvFormat::Q4, 258)] {
            let layers =
                [KvLayer::full(2, 256, format, format), KvLayer::windowed(2, 256, format, format, 512)];
            assert_eq!(layers.each_ref().map(head_bytes), [bytes; 2], "{format}");
        }
    }
}
