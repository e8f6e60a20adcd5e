"""The measurements: the rows of the table, and those that one process measures together."""
from dataclasses import dataclass

PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True)
class Case:
    """The settings of one process: everything about a work except what is timed."""

    weights: str
    depth: int = 0
    """Tokens in the cache before the measurement; shared by the sequences."""
    kv: str = "f16"
    sequences: int = 1
    own_prompts: bool = False
    """Compared with kvik without shared reads instead of the peer."""
    made: str = ""
    """What kvik makes of the weights while it loads them, where that is not what the file has."""

    @property
    def shown_weights(self):
        exactly = self.made == self.weights
        return f"{self.weights} exactly" if exactly else f"{self.weights} as {self.made}" if self.made else self.weights

    @property
    def quantised_kv(self):
        return self.kv.startswith("q")

    @property
    def in_one_process(self):
        """Whether an engine takes all of its samples in a row, since filling the depth takes it minutes.

        At depth 4,096 llama.cpp prefills 11 tok/s into quantised KV.
        """
        return self.depth > 0 and (self.quantised_kv or self.own_prompts)


@dataclass(frozen=True)
class Work:
    """One row of the table: `tokens` of prefill or decode; with several sequences, of decode for each."""

    case: Case
    kind: str
    tokens: int

    @property
    def name(self):
        """How progress shows it and `--rows` finds it."""
        case = self.case
        return f"{case.shown_weights} {self.what} @{case.depth} kv {case.kv}{' own prompts' if case.own_prompts else ''}"

    @property
    def what(self):
        return f"{self.kind} {self.tokens}" + (f" x{self.case.sequences}" if self.case.sequences > 1 else "")


def published():
    """The rows of the table that the project publishes."""
    for weights in ("q8_0", "q4_0", "q4_k_m", "f16", "bf16"):
        yield Work(Case(weights), PREFILL, 512)
    # Half floats are multiplied as codes of 14 bits unless something else is asked for; some peers compute bfloats.
    for made, kv in (("f16", "f16"), ("bf16", "f16"), ("bf16", "bf16")):
        yield Work(Case("f16", made=made, kv=kv), PREFILL, 512)
    # A user's part behind a cached system prompt.
    yield Work(Case("q8_0", depth=190), PREFILL, 32)
    for kv in ("f16", "bf16", "q8"):
        yield Work(Case("q8_0", depth=4096, kv=kv), PREFILL, 512)
    for weights in ("q8_0", "q4_0", "q4_k_m", "f16"):
        yield Work(Case(weights), DECODE, 64)
    yield Work(Case("f16", made="f16"), DECODE, 64)
    for kv in ("f16", "bf16", "q8", "q4"):
        yield Work(Case("q8_0", depth=4096, kv=kv), DECODE, 64)
    for sequences in (3, 4, 16):
        yield Work(Case("q8_0", depth=512, sequences=sequences), DECODE, 32)
    yield Work(Case("q8_0", depth=4096, sequences=16, own_prompts=True), DECODE, 32)


def combined(args):
    """Every combination of the flags: one sequence at every depth, then several on every prefix."""
    for weights in args.weights:
        for kv in args.kv:
            for depth in args.depth:
                case = Case(weights, depth, kv)
                yield from (Work(case, PREFILL, tokens) for tokens in args.prompt if tokens)
                yield from (Work(case, DECODE, tokens) for tokens in args.generate if tokens)
            for sequences in args.sequences:
                for prefix in args.prefix:
                    case = Case(weights, prefix, kv, sequences, args.own_prompts)
                    yield from (Work(case, DECODE, tokens) for tokens in args.generate if tokens)


def by_case(works):
    """Case -> its works, in the order of their first."""
    cases = {}
    for work in works:
        cases.setdefault(work.case, []).append(work)
    return cases
