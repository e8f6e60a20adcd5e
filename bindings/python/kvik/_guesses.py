"""Names that users of other packages write first, and the names of this one: every wrong guess is told the right one.

Messages name the argument or the method to use; nothing of another package is imitated.
"""
from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, Callable, Collection, Mapping, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_PROCESSOR = "the package computes on the processor; `kvik serve` uses GPUs"
_WEIGHTS = "weights are used as the file has them"
_FORM = "use `json_schema`, `regex` or `grammar`"
_OF_AN_ANSWER = "it is an option of an answer: model.chat(messages, {name}=...)"
_MEMORY = "memory is divided by `kv_bytes` and `context_tokens`"

MODEL: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "model", "model_path", "model_name", "model_id", "name", "path", "file", "filename", "repo_id",
            "model_name_or_path", "pretrained_model_name_or_path",
        ),
        "`source`, which is the first argument",
    ),
    **dict.fromkeys(
        ("n_ctx", "num_ctx", "ctx_size", "context", "context_length", "context_size", "max_seq_len", "max_model_len"),
        "`context_tokens`",
    ),
    **dict.fromkeys(("n_threads", "num_threads", "num_thread"), "`threads`"),
    **dict.fromkeys(("n_parallel", "max_num_seqs", "n_seq_max", "num_parallel"), "`parallel`"),
    **dict.fromkeys(("cache_dir", "cache", "cache_path", "disk"), "`disk_dir`"),
    **dict.fromkeys(("type_k", "type_v", "cache_type_k", "cache_type_v", "kv_cache_dtype"), "`kv_format`"),
    **dict.fromkeys(("cache_ram", "kv_cache_memory_bytes", "gpu_memory_utilization"), "`kv_bytes`"),
    **dict.fromkeys(
        ("n_gpu_layers", "gpu_layers", "num_gpu", "device", "device_map", "tensor_parallel_size"), _PROCESSOR
    ),
    **dict.fromkeys(("dtype", "torch_dtype", "load_in_4bit", "load_in_8bit", "quantization"), _WEIGHTS),
    **dict.fromkeys(("n_batch", "n_ubatch", "use_mmap", "use_mlock", "flash_attn"), "kvik chooses it"),
    **dict.fromkeys(("chat_format", "chat_template", "tokenizer"), "the model's own files say it"),
    **dict.fromkeys(("embedding", "embeddings"), "every model embeds: model.embed(text)"),
    **dict.fromkeys(("temperature", "top_p", "top_k", "max_tokens", "seed", "stop"), _OF_AN_ANSWER),
    "verbose": "nothing is printed",
    "trust_remote_code": "no code of a model is executed",
    "api_key": "no server is asked; the package `openai` asks one",
    "base_url": "no server is asked; the package `openai` asks one",
}
"""Arguments with which others open a model."""

ANSWER: Mapping[str, str] = {
    **dict.fromkeys(
        ("max_new_tokens", "max_length", "max_completion_tokens", "num_predict", "n_predict", "max_output_tokens"),
        "`max_tokens`",
    ),
    **dict.fromkeys(("min_new_tokens", "min_length"), "`min_tokens`"),
    **dict.fromkeys(("repeat_penalty", "penalty_repeat"), "`repetition_penalty`"),
    **dict.fromkeys(("stop_sequences", "stop_strings", "stop_words", "stops"), "`stop`"),
    **dict.fromkeys(("think", "thinking", "enable_thinking", "reasoning_effort"), "`reasoning`"),
    **dict.fromkeys(("functions", "function_call"), "`tools` and `tool_choice`"),
    **dict.fromkeys(("response_format", "format", "guided_json", "output_schema"), _FORM),
    **dict.fromkeys(
        ("n", "num_return_sequences", "best_of", "num_beams"), "ask several times: the prompt is computed once"
    ),
    **dict.fromkeys(("logprobs", "top_logprobs", "output_scores"), "model.logits(prompt) has those of the next token"),
    **dict.fromkeys(("echo", "return_full_text"), "an answer is without its prompt"),
    **dict.fromkeys(("options", "sampling_params", "generation_config"), "they are arguments: temperature=0.7"),
    **dict.fromkeys(("model", "model_name"), "it is the model that was opened"),
    "stream": "every answer is a stream: iterate over it, or read all of it with `.text()`",
    "streamer": "every answer is a stream: iterate over it",
    "do_sample": "greedy is `temperature=0`; without it the model's makers decide",
    "system": "it is a message of the role `system`",
    "keep_alive": "the model is open until `close`",
}
"""Arguments with which others ask."""

ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "Model": {
        **dict.fromkeys(("create_chat_completion", "invoke", "ask", "respond", "stream", "completions"), "`chat`"),
        **dict.fromkeys(("create_completion", "complete", "completion", "predict"), "`generate`"),
        **dict.fromkeys(("create_embedding", "encode", "embeddings"), "`embed`"),
        **dict.fromkeys(("tokenize", "tokenizer"), "`tokens`"),
        **dict.fromkeys(("detokenize", "decode"), "`text_of`"),
        **dict.fromkeys(("n_ctx", "context_length", "max_model_len"), "`context_tokens`"),
        **dict.fromkeys(("unload", "reset", "shutdown"), "`close`"),
        **dict.fromkeys(("save_state", "load_state", "set_cache"), "`keep_prompt`, or `disk_dir` of the model"),
        **dict.fromkeys(("to", "cuda", "half", "eval"), _PROCESSOR),
        "load": "kvik.Model(source) is loaded",
        "apply_chat_template": "`chat`, which applies the model's own template",
    },
    "Answer": {
        **dict.fromkeys(
            ("content", "response", "message", "choices", "output_text", "generated_text", "outputs", "strip"),
            "`.text()`, which reads the whole text",
        ),
        **dict.fromkeys(("usage", "timings", "stats", "total_duration"), "`.report`, after the last piece"),
        **dict.fromkeys(("finish_reason", "stop_reason", "done"), "`.report.finish`, after the last piece"),
        "tool_calls": "`piece.call` of its pieces",
        "reasoning": "pieces with `piece.is_reasoning`",
        "close": "`cancel`",
    },
    "Piece": {
        **dict.fromkeys(("content", "delta", "response", "choices", "message", "token"), "`text`"),
        "tool_calls": "`call`",
    },
    "Conversation": {**dict.fromkeys(("chat", "ask", "send", "send_message", "invoke"), "`say`"), "history": "`messages`"},
    "kvik": {
        **dict.fromkeys(
            (
                "Llama", "LLM", "GPT4All", "Kvik", "Engine", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer",
                "SentenceTransformer", "load", "load_model", "open", "from_pretrained", "pipeline",
            ),
            "kvik.Model(source) opens a model",
        ),
        **dict.fromkeys(
            ("chat", "generate", "complete", "embed", "embeddings", "ask", "run"),
            "open a model first: kvik.Model(source).{name}(...)",
        ),
        **dict.fromkeys(
            ("Client", "AsyncClient", "OpenAI", "AsyncOpenAI"),
            "kvik.Model(source) needs no server; the package `openai` asks one that `kvik serve` has started",
        ),
        **dict.fromkeys(
            ("pull", "list", "show", "ps", "serve"), "it is a command: `kvik {name}`; kvik.Model(name) opens a model by name"
        ),
        **dict.fromkeys(("SamplingParams", "GenerationConfig"), "options are arguments: model.chat(messages, temperature=0.7)"),
        "ResponseError": "every error is a kvik.Error",
    },
}
"""Attributes that others have, by the object of this package: its class, or the package itself."""


def refuse_unknown(given: Collection[str], known: Collection[str], advice: Mapping[str, str], call: str) -> None:
    """Raises a `TypeError` for the first argument that a call does not have; it says which one is meant."""
    for name in given:
        if name not in known:
            raise TypeError(f"{call} has no argument `{name}`: {_advised(name, known, advice)}")


def _advised(name: str, known: Collection[str], advice: Mapping[str, str]) -> str:
    if name in advice:
        return _told(advice[name], name)
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"use `{nearest[0]}`" if nearest else f"it takes {', '.join(sorted(known))}"


def with_advice(advice: Mapping[str, str]) -> Callable[[F], F]:
    """Has the constructor of a class refuse arguments that it does not have with the name that is meant."""

    def wrap(construct: F) -> F:
        known = list(inspect.signature(construct).parameters)[1:]
        call = construct.__qualname__.split(".", 1)[0]

        @functools.wraps(construct)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            refuse_unknown(options, known, advice, call)
            return construct(*arguments, **options)

        return cast(F, wrapped)

    return wrap


def no_attribute(owner: str, name: str) -> AttributeError:
    """The error for an attribute that an object does not have, with the one that is meant."""
    advice = ATTRIBUTES[owner]
    plain = f"{owner!r} has no attribute {name!r}"
    return AttributeError(f"{plain}: {_told(advice[name], name)}" if name in advice else plain)


def _told(advice: str, name: str) -> str:
    """Advice about a name; one that begins with another name says to use that."""
    told = advice.replace("{name}", name)
    return f"use {told}" if told.startswith("`") else told
