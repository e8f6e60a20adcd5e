//! A line of input: a message to the model, or a command.

/// The output of `/help`.
pub(super) const HELP: &str = "\
/memory               what is remembered: settings, segments of the last turn, quotes, the summary
/memory on|off        answer beyond the context from a summary, or not
/memory correct TEXT  let the summary say this
/undo                 take back the last question and its answer
/save NAME            give this conversation a name of your own
/load NAME            go on with another one
/list                 the conversations that are kept
/delete NAME          delete one
/export FILE          write this one to a new file: JSON, or Markdown where its name ends in .md
/system TEXT          begin a new conversation with this system message
/reset                begin a new conversation
/stats                show the use of the cache
/help                 this list
/quit                 leave (also Ctrl-D); Ctrl-C stops an answer";

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
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match (command, rest) {
            ("", _) => InputLine::Nothing,
            ("/system", text) => InputLine::System(text),
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
            ("/reset", "") => InputLine::Reset,
            ("/stats", "") => InputLine::Stats,
            ("/undo", "") => InputLine::Undo,
            ("/quit" | "/exit", "") => InputLine::Quit,
            (command, _) if !command.starts_with('/') => InputLine::Say(line),
            (command, _) if ALONE.contains(&command) => wrong(format!("{command} stands alone")),
            (command, _) => wrong(format!("there is no command {command}; /help lists them")),
        }
    }
}

/// Commands without an argument.
const ALONE: [&str; 8] = ["/help", "/?", "/list", "/reset", "/stats", "/undo", "/quit", "/exit"];

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
        check("/quit", InputLine::Quit);
        check("1/2 is a half", InputLine::Say("1/2 is a half"));
    }

    #[test]
    fn what_is_no_command_is_not_said_to_the_model() {
        let check = |line: &str, expect: &str| match InputLine::parse(line) {
            InputLine::Wrong(message) => assert!(message.contains(expect), "{line}: {message}"),
            other => panic!("{line} is {other:?}"),
        };
        check("/helpme", "no command /helpme");
        check("/undo that", "/undo stands alone");
        check("/memory maybe", "on, off");
        check("/memory correct", "correct TEXT");
        check("/load", "/list shows them");
        check("/export ", "a new file");
    }

    #[test]
    fn the_help_lists_commands_that_exist() {
        for line in HELP.lines() {
            let command = line.split("  ").next().unwrap();
            for command in command.split('|') {
                let command =
                    if command.starts_with('/') { command.to_owned() } else { format!("/memory {command}") };
                assert!(!matches!(InputLine::parse(&command), InputLine::Wrong(_)), "{command}");
            }
        }
    }
}
