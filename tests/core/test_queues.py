"""Queues: whoever serves the queue of a state gets on with it, and a session is never passed on for nothing."""

from __future__ import annotations

import pytest

from perdure.core.accept import accept
from perdure.core.actions import RunTool
from perdure.core.commands import ChangeSettings, StopRun
from perdure.core.events import CallChecked, CallStarted, RunResumed, SessionOpened, SettingsChanged
from perdure.core.fold import fold
from perdure.core.queues import queue_for, queue_of
from perdure.core.rules import next_actions
from perdure.core.state import in_flight
from perdure.core.views import summarise
from tests.core.logs import asking, folded
from tests.core.simulate import TOOLS, Simulation

GPU = "gpu"


class Handed(Simulation):
    """Two workers, of which one serves the agents and the other a queue of tools; one of them has the session."""

    passed = 0
    here = ""

    def step(self) -> bool:
        actions = [action for action in next_actions(self.state) if not self._is_under_way(action)]
        mine = [action for action in actions if self._is_served(queue_for(self.state, action))]
        if self.flights and (not mine or self.random.random() < 0.4):
            self._land(self.random.choice(list(self.flights)))
        elif mine:
            self._take(self.random.choice(mine))
        elif actions:
            self._pass_on()
        else:
            assert not in_flight(self.state)
            return False
        return True

    def crash(self) -> None:
        summary = summarise(self.state)
        assert summary.served_by == queue_of(self.state)
        super().crash()
        self.here = GPU if summary.queue else ""

    def _is_served(self, queue: str | None) -> bool:
        return queue is None or (queue == GPU) == (self.here == GPU)

    def _pass_on(self) -> None:
        """Nothing is left to do here: then the session's queue is the other one's."""
        assert not self._is_served(queue_of(self.state)), f"seed {self.seed}: {next_actions(self.state)}"
        assert summarise(self.state).runnable
        self.here = "" if self.here else GPU
        self.passed += 1


@pytest.mark.parametrize("block", range(6))
def test_a_session_is_passed_on_only_to_somebody_who_gets_on_with_it(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("keyed", "once", "operate", "slow", "line", "ask"):
        monkeypatch.setitem(TOOLS, name, {**TOOLS[name], "queue": GPU})
    passed = 0
    for seed in range(block * 50, block * 50 + 50):
        session = Handed(seed).wreak(150).settle()
        passed += session.passed
    assert passed > 50


def test_the_queue_is_that_of_the_first_call_that_runs_next() -> None:
    checks = [CallChecked(1, "allow", digest="d1"), CallChecked(2, "allow", digest="d2", queue=GPU)]
    state = folded(asking("lookup", "render"), *checks)
    assert [action.call for action in next_actions(state) if isinstance(action, RunTool)] == [1, 2]
    assert queue_of(state) == summarise(state).queue == GPU
    started = fold([CallStarted(2, "once")], state)
    assert queue_of(started) == "clerk", "what is not repeated after a crash needs no place of its own"
    repeated = fold([CallStarted(2, "read")], state)
    assert queue_of(repeated) == queue_of(fold([RunResumed(2)], repeated)) == GPU
    stopped = fold([*accept(state, StopRun("cancel"))], state)
    assert queue_of(stopped) == "clerk", "an end needs no place"


def test_a_call_that_waits_for_its_turn_does_not_say_where() -> None:
    checks = [CallChecked(1, "allow", digest="d1", sequential=True), CallChecked(2, "allow", digest="d2", queue=GPU)]
    assert queue_of(folded(asking("lookup", "render"), *checks)) == "clerk"


def test_a_priority_is_kept_and_may_be_changed() -> None:
    opened = SessionOpened("5e55", "order-7", "clerk", priority=5)
    state = fold([opened])
    assert (state.priority, summarise(state).priority) == (5, 5)
    assert accept(state, ChangeSettings(priority=5)) == ()
    [changed] = accept(state, ChangeSettings(priority=-1))
    assert changed == SettingsChanged(priority=-1)
    state = fold([changed, SettingsChanged("other")], state)
    assert summarise(state).priority == -1
