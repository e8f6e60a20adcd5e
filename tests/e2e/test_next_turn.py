"""The next turn of a chat is computed behind its answer, as far as it is known, and only where it pays."""
import pathlib
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server import Server  # noqa: E402
from test_dialects import DIALECTS, VERSION, WORDS, OpenAi  # noqa: E402

# Like Qwen3's: messages behind the last question begin with thoughts, empty ones too, and those before it have none.
TEMPLATE = """{% set last = namespace(at=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set last.at = loop.index0 %}
{%- endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.index0 > last.at %}<think>
{{ m.reasoning_content or '' }}
</think>

{% endif %}{{ m.content or '' }}{% for call in m.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
RESULT = " ".join(WORDS * 8)
# The next question, the end of its message and the beginning of the answer.
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "thoughts.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def server(template):
    with Server("--chat-template", template, "--ahead", "on", "--threads", "2") as running:
        yield running


def asked(server, dialect, said, **fields):
    body = dialect.body(said) | fields
    body.pop("tools")
    reply = server.post(dialect.path, body, **VERSION)
    assert reply.status == 200, reply.text
    return dialect.read(reply.json)[0], reply.json["kvik"]["cache"]


def said_of(topic):
    return [
        ("user", f"Look at {topic} and tell me about it."),
        ("call", "call_1", "read_file", {"path": topic}, f"I look at {topic}."),
        ("result", "call_1", "read_file", RESULT),
    ]


def two_turns(server, dialect, topic, pause, **fields):
    """A question that is answered with a tool's help, and the next one after `pause`: what the cache had of it."""
    said = said_of(topic)
    text, _ = asked(server, dialect, said, **fields)
    pause()
    return asked(server, dialect, [*said, ("answer", text), ("user", "And now?")], **fields)[1]


def until(holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.02)


def computed_ahead(server):
    return server.metrics().get("kvik_ahead_tokens_total", 0)


def pause_of(server):
    """A pause that is long enough."""
    before = computed_ahead(server)
    return lambda: until(lambda: computed_ahead(server) > before)


def computed(cache):
    return cache["prompt_tokens"] - cache["cached_tokens"]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: type(dialect).__name__)
def test_after_a_pause_only_the_new_message_is_computed(server, dialect):
    used = server.metrics().get("kvik_ahead_used_tokens_total", 0)
    cache = two_turns(server, dialect, f"src/{type(dialect).__name__}.rs", pause_of(server))
    assert computed(cache) <= NEW_TOKENS and cache["prompt_tokens"] > 150, cache
    assert server.metrics()["kvik_ahead_used_tokens_total"] >= used + 100


def test_what_is_to_leave_nothing_is_not_computed_ahead(server):
    before = computed_ahead(server)
    two_turns(server, OpenAi(), "src/one.rs", pause_of(server))
    once = computed_ahead(server) - before
    asked(server, OpenAi(), said_of("src/private.rs"), kvik={"cache": "private"})
    asked(server, OpenAi(), said_of("src/several.rs"), n=2)
    # Behind them in the queue, so that theirs would have been computed.
    two_turns(server, OpenAi(), "src/two.rs", pause_of(server))
    assert computed_ahead(server) - before <= 2 * once + NEW_TOKENS


def test_what_is_computed_ahead_is_in_no_count_of_requests(server):
    two_turns(server, OpenAi(), "src/counted.rs", pause_of(server))
    stats, cache = server.get("/v1/stats").json, server.get("/v1/cache").json
    cached, computed = stats["tokens"]["cached"], stats["tokens"]["computed"]
    assert cache["ram"]["hit_rate"] == pytest.approx(cached / (cached + computed))
    assert server.metrics()["kvik_requests_ended_total"] == stats["requests"]["answered"]


def test_without_it_all_behind_the_thoughts_is_new(template):
    with Server("--chat-template", template, "--ahead", "off", "--threads", "2") as server:
        cache = two_turns(server, OpenAi(), "src/off.rs", lambda: None)
        assert computed(cache) > 100, "there is something to compute ahead"
        assert computed_ahead(server) == 0


def test_a_client_that_never_goes_on_is_tried_now_and_then(template):
    with Server("--chat-template", template, "--ahead", "auto", "--threads", "2") as server:
        for number in range(4):
            pause = pause_of(server)
            asked(server, OpenAi(), said_of(f"src/{number}.rs"))
            pause()
        pause, four = pause_of(server), computed_ahead(server)
        for number in range(4, 12):
            asked(server, OpenAi(), said_of(f"src/{number}.rs"))
        pause()
        assert computed_ahead(server) - four <= four / 4 + NEW_TOKENS, "only the last of these eight was computed"
