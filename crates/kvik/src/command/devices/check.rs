//! `kvik devices --check`: a GPU beside the processor, and beside itself cached, in chunks, in other batches and after a
//! lost step.
//!
//! The processor multiplies the weights as 32-bit floats: with 8 bits it would round their inputs too. Against it answers
//! are compared; on the GPU every bit of the logits is.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{bail, ensure};
use clap::CommandFactory;
use kvik_cache::{BLOCK_POSITIONS, BlockId, Token};
use kvik_kernels::{KvFormat, Pool, WeightType};
use kvik_model::batch::{Batch, Output, Row, Runner, RunnerFault, SequenceKv, StepSize};
use kvik_model::device::{Choice, Device, DeviceModel, DeviceRunner};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelRunner};
use kvik_serving::settings::{device::DeviceChoice, model::ModelArgs};
use serde::Serialize;

use crate::command::Cli;

/// Tokens of the longest prompt, and its answer.
const CONTEXT: usize = 128;
/// Blocks of a sequence.
const TABLE: usize = CONTEXT / BLOCK_POSITIONS;
/// Prompts that are computed in one step.
const TOGETHER: usize = 8;
/// Tokens whose logits are nearer than this part of the largest one may be chosen either way: the stated tolerance of
/// logits with f16 keys and values.
const TIE: f32 = 2e-3;

/// The result of the comparison.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    model: String,
    name: String,
    /// Answers to so many prompts, those that equal the processor's, and those that differ where two tokens are as likely.
    prompts: usize,
    equal: usize,
    ties: usize,
    /// Whether logits have the same bits in chunks, beside another sequence, from blocks that were copied out and in, and
    /// after the device was lost and opened again.
    chunks_equal: bool,
    batched_equal: bool,
    cached_equal: bool,
    recovered_equal: bool,
    seconds: f64,
}

/// Compares a GPU with the processor on so many prompts, with answers of so many tokens.
pub(super) fn check(
    args: &ModelArgs,
    device: DeviceChoice,
    [count, tokens]: [usize; 2],
) -> anyhow::Result<Report> {
    let started = Instant::now();
    let choice = match device {
        DeviceChoice::Gpu(Some(number)) => Choice::Index(number),
        DeviceChoice::Gpu(None) | DeviceChoice::Auto => Choice::Auto,
        DeviceChoice::Cpu => bail!("--check compares a GPU with the processor; name one, such as gpu:0"),
    };
    let pool = Arc::new(args.pool()?);
    let prompts = prompts(&args.load()?, count);
    let mut processor = on_processor(args.load()?, &pool, count)?;
    let mut device = on_device(args.load()?, &pool, choice, count)?;
    let expected = answers(&mut processor, &prompts, tokens)?;
    let found = answers(&mut device, &prompts, tokens)?;
    let mut report = Report {
        model: device.model().config().name.clone(),
        name: device.device().info().name.clone(),
        prompts: count,
        equal: 0,
        ties: 0,
        chunks_equal: true,
        batched_equal: true,
        cached_equal: true,
        recovered_equal: true,
        seconds: 0.0,
    };
    for (prompt, (expected, found)) in prompts.iter().zip(expected.iter().zip(&found)) {
        match expected.iter().zip(found).position(|(one, other)| one != other) {
            None => report.equal += 1,
            Some(at) => {
                let before = [&prompt[..], &expected[..at]].concat();
                report.ties += usize::from(is_tie(&mut processor, &before, [expected[at], found[at]])?);
            }
        }
    }
    let long: Vec<Token> = prompts.iter().flatten().copied().cycle().take(3 * BLOCK_POSITIONS + 5).collect();
    report.compare_bits(&mut device, &long, &prompts[count - 1])?;
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Pieces of the text of kvik's own help, which differ in place and length.
fn prompts(loaded: &LoadedModel, count: usize) -> Vec<Vec<Token>> {
    let text = Cli::command().render_long_help().to_string();
    let mut all = loaded.tokenizer.encode(&text, false, false);
    if all.len() < 256 {
        // A vocabulary without these words.
        all = (0..2_000).map(|i| (i * 7 % loaded.config.vocab) as Token).collect();
    }
    let start = |prompt: usize| prompt * 37 % (all.len() - 64);
    (0..count).map(|prompt| all[start(prompt)..][..24 + prompt % 9].to_vec()).collect()
}

fn on_processor(loaded: LoadedModel, pool: &Arc<Pool>, sequences: usize) -> anyhow::Result<ModelRunner> {
    let LoadedModel { config, tensors, .. } = loaded;
    let layout = ModelRunner::uniform_layout(&config, KvFormat::F16);
    let model = Model::load(config, tensors, Some(WeightType::F32), pool, &|_, _| {})?;
    let blocks = sequences.max(3) * TABLE;
    Ok(ModelRunner::new(Arc::new(model), pool.clone(), layout, blocks, CONTEXT)?)
}

fn on_device(
    loaded: LoadedModel,
    pool: &Arc<Pool>,
    choice: Choice,
    sequences: usize,
) -> anyhow::Result<DeviceRunner> {
    let LoadedModel { config, tensors, .. } = loaded;
    DeviceModel::check(&config)?;
    let layout = ModelRunner::uniform_layout(&config, KvFormat::F16);
    let model = DeviceModel::load(Device::open(choice)?, config, tensors, None, pool, &|_, _| {})?;
    let blocks = sequences.max(3) * TABLE;
    let step = StepSize { rows: 2 * CONTEXT, outputs: sequences };
    Ok(DeviceRunner::new(model, pool.clone(), layout, blocks, CONTEXT, step)?)
}

/// The blocks of sequence `sequence`.
fn table(sequence: usize) -> Vec<BlockId> {
    (sequence * TABLE..(sequence + 1) * TABLE).map(|block| BlockId(block as u32)).collect()
}

/// A row of a sequence.
fn row(sequence: usize, token: Token, position: usize, output: Output) -> Row {
    let (sequence, position) = (sequence as u32, position as u32);
    Row { sequence, token, position, cache_position: position, output }
}

fn failed(fault: RunnerFault) -> anyhow::Error {
    anyhow::anyhow!("a step failed: {}", fault.message)
}

/// The greedy answers to prompts, all sequences together.
fn answers(
    runner: &mut dyn Runner,
    prompts: &[Vec<Token>],
    tokens: usize,
) -> anyhow::Result<Vec<Vec<Token>>> {
    let mut answers: Vec<Vec<Token>> = vec![Vec::new(); prompts.len()];
    let vocab = runner.vocab_len();
    // Of logits that are no numbers no token is chosen: the answer is wrong from there on, and need only end.
    let known = move |token: Token| if (token as usize) < vocab { token } else { 0 };
    let output = if runner.chooses() { Output::Likeliest } else { Output::Logits };
    for step in 0..tokens {
        let sequences: Vec<usize> = (0..prompts.len()).collect();
        for sequences in sequences.chunks(if step == 0 { TOGETHER } else { prompts.len() }) {
            let rows: Vec<Row> = sequences
                .iter()
                .flat_map(|&sequence| {
                    let (prompt, answer) = (&prompts[sequence], &answers[sequence]);
                    let new = if step == 0 { &prompt[..] } else { &answer[step - 1..] };
                    let end = prompt.len() + answer.len();
                    let first = end - new.len();
                    let output = move |at: usize| if at + 1 == end { output } else { Output::None };
                    new.iter()
                        .enumerate()
                        .map(move |(i, &token)| row(sequence, known(token), first + i, output(first + i)))
                })
                .collect();
            let chosen = chosen(runner, &rows, prompts.len())?;
            sequences.iter().zip(chosen).for_each(|(&sequence, token)| answers[sequence].push(token));
        }
    }
    Ok(answers)
}

/// The most likely tokens of the rows that have an output.
fn chosen(runner: &mut dyn Runner, rows: &[Row], sequences: usize) -> anyhow::Result<Vec<Token>> {
    let (vocab, chooses) = (runner.vocab_len(), runner.chooses());
    let tables: Vec<Vec<BlockId>> = (0..sequences).map(table).collect();
    let sequences: Vec<SequenceKv<'_>> = tables.iter().map(|table| SequenceKv::in_blocks(table)).collect();
    let computed = runner.compute(&Batch { rows, sequences: &sequences }, &mut []).map_err(failed)?;
    Ok(match chooses {
        true => computed.likeliest.to_vec(),
        false => computed.outputs.chunks_exact(vocab).map(likeliest).collect(),
    })
}

/// The first of the largest logits.
fn likeliest(logits: &[f32]) -> Token {
    let better = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (1..logits.len()).fold(0, better) as Token
}

/// Logits of `tokens` from position `first` on, in the blocks of a table; `beside` is another sequence in the same step.
fn logits(
    runner: &mut dyn Runner,
    tables: [&[BlockId]; 2],
    (tokens, first): (&[Token], usize),
    beside: &[Token],
) -> anyhow::Result<Vec<f32>> {
    let own = tokens.iter().enumerate().map(|(i, &token)| row(0, token, first + i, Output::Logits));
    let others = beside.iter().enumerate().map(|(i, &token)| row(1, token, i, Output::None));
    let rows: Vec<Row> = own.chain(others).collect();
    let sequences = tables.map(SequenceKv::in_blocks);
    let computed = runner.compute(&Batch { rows: &rows, sequences: &sequences }, &mut []).map_err(failed)?;
    Ok(computed.outputs.to_vec())
}

/// Whether two tokens are about as likely after others; a token that is none of the vocabulary is not.
fn is_tie(runner: &mut dyn Runner, before: &[Token], tokens: [Token; 2]) -> anyhow::Result<bool> {
    let vocab = runner.vocab_len();
    let all = logits(runner, [&table(0), &table(1)], (before, 0), &[])?;
    let last = &all[all.len() - vocab..];
    let largest = last.iter().fold(1f32, |largest, logit| largest.max(logit.abs()));
    let [Some(one), Some(other)] = tokens.map(|token| last.get(token as usize)) else { return Ok(false) };
    Ok((one - other).abs() <= 2.0 * TIE * largest)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

impl Report {
    /// Compares the logits of a prompt with those of the same prompt computed in other ways.
    fn compare_bits(
        &mut self,
        runner: &mut DeviceRunner,
        prompt: &[Token],
        other: &[Token],
    ) -> anyhow::Result<()> {
        let (first, second) = (table(0), table(1));
        let cold = bits(&logits(runner, [&first, &second], (prompt, 0), &[])?);
        let mut found = Vec::new();
        for (index, chunk) in prompt.chunks(7).enumerate() {
            found.extend(bits(&logits(runner, [&first, &second], (chunk, 7 * index), &[])?));
        }
        self.chunks_equal = found == cold;
        self.batched_equal = bits(&logits(runner, [&first, &second], (prompt, 0), other)?) == cold;
        self.cached_equal = cached(runner, prompt)? == cold[3 * BLOCK_POSITIONS * runner.vocab_len()..];
        runner.device().destroy();
        let fault = logits(runner, [&first, &second], (prompt, 0), &[]);
        ensure!(fault.is_err(), "a step on a lost device did not fail");
        runner.restore();
        self.recovered_equal = bits(&logits(runner, [&first, &second], (prompt, 0), &[])?) == cold;
        Ok(())
    }

    /// Fails if anything differs that must not.
    pub(super) fn verdict(&self) -> anyhow::Result<()> {
        let differ = self.prompts - self.equal - self.ties;
        ensure!(differ == 0, "{differ} of {} answers are not those of the processor", self.prompts);
        let ways = [
            ("in chunks", self.chunks_equal),
            ("in a batch", self.batched_equal),
            ("from cached blocks", self.cached_equal),
            ("after a lost step", self.recovered_equal),
        ];
        let wrong: Vec<&str> = ways.iter().filter(|(_, equal)| !equal).map(|(way, _)| *way).collect();
        ensure!(wrong.is_empty(), "logits have other bits {}", wrong.join(" and "));
        Ok(())
    }
}

/// The bits of logits behind three blocks that were copied out and, to other places, in again.
fn cached(runner: &mut DeviceRunner, prompt: &[Token]) -> anyhow::Result<Vec<u32>> {
    let (mut moved, second) = (table(0), table(1));
    for (block, to) in moved.iter_mut().zip(table(2)).take(3) {
        let mut bytes = vec![0; runner.layout().block_bytes()];
        runner.read_block(*block, &mut bytes);
        runner.write_block(to, &bytes);
        *block = to;
    }
    let from = 3 * BLOCK_POSITIONS;
    Ok(bits(&logits(runner, [&moved, &second], (&prompt[from..], from), &[])?))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { model, name, prompts, equal, ties, .. } = self;
        let same = |equal| if equal { "the same bits" } else { "OTHER BITS" };
        writeln!(f, "{model} on {name}, in {:.1} s", self.seconds)?;
        writeln!(
            f,
            "  {equal} of {prompts} answers are the processor's, {ties} differ between tokens as likely"
        )?;
        writeln!(f, "  in chunks        {}", same(self.chunks_equal))?;
        writeln!(f, "  in a batch       {}", same(self.batched_equal))?;
        writeln!(f, "  from cached      {}", same(self.cached_equal))?;
        write!(f, "  after a loss     {}", same(self.recovered_equal))
    }
}

#[cfg(test)]
mod tests {
    use kvik_model::batch::{Computed, NO_TOKEN};
    use kvik_model::device::devices;
    use kvik_model::observation::Watched;

    use super::*;

    /// Computes logits that are no numbers.
    #[derive(Default)]
    struct Broken {
        logits: Vec<f32>,
        likeliest: Vec<Token>,
    }

    impl Runner for Broken {
        fn vocab_len(&self) -> usize {
            4
        }

        fn copy_partial(&mut self, _: BlockId, _: BlockId, _: usize) {}

        fn read_block(&self, _: BlockId, _: &mut [u8]) {}

        fn write_block(&mut self, _: BlockId, _: &[u8]) {}

        fn forward(&mut self, batch: &Batch<'_>, _: &mut [Watched<'_>]) -> &[f32] {
            assert!(batch.rows.iter().all(|row| row.token < 4), "{:?}", batch.rows);
            let rows = batch.rows.iter().filter(|row| row.output == Output::Logits).count();
            self.logits = vec![f32::NAN; 4 * rows];
            &self.logits
        }

        fn chooses(&self) -> bool {
            true
        }

        fn compute(
            &mut self,
            batch: &Batch<'_>,
            watched: &mut [Watched<'_>],
        ) -> Result<Computed<'_>, RunnerFault> {
            let rows = batch.rows.iter().filter(|row| row.output == Output::Likeliest).count();
            self.likeliest = vec![NO_TOKEN; rows];
            self.forward(batch, watched);
            Ok(Computed { outputs: &self.logits, likeliest: &self.likeliest })
        }
    }

    #[test]
    fn what_is_computed_without_numbers_differs_and_is_no_tie() {
        let found = answers(&mut Broken::default(), &[vec![1, 2], vec![3]], 3).unwrap();
        assert_eq!(found, [[NO_TOKEN; 3]; 2]);
        for tokens in [[0, NO_TOKEN], [NO_TOKEN, 1], [0, 1]] {
            assert!(!is_tie(&mut Broken::default(), &[1, 2], tokens).unwrap(), "{tokens:?}");
        }
    }

    #[test]
    fn a_device_passes_and_what_differs_is_named() {
        if devices().is_empty() {
            return kvik_testing::skip("no GPU, nor one of software");
        }
        let file = kvik_testing::repository().join("crates/kvik-model/tests/golden/arch-qwen3.gguf");
        let args = ModelArgs::embedded().of(&file.display().to_string());
        let report = check(&args, DeviceChoice::Gpu(Some(0)), [3, 2]).unwrap();
        report.verdict().unwrap();
        assert_eq!((report.prompts, report.equal + report.ties), (3, 3));
        let wrong = Report { equal: 1, ties: 1, ..report.clone() };
        assert!(wrong.verdict().unwrap_err().to_string().contains("1 of 3"));
        let wrong = Report { cached_equal: false, recovered_equal: false, ..report };
        let said = wrong.verdict().unwrap_err().to_string();
        assert!(said.contains("from cached blocks and after a lost step"), "{said}");
        assert!(check(&args, DeviceChoice::Cpu, [1, 1]).is_err());
    }
}
