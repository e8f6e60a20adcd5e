//! Translates flags of llama.cpp's programs to those of kvik's commands.
//!
//! clap has one letter after one dash; llama.cpp has words there (`-np`), which clap would read as a letter with its value.
//! So the arguments of a command are rewritten before clap parses them. Tables define the meaning of each flag;
//! docs/llama-server.md repeats them.

mod measuring;
mod table;

use std::ffi::{OsStr, OsString};

use anyhow::anyhow;

use self::{
    measuring::{BENCH, PERPLEXITY},
    table::{FLAGS, Meaning, Row, Takes},
};

/// The arguments with llama.cpp's flags rewritten, as far as their command reads them, and notes about flags that have no
/// effect here.
///
/// # Errors
/// If a flag asks for what the command cannot do.
pub(crate) fn expand(args: Vec<OsString>) -> anyhow::Result<(Vec<OsString>, Vec<String>)> {
    let command = command_at(&args).and_then(|at| Some((at, Dialect::of(&args[at])?)));
    let Some((at, dialect)) = command else { return Ok((args, Vec::new())) };
    let mut rest = args.into_iter();
    let expanded = rest.by_ref().take(at + 1).collect();
    let mut reading = Reading { dialect, expanded, notes: Vec::new(), repository: None, file: None };
    let mut rest = rest.peekable();
    while let Some(arg) = rest.next() {
        if arg == "--" {
            reading.expanded.push(arg);
            break;
        }
        reading.flag(arg, &mut rest)?;
    }
    Ok(reading.finish(rest))
}

/// Index of the command among the arguments.
fn command_at(args: &[OsString]) -> Option<usize> {
    let mut at = 1;
    loop {
        match args.get(at)?.to_str() {
            // The only flag before a command that takes a value.
            Some("--config") => at += 2,
            Some(flag) if flag.starts_with('-') => at += 1,
            _ => return Some(at),
        }
    }
}

/// The flags of llama.cpp that a command reads.
#[derive(Clone, Copy)]
struct Dialect {
    rows: &'static [Row],
    extent: Extent,
}

/// How far the flags of a command are llama.cpp's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// All of them. A word after one dash that is none is an error.
    All,
    /// Words after one dash. Letters and long flags are the command's own.
    Words,
}

impl Dialect {
    /// That of a command, if it is about models.
    fn of(command: &OsStr) -> Option<Dialect> {
        let (rows, extent) = match command.to_str()? {
            "serve" | "doctor" => (FLAGS, Extent::All),
            "bench" => (BENCH, Extent::All),
            "perplexity" => (PERPLEXITY, Extent::All),
            "run" | "chat" | "eval" | "plan" | "inspect" | "lint" | "devices" => (FLAGS, Extent::Words),
            _ => return None,
        };
        Some(Dialect { rows, extent })
    }

    /// The row of a flag.
    fn row(self, name: &str) -> Option<&'static Row> {
        let is_word = name.len() > 2 && name.starts_with('-') && !name.starts_with("--");
        let is_read = is_word || self.extent == Extent::All;
        self.rows.iter().find(|row| is_read && row.names.contains(&name))
    }
}

type Rest = std::iter::Peekable<std::vec::IntoIter<OsString>>;

/// The arguments processed so far.
struct Reading {
    dialect: Dialect,
    expanded: Vec<OsString>,
    notes: Vec<String>,
    /// A repository of the Hugging Face hub, and the file in it.
    repository: Option<OsString>,
    file: Option<OsString>,
}

impl Reading {
    fn flag(&mut self, arg: OsString, rest: &mut Rest) -> anyhow::Result<()> {
        let (name, attached) = split(&arg);
        let Some(row) = self.dialect.row(&name) else {
            self.expanded.push(if self.dialect.extent == Extent::All { unmistaken(arg) } else { arg });
            return Ok(());
        };
        let mut value = || attached.map(OsString::from).or_else(|| rest.next());
        match row.meaning {
            Meaning::Flag(flag, convert) => self.given(&name, flag, value(), convert),
            Meaning::Switch(flags) => self.expanded.extend(flags.iter().map(OsString::from)),
            Meaning::Repository => self.repository = value().or(self.repository.take()),
            Meaning::File => self.file = value().or(self.file.take()),
            Meaning::Ignored(takes, why) => {
                self.ignore(&name, why);
                if attached.is_none() {
                    skip_value(takes, rest);
                }
            }
            Meaning::OwnWith(values, why) => {
                let is_own = |value: &OsString| values.iter().any(|own| value == own);
                match attached.map(OsString::from).or_else(|| rest.next_if(is_own)) {
                    Some(value) => self.expanded.extend([name.into(), value]),
                    None => self.ignore(&name, why),
                }
            }
            Meaning::ByValue(values, why) => {
                let value = value().unwrap_or_default();
                let Some((_, flags)) = values.iter().find(|(known, _)| value == *known) else {
                    return Err(refused(&format!("{name} {}", value.display()), why));
                };
                self.expanded.extend(flags.iter().map(OsString::from));
            }
            Meaning::Refused(why) => return Err(refused(&name, why)),
        }
        Ok(())
    }

    fn ignore(&mut self, name: &str, why: &str) {
        self.notes.push(format!("{name} is ignored: {why}"));
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

/// The error for a flag that asks for what its command cannot do.
fn refused(flag: &str, why: &str) -> anyhow::Error {
    anyhow!("kvik has no `{flag}`: {why}")
}

/// Takes the value of a flag that is ignored.
fn skip_value(takes: Takes, rest: &mut Rest) {
    match takes {
        Takes::Nothing => {}
        Takes::Value => drop(rest.next()),
        Takes::Word => drop(rest.next_if(is_switch_word)),
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

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::command::Cli;

    fn expanded(args: &[&str]) -> (Vec<OsString>, Vec<String>) {
        expand(args.iter().map(OsString::from).collect()).unwrap()
    }

    fn check(args: &[&str], expect: &[&str]) {
        assert_eq!(expanded(args).0, expect, "{args:?}");
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
        let (_, notes) = expanded(&["kvik", "serve", "-fa", "on"]);
        assert_eq!(notes, ["-fa is ignored: attention is always of this kind"]);
    }

    #[test]
    fn the_command_says_which_flags_are_read() {
        for command in ["doctor", "serve"] {
            check(
                &["kvik", command, "-c", "64", "-np", "2"],
                &["kvik", command, "--context", "64", "--parallel", "2"],
            );
        }
        check(
            &["kvik", "--config", "serve", "--config=x", "bench", "-ngl", "9"],
            &["kvik", "--config", "serve", "--config=x", "bench", "--gpu-layers", "9"],
        );
        for command in ["run", "chat", "eval", "plan", "inspect", "lint", "devices"] {
            check(
                &["kvik", command, "-ctk", "q8_0", "-ctv", "q4_1", "-ngl", "9", "-m", "a.gguf", "-t", "2"],
                &[
                    "kvik",
                    command,
                    "--kv-k",
                    "q8",
                    "--kv-v",
                    "q4",
                    "--gpu-layers",
                    "9",
                    "-m",
                    "a.gguf",
                    "-t",
                    "2",
                ],
            );
            // Letters and long flags are those of the command.
            let own = ["kvik", command, "-c", "--device", "CUDA0", "--seed", "0", "-cnv"];
            check(&own, &own);
        }
        check(
            &["kvik", "run", "-hf", "o/r", "-fa", "on", "Say -c", "--", "-ngl"],
            &["kvik", "run", "Say -c", "--model", "hf:o/r", "--", "-ngl"],
        );
        check(&["kvik", "run", "serve", "-c"], &["kvik", "run", "serve", "-c"]);
        check(&["kvik", "ps", "-ngl", "9"], &["kvik", "ps", "-ngl", "9"]);
        check(&["kvik"], &["kvik"]);
        check(&["kvik", "--version"], &["kvik", "--version"]);
    }

    #[test]
    fn flags_of_programs_that_measure_are_those_of_commands_that_do() {
        check(
            &[
                "kvik", "bench", "-m", "a.gguf", "-p", "32,64", "-n", "8", "-d", "0", "-r", "2", "-t", "4",
                "-o", "json",
            ],
            &[
                "kvik", "bench", "-m", "a.gguf", "-p", "32,64", "-n", "8", "-d", "0", "-r", "2", "-t", "4",
                "--json",
            ],
        );
        check(
            &["kvik", "bench", "-ngl", "99", "-ctk", "q8_0", "-ctv", "f16", "-dev", "CUDA0"],
            &["kvik", "bench", "--gpu-layers", "99", "--kv-k", "q8", "--kv-v", "f16", "--device", "auto"],
        );
        check(
            &[
                "kvik", "bench", "-mmp", "0", "-b", "512", "-ub", "512", "-fa", "1", "-o", "md", "-embd",
                "0", "-n", "8",
            ],
            &["kvik", "bench", "-n", "8"],
        );
        check(&["kvik", "bench", "--output=jsonl"], &["kvik", "bench", "--jsonl"]);
        check(
            &[
                "kvik",
                "perplexity",
                "-f",
                "a.txt",
                "-c",
                "64",
                "-ctk",
                "q8_0",
                "-ngl",
                "99",
                "-b",
                "512",
                "-fa",
            ],
            &["kvik", "perplexity", "-f", "a.txt", "-c", "64", "--kv-k", "q8"],
        );
        check(&["kvik", "perplexity", "-t", "0", "-f", "a.txt"], &["kvik", "perplexity", "-f", "a.txt"]);
        for (words, says) in [
            (&["-pg", "512,128"][..], "`-pg`: prefill (-p) and decode (-n)"),
            (&["-o", "csv"], "`-o csv`: a report is a table (md), json or jsonl"),
            (&["-o"], "`-o `: a report"),
            (&["--output=sql"], "`--output sql`: "),
            (&["-embd", "1"], "`-embd 1`: "),
            (&["-oe", "md"], "`-oe`: "),
            (&["--list-devices"], "`kvik devices`"),
        ] {
            let args = [&["kvik", "bench"], words].concat();
            let error = expand(args.iter().map(OsString::from).collect()).unwrap_err().to_string();
            assert!(error.starts_with("kvik has no `") && error.contains(says), "{error} says {says}");
        }
    }

    /// clap parses every row of a command as rewritten: the flag behind it has its value.
    #[test]
    fn every_flag_of_the_other_tables_leaves_the_next_one_alone() {
        let check = |before: &[&str], rows: &[Row], (flag, id): (&str, &str)| {
            for row in rows.iter().filter(|row| !matches!(row.meaning, Meaning::Refused(_))) {
                for name in row.names {
                    let mut args = [before, &[*name]].concat();
                    args.extend(row.example);
                    args.extend([flag, "471"]);
                    let (words, _) = expanded(&args);
                    let matches = Cli::command().try_get_matches_from(&words);
                    let matches =
                        matches.unwrap_or_else(|error| panic!("{args:?} became {words:?}: {error}"));
                    let (_, matches) = matches.subcommand().unwrap();
                    let value = matches.get_raw(id).unwrap().next_back().unwrap();
                    assert_eq!(value, "471", "{args:?} became {words:?}");
                }
            }
        };
        check(&["kvik", "bench"], BENCH, ("-r", "repetitions"));
        check(&["kvik", "perplexity", "-f", "a.txt"], PERPLEXITY, ("-c", "window"));
        check(&["kvik", "doctor"], FLAGS, ("--port", "port"));
    }

    /// Values by which llama-server's users leave a choice to it, and values with another meaning there.
    #[test]
    fn values_are_translated_too() {
        for args in [
            ["-c", "0"],
            ["-np", "-1"],
            ["-t", "-1"],
            ["-t", "0"],
            ["--threads", "-04"],
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
        for budget in ["512", "many", "-2"] {
            let args = ["kvik", "serve", "--reasoning-budget", budget].map(OsString::from);
            let error = expand(args.into()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("kvik has no `--reasoning-budget {budget}`: ")), "{error}");
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
                let (words, _) = expanded(&args);
                let Ok(cli) = Cli::try_parse_from(&words) else { panic!("{args:?} became {words:?}") };
                let crate::command::Task::Serve(serve) = cli.task else { panic!("{words:?}") };
                assert_eq!(serve.access.port, 4711, "{args:?} became {words:?}");
            }
        }
    }

    #[test]
    fn a_word_that_no_flag_is_is_told_by_its_name() {
        for word in ["-mu", "-tx", "-mgx", "-nonsense"] {
            for command in ["serve", "doctor", "bench", "perplexity"] {
                let (words, _) = expanded(&["kvik", command, word, "1"]);
                let error = Cli::try_parse_from(&words).unwrap_err().to_string();
                assert!(error.contains(&format!("-{word}")), "{command}: {error}");
            }
        }
        check(&["kvik", "serve", "-m/a.gguf", "-t4"], &["kvik", "serve", "-m/a.gguf", "-t4"]);
    }

    /// Checks that the documentation contains the tables.
    #[test]
    fn the_documentation_has_the_tables() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/llama-server.md");
        let mut text = std::fs::read_to_string(&path).unwrap();
        for (name, program, rows) in [
            ("flags", "llama-server", FLAGS),
            ("flags of llama-bench", "llama-bench", BENCH),
            ("flags of llama-perplexity", "llama-perplexity", PERPLEXITY),
        ] {
            let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->\n"));
            let (before, rest) = text.split_once(&begin).unwrap();
            let (written, after) = rest.split_once(&end).unwrap();
            let table: String = rows.iter().map(Row::documented).collect();
            let table = format!("| {program} | here |\n| --- | --- |\n{table}");
            if std::env::var_os("KVIK_WRITE_FLAGS").is_some() {
                text = format!("{before}{begin}{table}{end}{after}");
                std::fs::write(&path, &text).unwrap();
            } else {
                assert_eq!(
                    written, table,
                    "KVIK_WRITE_FLAGS=1 cargo test -p kvik --lib llama_flags writes it again"
                );
            }
        }
    }
}
