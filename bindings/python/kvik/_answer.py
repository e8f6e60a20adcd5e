"""An answer while it is made: an iterator of pieces, for threads and for asyncio."""
from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import AsyncIterator, Iterator, List, Union

from . import _native
from ._errors import raised_as_own
from ._types import ToolCall, own_call


@dataclass(frozen=True)
class Piece:
    """A piece of an answer; `str(piece)` is its text."""

    text: str
    """Whole characters."""
    is_reasoning: bool = False
    """Whether the model thinks it before it answers."""
    call: ToolCall | None = None
    """A whole call of a tool, which has no text."""

    def __str__(self) -> str:
        return self.text


class Answer(Iterator[Piece], AsyncIterator[Piece]):
    """An answer while it is made: an iterator over its pieces, with `for` or with `async for`. After the last one
    `report` is there.

    Waiting releases the GIL, and blocks no event loop. It is cancelled by `cancel`, at the end of a `with` or `async with`
    around it, and when it is garbage.
    """

    def __init__(self, handle: _native.AnswerHandle, model: object):
        self._handle = handle
        # A model that nobody holds any more would cancel its answers.
        self._model = model
        self._ready: deque[Piece] = deque()
        self._ended = False
        self._arriving: asyncio.Queue[_Arrived] | None = None

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
            self._take(await self._arrivals().get())
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
        """Ends it at the next step of the model, from any thread. What has arrived by then can still be read."""
        self._handle.cancel()

    @property
    def report(self) -> _native.Report | None:
        """What it took; none before its last piece was read, or if it failed."""
        return self._handle.report() if self._ended else None

    def text(self) -> str:
        """Reads it to its end: the rest of its text, without reasoning."""
        return "".join(piece.text for piece in self if not piece.is_reasoning)

    async def atext(self) -> str:
        """The same for asyncio."""
        return "".join([piece.text async for piece in self if not piece.is_reasoning])

    def _take(self, arrived: _Arrived) -> None:
        self._ended = isinstance(arrived, BaseException) or not arrived
        if isinstance(arrived, BaseException):
            raise arrived
        self._ready.extend(arrived)

    def _arrivals(self) -> asyncio.Queue[_Arrived]:
        """Where a thread leaves what arrives: one for each answer, since those of an executor are few, and answers wait
        for each other."""
        if self._arriving is None:
            self._arriving = asyncio.Queue()
            told = (self._handle, asyncio.get_running_loop(), self._arriving)
            threading.Thread(target=_read, args=told, name="kvik-answer", daemon=True).start()
            # The thread holds the handle, so the end of this object has to be said.
            weakref.finalize(self, self._handle.cancel)
        return self._arriving


_Arrived = Union[List[Piece], BaseException]
"""Pieces that have arrived together, none at the end; or why there are no more."""


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


def _read(handle: _native.AnswerHandle, loop: asyncio.AbstractEventLoop, to: asyncio.Queue[_Arrived]) -> None:
    """Hands all that arrives to a loop, until there is no more, or no loop."""
    while True:
        arrived = _next_batch(handle)
        try:
            loop.call_soon_threadsafe(to.put_nowait, arrived)
        except RuntimeError:
            handle.cancel()
            return
        if isinstance(arrived, BaseException) or not arrived:
            return
