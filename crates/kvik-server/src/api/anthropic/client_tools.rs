//! Tools that Anthropic defines and clients run: Anthropic's models know them by type, other models need
//! their schemas.
//!
//! Arguments are those of Anthropic's pages on the bash tool, the text editor and the memory tool, and of its SDKs.

use serde_json::{Value, json};

/// The description of a tool, as a model is given it.
pub(super) struct ClientTool {
    /// Default name, if the request gives none.
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    /// JSON schema of the arguments.
    pub(super) schema: Value,
}

/// Returns the tool of a type such as `bash_20250124`; none for tools that Anthropic's servers run, and for
/// tools whose results are images.
pub(super) fn client_tool(kind: &str) -> Option<ClientTool> {
    let (family, date) = kind.rsplit_once('_')?;
    if date.len() != 8 || !date.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match family {
        "bash" => Some(bash()),
        "text_editor" => Some(text_editor(date)),
        "memory" => Some(memory()),
        _ => None,
    }
}

fn bash() -> ClientTool {
    ClientTool {
        name: "bash",
        description: "Runs a command in a bash session that lasts from one call to the next, and returns what it prints.",
        schema: json!({
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command to run."},
                "restart": {"type": "boolean", "description": "True to begin a new session instead."},
            },
        }),
    }
}

/// Returns the text editor. Versions from the end of April 2025 on have another name and no `undo_edit`.
fn text_editor(date: &str) -> ClientTool {
    let takes_back = date < "20250429";
    let mut commands = vec!["view", "create", "str_replace", "insert"];
    if takes_back {
        commands.push("undo_edit");
    }
    let mut properties = file_properties();
    properties["command"] = json!({"type": "string", "enum": commands, "description": "What to do."});
    properties["path"] = json!({"type": "string", "description": "Absolute path of the file or directory."});
    ClientTool {
        name: if takes_back { "str_replace_editor" } else { "str_replace_based_edit_tool" },
        description: "Views, creates and edits text files. `view` shows a file, or the entries of a directory; `create` writes a file; `str_replace` replaces a text that stands once in it; `insert` puts a text behind a line.",
        schema: json!({"type": "object", "properties": properties, "required": ["command", "path"]}),
    }
}

fn memory() -> ClientTool {
    let mut properties = file_properties();
    let commands = ["view", "create", "str_replace", "insert", "delete", "rename"];
    properties["command"] = json!({"type": "string", "enum": commands, "description": "What to do."});
    properties["path"] = json!({"type": "string", "description": "The file or directory, below `/memories`; of every command but `rename`."});
    properties["old_path"] = json!({"type": "string", "description": "Of `rename`: the path now."});
    properties["new_path"] = json!({"type": "string", "description": "Of `rename`: the path from then on."});
    ClientTool {
        name: "memory",
        description: "Keeps files below `/memories` from one conversation to the next: look at them with `view` before a task, and write down what is worth remembering.",
        schema: json!({"type": "object", "properties": properties, "required": ["command"]}),
    }
}

/// Returns the schemas of the arguments for text file commands.
fn file_properties() -> Value {
    json!({
        "command": {}, "path": {},
        "view_range": {
            "type": "array", "items": {"type": "integer"},
            "description": "Of `view`: the first and the last line, from 1; -1 is the end.",
        },
        "file_text": {"type": "string", "description": "Of `create`: all of the file."},
        "old_str": {"type": "string", "description": "Of `str_replace`: the text to be replaced."},
        "new_str": {"type": "string", "description": "Of `str_replace`: the text in its place."},
        "insert_line": {"type": "integer", "description": "Of `insert`: the line behind which to insert; 0 is the beginning."},
        "insert_text": {"type": "string", "description": "Of `insert`: the text."},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_that_clients_run_are_known_by_their_family_whatever_their_date() {
        let name = |kind: &str| client_tool(kind).map(|tool| tool.name);
        assert_eq!(name("bash_20241022"), Some("bash"));
        assert_eq!(name("bash_20250124"), Some("bash"));
        assert_eq!(name("text_editor_20250124"), Some("str_replace_editor"));
        assert_eq!(name("text_editor_20250429"), Some("str_replace_based_edit_tool"));
        assert_eq!(name("text_editor_20250728"), Some("str_replace_based_edit_tool"));
        assert_eq!(name("text_editor_20271231"), Some("str_replace_based_edit_tool"));
        assert_eq!(name("memory_20250818"), Some("memory"));
        for other in [
            "web_search_20250305",
            "code_execution_20250825",
            "tool_search_tool_bm25_20251119",
            "computer_20250124",
            "bash",
            "bash_2025",
            "bash_2025012x",
            "mcp_toolset",
            "",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn every_command_has_its_arguments() {
        let has = |kind: &str, names: &[&str]| {
            let schema = client_tool(kind).unwrap().schema;
            names.iter().all(|name| schema["properties"][name]["type"].is_string())
        };
        assert!(has("bash_20250124", &["command", "restart"]));
        let editing = [
            "command",
            "path",
            "view_range",
            "file_text",
            "old_str",
            "new_str",
            "insert_line",
            "insert_text",
        ];
        assert!(has("text_editor_20250728", &editing));
        assert!(has("memory_20250818", &editing) && has("memory_20250818", &["old_path", "new_path"]));
    }
}
