"""Sends requests as their times say and watches the answers arrive."""
import asyncio
import dataclasses
import json
import time

import aiohttp

from .traffic import body

TIMEOUT_S = 120


@dataclasses.dataclass
class Outcome:
    """What became of a request; times in seconds, those of the run since its start."""

    sent_s: float
    first_s: float = 0.0
    done_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""
    wrong: bool = False
    error: str = ""


async def replay(url, sessions, as_ids=False, events=()):
    """All outcomes of prepared sessions. `events` are (seconds, coroutine function) that happen meanwhile.

    A session asks one thing at a time, as a person does: a turn waits for the answer before it.
    """
    began = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client:
        asked = [asyncio.create_task(_session(client, url, session, as_ids, began)) for session in sessions]
        happening = [asyncio.create_task(_later(began, at_s, what)) for at_s, what in events]
        outcomes = await asyncio.gather(*asked)
        await asyncio.gather(*happening)
    return [outcome for session in outcomes for outcome in session]


async def _later(began, at_s, what):
    await asyncio.sleep(began + at_s - time.monotonic())
    await what()


async def _session(client, url, session, as_ids, began):
    outcomes = []
    for request in session:
        await asyncio.sleep(max(0, began + request.at_s - time.monotonic()))
        outcome = Outcome(sent_s=time.monotonic() - began)
        try:
            await _ask(client, url, request, as_ids, outcome)
            outcome.wrong = outcome.text != request.answer
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            outcome.error = f"{type(error).__name__}: {error}"[:300]
        outcome.done_s = time.monotonic() - began
        outcomes.append(outcome)
    return outcomes


async def _ask(client, url, request, as_ids, outcome):
    prompt = request.tokens if as_ids else request.prompt
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    began, ended = time.monotonic(), False
    async with client.post(f"{url}/v1/completions", json=body(prompt, request.answer_tokens) | streamed) as answer:
        if answer.status != 200:
            raise ValueError(f"{answer.status} {await answer.text()}")
        async for line in answer.content:
            if line.startswith(b"data: {"):
                _read_event(json.loads(line[6:]), outcome, began)
            ended |= line.startswith(b"data: [DONE]")
    if not ended or not outcome.prompt_tokens:
        raise ValueError("the stream broke off")


def _read_event(event, outcome, began):
    if "error" in event:
        raise ValueError(f"an error in the stream: {event['error']}")
    if event["choices"] and not outcome.first_s:
        outcome.first_s = time.monotonic() - began
    outcome.text += "".join(choice["text"] for choice in event["choices"])
    if usage := event.get("usage"):
        outcome.prompt_tokens = usage["prompt_tokens"]
        outcome.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
