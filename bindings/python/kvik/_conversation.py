"""Stored conversations, with summaries beyond the context."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _native
from ._answer import Answer
from ._errors import raised_as_own
from ._guesses import no_attribute
from ._types import AnswerOptions, Message, Messages, native_messages, native_options, own_message

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Remembered:
    """The summary of a conversation's older messages."""

    summary: str
    """Text of the newest summary."""
    messages: range
    """The messages that it covers."""
    updates: int
    """Number of summaries in the series that led to this one, itself included."""
    corrected: bool
    """True if the text was corrected by the program."""


class Conversation:
    """A stored conversation. Any number of threads may use it; only one at a time can change it. A turn sends only new
    messages: it reads a summary of old ones, recent ones verbatim, and those of the others that match the question.
    """

    def __init__(self, handle: _native.ConversationHandle, reference: str, model: object):
        self._handle = handle
        self._reference = reference
        # A model without references is closed, after which calls fail.
        self._model = model

    def __repr__(self) -> str:
        return f"Conversation({self._reference!r})"

    def say(self, messages: Messages, **options: Unpack[AnswerOptions]) -> Answer:
        """Sends a text or messages, and answers them. Question and answer are stored together when the answer has ended; a
        turn that is cancelled, dropped or fails stores nothing."""
        with raised_as_own():
            return Answer(self._handle.say(native_messages(messages), native_options(options, "say")), self._model)

    def info(self) -> _native.ConversationInfo:
        """Metadata of the conversation."""
        with raised_as_own():
            return self._handle.info()

    def messages(self) -> list[Message]:
        """Messages of the conversation."""
        with raised_as_own():
            return [own_message(message) for message in self._handle.messages()]

    def remembered(self) -> Remembered | None:
        """The summary of its older messages, if there is one."""
        with raised_as_own():
            native = self._handle.remembered()
        return None if native is None else _own(native)

    def correct(self, summary: str) -> Remembered:
        """Replaces the text of its newest summary; the next turn reads the new text."""
        with raised_as_own():
            return _own(self._handle.correct(summary))

    def take_back(self, start: int) -> None:
        """Removes the messages from this index on, and the summaries that cover any of them."""
        with raised_as_own():
            self._handle.take_back(start)

    def rename(self, name: str) -> None:
        """Renames the conversation."""
        with raised_as_own():
            self._handle.rename(name)
        self._reference = name

    def delete(self) -> None:
        """Deletes the conversation and its summaries."""
        with raised_as_own():
            self._handle.delete()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("Conversation", name)


def _own(native: _native.Remembered) -> Remembered:
    return Remembered(native.summary, range(native._from, native.until), native.updates, native.corrected)
