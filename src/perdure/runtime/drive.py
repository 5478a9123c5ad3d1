"""drive: the only loop. Ask the rules, perform, append; run, stream, resume and fork are all this path.

Rule 1: an intent is committed before its work starts. Rule 2: after a conflict the facts of a batch are kept, its
intents dropped and the rules asked again. Rule 3: a stale epoch appends nothing more and stops its tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import ParamSpec, TypeVar, assert_never

from msgspec.structs import replace

from perdure.core.actions import (
    AbortCall,
    AbortModel,
    Action,
    AppendEvents,
    CallModel,
    CheckCall,
    CompactHistory,
    DeliverMessage,
    EndOperation,
    EndRun,
    MakeTools,
    RecallChild,
    ReportEnd,
    RunTool,
    StartRun,
    SuspendCall,
    SwitchAgent,
    VetInput,
)
from perdure.core.commands import Command
from perdure.core.errors import Conflict, StaleEpoch, TransactionLost
from perdure.core.events import (
    CallEnded,
    Event,
    ModelFailed,
    ModelResponded,
    RunEnded,
)
from perdure.core.inputs import starting
from perdure.core.rules import next_actions
from perdure.core.state import SessionState, agent_of, find_call
from perdure.ports import OpenTransaction, Timer
from perdure.runtime.agent import Binding
from perdure.runtime.alarms import NEVER, add_due, is_timed, left_of, wait_for
from perdure.runtime.desk import Desk, describe
from perdure.runtime.directives import Fact, accepted, add_facts, in_turn
from perdure.runtime.flight import COMPACTION, VETTING, Cause, Flight, Prepared, slot_of
from perdure.runtime.hook_phases import is_watched
from perdure.runtime.intents import intend_model, intend_tool, pick_up, start_run, suspend
from perdure.runtime.log import Change, SessionLog, patiently
from perdure.runtime.making import tools_to_make
from perdure.runtime.observers import Observers
from perdure.runtime.perform import paid, perform
from perdure.runtime.perform_check import check_now, may_check_early
from perdure.runtime.quarantine import Heritage
from perdure.runtime.sealed import Sealed
from perdure.runtime.shared_state import SharedState
from perdure.runtime.world import World

P = ParamSpec("P")
T = TypeVar("T")

CANCEL_GRACE = 2.0
ENDS = (AppendEvents, AbortModel, AbortCall, EndOperation, RecallChild, ReportEnd, DeliverMessage)


class Driver:
    """One claim on one session: from the claim to its release, or to being overtaken."""

    def __init__(
        self, log: SessionLog, binding: Binding, world: World, heritage: Heritage, shared: SharedState | None = None
    ) -> None:
        self._log = log
        self._world = world
        self._epoch = heritage.epoch
        self._desk = Desk(log, binding, world, self._note, self._request, heritage.epoch, shared)
        self._makes_tools = bool(binding.parts.makers)
        self._observers: Observers | None = None
        self._flights: dict[int, Flight] = {}
        self._sealed = Sealed()
        self._within: OpenTransaction | None = None
        self._facts: list[Fact] = [*heritage.facts]
        self._requests: list[Command] = [*heritage.requests]
        self._planned = (0, 0)
        self._wakeup: asyncio.Future[None] | None = None
        self._stirred = False
        self._leaving = False
        self._grounded = False
        self._lap_from = 0.0
        self._alarm: Timer | None = None

    @property
    def _binding(self) -> Binding:
        return self._desk.binding

    async def run(self, *, follows: bool = False) -> bool:
        """Drives until the session settles or waits; leaves nothing of its own under way.

        False if another agent is to go on: then the claim is kept for it, and its driver `follows` this one.
        """
        self._log.attach()
        self._log.listen(self._stir)
        if self._desk.hooks.observes:
            self._observers = Observers(self._desk, self._note_all, self._settle_down, follows=follows)
        try:
            self._facts += pick_up(self._desk, self._log.state)
            return await self._loop()
        finally:
            self._log.listen(None)
            self._log.detach()
            self._disarm()
            if self._observers is not None:
                self._observers.close()
            await self._ground()

    def leave(self) -> None:
        """Takes no new work; what is in flight may land."""
        self._leaving = True
        self._stir()

    async def _loop(self) -> bool:
        while True:
            if self._log.state.epoch > self._epoch:
                # The log itself says so: tools must not go on until there happens to be something to append.
                raise StaleEpoch("Another driver has resumed the run.")
            if self._desk.shared is not None:
                # What is told of other processes' commits comes late; gates and calls must not judge by what was.
                await self._patiently(self._desk.shared.refresh)
            self._stirred = False
            vetting = self._flights.get(VETTING)
            if vetting is not None and vetting.is_overtaken(self._log.state):
                self._drop(vetting)
            change, starts = self._plan()
            for flight in starts:
                if type(flight.action) is CheckCall:
                    await self._check_early(change, starts)
                    break
            if change.events:
                if not await self._append(change):
                    continue
                # Our own commit stirs us too; what matters is whether anybody else's came after it.
                self._stirred = self._log.state is not change.after
                if self._observers is not None:
                    self._observers.see(change.events, change.before)
            else:
                self._forget_planned()
            self._desk.check_errands()
            for flight in starts:
                self._launch(flight)
            if self._stirred or self._facts or self._requests or self._sealed:
                continue
            self._drop_checks()
            if not self._flights and not (self._observers and self._observers.is_busy):
                if not self._is_ours(self._log.state):
                    return False
                if await self._release():
                    return True
                continue
            self._arm()
            self._wakeup = asyncio.get_running_loop().create_future()
            if not self._stirred:
                await self._wakeup

    async def _check_early(self, change: Change, starts: list[Flight]) -> None:
        """Checks that are awaited begin before the commit, for nothing lasting happens in them.

        What they come to at once shares the commit with what the model said.
        """
        while eager := [flight for flight in starts if may_check_early(self._desk, flight.action)]:
            for flight in eager:
                starts.remove(flight)
                self._launch(flight)
            await asyncio.sleep(0)
            planned, requests = self._planned
            self._planned = (len(self._facts), requests)
            add_facts(change, self._facts[planned:])
            self._ask_rules(change, starts)

    def _plan(self) -> tuple[Change, list[Flight]]:
        """Facts first, then whatever the rules ask for, until they ask for nothing that can be done at once."""
        change = Change(self._log.state)
        # What is noted while we plan belongs to the next plan.
        self._planned = (len(self._facts), len(self._requests))
        add_facts(change, self._facts)
        self._within = self._sealed.join(change)
        for command in self._requests:
            change.add(accepted(change.after, command))
        starts: list[Flight] = []
        if not self._leaving and is_timed(change.after):
            add_due(change, self._world.clock.now(), *self._left(change.after))
        self._ask_rules(change, starts)
        return change, starts

    def _ask_rules(self, change: Change, starts: list[Flight]) -> None:
        checking: set[int] = set()
        grew = True
        agent = self._desk.binding.spec.name
        # Nothing is planned for another agent.
        while grew and agent_of(change.after) == agent:
            grew = False
            takes_none = self._leaving or (self._makes_tools and self._has_to_make_tools(change.after, starts))
            for action in next_actions(change.after):
                # Who leaves takes no new work; an end that somebody asks for, or that is due, is none.
                if (not takes_none or isinstance(action, ENDS)) and self._world.may_do(change.after, action):
                    grew |= self._take(action, change, starts, checking)

    def _is_ours(self, state: SessionState) -> bool:
        """Whether the next work is that of this driver's agent."""
        return agent_of(state) == self._desk.binding.spec.name

    def _has_to_make_tools(self, state: SessionState, starts: list[Flight]) -> bool:
        """Whether the tools of the run have to be made first."""
        action = tools_to_make(self._desk, state, self._flights)
        return action is not None and not self._prepare(action, starts)

    def _take(self, action: Action, change: Change, starts: list[Flight], checking: set[int]) -> bool:
        """Does what can be done at once and prepares the rest; True if the change grew."""
        match action:
            case CallModel():
                intent, flight = intend_model(self._desk, action, change.after)
                change.add((intent,))
                starts += [flight] if flight else []
            case RunTool():
                intents, flight = intend_tool(self._desk, action, change.after)
                change.add(intents)
                starts += [flight] if flight else []
            case CheckCall():
                if action.call in self._flights or action.call in checking:
                    return False
                after: list[Fact] = []
                checked = None if self._desk.layers else check_now(self._desk, action, after, change.after)
                if checked is None:
                    checking.add(action.call)
                    starts.append(Flight(action, state=change.after))
                    return False
                change.add(in_turn(change.after, [checked, *after]) if after else (checked,))
            case AppendEvents(events=(RunEnded() as end,)) if is_watched(self._desk, end, change.after):
                return self._prepare(EndRun(end), starts)
            case AppendEvents(events=events):
                change.add(events)
            case VetInput() | CompactHistory() | EndRun() | EndOperation() | MakeTools():
                return self._prepare(action, starts)
            case RecallChild() | ReportEnd() | DeliverMessage():
                return self._prepare(action, starts)
            case SwitchAgent():
                return self._prepare(action, starts, change.after)
            case StartRun():
                inputs = starting(change.after, self._binding.spec)
                unseen = [number for number in inputs if number not in change.after.vetted]
                if self._binding.spec.vets_input and unseen:
                    if change.after.early_stop is not None:
                        # Who wants an end does not wait for guardrails; what they have not seen is not carried out.
                        self._break_off(VETTING, "stop")
                    return self._prepare(VetInput(unseen[0]), starts)
                change.add(start_run(self._desk, change.after, StartRun(inputs)))
            case SuspendCall():
                change.add((suspend(self._desk, action, change.after),))
            case AbortModel():
                self._break_off(0, "stop")
                return False
            case AbortCall(call=call):
                self._break_off(call, "stop")
                return False
            case _:
                assert_never(action)
        return True

    def _prepare(self, action: Prepared, starts: list[Flight], state: SessionState | None = None) -> bool:
        """Work that changes nothing until it lands; the rules ask for it until then."""
        slot = slot_of(action)
        if slot not in self._flights and not any(flight.slot == slot for flight in starts):
            starts.append(Flight(action, state=state))
        return False

    def _left(self, state: SessionState) -> tuple[float, float]:
        """The seconds that the run may go on, and those that it may be silent, with what is under way."""
        run = state.run if self._flights else None
        return left_of(run, self._world.clock, self._lap_from, self._desk.sign_at)

    async def _append(self, change: Change) -> bool:
        """Commits; False after a conflict: the facts stay, everything else is asked for again."""
        try:
            await patiently(self._world.clock, self._log.append, change, epoch=self._epoch, within=self._within)
        except StaleEpoch:
            raise
        except TransactionLost as error:
            flight, why = self._sealed.lost(str(error))
            self._note(flight.failed(why)) if why else self._launch(flight)
            return False
        except Conflict:
            await self._patiently(self._log.refresh)
            return False
        self._forget_planned()
        if self._within is not None:
            self._sealed.committed()
        return True

    def _forget_planned(self) -> None:
        """What was planned is committed, or came to nothing."""
        facts, requests = self._planned
        del self._facts[:facts]
        del self._requests[:requests]
        self._planned = (0, 0)

    async def _release(self) -> bool:
        head = self._log.state.seq
        released = await self._patiently(self._world.store.release, self._log.uid, epoch=self._epoch, head=head)
        if not released:
            await self._patiently(self._log.refresh)
        return released

    async def _patiently(self, ask: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await patiently(self._world.clock, ask, *args, **kwargs)

    def _launch(self, flight: Flight) -> None:
        if not self._flights:
            self._lap_from = self._world.clock.monotonic()
        slot = flight.slot
        self._flights[slot] = flight
        self._desk.sign_at = max(self._desk.sign_at, self._lap_from)
        if isinstance(flight.action, RunTool):
            tool = self._desk.binding.tools[flight.action.name]
            # A sub-agent's time is that of its session; starting that takes none.
            seconds = tool.timeout if tool.sub_agent is None else None
            if flight.deadline is not None:
                seconds = max(0.0, flight.deadline - self._world.clock.now())
            if seconds is not None:
                flight.deadline = self._world.clock.now() + seconds
                flight.timer = self._world.clock.call_later(seconds, partial(self._break_off, slot, "timeout"))
        flight.task = asyncio.get_running_loop().create_task(self._fly(flight))

    async def _fly(self, flight: Flight) -> None:
        flight.has_begun = True
        try:
            event = await perform(self._desk, flight)
        except asyncio.CancelledError:
            if self._grounded:
                raise
            event = flight.broken_off() if flight.cause else flight.failed("it cancelled itself")
            event = paid(self._desk, event)
        except BaseException as error:  # noqa: BLE001 - models, tools and middleware are user code, and must land
            event = paid(self._desk, flight.failed(describe(error)))
        self._land(flight, event)

    def _land(self, flight: Flight, event: Event) -> None:
        if flight.landed or self._grounded:
            return
        flight.landed = True
        if flight.timer is not None:
            flight.timer.cancel()
        del self._flights[flight.slot]
        match event:
            case CallEnded() | ModelResponded() | ModelFailed():
                now = self._world.clock.monotonic()
                event = replace(event, seconds=round(now - self._lap_from, 6))
                self._lap_from = now
                facts = flight.facts(event) if flight.after or flight.settle else [event]
            case _:
                facts = flight.facts(event)
        if self._sealed.takes(flight, event):
            self._stir()
        else:
            self._note_all(facts)

    def _note(self, event: Event) -> None:
        self._facts.append(event)
        self._stir()

    def _note_all(self, facts: Sequence[Fact]) -> None:
        self._facts += facts
        self._stir()

    def _settle_down(self) -> None:
        """Nobody but the observers was waited for, perhaps: then the session can be released."""
        if not self._flights:
            self._stir()

    def _request(self, command: Command) -> None:
        self._requests.append(command)
        self._stir()

    def _break_off(self, slot: int, cause: Cause) -> None:
        """Tells work to end; what will not end within the grace is left behind and reported as what it is."""
        flight = self._flights.get(slot)
        if flight is None or flight.cause or flight.task is None:
            return
        flight.cause = cause
        if not flight.has_begun:
            # A task that is cancelled before its first step does not even hear of it.
            flight.task.cancel()
            self._land(flight, flight.broken_off())
            return
        self._desk.broken_off.add(slot)
        context = self._desk.contexts.get(slot)
        if context is not None:
            context.cancel()
        if not isinstance(flight.action, RunTool) or self._binding.tools[flight.action.name].is_async:
            flight.task.cancel()
        if flight.timer is not None:
            flight.timer.cancel()
        flight.timer = self._world.clock.call_later(CANCEL_GRACE, partial(self._abandon, flight))

    def _drop_checks(self) -> None:
        """A check whose call, or an end or tools whose run, is over serve nobody, and must not hold up the session."""
        state = self._log.state
        run = state.run
        if COMPACTION in self._flights and not self._is_ours(state):
            # Another agent is not held up by a summary; it asks for its own.
            self._break_off(COMPACTION, "stop")
        if run is not None and run.stop is None:
            return
        if run is not None or (len(state.ended) and state.ended[-1].reason in ("stopped", "cancelled")):
            # Who ends a run does not wait for, or pay for, a summary of it.
            self._break_off(COMPACTION, "stop")
        for slot, flight in list(self._flights.items()):
            call = find_call(run, slot)
            is_moot = isinstance(flight.action, CheckCall) and (call is None or call.status == "ended")
            if isinstance(flight.action, MakeTools):
                is_moot = tools_to_make(self._desk, state, self._flights) is None
            if is_moot or (isinstance(flight.action, EndRun | SwitchAgent) and run is None):
                self._drop(flight)

    def _drop(self, flight: Flight) -> None:
        """Work that changes nothing until it lands, and never will."""
        flight.landed = True
        del self._flights[slot_of(flight.action)]
        if flight.timer is not None:
            flight.timer.cancel()
        if flight.task is not None:
            flight.task.cancel()

    def _abandon(self, flight: Flight) -> None:
        if not flight.landed and flight.task is not None:
            flight.task.cancel()
            self._land(flight, paid(self._desk, flight.broken_off()))

    async def _ground(self) -> None:
        """Stops what is still under way, without a word in the log: the next driver finds the open intents."""
        self._grounded = True
        tasks: list[asyncio.Task[None]] = []
        for slot, flight in self._flights.items():
            if flight.timer is not None:
                flight.timer.cancel()
            context = self._desk.contexts.get(slot)
            if context is not None:
                context.cancel()
            if flight.task is not None:
                flight.task.cancel()
                tasks.append(flight.task)
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_GRACE)
        await self._sealed.close(list(self._flights.values()))

    def _stir(self) -> None:
        self._stirred = True
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _arm(self) -> None:
        if self._alarm is not None:
            self._disarm()
        state = self._log.state
        if not is_timed(state):
            return
        left = min(*self._left(state), wait_for(state, self._world.clock.now()))
        if left != NEVER:
            self._alarm = self._world.clock.call_later(max(0.0, left), self._stir)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
