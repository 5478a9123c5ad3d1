"""Calls that somebody else carries out: clients, whoever hands in a result, and people who are asked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure import Agent, Conflict, NotFound, Policy, Refused, Runtime, ToolContext, UsageError, tool
from perdure.core.specs import ToolSpec
from perdure.events import CallChecked, CallDecided, CallEnded, CallStarted, CallSuspended
from perdure.ports import Store
from perdure.testing import ManualClock, ScriptedModel, call
from perdure.tools import ask_user, external, frontend
from tests.runtime.scenes import crashing, events, soon, told, turned, until


class Place(msgspec.Struct):
    street: str
    number: int


@tool(kind="external", effect="once")
def ship(order: str) -> Place:
    """Ship an order; the warehouse says where it went."""
    raise AssertionError("the function only describes the call")


@tool(effect="read")
async def look(what: str) -> str:
    """Look."""
    return f"saw {what}"


def asking(*answers: Any, **options: Any) -> Agent[str]:
    return Agent(name="clerk", model=ScriptedModel(list(answers)), **options)


async def waiting(session: Any, *args: Any, **options: Any) -> Any:
    result = await soon(session.run(*(args or ("go",)), **options))
    assert result.reason == "waiting", result
    return result.pending


MAP = frontend("show_map", "Show a map to the user.", parameters=Place, response={"type": "boolean"})


async def test_a_client_declares_a_tool_for_its_run_and_carries_it_out(store: str | Store) -> None:
    agent = asking([call("show_map", street="Main", number=7), call("look", what="it")], "Done.", tools=[look])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = await waiting(session, "go", tools=[MAP])
        assert (pending.kind, pending.tool, pending.arguments) == (
            "frontend",
            "show_map",
            {"street": "Main", "number": 7},
        )
        assert [tool.name for tool in agent.model.requests[0].tools] == ["look", "show_map"]  # type: ignore[union-attr]
        with pytest.raises(Refused, match="boolean"):
            await session.decide(pending.id, "answer", value="yes")
        await session.decide(pending.id, "answer", value=True, by="browser")
        with pytest.raises(Conflict, match="already decided by browser"):
            await session.decide(pending.id, "answer", value=False)
        assert (await soon(session.resume())).output == "Done."
        assert await told(session) == [("show_map", "ok", "true"), ("look", "ok", "saw it")]


async def test_arguments_of_a_declared_tool_are_checked(memory: Store) -> None:
    agent = asking([call("show_map", street="Main")], "Done.")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go", tools=[MAP]))).output == "Done."
        ((_, outcome, text),) = await told(session)
        assert (outcome, "number is missing" in text) == ("error", True)


async def test_what_cannot_be_declared_is_refused(memory: Store) -> None:
    agent = asking("Hi.", tools=[look])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        for wrong in (frontend("look"), ToolSpec("f"), ToolSpec("g", parameters={"not": {}}, kind="frontend")):
            with pytest.raises(UsageError):
                await session.run("go", tools=[wrong])
        with pytest.raises(UsageError):
            await session.run("go", tools=[MAP, MAP])


async def test_an_external_result_is_handed_in_later_exactly_once(store: str | Store) -> None:
    agent = asking([call("ship", order="7")], "Shipped.", tools=[ship])
    async with crashing(store, agents=[agent]) as runtime:
        (pending,) = await waiting(await runtime.open(agent, id="x"), "go", key="k")
    async with Runtime(store, engine=None) as runtime:
        session = await runtime.session("x")
        for wrong in ("nowhere", {"street": "Main"}, {"street": "Main", "number": "7"}):
            with pytest.raises(Refused, match="does not fit"):
                await session.decide(pending.id, "answer", value=wrong)
        with pytest.raises(NotFound):
            await session.decide("nobody-1-1", "answer", value=1)
        await session.decide(pending.id, "answer", value={"street": "Main", "number": 7})
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Shipped."
        assert await events(session, CallStarted) == [], "nothing ran here"


async def test_an_external_call_needs_its_approval_first(memory: Store) -> None:
    agent = asking([call("ship", order="7")], "Done.", tools=[ship], policy=Policy(ask=["ship"]))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        (approval,) = await waiting(session)
        assert approval.kind == "approval"
        await session.decide(approval.id, "approve")
        result = await soon(session.resume())
        (result_wanted,) = result.pending
        assert result_wanted.kind == "external"
        await session.decide(result_wanted.id, "deny", reason="no truck")
        assert (await soon(session.resume())).output == "Done."


# Questions


QUESTIONS = [
    {"question": "Which colour?", "options": ["red", "blue"]},
    {"question": "Which extras?", "options": ["bell", "light"], "multiple": True, "optional": True},
    {"question": "To whom?", "options": ["me"], "free_text": True},
    {"question": "Anything else?", "optional": True},
]


@pytest.mark.parametrize(
    ("answers", "wrong"),
    [
        (["red", ["bell", "light"], "me", "no"], ""),
        (["blue", None, "my mother", None], ""),
        (["green", None, "me", None], "[0]: it has to be one of 'red', 'blue'"),
        (["red", "bell", "me", None], "[1]"),
        (["red", ["bell", "bell"], "me", None], "[1]"),
        (["red", None, None, None], "[2]"),
        (["red", None, "me"], "at least 4"),
        (["red", None, "me", None, "more"], "[4]: nothing is allowed"),
    ],
)
async def test_questions_are_answered_in_one_decision_that_fits(memory: Store, answers: Any, wrong: str) -> None:
    agent = asking([call("ask_user", questions=QUESTIONS)], "Thanks.", tools=[ask_user()])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        (pending,) = await waiting(session)
        assert pending.kind == "question"
        assert "1. Which colour? (red / blue)" in pending.prompt
        assert "4. Anything else? [may be skipped]" in pending.prompt
        if wrong:
            with pytest.raises(Refused) as refused:
                await session.decide(pending.id, "answer", value=answers)
            assert wrong in str(refused.value)
            assert await session.pending() == (pending,)
            return
        await session.decide(pending.id, "answer", value=answers)
        assert (await soon(session.resume())).output == "Thanks."
        ((_, outcome, text),) = await told(session)
        assert (outcome, msgspec.json.decode(text)) == ("ok", answers)


async def test_a_question_that_needs_approval_is_asked_in_its_own_words(memory: Store) -> None:
    agent = asking([call("ask_user", questions=QUESTIONS[:1])], "Thanks.", tools=[ask_user()], policy=Policy(ask=["*"]))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        (approval,) = await waiting(session)
        assert "asks for approval" in approval.prompt
        await session.decide(approval.id, "approve")
        (question,) = (await soon(session.resume())).pending
        assert (question.kind, question.prompt) == ("question", "Which colour? (red / blue)")


async def test_all_questions_of_a_turn_can_be_answered_at_once_or_none(store: str | Store) -> None:
    one, two = ([{"question": "One?"}], [{"question": "Two?", "options": ["a", "b"]}])
    agent = asking([call("ask_user", questions=one), call("ask_user", questions=two)], "Thanks.", tools=[ask_user()])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        first, second = await waiting(session)
        with pytest.raises(Refused):
            await session.answer({first.id: ["yes"], second.id: ["c"]})
        assert await events(session, CallDecided) == []
        await session.answer({first.id: ["yes"], second.id: ["b"]}, by="ada")
        assert (await soon(session.resume())).output == "Thanks."
        assert [decided.by for decided in await events(session, CallDecided)] == ["ada", "ada"]


# Decisions


async def test_the_same_decision_id_is_the_same_decision(store: str | Store) -> None:
    agent = asking([call("ship", order="7"), call("ship", order="8")], "Done.", tools=[ship])
    place = {"street": "Main", "number": 7}
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        first, second = await waiting(session)
        for _ in range(3):
            await session.decide(first.id, "answer", value=place, id="d-1")
        with pytest.raises(Conflict, match="another call"):
            await session.decide(second.id, "answer", value=place, id="d-1")
        assert len(await events(session, CallDecided)) == 1
        await session.decide(second.id, "answer", value=place, id="d-2")
        await soon(session.resume())
        await session.decide(second.id, "answer", value=place, id="d-2")
        assert len(await events(session, CallDecided)) == 2, "also when all is over"


async def test_an_approval_may_bring_a_value_or_the_result(memory: Store) -> None:
    seen: list[Any] = []

    @tool(effect="once", ask=True)
    async def pay(cents: int, ctx: ToolContext[Any, Any]) -> str:
        """Pay."""
        seen.append(ctx.decision)
        return "paid"

    agent = asking([call("pay", cents=1), call("pay", cents=2)], "Done.", tools=[pay])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        first, second = await waiting(session)
        await session.decide(first.id, "approve", value={"from": "account 2"})
        await session.decide(second.id, "answer", value="paid by hand")
        assert (await soon(session.resume())).output == "Done."
        assert seen == [{"from": "account 2"}], "the decision reached the tool; the other call never ran"
        assert [text for _, _, text in await told(session)] == ["paid", "paid by hand"]


@pytest.mark.parametrize(
    ("on_expiry", "outcome", "text"),
    [("deny", "denied", "nobody decided in time"), ("approve", "ok", "shipped"), (("answer", "later"), "ok", "later")],
)
async def test_a_decision_that_nobody_makes_has_a_default(
    memory: Store, on_expiry: Any, outcome: str, text: str
) -> None:
    @tool(effect="once", ask=True, expires=60, on_expiry=on_expiry)
    async def send() -> str:
        """Send."""
        return "shipped"

    clock = ManualClock()
    agent = asking([call("send")], "Done.", tools=[send])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await until(lambda: session.state.run and session.state.run.calls and session.state.run.calls[0].pause)
        await turned(clock, lambda: len(session.state.ended) == 1, 30)
        assert (await run).output == "Done."
        ((_, was, said),) = await told(session)
        assert was == outcome
        assert text in said


# What was approved is what runs


async def test_an_approval_is_for_what_was_shown_and_nothing_else(store: str | Store) -> None:
    """The schema, the policy or the tool changes while somebody thinks: the approval is taken back."""
    ran: list[str] = []

    def clerk(description: str, policy: Policy) -> Agent[str]:
        @tool(effect="once", description=description)
        async def pay(cents: int) -> str:
            ran.append(description)
            return "paid"

        return asking([call("pay", cents=5)], "Done.", tools=[pay], policy=policy)

    before = clerk("Pay.", Policy(ask=["pay"]))
    for changed in (clerk("Pay a lot.", Policy(ask=["pay"])), clerk("Pay.", Policy(ask=["pay", "other"]))):
        name = f"x{len(ran)}{id(changed)}"
        async with crashing(store, agents=[before]) as runtime:
            (pending,) = await waiting(await runtime.open(before, id=name), "go", key="k")
        async with Runtime(store, engine=None) as runtime:
            await (await runtime.session(name)).decide(pending.id, "approve")
        async with Runtime(store, agents=[changed]) as runtime:
            session = await runtime.open(changed, id=name)
            result = await soon(session.run("go", key="k"))
            (again,) = result.pending
            assert again.id != pending.id
            assert ran == []
            assert [checked.verdict for checked in await events(session, CallChecked)] == ["ask", "stale", "ask"]
            await session.cancel()
    same = clerk("Pay.", Policy(ask=["pay"]))
    async with crashing(store, agents=[before]) as runtime:
        (pending,) = await waiting(await runtime.open(before, id="same"), "go", key="k")
    async with Runtime(store, engine=None) as runtime:
        await (await runtime.session("same")).decide(pending.id, "approve")
    async with Runtime(store, agents=[same]) as runtime:
        assert (await soon((await runtime.open(same, id="same")).run("go", key="k"))).output == "Done."
    assert ran == ["Pay."], "what is the same is not asked about again"


# One turn at a time


async def test_step_runs_exactly_one_turn(memory: Store) -> None:
    agent = asking([call("look", what="a")], [call("look", what="b")], "Done.", tools=[look])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        first = await soon(session.step("go"))
        assert (first.reason, first.detail, first.turns) == ("limit", "turns", 1)
        assert [end.call for end in await events(session, CallEnded)] == [1]
        assert (await soon(session.step())).reason == "limit"
        last = await soon(session.step())
        assert (last.reason, last.output) == ("completed", "Done.")


async def test_a_step_returns_what_is_pending(memory: Store) -> None:
    agent = asking([call("ship", order="7")], "Done.", tools=[ship])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.step("go"))
        (pending,) = result.pending
        await session.decide(pending.id, "answer", value={"street": "Main", "number": 7})
        await until(lambda: len(session.state.ended) == 1)
        assert (await soon(session.step())).output == "Done."


def test_declared_tools_have_schemas_that_can_be_checked() -> None:
    assert external("f", response=int).response == {"type": "integer"}
    with pytest.raises(UsageError):
        frontend("f", parameters={"not": {}})


async def test_suspended_calls_of_every_kind_are_durable(store: str | Store) -> None:
    questions = [{"question": "Sure?"}]
    calls = [call("ship", order="7"), call("show_map", street="M", number=1), call("ask_user", questions=questions)]
    agent = asking(calls, "Done.", tools=[ship, ask_user()])
    async with crashing(store, agents=[agent]) as runtime:
        pending = await waiting(await runtime.open(agent, id="x"), "go", key="k", tools=[MAP])
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert await session.pending() == pending
        assert sorted(item.kind for item in pending) == ["external", "frontend", "question"]
        assert len(await events(session, CallSuspended)) == 3
        await session.answer({pending[0].id: {"street": "M", "number": 1}, pending[1].id: True, pending[2].id: ["yes"]})
        assert (await soon(session.run("go", key="k"))).output == "Done."
