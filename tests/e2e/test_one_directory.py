"""Several servers on one cache directory and one state directory: the first writes, the second reads at once and takes over."""
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server import BINARY, Server  # noqa: E402

WORDS = "Once upon a time there was a folder full of letters, and nobody knew who had sent them. "


def start(folder, *flags, **env):
    places = {"KVIK_CACHE_DISK": str(folder / "cache"), "KVIK_STATE_DIR": str(folder / "state")}
    return Server("--cache-ram", "32MiB", *flags, env=places | env)


def story(number):
    return f"Story number {number}. " + WORDS * 6


def ask(server, prompt):
    """The answer, and the prompt tokens that came from memory and disk: what is hot is loaded at the start."""
    answer = server.post("/completion", dict(prompt=prompt, n_predict=6, temperature=0, ignore_eos=True))
    assert answer.status == 200, answer.text
    tiers = answer.json["kvik"]["cache"]["by_tier"]
    return answer.json["content"], tiers["ram"] + tiers["disk"]


def until(what, is_so):
    deadline = time.monotonic() + 20
    while not (found := is_so()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def settle(server):
    until("all blocks are written", lambda: server.metric("kvik_disk_writes_pending") == 0)


def sees(reader, writer):
    blocks = writer.metric("kvik_disk_blocks_used")
    until("the reader sees what is written", lambda: reader.metric("kvik_disk_blocks_used") == blocks)


def disk(server):
    return server.get("/v1/cache?limit=0").json["disk"]


@pytest.fixture(scope="module")
def said():
    """The answers of a server alone."""
    with Server("--cache-ram", "32MiB") as server:
        return [ask(server, story(number))[0] for number in range(4)]


def test_the_second_starts_at_once_reads_what_the_first_wrote_and_takes_over(tmp_path, said):
    began = time.monotonic()
    with start(tmp_path) as first:
        alone, began = time.monotonic() - began, time.monotonic()
        with start(tmp_path) as second:
            # Two files were waited for, 5 s each.
            assert time.monotonic() - began < alone + 4, second.logged()
            pid = first.process.pid
            assert f"reads the cache of process {pid}" in second.logged()
            assert f"process {pid} has those of this directory" in second.logged()
            assert disk(first)["writes"] and not disk(second)["writes"] and disk(second)["writer_pid"] == pid
            assert first.metric("kvik_disk_writer") == 1 and second.metric("kvik_disk_writer") == 0

            for number in (0, 1):
                assert ask(first, story(number))[0] == said[number]
                settle(first), sees(second, first)
                answer, cached = ask(second, story(number))
                assert answer == said[number] and cached > 100, "blocks that the first wrote"
            assert ask(second, story(2))[0] == said[2]

            first.kill()
            until("the second writes", lambda: second.metric("kvik_disk_writer") == 1)
            assert ask(second, story(3))[0] == said[3]
            settle(second)
    with start(tmp_path) as third:
        for number in (0, 1, 3):
            answer, cached = ask(third, story(number))
            assert answer == said[number] and cached > 100, number


def test_what_the_first_evicts_leaves_the_memory_of_the_second(tmp_path, said):
    with start(tmp_path) as first, start(tmp_path) as second:
        ask(first, story(0)), settle(first), sees(second, first)
        ask(second, story(0))
        assert ask(second, story(0))[1] > 100
        before = first.metric("kvik_disk_blocks_used")
        assert first.post("/v1/cache/evict", {"prompt": story(0)}).json["blocks"] > 0
        until("they leave the disk", lambda: first.metric("kvik_disk_blocks_used") < before)
        sees(second, first)
        answer, cached = ask(second, story(0))
        assert answer == said[0] and cached < 16, cached


def test_different_models_write_beside_each_other(tmp_path):
    with start(tmp_path) as first, start(tmp_path, "--kv", "q8") as second:
        for server in (first, second):
            ask(server, story(0)), settle(server)
            assert disk(server)["writes"] and disk(server)["used_blocks"] > 0


def test_a_server_that_is_stopping_is_waited_for(tmp_path):
    """The accounts of the first are those of the next one, although that begins while the first answers somebody."""
    stall = tmp_path / "stall"
    with start(tmp_path, KVIK_TEST_STALL=str(stall)) as first:
        ask(first, story(0))
        long = dict(prompt=story(1), n_predict=1500, ignore_eos=True, stream=True)
        with first.stalled(stall, lambda: first.begin_stream("/completion", long)) as (connection, response):
            answered = requests(first)
            first.terminate()
            until("it is stopping", lambda: "stopping: " in first.logged())
            # The second has come to the records of the first by then, and waits 5 s for them.
            leaves = threading.Timer(2, lambda: (response.close(), connection.close(), stall.unlink()))
            leaves.start()
            with start(tmp_path) as second:
                assert "END WITH THIS PROCESS" not in second.logged()
                assert requests(second) == answered + 1, "and the one that its client left"


def requests(server):
    return sum(row["requests"] for row in server.get("/v1/usage").json["data"])


def test_doctor_says_who_writes(tmp_path):
    with start(tmp_path) as server:
        env = {"KVIK_CACHE_DISK": str(tmp_path / "cache"), "KVIK_STATE_DIR": str(tmp_path / "state")}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("KVIK_")}
        told = subprocess.run([BINARY, "doctor", "--port", "0"], env=clean | env, capture_output=True, text=True)
        assert re.search(rf"process {server.process.pid} writes there", told.stdout), told.stdout
