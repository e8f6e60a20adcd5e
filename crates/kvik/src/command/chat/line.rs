//! A line of input: a message to the model, or a command.

/// The output of `/help`.
pub(super) const HELP: &str = "\
/memory               what is remembered: settings, segments of the last turn, quotes, the summary
/memory on|off        answer beyond the context from a summary, or not
/memory correct TEXT  let the summary say this
/retry                ask the last question again, in place of its answer
/undo                 take back the last question and its answer
/set                  show the values of answers: sampling, seed, max_tokens, loops, think, system
/set NAME VALUE       change one of them; default is the usual value
/show                 show the model and the values of answers
/model                show the model, and those that are on this machine
/model NAME           go on with another one, as -m names it
/save NAME            give this conversation a name of your own
/load NAME            go on with another one
/list                 the conversations that are kept
/delete NAME          delete one
/export FILE          write this one to a new file: JSON, or Markdown where its name ends in .md
/system TEXT          begin a new conversation with this system message
/reset|/clear         begin a new conversation
/stats                show the use of the cache
/help|/?              this list
/bye|/quit|/exit      leave (also Ctrl-D)

\"\"\" begins and ends a text of several lines; Alt-Enter begins another line; Ctrl-C stops an answer";

/// A line of input.
#[derive(Debug, PartialEq)]
pub(super) enum InputLine<'a> {
    Nothing,
    Say(&'a str),
    Help,
    System(&'a str),
    Reset,
    Stats,
    /// Shows the memory of the conversation.
    Memory,
    /// Switches memory on or off.
    Remember(bool),
    /// Replaces the text of the summary.
    Correct(&'a str),
    Undo,
    Retry,
    /// Shows the model and the values of answers.
    Show,
    /// Shows the values of answers.
    Values,
    /// Sets one of them.
    Set(&'a str, &'a str),
    /// Goes on with the model of this name; an empty name shows the current one.
    Model(&'a str),
    /// Names the conversation; an empty name shows the current one.
    Save(&'a str),
    Load(&'a str),
    List,
    Delete(&'a str),
    Export(&'a str),
    Quit,
    /// An invalid command, with a message that suggests the right one.
    Wrong(String),
}

impl<'a> InputLine<'a> {
    pub(super) fn parse(line: &'a str) -> InputLine<'a> {
        let line = line.trim();
        if line.starts_with(QUOTES) {
            // A text in quotes may begin like a command.
            let text = unquoted(line);
            return if text.is_empty() { InputLine::Nothing } else { InputLine::Say(text) };
        }
        let (command, rest) = words(line);
        match (command, unquoted(rest)) {
            ("", _) => InputLine::Nothing,
            ("/system", text) => InputLine::System(text),
            ("/set", values) => InputLine::set(values),
            ("/show", "" | "info") => InputLine::Show,
            ("/show", "parameters" | "system") => InputLine::Values,
            ("/show", other) => wrong(format!(
                "/show takes info, parameters or system, not {other}; `kvik inspect -m NAME` shows what is in a model's file"
            )),
            ("/model", name) => InputLine::Model(name),
            ("/retry", "") => InputLine::Retry,
            ("/memory", "") => InputLine::Memory,
            ("/memory", "on") => InputLine::Remember(true),
            ("/memory", "off") => InputLine::Remember(false),
            ("/memory", other) => match other.split_once(char::is_whitespace) {
                Some(("correct", text)) => InputLine::Correct(text.trim()),
                _ => wrong(format!("/memory takes on, off, correct TEXT or nothing, not {other}")),
            },
            ("/save", name) => InputLine::Save(name),
            ("/load" | "/delete", "") => {
                wrong(format!("{command} takes the name of a conversation; /list shows them"))
            }
            ("/load", name) => InputLine::Load(name),
            ("/delete", name) => InputLine::Delete(name),
            ("/export", "") => wrong("/export takes the name of a new file".to_owned()),
            ("/export", file) => InputLine::Export(file),
            ("/list", "") => InputLine::List,
            ("/help" | "/?", "") => InputLine::Help,
            ("/reset" | "/clear", "") => InputLine::Reset,
            ("/stats", "") => InputLine::Stats,
            ("/undo", "") => InputLine::Undo,
            ("/bye" | "/quit" | "/exit", "") => InputLine::Quit,
            (command, _) if !command.starts_with('/') => InputLine::Say(line),
            (command, _) if ALONE.contains(&command) => wrong(format!("{command} stands alone")),
            (command, _) => wrong(format!("there is no command {command}; /help lists them")),
        }
    }

    /// A value of answers by its name, which Ollama's users write behind the word `parameter`.
    fn set(values: &'a str) -> InputLine<'a> {
        let (first, rest) = words(values);
        let (name, value) = if first == "parameter" { words(rest) } else { (first, rest) };
        match (name, unquoted(value)) {
            ("", _) => InputLine::Values,
            ("system", text) => InputLine::System(text),
            (name, value) => InputLine::Set(name, value),
        }
    }
}

/// Whether a line that was typed says one of these texts, as a question, a system message or the name of a conversation;
/// of a correction nobody knows what it says it of.
pub(super) fn says(line: &str, texts: &[String]) -> bool {
    match InputLine::parse(line) {
        InputLine::Say(text) | InputLine::System(text) => texts.iter().any(|known| known == text),
        InputLine::Save(name) | InputLine::Load(name) | InputLine::Delete(name) => {
            texts.iter().any(|known| known == name)
        }
        InputLine::Correct(_) => true,
        _ => false,
    }
}

/// Begins and ends a text of several lines.
const QUOTES: &str = "\"\"\"";

/// Commands without an argument.
const ALONE: [&str; 11] =
    ["/help", "/?", "/list", "/reset", "/clear", "/stats", "/undo", "/retry", "/bye", "/quit", "/exit"];

/// Whether a text in three quotes has begun and not ended, alone or behind a command.
pub(super) fn is_open(input: &str) -> bool {
    let is_behind_command =
        |before: &str| before.is_empty() || before.starts_with('/') && !before.contains('\n');
    match input.trim_start().split_once(QUOTES) {
        Some((before, text)) => is_behind_command(before) && !text.trim_end().ends_with(QUOTES),
        None => false,
    }
}

/// A text without three quotes around it.
fn unquoted(text: &str) -> &str {
    let inner = text.strip_prefix(QUOTES).map(|inner| inner.strip_suffix(QUOTES).unwrap_or(inner));
    inner.map_or(text, str::trim)
}

/// The first word, and what follows it.
fn words(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim())
}

fn wrong(message: String) -> InputLine<'static> {
    InputLine::Wrong(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_messages() {
        let check = |line: &str, expect: InputLine<'_>| assert_eq!(InputLine::parse(line), expect, "{line}");
        check("  ", InputLine::Nothing);
        check("hello there ", InputLine::Say("hello there"));
        check("/system  be brief ", InputLine::System("be brief"));
        check("/system", InputLine::System(""));
        check("/reset", InputLine::Reset);
        check("/memory", InputLine::Memory);
        check("/memory  off", InputLine::Remember(false));
        check("/memory correct  The dog is Bolt.", InputLine::Correct("The dog is Bolt."));
        check("/save my dog ", InputLine::Save("my dog"));
        check("/save", InputLine::Save(""));
        check("/load my dog", InputLine::Load("my dog"));
        ["/bye", "/quit", "/exit"].iter().for_each(|line| check(line, InputLine::Quit));
        check("/?", InputLine::Help);
        check("/clear", InputLine::Reset);
        check("/retry", InputLine::Retry);
        check("/set", InputLine::Values);
        check("/set temperature  0.5", InputLine::Set("temperature", "0.5"));
        check("/set parameter seed 7", InputLine::Set("seed", "7"));
        check("/set parameter", InputLine::Values);
        check("/set think", InputLine::Set("think", ""));
        check("/set system be brief ", InputLine::System("be brief"));
        ["/show", "/show info"].iter().for_each(|line| check(line, InputLine::Show));
        check("/show parameters", InputLine::Values);
        check("/model", InputLine::Model(""));
        check("/model qwen3:0.6b", InputLine::Model("qwen3:0.6b"));
        check("1/2 is a half", InputLine::Say("1/2 is a half"));
    }

    #[test]
    fn a_text_in_three_quotes_may_have_several_lines() {
        let check = |line: &str, expect: InputLine<'_>| {
            assert!(!is_open(line), "{line}");
            assert_eq!(InputLine::parse(line), expect, "{line}");
        };
        check("\"\"\"one\ntwo\"\"\"", InputLine::Say("one\ntwo"));
        check("  \"\"\"\n/help me\n\"\"\" ", InputLine::Say("/help me"));
        check("\"\"\"\"\"\"", InputLine::Nothing);
        check("/system \"\"\"be\nbrief\"\"\"", InputLine::System("be\nbrief"));
        check("/set system \"\"\"be\nbrief\"\"\"", InputLine::System("be\nbrief"));
        check("one\ntwo", InputLine::Say("one\ntwo"));
        check("say \"\"\" to me", InputLine::Say("say \"\"\" to me"));
        check("one\n/two \"\"\"", InputLine::Say("one\n/two \"\"\""));
        for open in ["\"\"\"", " \"\"\"one\n", "\"\"\"a\"\"\"\nb", "/system \"\"\"be", "/set system \"\"\""] {
            assert!(is_open(open), "{open}");
        }
    }

    #[test]
    fn what_is_no_command_is_not_said_to_the_model() {
        let check = |line: &str, expect: &str| match InputLine::parse(line) {
            InputLine::Wrong(message) => assert!(message.contains(expect), "{line}: {message}"),
            other => panic!("{line} is {other:?}"),
        };
        check("/helpme", "no command /helpme");
        check("/undo that", "/undo stands alone");
        check("/bye now", "/bye stands alone");
        check("/memory maybe", "on, off");
        check("/show template", "kvik inspect -m NAME");
        check("/memory correct", "correct TEXT");
        check("/load", "/list shows them");
        check("/export ", "a new file");
    }

    #[test]
    fn a_line_says_what_was_said_with_it() {
        let texts = ["one\ntwo".to_owned(), "my dog".to_owned()];
        for line in ["my dog", "\"\"\"one\ntwo\"\"\"", "/system my dog", "/save my dog", "/delete my dog"] {
            assert!(says(line, &texts), "{line}");
        }
        assert!(says("/memory correct The dog is Bolt.", &texts), "nobody knows of which conversation");
        for line in ["my dogs", "one", "/list", "/set temperature 0", "/save"] {
            assert!(!says(line, &texts), "{line}");
        }
    }

    #[test]
    fn the_help_lists_commands_that_exist() {
        for line in HELP.lines().take_while(|line| !line.is_empty()) {
            let command = line.split("  ").next().unwrap();
            for command in command.split('|') {
                let command =
                    if command.starts_with('/') { command.to_owned() } else { format!("/memory {command}") };
                assert!(!matches!(InputLine::parse(&command), InputLine::Wrong(_)), "{command}");
            }
        }
    }
}
