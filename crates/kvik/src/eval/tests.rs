use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use kvik_cache::{CacheConfig, Policy, Token};
use kvik_engine::api::Request;
use kvik_engine::config::EngineConfig;
use kvik_engine::engine::Engine;
use kvik_engine::retain::repeat::RepeatPrompt;
use kvik_kernels::KvFormat;
use kvik_model::{Model, ModelRunner};
use kvik_session::OpenedModel;
use kvik_text::stream::Vocabulary;

use super::encode::Encoder;
use super::exam::{Exam, ExamSetup, Grader};
use super::generate::TASKS;
use super::results::ResultRow;
use super::run::EvalRun;
use super::setting::{Setting, Sight, retentions, settings};
use super::tasks::{self, EvalCase, EvalTask, Sources, Work};
use kvik_serving::open;
use kvik_serving::settings::model::ModelArgs;

/// Generated cases of the embedded model that it answers.
fn cases(opened: &OpenedModel<Model>, task: &str, count: usize) -> EvalTask {
    let encoder = Encoder { tokenizer: &opened.tokenizer, template: opened.template.as_ref() };
    let task = TASKS.iter().find(|known| known.name == task).unwrap();
    let case = |number| {
        let case = task.case(&encoder, 1, number, 300);
        let prompt = encoder.encode(&case).unwrap();
        EvalCase { prompt, expected: case.expected, limit: case.limit, group: case.group }
    };
    EvalTask { name: task.name.to_owned(), work: Work::Answer((0..count).map(case).collect()) }
}

/// Runs the embedded model with 32-bit keys and values.
fn with_run(tasks: &[(&str, usize)], settings: Vec<Setting>, check: impl FnOnce(&EvalRun<'_>)) {
    let args = ModelArgs::embedded();
    let opened = open::model(&args, &args.pool().unwrap()).unwrap();
    let tasks: Vec<EvalTask> = tasks.iter().map(|(name, count)| cases(&opened, name, *count)).collect();
    let layout = ModelRunner::layout(opened.model.config(), &KvFormat::F32.into()).unwrap();
    let OpenedModel { model, tokenizer, template, .. } = opened;
    check(&EvalRun {
        model: Arc::new(model),
        tokenizer: &tokenizer,
        repeat: RepeatPrompt::new(&tokenizer, template.as_ref()),
        tasks: &tasks,
        exact: layout.clone(),
        layouts: vec![layout],
        settings,
        importance: None,
        gates: None,
        bytes: 64 << 20,
        speed: false,
        pool: &|| args.pool(),
    });
}

/// Settings of retentions, preceded by the one that keeps everything.
fn kept(texts: &[&str], sights: &[Sight]) -> Vec<Setting> {
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    [vec![Setting::EVERYTHING], settings(&retentions(&texts, &[]).unwrap(), sights)].concat()
}

#[test]
fn all_cases_of_a_file_are_asked_where_no_number_is_said() {
    let loaded = ModelArgs::embedded().load().unwrap();
    let template = loaded.template(None).unwrap();
    let encoder = Encoder { tokenizer: &loaded.tokenizer, template: Some(&template) };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cases.jsonl");
    let line = r#"{"messages": [{"role": "user", "content": "The key is 5. What is it?"}], "contains": "5", "question": "What"}"#;
    fs::write(&file, format!("{line}\n").repeat(tasks::CASES + 10)).unwrap();
    let cases = |task: &str, cases| {
        let (held_out, data, text) = (PathBuf::new(), Some(file.clone()), None);
        let sources = Sources { held_out, data, text, seed: 1, lengths: vec![300], cases };
        tasks::named(&[task.to_owned()], &sources, &encoder).unwrap()[0].len()
    };
    assert_eq!(cases("data", None), tasks::CASES + 10);
    assert_eq!((cases("data", Some(45)), cases("data:7", Some(45))), (45, 7));
    assert_eq!((cases("recall", None), cases("recall", Some(3))), (tasks::CASES, 3));
}

#[test]
fn gates_are_trained_from_enough_positions() {
    with_run(&[("recall", 3), ("passkey", 3)], vec![Setting::EVERYTHING], |run| {
        let (gates, positions) = run.train_gates().unwrap();
        assert!(gates.fits(&run.exact), "{positions} positions");
        assert!((1000..=1800).contains(&positions), "{positions}");
    });
    with_run(&[("recall", 1)], vec![Setting::EVERYTHING], |run| {
        let error = run.train_gates().err().unwrap().to_string();
        assert!(error.contains("need 1000 positions") && error.contains("--cases"), "{error}");
    });
}

#[test]
fn keys_unlike_the_others_answer_what_keys_at_random_do_not() {
    let settings = kept(&["keydiff:0.5", "random:0.5"], &[Sight::Unseen, Sight::Seen]);
    with_run(&[("recall", 5), ("passkey", 5)], settings, |run| {
        let mut steps = 0;
        let rows = run.measure(&mut || steps += 1).unwrap();
        assert_eq!((steps, rows.len()), (10, 5));
        let right = |row: &ResultRow| row.answers.values().map(|cell| cell.right).sum::<f64>();
        let all = right(&rows[0]);
        assert!(all >= 7.0, "{all} right with everything kept");
        for pair in [&rows[1..3], &rows[3..5]] {
            assert!(
                right(&pair[0]) >= 0.7 * all && right(&pair[1]) <= 0.5 * all,
                "{:?}",
                rows.iter().map(right).collect::<Vec<_>>()
            );
            assert!((0.49..0.51).contains(&pair[0].cost.kept().mean), "{:?}", pair[0].cost.kept());
        }
        assert_eq!(rows[0].cost.kept().mean, 1.0);
    });
}

#[test]
fn everything_kept_answers_as_plain_decoding_does() {
    with_run(&[("recall", 2)], kept(&["sinks:1", "keydiff:1"], &[Sight::Unseen, Sight::Seen]), |run| {
        let (mut exam, stop) = (exam(run), run.tokenizer.eog());
        for case in run.tasks[0].cases() {
            let plain = plain(&mut exam, case, stop);
            let mut rows: Vec<ResultRow> = run
                .settings
                .iter()
                .map(|setting| ResultRow::new(setting.clone(), "f32".to_owned()))
                .collect();
            // The expected answer is exactly that of plain decoding.
            let expected = super::score::Expected::Contains(vec![run.tokenizer.decode(&plain)]);
            let case = EvalCase { expected, ..case.clone() };
            exam.ask(&case, "plain", &mut rows, &Grader { tokenizer: run.tokenizer, stop });
            assert!(rows.iter().all(|row| row.answers["plain"].right == 1.0), "{rows:?}");
        }
    });
}

/// An exam of a run's model, with 32-bit keys and values.
fn exam(run: &EvalRun<'_>) -> Exam {
    let setup = ExamSetup {
        model: run.model.clone(),
        layout: run.exact.clone(),
        repeat: run.repeat.clone(),
        prompt_max: 500,
        answer_max: 100,
        bytes: 16 << 20,
        importance: None,
        gates: None,
    };
    Exam::new(&setup, (run.pool)().unwrap()).unwrap()
}

/// Exams once kept the first keys of `sinks` as they were, while serving renews their RoPE rotation.
#[test]
fn an_exam_answers_what_is_served() {
    let retention = "sinks:0.25,every=512";
    with_run(&[("recall", 3)], kept(&[retention], &[Sight::Seen]), |run| {
        let (blocks, context) = (100, 1024);
        let runner =
            ModelRunner::new(run.model.clone(), (run.pool)().unwrap(), run.exact.clone(), blocks, context)
                .unwrap();
        let cache = CacheConfig { blocks, policy: Policy::Lru, ghosts: 0, pinned_max: 0 };
        let config = EngineConfig::new(&run.exact, run.model.digest(), context);
        let engine = Engine::start(runner, Vocabulary::from(run.tokenizer), cache, config).unwrap();
        let (mut exam, stop) = (exam(run), run.tokenizer.eog());
        for case in run.tasks[0].cases() {
            let retention = Some(retention.parse().unwrap());
            let request = Request { retention, ..Request::new(case.prompt.whole(), case.limit) };
            let served = engine.generate(request).unwrap().choices[0].text.clone();
            let expected = super::score::Expected::Contains(vec![served]);
            let case = EvalCase { expected, ..case.clone() };
            let setting = run.settings[1].clone();
            let mut rows = [ResultRow::new(setting, "f32".to_owned())];
            exam.ask(&case, "served", &mut rows, &Grader { tokenizer: run.tokenizer, stop });
            assert_eq!(rows[0].answers["served"].right, 1.0, "{rows:?}");
        }
    });
}

/// Decodes without a cache: reads the whole prompt again for every token.
fn plain(exam: &mut Exam, case: &EvalCase, stop: &[Token]) -> Vec<Token> {
    let (mut tokens, mut answer) = (case.prompt.whole(), Vec::new());
    loop {
        let token = exam.read(&tokens, []);
        if stop.contains(&token) || answer.len() == case.limit {
            return answer;
        }
        tokens.push(token);
        answer.push(token);
    }
}

#[test]
fn the_head_that_recalls_is_found() {
    with_run(&[("recall", 3)], kept(&[], &[]), |run| {
        let losses = run.calibrate(&mut || {}).unwrap();
        assert!(losses[0].cases >= 1);
        let layers = super::calibrate::importance(&losses).layers;
        assert_eq!(layers[5][1], 1.0, "{layers:?}");
        assert_eq!(layers.iter().flatten().filter(|&&share| share > 0.5).count(), 1, "{layers:?}");
    });
}
