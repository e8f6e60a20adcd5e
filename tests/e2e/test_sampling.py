"""Sampling where nobody sets it: one set of defaults for every dialect and command, told with where each value comes from."""
import os
import subprocess

from server import BINARY, Server

MESSAGES = [{"role": "user", "content": "Who are you?"}]
TOKENS = 24


def answers(server):
    """What each dialect with messages answers to the same question, with sampling left open."""
    post = lambda path, body: server.post(path, {"model": "kvik"} | body).json
    return {
        "openai": post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": TOKENS})["choices"][0]["message"]["content"],
        "responses": post("/v1/responses", {"input": MESSAGES, "max_output_tokens": TOKENS})["output"][-1]["content"][0]["text"],
        "anthropic": post("/v1/messages", {"messages": MESSAGES, "max_tokens": TOKENS})["content"][-1]["text"],
        "ollama": post("/api/chat", {"messages": MESSAGES, "stream": False, "options": {"num_predict": TOKENS}})["message"]["content"],
    }


def kvik(*arguments):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KVIK_")} | {"KVIK_CACHE_DISK": "off"}
    return subprocess.run([str(BINARY), *arguments], env=clean, capture_output=True, text=True, timeout=120, check=True)


def test_the_embedded_model_is_asked_greedily_in_every_dialect(server):
    said = answers(server)
    assert len(set(said.values())) == 1, said
    greedy = {"messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0}
    assert server.post("/v1/chat/completions", greedy).json["choices"][0]["message"]["content"] == said["openai"]
    assert kvik("run", "--max-tokens", str(TOKENS), "Who are you?").stdout == said["openai"] + "\n"


def test_routes_tell_the_values_in_force_and_their_sources(server):
    props = server.get("/props").json
    defaults = props["sampling_defaults"]
    assert defaults["temperature"] == {"value": 0.0, "source": "family", "family": "kvik-tiny"}
    assert defaults["top_k"] == {"value": 40, "source": "kvik"}
    shown = server.post("/api/show", {"model": "kvik"}).json
    assert shown["sampling_defaults"] == defaults
    assert [line.split() for line in shown["parameters"].splitlines()][:2] == [["temperature", "0"], ["top_k", "40"]]


def test_flags_are_before_the_model_and_requests_before_flags():
    with Server("--threads", "2", "--temp", "0.5", "--top-k", "7") as server:
        defaults = server.get("/props").json["sampling_defaults"]
        assert (defaults["temperature"], defaults["top_k"]) == ({"value": 0.5, "source": "flag"}, {"value": 7, "source": "flag"})
        used = lambda **body: server.post("/completion", {"prompt": "Once", "n_predict": 1} | body).json["generation_settings"]
        assert (used()["temperature"], used()["top_k"], used()["min_p"]) == (0.5, 7, 0.05000000074505806)
        assert (used(temperature=1)["temperature"], used(top_k=0)["top_k"]) == (1.0, 0)


def test_commands_tell_the_values_in_force_and_their_sources():
    plain = "temperature 0 (family kvik-tiny), top_k 40 (kvik), top_p 0.95 (kvik), min_p 0.05 (kvik)"
    assert plain in kvik("inspect").stdout
    told = kvik("run", "--verbose", "--max-tokens", "1", "--temp", "0.5", "Hi").stderr
    assert f"sampling: {plain.replace('0 (family kvik-tiny)', '0.5 (flag)', 1)}" in told, told
    assert "sampling:" not in kvik("run", "--max-tokens", "1", "Hi").stderr
