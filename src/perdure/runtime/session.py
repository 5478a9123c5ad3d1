"""Session: what a caller holds. Every verb is a command, a view or a wait; none of them drives."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic

from msgspec.structs import replace

from perdure.core.codec import digest_of, encode_json
from perdure.core.commands import (
    CancelBackground,
    ChangeSettings,
    ContinueRun,
    Decide,
    DecideAll,
    SendAgain,
    SendInput,
    StopRun,
)
from perdure.core.errors import Conflict, NotFound
from perdure.core.events import DecisionKind, HistoryCompacted, InputAccepted, TriggerSet
from perdure.core.messages import JSON, Message, Usage
from perdure.core.specs import Busy, Limits, Missed, ModelSettings, Overrides, ToolSpec, TriggerSpec
from perdure.core.state import DeadLetter, SessionState, agent_of, has_due_input
from perdure.core.transcript import FullHistory, transcript
from perdure.core.views import Pending
from perdure.ports import Item, Model, Record, SessionRow
from perdure.runtime import family, travel, triggers
from perdure.runtime.agent import Agent, OutputT
from perdure.runtime.compaction import Compacted, compacted_of
from perdure.runtime.family_stream import follow_family
from perdure.runtime.given import given_plain, given_priority, given_text
from perdure.runtime.host import Host
from perdure.runtime.inbox import Waiting, edit_input, retract_input, waiting_in
from perdure.runtime.living import is_idle, turns_of, wait_idle, wait_wakeup
from perdure.runtime.log import SessionLog
from perdure.runtime.media import Input, to_parts
from perdure.runtime.recourse import OnModelError
from perdure.runtime.results import Decision, RunResult
from perdure.runtime.run import Run, result_of
from perdure.runtime.schema import codec_of
from perdure.runtime.transfer import export_lines
from perdure.runtime.travel import Point
from perdure.runtime.world import schema_key

PAGE = 2_000
"""Records that are read at once."""

Answer = DecisionKind | Decision | None
OnPending = Callable[[Pending], Answer | Awaitable[Answer]]


class Session(Generic[OutputT]):
    """A conversation that outlives processes; made by Runtime.open and Runtime.session."""

    def __init__(self, host: Host, log: SessionLog) -> None:
        self._host = host
        self._log = log

    @property
    def id(self) -> str:
        return self._log.state.id

    @property
    def uid(self) -> str:
        return self._log.uid

    @property
    def tenant(self) -> str:
        return self._log.state.tenant

    @property
    def agent(self) -> str:
        return self._log.state.agent

    @property
    def state(self) -> SessionState:
        """The fold of the log as this process last saw it."""
        return self._log.state

    async def run(
        self,
        input: Input,
        *,
        key: str | None = None,
        on_pending: OnPending | None = None,
        busy: Busy = "queue",
        model: str | Model | None = None,
        limits: Limits | None = None,
        settings: ModelSettings | None = None,
        output: Any = None,
        tools: Sequence[ToolSpec] = (),
        on_model_error: OnModelError | None = None,
        agent: Agent[Any] | str | None = None,
    ) -> RunResult[OutputT]:
        """Sends the input and waits until its run ends or waits; `on_pending` answers decisions in place."""
        run = await self.start(
            input,
            key=key,
            busy=busy,
            model=model,
            limits=limits,
            settings=settings,
            output=output,
            tools=tools,
            on_model_error=on_model_error,
            agent=agent,
        )
        return await self._finish(run, on_pending)

    async def start(
        self,
        input: Input,
        *,
        key: str | None = None,
        busy: Busy = "queue",
        model: str | Model | None = None,
        limits: Limits | None = None,
        settings: ModelSettings | None = None,
        output: Any = None,
        tools: Sequence[ToolSpec] = (),
        on_model_error: OnModelError | None = None,
        agent: Agent[Any] | str | None = None,
    ) -> Run[OutputT]:
        """Sends the input and returns at once, as soon as it is durable.

        `tools` are those that the caller itself carries out, for this run. `on_model_error` sees each failed attempt
        and says what follows; like all code it stays in this process. `agent` drives this run alone.
        """
        chosen = await self._host.choose(self._log, self.agent if agent is None else agent)
        overrides = self._overrides(model, limits, settings, output)
        if agent is not None:
            overrides = replace(overrides, agent=chosen)
        if tools:
            overrides = replace(overrides, tools=self._host.declare(chosen, tools))
        parts, artifacts = to_parts(input)
        await self._host.admission.check(self._log, key)
        for digest, data in artifacts.items():
            await self._host.world.store.save_artifact(self.uid, digest, data)
        digest = digest_of(encode_json(parts)) if key is not None else ""
        key = None if key is None else given_text(key, "A key")
        before = self._log.state.seq
        events = await self._host.request(self._log, SendInput(parts, busy, key, digest, overrides))
        accepted = next((event.input for event in events if isinstance(event, InputAccepted)), None)
        if accepted is None:
            known = self._log.state.keys.get(key or "")
            accepted, before = (known.input if known else 0), 0
        if on_model_error is not None:
            self._log.keep_recourse(accepted, on_model_error)
        return Run(self._host, self._log, accepted, after=before)

    async def send(self, input: Input, *, busy: Busy = "join", key: str | None = None) -> Run[OutputT]:
        """Adds to the conversation: by default the open run hears it at its next turn."""
        return await self.start(input, busy=busy, key=key)

    async def resume(
        self,
        *,
        limits: Limits | None = None,
        model: str | Model | None = None,
        settings: ModelSettings | None = None,
        on_pending: OnPending | None = None,
    ) -> RunResult[OutputT]:
        """Goes on after a limit, a stop or a failure, without new input, and waits; an open run is waited for."""
        return await self._finish(await self.go_on(limits=limits, model=model, settings=settings), on_pending)

    async def go_on(
        self,
        *,
        limits: Limits | None = None,
        model: str | Model | None = None,
        settings: ModelSettings | None = None,
    ) -> Run[OutputT]:
        """What `resume` waits for, as a handle."""
        await self._log.refresh()
        state = self._log.state
        await self._host.choose(self._log, _whose(state))
        now = self._host.world.clock.now()
        due = next((queued.input for queued in state.queue if queued.at is None or queued.at <= now), 0)
        if state.run is not None or due:
            # An input that nobody has started yet is a run to be.
            self._host.submit(self.uid)
            first = state.run.inputs[0] if state.run else due
            return Run(self._host, self._log, first)
        before = state.seq
        await self._host.admission.check(self._log, None)
        command = ContinueRun(self._overrides(model, limits, settings, None))
        events = await self._host.request(self._log, command)
        number = next(event.input for event in events if isinstance(event, InputAccepted))
        return Run(self._host, self._log, number, after=before)

    async def step(self, input: Input | None = None, *, on_pending: OnPending | None = None) -> RunResult[OutputT]:
        """Exactly one turn: of new work, or of the last run going on; for callers that orchestrate themselves.

        The result waits with what is pending, is completed, or has reached its limit of one turn: then step again.
        """
        await self._log.refresh()
        limits = _one_turn(self._log.state)
        if input is not None:
            return await self.run(input, limits=limits, on_pending=on_pending)
        return await self.resume(limits=limits, on_pending=on_pending)

    async def inputs(self) -> tuple[Waiting, ...]:
        """The inputs that no run has taken yet, in the order in which they will be taken as things stand."""
        await self._log.refresh()
        return waiting_in(self._log.state)

    async def edit_input(self, number: int, input: Input, *, by: str = "") -> None:
        """Other words for an input that waits; guardrails see it again. Its key still means the words it came with."""
        await edit_input(self._host, self._log, number, input, by)

    async def retract(self, number: int, *, by: str = "") -> None:
        """Takes back an input that waits: nobody hears it, its key is free, and who awaits its run is refused."""
        await retract_input(self._host, self._log, number, by)

    async def answer(self, answers: Mapping[str, Any], *, by: str = "") -> None:
        """Answers several pending questions or calls at once, by their ids: all of one session's, or none of them."""
        logs: dict[str, SessionLog] = {}
        decisions: dict[str, list[Decide]] = {}
        for pending, value in answers.items():
            log = await self._place_of(pending)
            logs[log.uid] = log
            decisions.setdefault(log.uid, []).append(Decide(pending, "answer", by=by, value=given_plain(value)))
        for uid, log in logs.items():
            await self._host.request(log, DecideAll(tuple(decisions[uid])))

    async def decide(
        self,
        pending: str,
        decision: DecisionKind,
        *,
        by: str = "",
        reason: str = "",
        value: Any = None,
        arguments: dict[str, Any] | None = None,
        remember: bool | str = False,
        id: str = "",
    ) -> None:
        """Answers a suspended call, of this session or of a sub-agent's below it, and returns when that is durable.

        It is decided once, by whoever is first. A `value` that comes with an approval reaches the tool as
        `ctx.decision`. The same decision `id` again is the same decision.
        """
        await self._host.request(
            await self._place_of(pending),
            Decide(
                pending,
                decision,
                by=by,
                reason=reason,
                value=given_plain(value),
                arguments=None if arguments is None else encode_json(given_plain(arguments)).decode(),
                remember="exact" if remember is True else remember or "",
                id=id,
            ),
        )

    def background(self) -> dict[str, str]:
        """What is under way in the background: the tools, by the names of their calls."""
        run = self._log.state.run
        return {call.background: call.name for call in (run.background if run else ())}

    async def cancel_background(self, *names: str, by: str = "") -> None:
        """Cancels background calls by name, or all of them; the run goes on and the model is told."""
        await self._host.request(self._log, CancelBackground(names, by))

    async def stop(self, *, by: str = "") -> None:
        """Graceful: tools in flight finish, the model's stream is broken off."""
        await self._host.request(self._log, StopRun("stop", by))

    async def cancel(self, *, by: str = "") -> None:
        """Force: what does not end within two seconds is left behind, and the log says so."""
        await self._host.request(self._log, StopRun("cancel", by))

    async def fork(self, *, at: Point | None = None, id: str | None = None) -> Session[OutputT]:
        """The same past up to `at` (a record, a tag, or now), its own future."""
        seq = at if at is None or isinstance(at, int) else await travel.find_point(self._host, self._log, at)
        return Session(self._host, await self._host.fork(self._log, seq, id))

    async def rewind(self, at: Point, *, by: str = "") -> int:
        """The conversation and the state keys go back to what they were at a record or tag; the log keeps it all.

        Inside of a turn that is the last record before it at which every call had its result; returns which it was.
        """
        return await travel.rewind(self._host, self._log, at, by)

    async def clear(self, *, by: str = "") -> None:
        """The conversation begins anew; the log keeps it all."""
        await travel.clear(self._host, self._log, by)

    async def tag(self, name: str, at: Point | None = None) -> int:
        """Gives a record (default: the last one) a name; the same name again moves it. Returns the record's seq."""
        return await travel.add_tag(self._host, self._log, name, at)

    async def tags(self) -> dict[str, int]:
        return await travel.read_tags(self._host, self._log)

    async def state_at(self, at: Point) -> SessionState:
        """What the log meant at a record or tag."""
        return await travel.state_at(self._host, self._log, at)

    async def rename(self, title: str) -> None:
        """Gives the session a title, for people; its id stays."""
        await travel.rename(self._log, title)

    async def import_history(self, messages: Sequence[Any], *, source: str = "") -> tuple[str, ...]:
        """Appends a conversation from elsewhere: our messages, or dicts as chat APIs take them.

        What breaks the pairing of calls and results is repaired once, in the log; returns a line for each repair.
        """
        return await travel.import_history(self._host, self._log, messages, source)

    def export(self) -> AsyncIterator[bytes]:
        """The whole session as JSON lines, for Runtime.import_session."""
        return export_lines(self._host.world.store, self.uid)

    async def set_model(self, model: str | Model | None, *, settings: ModelSettings | None = None) -> None:
        """From the next turn on this model answers, with the whole history; None for the agent's own again."""
        name = "" if model is None else self._name_of(model)
        await self._host.request(self._log, ChangeSettings(name or "", settings or ModelSettings()))

    async def set_agent(self, agent: Agent[Any] | str) -> None:
        """From the next turn on this agent goes on, with the whole history."""
        await travel.set_agent(self._log, await self._host.choose(self._log, agent))

    async def set_priority(self, priority: int) -> None:
        """Where there is no room for all sessions, those of a higher priority come first; 0 is usual."""
        await travel.set_priority(self._log, given_priority(priority))

    async def set_trigger(
        self,
        name: str,
        trigger: TriggerSpec,
        template: str,
        *,
        missed: Missed = "once",
        busy: Busy = "queue",
        by: str = "",
    ) -> TriggerSet:
        """From now on the session gets such an input by itself: at times, or when files change. Again: no change."""
        wanted = TriggerSet(name, trigger, template, missed, busy, by=by)
        return await triggers.set_trigger(self._host, self._log, wanted)

    async def triggers(self) -> dict[str, TriggerSet]:
        """The session's triggers by name, with when they fired last, when they are due next and what went wrong."""
        return await triggers.read_triggers(self._log)

    async def pause_trigger(self, name: str, *, by: str = "") -> None:
        await triggers.pause_trigger(self._host, self._log, name, by)

    async def resume_trigger(self, name: str, *, by: str = "") -> None:
        """From now on; what would have come meanwhile is left out."""
        await triggers.resume_trigger(self._host, self._log, name, by)

    async def remove_trigger(self, name: str, *, by: str = "") -> None:
        await triggers.remove_trigger(self._host, self._log, name, by)

    async def delete(self) -> None:
        await self._host.delete(self._log)

    async def stream(self, *, after: int = 0) -> AsyncIterator[Item]:
        """The past, then live, until the runtime closes; records never have a gap."""
        async for item in follow_family(self._host, self._host.world.store, self._log, after):
            yield item

    async def records(self, *, after: int = 0, limit: int | None = None) -> list[Record]:
        return await self._host.world.store.read(self.uid, after=after, limit=limit)

    async def history(self, *, full: bool = False) -> list[Message]:
        """What the model reads, oldest first; in full as if nothing of it had ever been compacted."""
        if full:
            whole = FullHistory()
            async for page in self._pages():
                whole.add(record.event for record in page)
            return whole.messages
        await self._log.refresh()
        return transcript(self._log.state)[:]

    async def compact(self, *, by: str = "") -> HistoryCompacted | None:
        """Makes what the model reads shorter, now, also while a run is open; None if there is nothing to leave out.

        With an `error` in it, it failed and nothing has changed.
        """
        return await self._host.compact(self._log, by)

    async def compactions(self) -> list[Compacted]:
        """Every compaction of the session, oldest first."""
        return [
            compacted_of(record, record.event)
            async for page in self._pages()
            for record in page
            if isinstance(record.event, HistoryCompacted)
        ]

    async def _pages(self) -> AsyncIterator[list[Record]]:
        after = 0
        while page := await self.records(after=after, limit=PAGE):
            yield page
            after = page[-1].seq

    async def usage(self) -> Usage:
        """All that it has used, its sub-agents included, also those at work; that of the last run is `last.usage`."""
        await self._log.refresh()
        return await family.usage_in(self._host, self._log.state)

    @property
    def last(self) -> RunResult[OutputT] | None:
        """The run that ended last, as this process last saw it: answer, reason, usage, cost and turns."""
        state = self._log.state
        return result_of(self._host, state, state.ended[-1]) if len(state.ended) else None

    @property
    def turns(self) -> int:
        """The turns of all runs, as this process last saw them; those of the last one are `last.turns`."""
        return turns_of(self._log.state)

    @property
    def is_idle(self) -> bool:
        """No run is open and none is due, as this process last saw it."""
        return is_idle(self._log.state)

    async def wait_idle(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - on the Runtime's clock
        """Waits until the session is idle, whoever drives it: True.

        False after the time-out, and at once if the session waits for a decision: no waiting brings that about.
        """
        return await wait_idle(self._host, self._log, self._host.world.clock, timeout)

    async def wait_wakeup(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - on the Runtime's clock
        """Waits until the session has work, from wherever it comes: True, at once if it has. False if too late."""
        return await wait_wakeup(self._log, self._host.world.clock, timeout)

    async def pending(self) -> tuple[Pending, ...]:
        """What waits for a decision, here and in the sessions of sub-agents."""
        await self._log.refresh()
        return await family.pending_in(self._host, self._log.state)

    async def message(self, to: str, input: Input, *, by: str = "") -> int:
        """A message of this session's to another one ("parent", "child NAME" or an id); returns its number.

        It arrives once, behind those sent there before; what cannot be brought is a dead letter.
        """
        return await family.send_message(self._host, self._log, to, input, by)

    async def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Messages that could not be brought, and why."""
        await self._log.refresh()
        return self._log.state.dead

    async def send_again(self, message: int) -> None:
        """A dead letter is sent once more, by its number."""
        await self._host.request(self._log, SendAgain(message))

    async def children(self) -> list[SessionRow]:
        """The sessions of its sub-agents, newest first."""
        return await family.children_of(self._host, self.uid)

    async def _place_of(self, pending: str) -> SessionLog:
        """Where a decision belongs: here, or in a session below."""
        uid = pending.split("-")[0]
        try:
            return await family.find_below(self._host, self._log, uid)
        except NotFound:
            return self._log

    async def _finish(self, run: Run[OutputT], on_pending: OnPending | None) -> RunResult[OutputT]:
        result = await run
        while on_pending is not None and result.pending:
            if not await self._answer(result.pending, on_pending):
                return result
            result = await run
        return result

    async def _answer(self, pending: tuple[Pending, ...], on_pending: OnPending) -> bool:
        answered = False
        for item in pending:
            answer = on_pending(item)
            if inspect.isawaitable(answer):
                answer = await answer
            if answer is None:
                continue
            chosen = Decision(answer) if isinstance(answer, str) else answer
            # Somebody else may have been first, meanwhile: then it is answered all the same.
            with suppress(Conflict):
                await self.decide(
                    item.id,
                    chosen.decision,
                    by=chosen.by,
                    reason=chosen.reason,
                    value=chosen.value,
                    arguments=chosen.arguments,
                    remember=chosen.remember,
                )
            answered = True
        return answered

    def _overrides(
        self,
        model: str | Model | None,
        limits: Limits | None,
        settings: ModelSettings | None,
        output: Any,
    ) -> Overrides:
        """Only names and plain data go into the log; the objects themselves stay in this process."""
        world = self._host.world
        name = None if model is None else self._name_of(model)
        schema: JSON = None
        if output is not None:
            codec = codec_of(output)
            schema = codec.schema
            world.outputs[schema_key(schema)] = codec
        return Overrides(name, limits, settings, schema)

    def _name_of(self, model: str | Model) -> str:
        world = self._host.world
        if isinstance(model, str):
            return world.model(model).name
        return world.lend(model, self._host.models_of(self.agent))


def _whose(state: SessionState) -> str:
    """Who goes on: the agent of what is open or due, or the one that was chosen for the run that ended last."""
    last = state.ended[-1] if len(state.ended) else None
    is_over = state.run is None and not has_due_input(state)
    return last.agent if is_over and last is not None and last.is_chosen else agent_of(state)


def _one_turn(state: SessionState) -> Limits:
    """The agent's limits, but for one turn."""
    return replace(state.spec.limits if state.spec else Limits(), turns=1)
