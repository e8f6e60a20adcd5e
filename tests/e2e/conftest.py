"""One server for the whole session, and the official client on it."""
import pathlib
import sys

import openai
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from server import Server  # noqa: E402  (found through the line above)


@pytest.fixture(scope="session")
def server():
    with Server("--threads", "2") as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    return openai.OpenAI(base_url=server.base_url, api_key="unused", max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def model(client):
    return client.models.list().data[0].id
