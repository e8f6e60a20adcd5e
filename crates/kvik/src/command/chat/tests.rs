mod deletions;

use std::{
    io::Write,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Instant,
};

use clap::Parser;
use serde_json::{Value, json};

use super::*;
use crate::command::backend::remembering;
use kvik_server::app::App;
use kvik_serving::settings::size::ByteSize;

const CONTEXT: usize = 1024;
const MEMORY: [&str; 6] = ["--memory-recent", "300", "--memory-summary", "64", "--memory-trigger", "120"];

#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    chat: ChatArgs,
}

fn flags(flags: &[&str]) -> ChatArgs {
    Flags::try_parse_from(["kvik"].iter().chain(flags)).unwrap().chat
}

/// The output of a screen.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An output that its reader has closed.
struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A terminal with the embedded model.
struct Terminal {
    chat: TerminalChat,
    written: Written,
}

/// A user's directory that lasts for a test.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir().unwrap())
    }

    /// A terminal of this user.
    fn terminal(&self, memory: &[&str]) -> Terminal {
        Terminal::new(&[&["--state-dir", self.0.path().to_str().unwrap()], memory].concat())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Terminal {
    fn new(own: &[&str]) -> Terminal {
        Terminal::with(CacheArgs::in_ram(CONTEXT, ByteSize(64 << 20)), own)
    }

    fn with(cache: CacheArgs, own: &[&str]) -> Terminal {
        let args = ChatArgs { cache, ..flags(&[&["--max-tokens", "24"], own].concat()) };
        let (backend, lasting) = args.open_here(&args.model).unwrap();
        let written = Written::default();
        let screen = Screen::plain(written.clone());
        let mut chat = TerminalChat::new(backend, screen, &args, lasting);
        args.open_conversation(&mut chat).unwrap();
        Terminal { chat, written }
    }

    fn app(&self) -> &App {
        self.chat.backend.app()
    }

    /// The output since the last call.
    fn shown(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.written.0.lock().unwrap())).unwrap()
    }

    /// Enters a line and returns its output.
    fn types(&mut self, line: &str) -> String {
        assert!(self.chat.enter(line), "{line} does not end the program");
        self.shown()
    }

    /// Enters turns of small talk and returns the output of the last one.
    fn talks(&mut self, turns: usize) -> String {
        let mut said = String::new();
        for turn in 0..turns {
            said = self.types(&format!("The bus number {turn} was late again. I had noodles for lunch."));
            self.pauses();
        }
        said
    }

    /// Waits, as for a reader's pause, until nothing runs, including the work that begins after an answer.
    fn pauses(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut quiet = 0;
        while quiet < 4 {
            assert!(Instant::now() < deadline, "something runs on");
            std::thread::sleep(Duration::from_millis(10));
            quiet = if self.app().serving.engine.stats().running == 0 { quiet + 1 } else { 0 };
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.chat.close();
    }
}

#[test]
fn a_fact_is_recalled_beyond_the_context() {
    let home = Home::new();
    let mut terminal = home.terminal(&[&MEMORY[..], &["--memory-quotes", "0"]].concat());
    let first = terminal.types("Please remember that my dog is called Bolt.");
    assert!(
        first.contains("prompt tokens") && !first.contains("memory:"),
        "all is read as it was said: {first}"
    );
    let said = terminal.talks(60);
    assert!(said.contains("messages in a summary"), "{said}");
    let answer = terminal.types("What is my dog called?");
    assert!(answer.contains("Bolt"), "{answer}");
    let shown = terminal.types("/memory");
    assert!(shown.starts_with("memory is on: recent messages of 300 tokens"), "{shown}");
    assert!(shown.contains("the summary of ") && shown.contains("  recent "), "{shown}");
    // Between two requests for a summary nothing runs, and yet one is being made.
    let mut corrects = || {
        terminal.pauses();
        terminal.types("/memory correct The user has a dog called Rex.")
    };
    let corrected = (0..100).map(|_| corrects()).find(|said| !said.contains("is being made")).unwrap();
    assert!(corrected.contains("corrected"), "{corrected}");
    let shown = terminal.types("/memory");
    assert!(shown.contains(", corrected:") && shown.contains("a dog called Rex."), "{shown}");
}

#[test]
fn what_was_quoted_is_shown() {
    let home = Home::new();
    let system = ["--system", "You are a helpful assistant."];
    let mut terminal = home.terminal(&[&MEMORY[..], &["--memory-quotes", "128"], &system].concat());
    terminal.types("Please remember that my dog is called Bolt.");
    terminal.talks(40);
    let answer = terminal.types("What is my dog called?");
    assert!(answer.contains(" 1 quoted]") || answer.contains(" quoted, "), "{answer}");
    let shown = terminal.types("/memory");
    assert!(shown.contains("quoted: Please remember that my dog is called Bolt."), "{shown}");
}

#[test]
fn what_is_taken_back_is_shown_and_no_longer_known() {
    let home = Home::new();
    let mut terminal = home.terminal(&MEMORY);
    assert!(terminal.types("/undo").contains("nothing to take back"));
    terminal.types("My dog is called Bolt.");
    let before = terminal.types("What is my dog called?");
    assert!(before.contains("Bolt"), "{before}");
    assert!(terminal.types("/undo").contains("taken back: What is my dog called?"));
    assert!(terminal.types("/undo").contains("taken back: My dog is called Bolt."));
    let after = terminal.types("What is my dog called?");
    assert!(!after.contains("Bolt"), "{after}");
}

#[test]
fn a_conversation_goes_on_in_the_next_terminal() {
    let home = Home::new();
    let mut terminal = home.terminal(&[]);
    assert_eq!(terminal.shown(), "", "there is nothing to go on with");
    terminal.types("My dog is called Bolt.");
    terminal.types("/save my dog");
    drop(terminal);

    let mut terminal = home.terminal(&[]);
    assert!(terminal.shown().contains("goes on with: my dog  (2 messages"));
    terminal.types("My cat is called Luna.");
    assert!(terminal.types("/load my dog").contains("> My dog is called Bolt."));
    let answer = terminal.types("What is my dog called?");
    assert!(answer.contains("Bolt"), "{answer}");
    drop(terminal);

    let terminal = home.terminal(&["--resume"]);
    let shown = terminal.shown();
    assert!(shown.contains("my dog: 4 messages") && shown.contains("> What is my dog called?"), "{shown}");
    drop(terminal);
    let terminal = home.terminal(&["--resume", "My cat is called Luna."]);
    assert!(terminal.shown().contains("> My cat is called Luna."));
}

#[test]
fn conversations_are_listed_named_deleted_and_exported() {
    let home = Home::new();
    let mut terminal = home.terminal(&[]);
    for _ in 0..2 {
        terminal.types("Hello there!");
        terminal.types("/reset");
    }
    terminal.types("/save third");
    assert!(
        terminal.types("/list").starts_with("* third  (0 messages"),
        "it may have its name before it begins"
    );
    terminal.types("Hello there!");
    let list = terminal.types("/list");
    let names: Vec<&str> = list.lines().map(|line| line.split("  (").next().unwrap()).collect();
    assert_eq!(names, ["* third", "  Hello there! (2)", "  Hello there!"]);
    for taken in ["/save Hello there!", "/reset", "/save Hello there!"] {
        let shown = terminal.types(taken);
        assert!(taken == "/reset" || shown.contains("error: another conversation has the name"), "{shown}");
    }
    assert!(terminal.types("/save conv_1").contains("error: "), "ids are no names");
    terminal.types("/load third");
    terminal.types("/delete third");
    let deleted = terminal.chat.take_deleted();
    assert!(["third", "Hello there!"].iter().all(|text| deleted.iter().any(|it| it == text)), "{deleted:?}");
    assert!(terminal.types("/undo").contains("nothing to take back"), "a new conversation has begun");
    assert!(terminal.types("/load third").contains("no conversation `third`; /list shows them"));
    terminal.types("/load Hello there!");

    let file = home.file("hello.md");
    terminal.types(&format!("/export {}", file.display()));
    assert!(std::fs::read_to_string(&file).unwrap().contains("Hello there!"));
    assert!(
        terminal.types(&format!("/export {}", file.display())).contains("cannot be written"),
        "it is there already"
    );
}

#[test]
fn what_cannot_be_kept_is_said() {
    let home = Home::new();
    let mut one = home.terminal(&[]);
    one.types("My dog is called Bolt.");
    let mut other = home.terminal(&[]);
    other.types("My cat is called Luna.");
    assert!(other.types("/save").contains("until the program ends"), "the first one holds the records");
    let mut off = home.terminal(&["--memory", "off"]);
    assert!(off.types("/list").contains("no conversation yet"));
    assert!(off.types("/save x").contains("until the program ends (--memory off)"));
}

/// The memory that is used, not what is reserved for keys and values.
#[test]
fn the_greeting_tells_measured_numbers() {
    let home = Home::new();
    let mut terminal = home.terminal(&[]);
    let greets = |terminal: &mut Terminal| {
        terminal.chat.greet();
        let (shown, used) = (terminal.shown(), terminal.app().bytes_used());
        assert!(
            shown.contains(&format!("context {CONTEXT} tokens, {} in memory", ByteSize(used))),
            "{shown}"
        );
        assert!(shown.contains(", loaded in "), "{shown}");
        used
    };
    let before = greets(&mut terminal);
    terminal.types(&"word ".repeat(500));
    let after = greets(&mut terminal);
    assert!(before < after && after < before + (64 << 20), "{before} {after}");
}

#[test]
fn without_memory_a_conversation_ends_with_the_context() {
    let mut terminal = Terminal::new(&["--memory", "off"]);
    let long = "word ".repeat(900);
    terminal.types(&long);
    let refused = terminal.types(&long);
    assert!(refused.contains("error: ") && refused.contains("1024"), "{refused}");
    terminal.types("/memory on");
    let answered = terminal.types(&long);
    assert!(answered.contains("let go"), "the first message: {answered}");
}

#[test]
fn bounds_that_do_not_fit_are_an_error_where_they_were_asked_for() {
    let within = |own: &[&str], context| remembering(&flags(own).memory, context);
    let (config, none) = within(&[], 256).unwrap();
    assert!(!config.on && !none.on && none.settings.is_err());
    assert!(within(&["--memory", "on"], 256).is_err());
    assert!(Flags::try_parse_from(["kvik", "--resume", "--system", "x"]).is_err(), "it has a system message");
    assert!(!within(&["--memory", "off"], 256).unwrap().1.on);
    assert!(within(&[], CONTEXT).unwrap().1.on);
}

#[test]
fn a_question_is_asked_again_in_place_of_its_answer() {
    let home = Home::new();
    let mut terminal = home.terminal(&[]);
    assert!(terminal.types("/retry").contains("nothing to ask again"));
    terminal.types("My dog is called Bolt.");
    let answer = terminal.types("What is my dog called?");
    let again = terminal.types("/retry");
    assert!(answer.contains("Bolt") && again.contains("Bolt"), "{again}");
    assert!(terminal.types("/list").contains("(4 messages"), "the question is there once");
}

/// A conversation that another client began: its messages have parts and thoughts.
fn of_another_client(question: &str) -> [Value; 2] {
    [
        json!({"role": "user", "content": [{"type": "text", "text": question}]}),
        json!({"role": "assistant", "content": "Nobody.", "reasoning_content": "Who am I?"}),
    ]
}

/// The messages of the conversation of this name.
fn kept(terminal: &Terminal, name: &str) -> Vec<Value> {
    kept::KeptConversations(&terminal.chat.backend).find(name).unwrap().messages
}

#[test]
fn a_question_in_parts_is_shown_and_asked_again() {
    let home = Home::new();
    let mut terminal = home.terminal(&[]);
    let said = of_another_client("Who are you?");
    kept::KeptConversations(&terminal.chat.backend).begin("parts", &said).unwrap();
    assert!(terminal.types("/load parts").contains("> Who are you?\nNobody."));
    let again = terminal.types("/retry");
    assert!(again.contains("kvik-tiny"), "{again}");
    let messages = kept(&terminal, "parts");
    assert_eq!((messages.len(), &messages[0]["content"]), (2, &json!("Who are you?")));
    assert!(terminal.types("/undo").contains("taken back: Who are you?"));
}

#[test]
fn without_another_answer_the_one_before_is_there_again() {
    let mut terminal = Terminal::new(&["--memory", "off"]);
    let long = "word ".repeat(2 * CONTEXT);
    let said = of_another_client(&long);
    kept::KeptConversations(&terminal.chat.backend).begin("long", &said).unwrap();
    terminal.types("/load long");
    let refused = terminal.types("/retry");
    for says in ["error: ", "1024", "the answer before is in its place again"] {
        assert!(refused.contains(says), "{refused} says {says}");
    }
    let messages = kept(&terminal, "long");
    assert_eq!((messages.len(), &messages[0]["content"], &messages[1]), (2, &json!(long), &said[1]));
    assert_eq!(terminal.chat.take_draft(), "", "it is asked again by /retry");

    terminal.types("/reset");
    terminal.types("My dog is called Bolt.");
    let texts = |terminal: &Terminal| -> Vec<String> {
        kept(terminal, "My dog is called Bolt.")
            .iter()
            .map(|message| message["content"].to_string())
            .collect()
    };
    let before = texts(&terminal);
    let turn = terminal.chat.turn();
    terminal.chat.backend.client.stop();
    let stopped = terminal.types("/retry");
    drop(turn);
    assert!(stopped.contains("the answer before is in its place again"), "{stopped}");
    assert_eq!(texts(&terminal), before);
}

#[test]
fn a_question_that_cannot_be_asked_keeps_its_answer() {
    let home = Home::new();
    let mut terminal = home.terminal(&[]);
    let file = home.file("dog.png");
    std::fs::write(&file, "").unwrap();
    let named = format!("What is on {}?", file.display());
    let mut with_picture = of_another_client("What is on it?");
    let picture = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}});
    with_picture[0]["content"].as_array_mut().unwrap().push(picture);
    for (name, said, why) in [
        ("empty", of_another_client(""), "has no text"),
        ("image", of_another_client(&named), "is not shown to the model"),
        ("picture", with_picture, "has a part that is not text"),
    ] {
        kept::KeptConversations(&terminal.chat.backend).begin(name, &said).unwrap();
        terminal.types(&format!("/load {name}"));
        let refused = terminal.types("/retry");
        assert!(refused.contains("error: ") && refused.contains(why), "{name}: {refused}");
        assert_eq!(kept(&terminal, name), said, "{name}");
    }
}

#[test]
fn a_program_that_types_finds_errors_apart_from_answers() {
    for line in ["/no-such-command", "/load gone"] {
        let mut terminal = Terminal::new(&["--memory", "off"]);
        terminal.types(line);
        assert!(!terminal.chat.screen.fails(), "{line}: a person has read it");
        terminal.chat.screen = Screen::piped(terminal.written.clone());
        assert!(!terminal.types("Hello there!").is_empty() && !terminal.chat.screen.fails());
        assert_eq!(terminal.types(line), "", "{line}");
        assert!(terminal.chat.screen.fails(), "{line}");
    }
}

#[test]
fn a_system_message_asks_before_it_ends_the_conversation() {
    let home = Home::new();
    let mut terminal = home.terminal(&[]);
    assert_eq!(terminal.types("/system Be brief."), "", "nothing has begun");
    terminal.types("My dog is called Bolt.");
    assert!(
        terminal
            .types("/set system Be long.")
            .contains("My dog is called Bolt. stays in /list: begin, y or n?")
    );
    assert_eq!(terminal.chat.prompt(), "y or n> ");
    assert!(terminal.types("no").contains("goes on"));
    assert!(terminal.types("What is my dog called?").contains("Bolt"));
    terminal.types("/system Be long.");
    assert_eq!((terminal.types(" Y "), terminal.chat.prompt()), (String::new(), "> "));
    assert!(!terminal.types("What is my dog called?").contains("Bolt"), "a new one has begun");
    assert!(terminal.types("/set").contains("system       Be long."));
    assert_eq!(terminal.types("/list").lines().count(), 2);
}

#[test]
fn a_question_without_an_answer_is_there_to_be_edited() {
    let home = Home::new();
    let mut terminal = home.terminal(&[]);
    let file = home.file("dog.png");
    std::fs::write(&file, "").unwrap();
    let question = format!("What is on {}?", file.display());
    let refused = terminal.types(&question);
    assert!(refused.contains("error: the image") && refused.contains("text alone"), "{refused}");
    assert_eq!(terminal.chat.take_draft(), question);
    assert_eq!(terminal.chat.take_draft(), "");
    terminal.types("Hello there!");
    assert_eq!(terminal.chat.take_draft(), "", "it was answered");
    assert!(terminal.types("/list").contains("(2 messages"));
}

#[test]
fn values_are_set_for_the_next_answers() {
    let home = Home::new();
    let mut terminal = home.terminal(&[]);
    assert_eq!(terminal.types("/set max_tokens 1"), "");
    assert!(terminal.types("Who are you?").contains("1 generated"));
    assert!(terminal.types("/set").contains("max_tokens   1"));
    assert!(terminal.types("/set temperature hot").contains("error: temperature takes"));
}

#[test]
fn a_conversation_goes_on_with_another_model() {
    let tiny = kvik_testing::tiny_model();
    for (memory, lasts) in [(&[][..], true), (&["--memory", "off"], false)] {
        let home = Home::new();
        let models = home.file("models");
        let mut terminal = home.terminal(&[memory, &["--models-dir", models.to_str().unwrap()]].concat());
        terminal.types("My dog is called Bolt.");
        let shown = terminal.types(&format!("/model {}", tiny.display()));
        assert!(shown.contains("kvik-tiny"), "{shown}");
        assert!(!terminal.app().serving.model.embedded, "{lasts}");
        assert!(terminal.types("What is my dog called?").contains("Bolt"), "{lasts}");
        let refused = terminal.types("/model gone");
        assert!(refused.contains("error: there is no model at gone"), "{refused}");
        let broken = home.file("broken.gguf");
        std::fs::write(&broken, b"GGUF").unwrap();
        let refused = terminal.types(&format!("/model {}", broken.display()));
        assert!(refused.contains("goes on: ") && refused.contains("broken.gguf"), "{refused}");
        assert!(terminal.types("What is my dog called?").contains("Bolt"), "the one before is there");
        assert!(terminal.types("/model").contains("kvik-tiny"));
    }
}

#[test]
fn a_reader_that_is_gone_ends_the_program() {
    let mut terminal = Terminal::new(&["--memory", "off"]);
    terminal.chat.screen = Screen::plain(Closed);
    assert!(!terminal.chat.enter("Who are you?"));
}

#[test]
fn a_line_ends_the_program() {
    let mut terminal = Terminal::new(&["--memory", "off"]);
    assert!(!terminal.chat.enter("/bye"));
    assert_eq!(terminal.chat.prompt(), "> ");
}
