//! Checks of the settings, the model, the draft model and adapters: whether they exist and can be read. Nothing is
//! downloaded.

use std::path::PathBuf;

use kvik_engine::free_memory::available_bytes;
use kvik_model::load::LoadedModel;
use kvik_shelf::Kind;

use super::report::Diagnosis;
use crate::command::serve_args::ServeArgs;
use kvik_serving::{
    causes::with_causes,
    fetch,
    settings::{model::ModelArgs, size::ByteSize},
};

/// All checks of what the flags name.
pub(super) fn all(args: &ServeArgs) -> Vec<Diagnosis> {
    let mut all = vec![settings(args), model("model", &args.model)];
    all.extend(args.cache.draft.as_deref().map(|draft| model("draft model", &args.model.of(draft))));
    all.extend(args.cache.lora.files().iter().map(|file| adapter(&file.path.to_string_lossy(), &args.model)));
    all
}

/// Whether flags contradict each other, and whether the files of keys, tenants and words can be read.
fn settings(args: &ServeArgs) -> Diagnosis {
    const SUBJECT: &str = "settings";
    match args.check().and_then(|()| args.check_clients()) {
        Ok(()) => Diagnosis::ok(SUBJECT, "they fit each other, and the files that they name can be read"),
        Err(error) => Diagnosis::wrong(SUBJECT, with_causes(&error), "change that setting, or leave it out"),
    }
}

/// The path of a model or adapter that a flag names; a diagnosis if it is not on this machine.
fn found(subject: &'static str, text: &str, kind: Kind, args: &ModelArgs) -> Result<PathBuf, Box<Diagnosis>> {
    match fetch::without_download(text, kind, &args.models_dir) {
        Ok(Some(path)) => Ok(path),
        Ok(None) => {
            let remedy = format!("`kvik pull {text}` fetches it before");
            Err(Diagnosis::note(subject, format!("{text} is downloaded at the start"), remedy).into())
        }
        Err(error) => {
            let remedy = "`kvik list` names those that are here, and `kvik pull` fetches one";
            Err(Diagnosis::wrong(subject, with_causes(&error), remedy).into())
        }
    }
}

/// The check of a model, by its file's headers.
fn model(subject: &'static str, args: &ModelArgs) -> Diagnosis {
    if let Some(text) = args.named()
        && let Err(diagnosis) = found(subject, text, Kind::Model, args)
    {
        return *diagnosis;
    }
    match args.load() {
        Ok(loaded) => read(subject, args, &loaded, available_bytes()),
        Err(error) => {
            Diagnosis::wrong(subject, with_causes(&error), "name another with -m, or fetch it again")
        }
    }
}

/// The diagnosis of a readable model, on a machine with `free_bytes` of free memory.
fn read(subject: &'static str, args: &ModelArgs, loaded: &LoadedModel, free_bytes: Option<u64>) -> Diagnosis {
    let weight_bytes = args.conversion().bytes(&loaded.tensors);
    let found = format!(
        "{}: {}, {} of weights, a context of {} tokens",
        args.source(),
        loaded.config.arch.name(),
        ByteSize(weight_bytes),
        loaded.config.context
    );
    let diagnosis = match (loaded.own_template(), free_bytes.filter(|&free| weight_bytes > free)) {
        (Err(error), _) => Diagnosis::wrong(
            subject,
            format!("{found}; {error}"),
            "name another template with --chat-template",
        ),
        (_, Some(free)) => {
            let found = format!("{found}, and {} of memory are free", ByteSize(free));
            Diagnosis::wrong(subject, found, "take a smaller model or quantisation, or close other programs")
        }
        (Ok(Some(_)), None) => Diagnosis::ok(subject, found),
        (Ok(None), None) => Diagnosis::note(
            subject,
            format!("{found}; it has no chat template"),
            "it continues texts (/v1/completions); --chat-template FILE makes it answer chats",
        ),
    };
    diagnosis.with("weight_bytes", weight_bytes).with("context_tokens", loaded.config.context)
}

fn adapter(text: &str, args: &ModelArgs) -> Diagnosis {
    const SUBJECT: &str = "adapter";
    let found = found(SUBJECT, text, Kind::Adapter, args);
    found.map_or_else(|diagnosis| *diagnosis, |path| Diagnosis::ok(SUBJECT, path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kvik_serving::settings::model::WeightsArg;
    use kvik_testing::tiny_model;

    use super::super::report::Verdict;
    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        serve: ServeArgs,
    }

    /// The diagnoses under these flags.
    fn examined(flags: &[&str]) -> Vec<Diagnosis> {
        all(&Flags::try_parse_from([&["kvik"], flags].concat()).unwrap().serve)
    }

    /// Covers every flag that names a file or a model: a missing one is wrong, and its name is reported.
    #[test]
    fn what_is_named_and_not_there_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = dir.path().to_str().unwrap();
        for flag in [
            "-m",
            "--draft",
            "--lora",
            "--chat-template",
            "--kv-map",
            "--tenants",
            "--api-key-file",
            "--admin-key-file",
            "--memory-words",
        ] {
            let found = examined(&["--models-dir", shelf, flag, "nothere"]);
            let wrong: Vec<&Diagnosis> = found.iter().filter(|one| one.verdict == Verdict::Wrong).collect();
            assert!(!wrong.is_empty(), "{flag}: {found:?}");
            assert!(wrong.iter().any(|one| one.found.contains("nothere")), "{flag}: {wrong:?}");
        }
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "nothing is left behind");
    }

    #[test]
    fn what_is_there_is_read_and_what_is_not_fetched_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (shelf, file) = (dir.path().to_str().unwrap(), tiny_model());
        let check = |flags: &[&str], expect: &[Verdict]| {
            let found = examined(&[&["--models-dir", shelf], flags].concat());
            let verdicts: Vec<Verdict> = found.iter().map(|one| one.verdict).collect();
            assert_eq!(verdicts, expect, "{flags:?}: {found:?}");
        };
        check(&[], &[Verdict::Ok, Verdict::Ok]);
        check(&["-m", file.to_str().unwrap()], &[Verdict::Ok, Verdict::Ok]);
        check(&["-m", "hf:o/r"], &[Verdict::Ok, Verdict::Note]);
        check(&["--kv", "q8", "--kv-map", "x"], &[Verdict::Wrong, Verdict::Ok]);
    }

    #[test]
    fn a_model_that_does_not_fit_the_free_memory_is_wrong() {
        let mut args = ModelArgs::embedded();
        let loaded = args.load().unwrap();
        let check = |args: &ModelArgs, free, expect| {
            assert_eq!(read("model", args, &loaded, free).verdict, expect, "{free:?}");
        };
        check(&args, None, Verdict::Ok);
        check(&args, Some(1 << 40), Verdict::Ok);
        check(&args, Some(1 << 10), Verdict::Wrong);
        let twice = Some(2 * loaded.tensors.total_bytes());
        check(&args, twice, Verdict::Ok);
        args.weights = Some(WeightsArg::F32);
        check(&args, twice, Verdict::Wrong);
    }

    #[test]
    fn a_template_that_cannot_be_read_is_wrong() {
        let args = ModelArgs::embedded();
        let mut loaded = args.load().unwrap();
        loaded.chat_template = Some("{{ nonsense".to_owned());
        let found = read("model", &args, &loaded, None);
        assert_eq!(found.verdict, Verdict::Wrong);
        assert!(found.remedy.unwrap().contains("--chat-template"));
    }
}
