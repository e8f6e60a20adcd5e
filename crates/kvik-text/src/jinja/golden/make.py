"""Renders the lines of cases.txt with Python's Jinja2, set up as Hugging Face transformers sets it up; but values can be
changed, and there is llama.cpp's filter `from_json`.

    python make.py > golden.json

A line is a template; `⏎` in it is a line break. The output is committed; run this again only when a line is added.
"""
import copy
import json
from pathlib import Path
from jinja2.ext import loopcontrols
from jinja2.sandbox import SandboxedEnvironment

HERE = Path(__file__).parent
VALUES = {
    "n": 7, "x": 2.5, "s": "Hello, wörld", "empty": "", "no": None, "yes": True,
    "l": [3, 1, 2], "words": ["b", "A", "c", "a"], "d": {"b": 1, "a": [1, "x'y"], "c": {}},
    "people": [{"name": "Bo", "age": 3, "p": {"q": 1}}, {"name": "al", "age": 5}, {"name": "Cy", "age": 3}],
    "text": "  one two\n\n three\n", "big": 12345678901234567890,
}


def main():
    env = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.filters["from_json"] = json.loads
    out = []
    for line in (HERE / "cases.txt").read_text().splitlines():
        if not line or line.startswith("##"):
            continue
        source = line.replace("⏎", "\n")
        try:
            out.append({"source": source, "expect": env.from_string(source).render(**copy.deepcopy(VALUES))})
        except Exception:
            out.append({"source": source, "expect": None})
    print(json.dumps({"values": VALUES, "cases": out}, ensure_ascii=False, indent=0))


main()
