"""kvik in Python: a model in this process, its answers, and the cache that keeps them fast.

    import kvik

    with kvik.Model("model.gguf") as model:
        for piece in model.chat([{"role": "user", "content": "Who are you?"}], max_tokens=64):
            print(piece, end="", flush=True)

Calls that compute release the GIL. Every method may be called from any thread.
"""
from ._answer import Answer, Piece
from ._errors import (
    BusyError,
    ClosedError,
    DiskError,
    Error,
    InternalError,
    InvalidArgumentError,
    ModelError,
    NoTemplateError,
    OutOfMemoryError,
    OverBudgetError,
    PromptTooLongError,
    RequestError,
    TooManyKeptError,
)
from ._model import Model
from ._native import (
    DiskStats,
    Explanation,
    Finish,
    Flushed,
    MemoryPressure,
    Reason,
    Released,
    Report,
    Stats,
)
from ._types import AnswerOptions, Embedding, FilePart, KeptState, Message, Prompt

__all__ = [
    "Answer",
    "AnswerOptions",
    "BusyError",
    "ClosedError",
    "DiskError",
    "DiskStats",
    "Embedding",
    "Error",
    "Explanation",
    "FilePart",
    "Finish",
    "Flushed",
    "InternalError",
    "InvalidArgumentError",
    "KeptState",
    "MemoryPressure",
    "Message",
    "Model",
    "ModelError",
    "NoTemplateError",
    "OutOfMemoryError",
    "OverBudgetError",
    "Piece",
    "Prompt",
    "PromptTooLongError",
    "Reason",
    "Released",
    "Report",
    "RequestError",
    "Stats",
    "TooManyKeptError",
]
