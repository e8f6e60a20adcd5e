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
def server():
    flags = ["--api-key", KEY, "--strict-model", "--alias", MODEL, "--context", "2048", "--cache-ram", "128MiB"]
    with Server(*flags, "--threads", "2") as running:
        yield running
