"""Triggers of files, with real files: each change once, whoever watches, and also if nobody did for a while."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Agent, Runtime, Session, UsageError
from perdure.core.fold import fold
from perdure.events import InputAccepted, Noted, SessionOpened
from perdure.ports import Store
from perdure.runtime import files as files_module
from perdure.runtime.files import Changed, Listing, absolute, compare, scan
from perdure.runtime.firing import GRACE, MOST, SHOWN_CHANGES, changed_events
from perdure.stores.memory import MemoryStore
from perdure.testing import ScriptedModel
from perdure.triggers import Files, TriggerSet
from tests.core.strategies import often
from tests.runtime.scenes import events, seen, soon


def clerk() -> Agent:
    return Agent(name="clerk", model=ScriptedModel(lambda request: "Done."))


async def sent(session: Session[Any]) -> list[str]:
    return [event.parts[0].text for event in await events(session, InputAccepted)]  # type: ignore[union-attr]


async def told(session: Session[Any], condition: Callable[[dict[str, TriggerSet]], object]) -> None:
    """Follows the session until its triggers are so."""
    session._log.attach()
    try:
        await soon(session._log.until(lambda state: bool(condition(state.triggers))))
    finally:
        session._log.detach()


def place(path: Path, text: str = "1") -> None:
    """Whole at once, as good programs do it."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(text)
    hidden.rename(path)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


async def test_a_new_file_is_an_input(store: str | Store, inbox: Path) -> None:
    agent = clerk()
    place(inbox / "old.csv")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="desk")
        known = await session.set_trigger("inbox", Files(str(inbox), "*.csv"), "{name} {count}: {path}\n{changes}")
        (row,) = [row async for row in runtime.sessions()]
        assert (row.summary.triggers, row.summary.watches, row.summary.wake_at) == (1, 1, None)
        place(inbox / "note.txt")
        place(inbox / "a.csv")
        await told(session, lambda triggers: triggers["inbox"].fired == 1)
        (inbox / "sub").mkdir()
        place(inbox / "sub" / "b.csv")
        await told(session, lambda triggers: triggers["inbox"].fired == 2)
        place(inbox / "a.csv", "changed")
        await told(session, lambda triggers: triggers["inbox"].fired == 3)
        assert await sent(session) == [
            f"inbox 1: {inbox}/a.csv\nadded {inbox}/a.csv",
            f"inbox 2: {inbox}/sub/b.csv\nadded {inbox}/sub/b.csv",
            f"inbox 3: {inbox}/a.csv\nmodified {inbox}/a.csv",
        ]
        keys = [event.key for event in await events(session, InputAccepted)]
        assert len(set(keys)) == 3
        assert (await session.triggers())["inbox"].artifact != known.artifact


@pytest.mark.parametrize("missed", ["once", "all"])
async def test_what_changed_while_nobody_watched(store: str | Store, inbox: Path, missed: Any) -> None:
    agent = clerk()
    for name in ("gone", "same", "other"):
        place(inbox / name)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("inbox", Files(str(inbox), with_deleted=True), "{changes}", missed=missed)
    place(inbox / "other", "longer")
    place(inbox / "new")
    (inbox / "gone").unlink()
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="desk")
        await told(session, lambda triggers: triggers["inbox"].fired == (1 if missed == "once" else 3))
        lines = [sorted(text.splitlines()) for text in await sent(session)]
        changes = [f"added {inbox}/new", f"deleted {inbox}/gone", f"modified {inbox}/other"]
        assert sorted(lines) == ([changes] if missed == "once" else [[line] for line in changes])


async def test_two_processes_watch_and_fire_once(tmp_path: Path, inbox: Path) -> None:
    agent = clerk()
    url = f"sqlite:{tmp_path / 'x.db'}"
    async with Runtime(url, agents=[agent]) as one, Runtime(url, agents=[agent]) as other:
        # Set by a process that never drives: those that do find it by themselves.
        async with Runtime(url, engine=None) as setter:
            session = await setter.open(agent, id="desk")
            await session.set_trigger("inbox", Files(str(inbox)), "{path}", missed="all")
        session = await one.session("desk")
        for number in range(1, 6):
            place(inbox / f"{number}.csv")
            await told(session, lambda triggers, number=number: triggers["inbox"].fired == number)
        assert await sent(await other.session("desk")) == [f"{inbox}/{number}.csv" for number in range(1, 6)]


async def test_a_folder_that_is_not_there_is_told_and_watched_as_soon_as_it_is(
    memory: MemoryStore, tmp_path: Path
) -> None:
    agent, folder = clerk(), tmp_path / "later"
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="desk")
        known = await session.set_trigger("inbox", Files(str(folder)), "{path}")
        assert known.error.startswith("Not watched: There is no file or folder")
        folder.mkdir()
        await told(session, lambda triggers: not triggers["inbox"].error)
        place(folder / "a")
        await told(session, lambda triggers: triggers["inbox"].fired == 1)
        (folder / "a").unlink()
        folder.rmdir()
        await told(session, lambda triggers: triggers["inbox"].error)
        (note,) = await events(session, Noted, kind="trigger_failed")
        assert "Not watched" in note.data["detail"]
        folder.mkdir()
        place(folder / "b")
        await told(session, lambda triggers: triggers["inbox"].fired == 2)
        assert (await session.triggers())["inbox"].error == ""
        # Gone and back at once, perhaps under the same number: another folder all the same.
        shutil.rmtree(folder)
        folder.mkdir()
        for number in range(3, 6):
            place(folder / f"c{number}")
            await told(session, lambda triggers, number=number: triggers["inbox"].fired == number)


async def test_without_the_package_it_is_told(
    memory: MemoryStore, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = clerk()
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("inbox", Files(str(inbox)), "{path}")
        await told(session, lambda triggers: triggers["inbox"].error)
        assert "pip install 'perdure[triggers]'" in (await session.triggers())["inbox"].error
        assert len(await events(session, Noted, kind="trigger_failed")) == 1


async def test_what_changed_while_it_was_paused_is_left_out(memory: MemoryStore, inbox: Path) -> None:
    agent = clerk()
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("inbox", Files(str(inbox)), "{path}")
        await session.pause_trigger("inbox")
        place(inbox / "a")
        await session.resume_trigger("inbox")
        place(inbox / "b")
        await told(session, lambda triggers: triggers["inbox"].fired == 1)
        assert await sent(session) == [f"{inbox}/b"]


async def test_one_file_is_watched_too(memory: MemoryStore, inbox: Path) -> None:
    agent, file = clerk(), inbox / "config.toml"
    place(file)
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("config", Files(str(file)), "{changes}")
        place(inbox / "other")
        place(file, "x = 1")
        await told(session, lambda triggers: triggers["config"].fired == 1)
        assert await sent(session) == [f"modified {file}"]


async def test_closing_leaves_no_thread_behind(memory: MemoryStore, inbox: Path) -> None:
    import threading

    agent = clerk()
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("inbox", Files(str(inbox)), "{path}")
        place(inbox / "a")
        await seen(session, InputAccepted)
        ears = [thread for thread in threading.enumerate() if thread.name == "perdure-ear"]
        assert len(ears) == 1
    await asyncio.to_thread(ears[0].join, 10)
    assert not ears[0].is_alive()


# Looking and comparing


def test_what_is_looked_at(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.csv", "b.txt", ".hidden.csv", "sub/c.csv", ".git/d.csv", "node_modules/e.csv", "sub/deep/f.csv"):
        (inbox / name).parent.mkdir(parents=True, exist_ok=True)
        (inbox / name).write_text(name)
    os.symlink(inbox, inbox / "loop")

    def names(**options: Any) -> list[str]:
        return sorted(os.path.relpath(path, inbox) for path in scan(Files(str(inbox), **options)))

    assert names() == ["a.csv", "b.txt", "sub/c.csv", "sub/deep/f.csv"]
    assert names(pattern="*.csv") == ["a.csv", "sub/c.csv", "sub/deep/f.csv"]
    assert names(pattern="sub/*") == ["sub/c.csv", "sub/deep/f.csv"]
    assert names(is_recursive=False) == ["a.csv", "b.txt"]
    monkeypatch.setattr(files_module, "MOST_FILES", 3)
    with pytest.raises(UsageError, match="more than 3 files"):
        names()


def test_a_path_is_kept_as_every_process_can_read_it(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inbox)
    assert absolute(Files("sub/../x", "*.csv")) == Files(str(inbox / "x"), "*.csv")
    assert absolute(Files(inbox / "x")) == Files(str(inbox / "x"))  # type: ignore[arg-type]
    for wrong in ("", " ", 7, None):
        with pytest.raises(UsageError, match="give the path"):
            absolute(Files(wrong))  # type: ignore[arg-type]


@often
@given(
    before=st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(1, 3), st.integers(0, 2))),
    after=st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(1, 3), st.integers(0, 2))),
)
def test_a_comparison_tells_every_difference_once(before: Listing, after: Listing) -> None:
    found = {change.path: change.what for change in compare(Files("/", with_deleted=True), before, after, 9.0)}
    assert set(found) == {path for path in {*before, *after} if before.get(path) != after.get(path)}
    assert {path for path, what in found.items() if what == "added"} == set(after) - set(before)
    assert {path for path, what in found.items() if what == "deleted"} == set(before) - set(after)
    assert compare(Files("/", with_deleted=True), after, after, 9.0) == []
    assert not [change for change in compare(Files("/"), before, after, 9.0) if change.what == "deleted"]


NOW = 1_767_225_600.0


def known(missed: Any, **options: Any) -> TriggerSet:
    return TriggerSet("inbox", Files("/inbox"), "{path}|{changes}", missed, artifact="before", **options)


def test_changes_that_nobody_saw_for_a_minute_are_skipped_if_so_wanted() -> None:
    trigger = known("skip")
    state = fold([SessionOpened("u", "s", "clerk"), trigger])
    late, fresh = Changed("/inbox/a", "added", NOW - GRACE - 1), Changed("/inbox/b", "added", NOW - GRACE)
    made = changed_events(state, trigger, [late, fresh], "after", NOW)
    (sent,) = [event for event in made if isinstance(event, InputAccepted)]
    assert sent.parts[0].text == "/inbox/b|added /inbox/b"  # type: ignore[union-attr]
    assert [event.data["detail"] for event in made if isinstance(event, Noted)] == ["1 change"]
    only_late = changed_events(state, trigger, [late], "after", NOW)
    assert [type(event) for event in only_late] == [TriggerSet, Noted]
    assert fold(only_late, state).triggers["inbox"].artifact == "after"


def test_many_changes_are_told_in_short_and_too_many_inputs_are_left_out() -> None:
    changes = [Changed(f"/inbox/{number:05}", "added", NOW) for number in range(MOST + 5)]
    trigger = known("once")
    state = fold([SessionOpened("u", "s", "clerk"), trigger])
    (sent, after) = changed_events(state, trigger, changes, "after", NOW)
    assert isinstance(sent, InputAccepted)
    text = sent.parts[0].text  # type: ignore[union-attr]
    assert text.endswith(f"\nand {MOST + 5 - SHOWN_CHANGES:,} more")
    assert isinstance(after, TriggerSet)
    each = changed_events(state, known("all"), changes, "after", NOW)
    assert sum(isinstance(event, InputAccepted) for event in each) == MOST
    assert len({event.key for event in each if isinstance(event, InputAccepted)}) == MOST
    assert [event.data["detail"] for event in each if isinstance(event, Noted)] == ["5 changes"]
