"""kvik in Python: a model in this process, its answers, and the cache that keeps them fast.

    import kvik

    with kvik.Model("model.gguf") as model:
        for piece in model.chat([{"role": "user", "content": "Who are you?"}], max_tokens=64):
            print(piece, end="", flush=True)

Calls that compute release the GIL. Every method may be called from any thread.
"""
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
from ._model import Model
from ._native import (
    ConversationInfo,
    DiskStats,
    Explanation,
    Finish,
    Flushed,
    MemoryOptions,
    MemoryPressure,
    MemoryRead,
    Reason,
    Released,
    Report,
    Stats,
)
from ._records import show_fields
from ._types import AnswerOptions, Embedding, FilePart, KeptState, Message, Prompt, ToolCall
from ._version import __version__

show_fields()

__all__ = [
    "Answer",
    "AnswerOptions",
    "BusyError",
    "ClosedError",
    "Conversation",
    "ConversationError",
    "ConversationInfo",
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
    "NoTemplateError",
    "OutOfMemoryError",
    "OverBudgetError",
    "Piece",
    "Prompt",
    "PromptTooLongError",
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
