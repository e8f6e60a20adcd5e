"""An answer while it is generated: an iterator of pieces, for threads and for asyncio."""
from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, AsyncIterator, Iterator, List, Union

from . import _native
from ._errors import raised_as_own
from ._guesses import no_attribute
from ._types import ToolCall, own_call


@dataclass(frozen=True)
class Piece:
    """A piece of an answer; `str(piece)` is its text."""

    text: str
    """Whole characters."""
    is_reasoning: bool = False
    """True if it is reasoning before the answer."""
    call: ToolCall | None = None
    """A complete tool call, which has no text."""

    def __str__(self) -> str:
        return self.text

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("Piece", name)


class Answer(Iterator[Piece], AsyncIterator[Piece]):
    """An answer while it is generated: an iterator over its pieces, with `for` or with `async for`. After the last piece
    it has a `report`.

    Waiting releases the GIL, and blocks no event loop. The answer is cancelled by `cancel`, at the end of a `with` or
    `async with` around it, and when it is collected as garbage.
    """

    def __init__(self, handle: _native.AnswerHandle, model: object):
        self._handle = handle
        # A model without references is closed, which cancels its answers.
        self._model = model
        self._ready: deque[Piece] = deque()
        self._ended = False
        self._arriving: _Arriving | None = None

    def __repr__(self) -> str:
        report = self.report
        if report is not None:
            return f"Answer(finish={report.finish.name}, generated_tokens={report.generated_tokens})"
        return "Answer(failed)" if self._ended else "Answer(not read to its end; `.text()` reads the rest)"

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> Piece:
        """Waits for the next piece."""
        if not self._ready and not self._ended:
            if self._arriving is not None:
                raise RuntimeError("this answer is read by `async for`, which a thread of its own does")
            self._take(_next_batch(self._handle))
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> Piece:
        """Waits for the next piece, and lets other tasks run meanwhile."""
        if not self._ready and not self._ended:
            arriving = self._arrivals()
            async with arriving.turn:
                # Another task may have read what arrived, or the end.
                if not self._ready and not self._ended:
                    self._take(await arriving.next())
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Ends the answer at the next step of the model, from any thread. Pieces that have arrived can still be read."""
        self._handle.cancel()

    @property
    def report(self) -> _native.Report | None:
        """The report; `None` before the last piece was read, and if the answer failed."""
        return self._handle.report() if self._ended else None

    def text(self) -> str:
        """Reads the answer to its end, and returns the rest of its text, without reasoning."""
        return "".join(piece.text for piece in self if not piece.is_reasoning)

    async def atext(self) -> str:
        """As `text`, for asyncio."""
        return "".join([piece.text async for piece in self if not piece.is_reasoning])

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("Answer", name)

        def __getitem__(self, key: object) -> Any:
            raise TypeError("an answer is an iterator of pieces: `.text()` reads the whole text, `.report` has its counts")

    def _take(self, arrived: _Arrived) -> None:
        self._ended = isinstance(arrived, BaseException) or not arrived
        if isinstance(arrived, BaseException):
            raise arrived
        self._ready.extend(arrived)

    def _arrivals(self) -> _Arriving:
        if self._arriving is None:
            self._arriving = _Arriving(self._handle)
            # The thread holds the handle, so dropping this object does not cancel the answer by itself.
            weakref.finalize(self, self._arriving.give_up)
        return self._arriving


_Arrived = Union[List[Piece], BaseException]
"""Pieces that have arrived together, an empty list at the end; or the error that ended the answer."""


class _Arriving:
    """Pieces from a thread of the answer's own: an executor has few threads, and answers would wait for each other.

    The thread reads when it is asked to: the call that reads the end of a conversation's answer stores the turn, so it must
    not run ahead of the program, which may still cancel.
    """

    def __init__(self, handle: _native.AnswerHandle):
        self.turn = asyncio.Lock()
        """Held by the task that waits for pieces."""
        self._handle = handle
        self._arrived: asyncio.Queue[_Arrived] = asyncio.Queue()
        self._wishes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._is_asked = False
        told = (handle, asyncio.get_running_loop(), self._wishes, self._arrived)
        threading.Thread(target=_read, args=told, name="kvik-answer", daemon=True).start()

    async def next(self) -> _Arrived:
        """Waits for pieces; those that a task was cancelled in waiting for come first."""
        if not self._is_asked:
            self._is_asked = True
            self._wishes.put(True)
        arrived = await self._arrived.get()
        self._is_asked = False
        return arrived

    def give_up(self) -> None:
        """Cancels the answer, and ends the thread."""
        self._handle.cancel()
        self._wishes.put(False)


def _next_batch(handle: _native.AnswerHandle) -> _Arrived:
    try:
        with raised_as_own():
            return [_own_piece(piece) for piece in handle.next()]
    except Exception as error:
        return error


def _own_piece(piece: _native.Piece) -> Piece:
    if piece.is_call():
        return Piece("", call=own_call(piece.call))
    return Piece(piece.text, piece.is_reasoning())


def _read(
    handle: _native.AnswerHandle,
    loop: asyncio.AbstractEventLoop,
    wishes: queue.SimpleQueue[bool],
    to: asyncio.Queue[_Arrived],
) -> None:
    """Passes pieces to an event loop, a batch for each wish, until the answer or the loop ends."""
    while wishes.get():
        arrived = _next_batch(handle)
        try:
            loop.call_soon_threadsafe(to.put_nowait, arrived)
        except RuntimeError:
            handle.cancel()
            return
        if isinstance(arrived, BaseException) or not arrived:
            return
