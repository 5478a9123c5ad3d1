"""Sub-agents as they are seen from above: streams, decisions, other processes, replays, exports."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Decision, NotFound, Record, Runtime, TextDelta, tool
from perdure.core.codec import encode_event
from perdure.core.fold import fold
from perdure.core.transcript import transcript
from perdure.events import CallDecided, CallEnded, CallSuspended, FromChild, RunEnded
from perdure.ports import Item, Store
from perdure.testing import ManualClock, Reply, ScriptedModel, call, check_replay, replay
from perdure.testing.replay import show_differences
from perdure.tools import ask_user, send_message
from tests.runtime.kin import Gate, agent, born, child, end, row
from tests.runtime.scenes import collect, crashing, events, seen, soon, told, turned, until


@tool(ask=True)
async def pay(order: str) -> str:
    """Pay an order."""
    return f"paid {order}"


def payer(**options: Any) -> Agent[Any]:
    return agent("leaf", call("pay", order="7"), "leaf is done", tools=[pay], **options)


def path_of(item: Item) -> tuple[str, ...]:
    """Through which agents an item came."""
    return (item.agent, *path_of(item.item)) if isinstance(item, FromChild) else ()


def innermost(item: Item) -> Any:
    return innermost(item.item) if isinstance(item, FromChild) else item


# Streams


async def test_what_children_and_grandchildren_do_is_in_the_stream(store: str | Store) -> None:
    leaf = agent("leaf", Reply(deltas=("It ", "is ", "an x.")))
    top = row("top", "mid", last=leaf)
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        run = await session.start("go")
        items = [item async for item in run.stream()]
        own = [item for item in items if isinstance(item, Record)]
        assert [item.seq for item in own] == sorted(item.seq for item in own)
        assert isinstance(own[-1].event, RunEnded)
        from_leaf = [innermost(item) for item in items if path_of(item) == ("mid", "leaf")]
        kinds = [type(item.event).__name__ for item in from_leaf if isinstance(item, Record)]
        assert (kinds[0], kinds[-1]) == ("InputAccepted", "RunEnded")
        assert {item.session for item in items if isinstance(item, FromChild)} == {"s.mid-1"}
        assert {item.call for item in items if isinstance(item, FromChild)} == {1}
        ended = [at for at, item in enumerate(items) if isinstance(innermost(item), Record) and _is_end(item)]
        assert [path_of(items[at]) for at in ended] == [("mid", "leaf"), ("mid",), ()], "each before who waits for it"


def _is_end(item: Item) -> bool:
    return isinstance(innermost(item).event, RunEnded)


async def test_the_words_of_a_child_come_as_they_are_said(memory: Store) -> None:
    gate = Gate()
    leaf = agent("leaf", [call("wait", what="x")], Reply(deltas=("one ", "two")), tools=[gate.tool()])
    top = row("top", last=leaf)
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        items: list[Item] = []
        reading = collect(session.stream(), items)
        run = await session.start("go")
        await until(lambda: gate.inside == 1 and any(isinstance(innermost(item), Record) for item in items))
        gate.open.set()
        await soon(run)
        words = [innermost(item).text for item in items if path_of(item) and isinstance(innermost(item), TextDelta)]
        assert words == ["one ", "two"]
        reading.cancel()


async def test_a_stream_that_begins_in_the_middle_shows_the_children_at_work(store: str | Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "done", tools=[gate.tool()])
    top = agent("top", call("leaf", input="a"), call("leaf", input="b"), "ok", tools=[leaf])
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top)
        gate.open.set()
        run = await session.start("go")
        await seen(session, CallEnded)
        gate.open.clear()
        await until(lambda: gate.inside == 1)
        await seen(session, CallSuspended, 2)
        items: list[Item] = []
        reading = collect(session.stream(after=session.state.seq), items)
        await until(lambda: items)
        gate.open.set()
        await soon(run)
        await until(lambda: any(isinstance(item, Record) and isinstance(item.event, RunEnded) for item in items))
        reading.cancel()
        shown = {item.call for item in items if isinstance(item, FromChild)}
        assert shown == {2}, "the one at work, from its task on, and not the one that was over"
        first = next(innermost(item) for item in items if isinstance(item, FromChild))
        assert type(first.event).__name__ == "InputAccepted"


async def test_quick_children_are_shown_although_they_are_done(memory: Store) -> None:
    leaf = agent("leaf", "done")
    top = agent("top", [call("leaf", input=str(n)) for n in range(3)], call("leaf", input="x"), "ok", tools=[leaf])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await soon(run)
        items = [item async for item in run.stream()]
        ends = [item.call for item in items if isinstance(item, FromChild) and _is_end_of_child(item)]
        assert sorted(ends) == [1, 2, 3, 4]
        later = [item async for item in _some(session.stream(), session.state.seq)]
        assert not any(isinstance(item, FromChild) for item in later), "what is past is past"


def _is_end_of_child(item: FromChild) -> bool:
    return isinstance(item.item, Record) and isinstance(item.item.event, RunEnded)


async def _some(stream: Any, last: int) -> Any:
    async for item in stream:
        yield item
        if isinstance(item, Record) and item.seq == last:
            return


async def test_parallel_calls_of_one_kept_child_are_told_apart(memory: Store) -> None:
    leaf = agent("leaf", "one", "two")
    top = agent("top", [call("leaf", input="a"), call("leaf", input="b")], "ok", tools=[leaf.as_tool(child="kept")])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        items = [item async for item in run.stream()]
        for number in (1, 2):
            records = [i.item for i in items if isinstance(i, FromChild) and i.call == number]
            ends = [i.event for i in records if isinstance(i, Record) and isinstance(i.event, RunEnded)]
            assert [event.run for event in ends] == [number]
            assert {i.run for i in records if isinstance(i, Record) and i.run} == {number}


async def test_the_text_of_a_run_is_its_own(memory: Store) -> None:
    top = row("top", last=agent("leaf", Reply(deltas=("not ", "this"))))
    async with Runtime(memory, agents=[top]) as runtime:
        run = await (await runtime.open(top)).start("go")
        assert "".join([text async for text in run.text()]) == "top is done"


async def test_a_reader_that_leaves_leaves_nothing_behind(memory: Store) -> None:
    gate = Gate()
    top = row("top", "mid", last=agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()]))
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        before = len(asyncio.all_tasks())
        stream = session.stream()
        async for item in stream:
            if path_of(item) == ("mid", "leaf"):
                break
        await stream.aclose()  # type: ignore[attr-defined]
        await until(lambda: len(asyncio.all_tasks()) <= before)
        gate.open.set()
        await soon(run)


# Decisions


async def test_what_a_grandchild_waits_for_is_decided_at_the_root(store: str | Store) -> None:
    top = row("top", "mid", last=payer())
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        run = await session.start("go")
        result = await soon(run)
        (pending,) = result.pending
        assert (result.reason, pending.session, pending.kind) == ("waiting", "s.mid-1.leaf-1", "approval")
        assert (pending.tool, pending.arguments) == ("pay", {"order": "7"})
        assert await session.pending() == (pending,)
        assert await runtime.pending() == [pending]
        await session.decide(pending.id, "edit", arguments={"order": "8"}, by="ann")
        assert (await soon(run)).output == "top is done"
        leaf = await runtime.session(pending.session)
        assert (await told(leaf))[0][2].endswith("paid 8")
        assert [event.by for event in await events(leaf, CallDecided)] == ["ann"]
        assert await session.pending() == ()


async def test_the_runtime_decides_too_and_a_foreign_session_does_not(memory: Store) -> None:
    top = row("top", "mid", last=payer())
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        other = await runtime.open(top, id="other")
        run = await session.start("go")
        (pending,) = (await soon(run)).pending
        with pytest.raises(NotFound):
            await other.decide(pending.id, "approve")
        mid = await child(runtime, session)
        assert await mid.pending() == (pending,), "it is seen from every session above"
        await runtime.decide(pending.id, "deny", reason="too dear")
        assert (await soon(run)).output == "top is done"
        leaf = await child(runtime, mid)
        assert (await told(leaf))[0][1] == "denied"


async def test_on_pending_answers_for_the_whole_tree(memory: Store) -> None:
    leaf = payer()
    top = agent("top", [call("leaf", input="a"), call("leaf", input="b"), call("pay", order="1")], "ok")
    top = Agent(name="top", model=top.model, tools=[leaf, pay])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        asked: list[str] = []

        def answer(pending: Any) -> Decision:
            asked.append(pending.session)
            return Decision("approve", by="me")

        assert (await soon(session.run("go", on_pending=answer))).output == "ok"
        assert sorted(asked) == ["s", "s.leaf-1", "s.leaf-2"]


async def test_who_waits_hears_when_all_of_the_tree_stands_still(memory: Store) -> None:
    """One child waits for a person long before the other one has ended."""
    gate = Gate()
    slow = agent("slow", call("wait", what="x"), "slow is done", tools=[gate.tool()])
    top = agent("top", [call("leaf", input="a"), call("slow", input="b")], "ok", tools=[payer(), slow])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        waiting = asyncio.ensure_future(_result(await session.start("go")))
        await until(lambda: gate.inside == 1)
        while not await session.pending():
            await asyncio.sleep(0.002)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        gate.open.set()
        assert [item.tool for item in (await soon(waiting)).pending] == ["pay"]


async def _result(run: Any) -> Any:
    return await run


async def test_questions_of_several_children_are_answered_at_once(memory: Store) -> None:
    leaf = agent("leaf", call("ask_user", questions=[{"question": "How many?"}]), "thanks", tools=[ask_user()])
    top = agent("top", [call("leaf", input="a"), call("leaf", input="b")], "ok", tools=[leaf])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        one, two = (await soon(run)).pending
        await session.answer({one.id: ["1"], two.id: ["2"]})
        assert (await soon(run)).output == "ok"


async def test_a_childs_pause_itself_cannot_be_decided(memory: Store) -> None:
    gate = Gate()
    top = row("top", last=agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()]))
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await seen(session, CallSuspended)
        await until(lambda: gate.inside == 1)
        assert await session.pending() == (), "who works waits for nobody"
        with pytest.raises(Exception, match="decide what that one waits for"):
            await session.decide(f"{session.uid}-1-1", "deny")
        gate.open.set()
        await soon(run)


async def test_a_child_that_is_gone_shows_in_what_its_parent_waits_for(memory: Store) -> None:
    top = row("top", last=payer())
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        (pending,) = (await soon(run)).pending
        await memory.delete((await runtime.session(pending.session)).uid)
        (shown,) = await session.pending()
        assert (shown.kind, shown.session) == ("child", session.id)
        await session.cancel()
        assert (await soon(run)).reason == "cancelled"
        assert (await told(session))[0][1] == "unknown", "it may have done something until then"


# Other processes


async def test_an_approval_in_a_grandchild_survives_restarts(store: str | Store) -> None:
    ids: set[str] = set()
    for _ in range(4):
        top = row("top", "mid", last=payer())
        async with crashing(store, agents=[top]) as runtime:
            session = await runtime.open(top, id="s")
            (pending,) = (await soon(session.run("go", key="go"))).pending
            ids.add(pending.id)
    assert len(ids) == 1
    top = row("top", "mid", last=payer())
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.session("s")
        await session.decide(ids.pop(), "approve")
        assert (await soon(session.run("go", key="go"))).output == "top is done"
        mid = await child(runtime, session)
        assert len(await events(await child(runtime, mid), CallEnded)) == 1


async def test_another_process_sees_and_decides(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'x.db'}"
    top = row("top", "mid", last=payer())
    async with Runtime(url, agents=[top]) as runtime, Runtime(url, engine=None) as other:
        session = await runtime.open(top, id="s")
        run = await session.start("go")
        (pending,) = (await soon(run)).pending
        there = await other.session("s")
        assert await there.pending() == (pending,)
        assert await other.pending() == [pending]
        assert (await there.usage()).total == 45
        await there.decide(pending.id, "approve")
        assert (await soon(run)).output == "top is done"


async def test_a_tree_is_taken_over_in_the_middle(store: str | Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "leaf is done", tools=[gate.tool()])
    top = agent("top", [call("leaf", input="a"), call("leaf", input="b")], "ok", tools=[leaf])
    async with crashing(store, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        await session.start("go", key="go")
        await until(lambda: gate.inside == 2)
    gate.open.set()
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.session("s")
        result = await soon(session.run("go", key="go"))
        assert result.output == "ok"
        assert await told(session) == [("leaf", "ok", "leaf is done")] * 2
        assert [len(await events(below, RunEnded)) for below in await born(runtime, session, 2)] == [1, 1]


async def test_a_tree_of_two_processes(tmp_path: Path) -> None:
    """One process knows the parent's agent only as far as it submits; the other drives."""
    url = f"sqlite:{tmp_path / 'x.db'}"
    top = row("top", "mid", last=agent("leaf", "leaf is done"))
    async with Runtime(url, engine=None) as asking, Runtime(url, agents=[top]) as working:
        await working.open(top, id="s")
        session = await asking.session("s")
        run = await session.start("go")
        assert (await soon(run)).output == "top is done"
        assert [record.seq for record in await session.records()] == list(range(1, session.state.seq + 1))
        assert (await end(session))[0] == "completed"


async def test_two_workers_share_a_tree(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'x.db'}"
    leaf = agent("leaf", call("pay", order="7"), "leaf is done", tools=[pay])
    top = agent("top", [call("leaf", input=str(n)) for n in range(4)], "ok", tools=[leaf])
    async with Runtime(url, agents=[top]) as one, Runtime(url, agents=[top]) as two:
        session = await one.open(top, id="s")
        run = await session.start("go")
        pending = (await soon(run)).pending
        assert len(pending) == 4
        there = await two.session("s")
        for number, item in enumerate(pending):
            await (there if number % 2 else session).decide(item.id, "approve")
        assert (await soon(run)).output == "ok"
        assert await told(session) == [("leaf", "ok", "leaf is done")] * 4


async def test_another_process_cancels_the_tree(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'x.db'}"
    gate = Gate()
    top = row("top", "mid", last=agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()]))
    async with Runtime(url, agents=[top]) as runtime, Runtime(url, engine=None) as other:
        session = await runtime.open(top, id="s")
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        await (await other.session("s")).cancel(by="ops")
        assert (await soon(run)).reason == "cancelled"
        assert gate.cancelled == ["x"]


# Replays and exports


async def test_a_parents_log_is_replayed_without_its_children(memory: Store, tmp_path: Path) -> None:
    leaf = payer()
    top = agent("top", [call("leaf", input="a"), call("leaf", input="b")], call("leaf", input="c"), "ok", tools=[leaf])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        await soon(session.run("go", on_pending=lambda pending: "approve"))
        records = await session.records()
        lines = [line async for line in session.export()]
        below = (await born(runtime, session, 3))[0]
        of_child = await below.records()
    done = await soon(replay(records, top))
    assert done.identical, show_differences(done.differences)
    done = await soon(replay(of_child, leaf))
    assert done.identical, show_differences(done.differences)
    file = tmp_path / "s.jsonl"
    file.write_bytes(b"".join(lines))
    done = await asyncio.to_thread(check_replay, file, top)
    assert done.turns == 3
    changed = Agent(name="top", model=ScriptedModel(["x"]), tools=[leaf], instructions="Other.")
    assert (await soon(replay(records, changed))).records


async def test_a_cancelled_and_a_late_child_are_replayed(memory: Store) -> None:
    clock, gate = ManualClock(), Gate()
    leaf = agent("leaf", call("wait", what="x"), "done", tools=[gate.tool()])
    tools = [leaf.as_tool(timeout=30), leaf.as_tool(name="aside", background=True, timeout=40), send_message()]
    top = agent(
        "top",
        [call("leaf", input="a"), call("aside", input="b"), call("send_message", to="nobody", text="x")],
        "wait",
        "news",
        call("leaf", input="c"),
        tools=tools,
    )
    async with Runtime(memory, agents=[top], clock=clock) as runtime:
        session = await runtime.open(top, id="s")
        await session.start("go")
        await until(lambda: gate.inside == 2)
        await turned(clock, lambda: len(session.state.ended) == 1, step=5)
        run = await session.start("again")
        await until(lambda: gate.inside == 1)
        await seen(session, CallSuspended, 3)
        await session.cancel()
        await turned(clock, lambda: len(session.state.ended) == 2)
        assert (await soon(run)).reason == "cancelled"
        records = await session.records()
    assert [event.outcome for event in [r.event for r in records] if isinstance(event, CallEnded)].count("timeout") == 2
    done = await soon(replay(records, top))
    assert done.identical, show_differences(done.differences)


async def test_the_fold_of_a_parents_log_is_its_state(memory: Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "done", tools=[gate.tool()])
    tools = [leaf.as_tool(background=True, name="aside"), leaf]
    top = agent("top", [call("leaf", input="a"), call("aside", input="b")], "wait", "ok", "ok", tools=tools)
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await until(lambda: gate.inside == 2)
        gate.open.set()
        await soon(run)
        log = [record.event for record in await session.records()]
        state = fold(log)
        assert transcript(state)[:] == transcript(session.state)[:]
        assert (state.usage, state.run) == (session.state.usage, None)
        assert [encode_event(event) for event in log]


async def test_parents_and_children_are_exported_and_imported(memory: Store) -> None:
    from perdure.stores.memory import MemoryStore

    leaf = agent("leaf", "one", "two", "three")
    top = agent("top", call("leaf", input="a"), "ok", call("leaf", input="b"), "fine")
    top = Agent(name="top", model=top.model, tools=[leaf.as_tool(child="kept")])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        await soon(session.run("go"))
        below = await child(runtime, session)
        exported = [[line async for line in item.export()] for item in (session, below)]
    async with Runtime(MemoryStore(), agents=[top]) as runtime:
        session, below = [await runtime.import_session(lines) for lines in exported]
        assert await told(session) == [("leaf", "ok", "one")]
        assert [row.id for row in await session.children()] == [below.id] == ["s.leaf"]
        assert (await soon(session.run("again"))).output == "fine"
        assert await told(session) == [("leaf", "ok", "one"), ("leaf", "ok", "two")]
        assert (await soon(below.run("directly"))).output == "three"
    async with Runtime(MemoryStore(), agents=[top]) as runtime:
        below = await runtime.import_session(exported[1])
        assert (await soon(below.run("alone"))).output == "two", "a child without its parent is a session as any other"


async def test_a_parent_that_is_imported_while_it_waits_for_a_child(memory: Store) -> None:
    from perdure.stores.memory import MemoryStore

    top = row("top", last=payer())
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        (pending,) = (await soon(session.run("go"))).pending
        below = await child(runtime, session)
        exported = [[line async for line in item.export()] for item in (session, below)]
    async with Runtime(MemoryStore(), agents=[top]) as runtime:
        session, below = [await runtime.import_session(lines) for lines in exported]
        assert [item.id for item in await session.pending()] == [pending.id]
        await session.decide(pending.id, "approve")
        assert (await soon(session.resume())).output == "top is done"
