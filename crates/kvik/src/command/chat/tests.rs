use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use clap::Parser;

use super::*;
use crate::serving::load::Handle;

const CONTEXT: usize = 1024;
const MEMORY: [&str; 8] =
    ["--memory-recent", "300", "--memory-summary", "64", "--memory-trigger", "120", "--memory-quotes", "0"];

#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    chat: ChatArgs,
}

fn flags(flags: &[&str]) -> ChatArgs {
    Flags::try_parse_from(["kvik"].iter().chain(flags)).unwrap().chat
}

/// What was written to a screen.
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

impl Terminal {
    fn new(memory: &[&str]) -> Terminal {
        let cache = CacheArgs::in_ram(CONTEXT, ByteSize(64 << 20));
        let args = flags(&[&["--max-tokens", "24"], memory].concat());
        let loaded = load::open(&ModelArgs::embedded(), &cache, CAPACITY).unwrap();
        let (config, remembering) = args.remembering(CONTEXT).unwrap();
        let app = app(loaded.serving, config);
        let written = Written::default();
        let screen = Screen::plain(written.clone());
        let client = client(app.clone()).unwrap();
        let chat = TerminalChat::new(app.clone(), client, screen, args.talk, remembering);
        Terminal { chat, app, written, handle: loaded.handle }
    }

    /// What a line shows.
    fn types(&mut self, line: &str) -> String {
        self.chat.take(InputLine::parse(line));
        String::from_utf8(std::mem::take(&mut *self.written.0.lock().unwrap())).unwrap()
    }

    /// A reader's pause: until nothing runs, also of what begins behind an answer.
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
    let mut terminal = Terminal::new(&MEMORY);
    let first = terminal.types("Please remember that my dog is called Bolt.");
    assert!(
        first.contains("prompt tokens") && !first.contains("memory:"),
        "all is read as it was said: {first}"
    );
    let mut said = String::new();
    for turn in 0..60 {
        said = terminal.types(&format!("The bus number {turn} was late again. I had noodles for lunch."));
        terminal.pauses();
    }
    assert!(said.contains("messages in a summary"), "{said}");
    let answer = terminal.types("What is my dog called?");
    assert!(answer.contains("Bolt"), "{answer}");
    let shown = terminal.types("/memory");
    assert!(shown.starts_with("memory is on: recent messages of 300 tokens"), "{shown}");
    assert!(shown.contains("the summary was made"), "{shown}");
}

#[test]
fn what_is_taken_back_is_shown_and_no_longer_known() {
    let mut terminal = Terminal::new(&MEMORY);
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
    let off = flags(&["--memory", "off"]).remembering(256).unwrap().1;
    assert!(!off.on);
    assert!(flags(&[]).remembering(CONTEXT).unwrap().1.on);
}
