//! A run: every task under every setting with every KV format, with one exam per format.

use std::sync::Arc;

use anyhow::bail;
use kvik_cache::Token;
use kvik_cache::retain::{HeadImportance, Keep, Kvzip, Policy, Retention};
use kvik_engine::retain::repeat::RepeatPrompt;
use kvik_kernels::{KvLayout, Pool, PoolError};
use kvik_model::Model;
use kvik_model::gates::{GateSchool, Gates};
use kvik_serving::measured::GATE_POSITIONS_MIN;
use kvik_text::tokenizer::Tokenizer;

use super::calibrate::HeadLosses;
use super::exam::{Exam, ExamSetup, Grader};
use super::results::ResultRow;
use super::setting::Setting;
use super::speed::STEPS;
use super::tasks::{EvalCase, EvalTask, Work};
use super::windows::Window;

/// Prompts of a task from which gates are trained: some thousands of positions of each kind of text.
const GATE_PROMPTS: usize = 8;

/// The input of a run.
pub(crate) struct EvalRun<'a> {
    pub(crate) model: Arc<Model>,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) repeat: RepeatPrompt,
    pub(crate) tasks: &'a [EvalTask],
    /// The reference layout: keys and values in 32-bit floats.
    pub(crate) exact: KvLayout,
    /// The layouts to measure, with or without the exact one.
    pub(crate) layouts: Vec<KvLayout>,
    /// The settings; the first one keeps everything.
    pub(crate) settings: Vec<Setting>,
    /// The importance of heads, if it was measured.
    pub(crate) importance: Option<HeadImportance>,
    /// The gates of the model, if they were trained.
    pub(crate) gates: Option<Arc<Gates>>,
    /// Bytes for the variants of a prompt.
    pub(crate) bytes: usize,
    /// Whether to measure times of one long prompt alone.
    pub(crate) speed: bool,
    /// Creates compute threads.
    pub(crate) pool: &'a dyn Fn() -> Result<Pool, PoolError>,
}

impl EvalRun<'_> {
    /// Steps of [`EvalRun::measure`]: one for each case with each format.
    pub(crate) fn steps(&self) -> usize {
        self.formats().len() * self.tasks.iter().map(EvalTask::len).sum::<usize>()
    }

    /// Steps of [`EvalRun::calibrate`]: one for each case.
    pub(crate) fn calibration_steps(&self) -> usize {
        self.cases().count()
    }

    /// Trains the gates of the model, with the exact format, from the first prompts of each task: no answer need be
    /// right. Returns them with the number of positions that they were trained from.
    ///
    /// # Errors
    /// If there is not enough memory, or the prompts are too few.
    pub(crate) fn train_gates(&self) -> anyhow::Result<(Gates, usize)> {
        let mut exam = self.exam(&self.exact)?;
        let mut school = GateSchool::new(&self.exact);
        let repeated = Retention::new(Policy::Kvzip(Kvzip::DEFAULT), Keep::Share(1.0));
        for prompt in self.tasks.iter().flat_map(gate_prompts) {
            exam.read(prompt, [repeated]);
            exam.lab().teach(&mut school);
        }
        let positions = school.positions();
        let gates = school.gates().filter(|_| positions >= GATE_POSITIONS_MIN);
        let Some(gates) = gates else {
            bail!(
                "--calibrate: gates need {GATE_POSITIONS_MIN} positions, and the prompts have {positions}; take more \
                 --cases or a longer --text"
            )
        };
        Ok((gates, positions))
    }

    /// Runs all tasks; calls `step` after each case. The first row is the exact one.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(crate) fn measure(&self, step: &mut dyn FnMut()) -> anyhow::Result<Vec<ResultRow>> {
        let mut rows = Vec::new();
        for (layout, settings) in self.formats() {
            let kv = layout.format_name();
            let row = |setting: &Setting| ResultRow::new(setting.clone(), kv.clone());
            let mut own: Vec<ResultRow> = settings.iter().map(row).collect();
            self.measure_format(layout, &mut own, step)?;
            rows.append(&mut own);
        }
        Ok(rows)
    }

    /// The formats with their settings, the exact one first. If the exact one was not requested, only the setting that
    /// keeps everything is measured with it, as the reference.
    fn formats(&self) -> Vec<(&KvLayout, &[Setting])> {
        let asked = self.layouts.contains(&self.exact);
        let exact = (&self.exact, if asked { &self.settings[..] } else { &self.settings[..1] });
        let others = self.layouts.iter().filter(|layout| **layout != self.exact);
        [exact].into_iter().chain(others.map(|layout| (layout, &self.settings[..]))).collect()
    }

    fn measure_format(
        &self,
        layout: &KvLayout,
        rows: &mut [ResultRow],
        step: &mut dyn FnMut(),
    ) -> anyhow::Result<()> {
        let mut exam = self.exam(layout)?;
        let stop = self.tokenizer.eog();
        let grader = Grader { tokenizer: self.tokenizer, stop };
        let predicts = self.tasks.iter().any(|task| matches!(task.work, Work::Predict(_)));
        let mut exact = if predicts { Some(self.exam(&self.exact)?) } else { None };
        for task in self.tasks {
            match (&task.work, &mut exact) {
                (Work::Answer(cases), _) => cases.iter().for_each(|case| {
                    exam.ask(case, &task.name, rows, &grader);
                    step();
                }),
                (Work::Predict(windows), Some(exact)) => windows.iter().for_each(|window| {
                    exam.predict(exact, window, &task.name, rows);
                    step();
                }),
                (Work::Predict(_), None) => {}
            }
        }
        if self.speed {
            let prompt = self.longest();
            rows.iter_mut().for_each(|row| row.speed = Some(exam.time(&prompt, row.setting.retention)));
        }
        Ok(())
    }

    /// The losses without each head, by task, with the exact format; calls `step` after each case.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(crate) fn calibrate(&self, step: &mut dyn FnMut()) -> anyhow::Result<Vec<HeadLosses>> {
        let mut exam = self.exam(&self.exact)?;
        let grader = Grader { tokenizer: self.tokenizer, stop: self.tokenizer.eog() };
        let of_task = |task: &EvalTask| {
            let mut losses = HeadLosses::new(&exam.shape());
            for case in task.cases() {
                exam.lose_heads(case, &mut losses, &grader);
                step();
            }
            losses
        };
        Ok(self.tasks.iter().map(of_task).collect())
    }

    /// The longest prompt.
    fn longest(&self) -> Vec<Token> {
        let windows = self.windows().map(|window| window.tokens[..window.middle].to_vec());
        let prompts = self.cases().map(|case| case.prompt.whole()).chain(windows);
        prompts.max_by_key(Vec::len).unwrap_or_default()
    }

    fn windows(&self) -> impl Iterator<Item = &Window> {
        self.tasks.iter().flat_map(|task| match &task.work {
            Work::Predict(windows) => &windows[..],
            Work::Answer(_) => &[],
        })
    }

    fn cases(&self) -> impl Iterator<Item = &EvalCase> {
        self.tasks.iter().flat_map(EvalTask::cases)
    }

    fn exam(&self, layout: &KvLayout) -> anyhow::Result<Exam> {
        let answers = self.cases().map(|case| (case.prompt.len(), case.prompt.question.len() + case.limit));
        let lengths =
            answers.chain(self.windows().map(|window| (window.middle, window.tokens.len() - window.middle)));
        let (prompt_max, answer_max) =
            lengths.fold((1, 1), |(prompt, answer), case| (prompt.max(case.0), answer.max(case.1)));
        let setup = ExamSetup {
            model: self.model.clone(),
            layout: layout.clone(),
            repeat: self.repeat.clone(),
            prompt_max,
            answer_max: answer_max.max(STEPS),
            bytes: self.bytes,
            importance: self.importance.clone(),
            gates: self.gates.clone(),
        };
        Exam::new(&setup, (self.pool)()?)
    }
}

/// What gates are trained from: the first prompts of a task, without questions.
fn gate_prompts(task: &EvalTask) -> Vec<&[Token]> {
    let (cases, windows) = match &task.work {
        Work::Answer(cases) => (&cases[..], &[][..]),
        Work::Predict(windows) => (&[][..], &windows[..]),
    };
    let contexts = cases.iter().map(|case| &case.prompt.context[..]);
    let halves = windows.iter().map(|window: &Window| &window.tokens[..window.middle]);
    contexts.chain(halves).take(GATE_PROMPTS).collect()
}
