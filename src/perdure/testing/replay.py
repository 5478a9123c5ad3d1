"""replay: a recorded session again, against an agent as it is now, and what differs.

Rule 1: no tool is run, and without a model none is asked: what came of work comes from the record. Rule 2: everything
else is done by the agent's own code, in the one loop that drives all sessions. Rule 3: the record is only read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any, cast

import msgspec

from perdure.core.codec import encode_event, encode_json
from perdure.core.errors import UsageError
from perdure.core.events import AgentPinned, Event, SessionOpened
from perdure.core.fold import fold
from perdure.core.messages import JSON, Plain
from perdure.models import from_string
from perdure.ports import Clock, Entry, Model, Opening, Record, Store
from perdure.runtime.agent import Agent
from perdure.runtime.clock import SystemClock
from perdure.runtime.log import SessionLog
from perdure.runtime.middleware import Middleware
from perdure.runtime.steps import GIVEN, Step, show_step, steps_of
from perdure.runtime.threads import DaemonThreads
from perdure.runtime.transfer import read_lines
from perdure.runtime.world import World
from perdure.stores.memory import MemoryStore
from perdure.testing.playback import Conductor
from perdure.testing.played import PlayedModel, RecordedClock
from perdure.testing.recorded import Recorded, parts_of, place_of


class Difference(Plain, frozen=True):
    """One place at which the replay came to something else; a side is empty where it has nothing there."""

    run: int
    turn: int
    what: str
    recorded: str = ""
    replayed: str = ""


class Replayed(Plain, frozen=True):
    """What came of a replay: where it differs, and its own records."""

    differences: tuple[Difference, ...]
    records: tuple[Record, ...]
    runs: int
    turns: int

    @property
    def identical(self) -> bool:
        return not self.differences


async def replay(
    records: Sequence[Record],
    agent: Agent[Any],
    *,
    model: Model | None = None,
    deps: Any = None,
    middleware: Sequence[Middleware] = (),
    artifacts: Mapping[str, bytes] | None = None,
) -> Replayed:
    """Runs the recorded inputs again, in memory; with a `model`, that one is really asked.

    Decisions are given to the same calls, and results to calls of the same tool with the same arguments, in order.
    """
    if not records or not isinstance(records[0].event, SessionOpened):
        raise UsageError("The records do not begin with the opening of a session; pass all of them.")
    found: list[Difference] = []
    replayed: list[Record] = []
    for start, stop in parts_of(records):
        part = Part(records[:stop], start, agent, model, deps, tuple(middleware), dict(artifacts or {}))
        recorded, replayed = await _play(part)
        wrong = differences(records[:stop], replayed)
        if recorded.is_open:
            # It ends in the middle of a turn: what it does not have yet is no difference.
            wrong = [item for item in wrong if item.recorded or (item.run, item.turn) < place_of(recorded.state)]
        found += wrong
    steps = steps_of(replayed)
    runs, turns = (sum(1 for step in steps if step.kind == kind) for kind in ("run", "turn"))
    return Replayed(tuple(found), tuple(replayed), runs, turns)


class Part(msgspec.Struct, frozen=True):
    """What one playback needs: records, of which the first `start` are there already, and who decides."""

    records: Sequence[Record]
    start: int
    agent: Agent[Any]
    model: Model | None
    deps: Any
    middleware: tuple[Middleware, ...]
    artifacts: dict[str, bytes]


async def _play(part: Part) -> tuple[Recorded, list[Record]]:
    recorded = Recorded(part.records, part.start)
    model, agent = part.model, part.agent
    clock = SystemClock() if model is not None else RecordedClock(part.records[0].at)
    store = MemoryStore()
    await store.open()

    def resolve(name: str) -> Model:
        return _stand_in_model(name) if model is None else model

    world = World(store, clock, DaemonThreads(), resolve, model, part.deps, part.middleware)
    try:
        uid = await _adopt(part, store, clock)
        played = _played(agent, recorded) if model is None else agent
        await Conductor(world, played, uid, recorded, asks=model is not None).play()
        return recorded, await store.read(uid)
    finally:
        await world.close()
        await store.close()


async def _adopt(part: Part, store: Store, clock: Clock) -> str:
    """The past of the part, as this agent's; the uid of the session that goes on from it."""
    first = part.records[0].event
    home = first.agent if isinstance(first, SessionOpened) else ""
    past = [_renamed(record.event, home, part.agent.name) for record in part.records[: part.start]]
    state = fold(past)
    entries = [
        Entry(record.at, record.run, encode_event(event)) for record, event in zip(part.records, past, strict=False)
    ]
    opening = Opening(state.tenant, state.id, state.metadata, epoch=state.epoch)
    await SessionLog(state.uid, store, clock).adopt(tuple(entries), state, opening)
    for digest, data in part.artifacts.items():
        await store.save_artifact(state.uid, digest, data)
    return state.uid


def _renamed(event: Event, home: str, agent: str) -> Event:
    """The agent of then is this one; those that took over keep their names."""
    match event:
        case SessionOpened(agent=name, origin=origin):
            # A sub-agent's parent is not there; whom it would tell, nobody asks.
            is_child = origin is not None and bool(origin.agents)
            renamed = agent if name == home else name
            return msgspec.structs.replace(event, agent=renamed, origin=None if is_child else origin)
        case AgentPinned(spec=spec) if spec.name == home:
            return msgspec.structs.replace(event, spec=msgspec.structs.replace(spec, name=agent))
        case _:
            return event


def check_replay(path: str | Path, agent: Agent[Any], **options: Any) -> Replayed:
    """Replays an exported session; an AssertionError shows what differs. For tests without a loop."""
    exported = read_lines(Path(path).read_bytes().splitlines())
    done = asyncio.run(replay(exported.records, agent, artifacts=exported.artifacts, **options))
    if not done.identical:
        raise AssertionError(f"{Path(path).name}: {show_differences(done.differences)}")
    return done


def show_place(item: Difference) -> str:
    """Where it is, for people: what was given has no place of its own."""
    if not item.run:
        return "what was given"
    return f"run {item.run}, turn {item.turn}" if item.turn else f"run {item.run}, before its first turn"


def show_differences(found: Sequence[Difference]) -> str:
    """The differences, turn by turn, for people."""
    lines = [f"{len(found)} {'difference' if len(found) == 1 else 'differences'}"]
    place = (-1, -1)
    for item in found:
        if (item.run, item.turn) != place:
            place = (item.run, item.turn)
            lines.append(show_place(item))
        lines.append(f"  {item.what}")
        lines.append(f"    recorded: {item.recorded or '-'}")
        lines.append(f"    replayed: {item.replayed or '-'}")
    return "\n".join(lines)


Place = tuple[int, int, int, str, str, int]


def differences(recorded: Iterable[Record], replayed: Iterable[Record]) -> list[Difference]:
    """Where two logs come to different steps; calls of one turn are compared call by call, in whatever order they ran.

    Which model answered is no difference: what it said is.
    """
    ours, theirs = _by_place(steps_of(recorded)), _by_place(steps_of(replayed))
    found: list[Difference] = []
    for place in sorted({**ours, **theirs}, key=_order):
        one, other = ours.get(place), theirs.get(place)
        if one is not None and other is not None and one.value == other.value:
            continue
        run, turn, call, kind, tool, _ = place
        what = " ".join(word for word in (kind, tool, f"(call {call})" if call else "") if word)
        found.append(Difference(run, turn, what, *_show(one, other)))
    return found


def _order(place: Place) -> tuple[int, int, bool, int]:
    run, turn, call, kind, *_ = place
    return run, turn, kind == "end", call


def _by_place(steps: Iterable[Step]) -> dict[Place, Step]:
    """Each step by run, turn, call and kind; what was given has only its order, for when it comes is chance."""
    found: dict[Place, Step] = {}
    for step in steps:
        run, turn, call = (0, 0, 0) if step.kind in GIVEN else (step.run, step.turn, step.call)
        number = 0
        while (place := (run, turn, call, step.kind, step.tool, number)) in found:
            number += 1
        found[place] = _without_model(step)
    return found


def _without_model(step: Step) -> Step:
    if step.kind not in ("agent", "run"):
        return step
    return msgspec.structs.replace(step, value={k: v for k, v in step.value.items() if k not in ("model", "window")})


def _show(one: Step | None, other: Step | None) -> tuple[str, str]:
    """Both in a line; of large values only the fields that differ."""
    if one is None or other is None or one.kind not in ("agent", "run", "history", "change"):
        shown = tuple(show_step(step) if step else "" for step in (one, other))
        if one is None or other is None or shown[0] != shown[1]:
            return shown[0], shown[1]
    names = [name for name in {**one.value, **other.value} if one.value.get(name) != other.value.get(name)]
    return _fields(one.value, other.value, names), _fields(other.value, one.value, names)


def _fields(value: JSON, other: JSON, names: list[str]) -> str:
    """These fields; of a list only what the other side does not have."""
    shown: dict[str, JSON] = {}
    for name in names:
        mine, yours = value.get(name), other.get(name)
        if isinstance(mine, list) and isinstance(yours, list):
            mine = [item for item in cast(list[JSON], mine) if item not in yours]
        shown[name] = mine
    text = encode_json(shown).decode()
    return text if len(text) <= 600 else f"{text[:599]}…"


def _played(agent: Agent[Any], recorded: Recorded) -> Agent[Any]:
    """The agent with its models' names, prices and traits, but none that could be asked."""
    spec = recorded.state.spec
    choice = agent.model or (spec.model if spec else "")
    items = [choice] if isinstance(choice, str) or not isinstance(choice, Sequence) else list(choice)
    models = [_stand_in_model(item) if isinstance(item, str) else PlayedModel(item) for item in items]
    return changed(agent, model=models)


def _stand_in_model(name: str) -> Model:
    try:
        return PlayedModel(from_string(name))
    except UsageError:
        return PlayedModel(None, name)
