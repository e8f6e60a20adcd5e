"""One server for all clients, with a key and a strict model name, and its tasks."""
import os
import pathlib
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the internet at every start
os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import pytest  # noqa: E402
from asked import KEY, MODEL  # noqa: E402
from server import Server  # noqa: E402


@pytest.fixture(scope="session")
def stall(tmp_path_factory):
    """While this file is there, the server's engine takes no step."""
    return tmp_path_factory.mktemp("server") / "stall"


@pytest.fixture(scope="session")
def server(stall):
    flags = ["--api-key", KEY, "--strict-model", "--alias", MODEL, "--context", "2048", "--cache-ram", "128MiB"]
    with Server(*flags, "--threads", "2", env={"KVIK_TEST_STALL": str(stall)}) as running:
        yield running
