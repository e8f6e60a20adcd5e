use std::{
    io::Write,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use clap::Parser;

use super::*;
use kvik_serving::handle::Handle;

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

/// A terminal with the embedded model.
struct Terminal {
    chat: TerminalChat,
    app: Arc<App>,
    written: Written,
    handle: Handle,
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
        let cache = CacheArgs::in_ram(CONTEXT, ByteSize(64 << 20));
        let args = flags(&[&["--max-tokens", "24"], own].concat());
        let loaded = load::open(&ModelArgs::embedded(), &cache, CAPACITY).unwrap();
        let (config, remembering) = args.remembering(CONTEXT).unwrap();
        let records = args.records().unwrap();
        let lasting = records.as_ref().map(drop).map_err(String::clone);
        let app = app(loaded.serving, config, records.ok(), Places::default());
        let written = Written::default();
        let screen = Screen::plain(written.clone());
        let client = client(app.clone()).unwrap();
        let mut chat =
            TerminalChat::new(app.clone(), client, screen, args.talk.clone(), remembering, lasting);
        args.open_conversation(&mut chat).unwrap();
        Terminal { chat, app, written, handle: loaded.handle }
    }

    /// The output since the last call.
    fn shown(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.written.0.lock().unwrap())).unwrap()
    }

    /// Enters a line and returns its output.
    fn types(&mut self, line: &str) -> String {
        self.chat.take(InputLine::parse(line));
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
            quiet = if self.app.serving.engine.stats().running == 0 { quiet + 1 } else { 0 };
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.handle.shutdown(Duration::ZERO);
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
    terminal.pauses();
    let corrected = terminal.types("/memory correct The user has a dog called Rex.");
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
    let (config, remembering) = flags(&[]).remembering(256).unwrap();
    assert!(!config.on && !remembering.on && remembering.settings.is_err());
    assert!(flags(&["--memory", "on"]).remembering(256).is_err());
    assert!(Flags::try_parse_from(["kvik", "--resume", "--system", "x"]).is_err(), "it has a system message");
    let off = flags(&["--memory", "off"]).remembering(256).unwrap().1;
    assert!(!off.on);
    assert!(flags(&[]).remembering(CONTEXT).unwrap().1.on);
}
