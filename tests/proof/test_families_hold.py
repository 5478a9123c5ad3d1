"""Families of agents in random trouble: crashes, stops, cancels, interruptions, late calls, decisions from above.

Rule: whatever happens, in the end nobody works, nobody owes anything, and every call of a child ended once, truthfully.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from perdure import Agent, Conflict, NotFound, Refused, Runtime, Session, ToolContext, tool
from perdure.core.messages import AssistantMessage, Usage, UserMessage
from perdure.events import CallEnded, CallStarted, ModelResponded, RunEnded
from perdure.ports import ModelRequest
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel, call
from perdure.tools import send_message
from tests.runtime.scenes import PATIENCE, check_store, crashing, events

SEEDS = 30
TOGETHER = 10
STEPS = 14
DEPTH = 3


class Trouble:
    """One family, and what happens to it, all of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.gate = asyncio.Event()
        self.effects: dict[str, set[str]] = {}
        self.agent = self._node()

    def _node(self) -> Agent[Any]:
        gate, effects = self.gate, self.effects

        @tool(effect="read")
        async def wait(what: str) -> str:
            """Wait at the gate."""
            await gate.wait()
            return what

        @tool(effect="idempotent", ask=True)
        async def pay(what: str, ctx: ToolContext[Any, Any]) -> str:
            """Pay."""
            effects.setdefault(f"{ctx.session} {ctx.call}", set()).add(ctx.idempotency_key)
            return what

        tools: list[Any] = [wait, pay, send_message()]
        node = Agent(
            name="node", model=ScriptedModel(self._speak), tools=tools, concurrency=self.random.choice((None, 2))
        )
        tools += [
            node.as_tool(name="new"),
            node.as_tool(name="kept", child="kept"),
            node.as_tool(name="aside", background=True),
            node.as_tool(name="late", timeout=20),
            node.as_tool(name="late_aside", background=True, timeout=20),
            node.as_tool(name="free", orphan="finish"),
        ]
        return node

    def _speak(self, request: ModelRequest) -> Any:
        """By the depth that the last task names, and a number that the conversation gives."""
        tasks = [m.parts[-1].text for m in request.messages if isinstance(m, UserMessage)]
        depth = next((int(t[-1]) for t in reversed(tasks) if t.startswith("depth ")), 0)
        turn = sum(1 for message in request.messages if isinstance(message, AssistantMessage))
        chance = Random(f"{request.cache_key} {turn} {len(tasks)}")
        if turn >= 4 or chance.random() < 0.35:
            return "done"
        names = ["wait", "pay", "send_message"]
        names += ["new", "kept", "aside", "late", "late_aside", "free"] * 2 if depth < DEPTH else []
        return [self._call(chance.choice(names), depth, chance) for _ in range(chance.randint(1, 3))]

    def _call(self, name: str, depth: int, chance: Random) -> Any:
        if name in ("wait", "pay"):
            return call(name, what=str(chance.random()))
        if name == "send_message":
            return call(name, to=chance.choice(("parent", "root", "child kept", "nobody")), text="well?")
        return call(name, input=f"depth {depth + 1}")

    async def live(self) -> None:
        """Several processes, one after the other; the last one comes to an end."""
        for _ in range(self.random.randint(1, 3)):
            async with crashing(self.store, agents=[self.agent], clock=self.clock) as runtime:
                session = await runtime.open(self.agent, id="root")
                for _ in range(STEPS):
                    await self._happen(runtime, session)
        async with Runtime(self.store, agents=[self.agent], clock=self.clock) as runtime:
            self.gate.set()
            await self._settle(runtime)
            await self._check(runtime)

    async def _happen(self, runtime: Runtime, session: Session[Any]) -> None:
        random = self.random
        dice = random.random()
        with suppress(Refused, Conflict, NotFound):
            if dice < 0.2:
                await session.send("depth 0", busy=random.choice(("join", "queue", "interrupt")))
            elif dice < 0.4:
                await self._decide(session)
            elif dice < 0.48:
                someone = await self._anybody(runtime)
                await (someone.stop() if random.random() < 0.5 else someone.cancel())
            elif dice < 0.55:
                await self.clock.advance(random.choice((1.0, 7.0, 30.0)))
            elif dice < 0.6:
                self.gate.set()
                await asyncio.sleep(0)
                self.gate.clear()
        for _ in range(random.randint(0, 30)):
            await asyncio.sleep(0)

    async def _decide(self, session: Session[Any]) -> None:
        for pending in await session.pending():
            if pending.kind == "approval" and self.random.random() < 0.7:
                await session.decide(pending.id, self.random.choice(("approve", "deny")))

    async def _anybody(self, runtime: Runtime) -> Session[Any]:
        rows = [row async for row in runtime.sessions(children=True)]
        return await runtime.session(self.random.choice(rows).id)

    async def _settle(self, runtime: Runtime) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while True:
            rows = [row async for row in runtime.sessions(children=True)]
            busy = [row for row in rows if row.status != "idle"]
            if not busy:
                return
            assert asyncio.get_running_loop().time() < deadline, [(row.id, row.summary) for row in busy]
            for pending in await runtime.pending():
                with suppress(Conflict, NotFound, Refused):
                    await runtime.decide(pending.id, "approve" if pending.kind == "approval" else "deny")
            await self.clock.advance(1)
            await asyncio.sleep(0.001)

    async def _check(self, runtime: Runtime) -> None:
        rows = [row async for row in runtime.sessions(children=True)]
        logs = {row.uid: await runtime.session(row.id) for row in rows}
        for session in logs.values():
            state = session.state
            assert (state.run, state.queue, state.owed, state.outbox) == (None, (), (), ()), session.id
            for started in await events(session, CallStarted):
                if started.child:
                    await self._check_child(logs, session, started)
        answers = [event for log in logs.values() for event in await events(log, ModelResponded)]
        spent = sum((event.usage for event in answers), Usage()).total
        assert logs[next(row.uid for row in rows if row.id == "root")].state.usage.total <= spent
        assert all(len(keys) == 1 for keys in self.effects.values()), "one key for one payment"

    async def _check_child(self, logs: dict[str, Session[Any]], session: Session[Any], started: CallStarted) -> None:
        (ended,) = await events(session, CallEnded, call=started.call)
        child = logs.get(started.child)
        if child is None:
            assert ended.outcome == "cancelled", "it was ended before it began"
            return
        outputs = [event.output for event in await events(child, RunEnded, reason="completed")]
        if ended.outcome == "ok":
            assert ended.parts[0].text in outputs, "what the parent heard is what a run of the child came to"


@pytest.mark.parametrize("first", range(0, SEEDS, TOGETHER))
async def test_families_in_trouble_come_to_an_end(first: int, record_property: pytest.RecordProperty) -> None:
    for seed in range(first, first + TOGETHER):
        trouble = Trouble(seed)
        try:
            await trouble.live()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        await check_store(trouble.store)
    record_property("figure: families in trouble that came to an end", TOGETHER)
