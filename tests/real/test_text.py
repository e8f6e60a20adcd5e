"""Texts, tokens and prompts: what Hugging Face's tokenizers and Jinja2 make of the same file (`store.py`)."""
import pytest
from conftest import STORED


def tokenize(server, text):
    answer = server.post("/tokenize", dict(content=text, add_special=False, parse_special=True))
    assert answer.status == 200, answer.text
    return answer.json["tokens"]


@pytest.mark.parametrize("case", STORED["tokens"], ids=lambda case: repr(case["text"][:20]).encode("ascii", "replace").decode())
def test_texts_have_the_tokens_of_the_original(server, case):
    assert tokenize(server, case["text"]) == case["ids"]
    back = server.post("/detokenize", dict(tokens=case["ids"])).json["content"]
    assert back == case["text"]


@pytest.mark.parametrize("case", STORED["prompts"], ids=lambda case: f"{len(case['messages'])} messages, {len(case['prompt'])} characters")
def test_chats_are_rendered_as_by_the_original(server, case):
    answer = server.post("/apply-template", dict(messages=case["messages"]))
    assert answer.status == 200, answer.text
    assert answer.json["prompt"] == case["prompt"]
