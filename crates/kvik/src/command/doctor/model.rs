//! Checks of the settings, the models, their draft models and adapters: whether they exist, can be read and fit the
//! memory. Nothing is downloaded.

use std::path::PathBuf;

use kvik_engine::free_memory::available_bytes;
use kvik_model::load::LoadedModel;
use kvik_shelf::Kind;

use super::report::{Diagnosis, Verdict};
use crate::command::{
    serve_args::ServeArgs,
    shelf::{self, ShelfModel},
};
use kvik_serving::{
    causes::with_causes,
    fetch,
    settings::{
        model::{Meant, ModelArgs},
        models_dir::ModelsDirArgs,
        size::ByteSize,
    },
};

/// All checks of what the flags name, or of the models of a shelf if there is one.
pub(super) fn all(args: &ServeArgs, shelf: anyhow::Result<Option<Vec<ShelfModel>>>) -> Vec<Diagnosis> {
    let mut all = vec![settings(args, matches!(shelf, Ok(Some(_))))];
    match shelf {
        Ok(None) => all.extend(of_model(args)),
        Ok(Some(models)) => {
            let budget = shelf::budget(args.shelf_ram);
            all.extend(models.into_iter().flat_map(|model| of_shelf(&model.within(budget))));
        }
        Err(error) => {
            let remedy = "change that setting of the configuration, or leave it out";
            all.push(Diagnosis::wrong("models", with_causes(&error), remedy));
        }
    }
    all
}

/// All checks of a model of a shelf.
fn of_shelf(model: &ShelfModel) -> Vec<Diagnosis> {
    let named = |found: Diagnosis| Diagnosis { found: format!("{}: {}", model.name(), found.found), ..found };
    of_model(model.args()).into_iter().map(named).collect()
}

/// All checks of a model, its draft model and its adapters.
fn of_model(args: &ServeArgs) -> Vec<Diagnosis> {
    let free_bytes = available_bytes();
    let draft = args.draft();
    let draft = draft.as_ref().map(|draft| (draft, opened("draft model", draft)));
    let beside = draft.as_ref().and_then(|(_, opened)| opened.as_ref().ok());
    let model = match opened("model", &args.model) {
        Ok(loaded) => fitting(args, (&loaded, beside), free_bytes),
        Err(diagnosis) => *diagnosis,
    };
    let draft = draft.as_ref().map(|(draft, opened)| match opened {
        Ok(loaded) => read("draft model", draft, loaded, free_bytes),
        Err(diagnosis) => (**diagnosis).clone(),
    });
    let adapters = args.cache.lora.files();
    let adapters = adapters.iter().map(|file| adapter(&file.path.to_string_lossy(), &args.model.models_dir));
    std::iter::once(model).chain(draft).chain(adapters).collect()
}

/// Whether flags contradict each other, and whether the files of keys, tenants and words can be read.
fn settings(args: &ServeArgs, has_shelf: bool) -> Diagnosis {
    const SUBJECT: &str = "settings";
    let checked = args.check().and_then(|()| args.check_events(has_shelf));
    match checked.and_then(|()| args.check_clients()) {
        Ok(()) => Diagnosis::ok(SUBJECT, "they fit each other, and the files that they name can be read"),
        Err(error) => Diagnosis::wrong(SUBJECT, with_causes(&error), "change that setting, or leave it out"),
    }
}

/// The path of a model or adapter that a flag names; a diagnosis if it is not on this machine.
fn found(
    subject: &'static str,
    meant: Meant<'_>,
    kind: Kind,
    dir: &ModelsDirArgs,
) -> Result<PathBuf, Box<Diagnosis>> {
    match fetch::without_download(meant, kind, dir) {
        Ok(Some(path)) => Ok(path),
        Ok(None) => {
            let text = meant.text();
            let remedy = format!("`kvik pull {text}` fetches it before");
            Err(Diagnosis::note(subject, format!("{text} is downloaded at the start"), remedy).into())
        }
        Err(error) => {
            let remedy = "`kvik list` names those that are here, and `kvik pull` fetches one";
            Err(Diagnosis::wrong(subject, with_causes(&error), remedy).into())
        }
    }
}

/// A model by its file's headers; a diagnosis if it is not on this machine or cannot be read.
fn opened(subject: &'static str, args: &ModelArgs) -> Result<LoadedModel, Box<Diagnosis>> {
    if let Some(meant) = args.meant() {
        found(subject, meant, Kind::Model, &args.models_dir)?;
    }
    args.load().map_err(|error| {
        Diagnosis::wrong(subject, with_causes(&error), "name another with -m, or fetch it again").into()
    })
}

/// The diagnosis of a readable model and of its context, beside its draft model, on a machine with `free_bytes` of free
/// memory.
fn fitting(
    args: &ServeArgs,
    (loaded, draft): (&LoadedModel, Option<&LoadedModel>),
    free_bytes: Option<u64>,
) -> Diagnosis {
    let found = read("model", &args.model, loaded, free_bytes);
    // Settings that contradict each other have a diagnosis of their own.
    if found.verdict == Verdict::Wrong || args.check().is_err() {
        return found;
    }
    match context(args, (loaded, draft), free_bytes) {
        Ok(()) => found,
        Err(error) => Diagnosis {
            verdict: Verdict::Wrong,
            found: format!("{}; {}", found.found, with_causes(&error)),
            remedy: Some("change one of the settings that this names".to_owned()),
            ..found
        },
    }
}

/// Whether the context fits the memory of keys and values, and conversations the context.
fn context(
    args: &ServeArgs,
    (loaded, draft): (&LoadedModel, Option<&LoadedModel>),
    free_bytes: Option<u64>,
) -> anyhow::Result<()> {
    args.memory_within(args.context_of((loaded, draft), free_bytes)?).map(drop)
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

fn adapter(text: &str, dir: &ModelsDirArgs) -> Diagnosis {
    const SUBJECT: &str = "adapter";
    let found = found(SUBJECT, text.into(), Kind::Adapter, dir);
    found.map_or_else(|diagnosis| *diagnosis, |path| Diagnosis::ok(SUBJECT, path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::Parser;
    use kvik_kernels::KvFormat;
    use kvik_model::ModelRunner;
    use kvik_serving::settings::model::WeightsArg;
    use kvik_testing::tiny_model;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        serve: ServeArgs,
    }

    /// The diagnoses under these flags.
    fn examined(flags: &[&str]) -> Vec<Diagnosis> {
        all(&serve(flags), Ok(None))
    }

    fn serve(flags: &[&str]) -> ServeArgs {
        Flags::try_parse_from([&["kvik"], flags].concat()).unwrap().serve
    }

    /// Covers what the server finds out with the model: its start was refused, and nothing was wrong.
    #[test]
    fn settings_that_do_not_fit_the_model_are_wrong() {
        let check = |flags: &[&str], expect: Option<&str>| {
            let found = examined(&[&["--device", "cpu", "--cache-ram", "64MiB"], flags].concat());
            let model = found.iter().find(|one| one.subject == "model").unwrap();
            assert_eq!(model.verdict == Verdict::Wrong, expect.is_some(), "{flags:?}: {}", model.found);
            assert!(model.found.contains(expect.unwrap_or_default()), "{flags:?}: {}", model.found);
        };
        check(&[], None);
        check(&["--context", "131072"], Some("a context of 131072 tokens needs"));
        check(&["--context", "131072", "--retain", "snapkv:0.5"], None);
        check(&["--context", "512", "--memory", "on"], Some("--memory: recent_max"));
        check(&["--context", "1024", "--memory", "on"], None);
        check(&["--context", "20000"], None);
        check(&["--context", "20000", "--draft", "embedded"], Some("a context of 20000 tokens needs"));
    }

    /// Covers the weights, which take of the free memory before keys and values do: they were not counted.
    #[test]
    fn a_context_that_does_not_fit_beside_the_weights_is_wrong() {
        let args = ModelArgs::embedded();
        let loaded = args.load().unwrap();
        let weights = args.conversion().bytes(&loaded.tensors);
        let block = ModelRunner::uniform_layout(&loaded.config, KvFormat::F16).block_bytes() as u64;
        // Half of what the weights leave is for keys and values.
        let twice = 2 * block * (16_384 / 16);
        let check = |flags: &[&str], draft: Option<&LoadedModel>, free: u64, is_wrong: bool| {
            let args = serve(&[&["--device", "cpu", "--context", "16384"], flags].concat());
            let found = fitting(&args, (&loaded, draft), Some(free));
            let told = (found.verdict == Verdict::Wrong, found.found.contains("16384 tokens needs"));
            assert_eq!(told, (is_wrong, is_wrong), "{flags:?} {free}: {}", found.found);
        };
        check(&[], None, twice, true);
        check(&[], None, twice + weights - 2, true);
        check(&[], None, twice + weights, false);
        check(&["--cache-ram", "64MiB"], None, twice, false);
        check(&["--draft", "embedded"], Some(&loaded), 2 * twice + weights, true);
        check(&["--draft", "embedded"], Some(&loaded), 2 * twice + 2 * weights, false);
    }

    /// Covers contexts whose memory of keys and values is known only when the server starts: nothing was wrong.
    #[test]
    fn conversations_that_do_not_fit_the_context_are_wrong_wherever_it_is_computed() {
        let places: [&[&str]; 4] =
            [&["--device", "cpu"], &["--device", "gpu"], &["--device", "auto"], &["--kv", "auto:6"]];
        for place in places {
            for (context, is_wrong) in [("512", true), ("1024", false)] {
                let found = examined(&[place, &["--context", context, "--memory", "on"]].concat());
                let model = found.iter().find(|one| one.subject == "model").unwrap();
                let told = (model.verdict == Verdict::Wrong, model.found.contains("--memory: recent_max"));
                assert_eq!(told, (is_wrong, is_wrong), "{place:?} {context}: {}", model.found);
            }
        }
    }

    #[test]
    fn each_table_of_the_configuration_is_examined() {
        const SMALL: &str = "[models.a]\nsource = \"embedded\"\ncache-ram = \"64MiB\"\n";
        let dir = tempfile::tempdir().unwrap();
        let (shelf, config) = (dir.path().join("models"), dir.path().join("config.toml"));
        let paths = [&shelf, &config].map(|path| path.to_str().unwrap());
        let check = |file: &str, flags: &[&str], expect: &[Verdict], says: &str| {
            std::fs::write(&config, file).unwrap();
            let flags = [&["--models-dir", paths[0], "--device", "cpu"], flags].concat();
            let words = [&["kvik", "--config", paths[1], "doctor"], &flags[..]].concat();
            let args = serve(&flags);
            let models = shelf::models(&args, words.iter().map(OsString::from).collect());
            let found = all(&args, models.map(|models| models.map(|(_, models)| models)));
            let verdicts: Vec<Verdict> = found.iter().map(|one| one.verdict).collect();
            assert_eq!(verdicts, expect, "{file}: {found:?}");
            assert!(found.iter().any(|one| one.found.contains(says)), "{says}: {found:?}");
        };
        check(SMALL, &[], &[Verdict::Ok, Verdict::Ok], "a: embedded model");
        check(
            &format!("{SMALL}context = 131072"),
            &[],
            &[Verdict::Ok, Verdict::Wrong],
            "131072 tokens needs",
        );
        check("[models.a]\ncontxt = 1", &[], &[Verdict::Ok, Verdict::Wrong], "`contxt`");
        check("[models.a]\nsource = \"nothere\"", &[], &[Verdict::Ok, Verdict::Wrong], "nothere");
        check("[models.nothere]\ncontext = 64", &[], &[Verdict::Ok, Verdict::Wrong], "nothere");
        for (settings, says) in [
            ("chat-template-kwargs = \"{\"", "--chat-template-kwargs {"),
            ("kv = \"q8\"\nkv-map = \"x\"", "--kv-map"),
            ("gpu-layers = 4", "--gpu-layers"),
        ] {
            check(&format!("{SMALL}{settings}"), &[], &[Verdict::Ok, Verdict::Wrong], says);
        }
        check("[models.a]\nsource = \"hf:o/r\"", &[], &[Verdict::Ok, Verdict::Note], "a: hf:o/r");
        let events = ["--kv-events", "tcp://*:0"];
        check(SMALL, &events, &[Verdict::Wrong, Verdict::Ok], "tells of one model");
        check("[models.a]\ncontxt = 1", &["-m", "embedded"], &[Verdict::Ok, Verdict::Ok], "embedded model");
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
        check(&["--chat-template-kwargs", "{"], &[Verdict::Wrong, Verdict::Ok]);
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
