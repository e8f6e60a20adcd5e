//! Kept prompts and what is on disk: warm in another process, cold after they are forgotten, whole after a kill.

use crate::common;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{greedy, model_on, options, text};
use kvik_library::{
    AnswerOptions, Error, KeptState, Message, Model, OfferedTool, Options, Source, StopReason, ToolChoice,
};
use serde_json::json;

/// Where the process that is killed has its cache.
const DIR: &str = "KVIK_LIBRARY_TEST_DIR";

#[test]
fn a_kept_prompt_is_warm_in_another_process_and_cold_after_it_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let system = vec![Message::system(text(1, 150))];
    let mut asked = system.clone();
    asked.push(Message::user("Which river?"));
    let model = model_on(dir.path());
    let tokens = model.count_tokens(asked.clone()).unwrap();
    let kept = model.keep_prompt("notify", system.clone()).unwrap();
    assert!(kept.is_warm(), "{kept:?}");
    let expect = model.chat(&asked, &greedy(12)).unwrap().finish().unwrap();
    assert!(expect.1.cached_tokens > tokens * 3 / 4, "{expect:?}");
    assert!(model.close().unwrap().is_complete());

    let model = model_on(dir.path());
    assert!(model.is_kept("notify", system.clone()).unwrap().is_warm());
    assert_eq!(model.is_kept("other", system.clone()).unwrap(), KeptState::Unknown);
    assert_eq!(model.is_kept("notify", "Else").unwrap(), KeptState::Changed);
    let (answer, report) = model.chat(&asked, &greedy(12)).unwrap().finish().unwrap();
    assert_eq!(answer, expect.0);
    assert_eq!(report.computed_tokens, 1, "{report:?}");
    assert!(model.forget_prompt("notify").unwrap());
    assert!(!model.forget_prompt("notify").unwrap());
    model.close().unwrap();

    let model = model_on(dir.path());
    assert_eq!(model.is_kept("notify", system.clone()).unwrap(), KeptState::Unknown);
    // The chat that began with it is as warm as any, and evicted as any: nothing pins it.
    model.on_memory_pressure(kvik_library::MemoryPressure::Critical).unwrap();
    assert_eq!(model.stats().kv_cached_bytes, 0);
}

/// Writes the switch for reasoning and the tools before all messages.
const OPTIONS_FIRST: &str = "\
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '/no_think\\n' }}{%- endif %}\
    {%- if tools %}{{- tools[0].function.name + '\\n' }}{%- endif %}\
    {%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}\
    {%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

/// The embedded model with another template: spaces within the last tag make it as long as its own.
fn model_with(template: &str) -> Model {
    let mut bytes = std::fs::read(kvik_testing::tiny_model()).unwrap();
    let own = b"{%- for m in messages %}";
    let begin = bytes.windows(own.len()).position(|window| window == own).unwrap();
    let length = u64::from_le_bytes(bytes[begin - 8..begin].try_into().unwrap()) as usize;
    let open = template.strip_suffix("%}").unwrap();
    let padded = format!("{open:<width$}%}}", width = length - 2);
    bytes[begin..begin + length].copy_from_slice(padded.as_bytes());
    Model::open(Options { source: Source::Bytes(bytes), ..options() }).unwrap()
}

#[test]
fn a_prompt_is_kept_as_answers_with_its_options_read_it() {
    let model = model_with(OPTIONS_FIRST);
    let system = [Message::system(text(30, 150))];
    let asked = [system[0].clone(), Message::user("Which river?")];
    let parameters = json!({"type": "object"});
    let tool = OfferedTool { name: "weather of a day".to_owned(), description: None, parameters };
    for options in [
        AnswerOptions { reasoning: Some(false), ..greedy(1) },
        AnswerOptions { tools: vec![tool], ..greedy(1) },
    ] {
        model.keep_prompt("notify", &system[..]).unwrap();
        let before = model.explain((&asked[..], &options)).unwrap();
        assert!(before.known_tokens < 16, "the template begins with the options: {before:?}");
        assert_eq!(model.is_kept("notify", (&system[..], &options)).unwrap(), KeptState::Changed);
        assert!(model.keep_prompt("notify", (&system[..], &options)).unwrap().is_warm());
        assert!(model.is_kept("notify", (&system[..], &options)).unwrap().is_warm());
        let found = model.explain((&asked[..], &options)).unwrap();
        assert!(found.known_tokens * 4 > found.prompt_tokens * 3, "{found:?}");
        assert_eq!(model.count_tokens((&asked[..], &options)).unwrap(), found.prompt_tokens);
        assert_eq!(model.logits_of((&asked[..], &options), &[0]).unwrap().prompt_tokens, found.prompt_tokens);
        let (_, report) = model.chat(&asked, &options).unwrap().finish().unwrap();
        assert_eq!(report.prompt_tokens, found.prompt_tokens);
    }
    let forced = AnswerOptions { tool_choice: ToolChoice::Named("news".to_owned()), ..greedy(1) };
    assert!(matches!(model.keep_prompt("notify", (&system[..], &forced)), Err(Error::Tools(_))));
}

#[test]
fn what_only_a_kept_prompt_needs_is_dropped_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let model = model_on(dir.path());
    let prompt = text(2, 100);
    model.keep_prompt("a", prompt.as_str()).unwrap();
    model.keep_prompt("b", prompt.as_str()).unwrap();
    model.forget_prompt("a").unwrap();
    assert!(model.is_kept("b", prompt.as_str()).unwrap().is_warm(), "another name stands for the same");
    model.forget_prompt("b").unwrap();
    let explained = model.explain(prompt.as_str()).unwrap();
    assert!(explained.known_tokens < 16, "{explained:?}");
    // A name that stands for something else lets go what it stood for.
    model.keep_prompt("c", prompt.as_str()).unwrap();
    model.keep_prompt("c", "Something else, and short of course").unwrap();
    assert!(model.explain(prompt.as_str()).unwrap().known_tokens < 16);
    assert_eq!(model.is_kept("c", prompt.as_str()).unwrap(), KeptState::Changed);
}

#[test]
fn what_another_model_has_changed_under_a_name_is_unpinned_by_the_one_that_had_pinned_it() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (model_on(dir.path()), model_on(dir.path()));
    let prompts = [20, 21, 22, 23].map(|seed| text(seed, 100));
    first.keep_prompt("a", prompts[0].as_str()).unwrap();
    first.keep_prompt("b", prompts[1].as_str()).unwrap();
    second.keep_prompt("a", prompts[2].as_str()).unwrap();
    assert!(second.forget_prompt("b").unwrap());
    first.keep_prompt("c", prompts[3].as_str()).unwrap();
    for prompt in &prompts[..2] {
        let explained = first.explain(prompt.as_str()).unwrap();
        assert!(explained.known_tokens < 16, "{explained:?}");
    }
    assert!(first.is_kept("c", prompts[3].as_str()).unwrap().is_warm());
    assert!(second.is_kept("a", prompts[2].as_str()).unwrap().is_warm());
}

#[test]
fn a_second_model_reads_the_disk_of_the_first_and_takes_over_when_that_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (model_on(dir.path()), model_on(dir.path()));
    let prompt = text(7, 150);
    let computed = |model: &Model, prompt: &str| {
        let (answer, report) = model.generate(prompt, &greedy(8)).unwrap().finish().unwrap();
        (answer, report.cached_tokens)
    };
    let (said, cached) = computed(&first, &prompt);
    assert_eq!(cached, 0);
    first.on_background().unwrap();
    until("the second sees what the first has written", || {
        second.explain(prompt.as_str()).unwrap().disk_tokens > 0
    });
    let (again, cached) = computed(&second, &prompt);
    assert!(again == said && cached > 100, "{cached} tokens from the disk of the first");
    drop(first);
    until("the second writes", || {
        // What is computed before it has taken over is not written.
        let before = second.stats().disk.unwrap().used_blocks;
        computed(&second, &text(8, 40));
        second.on_background().unwrap();
        second.stats().disk.unwrap().used_blocks > before
    });
    drop(second);
    let third = model_on(dir.path());
    for text in [prompt, text(8, 40)] {
        assert!(third.explain(text.as_str()).unwrap().known_tokens > 16, "of both");
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn going_to_the_background_cancels_and_makes_durable_and_the_model_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let model = model_on(dir.path());
    let prompt = text(3, 150);
    let mut answer = model.generate(prompt.as_str(), &common::endless(1)).unwrap();
    answer.next().unwrap().unwrap();
    let started = Instant::now();
    let durable = model.on_background().unwrap();
    let took = started.elapsed();
    assert!(durable.is_complete(), "{durable:?} after {took:?}");
    assert_eq!(model.stats().disk.unwrap().unwritten_blocks, 0);
    let (_, report) = answer.finish().unwrap();
    assert_eq!(report.finish, kvik_library::Finish::Cancelled);
    let (_, report) = model.generate(prompt.as_str(), &greedy(2)).unwrap().finish().unwrap();
    assert_eq!((report.computed_tokens, report.finish), (1, kvik_library::Finish::Length));
}

/// Not a test by itself: the process that [`what_was_computed_before_a_kill_is_found_again`] kills.
#[test]
fn process_that_is_killed() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let model = model_on(Path::new(&dir));
    model.keep_prompt("notify", text(4, 120)).unwrap();
    let (answer, _) = model.generate(text(5, 160), &greedy(12)).unwrap().finish().unwrap();
    let durable = model.on_background().unwrap();
    println!("\nanswer {} {answer:?}", durable.is_complete());
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn what_was_computed_before_a_kill_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kept::process_that_is_killed", "--nocapture"])
        .env(DIR, dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let said = lines.into_iter().find(|line| line.starts_with("answer ")).expect("it answers");
    // SIGKILL: nothing in the process has a say.
    child.kill().unwrap();
    child.wait().unwrap();
    let model = model_on(dir.path());
    assert!(model.is_kept("notify", text(4, 120)).unwrap().is_warm());
    let explained = model.explain(text(5, 160)).unwrap();
    assert!(explained.prompt_tokens - explained.known_tokens <= 16, "whole blocks are there: {explained:?}");
    let (answer, report) = model.generate(text(5, 160), &greedy(12)).unwrap().finish().unwrap();
    assert_eq!(said, format!("answer true {answer:?}"));
    assert!(report.computed_tokens <= 16 && report.reason != Some(StopReason::LoadFailed), "{report:?}");
}

#[test]
fn a_prompt_that_cannot_be_written_down_is_not_kept_and_one_too_large_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let model = model_on(dir.path());
    model.keep_prompt("a", text(6, 30)).unwrap();
    let lists = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let list = lists.into_iter().find(|path| path.extension().is_some_and(|e| e == "json")).unwrap();
    std::fs::remove_file(&list).unwrap();
    std::fs::create_dir_all(list.join("in the way")).unwrap();
    let prompt = text(7, 100);
    let error = model.keep_prompt("b", prompt.as_str()).unwrap_err();
    assert!(matches!(&error, Error::KeptPrompts { path, .. } if *path == list), "{error}");
    assert!(model.explain(prompt.as_str()).unwrap().known_tokens < 16, "nothing pins it");
    assert!(model.is_kept("a", text(6, 30)).unwrap().is_warm(), "what was kept is kept");

    let small = Model::open(Options { kv_bytes: Some(4 << 20), ..options() }).unwrap();
    let tokens = small.context_tokens();
    let mut words = 10;
    while small.count_tokens(text(8, words * 2)).unwrap() < tokens * 3 / 4 {
        words *= 2;
    }
    let error = small.keep_prompt("large", text(8, words)).map(|_| small.keep_prompt("more", text(9, words)));
    let error = error.and_then(|more| more).unwrap_err();
    assert!(
        matches!(error, Error::NoRoomToKeep { .. }) && error.to_string().contains("`kv_bytes`"),
        "{error}"
    );
}
