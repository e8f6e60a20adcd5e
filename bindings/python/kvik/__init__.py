"""kvik in Python: a model in this process, its answers, and the cache that keeps them fast.

    import kvik

    with kvik.Model("model.gguf") as model:
        for piece in model.chat("Who are you?", max_tokens=64):
            if not piece.is_reasoning:
                print(piece, end="", flush=True)

Calls that compute release the GIL. Every method may be called from any thread.
"""
from typing import TYPE_CHECKING

from ._answer import Answer, Piece
from ._conversation import Conversation, Remembered
from ._errors import (
    BusyError,
    ClosedError,
    ConversationError,
    DiskError,
    Error,
    InternalError,
    InvalidArgumentError,
    ModelError,
    ModelNotFoundError,
    NoTemplateError,
    OutOfMemoryError,
    OverBudgetError,
    PromptTooLongError,
    RequestError,
    TooManyKeptError,
)
from ._guesses import no_attribute as _no_attribute
from ._model import Model
from ._native import (
    ConversationInfo,
    CountSetting,
    DiskStats,
    Explanation,
    Finish,
    Flushed,
    MemoryOptions,
    MemoryPressure,
    MemoryRead,
    ModelSampling,
    RealSetting,
    Reason,
    Released,
    Report,
    Stats,
)
from ._records import complete_records
from ._types import AnswerOptions, Embedding, FilePart, KeptState, Message, Prompt, ToolCall
from ._version import __version__

complete_records()

if not TYPE_CHECKING:

    def __getattr__(name):
        raise _no_attribute("kvik", name)


__all__ = [
    "Answer",
    "AnswerOptions",
    "BusyError",
    "ClosedError",
    "Conversation",
    "ConversationError",
    "ConversationInfo",
    "CountSetting",
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
    "MemoryOptions",
    "MemoryPressure",
    "MemoryRead",
    "Message",
    "Model",
    "ModelError",
    "ModelNotFoundError",
    "ModelSampling",
    "NoTemplateError",
    "OutOfMemoryError",
    "OverBudgetError",
    "Piece",
    "Prompt",
    "PromptTooLongError",
    "RealSetting",
    "Reason",
    "Released",
    "Remembered",
    "Report",
    "RequestError",
    "Stats",
    "TooManyKeptError",
    "ToolCall",
    "__version__",
]
