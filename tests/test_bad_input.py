"""Bad input: each case one typed error, one sentence that says what to do, nothing half-written, nothing lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import (
    Agent,
    Conflict,
    Document,
    Image,
    Limits,
    NotFound,
    PerdureError,
    Refused,
    Runtime,
    StoreError,
    ToolContext,
    UsageError,
    tool,
)
from perdure.core.codec import encode_json
from perdure.core.messages import ToolCall
from perdure.core.specs import Guards, ModelSettings, Reminder, StopWhen, ToolErrors, Window
from perdure.events import CallStarted, InputAccepted, RunEnded
from perdure.ports import Store
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ManualClock, ScriptedModel, call
from tests.runtime.scenes import check_store, events, kinds, soon, told, turned, until


@contextmanager
def refused(kind: type[PerdureError], words: str) -> Iterator[None]:
    """One error of exactly this kind, with these words, in one sentence."""
    with pytest.raises(kind) as raised:
        yield
    said = str(raised.value)
    assert raised.type is kind
    assert words in said
    assert said.endswith("."), said
    assert "\n" not in said
    assert 20 < len(said) < 300, said
    assert "Traceback" not in said


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str | Store]:
    place: str | Store = MemoryStore() if request.param == "memory" else f"sqlite:{tmp_path / 'x.db'}"
    yield place
    await check_store(place)


@tool(ask=True)
async def act(what: str = "it") -> str:
    """Act."""
    return f"{what} is done"


def clerk(*answers: Any, **options: Any) -> Agent[Any]:
    return Agent(name="clerk", model=ScriptedModel(list(answers)), **options)


# Stores


@pytest.mark.parametrize(
    ("url", "kind", "words"),
    [
        ("", UsageError, "names no store"),
        ("clerk.db", UsageError, "names no store"),
        ("memory:x", UsageError, "names no store"),
        ("sqlite:", UsageError, "names no store"),
        ("sqlite::memory:", UsageError, "needs a file"),
        ("mongodb://x", UsageError, "names no store"),
        ("sqlite:{folder}/missing/x.db", StoreError, "create it first"),
        ("sqlite:{folder}", StoreError, "is a folder"),
        ("sqlite:/dev/null/x.db", StoreError, "does not exist or cannot be read"),
        ("sqlite:{folder}/notes.txt", StoreError, "is not a SQLite database"),
        ("sqlite:{folder}/other.db", StoreError, "another program's database"),
        ("sqlite:{folder}/newer.db", StoreError, "newer version of Perdure"),
        ("sqlite:{folder}/damaged.db", StoreError, "is"),
    ],
)
async def test_stores_that_cannot_be_opened(tmp_path: Path, url: str, kind: Any, words: str) -> None:
    (tmp_path / "notes.txt").write_text("Dear diary, today I was mistaken for a database.\n" * 50)
    with closing(apsw.Connection(str(tmp_path / "other.db"))) as other:
        other.execute("CREATE TABLE customers (name TEXT)")
    async with Runtime(f"sqlite:{tmp_path}/newer.db"):
        pass
    with closing(apsw.Connection(str(tmp_path / "newer.db"))) as newer:
        newer.execute("PRAGMA user_version = 9999")
    (tmp_path / "damaged.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 4000)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with refused(kind, words):
        async with Runtime(url.replace("{folder}", str(tmp_path))):
            pass
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name in before}
    assert after == before, "a file that is not ours is never changed"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
async def test_a_store_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with refused(StoreError, "cannot be opened"):
        async with Runtime(f"sqlite:{tmp_path}/closed/x.db"):
            pass


async def test_a_locked_file_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    agent = clerk("Done.")
    path = tmp_path / "x.db"
    async with Runtime(SqliteStore(path, busy_timeout=0.05), agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        with closing(apsw.Connection(str(path))) as other:
            other.execute("BEGIN IMMEDIATE")
            with refused(StoreError, "is locked by another program"):
                await session.start("go", key="k")
            with refused(StoreError, "is locked by another program"):
                await runtime.open(agent, id="y")
            other.execute("ROLLBACK")
        assert await kinds(session) == ["SessionOpened"]
        assert (await soon(session.run("go", key="k"))).output == "Done."
        assert [row.id async for row in runtime.sessions()] == ["x"]
    await check_store(f"sqlite:{path}")


async def test_a_file_that_is_locked_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(apsw.Connection(str(path))) as other:
        other.execute("BEGIN EXCLUSIVE")
        other.execute("CREATE TABLE t (x)")
        with refused(StoreError, "is locked by another program"):
            async with Runtime(SqliteStore(path, busy_timeout=0.05)):
                pass
        other.execute("ROLLBACK")
    async with Runtime(f"sqlite:{path}"):
        pass


@contextmanager
def writers() -> Iterator[list[apsw.Connection]]:
    """The connections that a store opens meanwhile; the one that may write is the disk's bottleneck."""
    made: list[apsw.Connection] = []
    apsw.connection_hooks.append(made.append)
    try:
        yield made
    finally:
        apsw.connection_hooks.remove(made.append)


def fill(made: list[apsw.Connection]) -> apsw.Connection:
    """Lets the disk be full from now on: the writer gets no more pages."""
    (writer,) = [connection for connection in made if _is_writer(connection)]
    writer.pragma("max_page_count", 1)
    return writer


def _is_writer(connection: apsw.Connection) -> bool:
    for _ in range(1000):
        try:
            return not connection.readonly("main") and connection.pragma("synchronous") == 2
        except apsw.ConnectionClosedError:
            return False
        except apsw.ThreadingViolationError:
            # The store's thread is using it just now.
            time.sleep(0.001)
    raise AssertionError("the store's thread never let go of its connection")


async def test_a_full_disk_is_told_and_nothing_is_half_written(tmp_path: Path) -> None:
    agent = clerk("Done.")
    with writers() as made:
        async with Runtime(f"sqlite:{tmp_path / 'x.db'}", agents=[agent]) as runtime:
            session = await runtime.open(agent, id="x")
            writer = fill(made)
            with refused(StoreError, "is full; free space"):
                await session.start("go " * 50_000, key="k")
            with refused(StoreError, "is full; free space"):
                await session.start(["see", Document(b"x" * 100_000)])
            assert await kinds(session) == ["SessionOpened"]
            writer.pragma("max_page_count", 100_000)
            assert (await soon(session.run("go " * 50_000, key="k"))).output == "Done."
            assert len(await events(session, InputAccepted)) == 1
    await check_store(f"sqlite:{tmp_path / 'x.db'}")


async def test_a_disk_that_is_full_for_a_while_only_delays_a_run(tmp_path: Path) -> None:
    clock = ManualClock()
    ledger: list[int] = []
    writer: list[apsw.Connection] = []

    @tool
    async def work() -> str:
        ledger.append(1)
        writer.append(fill(made))
        return "x" * 200_000

    agent = clerk([call("work")], "Done.", tools=[work])
    with writers() as made:
        async with Runtime(f"sqlite:{tmp_path / 'x.db'}", agents=[agent], clock=clock) as runtime:
            session = await runtime.open(agent, id="x")
            run = await session.start("go")
            await until(lambda: ledger)
            await turned(clock, lambda: clock.monotonic() > 1, step=0.1)
            writer[0].pragma("max_page_count", 100_000)
            await turned(clock, lambda: session.state.run is None and session.state.runs == 1, step=0.1)
            assert (await run).output == "Done."
    assert ledger == [1]
    await check_store(f"sqlite:{tmp_path / 'x.db'}")


async def test_a_disk_that_stays_full_is_told_and_the_run_goes_on_when_it_can(tmp_path: Path) -> None:
    clock = ManualClock()
    ledger: list[int] = []
    writer: list[apsw.Connection] = []

    @tool
    async def work() -> str:
        ledger.append(1)
        writer.append(fill(made))
        return "x" * 45_000

    agent = clerk([call("work")], "Done.", tools=[work])
    with writers() as made:
        async with Runtime(f"sqlite:{tmp_path / 'x.db'}", agents=[agent], clock=clock) as runtime:
            session = await runtime.open(agent, id="x")
            waiting = asyncio.ensure_future(session.run("go"))
            await turned(clock, waiting.done, step=0.2)
            with refused(StoreError, "is full; free space"):
                await waiting
            writer[0].pragma("max_page_count", 100_000)
            await turned(clock, lambda: session.state.run and session.state.run.calls[0].pause, step=0.2)
            (pending,) = await session.pending()
            assert pending.kind == "unknown", "the outcome is lost, so it is in doubt: never run twice"
            await session.decide(pending.id, "answer", value="it happened")
            resumed = asyncio.ensure_future(session.resume())
            await turned(clock, resumed.done, step=0.2)
            assert (await resumed).output == "Done."
    assert ledger == [1]
    await check_store(f"sqlite:{tmp_path / 'x.db'}")


# Names that nobody has


async def test_unknown_sessions(store: str | Store) -> None:
    async with Runtime(store) as runtime:
        for id in ("nobody", "", "\x00", "x' OR 1=1 --"):
            with refused(NotFound, f"no session {id!r}"):
                await runtime.session(id)
        with refused(NotFound, "no session 'x'"):
            await runtime.session("x", tenant="acme")
        assert [row async for row in runtime.sessions()] == []


async def test_unknown_agents(store: str | Store) -> None:
    agent = clerk("Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        await runtime.open(agent, id="x")
    async with Runtime(store) as runtime:
        session = await runtime.session("x")
        for verb in (session.run, session.start, session.send):
            with refused(UsageError, "'clerk' is not known here; pass it in agents=[…]"):
                await verb("go")
        with refused(UsageError, "'clerk' is not known here"):
            await session.resume()
        assert await kinds(session) == ["SessionOpened"]


async def test_unknown_tools_are_the_models_to_mend(store: str | Store) -> None:
    agent = clerk([call("refund", order="7")], "I see.", tools=[act])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).output == "I see."
        assert await told(session) == [("refund", "error", "There is no tool 'refund'; the tools are: act.")]
        assert await events(session, CallStarted) == []


async def test_unknown_and_second_decisions(store: str | Store) -> None:
    agent = clerk([call("act")], "Done.", tools=[act])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = (await soon(session.run("go"))).pending
        before = await kinds(session)
        with refused(NotFound, "no pending decision"):
            await session.decide("nonsense", "approve")
        with refused(NotFound, "Nothing pending has the id"):
            await runtime.decide("nonsense", "approve")
        with refused(Refused, "approval takes approve or deny or edit or answer, not aprove"):
            await session.decide(pending.id, "aprove")  # type: ignore[arg-type]
        with refused(UsageError, "An edit needs arguments="):
            await session.decide(pending.id, "edit")
        assert await kinds(session) == before
        await session.decide(pending.id, "deny", by="ann")
        with refused(Conflict, "already decided by ann: deny"):
            await session.decide(pending.id, "approve")
        await soon(session.resume())
        with refused(Conflict, "already decided by ann: deny"):
            await runtime.decide(pending.id, "approve")
        assert len(await events(session, RunEnded)) == 1


@pytest.mark.parametrize("model", ["openai-gpt", "nobody:gpt", "", "scripted:", "scripted:/no/such/file.json"])
async def test_models_that_nobody_provides(tmp_path: Path, model: str) -> None:
    agent = Agent(name="clerk", model=model)
    url = f"sqlite:{tmp_path / 'x.db'}"
    words = "has no model" if not model else "cannot be read" if "file.json" in model else "Nobody provides"
    with refused(UsageError, words):
        async with Runtime(url, agents=[agent]):
            pass
    sound = clerk("Done.")
    async with Runtime(url, agents=[sound]) as runtime:
        session = await runtime.open(sound, id="x")
        if model:
            with refused(UsageError, words):
                await session.run("go", model=model)
        assert await kinds(session) == ["SessionOpened"]


async def test_engines_that_nobody_provides() -> None:
    with refused(UsageError, "names no engine"):
        async with Runtime("memory:", engine="abacus"):
            pass


# Agents and tools


def test_a_tool_without_types_is_refused_when_its_agent_is_used() -> None:
    def untyped(order, cents: int) -> str:  # type: ignore[no-untyped-def]
        return "never"

    async def open_with(*tools: Any) -> None:
        async with Runtime("memory:", agents=[clerk("Done.", tools=list(tools))]):
            pass

    with refused(UsageError, "the parameter 'order' has no type"):
        asyncio.run(open_with(untyped))
    with refused(UsageError, "Two tools are called 'act'"):
        asyncio.run(open_with(act, tool(act.function, name="act")))


async def test_agents_that_make_no_sense() -> None:
    with refused(UsageError, "An agent needs a name"):
        Agent(name=" ", model="x:y")
    with refused(UsageError, "concurrency=0; take at least 1"):
        Agent(name="clerk", concurrency=0)
    with refused(UsageError, "Two agents are named 'clerk'"):
        async with Runtime("memory:", agents=[clerk("One."), clerk("One.", instructions="Other.")]):
            pass
    with refused(UsageError, "give a number of at least 0, or None"):
        Limits(turns=-1)


@pytest.mark.parametrize("name", ModelSettings.__struct_fields__)
@settings(max_examples=60, deadline=None)
@given(
    value=st.one_of(
        *(st.none(), st.booleans(), st.integers(-5, 5), st.floats(0, 3), st.just("high"), st.text(max_size=3)),
        *(
            st.just(()),
            st.lists(st.text(max_size=2), max_size=2),
            st.lists(st.integers(), max_size=2),
            st.just({"a": 1}),
        ),
    )
)
def test_settings_that_can_be_made_can_be_read_again(name: str, value: Any) -> None:
    """Else the session that they were written to could not be loaded any more."""
    try:
        made = ModelSettings(**{name: value})
    except UsageError as error:
        assert f"ModelSettings({name}=" in str(error)
        return
    assert msgspec.json.decode(encode_json(made), type=ModelSettings) == msgspec.convert(
        msgspec.to_builtins(made), ModelSettings
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"thinking": "max"}, "thinking='max'): give one of off, low, medium, high"),
        ({"stop": "END"}, "stop='END'): give a list of texts"),
        ({"stop": [1]}, "give a list of texts"),
        ({"temperature": "hot"}, "temperature='hot'): give a number"),
        ({"max_tokens": 1.5}, "give a whole number"),
        ({"tool_choice": None}, "auto, none, required"),
    ],
)
def test_settings_of_a_wrong_type_are_told(options: dict[str, Any], words: str) -> None:
    with refused(UsageError, words):
        ModelSettings(**options)


async def test_a_run_is_not_asked_of_what_is_no_model() -> None:
    agent = clerk("Done.")
    async with Runtime("memory:", agents=[agent]) as runtime:
        session = await runtime.open(agent)
        for ask in (lambda: session.run("go", model=5), lambda: session.set_model(5)):  # type: ignore[arg-type]
            with refused(UsageError, "5 is no model"):
                await ask()
        assert (await soon(session.run("go"))).output == "Done."


async def test_limits_with_a_point_are_whole_numbers_or_told(tmp_path: Path) -> None:
    with refused(UsageError, "Limits(turns=2.5): give a whole number"):
        Limits(turns=2.5)  # type: ignore[arg-type]
    made = Limits(tokens=1e6, turns=3.0)  # type: ignore[arg-type]
    assert (repr(made.tokens), repr(made.turns)) == ("1000000", "3")
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Done."), limits=made)
    for _ in range(2):
        async with Runtime(f"sqlite:{tmp_path}/x.db", agents=[agent]) as runtime:
            assert (await soon((await runtime.open(agent, id="x")).run("go"))).output == "Done."


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"guards": Guards(empty_answers="x")}, "guards.empty_answers"),  # type: ignore[arg-type]
        ({"tool_errors": ToolErrors(then="explode")}, "tool_errors.then"),  # type: ignore[arg-type]
        ({"reminders": [Reminder(text=5)]}, "reminders"),  # type: ignore[arg-type]
        ({"stop_when": [StopWhen(turns="x")]}, "stop_when"),  # type: ignore[arg-type]
        ({"window": Window(tokens=9.5)}, "Window(tokens=9.5)"),  # type: ignore[arg-type]
        ({"window": Window(at="x")}, "Window(at='x')"),  # type: ignore[arg-type]
        ({"settings": {"temperature": 1}}, "settings takes ModelSettings(…)"),
        ({"policy": "ask"}, "policy takes Policy(…)"),
        ({"instructions": 5}, "a text or a function"),
        ({"model": 5}, "5 is no model"),
        ({"name": 5}, "needs a name"),
    ],
)
async def test_an_agent_that_could_not_be_read_again_is_refused(options: dict[str, Any], words: str) -> None:
    with refused(UsageError, words):
        agent = Agent(**{"name": "clerk", "model": ScriptedModel([]), **options})
        async with Runtime("memory:", agents=[agent]):
            pass


# Inputs


@pytest.mark.parametrize("empty", ["", "  \n\t", [], [""], ()])
async def test_empty_prompts(store: str | Store, empty: Any) -> None:
    agent = clerk("Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        for verb in (session.run, session.start, session.send):
            with refused(UsageError, "The input is empty; say what the agent shall do"):
                await verb(empty)
        assert await kinds(session) == ["SessionOpened"]
        assert (await soon(session.run("go"))).output == "Done."


@pytest.mark.parametrize("wrong", [None, 7, {"text": "go"}, ["go", 7], b"go", object()])
async def test_inputs_of_no_known_kind(store: str | Store, wrong: Any) -> None:
    agent = clerk("Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        with refused(UsageError, "is refused; pass text, Image(…), Document(…) or a list"):
            await session.run(wrong)
        assert await kinds(session) == ["SessionOpened"]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty.png").write_bytes(b"")
    with refused(UsageError, "there is no such file"):
        Image(tmp_path / "missing.png")
    with refused(UsageError, "it is empty"):
        Document(tmp_path / "empty.png")
    with refused(UsageError, "is no known kind of image"):
        Image(b"not a picture")
    with refused(UsageError, "cannot be read"):
        Document(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"id": ""}, "A session's id is empty"),
        ({"id": "  "}, "A session's id is empty"),
        ({"id": 7}, "A session's id is text"),
        ({"id": "\ud800"}, "lone surrogate"),
        ({"tenant": "\ud800"}, "lone surrogate"),
        ({"tenant": None}, "A tenant is text"),
        ({"metadata": {"order": 7}}, "keys and values are strings"),
        ({"metadata": {7: "order"}}, "keys and values are strings"),
        ({"data": object()}, "cannot be written as JSON"),
        ({"data": {"a": float}}, "cannot be written as JSON"),
    ],
)
async def test_sessions_that_cannot_be_opened(store: str | Store, options: dict[str, Any], words: str) -> None:
    agent = clerk("Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        with refused(UsageError, words):
            await runtime.open(agent, **options)
        assert [row async for row in runtime.sessions()] == []


async def test_options_of_a_run_that_make_no_sense(store: str | Store) -> None:
    agent = clerk("Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        with refused(UsageError, "busy"):
            await session.run("go", busy="later")  # type: ignore[arg-type]
        with refused(UsageError, "A key is text"):
            await session.run("go", key=7)  # type: ignore[arg-type]
        with refused(UsageError, "cannot be used"):
            await session.run("go", output=asyncio.Event)
        assert await kinds(session) == ["SessionOpened"]


async def test_arguments_that_are_not_json(store: str | Store) -> None:
    """A model's are a result that it sees; a person's are refused before anything is written."""
    agent = clerk([ToolCall(0, "act", '{"what": '), call("act")], "Done.", tools=[act])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = (await soon(session.run("go"))).pending
        assert pending.call == 2
        before = await kinds(session)
        with refused(UsageError, "cannot be written as JSON"):
            await session.decide(pending.id, "edit", arguments={"what": object()})
        with refused(UsageError, "cannot be written as JSON"):
            await session.decide(pending.id, "answer", value=object())
        assert await kinds(session) == before
        await session.decide(pending.id, "approve")
        assert (await soon(session.resume())).output == "Done."
        assert [outcome for _, outcome, _ in await told(session)] == ["error", "ok"]


# Types that no longer fit


@dataclass
class Old:
    user: str


@dataclass
class New:
    user: str
    vat: str


def told_by(data_type: Any) -> Any:
    @tool(name="greet")
    async def greet(ctx: ToolContext[Any, data_type]) -> str:  # type: ignore[valid-type]
        return "hello"

    return greet


async def test_data_and_outputs_that_no_longer_fit(store: str | Store) -> None:
    before = clerk('{"user": "u7"}', tools=[told_by(Old)], output=Old)
    after = clerk("unused", tools=[told_by(New)], output=New)
    narrow = clerk("unused", output=New)
    async with Runtime(store, agents=[before]) as runtime:
        session = await runtime.open(before, id="x", data=Old("u7"))
        assert (await soon(session.run("go", key="k"))).output == Old("u7")
        log = await session.records()
    async with Runtime(store, agents=[after]) as runtime:
        with refused(UsageError, "does not fit the tool 'greet'"):
            await runtime.open(after, id="x")
        session = await runtime.session("x")
        with refused(UsageError, "does not fit the tool 'greet'"):
            await session.run("more")
        assert await session.records() == log
    async with Runtime(store, agents=[narrow]) as runtime:
        session = await runtime.open(narrow, id="x")
        with refused(UsageError, "no longer fits its type"):
            await session.run("go", key="k")
        assert await session.records() == log


# fork()

FORKED = """
import asyncio, os, sys
from perdure import Agent, Runtime, UsageError
from perdure.testing import ScriptedModel

agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Done."))
url = sys.argv[1]

def report(error):
    assert type(error) is UsageError, repr(error)
    assert "opened before fork(); open a new one in the child" in str(error), error
    os.write(1, b"refused\\n")

def wait_for(pid):
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status

async def main():
    async with Runtime(url, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("before")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for use in (
                    lambda: session.run("in the child"),
                    lambda: runtime.open(agent, id="y"),
                    lambda: session.history(),
                    lambda: runtime.pending(),
                ):
                    try:
                        await use()
                    except Exception as error:
                        report(error)
                code = 0
            finally:
                os._exit(code)
        wait_for(pid)
        assert (await session.run("after")).output == "Done."
        assert len([m for m in await session.history() if type(m).__name__ == "UserMessage"]) == 2

asyncio.run(main())

with Runtime(url, agents=[agent]) as runtime:
    runtime.run_sync(agent, "before", id="z")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            try:
                runtime.run_sync(agent, "in the child", id="z")
            except Exception as error:
                report(error)
            code = 0
        finally:
            os._exit(code)
    wait_for(pid)
    assert runtime.run_sync(agent, "after", id="z").run == 2
"""


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_use_after_fork(tmp_path: Path, kind: str) -> None:
    (tmp_path / "forked.py").write_text(textwrap.dedent(FORKED))
    url = "memory:" if kind == "memory" else "sqlite:x.db"
    done = subprocess.run(
        [sys.executable, "forked.py", url], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["refused"] * 5
