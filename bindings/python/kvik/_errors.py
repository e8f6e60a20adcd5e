"""Why a call failed, by what a program can do about it."""
from __future__ import annotations

import contextlib
import errno
from typing import Iterator

from . import _native


class Error(Exception):
    """Why a call failed. The message says what was wrong and what helps."""


class InvalidArgumentError(Error, ValueError):
    """An argument is none that the call takes."""


class ModelError(Error):
    """The model cannot be read or used."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """There is nothing where the model should be."""

    def __init__(self, path: str):
        super().__init__(errno.ENOENT, "there is no model; `kvik pull` fetches one, and `kvik show NAME` says where it is", path)


class NoTemplateError(ModelError):
    """A chat was asked for, and the model has no chat template."""


class OutOfMemoryError(Error):
    """The memory or the sizes asked for cannot be had."""


class DiskError(Error):
    """The directory on disk cannot be used."""


class RequestError(Error):
    """The engine refused the request, or the request failed."""


class PromptTooLongError(RequestError):
    """The prompt does not fit the context."""


class OverBudgetError(RequestError):
    """The prompt does not fit the budget of keys and values, or not beside kept prompts."""


class TooManyKeptError(RequestError):
    """Kept prompts would take more than they may, or there are as many as there may be."""


class ConversationError(RequestError):
    """There is no such conversation, or it cannot be read or changed so."""


class BusyError(RequestError):
    """As many requests wait as may, or somebody else changes the conversation."""


class ClosedError(Error):
    """The model is closed."""


class InternalError(Error):
    """Something failed inside. Other calls go on."""


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
    """What the native module raises becomes an error of this one."""
    try:
        yield
    except _native.KvikError as error:
        raise _KINDS[type(error)](str(error)) from None
    except _native.InternalError as error:
        # A panic that the library itself did not make an error.
        raise InternalError(str(error)) from None
