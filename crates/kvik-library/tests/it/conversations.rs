//! Conversations: kept, gone on with after a restart, remembered beyond the context, forgotten.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{drawn, endless, greedy, model, options};
use kvik_library::{
    Conversation, ConversationError, CorrectionError, Error, Finish, MemoryConfig, Message, Model, Options,
};
use kvik_memory::conversations::Conversations;
use kvik_memory::deletions::Deletions;
use kvik_memory::records::{FILE_NAME, Records};
use serde_json::Value;

/// Tokens of a context that a few turns fill.
const SMALL: usize = 1024;

fn opened(dir: &Path) -> Model {
    Model::open(options().with_conversations(dir)).unwrap()
}

/// One that remembers early.
fn remembering(dir: &Path) -> Model {
    let memory = MemoryConfig {
        recent_max: Some(300),
        summary_max: Some(64),
        trigger_discard: Some(120),
        ..MemoryConfig::default()
    };
    let options = Options { context_tokens: Some(SMALL), memory, ..options() };
    Model::open(options.with_conversations(dir)).unwrap()
}

fn say(conversation: &Conversation, text: &str) -> String {
    conversation.say(&[Message::user(text)], &greedy(12)).unwrap().finish().unwrap().0
}

/// Turns until a summary is read; how many.
fn until_remembered(conversation: &Conversation) -> usize {
    for turn in 0..200 {
        let text = format!("The bus number {turn} was late again. I had noodles for lunch.");
        let (_, report) = conversation.say(&[Message::user(text)], &greedy(12)).unwrap().finish().unwrap();
        let memory = report.memory.expect("the context is large enough to remember");
        if memory.messages.summarised > 0 {
            return turn + 1;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no summary was read in 200 turns");
}

/// Whether this comes to be so.
fn soon(mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// The records of a directory that no model has open.
fn records(dir: &Path) -> Records {
    Records::open(dir, Duration::ZERO).unwrap()
}

/// Number of stored summaries.
fn summaries(records: &Records) -> usize {
    records.named_table::<Value>("summaries").all_from("").unwrap().records.len()
}

#[test]
fn turns_are_what_a_chat_of_all_messages_is_and_outlive_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let plain = model();
    let mut messages = vec![Message::system("Be brief.")];
    let mut turn = |model: &Model, text: &str, seed: u64| {
        let new = Message::user(text);
        let conversation = model.conversation("trip");
        let first = messages.len() == 1;
        let said: Vec<Message> =
            if first { vec![messages[0].clone(), new.clone()] } else { vec![new.clone()] };
        messages.push(new);
        let (expect, _) = plain.chat(&messages, &drawn(seed, 20)).unwrap().finish().unwrap();
        let (answer, report) = conversation.say(&said, &drawn(seed, 20)).unwrap().finish().unwrap();
        assert_eq!(answer, expect, "{text}");
        messages.push(Message::assistant(answer));
        assert_eq!(conversation.messages().unwrap(), messages);
        report
    };
    let first = opened(dir.path());
    turn(&first, "Who are you?", 1);
    let report = turn(&first, "And what can you do?", 2);
    assert!(report.cached_tokens > 0, "{report:?}");
    first.close().unwrap();
    let again = opened(dir.path());
    turn(&again, "Say it again.", 3);
    let listed = again.conversations();
    assert_eq!((listed.len(), listed[0].name.as_deref(), listed[0].messages), (1, Some("trip"), 7));
    assert!(listed[0].updated_s >= listed[0].created_s && listed[0].id.starts_with("conv_"));
}

#[test]
fn an_answer_that_has_no_end_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let model = opened(dir.path());
    let conversation = model.conversation("trip");
    let mut cancelled = conversation.say(&[Message::user("Tell me a story.")], &endless(1)).unwrap();
    assert!(cancelled.next().unwrap().is_ok());
    let busy = conversation.say(&[Message::user("Hello?")], &greedy(4)).unwrap_err();
    assert!(matches!(busy, Error::Conversation(ConversationError::Busy(_))), "{busy}");
    cancelled.cancel();
    assert_eq!(cancelled.finish().unwrap().1.finish, Finish::Cancelled);
    drop(conversation.say(&[Message::user("Hello?")], &endless(1)).unwrap());
    assert!(model.conversations().is_empty());
    let unknown = conversation.messages().unwrap_err();
    assert!(matches!(unknown, Error::Conversation(ConversationError::NotFound(_))), "{unknown}");
    say(&conversation, "Hello.");
    assert_eq!(conversation.messages().unwrap().len(), 2);
}

#[test]
fn a_cancelled_answer_that_was_read_to_its_end_frees_its_conversation() {
    let model = model();
    let conversation = model.conversation("trip");
    let mut cancelled = conversation.say(&[Message::user("Tell me a story.")], &endless(1)).unwrap();
    assert!(cancelled.next().unwrap().is_ok());
    cancelled.cancel();
    while cancelled.next().is_some() {}
    assert_eq!(cancelled.report().unwrap().finish, Finish::Cancelled);
    // While the answer lives.
    say(&conversation, "Hello.");
    assert_eq!(conversation.messages().unwrap().len(), 2);
    drop(cancelled);
}

#[test]
fn a_turn_is_stored_by_the_call_that_reports_its_end_and_not_when_it_was_cancelled_before() {
    let model = model();
    for cancels in [true, false] {
        let (conversation, before) = (model.conversation("trip"), model.stats().generated_tokens);
        let mut answer = conversation.say(&[Message::user("Who are you?")], &greedy(8)).unwrap();
        let is_generated = || model.stats().generated_tokens > before && model.stats().running == 0;
        assert!(soon(is_generated));
        assert!(!answer.next_arrived().unwrap().is_empty());
        assert!(conversation.messages().is_err(), "pieces are out, and the end is not");
        if cancels {
            answer.cancel();
        }
        assert!(answer.next_arrived().unwrap().is_empty());
        let is_cancelled = answer.report().unwrap().finish == Finish::Cancelled;
        assert_eq!((is_cancelled, conversation.messages().is_err()), (cancels, cancels));
    }
}

#[test]
fn it_goes_on_beyond_the_context_and_what_is_remembered_can_be_read_and_corrected() {
    let dir = tempfile::tempdir().unwrap();
    let model = remembering(dir.path());
    let conversation = model.conversation("bus");
    let turns = until_remembered(&conversation);
    // Far more than the context holds.
    for turn in 0..40 {
        say(&conversation, &format!("The train number {turn} was on time. I had rice for dinner."));
    }
    assert_eq!(conversation.messages().unwrap().len(), 2 * (turns + 40));
    assert!(soon(|| conversation.correct("Buses are late, and trains are not.").is_ok()), "it is at rest");
    let remembered = conversation.remembered().unwrap().unwrap();
    assert_eq!(remembered.summary, "Buses are late, and trains are not.");
    assert!(remembered.corrected && remembered.messages[1] > remembered.messages[0]);
    let long = conversation.correct(&"late ".repeat(500)).unwrap_err();
    assert!(matches!(long, Error::Correction(CorrectionError::TooLong { .. })), "{long}");
    model.close().unwrap();
    let again = remembering(dir.path());
    let conversation = again.conversation("bus");
    assert_eq!(conversation.remembered().unwrap(), Some(remembered), "after a restart");
    let (_, report) = conversation.say(&[Message::user("Hello.")], &greedy(4)).unwrap().finish().unwrap();
    assert!(report.memory.unwrap().messages.summarised > 0);
}

#[test]
fn it_is_renamed_taken_back_and_deleted_with_all_that_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let model = remembering(dir.path());
    let mut conversation = model.conversation("bus");
    until_remembered(&conversation);
    assert!(soon(|| conversation.remembered().unwrap().is_some()));
    conversation.rename("late buses").unwrap();
    assert_eq!(conversation.info().unwrap().name.as_deref(), Some("late buses"));
    assert!(model.conversation("bus").info().is_err());
    conversation.take_back(2).unwrap();
    assert_eq!(conversation.messages().unwrap().len(), 2);
    assert_eq!(conversation.remembered().unwrap(), None);
    assert!(conversation.take_back(9).is_err());
    say(&conversation, "Hello.");
    model.conversation("late buses").delete().unwrap();
    assert!(model.conversations().is_empty() && conversation.messages().is_err());
}

#[test]
fn nothing_of_a_deleted_conversation_is_left_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let holds = |text: &str| {
        let bytes = std::fs::read(dir.path().join(FILE_NAME)).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    let model = opened(dir.path());
    say(&model.conversation("zanzibar"), "Remember the code xyzzy-4711.");
    say(&model.conversation("cake"), "With nuts?");
    model.close().unwrap();
    assert!(["zanzibar", "xyzzy-4711", "With nuts?"].into_iter().all(holds));
    let model = opened(dir.path());
    model.conversation("zanzibar").delete().unwrap();
    model.close().unwrap();
    assert_eq!(["zanzibar", "xyzzy-4711", "With nuts?"].map(holds), [false, false, true]);
    assert!(Deletions::open(Some(&records(dir.path()))).all().is_empty());
    assert_eq!(opened(dir.path()).conversation("cake").messages().unwrap().len(), 2);
}

#[test]
fn what_a_closed_model_remembers_is_deleted_by_another_one() {
    let dir = tempfile::tempdir().unwrap();
    // The second one has read the summaries before there were any.
    let (first, second) = (remembering(dir.path()), remembering(dir.path()));
    for name in ["bus", "train"] {
        let conversation = first.conversation(name);
        say(&conversation, &format!("I go by {name}."));
        until_remembered(&conversation);
    }
    first.close().unwrap();
    second.conversation("bus").delete().unwrap();
    second.conversation("train").take_back(1).unwrap();
    second.close().unwrap();
    assert_eq!(summaries(&records(dir.path())), 0);
}

#[test]
fn a_deletion_that_a_kill_has_interrupted_is_completed_by_the_next_model() {
    let dir = tempfile::tempdir().unwrap();
    let first = remembering(dir.path());
    until_remembered(&first.conversation("bus"));
    first.close().unwrap();
    {
        // As if the process had been killed between the messages and their summaries.
        let records = records(dir.path());
        let deletions = Deletions::open(Some(&records));
        let list = Conversations::open_deleting(Some(&records), None, deletions);
        list.hold("default", "bus").unwrap().delete().unwrap();
        assert!(summaries(&records) > 0);
    }
    remembering(dir.path()).close().unwrap();
    let records = records(dir.path());
    assert_eq!((summaries(&records), Deletions::open(Some(&records)).all().len()), (0, 0));
}

#[test]
fn a_conversation_that_cannot_be_read_can_be_deleted_and_taken_back_to_what_can() {
    let dir = tempfile::tempdir().unwrap();
    let model = opened(dir.path());
    for name in ["trip", "cake"] {
        say(&model.conversation(name), "Hello.");
        say(&model.conversation(name), "And now?");
    }
    let ids: Vec<String> = model.conversations().into_iter().map(|info| info.id).collect();
    model.close().unwrap();
    let keys: Vec<String> = ids.iter().map(|id| format!("said\0default\0{id}\0{:08}", 3)).collect();
    let keys = keys.iter().map(String::as_str);
    let damaged = records(dir.path()).table::<u64>("conversations");
    damaged.change(keys, |_, _| Some(7)).unwrap();
    drop(damaged);
    let model = opened(dir.path());
    let (trip, cake) = (model.conversation("trip"), model.conversation("cake"));
    let unreadable = trip.messages().unwrap_err();
    assert!(matches!(unreadable, Error::Conversation(ConversationError::Damaged(_))), "{unreadable}");
    trip.take_back(2).unwrap();
    assert_eq!(trip.messages().unwrap().len(), 2);
    cake.delete().unwrap();
    assert_eq!(model.conversations().len(), 1);
}

#[test]
fn in_the_background_nothing_is_summarised_and_the_next_turn_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let model = remembering(dir.path());
    let conversation = model.conversation("bus");
    for turn in 0..30 {
        say(&conversation, &format!("The bus number {turn} was late again. I had noodles for lunch."));
    }
    let start = Instant::now();
    model.on_background().unwrap();
    let waited = start.elapsed();
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    assert_eq!((model.stats().running, model.stats().waiting), (0, 0));
    until_remembered(&conversation);
}

#[test]
fn bounds_that_do_not_fit_are_an_error_where_they_were_asked_for() {
    let memory = MemoryConfig { recent_max: Some(100_000), ..MemoryConfig::default() };
    let error = Model::open(Options { memory, ..options() }).unwrap_err();
    assert!(matches!(error, Error::Memory(_)), "{error}");
    let memory = MemoryConfig { quotes_max: Some(100), ..MemoryConfig::default() };
    let small = Options { context_tokens: Some(128), memory, ..options() };
    assert!(matches!(Model::open(small), Err(Error::Memory(_))));
    // A context that is too small for the usual ones is not: its conversations end with it.
    let model = Model::open(Options { context_tokens: Some(128), ..options() }).unwrap();
    let answer = model.conversation("short").say(&[Message::user("Hello.")], &greedy(4)).unwrap();
    assert_eq!(answer.finish().unwrap().1.memory, None);
}

#[test]
fn a_conversation_of_a_closed_model_is_at_rest() {
    let dir = tempfile::tempdir().unwrap();
    let model = opened(dir.path());
    let conversation = model.conversation("trip");
    say(&conversation, "Hello.");
    model.close().unwrap();
    assert!(conversation.say(&[Message::user("Hello?")], &greedy(4)).is_err());
    assert!(conversation.messages().is_err());
    assert_eq!(opened(dir.path()).conversation("trip").messages().unwrap().len(), 2);
}

#[test]
fn a_closed_model_frees_its_directory_although_an_answer_is_unread() {
    let dir = tempfile::tempdir().unwrap();
    let model = opened(dir.path());
    let trip = model.conversation("trip");
    let mut unread = trip.say(&[Message::user("Tell me a story.")], &endless(1)).unwrap();
    assert!(unread.next().unwrap().is_ok());
    model.close().unwrap();
    drop(records(dir.path()));
    let again = opened(dir.path());
    assert!(again.conversations_are_stored());
    assert_eq!(unread.finish().unwrap().1.finish, Finish::Cancelled);
    say(&again.conversation("trip"), "Hello.");
}

#[test]
fn a_model_says_whether_its_conversations_are_stored() {
    assert!(!model().conversations_are_stored());
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (opened(dir.path()), opened(dir.path()));
    assert!(one.conversations_are_stored() && other.conversations_are_stored(), "they share the directory");
}

#[test]
fn models_of_one_process_share_the_conversations_of_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (opened(dir.path()), opened(&dir.path().join(".")));
    say(&one.conversation("trip"), "Where is the station?");
    say(&other.conversation("trip"), "And the bus?");
    assert_eq!(one.conversation("trip").messages().unwrap().len(), 4, "one of both");
    say(&other.conversation("cake"), "With nuts?");
    assert_eq!(one.conversations().len(), 2);
    one.conversation("trip").delete().unwrap();
    assert!(other.conversation("trip").messages().is_err());
    drop((one, other));
    let again = opened(dir.path());
    assert_eq!(again.conversations().len(), 1);
    assert_eq!(again.conversation("cake").messages().unwrap().len(), 2);
}
