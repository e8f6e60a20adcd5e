# Types of what `_native.py` has and the package uses; CI compares the two (mypy's stubtest).
import datetime
import enum
from dataclasses import dataclass

class InternalError(Exception): ...

class KvikError(Exception):
    class InvalidArgument(KvikError): ...
    class Model(KvikError): ...
    class NoTemplate(KvikError): ...
    class Memory(KvikError): ...
    class Disk(KvikError): ...
    class PromptTooLong(KvikError): ...
    class OverBudget(KvikError): ...
    class TooManyKept(KvikError): ...
    class Busy(KvikError): ...
    class Request(KvikError): ...
    class Closed(KvikError): ...
    class Internal(KvikError): ...

class Role(enum.Enum):
    SYSTEM = 0
    USER = 1
    ASSISTANT = 2

class Finish(enum.Enum):
    END = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3

class Reason(enum.Enum):
    COMPLETE = 0
    FIRST_SEEN = 1
    DIVERGED = 2
    WINDOW_DROPPED = 3
    NO_STATE_KEPT = 4
    EVICTED = 5
    EXPIRED = 6
    OTHER_MODEL = 7
    OTHER_KV_FORMAT = 8
    OTHER_TENANT_OR_PRIVATE = 9
    BELOW_MINIMUM = 10
    STILL_COMPUTING = 11
    RETAINED = 12
    POOLED = 13
    LOAD_FAILED = 14
    RECOMPUTE_WAS_CHEAPER = 15

class MemoryPressure(enum.Enum):
    MODERATE = 0
    HIGH = 1
    CRITICAL = 2

@dataclass(kw_only=True)
class Message:
    role: Role
    content: str

class Prompt:
    class TEXT(Prompt):
        def __init__(self, text: str) -> None: ...

    class MESSAGES(Prompt):
        def __init__(self, messages: list[Message]) -> None: ...

class Piece:
    text: str
    def is_reasoning(self) -> bool: ...

@dataclass(kw_only=True)
class ModelOptions:
    kv_bytes: int | None = ...
    kv_format: str | None = ...
    context_tokens: int | None = ...
    threads: int | None = ...
    parallel: int | None = ...
    disk_dir: str | None = ...
    disk_bytes_max: int | None = ...

@dataclass(kw_only=True)
class AnswerOptions:
    max_tokens: int | None = ...
    min_tokens: int = ...
    stop: list[str] = ...
    temperature: float = ...
    top_p: float = ...
    top_k: int = ...
    min_p: float = ...
    repetition_penalty: float = ...
    seed: int = ...
    reasoning: bool | None = ...

@dataclass(kw_only=True)
class Report:
    finish: Finish
    prompt_tokens: int
    cached_tokens: int
    disk_tokens: int
    computed_tokens: int
    generated_tokens: int
    reason: Reason | None
    queued: datetime.timedelta
    prefill: datetime.timedelta
    decode: datetime.timedelta

@dataclass(kw_only=True)
class Explanation:
    prompt_tokens: int
    known_tokens: int
    disk_tokens: int
    reason: Reason
    stopped_at: str | None

@dataclass(kw_only=True)
class Embedding:
    vector: bytes
    prompt_tokens: int
    cached_tokens: int

class KeptState:
    tokens: int
    ram_tokens: int
    disk_tokens: int
    warm: bool
    def is_unknown(self) -> bool: ...
    def is_changed(self) -> bool: ...
    def is_kept(self) -> bool: ...

@dataclass(kw_only=True)
class DiskStats:
    blocks: int
    used_blocks: int
    unwritten_blocks: int

@dataclass(kw_only=True)
class Stats:
    running: int
    waiting: int
    kv_bytes: int
    kv_cached_bytes: int
    kv_running_bytes: int
    kv_free_bytes: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    disk: DiskStats | None

@dataclass(kw_only=True)
class Released:
    evicted_bytes: int
    free_bytes: int

@dataclass(kw_only=True)
class Flushed:
    is_idle: bool
    unwritten_blocks: int

class AnswerHandle:
    def next(self) -> list[Piece]: ...
    def cancel(self) -> None: ...
    def report(self) -> Report | None: ...

class ModelHandle:
    @classmethod
    def open(cls, path: str, options: ModelOptions) -> ModelHandle: ...
    @classmethod
    def open_bytes(cls, bytes: bytes, options: ModelOptions) -> ModelHandle: ...
    @classmethod
    def open_descriptor(
        cls, descriptor: int, offset: int, bytes: int | None, options: ModelOptions
    ) -> ModelHandle: ...
    def generate(self, prompt: Prompt, options: AnswerOptions) -> AnswerHandle: ...
    def embed(self, text: str) -> Embedding: ...
    def count_tokens(self, prompt: Prompt) -> int: ...
    def explain(self, prompt: Prompt) -> Explanation: ...
    def keep_prompt(self, id: str, prompt: Prompt) -> KeptState: ...
    def is_kept(self, id: str, prompt: Prompt) -> KeptState: ...
    def forget_prompt(self, id: str) -> bool: ...
    def context_tokens(self) -> int: ...
    def stats(self) -> Stats: ...
    def on_memory_pressure(self, level: MemoryPressure) -> Released: ...
    def on_background(self) -> Flushed: ...
    def shut_down(self) -> Flushed | None: ...
