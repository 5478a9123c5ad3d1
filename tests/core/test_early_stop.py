"""An input that was accepted can be stopped before anybody has started its run."""

from __future__ import annotations

import pytest

from perdure.core.accept import accept
from perdure.core.actions import AppendEvents, StartRun
from perdure.core.commands import StopRun
from perdure.core.errors import Refused
from perdure.core.events import Event, InputAccepted, InputChanged, RunEnded, RunStarted, SessionOpened, StopRequested
from perdure.core.fold import fold
from perdure.core.messages import Text
from perdure.core.rules import next_actions

OPENED = SessionOpened("u", "s", "clerk")
QUEUED: list[Event] = [OPENED, InputAccepted(1, (Text("go"),)), InputAccepted(2, (Text("later"),))]


def test_nothing_to_stop_is_refused() -> None:
    with pytest.raises(Refused, match="no open run"):
        accept(fold([OPENED]), StopRun("stop"))


@pytest.mark.parametrize(("cause", "reason"), [("stop", "stopped"), ("cancel", "cancelled")])
def test_the_run_to_be_ends_as_soon_as_it_starts(cause: str, reason: str) -> None:
    stops = accept(fold(QUEUED), StopRun(cause, "ops"))  # pyright: ignore[reportArgumentType]
    assert stops == (StopRequested(1, cause, "ops"),)  # pyright: ignore[reportArgumentType]
    state = fold([*QUEUED, *stops])
    assert next_actions(state) == (StartRun((1,)),)
    state = fold([RunStarted(1, (1,))], state)
    assert next_actions(state) == (AppendEvents((RunEnded(1, reason, "by ops"),)),)  # pyright: ignore[reportArgumentType]


def test_the_next_input_is_not_stopped_with_it() -> None:
    state = fold([*QUEUED, StopRequested(1, "stop"), RunStarted(1, (1,)), RunEnded(1, "stopped"), RunStarted(2, (2,))])
    assert state.run is not None
    assert state.run.stop is None


def test_a_second_stop_says_nothing_new_and_a_cancel_escalates() -> None:
    state = fold([*QUEUED, StopRequested(1, "stop")])
    assert accept(state, StopRun("stop")) == ()
    assert accept(state, StopRun("cancel")) == (StopRequested(1, "cancel"),)
    assert accept(fold([*QUEUED, StopRequested(1, "cancel")]), StopRun("cancel")) == ()


def test_the_stop_of_a_run_to_be_goes_with_the_input_that_is_retracted() -> None:
    state = fold([*QUEUED, StopRequested(1, "stop"), InputChanged(1, retracted=True), RunStarted(1, (2,))])
    assert state.run is not None
    assert state.run.stop is None


def test_it_stays_if_another_input_is_retracted() -> None:
    state = fold([*QUEUED, StopRequested(1, "stop"), InputChanged(2, retracted=True), RunStarted(1, (1,))])
    assert state.run is not None
    assert state.run.stop is not None
