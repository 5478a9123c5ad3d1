"""What the log notes about models, in words."""

from __future__ import annotations

import pytest

from perdure.cli.notes import show_note
from perdure.cli.words import show_spent
from perdure.core.events import Noted

TURN = {"turn": 1, "model": "a:b"}


@pytest.mark.parametrize(
    ("note", "shown"),
    [
        (
            Noted("model_attempt", {**TURN, "attempt": 2, "kind": "server", "wait": 1.5, "detail": "x"}),
            "the model failed (server, attempt 2): again in 1.5 s",
        ),
        (
            Noted("model_attempt", {**TURN, "attempt": 4, "kind": "auth", "wait": None, "detail": "x"}),
            "the model failed (auth, attempt 4): that was its last try",
        ),
        (
            Noted("model_wait", {**TURN, "wait": 12.0, "circuit": False}),
            "waits 12.0 s for a:b: the rate limit is shared",
        ),
        (Noted("model_wait", {**TURN, "wait": 30.0, "circuit": True}), "waits 30.0 s for a:b: it has failed too often"),
        (Noted("model_switch", {**TURN, "instead_of": "c:d"}), "a:b is asked instead of c:d"),
        (Noted("model_recovery", {**TURN, "plan": "kept"}), "the answer broke off; the calls that were whole are kept"),
        (Noted("model_recovery", {**TURN, "plan": "odd"}), "the answer broke off; odd"),
        (
            Noted("price_unknown", {"model": "a:b", "limit": 2.0}),
            "nobody knows the price of a:b: the limit of $2.00 does not hold",
        ),
        (Noted("hook_failed", {"hook": "on_model_error", "detail": "boom"}), "on_model_error failed: boom"),
        (
            Noted("agent_changed", {"run": 1, "changes": ["the tool pay is gone", "it has another model"]}),
            "the agent has changed since this run began: the tool pay is gone; it has another model",
        ),
        (Noted("driver_died", {"owner": "w1", "deaths": 1}), "the driver w1 died"),
        (Noted("driver_died", {"owner": "w2", "deaths": 2}), "the driver w2 died, number 2 in a row"),
        (
            Noted("quarantined", {"deaths": 3}),
            "quarantined: 3 drivers in a row have died of it; mend it, then resume it",
        ),
        (Noted("tag", {"x": 1}), 'tag {"x":1}'),
    ],
)
def test_a_note_says_what_happened(note: Noted, shown: str) -> None:
    assert show_note(note)[1] == shown


def test_a_price_that_nobody_knows_is_shown_as_unknown() -> None:
    assert show_spent(0.0, is_priced=True) == []
    assert show_spent(0.5, is_priced=True) == ["$0.5000"]
    assert show_spent(0.0, is_priced=False) == ["cost unknown"]
    assert show_spent(1.5, is_priced=False) == ["$1.50", "more at an unknown price"]
