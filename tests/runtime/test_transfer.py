"""Sessions carried elsewhere as JSON lines, and conversations that come from other systems."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import (
    Agent,
    Conflict,
    Image,
    Refused,
    Runtime,
    Session,
    StoreError,
    ToolContext,
    UsageError,
    tool,
)
from perdure.core.codec import decode_event, digest_of, encode_event
from perdure.core.errors import TooNew
from perdure.core.events import HistoryImported
from perdure.core.messages import Text, ToolMessage, UserMessage
from perdure.core.repair import repair
from perdure.core.shared import Buffer
from perdure.core.transcript import unpaired
from perdure.events import CallStarted, RunEnded, SessionOpened
from perdure.ports import Store
from perdure.runtime.foreign import Reader
from perdure.stores.memory import MemoryStore
from perdure.testing import ScriptedModel, call
from tests.core.strategies import JSON_VALUE, often
from tests.runtime.scenes import check_log, crashing, events, said, seen, soon, told

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


@tool(effect="read")
async def look(what: str) -> str:
    return f"{what} is fine"


@tool(effect="read")
async def read_all(ctx: ToolContext) -> str:
    return "long " * 20_000


def clerk(*answers: Any, tools: Any = (look, read_all)) -> Agent[str]:
    return Agent(name="clerk", model=ScriptedModel(list(answers)), tools=list(tools))


async def lines_of(session: Session[Any]) -> list[bytes]:
    return [line async for line in session.export()]


async def make(store: str | Store) -> tuple[Agent[str], list[bytes]]:
    agent = clerk([call("look", what="it"), call("read_all")], "One.", "Two.", "Three.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x", tenant="acme", metadata={"order": "7"}, data={"user": "u7"})
        await session.run(["one", Image(PNG)])
        await session.rename("A title")
        return agent, await lines_of(session)


async def test_what_comes_back_is_the_same_byte_for_byte(store: str | Store, tmp_path: Path) -> None:
    agent, lines = await make(store)
    other = f"sqlite:{tmp_path / 'other.db'}"
    async with Runtime(other, agents=[agent]) as runtime:
        session = await runtime.import_session(lines)
        assert (session.id, session.tenant, session.state.title) == ("x", "acme", "A title")
        assert await lines_of(session) == lines
        assert [row.metadata async for row in runtime.sessions(metadata={"order": "7"})] == [{"order": "7"}]
        assert (await session.run("two")).output == "Two."
    if isinstance(store, str):
        ours, theirs = payloads(store), payloads(other)
        assert ours
        assert theirs[: len(ours)] == ours


def payloads(store: str) -> list[tuple[int, bytes]]:
    """What the file itself holds."""
    connection = apsw.Connection(store.removeprefix("sqlite:"))
    try:
        return connection.execute("SELECT at, payload FROM records ORDER BY no, seq").fetchall()
    finally:
        connection.close()


async def test_artifacts_come_along(store: str | Store) -> None:
    agent, lines = await make(store)
    named = {json.loads(line)["artifact"] for line in lines if line.startswith(b'{"artifact"')}
    assert digest_of(PNG) in named
    assert digest_of(b"long " * 20_000) in named, "what a long result left out is an artifact too"
    other = MemoryStore()
    async with Runtime(other, agents=[agent]) as runtime:
        session = await runtime.import_session(lines)
        assert await other.load_artifact(session.uid, digest_of(PNG)) == PNG


async def test_another_id_makes_a_session_of_its_own(store: str | Store) -> None:
    agent, lines = await make(store)
    async with Runtime(store, agents=[agent]) as runtime:
        old = await runtime.session("x", tenant="acme")
        new = await runtime.import_session(lines, id="y", tenant="other")
        assert (new.id, new.tenant) == ("y", "other")
        assert new.uid != old.uid
        ours, theirs = await old.records(), await new.records()
        assert [record.event for record in ours[1:]] == [record.event for record in theirs[1:]]
        assert isinstance(theirs[0].event, SessionOpened)
        assert (await new.run("two")).output == "Two."
        assert len(await old.records()) == len(ours)


async def test_an_id_that_is_taken_is_a_conflict_and_the_same_import_again_is_none(store: str | Store) -> None:
    agent, lines = await make(store)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.import_session(lines)
        assert session.id == "x", "it is there already, as it is in the lines"
        await session.run("two")
        with pytest.raises(Conflict, match="under another id"):
            await runtime.import_session(lines)
        with pytest.raises(Conflict, match="under another id"):
            await runtime.import_session(lines, id="x")


async def test_a_fork_takes_its_whole_past_with_it(store: str | Store) -> None:
    agent = clerk([call("look", what="it")], "One.", "Two.", "Three.")
    async with Runtime(store, agents=[agent]) as runtime:
        parent = await runtime.open(agent, id="x")
        await parent.run(["one", Image(PNG)])
        fork = await parent.fork(id="y")
        await fork.run("two")
        lines, expected = await lines_of(fork), await said(fork)
    async with Runtime("memory:", agents=[agent]) as runtime:
        session = await runtime.import_session(lines)
        assert (session.id, await said(session)) == ("y", expected)
        assert await lines_of(session) == lines
        assert (await session.run("three")).output == "Three."


async def test_an_open_run_is_imported_as_it_was_and_goes_on(store: str | Store) -> None:
    release = asyncio.Event()

    @tool(effect="idempotent")
    async def hold() -> str:
        await release.wait()
        return "held"

    agent = clerk([call("hold")], "Done.", tools=[hold])
    lines: list[bytes] = []
    for times in range(1, 4):
        async with crashing(store, agents=[agent]) as runtime:
            session = await runtime.open(agent, id="x")
            await (session.go_on() if session.state.run else session.start("go"))
            await seen(session, CallStarted, times)
            lines = await lines_of(session)
    release.set()
    other = MemoryStore()
    async with Runtime(other, agents=[agent]) as runtime:
        session = await runtime.import_session(lines)
        assert session.state.epoch > 1, "the log names epochs that this store has never given"
        assert (await soon(session.resume())).output == "Done."
        check_log(await session.records())


def edited(lines: list[bytes], at: int, change: Callable[[dict[str, Any]], None]) -> list[bytes]:
    value = json.loads(lines[at])
    change(value)
    if "payload" in value:
        payload = json.dumps(value["payload"], separators=(",", ":"), ensure_ascii=False).encode()
        value["digest"] = value["digest"] if value.pop("keep", False) else digest_of(payload)
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        return [*lines[:at], text, *lines[at + 1 :]]
    return [*lines[:at], json.dumps(value).encode(), *lines[at + 1 :]]


BROKEN: dict[str, tuple[Callable[[list[bytes]], list[bytes]], type[Exception], str]] = {
    "no export at all": (lambda _: [b'{"hello": 1}'], UsageError, "no export"),
    "nothing": (lambda _: [], UsageError, "no export"),
    "a newer format": (lambda x: edited(x, 0, lambda v: v.update(perdure=2)), StoreError, "format 2.*upgrade"),
    "a record missing": (lambda x: [*x[:3], *x[4:]], StoreError, "record 4 where 3 belongs"),
    "a record twice": (lambda x: [*x[:3], x[2], *x[3:]], StoreError, "record 2 where 3 belongs"),
    "cut short": (lambda x: x[:5], StoreError, "cut short"),
    "an artifact missing": (lambda x: x[:-1], StoreError, "cut short"),
    "half a line": (lambda x: [*x[:4], x[4][:20], *x[5:]], StoreError, "Line 5 .*cannot be read"),
    "a changed word": (
        lambda x: edited(x, 2, lambda v: v.update(keep=True, payload={**v["payload"], "key": "k"})),
        StoreError,
        "Line 3 .*changed or damaged",
    ),
    "a kind from the future": (
        lambda x: edited(x, 4, lambda v: v.update(payload={"type": "SessionFolded", "by": "nobody"})),
        TooNew,
        "newer version of Perdure.*upgrade",
    ),
    "a field from the future": (
        lambda x: edited(x, 4, lambda v: v.update(payload={**v["payload"], "zeal": 3})),
        TooNew,
        "newer version of Perdure.*upgrade",
    ),
    "an artifact changed": (
        lambda x: edited(x, len(x) - 1, lambda v: v.update(data="AAAA")),
        StoreError,
        "changed or damaged",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_wrong_is_refused_in_a_sentence_and_nothing_is_written(name: str) -> None:
    _, lines = await make(MemoryStore())
    broken, kind, words = BROKEN[name]
    other = MemoryStore()
    async with Runtime(other, engine=None) as runtime:
        with pytest.raises(kind, match=words) as refused:
            await runtime.import_session(broken(lines))
        assert type(refused.value) is kind
        assert str(refused.value).endswith(".")
        assert "\n" not in str(refused.value)
        assert [row.id async for row in runtime.sessions()] == []


# Conversations from elsewhere


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def asks(*calls: tuple[str, str], text: str | None = None) -> dict[str, Any]:
    made = [{"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}} for id, name in calls]
    return {"role": "assistant", "content": text, "tool_calls": made}


def gives(id: str, text: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text, **more}


def says(text: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def uses(*calls: tuple[str, str], text: str = "Well.") -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": id, "name": name, "input": {"what": "it"}} for id, name in calls]
    return {"role": "assistant", "content": [{"type": "text", "text": text}, *blocks]}


def brings(*results: tuple[str, str], text: str = "") -> dict[str, Any]:
    blocks: list[Any] = [{"type": "tool_result", "tool_use_id": id, "content": word} for id, word in results]
    return user([*blocks, *([{"type": "text", "text": text}] if text else [])])


NO = {"type": "text", "text": "no"}
UNKNOWN = "the call of 'look' has no result; it is unknown"
CORRUPTED: dict[str, tuple[list[Any], list[str]]] = {
    "an orphan call at the tail": ([user("Hi"), asks(("a", "look"))], [f"message 2: {UNKNOWN}"]),
    "an orphan call in the middle": (
        [user("Hi"), asks(("a", "look")), user("And?"), says("Well.")],
        [f"message 2: {UNKNOWN}"],
    ),
    "one of two calls without its result": (
        [asks(("a", "look"), ("b", "look")), gives("b", "B"), says("Well.")],
        [f"message 1: {UNKNOWN}"],
    ),
    "an orphan result at the head": (
        [gives("a", "A"), user("Hi")],
        ["message 1: the result of 'a' has no call, and is dropped"],
    ),
    "an orphan result in the middle": (
        [user("Hi"), says("Well."), gives("zz", "?"), user("And?")],
        ["message 3: the result of 'zz' has no call, and is dropped"],
    ),
    "an orphan result at the tail": (
        [user("Hi"), says("Well."), gives("zz", "?", name="look")],
        ["message 3: the result of 'look' has no call, and is dropped"],
    ),
    "a result twice in a row": (
        [asks(("a", "look")), gives("a", "first"), gives("a", "second")],
        ["message 3: the result of 'a' is there twice; the first one is kept"],
    ),
    "a result again, much later": (
        [asks(("a", "look")), gives("a", "first"), user("And?"), gives("a", "second")],
        ["message 4: the result of 'a' is there twice; the first one is kept"],
    ),
    "an id twice in one answer": (
        [asks(("a", "look"), ("a", "look")), gives("a", "A"), gives("a", "B")],
        ["message 1: the call id 'a' was used before; the calls are told apart"],
    ),
    "an id again in a later answer": (
        [asks(("a", "look")), gives("a", "A"), asks(("a", "look")), gives("a", "B")],
        ["message 3: the call id 'a' was used before; the calls are told apart"],
    ),
    "a call that was doubled, with one result": (
        [asks(("a", "look"), ("a", "look")), gives("a", "A")],
        ["message 1: the call id 'a' was used before; the calls are told apart", f"message 1: {UNKNOWN}"],
    ),
    "a result before its call": (
        [user("Hi"), gives("a", "A"), asks(("a", "look")), says("Well.")],
        ["message 2: the result of 'a' did not stand behind its call, and is moved there"],
    ),
    "a result behind somebody's words": (
        [asks(("a", "look")), user("Hurry!"), gives("a", "A")],
        ["message 3: the result of 'a' did not stand behind its call, and is moved there"],
    ),
    "results of two answers, crossed": (
        [asks(("a", "look")), asks(("b", "look")), gives("a", "A"), gives("b", "B")],
        ["message 3: the result of 'a' did not stand behind its call, and is moved there"],
    ),
    "empty messages": (
        [user(""), says(""), says(None), user([]), user("Hi")],
        [f"message {at}: it was empty, and is dropped" for at in (1, 2, 3, 4)],
    ),
    "a system's words in the middle": (
        [user("Hi"), {"role": "system", "content": "Be brief."}, says("Hi.")],
        ["message 2: the role 'system' is unknown here; its words are a user's"],
    ),
    "a role that nobody knows": (
        [user("Hi"), {"role": "critic", "content": [{"type": "text", "text": "Bad."}]}],
        ["message 2: the role 'critic' is unknown here; its words are a user's"],
    ),
    "a picture": (
        [user([{"type": "text", "text": "See:"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}])],
        ["message 1: a part of type 'image_url' cannot be kept, and is named only"],
    ),
    "blocks: an orphan call at the tail": (
        [user("Hi"), uses(("t1", "look"))],
        [f"message 2: {UNKNOWN}"],
    ),
    "blocks: a result without a call, with words beside it": (
        [user("Hi"), says([{"type": "text", "text": "Well."}]), brings(("t9", "?"), text="And?")],
        ["message 3: the result of 't9' has no call, and is dropped"],
    ),
    "blocks: one result missing, one doubled": (
        [uses(("t1", "look"), ("t2", "look")), brings(("t1", "A"), ("t1", "B"), text="Go on.")],
        [f"message 1: {UNKNOWN}", "message 2: the result of 't1' is there twice; the first one is kept"],
    ),
    "blocks: words between a call and its result": (
        [uses(("t1", "look")), user("Hurry!"), brings(("t1", "A"))],
        ["message 3: the result of 't1' did not stand behind its call, and is moved there"],
    ),
    "two shapes in one history": (
        [asks(("a", "look")), brings(("a", "A")), uses(("t1", "look")), gives("t2", "?")],
        [f"message 3: {UNKNOWN}", "message 4: the result of 't2' has no call, and is dropped"],
    ),
    "everything at once": (
        [gives("x", "?"), user(""), asks(("a", "look"), ("a", "look")), user("Hm."), gives("a", "A"), gives("a", "B")],
        [
            "message 1: the result of 'x' has no call, and is dropped",
            "message 2: it was empty, and is dropped",
            "message 3: the call id 'a' was used before; the calls are told apart",
            "message 5: the result of 'a' did not stand behind its call, and is moved there",
            "message 6: the result of 'a' did not stand behind its call, and is moved there",
        ],
    ),
}


@pytest.mark.parametrize("name", CORRUPTED)
async def test_a_corrupted_history_is_repaired_once_in_the_log(
    name: str, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    history, repairs = CORRUPTED[name]
    store, agent = f"sqlite:{tmp_path / 'x.db'}", clerk("Going on.")
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Going on."), tools=[look])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert list(await session.import_history(history, source="elsewhere")) == repairs
        assert unpaired(session.state.history) == []
        kept = await session.history()
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.session("x")
        assert await session.history() == kept, "the second load repairs nothing"
        (imported,) = await events(session, HistoryImported)
        assert (list(imported.repairs), imported.source) == (repairs, "elsewhere")
        assert (await session.run("go on")).output == "Going on."
        assert len(await events(session, HistoryImported)) == 1
        assert unpaired(session.state.history) == []
        again = await session.fork()
        assert list(await again.import_history(kept)) == [], "what was repaired needs no repair"
    record_property("figure: corrupted histories imported", 1)


async def test_a_whole_history_needs_no_repair_and_goes_on(memory: Store) -> None:
    agent = clerk("unused", "unused", "unused", [call("look", what="now")], "Done.")
    history = [
        user("Look."),
        asks(("a", "look"), ("b", "look"), text="I look."),
        gives("a", "A"),
        gives("b", "B"),
        says("It is fine."),
        uses(("t1", "look")),
        brings(("t1", "C"), text="And now?"),
    ]
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert await session.import_history(history) == ()
        assert await said(session) == ["Look.", "And now?"]
        await session.run("go on")
        assert [name_and_text[2] for name_and_text in await told(session)][:3] == ["A", "B", "C"]
        results = [m.results for m in await session.history() if isinstance(m, ToolMessage)]
        assert [result.call for group in results for result in group] == [1, 2, 3, 4], "ordinals go on"
        await seen(session, RunEnded)


async def test_an_error_is_an_error_and_old_function_calls_are_read(memory: Store) -> None:
    agent = clerk("unused", "Done.")
    old = [
        user("Look."),
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": '{"what": "x"}'}},
        {"role": "function", "name": "look", "content": "seen"},
        uses(("t1", "look")),
        user(
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "no"}],
                    "is_error": True,
                }
            ]
        ),
    ]
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert await session.import_history(old) == ()
        assert await told(session) == [("look", "ok", "seen"), ("look", "error", "no")]


async def test_what_cannot_be_read_is_refused_and_changes_nothing(memory: Store) -> None:
    agent = clerk("Done.")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        for wrong, words in (
            ([], "empty"),
            ([user("Hi"), 7], "Message 2 .* int"),
            ([{"content": "Hi"}], "Message 1 .*no role"),
            ([user(7)], "Message 1 .*content is a int"),
            ([user([{"text": "Hi"}])], "no type"),
            ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "no function with a name"),
        ):
            with pytest.raises(UsageError, match=words):
                await session.import_history(wrong)
        assert session.state.seq == 1


async def test_a_history_is_not_imported_into_a_run(memory: Store) -> None:
    release = asyncio.Event()

    async def answer(_: object) -> str:
        await release.wait()
        return "Done."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        with pytest.raises(Refused, match="while the session has no work"):
            await session.import_history([user("Hi")])
        release.set()
        await soon(run)
        await session.import_history([UserMessage((Text("Hi"),))])
        assert await said(session) == ["go", "Hi"]


ROLES = st.sampled_from(["user", "assistant", "tool", "function", "system", "model", "", "odd"])
WORDS = st.sampled_from(["a", "b", "", "look", "text", "tool_use", "tool_result", "image"])
BLOCK = st.fixed_dictionaries(
    {},
    optional={
        "type": WORDS,
        "text": WORDS | JSON_VALUE,
        "id": WORDS,
        "tool_use_id": WORDS | JSON_VALUE,
        "name": WORDS | JSON_VALUE,
        "input": JSON_VALUE,
        "content": JSON_VALUE | st.lists(JSON_VALUE, max_size=2),
    },
)
ITEM = JSON_VALUE | st.fixed_dictionaries(
    {"role": ROLES | JSON_VALUE},
    optional={
        "content": WORDS | st.lists(BLOCK | WORDS, max_size=3) | JSON_VALUE,
        "tool_call_id": WORDS | JSON_VALUE,
        "name": WORDS | JSON_VALUE,
        "tool_calls": JSON_VALUE
        | st.lists(
            st.fixed_dictionaries({}, optional={"id": WORDS, "function": JSON_VALUE | BLOCK}),
            max_size=2,
        ),
        "function_call": JSON_VALUE | BLOCK,
    },
)


@often
@given(st.lists(ITEM, max_size=5))
def test_whatever_another_system_wrote_is_read_or_refused(items: list[Any]) -> None:
    reader = Reader()
    try:
        reader.read(items)
    except UsageError as refused:
        assert str(refused).startswith("Message ")
        return
    done = repair(reader.messages, 3, reader.places)
    assert unpaired(Buffer(list(done.messages))) == []
    imported = HistoryImported(done.messages, (*reader.notes, *done.repairs))
    assert decode_event(encode_event(imported)) == imported
