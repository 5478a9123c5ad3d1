"""Messages between sessions: in order, once, to parents, children and names, or a dead letter that says why."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Image, Limits, NotFound, Refused, Runtime, Session, ToolContext, UsageError, tool
from perdure.core.errands import MAX_HOPS
from perdure.core.errors import StoreError
from perdure.events import InputAccepted, MessageSent, MessageSettled, Noted, RunEnded
from perdure.plugins import Hooks, Send, StartChild, StopChild
from perdure.ports import Batch, ModelRequest, Store
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel, call
from perdure.tools import send_message
from tests.runtime.kin import Gate, agent, born, child, children, end, opened, row
from tests.runtime.scenes import crashing, events, said, seen, soon, told, turned, until

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)


def teller(*sends: tuple[str, str], name: str = "teller", more: tuple[Any, ...] = (), **options: Any) -> Agent[Any]:
    """Sends these messages, one call each, in one turn."""
    calls = [call("send_message", to=to, text=text) for to, text in sends]
    return agent(name, calls, *(more or ("sent",)), tools=[send_message()], **options)


def listener(name: str = "listener", answers: int = 9, **options: Any) -> Agent[Any]:
    return agent(name, *[f"heard {number}" for number in range(1, answers + 1)], **options)


async def heard(session: Session[Any]) -> list[str]:
    """The words that came from other sessions, in order, however many came in one run."""
    return [
        event.parts[1].text if len(event.parts) > 1 else event.parts[0].text
        for event in await events(session, InputAccepted)
        if event.by.startswith("session ")
    ]


# On their way


async def test_messages_arrive_once_and_in_order(store: str | Store) -> None:
    one, other = teller(*[("ear", str(number)) for number in range(8)]), listener()
    async with Runtime(store, agents=[one, other]) as runtime:
        ear = await runtime.open(other, id="ear")
        session = await runtime.open(one, id="mouth")
        await soon(session.run("go"))
        await until(lambda: not session.state.outbox)
        assert await heard(ear) == [str(number) for number in range(8)]
        assert (await said(ear))[0].startswith("[message of teller, session mouth] 0")
        assert [event.message for event in await events(session, MessageSettled)] == list(range(1, 9))
        assert {event.by for event in await events(ear, InputAccepted)} == {"session mouth"}


async def test_a_message_leaves_with_the_outcome_of_its_call(memory: Store) -> None:
    @tool(effect="read")
    async def try_it(ctx: ToolContext[Any, Any]) -> str:
        """Say something, and fail."""
        ctx.send("ear", "never")
        raise RuntimeError("too bad")

    one, other = agent("one", call("try_it"), "sorry", tools=[try_it]), listener()
    async with Runtime(memory, agents=[one, other]) as runtime:
        ear = await runtime.open(other, id="ear")
        session = await runtime.open(one)
        await soon(session.run("go"))
        assert await events(session, MessageSent) == []
        assert await heard(ear) == []


async def test_an_idle_session_starts_a_run_and_a_busy_one_hears_it_at_its_next_turn(store: str | Store) -> None:
    gate = Gate()
    other = agent("other", "first", call("wait", what="x"), "I heard both.", tools=[gate.tool()])
    async with Runtime(store, agents=[other]) as runtime:
        ear = await runtime.open(other, id="ear")
        mouth = await runtime.open(other, id="mouth")
        assert await mouth.message("ear", "one", by="me") == 1
        await seen(ear, RunEnded)
        run = await ear.start("go")
        await until(lambda: gate.inside == 1)
        assert await mouth.message("ear", "two") == 2
        await until(lambda: not mouth.state.outbox)
        gate.open.set()
        assert (await soon(run)).output == "I heard both."
        assert len(await events(ear, RunEnded)) == 2
        assert (await said(ear))[-1] == "[message of other, session mouth] two"


async def test_images_travel(store: str | Store) -> None:
    shown: list[bytes] = []

    async def look(request: ModelRequest) -> str:
        media = [part for m in request.messages for part in getattr(m, "parts", ()) if hasattr(part, "artifact")]
        assert request.load is not None
        shown.extend([await request.load(part.artifact) for part in media])
        return "seen"

    other = Agent(name="other", model=ScriptedModel(look))
    async with Runtime(store, agents=[other]) as runtime:
        ear = await runtime.open(other, id="ear")
        mouth = await runtime.open(other, id="mouth")
        await mouth.message("ear", ["look at this", Image(PIXEL, "image/png")])
        await seen(ear, RunEnded)
        await mouth.delete()
        assert shown == [PIXEL]
        assert await mouth_less(runtime)


async def mouth_less(runtime: Runtime) -> bool:
    return [row.id async for row in runtime.sessions()] == ["ear"]


# Whom it may concern


async def test_a_child_speaks_to_its_parent_while_it_works(store: str | Store) -> None:
    gate = Gate()
    leaf = teller(("parent", "half way"), name="leaf", more=(call("wait", what="x"), "done"))
    leaf = Agent(name="leaf", model=leaf.model, tools=[send_message(), gate.tool()])
    top = agent("top", call("leaf", input="go"), "I heard that, too.", tools=[leaf])
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        await seen(session, InputAccepted, 2)
        gate.open.set()
        assert (await soon(run)).output == "I heard that, too."
        assert await heard(session) == ["half way"]
        assert (await said(session))[-1] == "[message of leaf, session s.leaf-1] half way"


async def test_a_parent_speaks_to_a_kept_child(memory: Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "I heard more.", tools=[gate.tool()])
    tools = [leaf.as_tool(child="kept", background=True), send_message()]
    top = agent("top", call("leaf", input="go"), call("send_message", to="child leaf", text="more"), "wait", "ok")
    top = Agent(name="top", model=top.model, tools=tools)
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        (below,) = await born(runtime, session)
        await seen(below, InputAccepted, 2)
        gate.open.set()
        assert (await soon(run)).output == "ok"
        assert await said(below) == ["go", "[message of top, session s] more"]
        assert len(await events(below, RunEnded)) == 1


async def test_who_has_no_parent_is_told_so(memory: Store) -> None:
    one = teller(("parent", "hello?"))
    async with Runtime(memory, agents=[one]) as runtime:
        session = await runtime.open(one, id="s")
        await soon(session.run("go"))
        ((_, outcome, text),) = await told(session)
        assert (outcome, text) == ("error", "Session 's' has no parent; send the message to a session by its id.")
        with pytest.raises(Refused, match="has no parent"):
            await session.message("parent", "hello?")


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("nobody", "There is no session 'nobody'"),
        ("child nobody", "has no child 'nobody'"),
    ],
)
async def test_what_nobody_can_receive_is_a_dead_letter(store: str | Store, to: str, words: str) -> None:
    one = teller((to, "hello?"), ("ear", "hello!"))
    async with Runtime(store, agents=[one, listener()]) as runtime:
        session = await runtime.open(one, id="s")
        ear = await runtime.open(listener(), id="ear")
        await soon(session.run("go"))
        await until(lambda: not session.state.outbox)
        (letter,) = await session.dead_letters()
        assert words in letter.why
        assert letter.why.endswith(".")
        assert (letter.sent.message, letter.sent.parts[0].text) == (1, "hello?")  # type: ignore[union-attr]
        assert await heard(ear) == ["hello!"], "the others are not held up"
        rows = [row async for row in runtime.sessions() if row.id == "s"]
        assert rows[0].summary.dead == 1


async def test_a_dead_letter_is_sent_again_when_there_is_somebody(store: str | Store) -> None:
    one, other = teller(("ear", "one"), ("ear", "two")), listener()
    async with Runtime(store, agents=[one, other]) as runtime:
        session = await runtime.open(one, id="s")
        await soon(session.run("go"))
        await until(lambda: len(session.state.dead) == 2)
        with pytest.raises(NotFound, match="no dead letter 7"):
            await session.send_again(7)
        ear = await runtime.open(other, id="ear")
        await session.send_again(2)
        await until(lambda: not session.state.outbox)
        await session.send_again(1)
        await until(lambda: not session.state.outbox)
        assert await heard(ear) == ["two", "one"]
        assert await session.dead_letters() == ()
        with pytest.raises(NotFound):
            await session.send_again(1)


async def test_a_letter_that_did_arrive_is_not_heard_twice(memory: Store) -> None:
    """The sender died between the delivery and its note of it: the letter is brought again."""
    one, other = teller(("ear", "one")), listener()
    stubborn = NoNote(memory)
    async with crashing(stubborn, agents=[one, other]) as runtime:  # type: ignore[arg-type]
        ear = await runtime.open(other, id="ear")
        session = await runtime.open(one, id="s")
        await session.start("go")
        await seen(ear, RunEnded)
        await until(lambda: stubborn.held)
        stubborn.is_dead = True
    stubborn.is_open = True
    async with Runtime(memory, agents=[one, other]) as runtime:
        session, ear = await runtime.session("s"), await runtime.session("ear")
        await seen(session, MessageSettled)
        assert await heard(ear) == ["one"]


class NoNote:
    """A store in which the note that a message arrived is never written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.held = self.is_dead = self.is_open = False

    async def append(self, batch: Batch) -> None:
        if any(b"MessageSettled" in entry.payload for entry in batch.entries) and not self.is_open:
            self.held = True
            await asyncio.Event().wait()
        await self._store.append(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_tenants_do_not_hear_each_other(store: str | Store) -> None:
    one, other = teller(("ear", "secret")), listener()
    async with Runtime(store, agents=[one, other]) as runtime:
        ear = await runtime.open(other, id="ear", tenant="acme")
        session = await runtime.open(one, id="s", tenant="evil")
        await soon(session.run("go"))
        await until(lambda: session.state.dead)
        assert "There is no session 'ear'" in (await session.dead_letters())[0].why
        assert await events(ear, InputAccepted) == []
        uid = await session.message(ear.uid, "by its uid")
        await until(lambda: len(session.state.dead) == 2)
        assert uid == 2
        assert await events(ear, InputAccepted) == []


async def test_a_store_out_of_order_makes_no_dead_letters(memory: MemoryStore) -> None:
    clock = ManualClock()
    one, other = teller(("ear", "one")), listener()
    flaky = Flaky(memory)
    async with Runtime(flaky, agents=[one, other], clock=clock) as runtime:  # type: ignore[arg-type]
        ear = await runtime.open(other, id="ear")
        session = await runtime.open(one, id="s")
        flaky.refuse.add(ear.uid)
        await session.start("go")
        await turned(clock, lambda: flaky.refused > 8)
        flaky.refuse.clear()
        await turned(clock, lambda: session.state.messages and not session.state.outbox)
        assert await session.dead_letters() == ()
        assert await heard(ear) == ["one"]


class Flaky:
    """A store that refuses appends to some sessions, as if its disk were full for a while."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.refuse: set[str] = set()
        self.refused = 0

    async def append(self, batch: Batch) -> None:
        if batch.session in self.refuse:
            self.refused += 1
            raise StoreError("the disk is full")
        await self._store.append(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_another_process_may_bring_it(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'x.db'}"
    one, other = listener("one"), listener("other")
    async with Runtime(url, agents=[one, other]) as runtime, Runtime(url, engine=None) as outside:
        ear = await runtime.open(other, id="ear")
        await runtime.open(one, id="s")
        session = await outside.session("s")
        await session.message("ear", "from outside")
        await seen(ear, RunEnded)
        assert await heard(ear) == ["from outside"]


async def test_a_session_may_write_to_itself(memory: Store) -> None:
    one = teller(("s", "remember this"), more=("sent", "I remember."))
    async with Runtime(memory, agents=[one]) as runtime:
        session = await runtime.open(one, id="s")
        await soon(session.run("go"))
        await until(lambda: session.state.messages and _is_idle(session))
        assert await heard(session) == ["remember this"]


# What makes no sense


async def test_a_message_without_sense_is_refused_at_once(memory: Store) -> None:
    one = teller(("", "hello"), ("ear", ""), ("ear", " "))
    async with Runtime(memory, agents=[one]) as runtime:
        session = await runtime.open(one)
        for to, input in (("ear", ""), ("ear", []), (7, "x"), ("", "x")):
            with pytest.raises(UsageError) as caught:
                await session.message(to, input)  # type: ignore[arg-type]
            assert "\n" not in str(caught.value)
        await soon(session.run("go"))
        assert [outcome for _, outcome, _ in await told(session)][:2] == ["error", "error"]


async def test_two_that_answer_each_other_for_ever_are_ended(memory: Store) -> None:
    def back(to: str) -> Any:
        def answer(request: ModelRequest) -> Any:
            last = request.messages[-1]
            if type(last).__name__ == "ToolMessage":
                texts = [part.text for result in last.results for part in result.parts]
                return texts[0]
            return call("send_message", to=to, text="and you?")

        return answer

    one = Agent(name="one", model=ScriptedModel(back("b")), tools=[send_message()])
    two = Agent(name="two", model=ScriptedModel(back("a")), tools=[send_message()])
    async with Runtime(memory, agents=[one, two]) as runtime:
        a, b = await runtime.open(one, id="a"), await runtime.open(two, id="b")
        await soon(a.run("go"))
        await until(lambda: a.state.messages + b.state.messages == MAX_HOPS and _is_idle(a) and _is_idle(b))
        last = a.state.ended[-1].output
        assert last == (
            f"The message would be number {MAX_HOPS + 1} in a row of sessions that answer each other; ask a person."
        )
        await a.run("once more", limits=Limits(turns=1))
        assert a.state.messages + b.state.messages > MAX_HOPS, "a person starts anew"
        await until(lambda: _is_idle(a) and _is_idle(b))


def _is_idle(session: Session[Any]) -> bool:
    state = session.state
    return state.run is None and not state.queue and not state.outbox


# Children that go their own way


def starter(*turns: Any, tools: Any = (), **options: Any) -> Agent[Any]:
    @tool(effect="idempotent")
    async def hire(name: str, agent: str, task: str, ctx: ToolContext[Any, Any]) -> str:
        """Start a child."""
        ctx.start_child(name, agent, task, limits=options.get("child_limits"))
        return "hired"

    @tool(effect="idempotent")
    async def fire(name: str, ctx: ToolContext[Any, Any]) -> str:
        """Stop a child."""
        ctx.stop_child(name)
        return "fired"

    more = {key: value for key, value in options.items() if key != "child_limits"}
    return agent("boss", *turns, tools=[hire, fire, *tools], **more)


def hire(name: str, task: str = "work", agent: str = "worker") -> Any:
    return call("hire", name=name, agent=agent, task=task)


async def test_a_child_is_started_and_its_end_is_news(store: str | Store) -> None:
    gate = Gate()
    worker = agent("worker", call("wait", what="x"), "worked", tools=[gate.tool()])
    boss = starter(hire("ann"), "I go on.", "Good, Ann.")
    async with Runtime(store, agents=[boss, worker]) as runtime:
        session = await runtime.open(boss, id="s", tenant="acme", data={"u": 1}, metadata={"order": "7"})
        assert (await soon(session.run("go"))).output == "I go on."
        (below,) = await born(runtime, session)
        assert (below.id, below.tenant) == ("s.ann", "acme")
        first = await opened(below)
        assert (first.data, first.metadata["order"]) == ({"u": 1}, "7")
        assert first.origin is not None
        assert first.origin.agents == ("boss",)
        gate.open.set()
        await seen(session, RunEnded, 2)
        assert (await said(session))[-1] == "[worker in session s.ann has ended] worked"
        assert session.state.ended[-1].output == "Good, Ann."


async def test_a_child_that_is_there_hears_the_task(memory: Store) -> None:
    worker = agent("worker", "one", "two")
    boss = starter(hire("ann", "a"), "ok", "fine", hire("ann", "b"), "ok", "fine")
    async with Runtime(memory, agents=[boss, worker]) as runtime:
        session = await runtime.open(boss, id="s")
        await soon(session.run("go"))
        await seen(session, RunEnded, 2)
        await soon(session.run("go"))
        await seen(session, RunEnded, 4)
        below = await child(runtime, session)
        assert await said(below) == ["a", "b"]


async def test_a_child_is_stopped_by_name(store: str | Store) -> None:
    gate = Gate()
    worker = agent("worker", call("wait", what="x"), "worked", tools=[gate.tool()])
    boss = starter(hire("ann"), "ok", call("fire", name="ann"), "ok", "Too bad.")
    async with Runtime(store, agents=[boss, worker]) as runtime:
        session = await runtime.open(boss, id="s")
        await soon(session.run("go"))
        await until(lambda: gate.inside == 1)
        await soon(session.run("enough"))
        await seen(session, RunEnded, 3)
        below = await child(runtime, session)
        assert await end(below) == ("cancelled", "by session s")
        assert (await said(session))[-1] == (
            "[worker in session s.ann has ended] worker did not finish (cancelled: by session s)."
        )


async def test_names_that_nobody_knows_are_dead_letters(memory: Store) -> None:
    boss = starter([hire("ann", agent="nobody"), call("fire", name="bob")], "ok")
    async with Runtime(memory, agents=[boss]) as runtime:
        session = await runtime.open(boss, id="s")
        await soon(session.run("go"))
        await until(lambda: len(session.state.dead) == 2)
        whys = [letter.why for letter in await session.dead_letters()]
        assert whys[0] == "The agent 'nobody' is not known here; pass it in agents=[…]."
        assert whys[1] == "Session 's' has no child 'bob'; there is nothing to stop."


async def test_the_parents_policy_and_limits_hold_for_a_started_child(memory: Store) -> None:
    from perdure import Policy

    gate = Gate()
    worker = agent("worker", call("wait", what="x"), "worked", tools=[gate.tool()], limits=Limits(turns=3, tokens=900))
    boss = starter(
        [hire("ann"), hire("bob")],
        "ok",
        "news",
        "news",
        policy=Policy(deny=["wait"]),
        limits=Limits(tokens=30_015, calls=8, depth=2),
        child_limits=Limits(turns=5),
    )
    async with Runtime(memory, agents=[boss, worker]) as runtime:
        session = await runtime.open(boss, id="s")
        assert (await soon(session.run("go"))).output == "ok"
        first, second = [event.limits for event in await events(session, MessageSent)]
        assert first is not None
        assert second is not None
        assert (first.tokens, first.calls, first.depth, first.turns) == (15_000, 3, 1, 5)
        assert (second.tokens, second.calls) == (7_500, 1), "what one has, nobody else has"
        ann = (await born(runtime, session, 2))[0]
        await seen(ann, RunEnded)
        (accepted,) = await events(ann, InputAccepted)
        assert accepted.overrides.limits is not None
        assert (accepted.overrides.limits.turns, accepted.overrides.limits.tokens) == (3, 900), "nor more than its own"
        assert (await told(ann))[0][1] == "denied"


async def test_depth_and_number_of_started_children_are_limited(memory: Store) -> None:
    worker = agent("worker", "worked")
    boss = starter([hire("a"), hire("b"), hire("c")], "ok", "news", "news", limits=Limits(children=2))
    async with Runtime(memory, agents=[boss, worker]) as runtime:
        session = await runtime.open(boss)
        await soon(session.run("go"))
        assert len(await events(session, MessageSent)) == 2
        refused = await events(session, Noted, kind="request_refused")
        told_of = [text for _, outcome, text in await told(session) if outcome == "error"]
        assert len(refused) + len(told_of) == 1
        await until(lambda: _is_idle(session))
        other = await runtime.open(boss, id="deep")
        await soon(other.run("go", limits=Limits(depth=0)))
        assert await events(other, MessageSent) == []
        assert {outcome for _, outcome, _ in await told(other)} == {"error"}
        assert "nested deeper" in (await told(other))[0][2]


async def test_hiring_for_ever_is_ended(memory: Store) -> None:
    def again(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return "ok" if type(last).__name__ == "ToolMessage" else hire("ann")

    worker = agent("worker", *["worked"] * (MAX_HOPS + 1))
    boss = starter("x")
    boss = Agent(name="boss", model=ScriptedModel(again), tools=boss.tools)
    async with Runtime(memory, agents=[boss, worker]) as runtime:
        session = await runtime.open(boss)
        await soon(session.run("go"))
        await until(lambda: session.state.messages == MAX_HOPS // 2 and _is_idle(session))
        below = await child(runtime, session)
        await until(lambda: _is_idle(below) and not below.state.owed and _is_idle(session))
        assert session.state.messages == MAX_HOPS // 2
        assert "ask a person" in (await told(session))[-1][2]


async def test_started_children_end_with_a_deleted_parent(memory: Store) -> None:
    gate = Gate()
    worker = agent("worker", call("wait", what="x"), "worked", tools=[gate.tool()])
    boss = starter(hire("ann"), "ok")
    async with Runtime(memory, agents=[boss, worker]) as runtime:
        session = await runtime.open(boss, id="s")
        await soon(session.run("go"))
        await until(lambda: gate.inside == 1)
        await soon(session.delete())
        assert gate.cancelled == ["x"]
        assert [row.id async for row in runtime.sessions(children=True)] == []


async def test_a_started_child_speaks_to_its_parent(memory: Store) -> None:
    worker = agent("worker", call("send_message", to="parent", text="hello"), "worked", tools=[send_message()])
    boss = starter(hire("ann"), "ok", "hello", "bye", "x")
    async with Runtime(memory, agents=[boss, worker]) as runtime:
        session = await runtime.open(boss, id="s")
        await soon(session.run("go"))
        await until(lambda: len(session.state.ended) >= 2 and _is_idle(session))
        below = await child(runtime, session)
        await until(lambda: _is_idle(below) and not below.state.owed and _is_idle(session))
        words = await heard(session)
        assert words == ["hello", "worked"]


# Directives


async def test_hooks_send_start_and_stop(memory: Store) -> None:
    gate = Gate()
    worker = agent("worker", call("wait", what="x"), "worked", tools=[gate.tool()])
    turns = iter([StartChild("ann", "worker", "work"), Send("ear", "a turn"), StopChild("ann")])

    async def direct(moment: Any) -> Any:
        return next(turns, None)

    look = gate.tool(name="look")
    boss = agent("boss", "one", "two", "three", "news", tools=[look], hooks=[Hooks(turn_start=direct)])
    async with Runtime(memory, agents=[boss, worker, listener()]) as runtime:
        ear = await runtime.open(listener(), id="ear")
        session = await runtime.open(boss, id="s")
        await soon(session.run("go"))
        await until(lambda: gate.inside == 1)
        await soon(session.run("go"))
        await seen(ear, RunEnded)
        assert await heard(ear) == ["a turn"]
        await soon(session.run("go"))
        await seen(session, RunEnded, 4)
        assert await end(await child(runtime, session)) == ("cancelled", "by session s")
        assert [event.by for event in await events(session, MessageSent)] == ["boss:direct"] * 3


async def test_the_family_of_a_started_child_keeps_together(memory: Store) -> None:
    """A started child has sub-agents of its own; all are listed below the root."""
    top = row("worker", last=agent("leaf", "leaf is done"))
    boss = starter(hire("ann"), "ok", "news")
    async with Runtime(memory, agents=[boss, top]) as runtime:
        session = await runtime.open(boss, id="s")
        await soon(session.run("go"))
        await seen(session, RunEnded, 2)
        ann = await child(runtime, session)
        leaf = await child(runtime, ann)
        assert leaf.id == "s.ann.leaf-1"
        assert (await opened(leaf)).origin.agents == ("boss", "worker")  # type: ignore[union-attr]
        assert len(await children(runtime, session)) == 1
