"""Where things are, and what this bench shares with the tests."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from server import BINARY, Server, free_port  # noqa: E402, F401
