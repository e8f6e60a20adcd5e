"""Who waits for a model holds up nobody: neither other threads nor an event loop, nor the end of the program."""
import asyncio
import gc
import subprocess
import sys
import threading
import time

import pytest
from conftest import ENDLESS, MODEL, SMALL

import kvik

TICK_S = 0.001


@pytest.fixture
def model():
    """One that leaves a core to Python, also where there are two."""
    with kvik.Model(MODEL, **SMALL | {"threads": 1}) as opened:
        yield opened


class Ticks:
    """Notes when it was its turn."""

    def __init__(self):
        self.times = []

    def longest_pause(self):
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:]))


class ThreadTicks(Ticks):
    def __enter__(self):
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.tick)
        self.thread.start()
        return self

    def tick(self):
        while not self.ends.is_set():
            self.times.append(time.monotonic())
            time.sleep(TICK_S)

    def __exit__(self, *_):
        self.times.append(time.monotonic())
        self.ends.set()
        self.thread.join()


@pytest.mark.parametrize(
    "ask",
    [
        lambda model, text: model.embed(text),
        lambda model, text: model.keep_prompt("text", text),
        lambda model, text: next(model.generate(text, max_tokens=1)),
    ],
    ids=["embed", "keep_prompt", "next"],
)
def test_other_threads_run_while_one_waits(model, text, ask):
    with ThreadTicks() as ticks:
        started = time.monotonic()
        ask(model, text)
        waited = time.monotonic() - started
    assert waited > 20 * TICK_S, "it takes a while"
    assert ticks.longest_pause() < waited / 2, f"of {waited:.3f} s"


def test_an_event_loop_runs_while_answers_are_made(model, text):
    async def tick(ticks):
        while True:
            ticks.times.append(time.monotonic())
            await asyncio.sleep(TICK_S)

    async def ask():
        ticks = Ticks()
        ticking = asyncio.create_task(tick(ticks))
        ticks.times.append(time.monotonic())
        answer = model.generate(text, max_tokens=2, min_tokens=2)
        pieces = [piece async for piece in answer]
        ticks.times.append(time.monotonic())
        ticking.cancel()
        return ticks, ticks.times[-1] - ticks.times[0], pieces, answer.report

    ticks, waited, pieces, report = asyncio.run(ask())
    assert pieces and report.generated_tokens == 2
    assert waited > 20 * TICK_S, "it takes a while"
    assert ticks.longest_pause() < waited / 2, f"of {waited:.3f} s"


def test_more_answers_than_threads_of_an_executor_are_read_at_once(model):
    async def ask():
        return await asyncio.gather(*(model.generate("Once upon a time", max_tokens=8).atext() for _ in range(100)))

    expect = model.generate("Once upon a time", max_tokens=8).text()
    assert asyncio.run(ask()) == [expect] * 100


def test_a_piece_that_is_waited_for_in_vain_is_not_lost(model, text):
    async def ask():
        answer = model.generate(text, max_tokens=8)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(answer.__anext__(), 0.001)
        return await answer.atext()

    assert asyncio.run(ask()) == model.generate(text, max_tokens=8).text()


def test_tasks_that_read_one_answer_have_all_of_it_together_and_end(model):
    async def read(answer):
        return [piece.text async for piece in answer]

    async def ask():
        answer = model.generate("Once upon a time", max_tokens=24)
        return await asyncio.wait_for(asyncio.gather(*(read(answer) for _ in range(3))), 60)

    expect = "".join(sorted(model.generate("Once upon a time", max_tokens=24).text()))
    assert "".join(sorted("".join(map("".join, asyncio.run(ask()))))) == expect


def test_an_answer_is_read_in_one_way(model):
    async def ask():
        answer = model.generate("Once upon a time", max_tokens=8)
        first = await answer.__anext__()
        with pytest.raises(RuntimeError, match="async for"):
            for _ in range(9):
                next(answer)
        return first.text, await answer.atext()

    asyncio.run(ask())


def test_a_task_that_is_cancelled_cancels_its_answer(model):
    answers = []

    async def read():
        async with model.generate("Once upon a time", **ENDLESS) as answer:
            answers.append(answer)
            async for _ in answer:
                pass

    async def ask():
        task = asyncio.create_task(read())
        while not answers:
            await asyncio.sleep(TICK_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async for _ in answers[0]:
            pass

    asyncio.run(ask())
    assert answers[0].report.finish == kvik.Finish.CANCELLED


def test_an_answer_that_no_task_holds_is_cancelled():
    async def ask(model):
        answer = model.generate("Once upon a time", **ENDLESS)
        await answer.__anext__()
        del answer
        gc.collect()
        assert await model.generate("A letter", max_tokens=4).atext()

    with kvik.Model(MODEL, **SMALL, parallel=1) as model:
        asyncio.run(ask(model))
        assert model.stats().generated_tokens < 1500


def test_closing_ends_an_answer_that_is_awaited(model):
    async def ask():
        answer = model.generate("Once upon a time", **ENDLESS)
        await answer.__anext__()
        await asyncio.to_thread(model.close)
        return [piece async for piece in answer], answer.report

    _, report = asyncio.run(ask())
    assert report.finish == kvik.Finish.CANCELLED


@pytest.mark.parametrize("reads", ["next(answer)", "asyncio.run(answer.__anext__())"])
def test_a_program_ends_although_an_answer_does_not(reads):
    program = (
        "import asyncio, sys, kvik\n"
        f"model = kvik.Model(sys.argv[1], **{SMALL})\n"
        f"answer = model.generate('Once upon a time', **{ENDLESS})\n"
        f"{reads}\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, MODEL], capture_output=True, text=True, timeout=20)
    assert (ended.returncode, ended.stderr) == (0, "")
