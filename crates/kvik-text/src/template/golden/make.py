"""Renders the cases with Python's Jinja2, set up as Hugging Face transformers sets it up.

    python make.py QWEN3_TEMPLATE > golden.json

The output is committed; run this again only when a case is added.
"""
import datetime, json, sys
from pathlib import Path
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 11, 20, 9, 5, 3)
HERE = Path(__file__).parent


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_render", []), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def m(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments):
    return {"type": "function", "id": "call_1", "function": {"name": name, "arguments": arguments}}


TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather at a place, e.g. <Ørsted's & \"Bohr\">",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "enum": []}, "days": {"type": "integer", "default": 1.0, "maximum": 1e20}},
        "required": ["city"]}}}
HELLO = [m("system", "You are terse."), m("user", "Hi <b>&you's</b>")]
TURNS = HELLO + [m("assistant", "Hello.", reasoning_content="They greet me."), m("user", "And\n now?"),
                 m("assistant", "<think>\nHm.\n</think>\n\nNow  what"), m("user", "Så? 🦙")]
TOOLS = [m("user", "Weather in Århus and Aalborg?"),
         m("assistant", "", tool_calls=[call("get_weather", {"city": "Århus", "days": 2}),
                                        call("get_weather", "{\"city\":\"Aalborg\"}")]),
         m("tool", "{\"temp\": 3}"), m("tool", "5 degrees"), m("assistant", "Cold.", reasoning_content="Cold."),
         m("user", "Thanks")]
ONE_TOOL = [m("system", " Be brief. "), m("user", "Weather?"),
            m("assistant", "", tool_calls=[call("get_weather", {"city": "Ørsted", "days": [1, 2.5, None, True]})]),
            m("tool", "3 degrees")]

CASES = []
for template in ["qwen3", "tiny", "zephyr", "llama3", "python"]:
    CASES += [(template, HELLO, None, True, None), (template, TURNS, None, True, None),
              (template, TURNS, None, False, None), (template, HELLO[1:], None, True, False)]
CASES += [("qwen3", HELLO, None, True, True), ("qwen3", TOOLS, [TOOL], True, None),
          ("qwen3", TOOLS[:4], [TOOL], True, False), ("qwen3", ONE_TOOL, [TOOL, TOOL], False, None),
          ("qwen3", ONE_TOOL[:3], None, False, None), ("llama3", ONE_TOOL, [TOOL], True, None),
          ("tiny", TURNS, None, True, False)]


def main():
    env, out = environment(), []
    sources = {p.stem: p.read_text() for p in HERE.glob("*.jinja")}
    sources["qwen3"] = Path(sys.argv[1]).read_text()
    for template, messages, tools, add_generation_prompt, enable_thinking in CASES:
        given = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        more = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        prompt = env.from_string(sources[template]).render(
            **given, **more, documents=None, bos_token="<BOS>", eos_token="</s>")
        out.append({"template": template, **given, "enable_thinking": enable_thinking, "prompt": prompt})
    print(json.dumps(out, ensure_ascii=False, indent=0))


main()
