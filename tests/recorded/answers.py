"""Sends the requests to servers of one binary, and writes down what they answer, without what changes by the hour."""
import hashlib
import json
import pathlib
import re
import tempfile

from server import Server

from . import kvik, llama, openai

# Headers that say when, or how long, and nothing else.
SILENT = {"date", "content-length", "transfer-encoding"}
VOLATILE_HEADERS = re.compile(r"retry-after|x-ratelimit-(remaining|reset)-")
NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
# What differs between two runs of the same binary, as text, so that all else stays as it was sent.
VOLATILE = [
    (re.compile(r'"(id)":"(chatcmpl|cmpl)-[0-9a-f]+"'), r'"\1":"\2-*"'),
    (re.compile(r'"id":"call_[0-9]+_[0-9a-f]+"'), '"id":"call_*"'),
    (re.compile(r'"day":"\d{4}-\d\d-\d\d"'), '"day":"*"'),
    (re.compile(r'"params":\{"seed":\d+'), '"params":{"seed":0'),
    (re.compile(rf'"(created|idle_s|expires_in_s|seconds_ago|saved_seconds|\w+_ms|\w+_per_second)":{NUMBER}'), r'"\1":0'),
    (re.compile(r"\b(in|after) \d+(\.\d+)? ?s\b"), r"\1 * s"),
]

# The sets of requests and the flags of their servers; `{folder}` is a directory of the set's own.
SETS = {
    "openai": (["--cache-ram", "64MiB"], [openai.chats, openai.texts, openai.wrong_chats, openai.wrong_texts, openai.bodies, openai.models]),
    "llama": (["--cache-ram", "64MiB"], [llama.completions, llama.helpers, llama.strangers]),
    "kvik": (["--cache-ram", "64MiB", "--price-input", "2.5", "--price-cached", "0.25", "--price-output", "10", "--price-per", "1000000"], [kvik.cache, kvik.prompts]),
    "senders": (["--cache-ram", "16MiB"], [kvik.senders]),
    "keys": (["--cache-ram", "16MiB", "--api-key", "SECRET", "--admin-key", "ROOT", "--strict-model", "--alias", "house", "--body-limit", "8KiB", "--cors", "https://page.example"], [kvik.keys]),
    "tenants": (["--cache-ram", "64MiB", "--tenants", "{folder}/tenants.toml", "--admin-key", "ROOT", "--secret-file", "{folder}/secret"], [kvik.tenants]),
    "tight": (["--cache-ram", "2MiB"], [kvik.tight]),
}
ALWAYS = ["--threads", 2, "--parallel", 4, "--queue", 32]


def record(binary):
    """Every answer, in order: dictionaries with `set`, `name`, `status`, `headers`, and `body` or `events`."""
    answers = []
    for name, (flags, groups) in SETS.items():
        with tempfile.TemporaryDirectory(prefix="kvik-recorded-") as folder:
            write_tenants(pathlib.Path(folder))
            flags = [flag.format(folder=folder) for flag in flags]
            with Server(*ALWAYS, *flags, binary=binary) as server:
                answers += [{"set": name} | answer for answer in ask(server, folder, [request for group in groups for request in group()])]
    return answers


def write_tenants(folder):
    """The file of the tenants, and a secret that is the same in every run."""
    lines = [f'[tenant.{name}]\nkeys = ["sha256:{hashlib.sha256(name.encode()).hexdigest()}"]\n{settings}\n' for name, settings in kvik.TENANTS.items()]
    for path, text in ((folder / "tenants.toml", "".join(lines)), (folder / "secret", "7" * 32)):
        path.write_text(text)
        path.chmod(0o600)


def ask(server, folder, requests):
    seen = {}
    for request in requests:
        path = request.path(seen) if callable(request.path) else request.path
        body = request.body(seen) if callable(request.body) else request.body
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        response = server.request(request.method, path, raw, request.headers)
        assert request.name not in seen, f"two requests are named {request.name}"
        seen[request.name] = json_or_none(response.body)
        yield {"name": request.name} | answer_of(response, hide(str(server.port), folder))


def hide(port, folder):
    """Takes out of a text what is of one run only."""

    def hidden(text):
        for pattern, replacement in VOLATILE:
            text = pattern.sub(replacement, text)
        return text.replace(folder, "FOLDER").replace(f":{port}", ":PORT")

    return hidden


def answer_of(response, hidden):
    headers = {name: "*" if VOLATILE_HEADERS.match(name) else hidden(value) for name, value in response.headers.items() if name not in SILENT}
    kind, text = headers.get("content-type", ""), response.body.decode()
    answer = {"status": response.status, "headers": headers}
    if kind == "text/event-stream":
        # Comments keep a slow stream alive.
        return answer | {"events": [event(hidden(frame)) for frame in text.split("\n\n") if frame and not frame.startswith(":")]}
    if "openmetrics" in kind:
        return answer | {"body": metrics(text)}
    return answer | {"body": whole(hidden(text))}


def event(frame):
    """The data of a frame that is nothing but data; any other frame as it is."""
    return whole(frame.removeprefix("data: ")) if frame.startswith("data: ") and "\n" not in frame else frame


def whole(text):
    """JSON as its value where that says all that the text says, else the text."""
    value = json_or_none(text)
    return value if compact(value) == text else text


def json_or_none(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def metrics(text):
    """Types, and the names and labels of samples, sorted: numbers are of the hour, and the help is for people."""
    samples = [line if line.startswith("#") else line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("# HELP")]
    return {"samples": sorted(samples)}
