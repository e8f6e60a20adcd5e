"""What a server of this tree says to the cases: for each line the fields of its transcript that HTTP can ask for."""
import base64
import contextlib
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from cases import Line, read_list  # noqa: E402
from server import Server  # noqa: E402

JSON = {"Content-Type": "application/json"}
FLAGS = {"kv_bytes": "--cache-ram", "context_tokens": "--context", "threads": "--threads", "parallel": "--parallel"}
# Names and types of an answer's arguments.
ASKED = {
    "max_tokens": int, "min_tokens": int, "temperature": float, "top_p": float, "top_k": int, "min_p": float, "seed": int,
}


class Served:
    """Asks one server after the other, as models are opened and closed."""

    def __init__(self, model: pathlib.Path, directory: pathlib.Path):
        self.model, self.directory, self.server = model, directory, None
        # A server keeps also what all chats that begin with a prompt go on with, which is a few tokens more.
        self.keeps_more = False
        self.stack = contextlib.ExitStack()

    def run(self, line: Line) -> dict[str, object]:
        """The fields that the server knows; none where it cannot be asked."""
        ask = getattr(self, line.operation, None)
        if line.operation == "open" or (ask and self.server):
            return ask(line)
        return {}

    def open(self, line: Line) -> dict[str, object]:
        self.close(line)
        if line.find("file") or (line.find("disk") or "").startswith("/"):
            return {}  # A server without a model, or with a log for what is wrong with its disk.
        env = {}
        if disk := line.find("disk"):
            env = {"KVIK_CACHE_DISK": str(self.directory / disk), "KVIK_STATE_DIR": str(self.directory / f"{disk}-state")}
        if conversations := line.find("conversations"):
            env["KVIK_STATE_DIR"] = str(self.directory / conversations)
        given = {flag: line.get(name) for name, flag in FLAGS.items() if line.find(name)}
        # Flags have sizes with a unit.
        given |= {"--cache-ram": f"{given['--cache-ram']}B"} if "--cache-ram" in given else {}
        flags = [word for pair in given.items() for word in pair]
        try:
            self.server = self.stack.enter_context(Server("--model", self.model, *flags, env=env))
        except AssertionError:
            return {"error": True}
        return {"ok": "yes"}

    def close(self, _: Line) -> dict[str, object]:
        self.stack.close()
        self.server = None
        return {"ok": "yes"}

    def generate(self, line: Line) -> dict[str, object]:
        return self.answer(line, "/v1/completions", {"prompt": line.prompt}, lambda choice: {"text": choice["text"]})

    def chat(self, line: Line) -> dict[str, object]:
        return self.answer(line, "/v1/chat/completions", {"messages": messages(line)}, said_in_chat)

    def say(self, line: Line) -> dict[str, object]:
        body = {"messages": messages(line), "kvik": {"conversation": line.get("conversation")}}
        return self.answer(line, "/v1/chat/completions", body, said_in_chat)

    def answer(self, line: Line, path: str, body: dict, text) -> dict[str, object]:
        if line.find("cancel_after"):
            return {}
        asked = {name: read(line.get(name)) for name, read in ASKED.items() if line.find(name)}
        answer = self.server.post(path, body | asked | form(line) | retained(line, body) | {"stop": line.all("stop")})
        if answer.status != 200:
            return {"error": True}
        choice, usage = answer.json["choices"][0], answer.json["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        fields = {
            **text(choice),
            # OpenAI's words do not tell an end from a text to stop at.
            "finish": {"length"} if choice["finish_reason"] == "length" else {"end", "stop"},
            "prompt": usage["prompt_tokens"],
            "generated": usage["completion_tokens"],
        }
        if line.find("counts") == "no" or self.keeps_more:
            return fields
        computed = usage["prompt_tokens"] - cached
        return fields | {"cached": cached, "computed": computed, "reason": answer.json["kvik"]["cache"]["reason"]}

    def sampling(self, _: Line) -> dict[str, object]:
        in_force = self.server.get("/props").json["sampling_defaults"]
        in_force["penalty_last_n"] = in_force.pop("repeat_last_n")
        number = {name: f"{one['value']:.2f}" for name, one in in_force.items()}
        number |= {name: str(in_force[name]["value"]) for name in ("top_k", "penalty_last_n")}
        sources = [f"{one['source']} {one.get('family', '')}".strip() for one in in_force.values()]
        return {**number, "from": sources}

    def count_tokens(self, line: Line) -> dict[str, object]:
        body = {"content": line.prompt, "add_special": True, "parse_special": True}
        return {"tokens": len(self.server.post("/tokenize", body).json["tokens"])}

    def explain(self, line: Line) -> dict[str, object]:
        answer = self.server.post("/v1/cache/explain", {"prompt": line.prompt, "max_tokens": 1})
        if answer.status != 200:
            return {"error": True}
        cache = answer.json["kvik"]["cache"]
        return {"prompt": cache["prompt_tokens"], "known": cache["cached_tokens"], "reason": cache["reason"]}

    def embed(self, line: Line) -> dict[str, object]:
        answer = self.server.post("/v1/embeddings", {"input": line.get("input"), "encoding_format": "base64"})
        if answer.status != 200:
            return {"error": True}
        numbers = base64.b64decode(answer.json["data"][0]["embedding"])
        words = [numbers[at : at + 4][::-1].hex() for at in range(0, len(numbers), 4)]
        return {"dimensions": len(words), "bits": "".join(words)}

    def keep(self, line: Line) -> dict[str, object]:
        self.keeps_more = True
        return {"state": "kept"} if self.put(line.get("id"), line).status == 200 else {"error": True}

    def is_kept(self, line: Line) -> dict[str, object]:
        body = {"messages": messages(line)}
        answer = self.server.post(f"/v1/prompts/{line.get('id')}/check", body)
        if answer.status == 404:
            return {"state": "unknown"}
        return {"state": "changed" if answer.json["changed"] else "kept"}

    def keep_copies(self, line: Line) -> dict[str, object]:
        for i in range(int(line.get("copies"))):
            if self.put(f"{line.get('id')}{i}", line).status != 200:
                return {"kept": i, "error": True}
        return {"kept": int(line.get("copies"))}

    def put(self, name: str, line: Line):
        body = json.dumps({"messages": messages(line)}).encode()
        return self.server.request("PUT", f"/v1/prompts/{name}", body, JSON)

    def forget(self, line: Line) -> dict[str, object]:
        deleted = self.server.request("DELETE", f"/v1/prompts/{line.get('id')}", None, {})
        return {"known": "yes" if deleted.status == 200 else "no"}

    def messages(self, line: Line) -> dict[str, object]:
        kept = self.server.get(f"/v1/conversations/{line.get('conversation')}")
        if kept.status != 200:
            return {"error": True}
        # Those of one role are compared in their order, and all of them by their number.
        said = kept.json["messages"]
        return {role: [m["content"] for m in said if m["role"] == role] for role in ("system", "user", "assistant")}

    def conversations(self, _: Line) -> dict[str, object]:
        kept = self.server.get("/v1/conversations").json["data"]
        return {"name": [one["name"] for one in kept], "messages": [str(one["messages"]) for one in kept]}

    def take_back(self, line: Line) -> dict[str, object]:
        path = f"/v1/conversations/{line.get('conversation')}/messages?from={line.get('from')}"
        return did(self.server.request("DELETE", path, None, {}))

    def rename(self, line: Line) -> dict[str, object]:
        return did(self.server.post(f"/v1/conversations/{line.get('conversation')}", {"name": line.get("name")}))

    def correct(self, line: Line) -> dict[str, object]:
        path = f"/v1/conversations/{line.get('conversation')}/memory"
        return did(self.server.post(path, {"summary": line.get("summary")}))

    def delete(self, line: Line) -> dict[str, object]:
        return did(self.server.request("DELETE", f"/v1/conversations/{line.get('conversation')}", None, {}))

    def memory_pressure(self, line: Line) -> dict[str, object]:
        if line.get("level") != "critical":
            return {}
        return did(self.server.request("DELETE", "/v1/cache", None, {}))


def did(answer) -> dict[str, object]:
    return {"ok": "yes"} if answer.status == 200 else {"error": True}


def said_in_chat(choice) -> dict[str, object]:
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls") or []]
    said = {name: [call[key] for call in calls] for name, key in (("call", "name"), ("arguments", "arguments"))}
    return {"text": message["content"] or "", **said}


def form(line: Line) -> dict[str, object]:
    """What holds an answer to a form, as HTTP says it."""
    asked: dict[str, object] = {}
    if tools := line.find("tools"):
        asked["tools"] = json.loads(tools)
    if choice := line.find("tool_choice"):
        words = ("none", "auto", "required")
        asked["tool_choice"] = choice if choice in words else {"type": "function", "function": {"name": choice}}
    if schema := line.find("json_schema"):
        asked["json_schema"] = json.loads(schema)
    names = {"regex": "regex", "grammar": "grammar_lark"}
    return asked | {field: line.get(name) for name, field in names.items() if line.find(name)}


def retained(line: Line, body: dict) -> dict[str, object]:
    """Which part of its prompt the answer reads, beside what the body has in `kvik` already."""
    retention = line.find("retention")
    return {"kvik": body.get("kvik", {}) | {"retain": retention}} if retention else {}


def messages(line: Line) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in line.messages]


def fields_of(model: pathlib.Path, directory: pathlib.Path) -> list[dict[str, object]]:
    """What the server says to each line of the list."""
    served, said = Served(model, directory), []
    with served.stack:
        for line in read_list():
            if line.operation == "case":
                served.keeps_more = False
            said.append(served.run(line))
    return said
