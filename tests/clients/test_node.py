"""The official JavaScript client; its tests are in `tests/node`."""
import os
import pathlib
import shutil
import subprocess

import pytest
from asked import KEY, MODEL

NODE = pathlib.Path(__file__).resolve().parents[1] / "node"


def test_the_javascript_client(server):
    if not shutil.which("node") or not (NODE / "node_modules").is_dir():
        pytest.skip("node or tests/node/node_modules is missing: run `npm ci` in tests/node")
    env = os.environ | {"KVIK_URL": server.base_url, "KVIK_KEY": KEY, "KVIK_MODEL": MODEL}
    ran = subprocess.run(["node", "--test"], cwd=NODE, env=env, capture_output=True, text=True, timeout=120)
    print(ran.stdout)
    assert ran.returncode == 0, f"{ran.stdout[-6000:]}\n{ran.stderr[-2000:]}"
