//! The table of short names. A family's first row is what its name alone means.
//!
//! A row is a repository of the hub with GGUF files of an architecture that kvik computes. Sizes are millions of
//! parameters, as the models' cards give them; licences are those of the models.

use super::ShortName;

const APACHE: &str = "Apache-2.0";
const MIT: &str = "MIT";
const GEMMA: &str = "Gemma";
const LLAMA_31: &str = "Llama 3.1";
const LLAMA_32: &str = "Llama 3.2";
const LLAMA_33: &str = "Llama 3.3";
const QWEN_RESEARCH: &str = "Qwen Research";
const MISTRAL_RESEARCH: &str = "Mistral Research";
const LFM: &str = "LFM 1.0";

const fn row(
    name: &'static str,
    repository: &'static str,
    parameters_m: u32,
    licence: &'static str,
) -> ShortName {
    ShortName { name, repository, parameters_m, licence }
}

/// All short names, by family.
pub(super) const TABLE: &[ShortName] = &[
    row("qwen3:4b", "unsloth/Qwen3-4B-GGUF", 4_020, APACHE),
    row("qwen3:0.6b", "unsloth/Qwen3-0.6B-GGUF", 596, APACHE),
    row("qwen3:1.7b", "unsloth/Qwen3-1.7B-GGUF", 1_720, APACHE),
    row("qwen3:8b", "Qwen/Qwen3-8B-GGUF", 8_190, APACHE),
    row("qwen3:14b", "Qwen/Qwen3-14B-GGUF", 14_770, APACHE),
    row("qwen3:30b-a3b", "unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF", 30_530, APACHE),
    row("qwen3:32b", "Qwen/Qwen3-32B-GGUF", 32_760, APACHE),
    row("qwen3-instruct:4b", "unsloth/Qwen3-4B-Instruct-2507-GGUF", 4_020, APACHE),
    row("qwen3-coder:30b", "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF", 30_530, APACHE),
    row("qwen3-embedding:0.6b", "Qwen/Qwen3-Embedding-0.6B-GGUF", 596, APACHE),
    row("qwen2.5:1.5b", "Qwen/Qwen2.5-1.5B-Instruct-GGUF", 1_540, APACHE),
    row("qwen2.5:0.5b", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", 494, APACHE),
    row("qwen2.5:3b", "Qwen/Qwen2.5-3B-Instruct-GGUF", 3_090, QWEN_RESEARCH),
    row("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct-GGUF", 7_620, APACHE),
    row("qwen2.5:14b", "Qwen/Qwen2.5-14B-Instruct-GGUF", 14_770, APACHE),
    row("qwen2.5:32b", "Qwen/Qwen2.5-32B-Instruct-GGUF", 32_760, APACHE),
    row("qwen2.5-coder:1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", 1_540, APACHE),
    row("qwen2.5-coder:0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", 494, APACHE),
    row("qwen2.5-coder:3b", "Qwen/Qwen2.5-Coder-3B-Instruct-GGUF", 3_090, QWEN_RESEARCH),
    row("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF", 7_620, APACHE),
    row("qwen2.5-coder:14b", "Qwen/Qwen2.5-Coder-14B-Instruct-GGUF", 14_770, APACHE),
    row("qwen2.5-coder:32b", "Qwen/Qwen2.5-Coder-32B-Instruct-GGUF", 32_760, APACHE),
    row("smollm2:360m", "bartowski/SmolLM2-360M-Instruct-GGUF", 362, APACHE),
    row("smollm2:135m", "bartowski/SmolLM2-135M-Instruct-GGUF", 135, APACHE),
    row("smollm2:1.7b", "bartowski/SmolLM2-1.7B-Instruct-GGUF", 1_710, APACHE),
    row("smollm3:3b", "unsloth/SmolLM3-3B-GGUF", 3_080, APACHE),
    row("gemma3:1b", "unsloth/gemma-3-1b-it-GGUF", 1_000, GEMMA),
    row("gemma3:270m", "unsloth/gemma-3-270m-it-GGUF", 268, GEMMA),
    row("gemma3:4b", "unsloth/gemma-3-4b-it-GGUF", 3_880, GEMMA),
    row("gemma3:12b", "unsloth/gemma-3-12b-it-GGUF", 11_770, GEMMA),
    row("gemma3:27b", "unsloth/gemma-3-27b-it-GGUF", 27_010, GEMMA),
    row("gemma3n:e2b", "unsloth/gemma-3n-E2B-it-GGUF", 4_460, GEMMA),
    row("gemma2:2b", "bartowski/gemma-2-2b-it-GGUF", 2_610, GEMMA),
    row("gemma2:9b", "bartowski/gemma-2-9b-it-GGUF", 9_240, GEMMA),
    row("llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF", 3_210, LLAMA_32),
    row("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF", 1_240, LLAMA_32),
    row("llama3.1:8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", 8_030, LLAMA_31),
    row("llama3.3:70b", "bartowski/Llama-3.3-70B-Instruct-GGUF", 70_550, LLAMA_33),
    row("phi4-mini:3.8b", "bartowski/microsoft_Phi-4-mini-instruct-GGUF", 3_840, MIT),
    row("phi4:14b", "bartowski/phi-4-GGUF", 14_660, MIT),
    row("phi3.5:3.8b", "bartowski/Phi-3.5-mini-instruct-GGUF", 3_820, MIT),
    row("mistral:7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF", 7_250, APACHE),
    row("mistral-nemo:12b", "bartowski/Mistral-Nemo-Instruct-2407-GGUF", 12_250, APACHE),
    row("mistral-small:24b", "bartowski/Mistral-Small-24B-Instruct-2501-GGUF", 23_570, APACHE),
    row("ministral:8b", "bartowski/Ministral-8B-Instruct-2410-GGUF", 8_020, MISTRAL_RESEARCH),
    row("deepseek-r1:1.5b", "unsloth/DeepSeek-R1-Distill-Qwen-1.5B-GGUF", 1_780, MIT),
    row("granite3.3:2b", "bartowski/ibm-granite_granite-3.3-2b-instruct-GGUF", 2_530, APACHE),
    row("granite4:h-micro", "unsloth/granite-4.0-h-micro-GGUF", 3_190, APACHE),
    row("lfm2:350m", "LiquidAI/LFM2-350M-GGUF", 354, LFM),
    row("olmoe:7b", "bartowski/OLMoE-1B-7B-0924-Instruct-GGUF", 6_920, APACHE),
    row("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF", 20_910, APACHE),
];
