"""Models by name: what the command `kvik` opens by a name, this package opens by it too.

The command finds names, short names and sources of the hub, and downloads; here it is asked, so that a name means one model
everywhere. A path is never looked up.
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig

from ._errors import ModelNotFoundError

_NAME = re.compile(r"[A-Za-z0-9_@+][A-Za-z0-9._@+/:-]*")
_OF_HUB = (
    "hf:", "hf.co/", "huggingface.co/",
    "https://hf.co/", "https://huggingface.co/", "http://hf.co/", "http://huggingface.co/",
)


def path_of(source: str | os.PathLike[str]) -> str:
    """The path of a model: of a file or directory, else of the model of this name, which is downloaded if need be."""
    path = os.path.expanduser(os.fspath(source))
    if os.path.exists(path):
        return path
    if not isinstance(source, str) or not _may_be_a_name(source):
        raise ModelNotFoundError(path)
    return _named(source)


def _may_be_a_name(text: str) -> bool:
    if text.startswith(_OF_HUB):
        return re.fullmatch(r"\S+", text) is not None
    return _NAME.fullmatch(text) is not None and not text.endswith((".gguf", ".safetensors", "/"))


def _named(name: str) -> str:
    kvik = command()
    if kvik is None:
        raise ModelNotFoundError(name, "there is no such file, and no command `kvik` on the PATH that knows models by name")
    found = _ask(kvik, "show", "--path", "--", name)
    if f"`kvik pull {name}` fetches it" in found.stderr:
        # Standard error stays the program's: the download shows its progress there.
        if subprocess.run([kvik, "pull", "--", name], stdout=subprocess.DEVNULL).returncode != 0:
            raise ModelNotFoundError(name, f"it cannot be downloaded; `kvik pull {name}` says why")
        found = _ask(kvik, "show", "--path", "--", name)
    if found.returncode != 0:
        raise ModelNotFoundError(name, found.stderr.strip().removeprefix("error: "))
    return found.stdout.rstrip("\n")


def _ask(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace")


def command() -> str | None:
    """The command `kvik`: that of the wheel, else that of the PATH."""
    return shutil.which("kvik", path=sysconfig.get_path("scripts")) or shutil.which("kvik")
