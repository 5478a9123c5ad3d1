"""What changed a session beside its turns, in words."""

from __future__ import annotations

import pytest

from perdure.cli.changes import show_change
from perdure.core.events import (
    Event,
    HistoryCut,
    HistoryImported,
    InputChanged,
    Noted,
    SettingsChanged,
    StateChanged,
)
from perdure.core.messages import Text, UserMessage

SAID = UserMessage((Text("hi"),))


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (HistoryCut(7, 3, (SAID,), by="ann"), "the conversation is back at record 7, by ann"),
        (
            HistoryCut(7, 3, by="hand-off to billing"),
            "what is read of the past is filtered, by the hand-off to billing",
        ),
        (SettingsChanged(agent="billing"), "from now on it is billing's"),
        (HistoryCut(0), "the conversation begins anew"),
        (HistoryImported((SAID,), ("a",), "openai"), "1 message imported from openai · 1 repair"),
        (InputChanged(1, blocked="rude"), "the input is blocked: rude"),
        (InputChanged(1, (Text("be kind"),), vetted=True), "the input was changed to: be kind"),
        (InputChanged(2, (Text("be kind"),), by="ann"), "input 2 was edited by ann: be kind"),
        (InputChanged(2, (Text("be kind"),)), "input 2 was edited: be kind"),
        (InputChanged(2, retracted=True, by="ann"), "input 2 was retracted by ann"),
        (InputChanged(2, retracted=True), "input 2 was retracted"),
        (InputChanged(1, due=True), "an input that was scheduled is due"),
        (SettingsChanged(title="Order 7"), "it is called 'Order 7' now"),
        (SettingsChanged("a:b"), "from now on a:b answers"),
        (StateChanged({"session/todo": 1}, "tracker"), "session/todo changed by tracker"),
    ],
)
def test_a_change_in_words(event: Event, shown: str) -> None:
    change = show_change(event)
    assert change is not None
    assert change[1] == shown


def test_what_is_no_change_is_left_to_others() -> None:
    assert show_change(Noted("x")) is None
    assert show_change(InputChanged(1, vetted=True)) is None
