"""Hand-offs at the command line: the targets stand in the file of the agent that was given."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import Command, in_order

AGENTS = """
from perdure import Agent
from perdure.handoffs import handoff, last_messages

billing = Agent(name="billing", instructions="You bill.", handoffs=["clerk"])
to_billing = handoff(billing, filter=last_messages(2))
clerk = Agent(name="clerk", instructions="You take orders.", handoffs=[to_billing, "refunds"])
back = Agent(name="refunds", instructions="You refund.")
"""


@pytest.fixture
def shop(perdure: Command) -> Command:
    (perdure.folder / "agents.py").write_text(AGENTS)
    return perdure


def script(shop: Command, *answers: object) -> tuple[str, ...]:
    """The model for all of them; an answer counts those that the conversation holds."""
    (shop.folder / "script.json").write_text(json.dumps(answers))
    return ("--agent", "agents.py:clerk", "--model", "scripted:script.json", "--session", "s")


def hand_off(to: str) -> object:
    return {"calls": [{"name": "hand_off", "arguments": {"to": to}}]}


def test_the_next_agent_goes_on_and_the_session_is_its_own(shop: Command) -> None:
    given = script(shop, hand_off("refunds"), "Refunded.", "Again.")
    assert "Refunded." in shop("run", "Give it back", *given)
    (row,) = shop.objects("sessions", "list")
    assert row["agent"] == "refunds"
    in_order(shop("sessions", "show", "s"), "session s · agent clerk", "⇄ refunds takes over", "Refunded.")
    assert "Again." in shop("run", "And this", *given), "the agent that it began with opens it too"


def test_a_filtered_past_is_shown_as_such(shop: Command) -> None:
    given = script(shop, hand_off("billing"), "Billed.")
    assert "Billed." in shop("run", "Bill it", *given)
    in_order(
        shop("sessions", "show", "s"), "⇄ billing takes over", "what is read of the past is filtered, by the hand-off"
    )


def test_a_session_is_given_to_another_agent(shop: Command) -> None:
    given = script(shop, "Hello.", "Refunded.")
    shop("run", "Hi", *given)
    assert shop("sessions", "set-agent", "s", "refunds") == "s belongs to the agent 'refunds' now.\n"
    assert shop.objects("sessions", "set-agent", "s", "refunds") == [{"session": "s", "agent": "refunds"}]
    assert "⇄ from now on it is refunds's" in shop("sessions", "show", "s")
    assert "Refunded." in shop("run", "Give it back", *given)
    assert "is empty" in shop.call("sessions", "set-agent", "s", "", code=2).stderr
    shop("sessions", "set-agent", "s", "mars")
    refused = shop.call("run", "More", *given, code=2).stderr
    assert "The agent 'mars' is not known here" in refused


def test_resume_takes_the_agent_that_goes_on_or_the_one_that_began(shop: Command) -> None:
    given = script(shop, hand_off("refunds"))
    shop("run", "Give it back", *given, code=1)
    script(shop, hand_off("refunds"), "Refunded.")
    model = ("--model", "scripted:script.json")
    other = shop.call("resume", "s", "--agent", "agents.py:billing", *model, code=2).stderr
    assert "Session 's' belongs to the agent 'refunds', not to 'billing'." in other
    assert "Refunded." in shop("resume", "s", "--agent", "agents.py:clerk", *model)
