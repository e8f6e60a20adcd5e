"""Requests in OpenAI's dialect: chats, completions, and all that is wrong with them."""
from .requests import CHAT, chat, each, get, post, text

RULES = "You sort the notifications of a phone into folders. A notification belongs to the folder whose description fits it best. When none fits, say so in one word."
TURNS = [
    {"role": "system", "content": RULES},
    {"role": "user", "content": "Parcel arrived at the door"},
    {"role": "assistant", "content": "Deliveries, without a doubt"},
    {"role": "user", "content": "Mail from Ann about lunch"},
]
FOLDER = {"type": "object", "properties": {"folder": {"enum": ["Bills", "Health"]}, "priority": {"type": "integer", "minimum": 1, "maximum": 5}}, "required": ["folder", "priority"], "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Weather of a city", "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
CALLED = [
    {"role": "user", "content": "How warm is it in Rome?"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
]


def schema(inner, strict=None, name="answer"):
    described = {"name": name, "schema": inner} | ({} if strict is None else {"strict": strict})
    return {"type": "json_schema", "json_schema": described}


def chats():
    usage = {"include_usage": True}
    return [
        chat("cold"),
        chat("the same again"),
        chat("without a version in the path", path="/chat/completions"),
        chat("stream", stream=True),
        chat("stream with usage", stream=True, stream_options=usage),
        chat("several turns", TURNS),
        chat("one more turn", [*TURNS, {"role": "assistant", "content": "Friends"}, {"role": "user", "content": "Bill of the water works"}]),
        chat("another question after the same rules", [TURNS[0], {"role": "user", "content": "Sale of shoes"}]),
        chat("content in parts", [{"role": "user", "content": [{"type": "text", "text": "Say hello "}, {"type": "text", "text": "to Ann."}]}]),
        chat("a developer speaks", [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello"}]),
        chat("names of speakers", [{"role": "user", "name": "Ann", "content": "Hello"}]),
        chat("control tokens are text", "<|im_end|> is no end"),
        chat("until it ends by itself", max_tokens=64),
        chat("temperature and seed", temperature=0.9, seed=7),
        chat("the largest seed", temperature=0.9, seed=2**64 - 1),
        chat("top_p, top_k, min_p", temperature=0.8, top_p=0.9, top_k=20, min_p=0.02, seed=3),
        chat("penalties", presence_penalty=0.5, frequency_penalty=0.4, repeat_penalty=1.1, repeat_last_n=32),
        chat("biases by id", logit_bias={"332": 5, "275": -100}),
        chat("biases by text", logit_bias=[["Hello", -5], [41, False]]),
        chat("three answers", temperature=0.9, n=3, seed=11),
        chat("three answers in a stream", temperature=0.9, n=2, seed=11, max_tokens=3, stream=True),
        chat("log-probabilities", logprobs=True, top_logprobs=2, max_tokens=3),
        chat("log-probabilities in a stream", logprobs=True, top_logprobs=1, max_tokens=3, stream=True),
        chat("log-probabilities alone", logprobs=True, max_tokens=2),
        chat("one stop string", stop="can", max_tokens=20),
        chat("stop strings in a stream", stop=["help", "xyz"], max_tokens=20, stream=True),
        chat("at least so many tokens", min_tokens=8, max_tokens=8),
        chat("no end of sequence", ignore_eos=True, max_tokens=12),
        chat("max_completion_tokens comes first", max_completion_tokens=2, max_tokens=4),
        chat("n_predict", max_tokens=..., n_predict=3),
        chat("an answer of no tokens", max_tokens=0),
        chat("fields that nobody knows", user="ann", metadata={"a": 1}, store=False, service_tier="auto", nonsense=[1]),
        chat("another model's name", model="gpt-4o"),
        chat("nulls are absent", top_p=None, stop=None, tools=None, response_format=None, kvik=None, stream=None),
        chat("features that are switched off", typical_p=1, mirostat=0, lora=[], modalities=["text"], function_call="auto", samplers="edskypmxt"),
        *shaped(),
        *tools(),
        *thinking(),
        *kept(),
    ]


def shaped():
    """Answers of a given form."""
    wish = "Bill of the water works, urgent. JSON please."
    return [
        chat("a schema", wish, response_format=schema(FOLDER, strict=True), max_tokens=40),
        chat("a schema in a stream", wish, response_format=schema(FOLDER), max_tokens=40, stream=True),
        chat("a schema of which not all is enforced", wish, response_format=schema(FOLDER | {"not": {"required": ["x"]}}), max_tokens=40),
        chat("a schema with references", wish, json_schema={"$defs": {"f": FOLDER}, "type": "array", "items": {"$ref": "#/$defs/f"}, "minItems": 1, "maxItems": 1}, max_tokens=40),
        chat("json_object", wish, response_format={"type": "json_object"}, max_tokens=24),
        chat("json_object with a schema", wish, response_format={"type": "json_object", "schema": FOLDER}, max_tokens=40),
        chat("text", response_format={"type": "text"}),
        chat("guided_json as text", wish, guided_json='{"type": "boolean"}', max_tokens=8),
        chat("regex", regex="[a-c]{4}", max_tokens=8),
        chat("guided_regex", guided_regex="(yes|no)", max_tokens=8),
        chat("guided_choice", guided_choice=["red", "green (1)"], max_tokens=8),
        chat("grammar", grammar='start: "yes" | "no"', max_tokens=8),
        chat("guided_grammar", guided_grammar='start: "a"~3', max_tokens=8),
    ]


def tools():
    ask = "How warm is it in Rome?"
    return [
        chat("tools are offered", ask, tools=[WEATHER, CLOCK], max_tokens=12),
        chat("a call is required", ask, tools=[WEATHER, CLOCK], tool_choice="required", max_tokens=40),
        chat("a named call", ask, tools=[WEATHER, CLOCK], tool_choice={"type": "function", "function": {"name": "clock"}}, max_tokens=40),
        chat("a named call in a stream", ask, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "weather"}}, max_tokens=40, stream=True),
        chat("several calls", ask, tools=[WEATHER], tool_choice="required", parallel_tool_calls=True, max_tokens=40),
        chat("no call", ask, tools=[WEATHER], tool_choice="none"),
        chat("the result of a call", CALLED, tools=[WEATHER]),
        chat("no tools at all", ask, tools=[]),
    ]


def thinking():
    begun = [{"role": "user", "content": "Say hello to Ann."}, {"role": "assistant", "content": "Hello An"}]
    return [
        chat("thinking is off", enable_thinking=False),
        chat("thinking is off for the template", chat_template_kwargs={"enable_thinking": False, "mood": "good"}),
        chat("little effort", reasoning_effort="minimal"),
        chat("much effort", reasoning_effort="high"),
        chat("an answer that has begun", begun),
        chat("an answer that has begun is left alone", begun, continue_final_message=False),
        chat("a generation prompt", begun, add_generation_prompt=True),
        chat("a thought that has begun", [begun[0], {"role": "assistant", "content": "<think>Let me"}]),
        chat("no generation prompt", add_generation_prompt=False),
    ]


def kept():
    """What a request asks of the cache, and how it compares with earlier ones."""
    same = lambda seen: {"messages": TURNS, "max_tokens": 2, "temperature": 0, "prompt_cache_options": {"comparison_response_id": seen[f"POST {CHAT}: several turns"]["id"]}}
    changed = lambda seen: same(seen) | {"messages": [{"role": "system", "content": "Be brief."}, *TURNS[1:]]}
    offered = lambda seen: same(seen) | {"tools": [CLOCK]}
    return [
        chat("private", kvik={"cache": "private"}),
        chat("out of the cache", cache_prompt=False),
        chat("a time to live and a priority", kvik={"ttl_s": 3600, "priority": "high"}),
        chat("pinned", TURNS, kvik={"pin": True}),
        post(CHAT, "compared with an earlier answer", same),
        post(CHAT, "compared after a change", changed),
        post(CHAT, "compared after a change of tools", offered),
        chat("compared with an unknown answer", prompt_cache_options={"comparison_response_id": "chatcmpl-0"}),
        chat("another way to spell the options", prompt_cache_options={"mode": "auto"}),
    ]


def texts():
    return [
        text("cold"),
        text("the same again"),
        text("stream", stream=True),
        text("stream with usage", stream=True, stream_options={"include_usage": True}),
        text("token ids", [501, 332, 275, 917]),
        text("ids and text mixed", [501, " was a little", 275]),
        text("several prompts", ["Once upon", "There was", [332, 275]]),
        text("several prompts, two answers each", ["Once upon", "There was"], n=2, temperature=0.9, max_tokens=3),
        text("several prompts in a stream", ["Once upon", "There was"], max_tokens=3, stream=True),
        text("echo", echo=True),
        text("echo in a stream", echo=True, stream=True, max_tokens=2),
        text("log-probabilities", logprobs=2, max_tokens=3),
        text("log-probabilities in a stream", logprobs=1, max_tokens=2, stream=True),
        text("the default length", max_tokens=...),
        text("no tokens", max_tokens=0),
        text("a stop string", stop=["little"], max_tokens=12),
        text("schema", json_schema={"type": "boolean"}, max_tokens=6),
        text("characters of several bytes", "Grüße, 世界 🦀"),
        text("best_of that equals n", best_of=1),
        text("compared", prompt_cache_options={"comparison_response_id": "cmpl-0"}),
        text("empty suffix", suffix=""),
    ]


def wrong_chats():
    """Each has one mistake."""
    user = {"role": "user", "content": "Hello"}
    messages = lambda *wrong: each(chat, "messages", *wrong)
    return [
        *messages(..., None, {}, "Hello", [], [7], [{}], [{"role": "user"}], [{"role": 1, "content": "x"}]),
        *messages([{"role": "king", "content": "x"}], [user, {"role": "assistant", "content": None}], [{"role": "user", "content": 5}]),
        *messages([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [1]}]),
        *messages([user, {"role": "assistant", "content": None, "tool_calls": "x"}], [user, {"role": "assistant", "tool_calls": [{"function": {}}]}]),
        *each(chat, "model", 5),
        *each(chat, "max_tokens", "six", 1.5, -3),
        *each(chat, "max_completion_tokens", [], -3),
        *each(chat, "stream", "yes", 1),
        *each(chat, "stream_options", {"include_usage": True}, 3),
        chat("stream_options.include_usage = 1", stream=True, stream_options={"include_usage": 1}),
        *each(chat, "logprobs", 2, "true"),
        *each(chat, "top_logprobs", 2),
        chat("top_logprobs = 21", logprobs=True, top_logprobs=21),
        chat("top_logprobs = text", logprobs=True, top_logprobs="2"),
        *each(chat, "tools", {}, "x", [1], [{"type": "search"}], [{"type": "function"}], [{"function": {}}], [{"function": {"name": 5}}], [{"function": {"name": "f", "parameters": 1}}]),
        *each(chat, "tool_choice", "required", "maybe", 5, {"function": {}}, {"function": {"name": "news"}}),
        chat("an unknown tool is required", tools=[CLOCK], tool_choice={"type": "function", "function": {"name": "news"}}),
        chat("a call and a schema", tools=[CLOCK], tool_choice="required", json_schema={"type": "boolean"}),
        chat("parallel_tool_calls = text", tools=[CLOCK], parallel_tool_calls="no"),
        *each(chat, "chat_template_kwargs", [], {"enable_thinking": 1}, {"messages": []}),
        *each(chat, "enable_thinking", "no"),
        *each(chat, "reasoning_effort", "huge", 3),
        *each(chat, "add_generation_prompt", "no"),
        *each(chat, "continue_final_message", True, 1),
        *each(chat, "prompt_cache_options", "x", {"comparison_response_id": 5}),
        *each(chat, "functions", [{"name": "f"}]),
        *each(chat, "function_call", {"name": "f"}),
        *each(chat, "modalities", ["text", "audio"]),
        *each(chat, "chat_template", "x"),
        *each(chat, "reasoning_format", "none"),
        *wrong_options(chat),
        *each(chat, "response_format", "json", {}, {"type": "xml"}, {"type": 3}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}, schema(5), schema({"type": "nonsense"})),
        chat("a strict schema that cannot be enforced", response_format=schema({"type": "object", "properties": {"x": {"not": {"type": "string"}}}}, strict=True)),
        chat("longer than the context", "word " * 3000),
        chat("no such token", logit_bias={"999999": 1}),
    ]


def wrong_options(make):
    """Fields that all three dialects share."""
    return [
        *each(make, "temperature", "hot", True),
        *each(make, "top_p", 1.5, "x", -0.1),
        *each(make, "min_p", 2, []),
        *each(make, "top_k", 2.5, "x", -2),
        *each(make, "presence_penalty", 3, "x"),
        *each(make, "frequency_penalty", -2.5, []),
        *each(make, "repeat_penalty", 0, {}),
        *each(make, "repeat_last_n", -2, "x"),
        *each(make, "min_tokens", -1, "x"),
        *each(make, "n", 0, 65, 1.5, "2"),
        *each(make, "seed", 1.5, "x"),
        *each(make, "stop", 1, ["a", 2], ["x"] * 257, "x" * 5000),
        *each(make, "ignore_eos", "yes"),
        *each(make, "logit_bias", 3, {"5": "x"}, [[5]], [[-5, 1]], [["x" * 300, 1]], {"5": 1e10}),
        *each(make, "cache_prompt", 1),
        *each(make, "kvik", "pin", {"ttl": 5}, {"ttl_s": 0}, {"ttl_s": "long"}, {"priority": 101}, {"priority": "urgent"}, {"pin": 1}, {"pin": True, "cache": "private"}, {"cache": "public"}),
        *each(make, "grammar", 'root ::= "a"', "start: nonsense", 5),
        *each(make, "regex", "(", 5),
        *each(make, "json_schema", 5, {"type": "nonsense"}),
        *each(make, "guided_choice", [], "x", [1]),
        *each(make, "guided_json", "{", 5),
        make("two constraints", regex="a", json_schema={}),
        *each(make, "typical_p", 0.5),
        *each(make, "mirostat", 2),
        *each(make, "samplers", ["top_k", 1]),
        *each(make, "n_keep", 24),
        *each(make, "lora", [{"id": 0, "scale": 1.0}]),
        *each(make, "stop_token_ids", [5]),
    ]


def wrong_texts():
    return [
        *each(text, "prompt", ..., None, 5, {}, [], [[]], "", [None], [1, None], [[1, {}]], [-1], [4096], [1.5], ["x"] * 65),
        *each(text, "logprobs", 21, True),
        *each(text, "suffix", "x", 5),
        *each(text, "best_of", 2, 0),
        *each(text, "echo", "yes"),
        text("echo and logprobs", echo=True, logprobs=1),
        *each(text, "stream_options", {"include_usage": True}),
        *each(text, "n", 65),
        *each(text, "temperature", -1),
        text("longer than the context", "word " * 3000),
        text("a large constraint for many prompts", ["x"] * 60, regex="a" * 16000 + "b" * 2000),
    ]


def bodies():
    """What is no request at all."""
    raw = lambda name, body, **headers: post(CHAT, name, body, **headers)
    return [
        raw("an empty body", b""),
        raw("no JSON", b"seven"),
        raw("a broken object", b'{"messages": [}'),
        raw("an object that does not end", b'{"messages": []'),
        raw("something after the object", b'{"messages": []} x'),
        raw("an array", b"[1]"),
        raw("a number", b"7"),
        raw("null", b"null"),
        raw("no UTF-8", b'{"messages": "\xff"}'),
        raw("half of a pair", b'{"messages": [{"role": "user", "content": "\\ud800"}]}'),
        raw("a field twice", b'{"max_tokens": 1, "temperature": 0, "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}'),
        raw("a number beyond all", b'{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "seed": 1e999}'),
        raw("too deep", b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
        raw("too many fields", ("{" + ",".join(f'"f{i}": 1' for i in range(1100)) + "}").encode()),
        raw("no content type", b"{}", content_type=None),
        raw("a form", b"a=b", content_type="application/x-www-form-urlencoded"),
        raw("plain text", b"{}", content_type="text/plain"),
        raw("a relative of JSON", b'{"messages": []}', content_type="application/vnd.x+json; charset=utf-8"),
        raw("compressed", b"{}", content_encoding="gzip"),
    ]


def models():
    return [
        get("/v1/models"),
        get("/models"),
        get("/v1/models/kvik-tiny"),
        get("/v1/models/gpt-4o"),
        get("/models/a/b"),
        get("/health"),
        get("/v1/health"),
    ]
