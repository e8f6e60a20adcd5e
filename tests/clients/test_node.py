"""The official JavaScript client; its tests are in `tests/node`."""
import os
import pathlib
import shutil
import subprocess

import pytest
from asked import KEY, MODEL

NODE = pathlib.Path(__file__).resolve().parents[1] / "node"


# One file after the other: one of them looks at all that the server computes.
@pytest.mark.parametrize("file", sorted(path.name for path in NODE.glob("*.test.mjs")))
def test_the_javascript_client(server, stall, file):
    if not shutil.which("node") or not (NODE / "node_modules").is_dir():
        pytest.skip("node or tests/node/node_modules is missing: run `npm ci` in tests/node")
    env = os.environ | {"KVIK_URL": server.base_url, "KVIK_KEY": KEY, "KVIK_MODEL": MODEL, "KVIK_STALL": str(stall)}
    ran = subprocess.run(["node", "--test", file], cwd=NODE, env=env, capture_output=True, text=True, timeout=120)
    print(ran.stdout)
    assert ran.returncode == 0, f"{ran.stdout[-6000:]}\n{ran.stderr[-2000:]}"
