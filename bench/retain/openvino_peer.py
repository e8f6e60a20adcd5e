"""OpenVINO GenAI's continuous batching pipeline, with its cache eviction, as an engine under measurement.

A retention text is `MODE:TOKENS` and then its other settings, as `norm_sum:256,recent=64,crush=2,anchor=mean`:
the tokens are `max_cache_size` less the blocks that KVCrush keeps on top, so that equal numbers are equal memory.
"""
from contextlib import contextmanager
from dataclasses import dataclass

from openvino_cases import ANSWER_TOKENS, answer_text, conversations, end_ids

BLOCK = 32  # positions of a block of its CPU plugin


@dataclass(frozen=True)
class Eviction:
    """The settings of a `CacheEvictionConfig`, sizes in tokens."""

    mode: str
    tokens: int
    start: int = 32
    recent: int = 64
    window: int = 8
    rotate: bool = False
    crush: int = 0
    """blocks that KVCrush keeps"""
    anchor: str = "mean"

    @classmethod
    def parse(cls, text):
        head, *options = text.split(",")
        mode, tokens = head.split(":")
        return cls(mode, int(tokens), **dict(map(option, options)))

    def config(self):
        import openvino_genai as genai

        crush = genai.KVCrushConfig(self.crush, getattr(genai.KVCrushAnchorPointMode, self.anchor.upper())) if self.crush else None
        size, mode = self.tokens - self.crush * BLOCK, getattr(genai.AggregationMode, self.mode.upper())
        return genai.CacheEvictionConfig(self.start, self.recent, size, mode, self.rotate, self.window, crush)


def option(text):
    """`rotate`, `anchor=NAME` or `name=number` as a field and its value."""
    name, _, value = text.partition("=")
    if name == "rotate":
        return name, True
    return (name, value) if name == "anchor" else (name, int(value))


class OpenVino:
    """The pipeline on one model file."""

    name = "OpenVINO GenAI"

    def __init__(self, model, threads, kv="f16", prefix_caching=False):
        self.model, self.threads, self.kv, self.prefix_caching = model, threads, kv, prefix_caching
        self.bytes_per_block = None

    @contextmanager
    def open(self, retain, pool_bytes):
        """A pipeline whose blocks take at most so many bytes."""
        yield Pipeline(self.pipeline(retain, max(1, pool_bytes // self.block_bytes())))

    def pipeline(self, retain, blocks):
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks, scheduler.max_num_batched_tokens, scheduler.max_num_seqs = blocks, 2048, 256
        scheduler.enable_prefix_caching = self.prefix_caching
        if retain:
            scheduler.use_cache_eviction, scheduler.cache_eviction_config = True, Eviction.parse(retain).config()
        properties = {"KV_CACHE_PRECISION": self.kv, "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": self.threads}
        return genai.ContinuousBatchingPipeline(str(self.model), scheduler, "CPU", properties)

    def block_bytes(self):
        """What one block takes, as a pipeline of a known number of blocks reports."""
        if self.bytes_per_block is None:
            blocks = 64
            probe = Pipeline(self.pipeline("", blocks))
            probe.answer(conversations(1)[0])
            self.bytes_per_block = probe.pipeline.get_metrics().kv_cache_size_in_bytes // blocks
        return self.bytes_per_block

    def version(self):
        import openvino_genai as genai

        return f"OpenVINO GenAI {genai.__version__}"


class Pipeline:
    """A pipeline that answers."""

    def __init__(self, pipeline):
        self.pipeline, self.requests = pipeline, 0

    def answer(self, case):
        """The text of a case's answer, or None where the pool does not hold it."""
        generated, _ = self.generate([case], ANSWER_TOKENS, stop=True)
        return answer_text(generated[0]) if generated[0] else None

    def together(self, cases, limit):
        """The texts behind all cases at once, None where the pool did not hold one, and how many generated at each step."""
        generated, running = self.generate(cases, limit)
        return [answer_text(tokens) if tokens else None for tokens in generated], running

    def reach(self, case, limit):
        """How many tokens follow this case before the pool is full."""
        return len(self.generate([case], limit)[0][0])

    def generate(self, cases, limit, stop=False):
        """The ids generated behind each case, and how many sequences generated at each step."""
        handles = [self.add(case.tokens, limit, stop) for case in cases]
        generated, running = [[] for _ in handles], []
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            new = [read(handle) for handle in handles]
            for tokens, more in zip(generated, new):
                tokens += more
            running.append(sum(map(bool, new)))
        return generated, running

    def add(self, tokens, limit, stop):
        import numpy
        import openvino
        import openvino_genai as genai

        config = genai.GenerationConfig()
        config.do_sample, config.max_new_tokens, config.ignore_eos = False, limit, not stop
        if stop:
            config.stop_token_ids = set(end_ids())
        self.requests += 1
        return self.pipeline.add_request(self.requests, openvino.Tensor(numpy.array([tokens], numpy.int64)), config)


def read(handle):
    """The ids that a request generated since it was last read."""
    tokens = []
    while handle.can_read():
        for output in handle.read().values():
            tokens += output.generated_ids
    return tokens
