//! The meaning of each flag of llama-server: those of its `tools/server/README.md`, and some earlier ones.
//!
//! An unlisted flag is an error: ignoring it could serve another model than was meant (`--model-url`, presets), disable
//! a protection (`--ssl-key-file`), or serve under other paths (`--api-prefix`).

/// Names of one flag, and its meaning.
pub(super) struct Row {
    pub(super) names: &'static [&'static str],
    pub(super) meaning: Meaning,
    /// An example value, for flags with a value.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test starts a server with each"))]
    pub(super) example: Option<&'static str>,
}

/// The meaning of a flag.
#[derive(Clone, Copy)]
pub(super) enum Meaning {
    /// The flag of this name, with a converted value.
    Flag(&'static str, Convert),
    /// Flags without a value.
    Switch(&'static [&'static str]),
    /// A repository of the Hugging Face hub, translated to a model.
    Repository,
    /// The file in it.
    File,
    /// No effect: kvik does it anyway, or has no equivalent.
    Ignored(Takes, &'static str),
    /// kvik's own flag of this name if one of these values follows it, else no effect.
    OwnWith(&'static [&'static str], &'static str),
    /// For each of these values these flags, and for every other value an error with this reason.
    ByValue(&'static [(&'static str, &'static [&'static str])], &'static str),
    /// An error with this reason.
    Refused(&'static str),
}

/// The value of a flag that is ignored.
#[derive(Clone, Copy)]
pub(super) enum Takes {
    Nothing,
    Value,
    /// `on`, `off`, `auto`, or nothing.
    Word,
}

/// Converts a value; `None` if it requests kvik's default.
pub(super) type Convert = fn(&str) -> Option<String>;

use Meaning::{ByValue, File, Flag, Ignored, OwnWith, Refused, Repository, Switch};
use Takes::{Nothing, Value, Word};

pub(super) const fn row(names: &'static [&'static str], meaning: Meaning) -> Row {
    let example = match meaning {
        Flag(..) | Repository | File | Ignored(Value, _) => Some("1"),
        Switch(_) | Ignored(..) | OwnWith(..) | ByValue(..) | Refused(_) => None,
    };
    Row { names, meaning, example }
}

/// A row with a valid example value.
pub(super) const fn of(example: &'static str, names: &'static [&'static str], meaning: Meaning) -> Row {
    Row { example: Some(example), ..row(names, meaning) }
}

impl Row {
    /// Its line of the documentation.
    #[cfg(test)]
    pub(super) fn documented(&self) -> String {
        let names: Vec<String> = self.names.iter().map(|name| format!("`{name}`")).collect();
        let here = match self.meaning {
            Flag(flag, _) => format!("`{flag}`"),
            Switch(flags) => format!("`{}`", flags.join(" ")),
            Repository => "`--model hf:REPOSITORY`".to_owned(),
            File => "the file in that repository".to_owned(),
            Ignored(_, why) => format!("ignored: {why}"),
            OwnWith(values, why) => format!("with `{}` the same, else ignored: {why}", values.join("`, `")),
            ByValue(values, why) => {
                let meaning = |(value, flags): &(&str, &[&str])| match flags {
                    [] => format!("`{value}`: nothing"),
                    flags => format!("`{value}`: `{}`", flags.join(" ")),
                };
                let values: Vec<String> = values.iter().map(meaning).collect();
                format!("{}; else an error: {why}", values.join(", "))
            }
            Refused(why) => format!("an error: {why}"),
        };
        format!("| {} | {here} |\n", names.join(", "))
    }
}

pub(super) const BATCHES: &str = "kvik finds the size of its batches itself";
pub(super) const PLACES: &str = "--threads and --memory-domain say where a model is computed";
const DRAFTS: &str = "how far a draft goes is measured";
pub(super) const ONE_GPU: &str = "one GPU computes a model, or its last layers: --device, --gpu-layers";
const TEXT: &str = "kvik reads text";
const ROPE: &str = "positions are those of the model's file";
pub(super) const WEIGHTS: &str = "weights are in memory as kvik lays them out";
const SAMPLERS: &str = "there are temperature, top_k, top_p, min_p and penalties";
const ASKED: &str = "a request asks for it";
const LOGS: &str = "KVIK_LOG and --log say what is logged";
const PAGE: &str = "the page is kvik's own, and always there";
const NO_TOOLS: &str = "no tools run in the server";
const MANY: &str = "several models are [models.NAME] in config.toml, or --shelf";
const CONTEXT: &str = "the context is never shifted";
pub(super) const ATTENTION: &str = "attention is always of this kind";
pub(super) const KV_PLACE: &str = "keys and values are where their layer is";
pub(super) const LAYER_PLACE: &str = "a layer is computed where it is";
pub(super) const FITS: &str = "what is not set is chosen by the memory there is";
pub(super) const TOKEN: &str = "the token is that of HF_TOKEN, or the one that `hf auth login` has stored";
pub(super) const OFFLINE: &str = "nothing is fetched but a model that is not on disk";
const THOUGHTS: &str = "thoughts are not cut: `reasoning_effort` says how long they are";
const BUDGETS: &[(&str, &[&str])] =
    &[("-1", &[]), ("0", &["--chat-template-kwargs", r#"{"enable_thinking": false}"#])];
const VECTORS: &str = "a control vector is not applied";

/// All flags, those with an effect first.
pub(super) const FLAGS: &[Row] = &[
    of("a.gguf", &["-m", "--model"], Flag("--model", same)),
    of("o/r", &["-hf", "-hfr", "--hf-repo"], Repository),
    row(&["-hff", "--hf-file"], File),
    row(&["-a", "--alias"], Flag("--alias", first)),
    of("512", &["-c", "--ctx-size"], Flag("--context", unless_zero)),
    row(&["-n", "--predict", "--n-predict"], Flag("--n-predict", same)),
    row(&["-np", "--parallel"], Flag("--parallel", unless_negative)),
    row(&["-t", "--threads"], Flag("--threads", unless_positive)),
    row(&["-ngl", "--gpu-layers", "--n-gpu-layers"], Flag("--gpu-layers", layers)),
    of("cpu", &["-dev", "--device"], Flag("--device", device)),
    of("q8_0", &["-ctk", "--cache-type-k"], Flag("--kv-k", format)),
    of("q8_0", &["-ctv", "--cache-type-v"], Flag("--kv-v", format)),
    of("512", &["-cram", "--cache-ram"], Flag("--cache-ram", mebibytes)),
    of("a.gguf", &["-md", "--model-draft", "--spec-draft-model", "--draft"], Flag("--draft", draft)),
    of("o/r", &["-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"], Flag("--draft", of_hub)),
    of("none", &["--spec-type"], Flag("--speculate", drafts)),
    row(&["--temp", "--temperature"], Flag("--temp", same)),
    row(&["-s", "--seed"], Flag("--seed", same)),
    row(&["--top-k"], Flag("--top-k", same)),
    row(&["--top-p"], Flag("--top-p", same)),
    row(&["--min-p"], Flag("--min-p", same)),
    row(&["--repeat-penalty"], Flag("--repeat-penalty", same)),
    row(&["--repeat-last-n"], Flag("--repeat-last-n", same)),
    row(&["--presence-penalty"], Flag("--presence-penalty", same)),
    row(&["--frequency-penalty"], Flag("--frequency-penalty", same)),
    row(&["--chat-template", "--chat-template-file"], Flag("--chat-template", template)),
    of("{}", &["--chat-template-kwargs"], Flag("--chat-template-kwargs", same)),
    of("off", &["-rea", "--reasoning"], Flag("--chat-template-kwargs", reasoning)),
    of("0", &["--reasoning-budget"], ByValue(BUDGETS, THOUGHTS)),
    of("low", &["--reasoning-effort"], Flag("--chat-template-kwargs", effort)),
    of("last", &["--pooling"], Flag("--pooling", pooling)),
    row(&["--lora"], Flag("--lora", same)),
    of("a.gguf:1", &["--lora-scaled"], Flag("--lora-scaled", same)),
    of("localhost", &["--host"], Flag("--host", same)),
    row(&["--api-key"], Flag("--api-key", same)),
    row(&["--api-key-file"], Flag("--api-key-file", same)),
    of("*", &["--cors-origins"], Flag("--cors", same)),
    row(&["--log-jsonl"], Switch(&["--log", "json"])),
    row(&["-b", "--batch-size", "-ub", "--ubatch-size"], Ignored(Value, BATCHES)),
    row(&["-tb", "--threads-batch"], Ignored(Value, "--threads holds for prompts as well")),
    row(
        &["-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict", "--prio", "--poll", "--numa"],
        Ignored(Value, PLACES),
    ),
    row(
        &[
            "-Cb",
            "--cpu-mask-batch",
            "-Crb",
            "--cpu-range-batch",
            "--cpu-strict-batch",
            "--prio-batch",
            "--poll-batch",
        ],
        Ignored(Value, PLACES),
    ),
    row(&["--threads-http"], Ignored(Value, "requests are read as they come")),
    row(&["-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"], Ignored(Value, ONE_GPU)),
    row(
        &["-ot", "--override-tensor", "-ncmoe", "--n-cpu-moe", "-ncffn", "--n-cpu-ffn"],
        Ignored(Value, ONE_GPU),
    ),
    row(&["--moe-cache-mib", "--rpc"], Ignored(Value, ONE_GPU)),
    row(&["-cmoe", "--cpu-moe"], Ignored(Nothing, ONE_GPU)),
    row(&["-fit", "--fit"], Ignored(Word, FITS)),
    row(&["-fitt", "--fit-target", "-fitc", "--fit-ctx"], Ignored(Value, FITS)),
    row(&["-kvo", "--kv-offload", "-nkvo", "--no-kv-offload"], Ignored(Nothing, KV_PLACE)),
    row(&["--op-offload", "--no-op-offload", "--no-host"], Ignored(Nothing, LAYER_PLACE)),
    row(&["-fa", "--flash-attn"], Ignored(Word, ATTENTION)),
    row(&["--repack", "-nr", "--no-repack", "--mlock", "--mmap", "--no-mmap"], Ignored(Nothing, WEIGHTS)),
    row(&["--direct-io", "-dio", "--no-direct-io", "-ndio", "--check-tensors"], Ignored(Nothing, WEIGHTS)),
    row(&["-lm", "--load-mode", "-lzm", "--lazy-mode"], Ignored(Value, WEIGHTS)),
    row(&["--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale"], Ignored(Value, ROPE)),
    row(
        &[
            "--yarn-orig-ctx",
            "--yarn-ext-factor",
            "--yarn-attn-factor",
            "--yarn-beta-slow",
            "--yarn-beta-fast",
        ],
        Ignored(Value, ROPE),
    ),
    row(&["-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"], Ignored(Value, ROPE)),
    row(&["--override-kv"], Ignored(Value, "what the file says of the model holds")),
    row(&["--control-vector", "--control-vector-scaled"], Ignored(Value, VECTORS)),
    row(&["--slot-save-path"], Ignored(Value, "prefixes are on disk by themselves; see --cache-disk")),
    row(
        &["--cache-reuse", "-sps", "--slot-prompt-similarity"],
        Ignored(Value, "every prefix of every request is found"),
    ),
    row(
        &["-cb", "--cont-batching", "-nocb", "--no-cont-batching"],
        Ignored(Nothing, "batching is always continuous"),
    ),
    row(&["--cache-prompt"], Ignored(Nothing, "prompts are always cached")),
    row(&["--no-cache-prompt"], Ignored(Nothing, "a request says it: `cache_prompt` false")),
    row(
        &["--cache-idle-slots", "--no-cache-idle-slots"],
        Ignored(Nothing, "every prefix is kept while there is room"),
    ),
    row(
        &["-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"],
        Ignored(Nothing, "there is one cache for all requests"),
    ),
    row(&["--kv-unified-per-slot"], Ignored(Value, "--context is what one request may have")),
    row(
        &["-ctxcp", "--ctx-checkpoints", "--swa-checkpoints", "-cms", "--checkpoint-min-step"],
        Ignored(Value, "states are kept where prompts part"),
    ),
    row(&["--swa-full"], Ignored(Nothing, "what a window needs to go on is kept where prompts part")),
    row(&["-dt", "--defrag-thold"], Ignored(Value, "blocks have no gaps")),
    row(&["--keep"], Ignored(Value, CONTEXT)),
    row(&["--context-shift", "--no-context-shift"], Ignored(Nothing, CONTEXT)),
    row(&["--jinja", "--no-jinja"], Ignored(Nothing, "templates are always read as Jinja")),
    row(&["--reasoning-format"], Ignored(Value, "thoughts are told apart, each dialect in its way")),
    row(&["--reasoning-budget-message"], Ignored(Value, THOUGHTS)),
    row(
        &["--reasoning-preserve", "--no-reasoning-preserve"],
        Ignored(Nothing, "the template says which thoughts stay"),
    ),
    row(
        &["--skip-chat-parsing", "--no-skip-chat-parsing"],
        Ignored(Nothing, "answers are read as the template writes them"),
    ),
    row(
        &["--prefill-assistant", "--no-prefill-assistant"],
        Ignored(Nothing, "a request says it: `continue_final_message`"),
    ),
    row(&["--slots", "--props", "--metrics"], Ignored(Nothing, "the route is always there")),
    row(&["--embedding", "--embeddings", "--reranking"], Ignored(Nothing, "the routes are always there")),
    row(&["--rerank"], OwnWith(&["embedding", "yes-no"], "the routes are always there")),
    row(&["--embd-normalize"], Ignored(Value, "embeddings have the length 1")),
    row(&["--warmup", "--no-warmup"], Ignored(Nothing, "there is no warm-up")),
    row(&["--perf", "--no-perf"], Ignored(Nothing, "answers always say their times")),
    row(
        &["--samplers", "--sampler-seq", "--sampling-seq", "--top-nsigma", "--top-n-sigma"],
        Ignored(Value, SAMPLERS),
    ),
    row(&["--xtc-probability", "--xtc-threshold", "--typical", "--typical-p"], Ignored(Value, SAMPLERS)),
    row(
        &[
            "--dry-multiplier",
            "--dry-base",
            "--dry-allowed-length",
            "--dry-penalty-last-n",
            "--dry-sequence-breaker",
        ],
        Ignored(Value, SAMPLERS),
    ),
    row(
        &["--adaptive-target", "--adaptive-decay", "--dynatemp-range", "--dynatemp-exp"],
        Ignored(Value, SAMPLERS),
    ),
    row(&["--mirostat", "--mirostat-lr", "--mirostat-ent"], Ignored(Value, SAMPLERS)),
    row(&["-bs", "--backend-sampling"], Ignored(Nothing, "tokens are chosen by the processor")),
    row(&["-l", "--logit-bias", "-r", "--reverse-prompt"], Ignored(Value, ASKED)),
    row(
        &["--grammar", "--grammar-file", "-j", "--json-schema", "-jf", "--json-schema-file"],
        Ignored(Value, ASKED),
    ),
    row(&["--ignore-eos", "-sp", "--special", "--spm-infill"], Ignored(Nothing, ASKED)),
    row(&["-e", "--escape", "--no-escape"], Ignored(Nothing, "a prompt is read as it is sent")),
    row(
        &[
            "-ctkd",
            "--cache-type-k-draft",
            "--spec-draft-type-k",
            "-ctvd",
            "--cache-type-v-draft",
            "--spec-draft-type-v",
        ],
        Ignored(Value, "a draft has the formats of its model"),
    ),
    row(
        &[
            "-td",
            "--threads-draft",
            "--spec-draft-threads",
            "-tbd",
            "--threads-batch-draft",
            "--spec-draft-threads-batch",
        ],
        Ignored(Value, PLACES),
    ),
    row(
        &[
            "-ngld",
            "--gpu-layers-draft",
            "--n-gpu-layers-draft",
            "--spec-draft-ngl",
            "-devd",
            "--device-draft",
            "--spec-draft-device",
        ],
        Ignored(Value, ONE_GPU),
    ),
    row(
        &[
            "--draft-max",
            "--draft-n",
            "--spec-draft-n-max",
            "--draft-min",
            "--draft-n-min",
            "--spec-draft-n-min",
        ],
        Ignored(Value, DRAFTS),
    ),
    row(
        &[
            "--draft-p-min",
            "--spec-draft-p-min",
            "--draft-p-split",
            "--spec-draft-p-split",
            "--spec-draft-sampling",
        ],
        Ignored(Value, DRAFTS),
    ),
    row(
        &["-cd", "--ctx-size-draft", "-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic"],
        Ignored(Value, DRAFTS),
    ),
    row(
        &[
            "--spec-ngram-mod-n-min",
            "--spec-ngram-mod-n-max",
            "--spec-ngram-mod-n-match",
            "--spec-ngram-size-n",
            "--spec-ngram-size-m",
            "--spec-ngram-min-hits",
        ],
        Ignored(Value, DRAFTS),
    ),
    row(&["--spec-default"], Ignored(Nothing, "drafts are tried by themselves")),
    row(
        &["-mm", "--mmproj", "-mmu", "--mmproj-url", "-mmdev", "--mmproj-device", "--media-path"],
        Ignored(Value, TEXT),
    ),
    row(
        &["--mmproj-auto", "--no-mmproj", "--no-mmproj-auto", "--mmproj-offload", "--no-mmproj-offload"],
        Ignored(Nothing, TEXT),
    ),
    row(
        &["--image-min-tokens", "--image-max-tokens", "--mtmd-batch-max-tokens", "--video-fps"],
        Ignored(Value, TEXT),
    ),
    row(&["-hft", "--hf-token"], Ignored(Value, TOKEN)),
    row(&["--offline"], Ignored(Nothing, OFFLINE)),
    row(&["--tags"], Ignored(Value, "models have no tags")),
    row(
        &["-v", "--verbose", "--log-verbose", "--log-disable", "--log-enable", "--no-log-jsonl"],
        Ignored(Nothing, LOGS),
    ),
    row(
        &["--log-prefix", "--no-log-prefix", "--log-timestamps", "--no-log-timestamps"],
        Ignored(Nothing, LOGS),
    ),
    row(&["-lv", "--verbosity", "--log-verbosity", "--log-file", "--log-prompts-dir"], Ignored(Value, LOGS)),
    row(&["--log-colors"], Ignored(Word, LOGS)),
    row(
        &["-to", "--timeout", "--sse-ping-interval"],
        Ignored(Value, "an answer takes as long as it takes, and a connection is kept alive"),
    ),
    row(&["--sleep-idle-seconds"], Ignored(Value, "--keep-alive says how long a model of several stays")),
    row(&["--reuse-port"], Ignored(Nothing, "a port is this server's alone")),
    row(&["--cors-methods", "--cors-headers"], Ignored(Value, "pages that may call may call everything")),
    row(
        &["--cors-credentials", "--no-cors-credentials"],
        Ignored(Nothing, "pages send no credentials of a browser"),
    ),
    row(
        &["--path", "--ui-config", "--webui-config", "--ui-config-file", "--webui-config-file"],
        Ignored(Value, PAGE),
    ),
    row(&["--ui", "--webui", "--no-ui", "--no-webui"], Ignored(Nothing, PAGE)),
    row(
        &["--ui-mcp-proxy", "--webui-mcp-proxy", "--no-ui-mcp-proxy", "--no-webui-mcp-proxy"],
        Ignored(Nothing, PAGE),
    ),
    row(
        &["--tools", "--tools-runtime", "--mcp-servers-config", "--mcp-servers-json"],
        Ignored(Value, NO_TOOLS),
    ),
    row(&["-ag", "--agent", "-no-ag", "--no-agent"], Ignored(Nothing, NO_TOOLS)),
    row(&["--models-max"], Ignored(Value, MANY)),
    row(&["--models-autoload", "--no-models-autoload"], Ignored(Nothing, MANY)),
];

pub(super) fn same(value: &str) -> Option<String> {
    Some(value.to_owned())
}

/// A size; 0 selects the model's own.
fn unless_zero(value: &str) -> Option<String> {
    same(value).filter(|value| value != "0")
}

/// A number of threads; 0 and less leave the choice to kvik.
pub(super) fn unless_positive(value: &str) -> Option<String> {
    same(value).filter(|value| !matches!(value.parse::<i64>(), Ok(..=0)))
}

/// A number; -1 leaves the choice to kvik.
fn unless_negative(value: &str) -> Option<String> {
    same(value).filter(|value| !value.starts_with('-'))
}

/// The first of several names.
fn first(value: &str) -> Option<String> {
    value.split(',').next().map(str::to_owned)
}

pub(super) fn layers(value: &str) -> Option<String> {
    unless_negative(value).filter(|value| value != "auto")
}

/// A device by kvik's names; for llama.cpp's names kvik chooses.
pub(super) fn device(value: &str) -> Option<String> {
    match value {
        "none" => same("cpu"),
        kvik if kvik.starts_with("gpu") || matches!(kvik, "auto" | "cpu") => same(kvik),
        _ => None,
    }
}

/// The name of a KV format with at least as many bits.
pub(super) fn format(value: &str) -> Option<String> {
    same(match value {
        "q8_0" | "q5_0" | "q5_1" => "q8",
        "q4_0" | "q4_1" | "iq4_nl" => "q4",
        other => other,
    })
}

/// A number of mebibytes, unless it is so small or so large that another unit may be meant: clap then rejects it for
/// lack of a unit. Zero and negative numbers (no limit) leave the choice to kvik.
fn mebibytes(value: &str) -> Option<String> {
    match value.parse::<i64>() {
        Ok(..=0) => None,
        Ok(number @ 64..0x10_0000) => Some(format!("{number}MiB")),
        _ => same(value),
    }
}

/// A draft model; older versions had a number of tokens there.
fn draft(value: &str) -> Option<String> {
    same(value).filter(|value| value.parse::<i64>().is_err())
}

fn of_hub(value: &str) -> Option<String> {
    Some(format!("hf:{value}"))
}

/// Sources of drafts: n-grams and a prediction head map to kvik's own, and a draft model has its own flag.
fn drafts(value: &str) -> Option<String> {
    match value {
        "none" => same("none"),
        names if names.split(',').any(|name| name.starts_with("ngram") || name == "draft-mtp") => same("all"),
        _ => None,
    }
}

/// A template file. llama.cpp's named templates are not supported, and models have their own.
fn template(value: &str) -> Option<String> {
    let is_name = |text: &str| {
        let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        text.bytes().all(letters) && !std::path::Path::new(text).exists()
    };
    same(value).filter(|value| !is_name(value))
}

/// Whether to think.
fn reasoning(value: &str) -> Option<String> {
    match value {
        "off" | "0" => same(r#"{"enable_thinking": false}"#),
        "on" => same(r#"{"enable_thinking": true}"#),
        _ => None,
    }
}

/// The reasoning effort.
fn effort(value: &str) -> Option<String> {
    let level = Some(value).filter(|value| *value != "default");
    level.map(|level| serde_json::json!({"reasoning_effort": level}).to_string())
}

/// The pooling of an embedding; `rank` and `none` (states of all tokens) are not supported.
fn pooling(value: &str) -> Option<String> {
    same(value).filter(|value| !matches!(value.as_str(), "none" | "rank"))
}
