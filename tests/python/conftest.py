"""The embedded model, opened by the package that is installed."""
import pathlib

import pytest

import kvik

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/tiny/kvik-tiny-q8_0.gguf"
SMALL = {"kv_bytes": 64 << 20, "threads": 2}
# An answer that nothing but its length or its reader ends.
ENDLESS = {"max_tokens": 1500, "min_tokens": 1500, "temperature": 0.9, "seed": 7}
WORDS = "river stone letter seven garden winter engine small "


@pytest.fixture
def model():
    with kvik.Model(MODEL, **SMALL) as opened:
        yield opened


@pytest.fixture
def text():
    """Some 1,600 tokens, which take a while."""
    return WORDS * 150
