"""Models whose layers hold something beside blocks: what is reused changes no number, warm, forked and after a restart."""
import json
import urllib.request

import pytest
from server import ROOT, Server, effort

GOLDEN = ROOT / "crates/kvik-model/tests/golden"
# Windows, chunks, short convolutions, the gated delta rule, Mamba 2, latent rows, shared keys and values.
MODELS = ["gemma3", "gpt-oss", "llama4", "lfm2", "qwen35", "granitehybrid", "nemotron_h", "deepseek2-lite", "gemma4"]
TEXT = "once there was a small cat. " * 8


def logprobs(server, prompt, **kvik):
    """The log-probabilities of some answer tokens, and how many tokens of the prompt were reused."""
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "logprobs": 2, "kvik": kvik}
    request = urllib.request.Request(f"{server.base_url}/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        answer = json.load(answer)
    return answer["choices"][0]["logprobs"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("name", MODELS)
def test_what_is_reused_changes_no_number(name, tmp_path):
    flags = ["--model", GOLDEN / f"arch-{name}.gguf", "--context", "1024", "--cache-disk", tmp_path]
    prompts = [letter * 9 + TEXT + end for letter in effort("a", "abc") for end in ("", " and then", " or not", "", " and then some")]
    cold, reused = {}, [0, 0]
    for start in range(2):
        with Server(*flags) as server:
            for prompt in prompts:
                found, cached = logprobs(server, prompt)
                expected = cold.setdefault(prompt, logprobs(server, prompt, cache="private")[0])
                assert found == expected, f"{cached} tokens of {prompt!r} were reused"
                reused[start] += cached
    # The second process has from disk what the first one had to compute.
    assert reused[0] > 0 and reused[1] > reused[0], reused
