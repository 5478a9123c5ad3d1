"""What a request carries beside the conversation: context messages, reminders, the notice of the last turns."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Limits, Runtime, ToolContext, ToolError, UsageError, tool
from perdure.context import ContextMessage, Reminder
from perdure.core.messages import Message, Text, UserMessage
from perdure.models.wires.chat import wire_for as chat
from perdure.models.wires.gemini import wire_for as gemini
from perdure.models.wires.messages import wire_for as messages
from perdure.models.wires.responses import wire_for as responses
from perdure.models.wires.wire import Wire
from perdure.ports import ModelRequest, Store
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import soon


@tool(effect="read")
async def look(what: str = "") -> str:
    """Look."""
    if what == "nowhere":
        raise ToolError("there is nothing")
    return f"seen {what}"


def texts(found: tuple[Message, ...]) -> list[str]:
    return [part.text for m in found if isinstance(m, UserMessage) for part in m.parts if isinstance(part, Text)]


async def asked(store: Store, script: Any, **options: Any) -> list[ModelRequest]:
    """The requests of one run."""
    model = ScriptedModel(script)
    agent = Agent(name="clerk", model=model, tools=[look], **options)
    async with Runtime(store, agents=[agent], deps="the deps") as runtime:
        session = await runtime.open(agent, id="x")
        await soon(session.run("go"))
        stored = texts(tuple(await session.history()))
        assert stored == ["go"], "nothing of it is in the history"
    return model.requests


async def test_context_stands_where_it_is_wanted_in_the_order_of_its_priority(memory: Store) -> None:
    context = [
        ContextMessage("later", "less important", "start"),
        ContextMessage("first", "important", "start", priority=5),
        ContextMessage("rules", "Be brief.", "system"),
        "at the end",
    ]
    (request,) = await asked(memory, ["Done."], instructions="You bill.", context=context)
    assert request.instructions == "You bill.\n\nBe brief."
    assert texts(request.preface) == ["important", "less important"]
    assert texts(request.suffix) == ["at the end"]


async def test_of_two_with_one_key_the_later_counts_and_functions_see_the_session(memory: Store) -> None:
    async def weather(ctx: ToolContext[Any, Any]) -> ContextMessage:
        return ContextMessage(
            "weather", f"{ctx.deps}, {ctx.session}, turn {ctx.state.run.turn if ctx.state.run else 0}"
        )

    def nothing(ctx: ToolContext[Any, Any]) -> None:
        return None

    sources = [ContextMessage("weather", "old"), weather, nothing, lambda ctx: ["a", ContextMessage("b", "b")]]
    one, two = await asked(memory, [[call("look")], "Done."], context=sources)
    assert texts(one.suffix) == ["the deps, x, turn 1", "a", "b"]
    assert texts(two.suffix)[0] == "the deps, x, turn 2", "it is asked for every request"


async def test_a_context_function_that_fails_fails_the_run_with_its_words(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([]), context=[lambda ctx: 7])  # type: ignore[list-item,return-value]
    async with Runtime(memory, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent)).run("go"))
    assert (result.reason, result.detail) == (
        "failed",
        f"internal: {UsageError.__name__}: A context function returned int; return text or ContextMessage.",
    )


def test_a_position_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="position='middle'"):
        ContextMessage("x", "y", position="middle")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reminder", "wanted"),
    [
        (Reminder("r"), [[], ["r"], ["r"]]),
        (Reminder("r", tool="l*k"), [[], ["r"], ["r"]]),
        (Reminder("r", tool="other"), [[], [], []]),
        (Reminder("r", outcome="error"), [[], [], ["r"]]),
        (Reminder("r", contains="seen it"), [[], ["r"], []]),
        (Reminder("r", contains="seen it", outcome="error"), [[], [], []]),
        (Reminder("r", every=2), [[], [], ["r"]]),
        (Reminder("r", every=1, outcome="error"), [[], [], ["r"]]),
    ],
    ids=repr,
)
async def test_reminders_come_when_results_call_for_them(
    memory: Store, reminder: Reminder, wanted: list[list[str]]
) -> None:
    script = [[call("look", what="it")], [call("look", what="nowhere")], "Done."]
    requests = await asked(memory, script, reminders=[reminder])
    assert [texts(request.suffix) for request in requests] == wanted


async def test_the_model_hears_that_few_turns_are_left(memory: Store) -> None:
    script = [[call("look", what=str(n))] for n in range(4)] + ["Done."]
    requests = await asked(memory, script, limits=Limits(turns=5))
    assert [len(request.suffix) for request in requests] == [0, 0, 0, 1, 1]
    assert "Only this turn and one more are left" in texts(requests[3].suffix)[0]
    assert "This is the last turn" in texts(requests[4].suffix)[0]


async def test_a_run_that_is_short_itself_has_no_notice(memory: Store) -> None:
    requests = await asked(memory, [[call("look")], "Done."], limits=Limits(turns=2))
    assert [request.suffix for request in requests] == [(), ()]


WIRES: dict[str, Wire] = {
    "chat": chat("m"),
    "responses": responses("m"),
    "messages": messages("m"),
    "gemini": gemini("m"),
}


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_every_wire_writes_what_stands_around_the_conversation_for_one_request_alone(wire: Wire) -> None:
    def said(text: str) -> UserMessage:
        return UserMessage((Text(text),))

    plain = ModelRequest("m", "", [said("the question")])
    around = ModelRequest("m", "", [said("the question")], preface=(said("the preface"),), suffix=(said("the suffix"),))
    body = wire.to_wire(around, "m", {}).decode()
    places = [body.index(words) for words in ("the preface", "the question", "the suffix")]
    assert places == sorted(places)
    assert "suffix" not in wire.to_wire(plain, "m", {}).decode()
