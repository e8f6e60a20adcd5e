"""What one binary left on disk, read by another."""
import pathlib
import random
import tempfile
import time

from server import Server

from .openai import RULES, TURNS

WORDS = "the folder of work holds letters from people who write about plans and bills for next week".split()
PATIENCE = 30


def prompts(count=8):
    """Texts of a few hundred tokens, of which each shares the beginning with another."""
    dice = random.Random(1)
    openings = [" ".join(dice.choice(WORDS) for _ in range(120)) for _ in range(count // 2)]
    return [f"{RULES} {openings[i // 2]} " + " ".join(dice.choice(WORDS) for _ in range(60)) for i in range(count)]


def read_by_another(old, new):
    """Fills a directory with the old binary and asks the new one; whether all that was there is used, or none of it."""
    with tempfile.TemporaryDirectory(prefix="kvik-recorded-") as folder:
        with started(old, folder, "64MiB") as server:
            cold = [ask(server, prompt) for prompt in prompts()]
            server.request("PUT", "/v1/prompts/rules", b'{"prompt": "%s"}' % RULES.encode(), {"Content-Type": "application/json"})
            server.post("/v1/cache/pin", {"messages": TURNS})
            wait(lambda: server.metric("kvik_disk_writes_pending") == 0)
            before = left(server)
        # What is hot comes back at the start until half of the RAM is filled; requests read the rest themselves.
        with started(new, folder, "6MiB") as server:
            found = server.get("/v1/cache").json["disk"]["found_at_start"]
            wait(lambda: server.metric("kvik_disk_prefixes_to_warm") == 0)
            warm = [ask(server, prompt) for prompt in prompts()]
            after = left(server)
            log = server.logged()
    return verdict(found, cold, warm, before, after, log)


def started(binary, folder, ram):
    state = pathlib.Path(folder) / "state"
    flags = ["--threads", 2, "--cache-ram", ram, "--cache-disk-size", "1GiB", "--state-dir", state]
    return Server(*flags, env={"KVIK_CACHE_DISK": str(pathlib.Path(folder) / "kv")}, binary=binary)


def ask(server, prompt):
    body = dict(prompt=prompt, n_predict=8, temperature=0, ignore_eos=True, n_probs=3)
    answer = server.post("/completion", body).json
    return dict(said=(answer["content"], answer["completion_probabilities"]), tokens=answer["timings"]["cache_n"] + answer["timings"]["prompt_n"], **answer["kvik"]["cache"])


def left(server):
    """What is kept beside blocks: prompts, pins and accounts."""
    kept = [(prompt["name"], prompt["sha256"], prompt["tokens"]) for prompt in server.get("/v1/prompts").json["data"]]
    pins = sorted(pin["tokens"] for pin in server.get("/v1/cache/pins").json["data"])
    return dict(prompts=kept, pins=pins, billed=server.get("/v1/usage").json["data"][0]["requests"])


def wait(done):
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "the disk does not come to rest"
        time.sleep(0.02)


def verdict(found, cold, warm, before, after, log):
    print("prompt  tokens  cached: old, cold  new, after the restart  of them from disk")
    for i, (old, new) in enumerate(zip(cold, warm)):
        print(f"{i + 1:>6}  {old['tokens']:>6}  {old['cached_tokens']:>17}  {new['cached_tokens']:>22}  {new['by_tier']['disk']:>17}")
    same = all(old["said"] == new["said"] for old, new in zip(cold, warm))
    # Only whole blocks of 16 tokens are on disk, and the last token is always computed.
    whole = all(new["cached_tokens"] >= (new["tokens"] - 1) // 16 * 16 for new in warm)
    refused = found == 0 and "version" in log
    beside = before["prompts"] == after["prompts"] and after["billed"] >= before["billed"] and before["pins"] == after["pins"]
    print(f"{found} blocks found at the start; the answers are {'the same' if same else 'DIFFERENT'}")
    print(f"kept prompts, pins and accounts are {'read' if beside else f'LOST: {before} became {after}'}")
    print("read: every whole block comes from the files" if whole and found else "refused by version" if refused else "NEITHER READ NOR REFUSED")
    return same and beside and (whole and found > 0 or refused)
