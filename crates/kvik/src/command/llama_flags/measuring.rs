//! The meaning of the flags of llama-bench and llama-perplexity for the commands that measure the same. Their other flags
//! (`-m`, `-p`, `-n`, `-d`, `-r`, `-f`, `-c`, and `-t` of llama-bench) are kvik's own.
//!
//! An unlisted flag is an error, so that nothing else is measured than was meant.

use super::table::{
    ATTENTION, BATCHES, FITS, KV_PLACE, LAYER_PLACE,
    Meaning::{ByValue, File, Flag, Ignored, Refused, Repository},
    OFFLINE, ONE_GPU, PLACES, Row, TOKEN,
    Takes::{Nothing, Value, Word},
    WEIGHTS, device, format, layers, of, row, same, unless_positive,
};

const WARM_UP: &str = "each test begins with a repetition that is not counted";
const PROGRESS: &str = "each result is printed as it is measured";
const ON_PROCESSOR: &str = "perplexity is computed on the processor";
const NOTHING_DRAWN: &str = "no token is drawn";

/// The flags of llama-bench, for `kvik bench`.
pub(super) const BENCH: &[Row] = &[
    of("o/r", &["-hf", "-hfr", "--hf-repo"], Repository),
    row(&["-hff", "--hf-file"], File),
    row(&["-ngl", "--gpu-layers", "--n-gpu-layers"], Flag("--gpu-layers", layers)),
    of("cpu", &["-dev", "--device"], Flag("--device", device_or_auto)),
    of("q8_0", &["-ctk", "--cache-type-k"], Flag("--kv-k", format)),
    of("q8_0", &["-ctv", "--cache-type-v"], Flag("--kv-v", format)),
    of(
        "json",
        &["-o", "--output"],
        ByValue(
            &[("md", &[]), ("json", &["--json"]), ("jsonl", &["--jsonl"])],
            "a report is a table (md), json or jsonl",
        ),
    ),
    of(
        "0",
        &["-embd", "--embeddings"],
        ByValue(&[("0", &[])], "prefill and decode are measured, and no embeddings"),
    ),
    row(&["-pg"], Refused("prefill (-p) and decode (-n) are measured one by one, each behind -d tokens")),
    row(&["-oe", "--output-err"], Refused("there is one report, on standard output; -o says its form")),
    row(&["--list-devices"], Refused("`kvik devices` lists them")),
    row(&["-b", "--batch-size", "-ub", "--ubatch-size"], Ignored(Value, BATCHES)),
    row(&["-fa", "--flash-attn"], Ignored(Value, ATTENTION)),
    row(&["-mmp", "--mmap", "-dio", "--direct-io", "--repack"], Ignored(Value, WEIGHTS)),
    row(&["-lm", "--load-mode", "-lzm", "--lazy-mode"], Ignored(Value, WEIGHTS)),
    row(&["-nr", "--no-repack"], Ignored(Nothing, WEIGHTS)),
    row(&["-nkvo", "--no-kv-offload"], Ignored(Value, KV_PLACE)),
    row(&["-nopo", "--no-op-offload", "--no-host"], Ignored(Value, LAYER_PLACE)),
    row(&["-sm", "--split-mode", "-mg", "--main-gpu", "-ts", "--tensor-split"], Ignored(Value, ONE_GPU)),
    row(&["-ot", "--override-tensor", "-ncmoe", "--n-cpu-moe", "--moe-cache"], Ignored(Value, ONE_GPU)),
    row(&["-rpc", "--rpc"], Ignored(Value, ONE_GPU)),
    row(&["-C", "--cpu-mask", "--cpu-strict", "--poll", "--prio", "--numa"], Ignored(Value, PLACES)),
    row(&["-fitt", "--fit-target", "-fitc", "--fit-ctx"], Ignored(Value, FITS)),
    row(&["--delay"], Ignored(Value, "tests follow each other at once")),
    row(&["--no-warmup"], Ignored(Nothing, WARM_UP)),
    row(&["--n-gen-warmup"], Ignored(Value, WARM_UP)),
    row(&["-v", "--verbose", "--progress"], Ignored(Nothing, PROGRESS)),
    row(&["-hft", "--hf-token"], Ignored(Value, TOKEN)),
    row(&["--offline"], Ignored(Nothing, OFFLINE)),
];

/// The flags of llama-perplexity, for `kvik perplexity`.
pub(super) const PERPLEXITY: &[Row] = &[
    of("o/r", &["-hf", "-hfr", "--hf-repo"], Repository),
    row(&["-hff", "--hf-file"], File),
    of("q8_0", &["-ctk", "--cache-type-k"], Flag("--kv-k", format)),
    of("q8_0", &["-ctv", "--cache-type-v"], Flag("--kv-v", format)),
    row(&["-t", "--threads"], Flag("--threads", unless_positive)),
    row(&["-ngl", "--gpu-layers", "--n-gpu-layers", "-dev", "--device"], Ignored(Value, ON_PROCESSOR)),
    row(&["-sm", "--split-mode", "-mg", "--main-gpu", "-ts", "--tensor-split"], Ignored(Value, ON_PROCESSOR)),
    row(&["-b", "--batch-size", "-ub", "--ubatch-size"], Ignored(Value, BATCHES)),
    row(&["-fa", "--flash-attn"], Ignored(Word, ATTENTION)),
    row(&["--mlock", "--mmap", "--no-mmap", "-nr", "--no-repack"], Ignored(Nothing, WEIGHTS)),
    row(&["-tb", "--threads-batch"], Ignored(Value, "--threads holds for prompts as well")),
    row(&["-C", "--cpu-mask", "--cpu-strict", "--poll", "--prio", "--numa"], Ignored(Value, PLACES)),
    row(&["-s", "--seed", "--temp"], Ignored(Value, NOTHING_DRAWN)),
    row(&["-np", "--parallel"], Ignored(Value, "windows are computed one by one")),
    row(&["-hft", "--hf-token"], Ignored(Value, TOKEN)),
    row(&["--offline"], Ignored(Nothing, OFFLINE)),
];

/// A device by kvik's names. llama.cpp's names are those of GPUs, among which kvik chooses.
fn device_or_auto(value: &str) -> Option<String> {
    device(value).or_else(|| same("auto"))
}
