"""An agent's session through each dialect of chats: the same tokens, the same answers, the same explanation of a miss.

30 turns with tools, 20,000 tokens, where a release is proven, and 6 of 4,000 with a change. What was said is written
beforehand; the model answers each turn, so that what it is told shows in what it says.
"""
import json
import random
import time

import pytest
from server import Server, effort

TURNS = effort(6, 30)
ALTERED = TURNS * 2 // 3  # in this turn an early result of a tool is another one
ANSWER_TOKENS = 12
WORDS = "river stone harbour lamp cedar window copper field letter bridge garden winter silver market paper north".split()
SYSTEM = "You are a careful agent that works on a repository. Read files before you change them."
TOOLS = [
    {"name": name, "description": f"{verb} a file of the repository.",
     "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}
    for name, verb in (("read_file", "Reads"), ("list_folder", "Lists"), ("run_tests", "Runs the tests of"))
]


def session():
    """What was said before each turn's question, and the question: neutral parts, which a dialect words."""
    draw = random.Random(7)
    said = []
    for turn in range(TURNS):
        path = f"src/{draw.choice(WORDS)}_{turn}.rs"
        said.append(("user", f"Step {turn}: look at {path} and say what it does."))
        if turn == ALTERED:
            said[2] = ("result", "call_0", "read_file", "The file is gone.")
        yield list(said)
        text = " ".join(draw.choice(WORDS) for _ in range(400))
        tool = TOOLS[turn % len(TOOLS)]["name"]
        said.append(("call", f"call_{turn}", tool, {"path": path}, f"I look at {path}."))
        said.append(("result", f"call_{turn}", tool, text))
        said.append(("answer", f"{path} is about {draw.choice(WORDS)}."))


class OpenAi:
    path = "/v1/chat/completions"

    def body(self, said):
        tools = [{"type": "function", "function": tool} for tool in TOOLS]
        messages = [{"role": "system", "content": SYSTEM}] + [self.message(part) for part in said]
        return {"messages": messages, "tools": tools, "temperature": 0, "max_tokens": ANSWER_TOKENS, "reasoning_effort": "none"}

    def message(self, part):
        match part:
            case ("user", text):
                return {"role": "user", "content": text}
            case ("answer", text):
                return {"role": "assistant", "content": text}
            case ("call", id, name, given, text):
                function = {"name": name, "arguments": json.dumps(given)}
                return {"role": "assistant", "content": text, "tool_calls": [{"id": id, "type": "function", "function": function}]}
            case ("result", id, _, text):
                return {"role": "tool", "tool_call_id": id, "content": text}

    def read(self, answer):
        message = answer["choices"][0]["message"]
        calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls") or []]
        return message["content"] or "", calls


class Responses(OpenAi):
    path = "/v1/responses"

    def body(self, said):
        tools = [{"type": "function"} | tool for tool in TOOLS]
        items = [item for part in said for item in self.items(part)]
        return {"instructions": SYSTEM, "input": items, "tools": tools, "temperature": 0, "max_output_tokens": ANSWER_TOKENS,
                "reasoning": {"effort": "none"}, "store": False}

    def items(self, part):
        match part:
            case ("call", id, name, given, text):
                call = {"type": "function_call", "call_id": id, "name": name, "arguments": json.dumps(given)}
                return [{"role": "assistant", "content": [{"type": "output_text", "text": text}]}, call]
            case ("result", id, _, text):
                return [{"type": "function_call_output", "call_id": id, "output": text}]
            case _:
                return [self.message(part)]

    def read(self, answer):
        text = "".join(part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"])
        calls = [(item["name"], json.loads(item["arguments"])) for item in answer["output"] if item["type"] == "function_call"]
        return text, calls


class Anthropic(OpenAi):
    path = "/v1/messages"

    def body(self, said):
        tools = [{"name": t["name"], "description": t["description"], "input_schema": t["parameters"]} for t in TOOLS]
        return {"system": SYSTEM, "messages": [self.message(part) for part in said], "tools": tools, "temperature": 0,
                "max_tokens": ANSWER_TOKENS, "output_config": {"effort": "none"}}

    def message(self, part):
        match part:
            case ("call", id, name, given, text):
                blocks = [{"type": "text", "text": text}, {"type": "tool_use", "id": id, "name": name, "input": given}]
                return {"role": "assistant", "content": blocks}
            case ("result", id, _, text):
                return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}]}
            case _:
                return super().message(part)

    def read(self, answer):
        text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
        return text, [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]


class Ollama(OpenAi):
    path = "/api/chat"

    def body(self, said):
        openai = super().body(said)
        options = {"temperature": 0, "num_predict": ANSWER_TOKENS}
        return {"messages": openai["messages"], "tools": openai["tools"], "options": options, "think": False, "stream": False}

    def message(self, part):
        match part:
            case ("call", _, name, given, text):
                return {"role": "assistant", "content": text, "tool_calls": [{"function": {"name": name, "arguments": given}}]}
            case ("result", _, name, text):
                return {"role": "tool", "tool_name": name, "content": text}
            case _:
                return super().message(part)

    def read(self, answer):
        message = answer["message"]
        return message["content"], [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]


def played(dialect):
    """What each turn answered, and what its answer says of the cache."""
    with Server("--context", "32768", "--cache-ram", "512MiB", "--threads", "2") as server:
        turns = []
        for said in session():
            reply = server.post(dialect.path, dialect.body(said), **{"anthropic-version": "2023-06-01"})
            assert reply.status == 200, reply.body
            turns.append((dialect.read(reply.json), reply.json["kvik"]["cache"]))
        return turns


@pytest.fixture(scope="module")
def by_openai():
    return played(OpenAi())


def test_the_session_is_an_agents(by_openai):
    cached = [cache["cached_tokens"] / cache["prompt_tokens"] for _, cache in by_openai]
    assert by_openai[-1][1]["prompt_tokens"] > (TURNS - 1) * 690
    assert min(cached[2:ALTERED] + cached[ALTERED + 1:]) > 0.6
    miss = by_openai[ALTERED][1]
    assert miss["cached_tokens"] < 700 and miss["reason"] and miss["stopped_at"]["role"] == "tool"


@pytest.mark.parametrize("dialect", [Responses(), Anthropic(), Ollama()], ids=lambda dialect: type(dialect).__name__)
def test_every_dialect_reuses_answers_and_explains_the_same(by_openai, dialect):
    for turn, (expected, found) in enumerate(zip(by_openai, played(dialect), strict=True)):
        assert found == expected, f"turn {turn}"


VERSION = {"anthropic-version": "2023-06-01"}
DIALECTS = [OpenAi(), Responses(), Anthropic(), Ollama()]
AGENT, WINDOW = "claude-sonnet-4", 200_000  # clients that ask for this model assume that window


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "2", "--told-window", f"{AGENT}={WINDOW // 1000}k") as running:
        yield running


def text_of_error(dialect, error):
    """The text of an error in the dialect's own shape."""
    match dialect:
        case Anthropic():
            assert error["type"] == "error" and error["request_id"]
            return error["error"]["message"]
        case Ollama():
            assert set(error) == {"error"}
            return error["error"]
        case _:
            assert {"message", "type", "param", "code"} <= set(error["error"])
            return error["error"]["message"]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: type(dialect).__name__)
def test_a_prompt_of_10_mib_is_refused_in_the_dialects_shape(server, dialect):
    reply = server.post(dialect.path, dialect.body([("user", "word " * (2 << 20))]), **VERSION)
    assert reply.status == 400 and "maximum context length is 2048 tokens" in text_of_error(dialect, reply.json)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: type(dialect).__name__)
@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"messages": 7, "input": 7}', b"\xff{}"], ids=["empty", "list", "cut", "types", "bytes"])
def test_what_is_no_request_is_refused_in_the_dialects_shape(server, dialect, body):
    reply = server.post(dialect.path, body, **VERSION)
    assert reply.status == 400 and text_of_error(dialect, reply.json)


@pytest.fixture(scope="module")
def stall(tmp_path_factory):
    """While this file is there, the engine of `endless` takes no step."""
    return tmp_path_factory.mktemp("endless") / "stall"


@pytest.fixture(scope="module")
def endless(stall):
    """A server whose answers have no end of their own: what was said is more likely each time."""
    flags = ["--threads", "2", "--repeat-penalty", "0.5", "--repeat-last-n", "-1"]
    with Server(*flags, env={"KVIK_TEST_STALL": str(stall)}) as running:
        yield running


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: type(dialect).__name__)
def test_a_stream_that_is_left_ends_at_the_server(endless, stall, dialect):
    body = dialect.body([("user", "Tell me a long story.")]) | {"stream": True}
    # A call is told when it is complete.
    del body["tools"]
    for name in ("max_tokens", "max_output_tokens"):
        if name in body:
            body[name] = 1900
    body.get("options", {})["num_predict"] = 1900
    with endless.stalled(stall, lambda: endless.begin_stream(dialect.path, body)) as (connection, response):
        before = endless.cancelled()
        response.close()
        connection.close()
    deadline = time.monotonic() + 10
    while endless.cancelled() == before:
        assert time.monotonic() < deadline, "it was computed to its end"
        time.sleep(0.05)


def told(dialect, answer):
    """The tokens of prompt and answer, as a client adds them up."""
    match dialect:
        case Anthropic():
            usage = answer["usage"]
            parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
            return sum(usage[part] for part in parts)
        case Ollama():
            return answer["prompt_eval_count"] + answer["eval_count"]
        case _:
            return answer["usage"]["total_tokens"]


def turns_of_an_agent(server, dialect, model):
    """The replies to an agent that compacts its conversation at 80% of the window, until it has done so twice."""
    said, compacted = [], 0
    for turn in range(40):
        said.append(("user", f"Step {turn}: " + " ".join(WORDS[(turn + i) % len(WORDS)] for i in range(100))))
        reply = server.post(dialect.path, dialect.body(said) | {"model": model}, **VERSION)
        yield reply
        if reply.status != 200:
            return
        said.append(("answer", "It is done."))
        if told(dialect, reply.json) >= 0.8 * WINDOW:
            said, compacted = [("user", f"Summary: {turn} steps are done."), ("answer", "Go on.")], compacted + 1
        if compacted == 2:
            return
    raise AssertionError("the agent never saw that its window is nearly full")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: type(dialect).__name__)
def test_an_agent_that_assumes_a_larger_window_compacts_in_time(server, dialect):
    replies = list(turns_of_an_agent(server, dialect, AGENT))
    assert [reply.status for reply in replies] == [200] * len(replies), replies[-1].body
    assert max(told(dialect, reply.json) for reply in replies) <= WINDOW
    assert max(reply.json["kvik"]["cache"]["prompt_tokens"] for reply in replies) <= 2048
    assert {reply.json["kvik"]["told_window"] for reply in replies} == {WINDOW}


def test_the_same_agent_is_refused_where_counts_are_told_as_they_are(server):
    last = list(turns_of_an_agent(server, Anthropic(), "another"))[-1]
    assert last.status == 400
    message = last.json["error"]["message"]
    assert message.startswith("prompt is too long: ") and " tokens > 2048 maximum" in message
