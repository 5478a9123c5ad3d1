"""A driver without a world: it follows `next_actions` with random outcomes, commands and crashes.

Rule 1: it writes only what a real driver could write. Rule 2: a broken law is an AssertionError that names
the seed. Rule 3: `settle` is the liveness half: faults stop, decisions are made, and all comes to rest.
"""

from __future__ import annotations

from random import Random
from typing import Any, assert_never

from msgspec.structs import replace

from perdure.core.accept import DECISIONS, accept
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
from perdure.core.codec import decode_event, digest_of, encode_event
from perdure.core.commands import (
    CancelBackground,
    ChangeInput,
    ChangeSettings,
    ChangeState,
    Command,
    CompactView,
    ContinueRun,
    CutHistory,
    Decide,
    EndChild,
    ExpireCalls,
    ImportHistory,
    SendAgain,
    SendInput,
    SendMessage,
    StopRun,
)
from perdure.core.errors import Conflict, NotFound, Refused, UsageError
from perdure.core.events import (
    Address,
    AgentPinned,
    CallAdvanced,
    CallChecked,
    CallEnded,
    CallStarted,
    CallSuspended,
    Event,
    HistoryCompacted,
    HistoryCut,
    HistoryImported,
    InputChanged,
    MessageSettled,
    ModelCalled,
    ModelFailed,
    ModelResponded,
    Noted,
    Reply,
    Reservation,
    RunEnded,
    RunResumed,
    RunStarted,
    SessionOpened,
    Spent,
    StateChanged,
    Switched,
    TriggerSet,
)
from perdure.core.fold import evolve
from perdure.core.inputs import NATURAL_END
from perdure.core.messages import (
    AssistantMessage,
    Message,
    Part,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from perdure.core.rules import next_actions
from perdure.core.specs import AgentSpec, Every, Inputs, Limits, NextTurn, Overrides, StopWhen, Window
from perdure.core.state import SessionState, find_call, has_due_input, in_flight, new_state
from perdure.core.transcript import unpaired
from perdure.core.views import pending_of, summarise
from perdure.core.window import Range, estimate_view, find_range, ledger_of, superseded

TOOLS: dict[str, dict[str, Any]] = {
    "read": {"effect": "read"},
    "keyed": {"effect": "idempotent"},
    "once": {"effect": "once"},
    "joint": {"effect": "transactional"},
    "told": {"effect": "once", "on_unknown": "tell"},
    "operate": {"effect": "resumable"},
    "slow": {"effect": "read", "background": True},
    "slow_once": {"effect": "once", "background": True},
    "line": {"effect": "once", "sequential": True},
    "ask": {"effect": "once", "verdict": "ask"},
    "expires": {"effect": "read", "verdict": "ask", "expires": 20.0},
    "agent": {"effect": "idempotent", "kind": "agent"},
    "late_agent": {"effect": "idempotent", "kind": "agent", "timeout": 9.0},
    "slow_agent": {"effect": "idempotent", "kind": "agent", "background": True},
    "deny": {"verdict": "deny"},
    "invalid": {"verdict": "invalid"},
    "hand": {"effect": "read", "hands_over": True},
}
AGENTS = ("clerk", "billing", "refunds")
EVERYTHING_SETTLES_WITHIN = 2_000
MODEL, COMPACTION, VETTING, ENDING, SWITCHING = 0, -1, -2, -3, -4
CONDITIONS = (StopWhen(turns=9), StopWhen(errors=2), StopWhen(tool="line"), StopWhen(tokens=400, repeats=1))


class Simulation:
    """One session, driven from a seed; `events` is its log."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.events: list[Event] = []
        self.state: SessionState = new_state()
        self.replayed: SessionState = new_state()
        self.flights: dict[int, Action] = {}
        self.refusals: list[str] = []
        self.epoch = 1
        self.stale = 0
        self.now = 0.0
        self.made: HistoryCompacted | None = None
        self.asked_about: tuple[RunEnded, int] | None = None
        self.marks: list[SessionState] = []
        self.last_words: tuple[Part, ...] = ()
        self.shown: tuple[Part, ...] | None = None
        self.values: dict[str, Any] = {}
        self.origins: set[str] = set()
        self.working: dict[int, str] = {}
        self.has_middleware = self.random.random() < 0.4
        self.append(SessionOpened(f"u{seed}", f"s{seed}", "clerk"), AgentPinned("d", self._any_spec()))

    def _any_spec(self) -> AgentSpec:
        pick = self.random.choice
        return AgentSpec(
            "clerk",
            concurrency=pick((None, None, 1, 2)),
            window=Window(
                at=pick((0.5, 0.8)), keep_last=pick((1, 3)), background=pick((True, False)), is_on=pick("yyyn") == "y"
            ),
            stop_when=pick(((), (), CONDITIONS[:2], CONDITIONS[2:])),
            vets_input=pick((False, True)),
            inputs=Inputs(pick(("one", "all")), pick(("one", "all"))),
        )

    def append(self, *events: Event) -> None:
        for event in events:
            before = self.state
            self.events.append(event)
            self.state = evolve(self.state, event)
            self.replayed = evolve(self.replayed, decode_event(encode_event(event)))
            assert self.replayed == self.state, f"seed {self.seed}: replay differs after {event}"
            self._check_laws(event)
            self._check_inputs(before, event)
            self._check_view(before, event)
            self._check_values(event)

    def wreak(self, steps: int) -> Simulation:
        """Work, commands and crashes in any order."""
        for _ in range(steps):
            self.now += self.random.random() * 4
            dice = self.random.random()
            if dice < 0.10:
                self.send(self._any_command())
            elif dice < 0.16:
                self.crash()
            elif dice < 0.165:
                # Its time never comes here: what fires is the runtime's to say.
                is_set = "t" in self.state.triggers
                self.append(TriggerSet("t") if is_set else TriggerSet("t", Every(60.0), "Look", is_paused=True))
            elif dice < 0.17:
                self.append(Noted("tag", {"now": 1}))
            elif dice < 0.18:
                # A hook writes down what it changed; after a crash it may do so again.
                self.append(StateChanged({"session/hook": len(self.events)}, origin=self.random.choice(("h1", "h2"))))
            elif dice < 0.22 and self.working:
                self.end_child()
            elif dice < 0.23:
                self.send(self._any_message())
            elif dice < 0.42 and COMPACTION in self.flights:
                self.send(CompactView(self._any_compaction(CompactHistory("request", self.state.view))))
            elif not self.step():
                self.send(self._any_decision() if self.state.run else self._any_pastime())
        return self

    def settle(self) -> Simulation:
        """No more faults: the session must come to rest, with every input taken and every run ended."""
        for _ in range(EVERYTHING_SETTLES_WITHIN):
            if not self.step():
                pending = pending_of(self.state)
                if pending:
                    self.send(self._any_decision())
                    continue
                if self.working and self.state.run is not None:
                    self.end_child()
                    continue
                assert self.state.run is None, f"seed {self.seed}: stuck in {self.state.run}"
                if not self.state.queue:
                    return self
                self._wake()
        raise AssertionError(f"seed {self.seed}: does not come to rest")

    def _wake(self) -> None:
        """Only inputs for later are left: the session rests, and whoever looks at its row knows until when."""
        row = summarise(self.state)
        assert (row.status, row.runnable) == ("idle", False), f"seed {self.seed}: {row}"
        assert row.wake_at is not None, f"seed {self.seed}: inputs left over"
        self.now = max(self.now, row.wake_at)
        self.send(ExpireCalls(self.now))
        assert has_due_input(self.state), f"seed {self.seed}: not due in its time"

    def step(self) -> bool:
        """Takes one action or lands one flight; False if there is nothing to do."""
        actions = [action for action in next_actions(self.state) if not self._is_under_way(action)]
        for action in actions:
            assert not isinstance(action, RunTool) or self._may_run(action), f"seed {self.seed}: {action}"
        if self.flights and (not actions or self.random.random() < 0.4):
            self._land(self.random.choice(list(self.flights)))
            return True
        if not actions:
            assert not in_flight(self.state), f"seed {self.seed}: an intent without a flight"
            return False
        self._take(self.random.choice(actions))
        return True

    def send(self, command: Command) -> None:
        try:
            self.append(*accept(self.state, command))
        except (Conflict, NotFound, Refused, UsageError) as refusal:
            self.refusals.append(type(refusal).__name__)

    def end_child(self) -> None:
        """A sub-agent tells how it ended; it may do so twice, or when nobody waits for it any more."""
        random = self.random
        call, child = random.choice(list(self.working.items()))
        spent = Spent(Usage(random.randrange(9), 3), random.choice((None, 0.01)), random.randrange(3))
        outcome = random.choice(("ok", "ok", "error", "cancelled"))
        seconds = random.random() * 9
        ended = CallEnded(call, outcome, (Text("it says"),), seconds=seconds, spent=spent)
        self.send(EndChild(random.choice((child, child, child, "nobody")), ended))
        known = find_call(self.state.run, call)
        if known is None or known.status == "ended":
            if random.random() < 0.5:
                self.send(EndChild(child, ended))
            del self.working[call]

    def crash(self) -> None:
        """The process dies with all that it had under way; the next one finds the open intents."""
        self.flights.clear()
        self.asked_about = None
        self.epoch += 1
        if in_flight(self.state):
            self.append(RunResumed(self.epoch))

    def _is_under_way(self, action: Action) -> bool:
        match action:
            case CheckCall(call=call):
                return call in self.flights
            case AbortModel():
                return 0 not in self.flights
            case AbortCall(call=call):
                return call not in self.flights
            case EndOperation(call=call) | RecallChild(call=call):
                return call in self.flights
            case ReportEnd() | DeliverMessage():
                return _errand(action) in self.flights
            case CompactHistory():
                return COMPACTION in self.flights
            case VetInput():
                return VETTING in self.flights
            case SwitchAgent():
                return SWITCHING in self.flights
            case StartRun(inputs=inputs) if self._unvetted(inputs):
                return VETTING in self.flights
            case AppendEvents(events=(RunEnded() as end,)) if self._is_watched(end):
                return ENDING in self.flights
            case _:
                return False

    def _unvetted(self, inputs: tuple[int, ...]) -> list[int]:
        vets = self.state.spec is not None and self.state.spec.vets_input
        return [number for number in inputs if vets and number not in self.state.vetted]

    def _words_of(self, number: int) -> tuple[Part, ...] | None:
        return next((queued.parts for queued in self.state.queue if queued.input == number), None)

    def _is_watched(self, end: RunEnded) -> bool:
        """Whether somebody is asked about an end: once in a turn, and never about what a person wants."""
        turn = self.state.run.turn if self.state.run else 0
        is_natural = end.reason not in ("stopped", "cancelled")
        return self.has_middleware and is_natural and self.asked_about != (end, turn)

    def _may_run(self, action: RunTool) -> bool:
        call = find_call(self.state.run, action.call)
        return call is not None and call.status in ("allowed", "interrupted")

    def _take(self, action: Action) -> None:
        random, state = self.random, self.state
        match action:
            case AppendEvents(events=(RunEnded() as end,)) if self._is_watched(end):
                self.flights[ENDING] = EndRun(end)
            case AppendEvents(events=events):
                self.append(*events)
            case VetInput(input=number):
                self.flights[VETTING], self.shown = action, self._words_of(number)
            case StartRun(inputs=inputs) if unvetted := self._unvetted(inputs):
                self.flights[VETTING], self.shown = VetInput(unvetted[0]), self._words_of(unvetted[0])
            case CompactHistory():
                self.made = self._any_compaction(action)
                self.flights[COMPACTION] = action
            case SwitchAgent():
                self.flights[SWITCHING] = action
            case EndRun() | MakeTools():
                raise AssertionError("no rule asks for it")
            case StartRun(inputs=inputs):
                first = next(queued for queued in state.queue if queued.input == inputs[0])
                limits = first.overrides.limits or self._any_limits()
                output = random.choice((None, None, {"type": "object"}))
                window = random.choice((None, 200, 600, 3000))
                more: dict[str, Any] = {"output": output, "continues": first.continues, "window": window}
                self.append(RunStarted(state.runs + 1, inputs, limits, **more))
            case CallModel():
                self._call_model(action)
            case CheckCall(call=call):
                self.flights[call] = action
            case RunTool(call=call, name=name, attempt=attempt):
                tool = TOOLS[name]
                on_unknown = tool.get("on_unknown", "ask")
                intent = CallStarted(call, tool["effect"], attempt, f"key{call}", on_unknown)
                if tool.get("kind") == "agent":
                    intent = replace(intent, child=f"child{call}", granted=self._any_limits())
                self.append(intent)
                if tool.get("background"):
                    self.append(CallAdvanced(call, f"{name}-{call}", background=True))
                if tool["effect"] == "resumable" and not action.operation and random.random() < 0.7:
                    self.append(CallAdvanced(call, f"operation {call}"))
                self.flights[call] = action
            case SuspendCall(call=call, pause=pause, kind=kind, prompt=prompt):
                wait = self._tool_of(call).get("expires") if kind == "approval" else None
                expires_at = None if wait is None else self.now + wait
                self.append(CallSuspended(call, pause, kind, prompt, expires_at))
            case AbortModel():
                broken = ModelFailed("stopped") if random.random() < 0.8 else self._any_answer()
                del self.flights[0]
                self.append(broken)
            case AbortCall(call=call):
                self._abort(call)
            case EndOperation(call=call) | RecallChild(call=call):
                self.flights[call] = action
            case ReportEnd() | DeliverMessage():
                self.flights[_errand(action)] = action
            case _:
                assert_never(action)

    def _call_model(self, action: CallModel) -> None:
        """A driver that finds no room says so without calling; a last answer is always granted."""
        if not action.final and self.random.random() < 0.03:
            self.append(ModelFailed("limit", "tokens"))
            return
        reserved = Reservation(self.random.choice((0, 50)), self.random.choice((0.0, 0.1)))
        self.append(ModelCalled(action.turn, action.attempt, action.inputs, reserved, action.final))
        self.flights[0] = action

    def _land(self, slot: int) -> None:
        action = self.flights.pop(slot)
        match action:
            case CheckCall(call=call, name=name, approved=approved):
                verdict = TOOLS[name].get("verdict", "allow")
                if verdict == "ask" and approved and self.random.random() < 0.8:
                    verdict = "allow"
                sequential = TOOLS[name].get("sequential", False)
                digest = digest_of(action.arguments)
                kind = TOOLS[name].get("kind", "function")
                queue = TOOLS[name].get("queue", "")
                self.append(CallChecked(call, verdict, "rule", "because", digest, sequential, kind=kind, queue=queue))
            case RunTool(call=call, name=name) if TOOLS[name].get("kind") == "agent":
                known = find_call(self.state.run, call)
                self.working[call] = f"child{call}"
                if known is not None and known.status != "ended":
                    wait = TOOLS[name].get("timeout")
                    expires_at = None if wait is None else self.now + wait
                    self.append(CallSuspended(call, known.pauses + 1, "child", expires_at=expires_at))
            case RecallChild(call=call):
                known = find_call(self.state.run, call)
                if known is not None and known.status != "ended":
                    self.append(CallEnded(call, "unknown", (Text("not in time"),), in_doubt=True))
            case ReportEnd(input=number):
                self.append(MessageSettled(input=number))
            case DeliverMessage(message=number):
                self.append(MessageSettled(number, dead=self.random.choice(("", "", "nobody there"))))
            case RunTool(call=call):
                outcome = self.random.choice(("ok", "ok", "ok", "error", "timeout"))
                in_doubt = outcome == "timeout"
                said = Text("out" * self.random.choice((1, 1, 1, 1, 1, 1000)))
                hands_over = outcome == "ok" and TOOLS[action.name].get("hands_over")
                wish = NextTurn(agent=self.random.choice(AGENTS)) if hands_over else None
                self.append(CallEnded(call, outcome, (said,), in_doubt, self.random.random(), next=wish))
            case EndOperation(call=call):
                self.append(CallEnded(call, "unknown", (Text("told to end"),), in_doubt=True))
            case CompactHistory():
                assert self.made is not None
                self.stale += self.made.view != self.state.view
                self.append(self.made)
            case VetInput(input=number):
                # A verdict about words that were edited or retracted meanwhile is none.
                if self._words_of(number) == self.shown:
                    self.append(self._any_verdict(number))
            case SwitchAgent():
                self._switch(action)
            case EndRun(end=end):
                self.asked_about = (end, self.state.run.turn if self.state.run else 0)
                if self.random.random() < 0.3:
                    self.append(Noted("pushed"))
                    self.send(SendInput((Text("go on"),), busy="join", by=NATURAL_END))
            case _:
                self.append(self._any_answer())

    def _switch(self, action: SwitchAgent) -> None:
        """A change of agents that lands while it is still wanted: it is made, with or without a filter, or it fails."""
        if action not in next_actions(self.state):
            return
        before = self.state.run
        assert before is not None
        assert self.state.spec is not None
        if self.random.random() < 0.2:
            self.append(AgentPinned("d", self.state.spec, Switched(error="The hand-off failed.")))
            assert self.state.run is not None
            assert self.state.run.agent == before.agent, f"seed {self.seed}: a hand-off that failed was made"
        else:
            spec = replace(self._any_spec(), name=action.agent)
            self.append(AgentPinned(action.agent, spec, Switched("m", window=before.window)))
            assert self.state.run is not None
            assert self.state.run.agent == action.agent, f"seed {self.seed}: nobody took over"
            if self.random.random() < 0.3:
                kept = [message for message in self.state.history if isinstance(message, UserMessage)]
                self.append(HistoryCut(self.state.seq, 0, tuple(kept), self.state.values, "", self.state.ledger))
        after = self.state.run
        assert after.wanted == "", f"seed {self.seed}: the same agent is wanted again"
        counted = ("usage", "cost_usd", "seconds", "turn", "called", "values", "limits", "circles", "inputs")
        lost = [name for name in counted if getattr(before, name) != getattr(after, name)]
        assert not lost, f"seed {self.seed}: a hand-off changed {lost}"

    def _any_verdict(self, number: int) -> InputChanged:
        dice = self.random.random()
        if dice < 0.2:
            return InputChanged(number, blocked="not here", by="guard")
        has_words = any(queued.parts for queued in self.state.queue if queued.input == number)
        parts = (Text(f"other words {number}"),) if dice < 0.4 and has_words else None
        return InputChanged(number, parts, vetted=True)

    def _any_compaction(self, action: CompactHistory) -> HistoryCompacted:
        """What a performer would make of the view as it is now; it lands whenever it lands."""
        state, random = self.state, self.random
        spec = state.spec
        assert spec is not None
        spent: dict[str, Any] = {"usage": Usage(random.randrange(9), 3), "cost_usd": random.choice((None, 0.01))}
        found = find_range(state.history, spec.window.keep_first, spec.window.keep_last)
        pruned = superseded(state, 0, spec.window.keep_last) if random.random() < 0.5 else ()
        if random.random() < 0.2 or not (found or pruned):
            return HistoryCompacted(action.view, action.cause, error="no summary", **spent)
        if found is None:
            return HistoryCompacted(action.view, action.cause, pruned=pruned, **spent)
        if random.random() < 0.1:
            # Middleware may answer in the place of a performer, with a range of its own.
            found = Range(random.randrange(-1, 4), random.randrange(len(state.history) + 3))
        ledger = ledger_of(state, state.history[found.start : found.stop])
        parts = random.choice(((), (Text("They talked."),)))
        more: dict[str, Any] = {"parts": parts, "ledger": ledger, "pruned": pruned, **spent}
        return HistoryCompacted(action.view, action.cause, found.start, found.stop, **more)

    def _abort(self, call: int) -> None:
        action = self.flights.pop(call)
        assert isinstance(action, RunTool)
        effect = TOOLS[action.name]["effect"]
        outcome = self.random.choice(("ok", "cancelled" if effect == "read" else "unknown"))
        self.append(CallEnded(call, outcome, (Text("broken off"),), in_doubt=outcome == "unknown"))

    def _any_answer(self) -> Event:
        random, state = self.random, self.state
        spent: dict[str, Any] = {
            "usage": self._any_usage(),
            "cost_usd": random.choice((None, 0.01)),
            "seconds": random.random() * 2,
        }
        dice = random.random()
        if dice < 0.06:
            kind = random.choice(("rate_limited", "auth", "internal", "cut", "blocked"))
            return ModelFailed(kind, "gone", random.random())
        if dice < 0.11:
            return ModelFailed("context_too_long", "too long", random.random())
        if dice < 0.16:
            return ModelFailed("rejected", "Say it better.", wasted=Usage(5, 5), cost_usd=0.01)
        if dice < 0.70:
            names = random.choices(list(TOOLS), k=random.choice((1, 1, 2, 3, 5)))
            numbered = enumerate(names, state.calls + 1)
            calls = tuple(ToolCall(number, name, f'{{"n":{number}}}', f"c{number}") for number, name in numbered)
            return ModelResponded(AssistantMessage((Text("I will."), *calls)), stop="calls", **spent)
        message = AssistantMessage((Text("Done."),))
        if state.run and state.run.output is not None and random.random() < 0.5:
            return ModelResponded(message, invalid="not an object.", **spent)
        stop = random.choice(("end", "end", "end", "end", "length", "refusal"))
        return ModelResponded(message, stop=stop, output={"n": 1}, **spent)

    def _any_usage(self) -> Usage:
        """What a provider counts may be far from what we estimate."""
        random = self.random
        if random.random() < 0.8:
            return Usage(random.randrange(30), random.randrange(30))
        return Usage(int(self.state.context_tokens * random.choice((0.1, 1.0, 1.3, 9.0))), random.randrange(30))

    def _any_limits(self) -> Limits:
        pick = self.random.choice
        return Limits(
            turns=pick((None, None, None, 0, 3, 8)),
            tokens=pick((None, None, None, 300)),
            cost_usd=pick((None, None, None, 0.05)),
            calls=pick((None, None, None, 6)),
            seconds=pick((None, None, None, 9.0)),
            at_limit=pick(("stop", "answer")),
        )

    def _any_command(self) -> Command:
        random = self.random
        dice = random.random()
        if dice < 0.32:
            return self._any_input()
        if dice < 0.40:
            number = random.randrange(max(0, self.state.inputs - 3), self.state.inputs + 2)
            edit = (Text(f"edit {len(self.events)}"),) if random.random() < 0.5 else None
            return ChangeInput(number, edit, "ops")
        if dice < 0.60:
            return self._any_decision()
        if dice < 0.68:
            return StopRun(random.choice(("stop", "cancel", "seconds", "silence")), by="ops")
        if dice < 0.78:
            return ExpireCalls(self.now)
        if dice < 0.82:
            title = random.choice((None, "", "Bills"))
            agent = random.choice(("", *AGENTS))
            return ChangeSettings(random.choice(("", "openai:a", "anthropic:b")), title=title, agent=agent)
        if dice < 0.94:
            return self._any_pastime()
        if dice < 0.96:
            return CancelBackground()
        return ContinueRun(Overrides(limits=self._any_limits()))

    def _any_pastime(self) -> Command:
        """What people do with a session that rests, or at the wrong time."""
        random, state = self.random, self.state
        dice = random.random()
        if dice < 0.15:
            return self._any_cut()
        if dice < 0.25:
            return ImportHistory(self._any_import())
        if dice < 0.40:
            scope = random.choice(("session", "session", "run"))
            changes = {f"{scope}/{random.choice('ab')}": len(self.events)}
            return ChangeState(changes, "ops", random.choice(("", "", "hook-1", "hook-2")))
        if dice < 0.55:
            view = max(0, state.view - random.choice((0, 0, 1)))
            return CompactView(self._any_compaction(CompactHistory("request", view)))
        return self._any_input()

    def _any_message(self) -> Command:
        random = self.random
        if self.state.dead and random.random() < 0.5:
            return SendAgain(random.choice(self.state.dead).sent.message)
        kind, name = random.choice((("session", "a"), ("session", "b"), ("child", "c"), ("parent", "")))
        return SendMessage(Address(kind, name), random.choice(((), (Text("hello"),))))

    def _any_cut(self) -> CutHistory:
        """Back to what the session was when it rested once; of what is left, the log need not say all again."""
        random, state = self.random, self.state
        if state.run is None and not unpaired(state.history):
            self.marks.append(state)
        mark = random.choice(self.marks) if self.marks else new_state()
        same = mark.view == state.view
        keep = len(mark.history) if same else 0
        cut = HistoryCut(mark.seq, keep, () if same else tuple(mark.history), mark.values, "ops")
        return CutHistory(cut, state.seq - random.choice((0, 0, 1)))

    def _any_import(self) -> HistoryImported:
        number = self.state.calls + self.random.choice((1, 1, 0))
        messages: tuple[Message, ...] = (
            UserMessage((Text("elsewhere"),)),
            AssistantMessage((ToolCall(number, "read", "{}"),)),
            ToolMessage((ToolResult(number, "read", "ok", (Text("out"),)),)),
        )
        return HistoryImported(messages, source="elsewhere")

    def _any_input(self) -> SendInput:
        random = self.random
        key = random.choice((None, None, "k1", "k2", "k3"))
        words = f"words {random.randrange(2)}" if key else f"words {len(self.events)}"
        busy = random.choice(("queue", "queue", "join", "join", "interrupt", "refuse"))
        at = self.now + random.random() * 30 if random.random() < 0.2 else None
        reply = Reply("parent", random.randrange(3)) if random.random() < 0.2 else None
        given = Overrides(agent=random.choice(AGENTS) if random.random() < 0.15 else None)
        more: dict[str, Any] = {"overrides": given, "reply": reply}
        return SendInput((Text(words),), busy=busy, key=key, digest=digest_of(words), at=at, **more)

    def _any_decision(self) -> Decide:
        random = self.random
        pending = pending_of(self.state)
        if not pending:
            return Decide(f"{self.state.uid}-{random.randrange(3)}-1", "approve")
        chosen = random.choice(pending)
        decision = random.choice(DECISIONS[chosen.kind])
        remember = random.choice(("", "tool", "exact"))
        return Decide(chosen.id, decision, "ops", "why", "value", '{"n":0}', remember)

    def _tool_of(self, call: int) -> dict[str, Any]:
        known = find_call(self.state.run, call)
        assert known is not None
        return TOOLS[known.name]

    def _check_laws(self, event: Event) -> None:
        """What must hold after every single event."""
        state, run = self.state, self.state.run
        open_calls = {call.ordinal for call in run.calls if call.status != "ended"} if run else set[int]()
        whole = ModelCalled | ModelResponded | CallEnded | RunStarted | HistoryCompacted | HistoryCut | HistoryImported
        if isinstance(event, whole):
            broken = set(unpaired(state.history))
            turn = {call.ordinal for call in run.calls} if run else set[int]()
            assert broken == (turn if open_calls else set()), f"seed {self.seed}: unpaired {broken}"
        summary = summarise(state)
        at_rest = run is None and not has_due_input(state) and (summary.wake_at is not None or not state.queue)
        waiting = any(call.status == "suspended" for call in (*run.calls, *run.background)) if run else False
        assert summary.runnable or at_rest or waiting, f"seed {self.seed}: stuck"
        if run:
            flying = [call for call in run.calls if call.status == "started" or call.is_away]
            cap = state.spec.concurrency if state.spec else None
            assert cap is None or len(flying) <= cap, f"seed {self.seed}: over the cap"
            assert summary.agent == run.agent, f"seed {self.seed}: {summary.agent} is to do the work of {run.agent}"
            alone = any(call.sequential for call in flying)
            assert not alone or len(flying) == 1, f"seed {self.seed}: a sequential call is not alone"

    def _check_inputs(self, before: SessionState, event: Event) -> None:
        """The words of an input are read in its turn, once; of one that was blocked, nothing is."""
        numbers = event.inputs if isinstance(event, RunStarted | ModelCalled) else ()
        waiting = {queued.input: queued for queued in before.queue}
        for number in numbers:
            assert number in waiting, f"seed {self.seed}: input {number} is taken twice"
            assert waiting[number].at is None, f"seed {self.seed}: input {number} before its time"
            is_push = waiting[number].by == NATURAL_END and isinstance(event, RunStarted)
            assert not is_push, f"seed {self.seed}: a push starts a run"
        words = [waiting[number].parts for number in numbers if not before.vetted.get(number)]
        words = [parts for parts in words if parts]
        new = self.state.history[len(before.history) :][: len(words)]
        read = [message.parts for message in new if isinstance(message, UserMessage)]
        assert read == words or not numbers, f"seed {self.seed}: {read} was read instead of {words}"
        if words:
            self.last_words = words[-1]
        elif isinstance(event, HistoryCut | HistoryImported):
            self.last_words = ()

    def _check_view(self, before: SessionState, event: Event) -> None:
        """A view only grows at its end, its number counts up, and the last input stands in it word for word."""
        state = self.state
        if state.view == before.view:
            assert len(state.history) >= len(before.history), f"seed {self.seed}: a view got shorter"
            kept = not len(before.history) or state.history[len(before.history) - 1] is before.history[-1]
            assert kept, f"seed {self.seed}: a view changed"
        else:
            assert state.view == before.view + 1, f"seed {self.seed}: view {state.view} behind {before.view}"
            assert isinstance(event, HistoryCompacted | HistoryCut | HistoryImported), f"seed {self.seed}: {event}"
            is_stale = isinstance(event, HistoryCompacted) and event.view != before.view
            assert not is_stale, f"seed {self.seed}: made for view {before.view}: {event}"
        assert state.asked >= 0 or not self.last_words, f"seed {self.seed}: nobody knows the last input"
        if state.asked >= 0:
            asked = state.history[state.asked]
            assert isinstance(asked, UserMessage), f"seed {self.seed}: {state.asked} is no input"
            assert not self.last_words or asked.parts == self.last_words, f"seed {self.seed}: {asked} is not the last"
        assert state.estimated_tokens == estimate_view(state.history), f"seed {self.seed}: estimated wrongly"
        assert state.context_tokens >= 0, f"seed {self.seed}: {state.context_tokens} tokens"
        assert 0.25 <= state.token_ratio <= 4, f"seed {self.seed}: a ratio of {state.token_ratio}"
        added = event.ledger if isinstance(event, HistoryCompacted) else ()
        assert set(state.ledger) <= {*before.ledger, *added}, f"seed {self.seed}: the ledger invents"
        assert state.view != before.view or state.ledger == before.ledger, f"seed {self.seed}: the ledger forgets"

    def _check_values(self, event: Event) -> None:
        """State keys are what was written last, where the same origin counts once and a cut goes back."""
        match event:
            case StateChanged(changes=changes, origin=origin) if origin not in self.origins:
                self.origins |= {origin} if origin else set()
                own = {name: value for name, value in changes.items() if name.startswith("session/")}
                self.values = {**self.values, **{name.removeprefix("session/"): own[name] for name in own}}
            case HistoryCut(values=values):
                self.values = values
            case _:
                pass
        assert self.state.values == self.values, f"seed {self.seed}: {self.state.values} is not {self.values}"


def _errand(action: ReportEnd | DeliverMessage) -> int:
    return -10 - 2 * action.input if isinstance(action, ReportEnd) else -11 - 2 * action.message
