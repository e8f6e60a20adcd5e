"""A newcomer: a home directory with nothing in it, kvik in the path, and a hub that has a small model under a published name."""
import os

from hub import Hub
from server import BINARY, TINY

MODEL = TINY / "kvik-tiny-q8_0.gguf"
# The repository of the short name smollm2:135m.
REPOSITORIES = {"bartowski/SmolLM2-135M-Instruct-GGUF": {"SmolLM2-135M-Instruct-Q8_0.gguf": MODEL.read_bytes()}}


def hub():
    """The hub, a context manager."""
    return Hub(REPOSITORIES)


def environment(home, hub, port):
    """The variables of a shell of this user, whose server listens on `port`."""
    others = ("KVIK_", "HF_", "XDG_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    own = {"HOME": str(home), "HF_ENDPOINT": hub.url, "KVIK_PORT": str(port), "KVIK_THREADS": "2"}
    # The same answer each time.
    own |= {"KVIK_TEMP": "0"}
    return clean | own | {"PATH": f"{BINARY.parent}:{os.environ['PATH']}"}
