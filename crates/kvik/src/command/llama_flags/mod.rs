//! Translates llama-server's flags to those of `kvik serve`.
//!
//! clap has one letter after one dash; llama-server has words there (`-np`). So the arguments are rewritten before clap
//! parses them, but only those of `kvik serve`. One table defines the meaning of each flag; docs/llama-server.md
//! repeats it.

mod table;

use std::ffi::{OsStr, OsString};

use self::table::{FLAGS, Meaning, Takes};

/// The arguments with llama-server's flags rewritten, if the command is `serve`, and notes about flags that have no
/// effect here.
pub(crate) fn expand(args: Vec<OsString>) -> (Vec<OsString>, Vec<String>) {
    let mut rest = args.into_iter();
    let mut reading = Reading::default();
    for arg in rest.by_ref() {
        let is_serve = arg == "serve";
        reading.expanded.push(arg);
        if is_serve {
            break;
        }
    }
    let mut rest = rest.peekable();
    while let Some(arg) = rest.next() {
        if arg == "--" {
            reading.expanded.push(arg);
            break;
        }
        reading.flag(arg, &mut rest);
    }
    reading.finish(rest)
}

type Rest = std::iter::Peekable<std::vec::IntoIter<OsString>>;

/// The arguments processed so far.
#[derive(Default)]
struct Reading {
    expanded: Vec<OsString>,
    notes: Vec<String>,
    /// A repository of the Hugging Face hub, and the file in it.
    repository: Option<OsString>,
    file: Option<OsString>,
}

impl Reading {
    fn flag(&mut self, arg: OsString, rest: &mut Rest) {
        let (name, attached) = split(&arg);
        let Some(row) = FLAGS.iter().find(|row| row.names.contains(&name.as_str())) else {
            self.expanded.push(unmistaken(arg));
            return;
        };
        let mut value = || attached.map(OsString::from).or_else(|| rest.next());
        match row.meaning {
            Meaning::Flag(flag, convert) => self.given(&name, flag, value(), convert),
            Meaning::Switch(flags) => self.expanded.extend(flags.iter().map(OsString::from)),
            Meaning::Repository => self.repository = value().or(self.repository.take()),
            Meaning::File => self.file = value().or(self.file.take()),
            Meaning::Ignored(takes, why) => {
                self.notes.push(format!("{name} is ignored: {why}"));
                let takes_next = match takes {
                    Takes::Nothing => false,
                    Takes::Value => true,
                    Takes::Word => rest.peek().is_some_and(is_switch_word),
                };
                if takes_next && attached.is_none() {
                    rest.next();
                }
            }
            Meaning::OwnWith(values, why) => {
                let is_own = |value: &OsString| values.iter().any(|own| value == own);
                match attached.map(OsString::from).or_else(|| rest.next_if(is_own)) {
                    Some(value) => self.expanded.extend([name.into(), value]),
                    None => self.notes.push(format!("{name} is ignored: {why}")),
                }
            }
        }
    }

    /// Translates a flag with its value; omits it if the value requests kvik's default.
    fn given(&mut self, name: &str, flag: &str, value: Option<OsString>, convert: table::Convert) {
        let Some(value) = value else {
            // clap reports the missing value.
            self.expanded.push(flag.into());
            return;
        };
        match value.to_str().map(convert) {
            // A value that is not valid text is left unchanged.
            None => self.expanded.extend([flag.into(), value]),
            Some(Some(text)) => self.expanded.extend([flag.into(), text.into()]),
            Some(None) => {
                let value = value.to_string_lossy();
                self.notes.push(format!("{name} {value} is ignored: it leaves the choice to kvik"));
            }
        }
    }

    fn finish(mut self, rest: impl Iterator<Item = OsString>) -> (Vec<OsString>, Vec<String>) {
        if let Some(repository) = self.repository {
            let mut model = OsString::from("hf:");
            match (&self.file, repository.to_str().and_then(|text| text.split_once(':'))) {
                // A file takes precedence over the quantisation after the repository.
                (Some(_), Some((repository, _))) => model.push(repository),
                _ => model.push(&repository),
            }
            if let Some(file) = &self.file {
                model.push(":");
                model.push(file);
            }
            // There are no flags after `--`.
            let end = self.expanded.iter().position(|arg| arg == "--").unwrap_or(self.expanded.len());
            self.expanded.splice(end..end, ["--model".into(), model]);
        } else if let Some(file) = self.file {
            self.notes.push(format!("{} is a file of no repository: name that with -hf", file.display()));
        }
        self.expanded.extend(rest);
        (self.expanded, self.notes)
    }
}

/// Splits `--flag=value`; a value that is not valid text is left in place.
fn split(arg: &OsStr) -> (String, Option<&str>) {
    let text = arg.to_str().unwrap_or_default();
    match text.split_once('=') {
        Some((name, value)) if name.starts_with("--") => (name.to_owned(), Some(value)),
        _ => (text.to_owned(), None),
    }
}

/// Rewrites an unknown word after one dash with two dashes: clap would read it as a letter with its value, `-mu` as the
/// model `u`. A letter may be followed by a path or a number.
fn unmistaken(arg: OsString) -> OsString {
    let word = arg.to_str().and_then(|text| text.strip_prefix('-'));
    let is_word =
        |word: &str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
    match word.filter(|word| !word.starts_with('-') && is_word(word)) {
        Some(word) => format!("--{word}").into(),
        None => arg,
    }
}

/// Whether a word is a value of a flag whose value is optional.
fn is_switch_word(value: &OsString) -> bool {
    ["on", "off", "auto", "true", "false", "0", "1"].iter().any(|word| value == word)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser;

    use super::{table::Row, *};
    use crate::command::Cli;

    fn check(args: &[&str], expect: &[&str]) {
        let (expanded, _) = expand(args.iter().map(OsString::from).collect());
        assert_eq!(expanded, expect, "{args:?}");
    }

    #[test]
    fn flags_of_llama_server_are_those_of_serve() {
        check(
            &["kvik", "serve", "-c", "4096", "-np", "2"],
            &["kvik", "serve", "--context", "4096", "--parallel", "2"],
        );
        check(&["kvik", "serve", "--ctx-size=4096"], &["kvik", "serve", "--context", "4096"]);
        check(
            &["kvik", "serve", "-ctk", "q8_0", "-ctv", "f16"],
            &["kvik", "serve", "--kv-k", "q8", "--kv-v", "f16"],
        );
        for kind in ["ngram-mod", "draft-mtp"] {
            check(&["kvik", "serve", "--spec-type", kind], &["kvik", "serve", "--speculate", "all"]);
        }
        check(&["kvik", "serve", "--spec-type=none"], &["kvik", "serve", "--speculate", "none"]);
        check(&["kvik", "serve", "-hf", "o/r:Q8_0"], &["kvik", "serve", "--model", "hf:o/r:Q8_0"]);
        check(
            &["kvik", "serve", "-hff", "a.gguf", "-hf", "o/r:Q8_0", "--port", "1", "--", "x"],
            &["kvik", "serve", "--port", "1", "--model", "hf:o/r:a.gguf", "--", "x"],
        );
        check(
            &["kvik", "serve", "-s", "-1", "--jinja", "--port", "1"],
            &["kvik", "serve", "--seed", "-1", "--port", "1"],
        );
        check(
            &["kvik", "serve", "-ngl", "99", "-cb", "-t", "4"],
            &["kvik", "serve", "--gpu-layers", "99", "--threads", "4"],
        );
        check(&["kvik", "serve", "--n-gpu-layers=4"], &["kvik", "serve", "--gpu-layers", "4"]);
        check(&["kvik", "bench", "-n", "8"], &["kvik", "bench", "-n", "8"]);
        check(&["kvik", "serve", "--", "-c"], &["kvik", "serve", "--", "-c"]);
        check(&["kvik", "serve", "-c"], &["kvik", "serve", "--context"]);
        let (_, notes) = expand(["kvik", "serve", "-fa", "on"].map(OsString::from).to_vec());
        assert_eq!(notes, ["-fa is ignored: attention is always of this kind"]);
    }

    /// Values by which llama-server's users leave a choice to it, and values with another meaning there.
    #[test]
    fn values_are_translated_too() {
        for args in [
            ["-c", "0"],
            ["-np", "-1"],
            ["-t", "-1"],
            ["-ngl", "auto"],
            ["-ngl", "-1"],
            ["-cram", "-1"],
            ["--cache-ram", "0"],
            ["--draft", "16"],
            ["--device", "CUDA0"],
            ["--pooling", "rank"],
            ["--reasoning", "auto"],
            ["--reasoning-budget", "-1"],
            ["--reasoning-effort", "default"],
        ] {
            check(&["kvik", "serve", args[0], args[1], "--port", "1"], &["kvik", "serve", "--port", "1"]);
        }
        let thinking = ["--chat-template-kwargs", "{\"enable_thinking\": false}"];
        for (from, to) in [
            (["-cram", "4096"], ["--cache-ram", "4096MiB"]),
            (["-cram", "64"], ["--cache-ram", "64MiB"]),
            (["--cache-ram", "2"], ["--cache-ram", "2"]),
            (["--cache-ram", "2GiB"], ["--cache-ram", "2GiB"]),
            (["--cache-ram", "1073741824"], ["--cache-ram", "1073741824"]),
            (["-dev", "none"], ["--device", "cpu"]),
            (["--device", "gpu:1"], ["--device", "gpu:1"]),
            (["--draft", "small.gguf"], ["--draft", "small.gguf"]),
            (["-a", "one,two"], ["--alias", "one"]),
            (["-ctk", "f32"], ["--kv-k", "f32"]),
            (["-ctv", "q5_1"], ["--kv-v", "q8"]),
            (["--reasoning", "off"], thinking),
            (["--reasoning-budget", "0"], thinking),
            (["--cors-origins", "*"], ["--cors", "*"]),
        ] {
            check(&["kvik", "serve", from[0], from[1]], &["kvik", "serve", to[0], to[1]]);
        }
        check(&["kvik", "serve", "-fa", "-ngl", "9"], &["kvik", "serve", "--gpu-layers", "9"]);
        check(&["kvik", "serve", "--rerank", "yes-no"], &["kvik", "serve", "--rerank", "yes-no"]);
        check(&["kvik", "serve", "--rerank", "--port", "1"], &["kvik", "serve", "--port", "1"]);
    }

    /// clap parses every row as rewritten: no flag is unknown, none is taken for a letter with its value, and none
    /// consumes the next argument.
    #[test]
    fn every_flag_of_the_table_starts_a_server() {
        for row in FLAGS {
            for name in row.names {
                let is_model = matches!(row.meaning, Meaning::Flag("--model", _) | Meaning::Repository);
                let before: &[&str] = if is_model { &[] } else { &["-m", "model.gguf"] };
                let mut args = [&["kvik", "serve"], before, &[name]].concat();
                args.extend(row.example);
                args.extend(["--port", "4711"]);
                let (expanded, _) = expand(args.iter().map(OsString::from).collect());
                let Ok(cli) = Cli::try_parse_from(&expanded) else { panic!("{args:?} became {expanded:?}") };
                let crate::command::Task::Serve(serve) = cli.task else { panic!("{expanded:?}") };
                assert_eq!(serve.access.port, 4711, "{args:?} became {expanded:?}");
            }
        }
    }

    #[test]
    fn a_word_that_no_flag_is_is_told_by_its_name() {
        for word in ["-mu", "-tx", "-mgx", "-nonsense"] {
            let (expanded, _) = expand(["kvik", "serve", word, "1"].map(OsString::from).to_vec());
            let error = Cli::try_parse_from(&expanded).unwrap_err().to_string();
            assert!(error.contains(&format!("-{word}")), "{error}");
        }
        check(&["kvik", "serve", "-m/a.gguf", "-t4"], &["kvik", "serve", "-m/a.gguf", "-t4"]);
    }

    /// Checks that the documentation contains this table.
    #[test]
    fn the_documentation_has_the_table() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/llama-server.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let (begin, end) = ("<!-- flags -->\n", "<!-- end of flags -->\n");
        let (before, rest) = text.split_once(begin).unwrap();
        let (written, after) = rest.split_once(end).unwrap();
        let table: String = FLAGS.iter().map(Row::documented).collect();
        let table = format!("| llama-server | here |\n| --- | --- |\n{table}");
        if std::env::var_os("KVIK_WRITE_FLAGS").is_some() {
            std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        } else {
            assert_eq!(
                written, table,
                "KVIK_WRITE_FLAGS=1 cargo test -p kvik --lib llama_flags writes it again"
            );
        }
    }
}
