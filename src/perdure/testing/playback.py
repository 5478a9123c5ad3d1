"""Playing a record back: the agent is driven as ever, and what came of work lands in the order of the record.

Rule 1: the next thing happens only when everything before it has been written. Rule 2: a crash in the record is a crash
of the replay: its driver is stopped, and a new one finds what was left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from perdure.core.actions import (
    AbortCall,
    AbortModel,
    Action,
    CallModel,
    CheckCall,
    CompactHistory,
    DeliverMessage,
    EndOperation,
    RecallChild,
    ReportEnd,
    RunTool,
)
from perdure.core.errors import Refused
from perdure.core.events import (
    CallChecked,
    CallEnded,
    CallSuspended,
    Event,
    HistoryCompacted,
    MessageSettled,
    ModelFailed,
    ModelResponded,
    RunResumed,
)
from perdure.core.messages import Text
from perdure.core.rules import next_actions
from perdure.core.state import SessionState
from perdure.runtime.agent import Agent
from perdure.runtime.desk import Desk
from perdure.runtime.flight import slot_of
from perdure.runtime.host import Host
from perdure.runtime.local import LocalEngine
from perdure.runtime.log import SessionLog
from perdure.runtime.perform_check import bound_of
from perdure.runtime.perform_family import is_over
from perdure.runtime.perform_model import number_calls
from perdure.runtime.wishes import Prepared
from perdure.runtime.world import World
from perdure.testing.given_again import given_now
from perdure.testing.played import RecordedClock
from perdure.testing.recorded import NOWHERE, CallKey, Item, Recorded, call_key, place_of

Work = CallModel | RunTool | EndOperation | CompactHistory


PATIENCE = 60.0
"""Seconds that the agent's own code may take for a step of a playback."""


class Waiting:
    """Work that was started and lands when its turn has come; `item` is what came of it then."""

    def __init__(self, desk: Desk, action: Work, item: Item | None) -> None:
        self.desk = desk
        self.action = action
        self.item = item
        self.release: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def index(self) -> int:
        return self.item.index if self.item else NOWHERE


class Conductor:
    """Stands in for models and tools, and gives what was given, each at its place in the record."""

    def __init__(self, world: World, agent: Agent[Any], uid: str, recorded: Recorded, *, asks: bool) -> None:
        self._world = world
        self._agent = agent
        self._uid = uid
        self._recorded = recorded
        self._asks = asks
        self._waiting: dict[int, Waiting] = {}
        self._stirred = asyncio.Event()
        self._crashing = False
        self._host = Host(world, None)
        self._log: SessionLog
        world.stand_in = self._stand_in

    async def play(self) -> None:
        """Until the record is played, or nothing in it fits any more."""
        try:
            await self._start(())
            while True:
                await self._settle()
                if not await self._step():
                    return
        finally:
            await self._stop()

    async def _start(self, items: Sequence[Item]) -> None:
        self._host = Host(self._world, LocalEngine(self._world.clock))
        self._host.bind(self._agent)
        self._log = await self._host.load(self._uid)
        if items:
            await self._log.propose(lambda state: given_now(state, items, asks=self._asks))
        await self._host.start()
        self._host.submit(self._uid)

    async def _stop(self) -> None:
        self._crashing = True
        await self._host.stop(0)
        self._crashing = False

    # Standing in

    async def _stand_in(self, desk: Desk, action: Action) -> Event | None:
        if isinstance(action, CheckCall):
            return self._prepared(desk, action)
        if isinstance(action, RecallChild | ReportEnd | DeliverMessage):
            return await self._stand_in_for_errand(desk, action)
        if not isinstance(action, CallModel | RunTool | EndOperation | CompactHistory):
            return None
        if self._asks and isinstance(action, CompactHistory):
            return None
        waiting = Waiting(desk, action, self._take(desk, action))
        self._waiting[slot_of(action)] = waiting
        self._stirred.set()
        try:
            await waiting.release
        except asyncio.CancelledError:
            if self._crashing or waiting.item is None or self._is_asked(action):
                self._put_back(waiting)
                raise
        finally:
            if self._waiting.get(slot_of(action)) is waiting:
                del self._waiting[slot_of(action)]
        return None if self._is_asked(action) else self._landing(desk, waiting)

    async def _stand_in_for_errand(self, desk: Desk, action: RecallChild | ReportEnd | DeliverMessage) -> Event:
        """Nobody else is reached: what others said is in the record, and comes at its place."""
        match action:
            case ReportEnd(input=input):
                return MessageSettled(input=input)
            case DeliverMessage(message=message):
                return self._recorded.settled.get(message, MessageSettled(message))
            case RecallChild(call=call):
                await desk.log.until(lambda state: is_over(state, call))
                return CallEnded(call, "unknown")

    def _prepared(self, desk: Desk, action: CheckCall) -> CallChecked | None:
        """The check of a call that was prepared then: nobody prepares it again."""
        tool = desk.binding.tools.get(action.name)
        if tool is None or not tool.spec.listens:
            return None
        known = self._recorded.checks.get(call_key(action.name, action.arguments))
        event = known.popleft().event if known else None
        if not isinstance(event, CallChecked):
            why = f"The record has no preparation of this call of {action.name}; a replay prepares nothing."
            return CallChecked(action.call, "invalid", "schema", why)
        prepared = Prepared(event.snapshot, event.revision, ready=True, valid_until=event.valid_until)
        shown = prepared if event.snapshot is not None or event.revision else None
        bound = bound_of(desk, tool.spec, action.arguments, shown) if event.bound else ""
        return replace(event, call=action.call, bound=bound)

    def _is_asked(self, action: Work) -> bool:
        return self._asks and isinstance(action, CallModel)

    def _take(self, desk: Desk, action: Work) -> Item | None:
        recorded = self._recorded
        match action:
            case CallModel():
                queue = recorded.answers
                if self._asks:
                    here = place_of(desk.log.state)
                    return next((item for item in queue if item.place == here), None)
            case CompactHistory():
                queue = recorded.compactions
            case RunTool() | EndOperation():
                return recorded.take_result(self._key(desk, action), action.call)
        return queue.popleft() if queue else None

    def _key(self, desk: Desk, action: RunTool | EndOperation) -> CallKey:
        if isinstance(action, RunTool):
            return call_key(action.name, action.arguments)
        run = desk.log.state.run
        call = next((call for call in (run.calls if run else ()) if call.ordinal == action.call), None)
        return call_key(action.name, call.arguments if call else "")

    def _put_back(self, waiting: Waiting) -> None:
        item = waiting.item
        if item is None or self._is_asked(waiting.action):
            return
        match waiting.action:
            case CallModel():
                self._recorded.answers.appendleft(item)
            case CompactHistory():
                self._recorded.compactions.appendleft(item)
            case RunTool() | EndOperation():
                self._recorded.results[self._key(waiting.desk, waiting.action)].appendleft(item)

    def _landing(self, desk: Desk, waiting: Waiting) -> Event:
        """What came of the work then, as a fact of now; for what the record does not know, that it does not."""
        event = waiting.item.event if waiting.item else None
        clock = self._world.clock
        if isinstance(clock, RecordedClock) and isinstance(event, ModelResponded | ModelFailed | CallEnded):
            clock.turn(event.seconds)
        match waiting.action, event:
            case CallModel(), ModelResponded(message=message):
                parts = number_calls(message.parts, desk.log.state.calls)
                return replace(event, message=replace(message, parts=parts))
            case CallModel(), ModelFailed():
                return event
            case CompactHistory(view=view), HistoryCompacted():
                return replace(event, view=view)
            case RunTool(call=call) | EndOperation(call=call), CallEnded() | CallSuspended():
                return replace(event, call=call)
            case CompactHistory(view=view, cause=cause), _:
                return HistoryCompacted(view, cause, error="the record has no such compaction")
            case ((RunTool(call=call, name=name) | EndOperation(call=call, name=name)), _):
                text = f"The record has no result for this call of {name}; a replay runs no tools."
                return CallEnded(call, "error", (Text(text),))
            case _:
                return ModelFailed("internal", "the record has no more answers of the model")

    # Conducting

    async def _settle(self) -> None:
        """Until whatever is under way stands in line, and nothing else can be done."""
        patience = None if self._asks else PATIENCE
        while not self._is_quiet(self._log.state):
            self._stirred.clear()
            moved = self._moved()
            stirred = asyncio.ensure_future(self._stirred.wait())
            try:
                done, _ = await asyncio.wait((moved, stirred), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    raise Refused("The replay does not go on: code of the agent, a policy or a hook, does not return.")
                if moved.done():
                    moved.result()
            finally:
                stirred.cancel()
                moved.cancel()

    def _moved(self) -> asyncio.Future[None]:
        seen = self._log.state
        return self._log.until(lambda state: state is not seen)

    def _is_quiet(self, state: SessionState) -> bool:
        run = state.run
        if run is not None:
            under_way = {call.ordinal for call in (*run.calls, *run.background) if call.status == "started"}
            if not under_way | ({0} if run.awaiting == "model" else set()) <= self._waiting.keys():
                return False
        for action in next_actions(state):
            match action:
                case CompactHistory() | EndOperation() if slot_of(action) in self._waiting:
                    pass
                case RecallChild():
                    pass
                case AbortCall(call=slot) if slot in self._waiting:
                    pass
                case AbortModel() if 0 in self._waiting:
                    pass
                case _:
                    return False
        return True

    async def _step(self) -> bool:
        """Lets the next thing of the record happen; False if there is none."""
        given = self._recorded.given
        first = min(self._waiting.values(), key=lambda waiting: waiting.index, default=None)
        head = given[0] if given else None
        if head is not None and self._is_due(head, first):
            if self._is_break(head):
                await self._break()
            else:
                await self._let(head.group)
            return True
        if first is None:
            return False
        if first.item is None and self._recorded.is_open and self._recorded.is_played:
            # The record ends in the middle of the work: what comes of it, nobody knows yet.
            return False
        if first.item is None:
            self._release([first])
        else:
            await self._let(first.item.group)
        return True

    def _is_due(self, head: Item, first: Waiting | None) -> bool:
        if first is None:
            return True
        return head.index < first.index and head.place <= place_of(self._log.state)

    def _is_break(self, head: Item) -> bool:
        """A crash; what was given while nobody drove stands right before the resumption."""
        for item in self._recorded.given:
            if item.group != head.group:
                return False
            if isinstance(item.event, RunResumed):
                return not any(
                    waiting.item and waiting.item.group == head.group and waiting.index < item.index
                    for waiting in self._waiting.values()
                )
        return False

    async def _break(self) -> None:
        await self._stop()
        items: list[Item] = []
        while self._recorded.given:
            items.append(self._recorded.given.popleft())
            if isinstance(items[-1].event, RunResumed):
                break
        await self._start(items)

    async def _let(self, group: int) -> None:
        """All that stood together in the record happens together: work lands, then what was given is heard."""
        landing = [w for w in self._waiting.values() if w.item and w.item.group == group]
        items: list[Item] = []
        queue = self._recorded.given
        while queue and queue[0].group == group and not isinstance(queue[0].event, RunResumed):
            items.append(queue.popleft())
        desk = next((waiting.desk for waiting in self._waiting.values()), None)
        self._release(sorted(landing, key=lambda waiting: waiting.index))
        if desk is None:
            if await self._log.propose(lambda state: given_now(state, items, asks=self._asks)):
                self._host.submit(self._uid)
        elif landing:
            # The driver looks when this round of the loop is over: then the landings are in line before these.
            asyncio.get_running_loop().call_soon(self._note, desk, items)
        else:
            moved = self._moved()
            if self._note(desk, items):
                await moved
            moved.cancel()

    def _note(self, desk: Desk, items: list[Item]) -> bool:
        fitting = given_now(desk.log.state, items, asks=self._asks)
        for event in fitting:
            desk.note(event)
        return bool(fitting)

    def _release(self, waiting: Iterable[Waiting]) -> None:
        for one in waiting:
            self._waiting.pop(slot_of(one.action), None)
            if not one.release.done():
                one.release.set_result(None)
