"""`kvik doctor` of the release binary: what it says of this machine is what the server then does."""
import json
import pathlib
import re
import socket
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server import BINARY, Server, free_port  # noqa: E402


def doctor(*flags, status=0, env=None):
    run = subprocess.run([BINARY, "doctor", "--json", *flags], capture_output=True, text=True, timeout=60, env=env)
    assert run.returncode == status, run.stdout + run.stderr
    found = json.loads(run.stdout)
    assert found["wrong"] == (status == 1)
    return {one["subject"]: one for one in found["diagnoses"]}


def places(tmp_path):
    return ["--state-dir", tmp_path / "state", "--models-dir", tmp_path / "models", "--cache-disk", tmp_path / "kv"]


def test_it_says_what_the_server_would_choose(tmp_path):
    found = doctor("--port", str(free_port()), "--cache-ram", "64MiB", "--threads", "1", *places(tmp_path))
    assert found["processor"]["figures"]["threads"] == 1
    assert found["memory"]["figures"]["cache_bytes"] == 64 << 20
    assert found["memory speed"]["figures"]["read_bytes_per_s"] > 1e8
    assert found["disk cache"]["figures"]["write_bytes_per_s"] > 0
    assert not list(tmp_path.iterdir()), "it leaves nothing behind"
    with Server("--cache-ram", "64MiB", "--threads", "1") as server:
        # In whole blocks.
        cache = re.search(r"^  cache    up to ([\d.]+) MiB", server.logged(), re.M)
        assert 63 < float(cache[1]) <= 64 and "on 1 threads" in server.logged(), server.logged()


def test_what_would_stop_the_server_is_wrong_and_has_a_remedy(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (tmp_path / "file").touch()
        flags = ["--port", str(taken.getsockname()[1]), "--state-dir", tmp_path / "file/state", "--cache-ram", "900TiB"]
        found = doctor(*flags, "--cache-disk", "off", status=1)
    wrong = {subject for subject, one in found.items() if one["verdict"] == "wrong"}
    assert wrong == {"port", "state directory", "memory"}
    assert all(found[subject]["remedy"] for subject in wrong)
    assert "--state-dir" in found["state directory"]["remedy"]


@pytest.mark.parametrize("file, flags, says", [
    ("", ["-c", "131072", "--cache-ram", "64MiB"], "a context of 131072 tokens needs"),
    ("", ["-c", "512", "--memory", "on"], "--memory"),
    ("[models.a]\ncontxt = 1", [], "`contxt` is no setting of a model"),
    ("[models.a]\nsource = \"embedded\"", ["--kv-events", "tcp://127.0.0.1:0"], "tells of one model"),
])
def test_what_the_server_refuses_is_wrong(file, flags, says, tmp_path):
    config = tmp_path / "kvik.toml"
    config.write_text(file)
    flags = ["--config", config, "--port", "0", "--device", "cpu", *flags, *places(tmp_path)]
    serve = subprocess.run([BINARY, "serve", *flags], capture_output=True, text=True, timeout=60)
    assert serve.returncode != 0 and says in serve.stderr, serve.stderr
    found = doctor(*flags, status=1)
    assert any(one["verdict"] == "wrong" and says in one["found"] for one in found.values()), found


def test_a_table_is_for_people(tmp_path):
    config = tmp_path / "kvik.toml"
    config.touch()
    # The context as llama-server's command lines say it.
    flags = ["--config", config, "--port", "0", "-c", "512", *places(tmp_path)]
    run = subprocess.run([BINARY, "doctor", *flags], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert f"{config} is in force" in run.stdout
    assert re.search(r"^ok +instructions +\w+$", run.stdout, re.M), run.stdout
    assert "nothing is wrong" in run.stdout.splitlines()[-1]
