#!/usr/bin/env python3
"""What the user says, a line of JSON a turn: facts in turns 1 to 50, small talk, and each fact asked for once, at once or 100,
300 or 500 turns later. It is what `bench/memory/turns.py` says to a server.

    python3 examples/endless/script.py 500 1 > script.jsonl
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/memory"))

from turns import script  # noqa: E402

turns, seed = (int(argument) for argument in sys.argv[1:])
for line in script(turns, seed):
    print(json.dumps(line))
