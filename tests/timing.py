#!/usr/bin/env python3
"""A timing attack: can one tenant find out whether another has sent a prompt?

In every probe the victim sends a prompt of random letters, either the one that the attacker guesses or another of the
same shape. Then the attacker sends its guess and takes the time to the first token. The area under the ROC curve (AUC)
says how well that time tells the two cases apart: 0.5 is chance, 1 is certainty. The same is done with a long chat whose
tokens are counted, because a text that was turned into tokens before takes less time.

Isolated tenants must be at chance. The test is sequential: an AUC that chance gives once in 80 runs is measured again
with fresh prompts and four times as many probes, and fails where it is beyond chance again, on the same side. A right
server fails once in 30,000 runs of both; the figures printed say how small a leak would be found. The same attack on
tenants in `shared` mode must succeed: it shows that the measurement could have seen a difference. Tokens are shared in
no mode: there a tenant that guesses what it has sent itself must succeed.

    tests/timing.py --probes 2000
    tests/timing.py --probes 1000 --fleet     the victim and the attacker at two nodes, which share a store
"""
import argparse
import bisect
import contextlib
import hashlib
import pathlib
import random
import string
import sys
import tempfile
import time

from server import Server

# Standard deviations of the AUC of equal distributions: beyond the first an attack is repeated, beyond the second it
# has succeeded. Chance does the first once in 80 runs and both once in 60,000.
SUSPECT, CERTAIN = 2.5, 3.0
# The estimate of 999 of 1,000 runs lies within this many of them.
ALMOST_ALWAYS = 3.09
REPEAT = 4
# Longer than it takes until the other node finds what was computed.
WRITTEN_SECONDS = 0.05
SUCCESS = 0.9
# Length of a chat that is counted: its tokens take milliseconds, and the context of the embedded model has room for it.
COUNTED_LETTERS = 30_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=pathlib.Path, help="default: the embedded model")
    parser.add_argument("--probes", type=int, default=2000)
    parser.add_argument("--letters", type=int, default=600, help="length of a prompt")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fleet", action="store_true", help="two nodes that share a directory")
    args = parser.parse_args()
    few = max(100, args.probes // 10)
    problems = []
    if isolated_leaks(args, ask):
        problems.append("an isolated tenant can tell by the time what another has sent")
    shared = attack(args, "shared", few, args.seed, ask)
    print(f"shared:   AUC {shared:.3f}, the same attack on tenants that share (at least {SUCCESS} wanted)")
    successes = [shared]
    if not args.fleet:  # each node has its own tokens in memory
        if isolated_leaks(args, count):
            problems.append("an isolated tenant can tell by the time that another's text was turned into tokens")
        own = attack(args, "isolated", few, args.seed, count, victim="attacker")
        print(f"own:      AUC {own:.3f}, the attack on a count, of a tenant on itself (at least {SUCCESS} wanted)")
        successes.append(own)
    if min(successes) < SUCCESS:
        problems.append("the attack does not work where it should: the measurement shows nothing")
    for problem in problems:
        print("timing: FAILED:", problem)
    sys.exit(bool(problems))


def isolated_leaks(args, send):
    """Whether timing what `send` sends reveals an isolated tenant's text; a first suspicion is measured again."""
    first = deviation(args, args.probes, args.seed, SUSPECT, send)
    if abs(first) <= SUSPECT:
        return False
    second = deviation(args, REPEAT * args.probes, args.seed + 1_000_000, CERTAIN, send)
    return abs(second) > CERTAIN and (first > 0) == (second > 0)


def deviation(args, probes, seed, limit, send):
    """Distance of the attack on isolated tenants from chance, in standard deviations of chance."""
    sigma = (probes + 1) ** 0.5 / (3**0.5 * probes)
    area = attack(args, "isolated", probes, seed, send)
    found = 0.5 + (limit + ALMOST_ALWAYS) * sigma
    print(f"isolated: AUC {area:.3f} in {probes} probes, chance is 0.5 +- {limit * sigma:.3f}; of {found:.3f} it would be beyond in 999 of 1,000 runs")
    return (area - 0.5) / sigma


def attack(args, share, probes, seed, send, victim="victim"):
    """The AUC of one attack on a fresh server, on what a tenant sends by `send`."""
    rng = random.Random(f"{seed} {share}")
    flags = ["-m", args.model] if args.model else []
    with tempfile.TemporaryDirectory() as folder:
        file = tenants_file(pathlib.Path(folder) / "tenants.toml", share)
        flags += ["--tenants", file, "--threads", args.threads, "--cache-ram", "256MiB"]
        flags += fleet_flags(pathlib.Path(folder)) if args.fleet else ["--cache-disk", f"{folder}/cache"]
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(Server(*flags)) for _ in range(1 + args.fleet)]
            letters = args.letters if send is ask else COUNTED_LETTERS
            one_probe = lambda hit: probe(servers, lambda: text(rng, letters), hit, send, victim)
            for _ in range(10):  # the first ones warm the machine up
                one_probe(hit=False)
            cases = [i % 2 == 0 for i in range(probes)]
            rng.shuffle(cases)
            times = {True: [], False: []}
            for hit in cases:
                times[hit].append(one_probe(hit))
    return auc(times[True], times[False])


def tenants_file(path, share):
    digest = lambda key: hashlib.sha256(key.encode()).hexdigest()
    path.write_text("".join(f'[tenant.{name}]\nkeys = ["sha256:{digest(name)}"]\nshare = "{share}"\n' for name in ("victim", "attacker")))
    path.chmod(0o600)
    return path


def fleet_flags(folder):
    """What makes two servers nodes that write all they compute to one store; each has no disk of its own."""
    key = folder / "fleet.key"
    key.write_text("5a" * 32)
    key.chmod(0o600)
    store = ["--cache-remote", f"file://{folder}/shared", "--cache-remote-key", key, "--cache-remote-write", "all"]
    return [*store, "--cache-disk", "off"]


def probe(servers, new_text, hit, send, victim):
    """Seconds to the answer to the attacker's guess, at the last server; the victim has sent the same to the first one
    before if `hit`."""
    guess, other = new_text(), new_text()
    send(servers[0], victim, guess if hit else other)
    if len(servers) > 1:
        time.sleep(WRITTEN_SECONDS)
    server = servers[-1]
    started = time.perf_counter()
    send(server, "attacker", guess)
    return time.perf_counter() - started


def text(rng, letters):
    """Random words."""
    words, length = [], 0
    while length < letters:
        words.append("".join(rng.choices(string.ascii_lowercase, k=rng.randrange(3, 9))))
        length += len(words[-1]) + 1
    return " ".join(words)


def ask(server, key, prompt):
    body = dict(prompt=prompt, max_tokens=1, temperature=0, ignore_eos=True)
    answer = server.post("/v1/completions", body, Authorization=f"Bearer {key}")
    assert answer.status == 200, answer.text


def count(server, key, prompt):
    body = dict(messages=[dict(role="user", content=prompt)])
    answer = server.post("/v1/chat/completions/input_tokens", body, Authorization=f"Bearer {key}")
    assert answer.status == 200, answer.text


def auc(hits, misses):
    """How often a hit is faster than a miss; ties count half."""
    misses = sorted(misses)
    slower = lambda t: len(misses) - (bisect.bisect_left(misses, t) + bisect.bisect_right(misses, t)) / 2
    return sum(map(slower, hits)) / (len(hits) * len(misses))


if __name__ == "__main__":
    main()
