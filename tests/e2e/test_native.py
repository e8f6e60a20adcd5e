"""The endpoints that clients of llama-server use."""
import json
import re

from server import ROOT, chat_prompt, effort, eval_cases, sse

ANSWERS = ROOT / "crates/kvik-model/tests/golden/kvik-tiny-answers.jsonl"
TEXT = "Grüße aus Ærøskøbing, 日本語 🎉 <|im_end|>"


def test_health(server):
    assert server.get("/health").json["status"] == "ok"


def test_tokens_and_back(server):
    tokens = server.post("/tokenize", {"content": TEXT}).json["tokens"]
    assert all(isinstance(token, int) for token in tokens)
    pieces = server.post("/tokenize", {"content": TEXT, "with_pieces": True}).json["tokens"]
    assert [piece["id"] for piece in pieces] == tokens
    assert server.post("/detokenize", {"tokens": tokens}).json["content"] == TEXT
    plain = server.post("/tokenize", {"content": TEXT, "parse_special": False}).json["tokens"]
    assert len(plain) > len(tokens), "without parsing, a special token is only text"


def test_the_template_is_applied(server):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompt = server.post("/apply-template", {"messages": messages}).json["prompt"]
    assert prompt.startswith(chat_prompt(messages))
    off = server.post("/apply-template", {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}})
    assert off.json["prompt"] == chat_prompt(messages) + "<think>\n\n</think>\n\n"


def test_props(server):
    props = server.get("/props").json
    assert props["default_generation_settings"]["n_ctx"] > 0
    assert props["total_slots"] > 0
    assert "im_start" in props["chat_template"]


def test_names_of_headers_and_fingerprints_have_llama_servers_form(server):
    """Its own tests compare header names to the letter, and read the number of a build from a fingerprint."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    for path, stream in (("/v1/chat/completions", False), ("/v1/chat/completions", True), ("/nowhere", False)):
        connection, response = server.open_stream(path, body | {"stream": stream})
        names = [name for name, _ in response.getheaders()]
        assert {"Content-Type", "Date"} <= set(names) and all(name == name.title() for name in names), names
        text = response.read().decode()
        connection.close()
        prints = re.findall(r'"system_fingerprint": ?"([^"]*)"', text)
        assert all(re.fullmatch(r"b\d+-kvik-\d+\.\d+\.\d+", given) for given in prints)
        assert bool(prints) == (response.status == 200), text


def complete(server, **body):
    answer = server.post("/completion", {"temperature": 0} | body)
    assert answer.status == 200, answer.text
    return answer.json


def test_completion_has_llama_servers_fields(server):
    answer = complete(server, prompt="Once upon a time", n_predict=12)
    assert answer["stop"] is True and answer["stop_type"] == "limit"
    assert answer["tokens_predicted"] == 12 and answer["content"]
    timings = answer["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == answer["tokens_evaluated"]
    assert timings["predicted_n"] == 12
    for name in ("prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second"):
        assert timings[name] > 0, name


def test_a_completion_streams_the_same_text(server):
    whole = complete(server, prompt="Once upon a time", n_predict=24)
    body = {"prompt": "Once upon a time", "n_predict": 24, "temperature": 0, "stream": True}
    connection, response = server.open_stream("/completion", body)
    events = [json.loads(data) for data in sse(response) if data != "[DONE]"]
    connection.close()
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]


def test_a_prompt_may_be_tokens(server):
    tokens = server.post("/tokenize", {"content": "Once upon a time"}).json["tokens"]
    by_tokens = complete(server, prompt=tokens, n_predict=12)
    assert by_tokens["content"] == complete(server, prompt="Once upon a time", n_predict=12)["content"]


def test_cache_prompt_off_computes_everything(server):
    prompt = chat_prompt(eval_cases("recall")[1]["messages"])
    warm = [complete(server, prompt=prompt, n_predict=4) for _ in range(2)][1]
    cold = complete(server, prompt=prompt, n_predict=4, cache_prompt=False)
    assert cold["timings"]["cache_n"] == 0 < warm["timings"]["cache_n"]
    assert cold["content"] == warm["content"]


def test_answers_equal_llama_cpps_to_the_character(server):
    """64 held-out cases, as llama.cpp answered them; one in four with a change."""
    answers = [json.loads(line) for line in ANSWERS.read_text().splitlines()]
    assert len(answers) == 64
    answers = answers[:: effort(4, 1)]
    limits = {"summary": 250}
    different = []
    for golden in answers:
        case = eval_cases(golden["eval"])[golden["line"]]
        answer = complete(server, prompt=chat_prompt(case["messages"]), n_predict=limits.get(golden["eval"], 120))
        assert answer["tokens_evaluated"] == golden["prompt_tokens"]
        if answer["content"] != golden["text"]:
            different.append((golden["eval"], golden["line"], answer["content"], golden["text"]))
    assert not different, different
