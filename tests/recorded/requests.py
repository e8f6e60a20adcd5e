"""The requests, in the order in which they are sent: each set has a server of its own.

What an answer says depends on what came before it, so the order is part of the set. Answers are greedy or have a seed.
"""
import dataclasses
import typing

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
LLAMA = "/completion"
EXPLAIN = "/v1/cache/explain"
JSON = "application/json"


@dataclasses.dataclass
class Request:
    """`body` is JSON, bytes that are sent as they are, or a function of the earlier answers by name."""

    name: str
    method: str
    path: str
    body: typing.Any = None
    headers: dict = dataclasses.field(default_factory=dict)


def get(path, name="", **headers):
    return Request(f"GET {path} {name}".strip(), "GET", path, headers=header_names(headers))


def delete(path, name="", **headers):
    return Request(f"DELETE {path} {name}".strip(), "DELETE", path, headers=header_names(headers))


def put(path, name, body, **headers):
    return Request(f"PUT {path}: {name}", "PUT", path, body, header_names(dict(content_type=JSON) | headers))


def post(path, name, body, **headers):
    return Request(f"POST {path}: {name}", "POST", path, body, header_names(dict(content_type=JSON) | headers))


def header_names(headers):
    """Keyword arguments as headers; one that is None is not sent."""
    return {name.replace("_", "-"): value for name, value in headers.items() if value is not None}


def chat(name, content="Say hello to Ann.", headers=None, path=CHAT, **fields):
    """`content` is a question, or all messages."""
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    body = {"messages": messages, "max_tokens": 6, "temperature": 0, "seed": 1}
    return post(path, name, merged(body, fields), **(headers or {}))


def text(name, prompt="Once upon a time", headers=None, path=TEXT, **fields):
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "seed": 1}
    return post(path, name, merged(body, fields), **(headers or {}))


def llama(name, prompt="Once upon a time", **fields):
    body = {"prompt": prompt, "n_predict": 6, "temperature": 0, "seed": 1}
    return post(LLAMA, name, merged(body, fields))


def merged(body, fields):
    """A field that is `...` is left out."""
    return {name: value for name, value in (body | fields).items() if value is not ...}


def each(make, field, *values):
    """One request for each value of a field that no request may have."""
    return [make(f"{field} = {short(value)}", **{field: value}) for value in values]


def short(value, most=120):
    text = "absent" if value is ... else repr(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)})"


def bearer(key):
    return f"Bearer {key}"
