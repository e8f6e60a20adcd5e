"""Puts bugs back, one at a time: the simulator must find each within 1,000 seeds, or the test that is named beside it. Those of
tests/real need KVIK_REAL_MODEL and a Python with pytest.

    python3 tests/mutants.py                 all of them; about half a minute each
    python3 tests/mutants.py --only ttl      those whose name contains this
    python3 tests/mutants.py --check         only whether each text is still in its file; CI does this

A test that cannot fail proves nothing, nor does one that fails anyway: each passes first without any mutant. Nearly all of
these are bugs that kvik once had. The sources are copied, so the checkout is not touched; a text that is no longer in its
file is an error, so that the list stays true.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEEDS = 1000
# A test that takes longer hangs.
SECONDS_MAX = 900

SCHEDULE = "crates/kvik-engine/src/schedule/"
CACHE = "crates/kvik-cache/src/"

# Package, program (`lib`: the tests beside its code), and where the program has more, its module.
SIMULATOR = ("kvik-engine", "simulator")
# A folder of tests beside a server, and a file of it. Its model is that of KVIK_REAL_MODEL.
REAL = "tests/real"

# Name, file, the current text, the text with the bug; and the test, where that is not the simulator.
MUTANTS = [
    ("a ttl is set at the first write and a use does not extend it", CACHE + "tier/lifetime.rs",
     "use_.expires_s = later(expires_s, use_.expires_s);", "let _ = expires_s;"),
    ("the disk is asked once to release blocks", SCHEDULE + "tiers.rs",
     "|| (jobs.running.len() <= 1 && end_all_loads(jobs, prefixes))", ""),
    ("what begins alike is brought back for what was dropped", SCHEDULE + "disk/prefetch.rs",
     "let whole = found.tokens == chain.tokens.len() && found.slots.len() == chain.slots.len();",
     "let whole = found.slots.len() == chain.slots.len();"),
    ("choices of a private request publish", SCHEDULE + "growth.rs",
     "ram.copy(PrivateCopy { parent, id, namespace, positions }, running, runner)",
     "let _ = PrivateCopy { parent, id, namespace, positions };\n"
     "ram.fork(parent, id, &child.tokens[..positions], runner)"),
    ("a derived namespace in use is forgotten", SCHEDULE + "tenants/public.rs",
     "None => self.retired.extend(old.derived),",
     "None => old.derived.into_iter().for_each(|derived| { cache.drop_derived(derived); }),"),
    ("a pin that is taken back while it is computed returns", SCHEDULE + "kept.rs",
     "sequence.lifetime.pin &= !withdraws(sequence);", "let _ = (sequence, &withdraws);"),
    ("one panic fails the whole batch", SCHEDULE + "compute.rs",
     "1 => Err(error.clone()),", "1.. => Err(error.clone()),"),
    ("what replaces a partial block is kept no longer than itself", CACHE + "table.rs",
     "radix.keep_as(self.lease, asked);", "let _ = asked;"),
    ("a block that is not worth its reading is not explained", SCHEDULE + "disk/find.rs",
     "self.trim(&mut found)).then_some(StopReason::RecomputeWasCheaper);",
     "self.trim(&mut found)).then_some(StopReason::RecomputeWasCheaper).and(None::<StopReason>);"),
    ("what a window needs is not kept at the end of an answer", CACHE + "cache/life.rs",
     # No answer is another without it, but more of it is computed again.
     "self.add_last_place(seq, tokens.len());", "let _ = tokens;", ("kvik-cache", "it", "auxiliary::")),
    ("a part is spilled as if it were there", SCHEDULE + "disk/spill.rs",
     "lacks_part: !self.cache.has_part(block),", "lacks_part: false,"),
    ("a load without its state keeps one", SCHEDULE + "disk/load.rs",
     "cache.spoil_state(load.seq);", "let _ = &cache;"),
    ("states are left where a panic found them", SCHEDULE + "compute.rs",
     "cache.spoil_state(id);", "let _ = id;"),
    ("what was drawn of a draft is not taken into the state", SCHEDULE + "compute.rs",
     "states.into_iter().for_each(|(state, positions)| runner.settle_state(state, positions));",
     "let _ = (states, &mut *runner);"),
    ("a load that ends early publishes what it has not read", SCHEDULE + "disk/load.rs",
     "cache.finish(load.seq, load.ready_tokens());", "cache.finish(load.seq, &load.tokens);"),
    ("what is computed behind a drop is published", SCHEDULE + "sequence.rs",
     "Sharing::Namespace(namespace) if !self.has_forgotten() => Some(namespace),",
     "Sharing::Namespace(namespace) => Some(namespace),"),
    ("a kept prefix is found by those who ask for another policy", SCHEDULE + "namespaces.rs",
     "let mut policy = retention.to_string();", "let mut policy = String::new();"),
    ("the background fails while others hold blocks to read into", SCHEDULE + "start.rs",
     "if jobs.running.is_empty() && !jobs.somebody_gives_way(index) {", "if jobs.running.is_empty() {"),
    ("names that a panic has lost stay in the cache", SCHEDULE + "recovery.rs",
     "contain(|| prefixes.ram.cache.abandon_all())",
     "contain(|| jobs.running.iter().for_each(|sequence| prefixes.ram.cache.abandon(sequence.id)))"),
    ("what was observed before a panic is all that counts", SCHEDULE + "compute.rs",
     "Ok(_) if watched.contains(&alone.spans[0].index) => restarts.push(id),",
     "Ok(_) if watched.len() > spans => restarts.push(id),"),
    ("the report says what the choice kept that forgot last", SCHEDULE + "results.rs",
     "if sequence.choice == 0 && !report", "if sequence.choice < u32::MAX && !report"),
    ("what a policy keeps is fetched as if it were the prompt", SCHEDULE + "disk/lookup.rs",
     "if found <= local || !shares {", "if found <= local || !(shares || true) {"),
    ("a fetch that makes way is said to have failed", SCHEDULE + "disk/load.rs",
     "let is_over = |part: &RemoteLoad| part.ended || now >= self.deadline;", "let is_over = |_: &RemoteLoad| now == now;"),
    # These kvik never had; they are what would be worst of the queue and of a store that nodes share.
    ("who was overtaken is overtaken for ever", SCHEDULE + "queue.rs",
     "const OVERTAKEN_MAX: u32 = 8;", "const OVERTAKEN_MAX: u32 = u32::MAX;", ("kvik-engine", "lib", "schedule::queue::")),
    ("the store is asked for what is nobody's", SCHEDULE + "disk/lookup.rs",
     "Chain { owner: roots.owner, blocks: names }", "Chain { owner: 0, blocks: names }"),
    ("what was deleted stays in the store", SCHEDULE + "disk/deleted.rs",
     "remote.store.forget(roots.owner, &ends);", "let _ = (&mut remote.store, roots.owner);"),
    ("a fetched block is written where another one is", SCHEDULE + "disk/load.rs",
     "write_needed(self.seq, at, bytes, cache, runner);", "write_needed(self.seq, index, bytes, cache, runner);"),
    ("a fetch that nobody waits for goes on", SCHEDULE + "disk/load.rs",
     "remote.store.cancel(remote_part.ticket, now >= load.deadline);",
     "let _ = (remote_part.ticket, now, &remote.store);"),
    ("a lookup is waited for as long as it takes", SCHEDULE + "disk/lookup.rs",
     "None if now >= until => {", "None if now >= until + until => {"),
    # What a model that people run is tried for: each of its checks has one.
    ("digits are tokens in threes", "crates/kvik-text/src/tokenizer/pre_tokenizer.rs",
     '&[r"\\p{N}", GPT2],', '&[r"\\p{N}{1,3}", GPT2],', (REAL, "test_text.py")),
    ("no prompt begins the answer", "crates/kvik-text/src/template/mod.rs",
     '("add_generation_prompt", Variable::Flag(input.add_generation_prompt)),',
     '("add_generation_prompt", Variable::Flag(input.add_generation_prompt && false)),', (REAL, "test_text.py")),
    ("blocks of Q4_1 have no minimum", "crates/kvik-kernels/src/quant/block.rs",
     "(self.d, self.m) = (half_at(bytes, 0), half_at(bytes, 2)),", "(self.d, self.m) = (half_at(bytes, 0), f16::ZERO),",
     (REAL, "test_predictions.py")),
    ("q8 has five bits", "crates/kvik-kernels/src/kv/quantised.rs",
     "const MAGNITUDE_MAX: f32 = 127.0;", "const MAGNITUDE_MAX: f32 = 15.0;", (REAL, "test_predictions.py")),
    ("KVzip's scores are all the same", CACHE + "retain/policies/kvzip.rs",
     "false => head.mass.clone(),", "false => vec![1.0; head.mass.len()],", (REAL, "test_predictions.py")),
    ("a block from disk is written where the first one is", SCHEDULE + "disk/load.rs",
     "write_needed(load.seq, at, &buffer, cache, runner);", "write_needed(load.seq, at.min(load.first), &buffer, cache, runner);",
     (REAL, "test_exact.py")),
    ("the likeliest token is that of the last part", "crates/kvik-text/src/sampler/select.rs",
     "if own > most {", "if own > most || own.is_finite() {", (REAL, "test_chats.py")),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--check", action="store_true", help="build and run nothing")
    args = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if args.only in mutant[0]]
    for name, file, now, *_ in MUTANTS:
        mutated(ROOT, name, file, now, now)
    if args.check:
        print(f"{len(MUTANTS)} mutants can be made")
        return
    if "KVIK_REAL_MODEL" not in os.environ and any(test_of(mutant)[0] == REAL for mutant in chosen):
        sys.exit(f"KVIK_REAL_MODEL names no model, and {REAL} tries nothing without one")
    with tempfile.TemporaryDirectory(prefix="kvik-mutants-") as folder:
        copy = Path(folder) / "kvik"
        # Copies get a new mtime, so that cargo does not take an earlier mutant's build for a fresh one.
        ignored = shutil.ignore_patterns("target", ".git", "node_modules")
        shutil.copytree(ROOT, copy, ignore=ignored, copy_function=shutil.copy)
        for test in dict.fromkeys(map(test_of, chosen)):
            found, _ = run(copy, "nothing", test)
            if found:
                sys.exit(f"{' '.join(test)} fails without any mutant: {found}")
        missed = [mutant[0] for mutant in chosen if not is_found(copy, *mutant)]
    if missed:
        sys.exit("not found: " + "; ".join(missed))


def test_of(mutant):
    return mutant[4] if len(mutant) > 4 else SIMULATOR


def is_found(copy, name, file, now, once, test=SIMULATOR):
    """Whether the test finds this bug."""
    path = copy / file
    text = path.read_text()
    path.write_text(mutated(copy, name, file, now, once))
    found, seconds = run(copy, name, test)
    path.write_text(text)
    print(f"{'found' if found else 'MISSED':<7} {name:<62} {found or '':<12} {seconds:5.0f} s", flush=True)
    return bool(found)


def mutated(checkout, name, file, now, once):
    """The text of a file with this bug."""
    text = (checkout / file).read_text()
    if text.count(now) != 1:
        sys.exit(f"{file} has {text.count(now)} times {now!r}; the mutant {name!r} needs a new text")
    return text.replace(now, once)


def run(copy, name, test):
    """The first seed or test that fails where the sources have this mutant, if any, and the time with building."""
    started, target = time.monotonic(), ROOT / "target" / "mutants"
    environment = {**os.environ, "SEEDS": str(SEEDS), "RUST_BACKTRACE": "0", "CARGO_TARGET_DIR": str(target),
                   "KVIK_BINARY": str(target / "release/kvik")}
    build, tried = commands(test)
    built = subprocess.run(build, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if built.returncode:
        sys.exit(f"with the mutant {name!r} {' '.join(test)} does not build:\n{(built.stdout + built.stderr)[-3000:]}")
    return failure(tried, copy, environment), time.monotonic() - started


def commands(test):
    """What builds a test, and what runs it."""
    package, program, *modules = test
    if package == REAL:
        return (["cargo", "build", "--release", "-q", "-p", "kvik"],
                [sys.executable, "-B", "-m", "pytest", "-q", "-x", "--tb=line", f"{REAL}/{program}"])
    which = ["--lib"] if program == "lib" else ["--test", program]
    cargo = ["cargo", "test", "--release", "-q", "-p", package, *which]
    return [*cargo, "--no-run"], [*cargo, *modules]


def failure(command, copy, environment):
    """The first seed or test that fails, if any."""
    process = subprocess.Popen(command, cwd=copy, env=environment, text=True, start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, _ = process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "a hang"
    if process.returncode:
        failed = re.search(r"seed \d+|\w+(?= --- FAILED| stdout ----)|(?<=::)test_\w+", output)
        return failed.group() if failed else f"status {process.returncode}"
    if not re.search(r"\b[1-9]\d* passed", output):
        sys.exit(f"{' '.join(command)} tries nothing:\n{output[-3000:]}")
    return None


if __name__ == "__main__":
    main()
