"""The disk tier: whatever happens to its directory, the server runs, and answers do not change."""
import os
import pathlib
import random
import shutil
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from server import Server  # noqa: E402

PROMPTS = [f"Story number {i}. " + "Once upon a time there was a folder full of letters. " * 6 for i in range(12)]


def start(folder, *flags):
    return Server("--cache-ram", "32MiB", *flags, env={"KVIK_CACHE_DISK": str(folder)})


def ask(server, prompt, **options):
    body = dict(prompt=prompt, n_predict=6, temperature=0, ignore_eos=True, n_probs=2)
    answer = server.post("/completion", body | options)
    assert answer.status == 200, answer.text
    json = answer.json
    return (json["content"], str(json.get("completion_probabilities"))), json


@pytest.fixture(scope="module")
def right():
    """The answers of a server without any cache."""
    with Server("--cache-ram", "32MiB") as server:
        return [ask(server, prompt, cache_prompt=False)[0] for prompt in PROMPTS]


def check(server, right):
    for prompt, expected in zip(PROMPTS, right):
        assert ask(server, prompt)[0] == expected


def settle(server):
    deadline = time.monotonic() + 20
    while server.metric("kvik_disk_writes_pending") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def fill(folder, right):
    with start(folder) as server:
        check(server, right)
        settle(server)
        server.kill()


def test_computed_blocks_are_read_back_and_reported(tmp_path, right):
    fill(tmp_path, right)
    with start(tmp_path) as server:
        for prompt, expected in zip(PROMPTS, right):
            said, json = ask(server, prompt)
            cache = json["kvik"]["cache"]
            assert said == expected
            assert cache["cached_tokens"] == json["timings"]["cache_n"] == cache["prompt_tokens"] - 1
            assert cache["by_tier"]["ram"] + cache["by_tier"]["disk"] == cache["cached_tokens"]
            assert cache["reason"] == "complete"


def test_ends_of_conversations_wait_and_are_left_behind(tmp_path, right):
    prompt, flags = PROMPTS[0], ["--cache-disk-write", "auto", "--cache-disk-write-budget", "20GB"]
    with start(tmp_path, *flags) as server:
        ask(server, prompt)
        disk = server.get("/v1/cache").json["disk"]
        assert (disk["write_policy"], disk["used_blocks"], disk["written_bytes_today"]) == ("auto", 0, 0)
        assert disk["waiting_blocks"] == server.metric("kvik_disk_blocks_waiting") > 0
    with start(tmp_path, *flags) as server:
        said, json = ask(server, prompt)
        cache = json["kvik"]["cache"]
        assert said == right[0]
        assert cache["cached_tokens"] > cache["prompt_tokens"] - 17, "in whole blocks"
        disk = server.get("/v1/cache").json["disk"]
        assert disk["used_blocks"] > 0 < disk["written_bytes_today"] < disk["written_bytes_per_year"]


def test_the_directory_is_removed_while_the_server_runs(tmp_path, right):
    folder = tmp_path / "kv"
    with start(folder) as server:
        check(server, right)
        settle(server)
        shutil.rmtree(folder)
        check(server, right)
        server.request("DELETE", "/v1/cache", None, {})
        check(server, right)
        assert server.metric("kvik_blocks_owned") == 0


def test_files_are_damaged_between_two_runs(tmp_path, right):
    dice = random.Random(7)
    fill(tmp_path, right)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 64]
    assert files
    for round in range(4):
        for path in files:
            with path.open("r+b") as file:
                for _ in range(30):
                    at = dice.randrange(path.stat().st_size)
                    file.seek(at)
                    file.write(bytes([dice.randrange(256)]))
                if round == 3:
                    file.truncate(path.stat().st_size // 2)
        with start(tmp_path) as server:
            check(server, right)


def test_a_disk_cache_of_minimal_size(tmp_path, right):
    with start(tmp_path, "--cache-disk-size", "300KiB") as server:
        check(server, right)
        check(server, right)
        assert server.metric("kvik_disk_blocks_evicted_total") > 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(tmp_path, right):
    tmp_path.chmod(0o500)
    with start(tmp_path / "kv") as server:
        assert "serving without a disk cache" in server.logged()
        check(server, right)


def test_a_path_that_is_a_file(tmp_path, right):
    (tmp_path / "kv").write_text("not a directory")
    with start(tmp_path / "kv") as server:
        assert "serving without a disk cache" in server.logged()
        check(server, right)


@pytest.mark.parametrize(
    "flags, reason", [(["--kv", "q8"], "other_kv_format"), (["--weights", "bf16"], "other_model")]
)
def test_another_model_or_kv_format_finds_nothing_and_explains_it(tmp_path, right, flags, reason):
    fill(tmp_path, right)
    with start(tmp_path, *flags) as server:
        _, json = ask(server, PROMPTS[0])
        assert json["timings"]["cache_n"] == 0
        assert json["kvik"]["cache"]["reason"] == reason
    with start(tmp_path) as server:
        assert ask(server, PROMPTS[0])[1]["timings"]["cache_n"] > 0, "the first one's files are still there"


FAKETIME = next(iter(sorted(pathlib.Path("/usr/lib").rglob("libfaketime.so.1"))), None)


@pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not installed")
@pytest.mark.parametrize(
    "clock, reason",
    [("@1970-01-02 00:00:00", "complete"), ("@2020-01-01 00:00:00", "complete"), ("@2090-01-01 00:00:00", "expired")],
)
def test_the_clock_is_another_one_after_the_restart(tmp_path, right, clock, reason):
    """Set back, a prompt with a time to live is still there; far ahead it has outlived it; no answer changes."""
    with start(tmp_path) as server:
        assert ask(server, PROMPTS[0], kvik={"ttl_s": 3600})[0] == right[0]
        settle(server)
        server.kill()
    env = {"KVIK_CACHE_DISK": str(tmp_path), "LD_PRELOAD": str(FAKETIME), "FAKETIME": clock}
    with Server("--cache-ram", "32MiB", env=env | {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}) as server:
        said, json = ask(server, PROMPTS[0])
        assert (said, json["kvik"]["cache"]["reason"]) == (right[0], reason)
        check(server, right)
