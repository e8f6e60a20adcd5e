"""What `agents_day.py` reads in answers: where the tokens of a prompt were found."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import agents_day  # noqa: E402


def said(**by_tier):
    """The last piece of a stream, as kvik writes it."""
    cache = {"prompt_tokens": 100, "cached_tokens": sum(by_tier.values()), "by_tier": by_tier, "reason": "diverged"}
    return b"data: " + json.dumps({"usage": {"prompt_tokens": 100}, "kvik": {"cache": cache}}, separators=(",", ":")).encode()


def test_what_memory_has_was_not_found_on_disk():
    tokens = lambda **by_tier: agents_day.tokens("/v1/chat/completions", said(**by_tier))
    assert tokens(ram=64, disk=0) == (100, 64, 0)
    assert tokens(ram=16, host=8, disk=40, remote=2) == (100, 66, 40)
    in_memory, on_disk = (0.1, *tokens(ram=64, disk=0)), (0.2, *tokens(ram=16, disk=32))
    assert agents_day.after_restart([in_memory, in_memory]) == ("0 of 200", "72")
    assert agents_day.after_restart([in_memory, on_disk]) == ("32 of 200", "88")


def test_other_servers_name_no_tier():
    usage = b'{"usage":{"prompt_tokens":90,"prompt_tokens_details":{"cached_tokens":30}}}'
    assert agents_day.tokens("/v1/chat/completions", usage) == (90, 30, 0)
    usage = b'{"usage":{"input_tokens":60,"cache_read_input_tokens":30}}'
    assert agents_day.tokens("/v1/messages", usage) == (90, 30, 0)
