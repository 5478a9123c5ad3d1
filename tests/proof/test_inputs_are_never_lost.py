"""Thousands of inputs, edits and retractions at random against a session that works: none is lost, heard twice or late.

Rule: what is expected follows from what callers were told and from the raw log, not from the fold.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from perdure import Agent, Conflict, Guards, Limits, Record, Refused, Run, Runtime, Session, tool
from perdure.context import Inputs
from perdure.core.messages import Text, UserMessage
from perdure.core.specs import Busy
from perdure.events import InputAccepted, InputChanged, ModelCalled, RunStarted
from perdure.plugins import Block, Guardrail, InputMoment
from perdure.ports import ModelRequest, Store
from perdure.stores.memory import MemoryStore
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import check_log, until

IN_MEMORY = 5_000
IN_A_FILE = 600
MOST_WAITING = 12
PATIENCE = 120.0
BUSY: list[Busy] = ["join", "join", "queue", "queue", "queue", "interrupt", "refuse"]


class Crowd:
    """Callers who send, edit and retract, each at its own pace, and remember what they were told."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.runs: dict[int, Run[Any]] = {}
        self.edits: defaultdict[int, list[str]] = defaultdict(list)
        self.retracted: set[int] = set()
        self.told: Counter[str] = Counter()
        self.breath = asyncio.Lock()
        self.left = 0
        self.words = 0

    async def press(self, session: Session[Any]) -> None:
        """One caller's share of what is left to do."""
        while self.left:
            self.left -= 1
            async with self.breath:
                if self.random.random() < 0.02:
                    # Or the session would never rest, and take nothing that only a resting one takes.
                    await session.wait_idle(PATIENCE)
                    await self._send(session, "refuse")
            if self.runs and self.random.random() < 0.4:
                await self._change(session)
            else:
                await self._send(session, self.random.choice(BUSY))
            for _ in range(self.random.randrange(4)):
                await asyncio.sleep(0)
            await until(lambda: len(session.state.queue) < MOST_WAITING)

    async def _send(self, session: Session[Any], busy: Busy) -> None:
        try:
            run = await session.start(self._any_words(), busy=busy)
        except Refused:
            self.told["busy"] += 1
            return
        assert run.input not in self.runs, "two inputs have one number"
        self.runs[run.input] = run
        self.told[busy] += 1

    async def _change(self, session: Session[Any]) -> None:
        number = self.random.choice(list(self.runs)[-MOST_WAITING:])
        words = self._any_words()
        try:
            if self.random.random() < 0.6:
                await session.edit_input(number, words)
                self.edits[number].append(words)
                self.told["edited"] += 1
            else:
                await session.retract(number)
                assert number not in self.retracted, "retracted twice"
                self.retracted.add(number)
                self.told["retracted"] += 1
        except Conflict:
            self.told["too late"] += 1

    def _any_words(self) -> str:
        self.words += 1
        return f"words {self.words}"

    async def check(self, session: Session[Any]) -> None:
        records = await session.records()
        check_log(records)
        heard = [
            part.text
            for message in await session.history(full=True)
            if isinstance(message, UserMessage)
            for part in message.parts
            if isinstance(part, Text) and part.text.startswith("words ")
        ]
        words, taken, blocked = self._read(records)
        expected = [words[number] for number, _ in taken if number not in blocked]
        assert heard == expected, "heard in the order in which runs took them"
        self.told.update({"blocked": len(blocked)} if blocked else {})
        assert sorted(number for number, _ in taken) == sorted(self.runs.keys() - self.retracted), "each exactly once"
        await self._check_handles(dict(taken))

    def _read(self, records: list[Record]) -> tuple[dict[int, str], list[tuple[int, int]], set[int]]:
        """The last words of each input, in which order which run took it, and what a guardrail blocked."""
        words: dict[int, str] = {}
        kinds: dict[int, str] = {}
        edits: defaultdict[int, list[str]] = defaultdict(list)
        taken: list[tuple[int, int]] = []
        gone: set[int] = set()
        blocked: set[int] = set()
        held: set[int] = set()
        for record in records:
            match record.event:
                case InputAccepted(input=number, parts=(Text(text=text),), busy=busy):
                    words[number], kinds[number] = text, busy
                case InputChanged(input=number, parts=(Text(text=text),)):
                    assert number not in gone, "edited behind its turn"
                    words[number] = text
                    edits[number].append(text)
                    blocked.discard(number)
                case InputChanged(input=number, blocked=why) if why:
                    assert is_bad(words[number]), "blocked for words that it does not have"
                    blocked.add(number)
                    held.add(number)
                case InputChanged(input=number, vetted=True):
                    assert not is_bad(words[number]), "let through with words that nobody has seen"
                case InputChanged(input=number, retracted=True):
                    assert number not in gone, "retracted behind its turn"
                case RunStarted(inputs=inputs) | ModelCalled(inputs=inputs):
                    taken += [(number, record.run) for number in inputs]
                    gone.update(inputs)
                case _:
                    pass
        assert words.keys() == self.runs.keys(), "accepted, and whoever sent it knows"
        for number, said in edits.items():
            assert sorted(said) == sorted(self.edits[number]), "every edit that was acknowledged, and no other"
        assert edits.keys() == self.edits.keys()
        for kind in (("queue", "refuse"), ("join",), ("interrupt",)):
            # One that is blocked does not join: it waits for a run of its own, or for an edit, and others go on.
            order = [number for number, _ in taken if kinds[number] in kind and number not in held]
            assert order == sorted(order), f"{kind} out of order"
        return words, taken, blocked & gone

    async def _check_handles(self, taken: dict[int, int]) -> None:
        for number, run in self.runs.items():
            try:
                result = await asyncio.wait_for(_awaited(run), PATIENCE)
            except Refused as refused:
                assert number in self.retracted, str(refused)
            else:
                assert result.run == taken[number]
                assert result.reason in ("completed", "cancelled", "limit", "refusal"), result


async def _awaited(run: Run[Any]) -> Any:
    return await run


@tool(effect="read")
async def look() -> str:
    """Look."""
    await asyncio.sleep(0)
    return "fine"


def is_bad(words: str) -> bool:
    return words.endswith("7")


async def guard(moment: InputMoment) -> Block | None:
    for _ in range(len(moment.text) % 4):
        await asyncio.sleep(0)
    return Block("no sevens") if is_bad(moment.text) else None


def some_agent(seed: int, inputs: Inputs, guardrails: Sequence[Guardrail]) -> Agent[str]:
    """Answers at once or later, with calls or without; some turns are its last."""
    random = Random(seed)

    async def answer(_: ModelRequest) -> Any:
        for _ in range(random.randrange(6)):
            await asyncio.sleep(0)
        return [call("look")] if random.random() < 0.4 else "Done."

    return Agent(
        name="clerk",
        model=ScriptedModel(answer),
        tools=[look],
        limits=Limits(turns=4),
        guards=Guards(repeated_calls=None),
        inputs=inputs,
        guardrails=guardrails,
    )


async def press(store: str | Store, count: int, inputs: Inputs, engines: int, *guardrails: Guardrail) -> Crowd:
    """Two Runtimes on one store, of which both drive or one, and two callers at each."""
    crowd, agent = Crowd(count), some_agent(count, inputs, guardrails)
    crowd.left = count
    one = Runtime(store, agents=[agent])
    two = Runtime(store, agents=[agent], **({} if engines == 2 else {"engine": None}))
    async with one, two:
        sessions = [await one.open(agent, id="x"), await two.open(agent, id="x")]
        for session in sessions:
            session._log.attach()
        await asyncio.wait_for(asyncio.gather(*map(crowd.press, sessions * 2)), PATIENCE)
        assert await sessions[0].wait_idle(PATIENCE)
        await crowd.check(sessions[0])
        assert await sessions[1].wait_idle(PATIENCE)
        assert await sessions[1].inputs() == ()
    return crowd


ALL = {"join", "queue", "interrupt", "refuse", "busy", "edited", "retracted", "too late"}
WAYS = [Inputs(), Inputs("all", "all"), Inputs("one", "one"), Inputs("all", "one")]


@pytest.mark.parametrize("inputs", WAYS, ids=lambda way: f"{way.queued}-{way.joined}")
async def test_in_memory(inputs: Inputs, record_property: Any) -> None:
    crowd = await press(MemoryStore(), IN_MEMORY, inputs, 1)
    assert crowd.told.keys() == ALL, crowd.told
    record_property("figure: inputs, edits and retractions against a running session", sum(crowd.told.values()))


@pytest.mark.parametrize("inputs", WAYS[:2], ids=lambda way: f"{way.queued}-{way.joined}")
async def test_behind_a_guardrail(inputs: Inputs, record_property: Any) -> None:
    crowd = await press(MemoryStore(), IN_MEMORY // 2, inputs, 1, Guardrail(input=guard))
    assert crowd.told.keys() == ALL | {"blocked"}, crowd.told
    record_property("figure: inputs, edits and retractions behind a guardrail", sum(crowd.told.values()))


@pytest.mark.parametrize("inputs", WAYS[:2], ids=lambda way: f"{way.queued}-{way.joined}")
async def test_in_a_file_that_two_drive(tmp_path: Path, inputs: Inputs, record_property: Any) -> None:
    crowd = await press(f"sqlite:{tmp_path / 'x.db'}", IN_A_FILE, inputs, 2)
    assert crowd.told.keys() == ALL, crowd.told
    record_property("figure: inputs, edits and retractions against a session in a file", sum(crowd.told.values()))
