"""What is told behind the end of a run."""

from __future__ import annotations

from typing import Any

from perdure import Agent, Runtime
from perdure.cli.attend import _bring_the_rest
from perdure.events import MessageSettled, RunEnded
from perdure.stores.memory import MemoryStore
from perdure.testing import ScriptedModel, call
from perdure.tools import send_message
from tests.runtime.scenes import until


class Shown:
    """A view that only remembers."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def show(self, item: Any) -> None:
        self.items.append(item)


async def test_a_dead_letter_found_out_behind_the_last_record_that_was_shown_is_told() -> None:
    model = ScriptedModel([[call("send_message", to="nobody", text="Are you there?")], "I have written."])
    writer = Agent(name="writer", model=model, tools=[send_message()])
    async with Runtime(MemoryStore(), agents=[writer]) as runtime:
        session = await runtime.open(writer, id="w")
        await session.run("go")
        await until(lambda: session.state.dead)
        records = await session.records()
        (settled,) = (record for record in records if isinstance(record.event, MessageSettled))
        (ended,) = (record for record in records if isinstance(record.event, RunEnded))
        assert not session.state.outbox
        view: Any = Shown()
        await _bring_the_rest(session, view, settled.seq - 1)
        assert view.items == [settled]
        await _bring_the_rest(session, view, max(settled.seq, ended.seq))
        assert view.items == [settled], "not twice"
