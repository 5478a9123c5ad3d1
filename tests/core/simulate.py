"""A driver without a world: it follows `next_actions` with random outcomes, commands and crashes.

Rule 1: it writes only what a real driver could write. Rule 2: a broken law is an AssertionError that names
the seed. Rule 3: `settle` is the liveness half: faults stop, decisions are made, and all comes to rest.
"""

from __future__ import annotations

from random import Random
from typing import Any, assert_never

from perdure.core.accept import DECISIONS, accept
from perdure.core.actions import (
    AbortCall,
    AbortModel,
    Action,
    AppendEvents,
    CallModel,
    CheckCall,
    EndOperation,
    RunTool,
    StartRun,
    SuspendCall,
)
from perdure.core.codec import decode_event, digest_of, encode_event
from perdure.core.commands import (
    CancelBackground,
    ChangeSettings,
    Command,
    ContinueRun,
    Decide,
    ExpireCalls,
    SendInput,
    StopRun,
)
from perdure.core.errors import Conflict, NotFound, Refused, UsageError
from perdure.core.events import (
    AgentPinned,
    CallAdvanced,
    CallChecked,
    CallEnded,
    CallStarted,
    CallSuspended,
    Event,
    ModelCalled,
    ModelFailed,
    ModelResponded,
    Noted,
    Reservation,
    RunResumed,
    RunStarted,
    SessionOpened,
)
from perdure.core.fold import evolve
from perdure.core.messages import AssistantMessage, Text, ToolCall, Usage
from perdure.core.rules import next_actions
from perdure.core.specs import AgentSpec, Limits, Overrides
from perdure.core.state import SessionState, find_call, in_flight, new_state
from perdure.core.transcript import unpaired
from perdure.core.views import pending_of, summarise

TOOLS: dict[str, dict[str, Any]] = {
    "read": {"effect": "read"},
    "keyed": {"effect": "idempotent"},
    "once": {"effect": "once"},
    "told": {"effect": "once", "on_unknown": "tell"},
    "operate": {"effect": "resumable"},
    "slow": {"effect": "read", "background": True},
    "slow_once": {"effect": "once", "background": True},
    "line": {"effect": "once", "sequential": True},
    "ask": {"effect": "once", "verdict": "ask"},
    "expires": {"effect": "read", "verdict": "ask", "expires": 20.0},
    "deny": {"verdict": "deny"},
    "invalid": {"verdict": "invalid"},
}
EVERYTHING_SETTLES_WITHIN = 2_000


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
        self.now = 0.0
        spec = AgentSpec("clerk", concurrency=self.random.choice((None, None, 1, 2)))
        self.append(SessionOpened(f"u{seed}", f"s{seed}", "clerk"), AgentPinned("d", spec))

    def append(self, *events: Event) -> None:
        for event in events:
            self.events.append(event)
            self.state = evolve(self.state, event)
            self.replayed = evolve(self.replayed, decode_event(encode_event(event)))
            assert self.replayed == self.state, f"seed {self.seed}: replay differs after {event}"
            self._check_laws(event)

    def wreak(self, steps: int) -> Simulation:
        """Work, commands and crashes in any order."""
        for _ in range(steps):
            self.now += self.random.random() * 4
            dice = self.random.random()
            if dice < 0.10:
                self.send(self._any_command())
            elif dice < 0.16:
                self.crash()
            elif dice < 0.17:
                self.append(Noted("tag", {"now": 1}))
            elif not self.step():
                self.send(self._any_decision() if self.state.run else self._any_input())
        return self

    def settle(self) -> Simulation:
        """No more faults: the session must come to rest, with every input taken and every run ended."""
        for _ in range(EVERYTHING_SETTLES_WITHIN):
            if not self.step():
                pending = pending_of(self.state)
                if not pending:
                    assert self.state.run is None, f"seed {self.seed}: stuck in {self.state.run}"
                    assert not self.state.queue, f"seed {self.seed}: inputs left over"
                    return self
                self.send(self._any_decision())
        raise AssertionError(f"seed {self.seed}: does not come to rest")

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

    def crash(self) -> None:
        """The process dies with all that it had under way; the next one finds the open intents."""
        self.flights.clear()
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
            case EndOperation(call=call):
                return call in self.flights
            case _:
                return False

    def _may_run(self, action: RunTool) -> bool:
        call = find_call(self.state.run, action.call)
        return call is not None and call.status in ("allowed", "interrupted")

    def _take(self, action: Action) -> None:
        random, state = self.random, self.state
        match action:
            case AppendEvents(events=events):
                self.append(*events)
            case StartRun(inputs=inputs):
                first = state.queue[0]
                limits = first.overrides.limits or self._any_limits()
                output = random.choice((None, None, {"type": "object"}))
                self.append(RunStarted(state.runs + 1, inputs, limits, output=output, continues=first.continues))
            case CallModel():
                self._call_model(action)
            case CheckCall(call=call):
                self.flights[call] = action
            case RunTool(call=call, name=name, attempt=attempt):
                tool = TOOLS[name]
                on_unknown = tool.get("on_unknown", "ask")
                self.append(CallStarted(call, tool["effect"], attempt, f"key{call}", on_unknown))
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
            case EndOperation(call=call):
                self.flights[call] = action
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
                self.append(CallChecked(call, verdict, "rule", "because", digest, sequential))
            case RunTool(call=call):
                outcome = self.random.choice(("ok", "ok", "ok", "error", "timeout"))
                in_doubt = outcome == "timeout"
                self.append(CallEnded(call, outcome, (Text("out"),), in_doubt, self.random.random()))
            case EndOperation(call=call):
                self.append(CallEnded(call, "unknown", (Text("told to end"),), in_doubt=True))
            case _:
                self.append(self._any_answer())

    def _abort(self, call: int) -> None:
        action = self.flights.pop(call)
        assert isinstance(action, RunTool)
        effect = TOOLS[action.name]["effect"]
        outcome = self.random.choice(("ok", "cancelled" if effect == "read" else "unknown"))
        self.append(CallEnded(call, outcome, (Text("broken off"),), in_doubt=outcome == "unknown"))

    def _any_answer(self) -> Event:
        random, state = self.random, self.state
        spent: dict[str, Any] = {
            "usage": Usage(random.randrange(30), random.randrange(30)),
            "cost_usd": random.choice((None, 0.01)),
            "seconds": random.random() * 2,
        }
        dice = random.random()
        if dice < 0.06:
            kind = random.choice(("rate_limited", "auth", "internal", "cut"))
            return ModelFailed(kind, "gone", random.random())
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
        dice = self.random.random()
        if dice < 0.45:
            return self._any_input()
        if dice < 0.70:
            return self._any_decision()
        if dice < 0.80:
            return StopRun(self.random.choice(("stop", "cancel", "seconds")), by="ops")
        if dice < 0.90:
            return ExpireCalls(self.now)
        if dice < 0.94:
            return ChangeSettings(self.random.choice(("", "openai:a", "anthropic:b")))
        if dice < 0.96:
            return CancelBackground()
        return ContinueRun(Overrides(limits=self._any_limits()))

    def _any_input(self) -> SendInput:
        random = self.random
        key = random.choice((None, None, "k1", "k2", "k3"))
        words = f"words {random.randrange(2)}" if key else f"words {len(self.events)}"
        busy = random.choice(("queue", "queue", "join", "join", "interrupt", "refuse"))
        return SendInput((Text(words),), busy=busy, key=key, digest=digest_of(words))

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
        if isinstance(event, ModelCalled | ModelResponded | CallEnded | RunStarted):
            broken = set(unpaired(state.history))
            turn = {call.ordinal for call in run.calls} if run else set[int]()
            assert broken == (turn if open_calls else set()), f"seed {self.seed}: unpaired {broken}"
        summary = summarise(state)
        at_rest = run is None and not state.queue
        waiting = any(call.status == "suspended" for call in run.calls) if run else False
        assert summary.runnable or at_rest or waiting, f"seed {self.seed}: stuck"
        if run:
            flying = [call for call in run.calls if call.status == "started"]
            cap = state.spec.concurrency if state.spec else None
            assert cap is None or len(flying) <= cap, f"seed {self.seed}: over the cap"
            alone = any(call.sequential for call in flying)
            assert not alone or len(flying) == 1, f"seed {self.seed}: a sequential call is not alone"
