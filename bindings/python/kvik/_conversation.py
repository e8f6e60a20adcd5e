"""Conversations that are kept, and remembered beyond the context."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import _native
from ._answer import Answer
from ._errors import raised_as_own
from ._types import AnswerOptions, Message, Messages, native_messages, native_options, own_message

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Remembered:
    """What is remembered of a conversation beyond its recent messages."""

    summary: str
    """The newest summary."""
    messages: range
    """The messages that it covers."""
    updates: int
    """Summaries that it was made from, itself included."""
    corrected: bool
    """Whether somebody who knows better has said it."""


class Conversation:
    """A conversation that is kept, for any number of threads; one at a time changes it. A turn says only what is new: it
    reads a summary of what was said long ago, recent messages as they were said, and what of the others fits the question.
    """

    def __init__(self, handle: _native.ConversationHandle, model: object):
        self._handle = handle
        # It is at rest when its model is closed, which a model that nobody holds is.
        self._model = model

    def say(self, messages: Messages, **options: Unpack[AnswerOptions]) -> Answer:
        """Says something, a text or messages, and answers it. Question and answer are written down together when the answer has ended; one
        that is cancelled, dropped or fails leaves nothing behind."""
        with raised_as_own():
            return Answer(self._handle.say(native_messages(messages), native_options(options)), self._model)

    def info(self) -> _native.ConversationInfo:
        """What is known of it without reading it."""
        with raised_as_own():
            return self._handle.info()

    def messages(self) -> list[Message]:
        """What was said in it."""
        with raised_as_own():
            return [own_message(message) for message in self._handle.messages()]

    def remembered(self) -> Remembered | None:
        """What is remembered of it beyond its recent messages, if anything."""
        with raised_as_own():
            native = self._handle.remembered()
        return None if native is None else _own(native)

    def correct(self, summary: str) -> Remembered:
        """From now on its newest summary says this, which its next turn is told."""
        with raised_as_own():
            return _own(self._handle.correct(summary))

    def take_back(self, start: int) -> None:
        """Takes back the messages from this index on, and what is remembered of them."""
        with raised_as_own():
            self._handle.take_back(start)

    def rename(self, name: str) -> None:
        """Gives it another name."""
        with raised_as_own():
            self._handle.rename(name)

    def delete(self) -> None:
        """Deletes it, and all that is remembered of it."""
        with raised_as_own():
            self._handle.delete()


def _own(native: _native.Remembered) -> Remembered:
    return Remembered(native.summary, range(native._from, native.until), native.updates, native.corrected)
