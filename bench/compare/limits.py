"""What a machine allows at most: bytes over the bandwidth it was measured to have, operations over its peaks.

Peaks are those of kvik's `kernels` example, measured in the minutes of the comparison, with as many threads. Of a prompt the
products of layers and attention count, each at the peak of the instruction that computes it; of decode what is read once, or
the products where those take longer. Norms, quantising and all that moves between cores count nothing, so nobody gets there.
"""
import json

from programs import run
from works import PREFILL

# Bytes of a weight, and the peak at which it is multiplied.
TYPES = {"f16": (2, "floats"), "bf16": (2, "bfloats"), "q14_0": (14 / 8 + 2 / 32, "shorts"), "q8_0": (34 / 32, "bytes"),
         "q4_0": (18 / 32, "bytes"), "q4_k_m": (None, "bytes")}  # fmt: skip
# Bytes of a number in the cache, its scale included, and the peak of attention over it.
KV = {"f16": (2, "floats"), "bf16": (2, "bfloats"), "q8": (8.5 / 8, "shorts"), "q5": (5.125 / 8, "shorts"), "q4": (4.125 / 8, "shorts")}


def peaks(kernels, threads):
    """Rates of the machine by name, a second; none where the program is not there. Some may be missing."""
    if not kernels.exists():
        return {}
    return json.loads(run([kernels, "--peaks", threads]))


def limit(work, shape, model_bytes, peaks):
    """Tokens a second that no engine can pass with these numbers; none where a peak is not known."""
    case = work.case
    seconds = (prefill if work.kind == PREFILL else decode)(work, shape, model_bytes, peaks)
    return seconds and work.tokens * (1 if work.kind == PREFILL else case.sequences) / seconds


def prefill(work, shape, _, peaks):
    """Seconds of a prompt."""
    multiply, attend = peaks.get(weights(work)[1]), peaks.get(KV[work.case.kv][1])
    if not multiply or not attend:
        return None
    seen = work.tokens * (work.case.depth + work.tokens / 2)
    attention = 4 * shape.layers * shape.heads * shape.head_dim * seen
    return 2 * shape.layer_weights * work.tokens / multiply + attention / attend


def decode(work, shape, model_bytes, peaks):
    """Seconds of all tokens of an answer; sequences share their prompt, which is read once."""
    if "read" not in peaks:
        return None
    case, (size, peak) = work.case, weights(work)
    read = shape.weights * size if case.made or not model_bytes else model_bytes
    of_cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * KV[case.kv][0]
    own = case.sequences * work.tokens / 2
    reading = (read + of_cache * (case.depth + own)) / peaks["read"]
    multiplying = 2 * shape.weights * case.sequences / peaks[peak] if peaks.get(peak) else 0
    return work.tokens * max(reading, multiplying)


def weights(work):
    """Bytes of a weight and its peak. Half floats become codes of 14 bits where nothing else is asked for."""
    stored = "q14_0" if work.case.weights == "f16" else work.case.weights
    return TYPES[work.case.made or stored]
