//! The definition as other languages use it: handles, batches, closing while others ask, what is durable.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use kvik_uniffi::{
    AnswerHandle, AnswerOptions, Constraint, Finish, KeptState, KvikError, MemoryPressure, Message,
    ModelHandle, ModelOptions, Piece, Prompt, Reason, Role,
};

/// Tokens that take a while, and fit the context behind a prompt.
const ENDLESS: i64 = 1500;

/// Bytes of the stack of a thread on iOS, but for the first.
const STACK_BYTES: usize = 512 << 10;

fn model(dir: Option<&Path>) -> Arc<ModelHandle> {
    let options = ModelOptions {
        kv_bytes: Some(64 << 20),
        threads: Some(2),
        disk_dir: dir.map(|dir| dir.to_str().unwrap().to_owned()),
        ..ModelOptions::default()
    };
    ModelHandle::open(kvik_testing::tiny_model().to_str().unwrap().to_owned(), options).unwrap()
}

fn message(role: Role, content: &str) -> Message {
    Message { role, content: content.to_owned(), tool_calls: Vec::new(), tool_call_id: None }
}

fn chat(text: &str) -> Prompt {
    Prompt::Messages { messages: vec![message(Role::System, "Be brief."), message(Role::User, text)] }
}

/// Reads an answer to its end: its text.
fn read(answer: &AnswerHandle) -> String {
    let mut text = String::new();
    loop {
        let batch = answer.next().unwrap();
        for piece in &batch {
            match piece {
                Piece::Text { text: more } => text += more,
                other => panic!("{other:?}"),
            }
        }
        if batch.is_empty() {
            return text;
        }
    }
}

fn at_most(tokens: i64) -> AnswerOptions {
    AnswerOptions { max_tokens: Some(tokens), ..AnswerOptions::default() }
}

/// An answer that nothing but its length or its reader ends.
fn endless() -> AnswerOptions {
    AnswerOptions { min_tokens: ENDLESS, temperature: Some(0.9), ..at_most(ENDLESS) }
}

#[test]
fn an_answer_is_the_librarys() {
    let model = model(None);
    let answer = model.generate(chat("Who are you?"), at_most(12)).unwrap();
    assert_eq!(answer.report(), None);
    let text = read(&answer);
    assert_eq!(answer.rest(), Ok(Vec::new()), "it was read to its end");
    let report = answer.report().unwrap();
    assert_eq!(report.cached_tokens + report.computed_tokens, report.prompt_tokens);
    assert_eq!(report.reason, Some(Reason::FirstSeen));

    let library = kvik_library::Model::open(kvik_library::Options {
        kv_bytes: Some(64 << 20),
        threads: Some(2),
        ..kvik_library::Options::new(kvik_testing::tiny_model())
    })
    .unwrap();
    let messages = [kvik_library::Message::system("Be brief."), kvik_library::Message::user("Who are you?")];
    let again = model.generate(chat("Who are you?"), at_most(12)).unwrap();
    let rest = again.rest().unwrap().into_iter().map(|piece| match piece {
        Piece::Text { text } => text,
        other => panic!("{other:?}"),
    });
    assert_eq!(rest.collect::<String>(), text);
    let answer = library.chat(&messages, &kvik_library::AnswerOptions::GREEDY.at_most(12)).unwrap();
    let (expect, taken) = answer.finish().unwrap();
    assert_eq!((text, report.generated_tokens), (expect, taken.generated_tokens as i64));
}

#[test]
fn the_sampling_in_force_is_told_with_its_sources() {
    let sampling = model(None).sampling(None).unwrap();
    assert_eq!(
        (sampling.temperature.value, sampling.temperature.source),
        (0.0, "family kvik-tiny".to_owned())
    );
    assert_eq!((sampling.top_p.value, sampling.top_p.source), (0.95, "kvik".to_owned()));
}

#[test]
fn vectors_are_numbers_of_four_bytes() {
    let embedding = model(None).embed("a river".to_owned()).unwrap();
    let numbers: Vec<f32> =
        embedding.vector.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    let length: f32 = numbers.iter().map(|number| number * number).sum();
    assert!((length - 1.0).abs() < 1e-4, "{length}");
    assert!(numbers.len() > 16 && embedding.prompt_tokens > 0);
}

#[test]
fn closing_cancels_answers_and_ends_the_handle_for_all_threads() {
    let model = model(None);
    let answer = model.generate(chat("Tell me all."), endless()).unwrap();
    assert!(!answer.next().unwrap().is_empty());
    let asking: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn({
                let model = model.clone();
                move || loop {
                    if let Err(error) = model.count_tokens(chat("How many?"), AnswerOptions::default()) {
                        return error;
                    }
                }
            })
        })
        .collect();
    assert!(model.shut_down().unwrap().unwrap().is_idle);
    for thread in asking {
        assert_eq!(thread.join().unwrap(), KvikError::Closed);
    }
    read(&answer);
    assert_eq!(answer.report().unwrap().finish, Finish::Cancelled);
    assert_eq!(model.shut_down(), Ok(None), "it is closed once");
    assert_eq!(model.generate(chat("And now?"), at_most(1)).unwrap_err(), KvikError::Closed);
    assert_eq!(model.stats(), Err(KvikError::Closed));
}

#[test]
fn one_thread_cancels_what_another_reads() {
    let model = model(None);
    let answer = model.generate(chat("Tell me all."), endless()).unwrap();
    answer.next().unwrap();
    let reading = thread::spawn({
        let answer = answer.clone();
        move || read(&answer)
    });
    answer.cancel();
    reading.join().unwrap();
    let report = answer.report().unwrap();
    assert_eq!(report.finish, Finish::Cancelled);
    assert!(report.generated_tokens < ENDLESS, "{report:?}");
}

#[test]
fn a_conversation_goes_on_until_it_is_deleted_or_its_model_closed() {
    let model = model(None);
    let said = |text| vec![message(Role::User, text)];
    let conversation = model.conversation("cats".to_owned()).unwrap();
    assert!(matches!(conversation.messages(), Err(KvikError::Conversation(_))), "nothing was said yet");
    read(&conversation.say(said("My cat is called Minka."), at_most(12)).unwrap());
    let answer = conversation.say(said("What is my cat called?"), at_most(24)).unwrap();
    let text = read(&answer);
    assert!(text.contains("Minka"), "{text}");
    assert!(answer.report().unwrap().memory.is_some());
    assert_eq!(conversation.messages().unwrap()[2], message(Role::User, "What is my cat called?"));
    conversation.take_back(2).unwrap();
    assert_eq!(model.conversations().unwrap()[0].messages, 2);
    let other = model.conversation("cats".to_owned()).unwrap();
    conversation.delete().unwrap();
    for handle in [&conversation, &other] {
        assert!(matches!(handle.messages(), Err(KvikError::Conversation(_))));
    }
    model.shut_down().unwrap();
    assert_eq!(other.say(said("Hello."), at_most(1)).unwrap_err(), KvikError::Closed);
}

#[test]
fn a_conversation_that_could_not_be_deleted_goes_on() {
    let model = model(None);
    assert_eq!(model.conversations_are_stored(), Ok(false));
    let said = |text| vec![message(Role::User, text)];
    let conversation = model.conversation("cats".to_owned()).unwrap();
    read(&conversation.say(said("My cat is called Minka."), at_most(12)).unwrap());
    let answer = conversation.say(said("Tell me a story."), endless()).unwrap();
    answer.next().unwrap();
    assert!(matches!(conversation.delete(), Err(KvikError::Busy(_))));
    answer.cancel();
    read(&answer);
    assert_eq!(conversation.messages().unwrap().len(), 2);
    conversation.delete().unwrap();
    let error = conversation.messages().unwrap_err().to_string();
    assert!(error.contains("was deleted"), "{error}");
}

#[test]
fn answers_have_the_form_that_is_asked_for() {
    let model = model(None);
    let constraint = Some(Constraint::Regex { regex: "(now|later|never)".to_owned() });
    let answer = model.generate(chat("When?"), AnswerOptions { constraint, ..at_most(8) }).unwrap();
    let text = read(&answer);
    assert!(["now", "later", "never"].contains(&text.as_str()), "{text}");
    let schema = Some(Constraint::JsonSchema { schema: "no JSON".to_owned() });
    let wrong =
        model.generate(chat("When?"), AnswerOptions { constraint: schema, ..at_most(8) }).unwrap_err();
    assert!(matches!(wrong, KvikError::InvalidArgument(_)), "{wrong:?}");
}

#[test]
fn an_answer_reads_the_part_of_a_prompt_that_a_policy_keeps() {
    let model = model(None);
    let asked = |retention: &str| {
        let text = "river stone letter seven garden winter ".repeat(20);
        let options = AnswerOptions { retention: Some(retention.to_owned()), ..at_most(4) };
        model.generate(Prompt::Text { text }, options)
    };
    for (retention, expect) in [("keydiff:0.5", Reason::FirstSeen), ("h2o:0.5", Reason::Retained)] {
        let answer = asked(retention).unwrap();
        answer.rest().unwrap();
        assert_eq!(answer.report().unwrap().reason, Some(expect), "{retention}");
    }
    let wrong = asked("not-a-policy").unwrap_err();
    assert!(matches!(wrong, KvikError::InvalidArgument(_)), "{wrong:?}");
}

#[test]
fn kept_prompts_are_warm_after_they_were_durable() {
    let dir = tempfile::tempdir().unwrap();
    let kept =
        || Prompt::Messages { messages: vec![message(Role::System, &"You sort notifications. ".repeat(9))] };
    let is_warm = |state| matches!(state, KeptState::Kept { warm: true, .. });
    let usual = AnswerOptions::default;
    let first = model(Some(dir.path()));
    assert_eq!(first.is_kept("notify".into(), kept(), usual()), Ok(KeptState::Unknown));
    assert!(is_warm(first.keep_prompt("notify".into(), kept(), usual()).unwrap()));
    assert_eq!(first.is_kept("notify".into(), chat("Other."), usual()), Ok(KeptState::Changed));
    first.on_memory_pressure(MemoryPressure::Critical).unwrap();
    assert!(first.on_background().unwrap().is_idle);
    first.shut_down().unwrap();
    let second = model(Some(dir.path()));
    assert!(is_warm(second.is_kept("notify".into(), kept(), usual()).unwrap()));
    assert_eq!(second.forget_prompt("notify".into()), Ok(true));
    assert_eq!(second.is_kept("notify".into(), kept(), usual()), Ok(KeptState::Unknown));
}

#[test]
fn a_prompt_is_counted_and_kept_as_an_answer_with_its_options_reads_it() {
    let model = model(None);
    let count = |reasoning| {
        let options = || AnswerOptions { reasoning, ..at_most(1) };
        let counted = model.count_tokens(chat("How many?"), options()).unwrap();
        assert_eq!(model.explain(chat("How many?"), options()).unwrap().prompt_tokens, counted);
        assert_eq!(model.logits(chat("How many?"), Some(vec![0]), options()).unwrap().prompt_tokens, counted);
        let answer = model.generate(chat("How many?"), options()).unwrap();
        answer.rest().unwrap();
        assert_eq!(answer.report().unwrap().prompt_tokens, counted);
        counted
    };
    assert!(count(Some(false)) > count(None), "thoughts that are over begin the answer");
    let wrong = || AnswerOptions { tools: Some("[{}]".to_owned()), ..at_most(1) };
    for refused in [
        model.keep_prompt("notify".into(), chat("How many?"), wrong()),
        model.is_kept("notify".into(), chat("How many?"), wrong()),
    ] {
        assert!(matches!(refused, Err(KvikError::InvalidArgument(_))), "{refused:?}");
    }
}

#[test]
fn a_model_comes_from_bytes_and_from_a_part_of_an_open_file() {
    let path = kvik_testing::tiny_model();
    let bytes = std::fs::read(&path).unwrap();
    let options = || ModelOptions { kv_bytes: Some(64 << 20), ..ModelOptions::default() };
    let opened = ModelHandle::open_bytes(bytes.clone(), options()).unwrap();
    let expect = opened.count_tokens(chat("How many?"), AnswerOptions::default()).unwrap();
    #[cfg(unix)]
    {
        use std::os::fd::AsRawFd;
        let dir = tempfile::tempdir().unwrap();
        let around = [b"before".repeat(1000).as_slice(), &bytes, b"behind"].concat();
        std::fs::write(dir.path().join("assets"), around).unwrap();
        let file = std::fs::File::open(dir.path().join("assets")).unwrap();
        let part = (file.as_raw_fd(), 6000, Some(bytes.len() as i64));
        let opened = ModelHandle::open_descriptor(part.0, part.1, part.2, options()).unwrap();
        drop(file);
        assert_eq!(opened.count_tokens(chat("How many?"), AnswerOptions::default()), Ok(expect));
    }
}

#[test]
fn a_model_opens_and_answers_on_a_thread_with_a_small_stack() {
    // What a phone gives threads besides the first; a stack that overflows ends the host.
    let thread = thread::Builder::new().stack_size(STACK_BYTES);
    let asking = thread.spawn(|| {
        let model = model(None);
        let answer = model.generate(chat("Who are you?"), at_most(2)).unwrap();
        read(&answer);
        model.shut_down().unwrap().unwrap().is_idle
    });
    assert!(asking.unwrap().join().unwrap());
}

#[test]
fn failures_are_typed() {
    let none = ModelHandle::open("/there/is/none.gguf".into(), ModelOptions::default()).unwrap_err();
    assert!(matches!(&none, KvikError::Model(message) if message.contains("none.gguf")), "{none:?}");
    for descriptor in [-1, 1 << 30] {
        let none = ModelHandle::open_descriptor(descriptor, 0, None, ModelOptions::default()).unwrap_err();
        assert!(matches!(none, KvikError::InvalidArgument(_)), "{none:?}");
    }
    let model = model(None);
    let long = model.generate(chat(&"word ".repeat(9000)), at_most(1)).unwrap_err();
    assert!(matches!(long, KvikError::PromptTooLong(_)), "{long:?}");
    let empty = model.generate(Prompt::Text { text: String::new() }, at_most(-1)).unwrap_err();
    assert!(matches!(empty, KvikError::InvalidArgument(_)), "{empty:?}");
}
