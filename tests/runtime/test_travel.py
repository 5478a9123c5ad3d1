"""Time travel: the state at any record, tags, titles, going back, and two futures of one past."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure import Agent, Conflict, NotFound, Record, Refused, Runtime, Session, ToolContext, UsageError, tool
from perdure.core.events import HistoryCut
from perdure.core.fold import fold
from perdure.core.transcript import unpaired
from perdure.events import CallStarted, ModelCalled, SettingsChanged
from perdure.ports import Store
from perdure.runtime.compare import compare
from perdure.runtime.wishes import StateKey
from perdure.stores.memory import MemoryStore
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import events, kinds, said, seen, soon

COUNT = StateKey("n", int, default=0, scope="session")
ran: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


@tool(effect="read")
async def look(what: str) -> str:
    ran.append(what)
    return f"{what} is fine"


def clerk(answer: Any = None, tools: Any = (look,)) -> Agent[str]:
    """Says how many messages it read."""
    return Agent(name="clerk", model=ScriptedModel(answer or (lambda r: f"I read {len(r.messages)}.")), tools=tools)


def looks(request: Any) -> Any:
    last = request.messages[-1]
    return [call("look", what="a"), call("look", what="b")] if type(last).__name__ == "UserMessage" else "Done."


async def test_going_back_and_on_from_there(store: str | Store) -> None:
    agent = clerk()
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("one")
        at = session.state.seq
        for word in ("two", "three"):
            await session.run(word)
        before = await session.records()
        assert await session.rewind(at, by="ann") == at
        assert await said(session) == ["one"]
        (cut,) = await events(session, HistoryCut)
        assert (cut.to, cut.keep, cut.messages, cut.by) == (at, 2, (), "ann"), "what both begin with is not written"
        assert (await session.records())[: len(before)] == before, "the log keeps it all"
        assert (await session.run("other")).output == "I read 3."
        await session.rewind(len(before))
        assert await said(session) == ["one", "two", "three"], "and forward again"
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.session("x")
        assert await said(session) == ["one", "two", "three"]
        assert (await session.run("four")).output == "I read 7."


async def test_every_record_can_be_gone_back_to(store: str | Store) -> None:
    agent = clerk(looks)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("one")
        await session.run("two")
        past = await session.records()
        for at in range(1, len(past) + 1):
            became = await session.rewind(at)
            assert became <= at
            assert unpaired(session.state.history) == []
            then = await session.state_at(became)
            assert session.state.history == then.history
            if became < at:
                between = fold([record.event for record in past[:at]])
                assert unpaired(between.history), "only a point at which calls wait for results is moved"
        assert ran == ["a", "b"] * 2, "nothing is run again"


async def test_state_keys_go_back_too(memory: Store) -> None:
    @tool(effect="idempotent")
    async def count(ctx: ToolContext) -> int:
        ctx.set(COUNT, ctx.get(COUNT) + 1)
        return ctx.get(COUNT)

    agent = clerk(lambda r: [call("count")] if type(r.messages[-1]).__name__ == "UserMessage" else "Done.", [count])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("one")
        await session.tag("first")
        await session.run("two")
        assert session.state.values == {"n": 2}
        await session.rewind("first")
        assert session.state.values == {"n": 1}
        await session.clear()
        assert session.state.values == {}


async def test_nobody_goes_back_during_work(store: str | Store) -> None:
    release = asyncio.Event()

    async def answer(_: object) -> str:
        await release.wait()
        return "Done."

    agent = clerk(answer)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("one")
        await seen(session, ModelCalled)
        for back in (session.rewind(1), session.clear()):
            with pytest.raises(Refused, match="while it has no work"):
                await back
        release.set()
        await soon(run)
        for wrong in (0, -1, 10**6, "10000000", "9" * 30):
            with pytest.raises(UsageError, match=r"has records 1 to \d+; there is no record"):
                await session.rewind(wrong)
        with pytest.raises(NotFound, match="no tag 'here'; its tags are: none"):
            await session.rewind("here")
    async with Runtime(store, engine=None) as runtime:
        session = await runtime.session("x")
        await session.start("two")
        with pytest.raises(Refused, match="while it has no work"):
            await session.rewind(1)


async def test_clearing_begins_anew(store: str | Store) -> None:
    agent = clerk()
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("one")
        head = session.state.seq
        await session.clear()
        assert await session.history() == []
        assert (await session.run("two")).output == "I read 1."
        await session.rewind(head)
        assert await said(session) == ["one"]


async def test_tags_name_records_and_move(store: str | Store) -> None:
    agent = clerk()
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("one")
        head = session.state.seq
        assert await session.tag("here") == head
        assert await session.tag("start", at=1) == 1
        assert await session.tags() == {"here": head, "start": 1}
        await session.run("two")
        assert await session.tag("start", at="here") == head
        assert await session.tags() == {"here": head, "start": head}
        fork = await session.fork(at="here", id="y")
        assert await said(fork) == ["one"]
        assert (await session.state_at("here")).seq == head
        late = await session.fork()
        assert await late.tags() == await session.tags(), "a fork has the tags of its past"
        for wrong in ("", "  ", "12"):
            with pytest.raises(UsageError, match="is refused; take a name"):
                await session.tag(wrong)
        with pytest.raises(NotFound, match="no tag 'gone'; its tags are: here, start"):
            await session.fork(at="gone")
    async with Runtime(store, engine=None) as runtime:
        session = await runtime.session("x")
        assert (await session.tags())["here"] == head
        assert (await session.state_at(1)).history == fold([]).history


async def test_a_title_stays_with_its_session(store: str | Store) -> None:
    agent = clerk()
    other = ScriptedModel(lambda _: "Other.", name="other")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.set_model(other)
        await session.rename("A title")
        assert (await session.run("one")).output == "Other.", "the model stays"
        await session.set_model(None)
        assert session.state.title == "A title", "the title stays"
        assert [row.summary.title async for row in runtime.sessions()] == ["A title"]
        await session.rename("A title")
        assert len(await events(session, SettingsChanged)) == 3, "the same title again is nothing new"
        with pytest.raises(UsageError, match="A title is text"):
            await session.rename(7)  # pyright: ignore[reportArgumentType]


async def test_a_title_leaves_an_open_run_its_own_model(memory: Store) -> None:
    release = asyncio.Event()

    @tool(effect="read")
    async def hold() -> str:
        await release.wait()
        return "held"

    agent = clerk(tools=[hold])
    other = ScriptedModel([[call("hold")], "The run's own."], name="other")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("one", model=other)
        await seen(session, CallStarted)
        await session.rename("A title")
        release.set()
        assert (await soon(run)).output == "The run's own."


class Watched(MemoryStore):
    """Counts the records that anybody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.records_read = 0

    async def read(self, session: str, *, after: int = 0, limit: int | None = None) -> list[Record]:
        records = await super().read(session, after=after, limit=limit)
        self.records_read += len(records)
        return records


async def test_a_fork_at_the_head_reads_nothing_of_the_past() -> None:
    store, agent = Watched(), clerk()
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        for word in ("one", "two", "three"):
            await session.run(word)
        await asyncio.sleep(0)
        before = store.records_read
        fork = await session.fork(id="y")
        twin = await session.fork(at=session.state.seq)
        assert store.records_read == before
        assert (await fork.run("fork")).output == "I read 7."
        assert (await session.run("parent")).output == "I read 7."
        assert (await twin.run("twin")).output == "I read 7."
        assert await said(session) == ["one", "two", "three", "parent"]
        assert await said(fork) == ["one", "two", "three", "fork"], "states are shared, futures are not"
        assert fold([record.event for record in await fork.records()]) == fork.state


async def sides(store: str | Store, agent: Agent[Any]) -> tuple[Runtime, Session[Any], Session[Any]]:
    runtime = Runtime(store, agents=[agent])
    await runtime.__aenter__()
    left = await runtime.open(agent, id="left")
    await left.run("one")
    right = await left.fork(id="right")
    return runtime, left, right


async def test_two_futures_are_compared(store: str | Store) -> None:
    agent = clerk(looks)
    runtime, left, right = await sides(store, agent)
    try:
        parted = left.state.seq
        nothing = await compare(left, right)
        assert (nothing.parted, nothing.rows, nothing.same) == (parted, (), True)
        await left.run("two")
        await right.run("two")
        await right.run("three")
        found = await compare(left, right)
        assert found.parted == parted
        assert (found.left.id, found.right.id) == ("left", "right")
        assert (found.left.usage.total, found.right.usage.total) == (60, 90)
        assert (found.left.cost_usd, found.right.cost_usd) == (0.0, 0.0)
        same = [row.left for row in found.rows if row.same]
        assert same == [
            "input two",
            "answer without words",
            'call look(what="a")',
            'call look(what="b")',
            "look → ok: a is fine",
            "look → ok: b is fine",
            "answer Done.",
            "completed",
        ]
        other = [(row.left, row.right) for row in found.rows if not row.same]
        assert other[0] == ("", "input three")
        assert other[-1] == ("", "completed")
        assert not found.same
    finally:
        await runtime.__aexit__(None, None, None)


async def test_strangers_have_no_past_in_common(memory: Store) -> None:
    agent = clerk()
    async with Runtime(memory, agents=[agent]) as runtime:
        one, other = await runtime.open(agent, id="a"), await runtime.open(agent, id="b")
        await one.run("one")
        await other.run("other")
        found = await compare(one, other)
        assert found.parted == 0
        assert (found.rows[0].left, found.rows[0].right, found.same) == ("input one", "input other", False)


async def test_two_who_tag_at_once_both_do(store: str | Store) -> None:
    agent = clerk()
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("one")
        await asyncio.gather(*(session.tag(f"t{number}") for number in range(5)), session.rename("A title"))
        assert set(await session.tags()) == {f"t{number}" for number in range(5)}
        assert (await kinds(session)).count("Noted") == 5
        done = await asyncio.gather(session.rewind(1), session.clear(), return_exceptions=True)
        assert not [item for item in done if isinstance(item, Exception) and not isinstance(item, Conflict)]


async def test_a_fork_writes_one_record(tmp_path: Path) -> None:
    path, agent = tmp_path / "x.db", clerk()

    def written() -> tuple[int, int]:
        with apsw.Connection(str(path)) as connection:
            return connection.execute("SELECT count(*), sum(length(payload)) FROM records").fetchall()[0]

    async with Runtime(f"sqlite:{path}", agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        for number in range(20):
            await session.run(f"{number} " * 200)
        records, size = written()
        for at in (None, 50):
            await session.fork(at=at)
        now, grown = written()
        assert now - records <= 4, "the opening, and of an open run its end"
        assert grown - size < 1000, "nothing of the past is copied"
