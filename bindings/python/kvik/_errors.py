"""Errors of calls, by what a program can do about them."""
from __future__ import annotations

import contextlib
import errno
from typing import Any, Iterator

from . import _native


class Error(Exception):
    """Error of a call. The message says what is wrong and what helps."""


class InvalidArgumentError(Error, ValueError):
    """An argument has a value that the call does not accept."""


class ModelError(Error):
    """The model cannot be read or used."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """There is no model at the path, or none of the name."""

    def __init__(self, path: str, reason: str = "there is no such file or directory; `kvik list` has models by name"):
        super().__init__(errno.ENOENT, reason, path)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled by its own arguments: `OSError` would give those of an `OSError`.
        return type(self), (self.filename, self.strerror), self.__dict__


class NoTemplateError(ModelError):
    """The model has no chat template for a chat."""


class OutOfMemoryError(Error):
    """The memory or the sizes cannot be provided."""


class DiskError(Error):
    """The directory on disk cannot be used."""


class RequestError(Error):
    """The engine refused the request, or the request failed."""


class PromptTooLongError(RequestError):
    """The prompt does not fit the context."""


class OverBudgetError(RequestError):
    """The prompt does not fit the budget of keys and values, or not in addition to pinned prompts."""


class TooManyKeptError(RequestError):
    """Pinned prompts would exceed their limit."""


class ConversationError(RequestError):
    """The conversation does not exist, or cannot be read or changed in this way."""


class BusyError(RequestError):
    """Too many requests wait, or another call is changing the conversation."""


class ClosedError(Error):
    """The model is closed."""


class InternalError(Error):
    """An internal failure. Other calls are not affected."""


_KINDS: dict[type[BaseException], type[Error]] = {
    _native.KvikError.InvalidArgument: InvalidArgumentError,
    _native.KvikError.Model: ModelError,
    _native.KvikError.NoTemplate: NoTemplateError,
    _native.KvikError.Memory: OutOfMemoryError,
    _native.KvikError.Disk: DiskError,
    _native.KvikError.PromptTooLong: PromptTooLongError,
    _native.KvikError.OverBudget: OverBudgetError,
    _native.KvikError.TooManyKept: TooManyKeptError,
    _native.KvikError.Conversation: ConversationError,
    _native.KvikError.Busy: BusyError,
    _native.KvikError.Request: RequestError,
    _native.KvikError.Closed: ClosedError,
    _native.KvikError.Internal: InternalError,
}


@contextlib.contextmanager
def raised_as_own() -> Iterator[None]:
    """Converts the errors of the native module to those of this package."""
    try:
        yield
    except _native.KvikError as error:
        raise _KINDS[type(error)](str(error)) from None
    except UnicodeEncodeError as error:
        surrogate = error.object[error.start : error.end]
        raise InvalidArgumentError(f"a text has {surrogate!r} at {error.start}, which is no character of UTF-8") from None
    except _native.InternalError as error:
        # A panic that the library did not convert.
        raise InternalError(str(error)) from None
