"""Guardrails: accept, block, retry with feedback; nothing of what they refuse is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Agent, Record, Runtime, UsageError, tool
from perdure.core.codec import encode_event
from perdure.core.deltas import AttemptDiscarded, TextDelta
from perdure.core.messages import AssistantMessage, Text, Usage
from perdure.events import CallStarted, ModelFailed, ModelResponded, Noted
from perdure.plugins import Block, Guardrail, Hooks, Retry
from perdure.ports import Store
from perdure.testing import ManualClock, ScriptedModel, call
from tests.runtime.scenes import collect, events, said, soon, turned


def counting(*answers: Any, **options: Any) -> ScriptedModel:
    """By the number of requests: an answer that does not count leaves none behind."""
    model = ScriptedModel(lambda request: answers[min(len(model.requests), len(answers)) - 1], **options)
    return model


async def written(runtime: Runtime, id: str = "x") -> str:
    """Everything that the log of a session holds, as text."""
    session = await runtime.session(id)
    return "\n".join(encode_event(record.event).decode() for record in await session.records())


# Inputs


@pytest.mark.parametrize("verdict", [None, True])
async def test_an_input_that_is_accepted_goes_on(memory: Store, verdict: Any) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]), guardrails=[Guardrail(input=lambda moment: verdict)])
    async with Runtime(memory, agents=[agent]) as runtime:
        assert (await soon((await runtime.open(agent)).run("go"))).output == "Done."


@pytest.mark.parametrize(("verdict", "why"), [(Block("no secrets"), "no secrets"), (False, "refused it")])
async def test_a_blocked_input_reaches_neither_the_history_nor_the_model(
    store: str | Store, verdict: Any, why: str
) -> None:
    model = ScriptedModel(["Done."])

    async def guard(moment: Any) -> Any:
        await asyncio.sleep(0)
        return verdict if "secret" in moment.text else None

    agent = Agent(name="clerk", model=model, guardrails=[Guardrail(input=guard)])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("my secret is 7"))
        assert result.reason == "refusal"
        assert why in result.detail
        assert model.requests == []
        assert await session.history() == []
        assert (await soon(session.run("something else"))).output == "Done.", "the session goes on"
        assert await said(session) == ["something else"]


async def test_an_input_that_joins_is_vetted_too(memory: Store) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait."""
        begun.set()
        await go_on.wait()
        return "waited"

    model = ScriptedModel([[call("wait")], "Done."])
    guard = Guardrail(input=lambda moment: Block("no") if "secret" in moment.text else None)
    agent = Agent(name="clerk", model=model, tools=[wait], guardrails=[guard])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await soon(begun.wait())
        secret = await session.send("my secret")
        plain = await session.send("and this")
        go_on.set()
        assert (await soon(run)).output == "Done."
        assert (await soon(plain)).output == "Done."
        assert (await soon(secret)).reason == "refusal"
        assert await said(session) == ["go", "and this"]


async def test_a_guardrail_sees_the_words_that_a_hook_put_in_their_place(memory: Store) -> None:
    found: list[str] = []
    agent = Agent(
        name="clerk",
        model=ScriptedModel(["Done."]),
        hooks=[Hooks(input=lambda moment: moment.text.replace("7", "#"))],
        guardrails=[Guardrail(input=lambda moment: found.append(moment.text))],
    )
    async with Runtime(memory, agents=[agent]) as runtime:
        await soon((await runtime.open(agent)).run("card 7"))
    assert found == ["card #"]


# Outputs


async def test_a_blocked_answer_ends_the_run_and_nothing_of_it_is_kept(store: str | Store) -> None:
    model = ScriptedModel(["The password is hunter2."], cost=lambda usage: 0.5)
    agent = Agent(name="clerk", model=model, guardrails=[Guardrail(output=lambda moment: Block("it tells too much"))])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go"))
        assert (result.reason, result.detail) == ("refusal", "output: it tells too much")
        assert (result.usage.total, result.cost_usd) == (15, 0.5), "it is paid for all the same"
        assert "hunter2" not in await written(runtime)
        assert len(await session.history()) == 1
        assert await runtime._host.world.store.read_draft(session.uid) == ()


async def test_a_rejected_answer_is_tried_again_with_feedback(store: str | Store) -> None:
    model = counting("The password is hunter2.", "I cannot say.")
    guard = Guardrail(output=lambda moment: Retry("Do not tell passwords.") if "password" in moment.text else None)
    agent = Agent(name="clerk", model=model, guardrails=[guard])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go"))
        assert (result.output, result.turns, result.usage.total) == ("I cannot say.", 2, 30)
        assert await said(session) == ["go", "Do not tell passwords."]
        assert "hunter2" not in await written(runtime)
    assert [len(request.messages) for request in model.requests] == [1, 2]


async def test_eight_rejections_in_a_row_fail_the_run(memory: Store) -> None:
    model = counting("No.")
    agent = Agent(name="clerk", model=model, guardrails=[Guardrail(output=lambda moment: Retry("Better."))])
    async with Runtime(memory, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent)).run("go"))
    assert (result.reason, result.detail) == ("failed", "output: rejected 8 times")
    assert len(model.requests) == 8


async def test_calls_of_an_answer_that_does_not_count_are_never_started(memory: Store) -> None:
    ran: list[int] = []

    @tool(effect="once")
    async def act() -> str:
        """Act."""
        ran.append(1)
        return "done"

    model = counting([call("act")], "Done.")
    guard = Guardrail(output=lambda moment: Retry("No calls.") if moment.calls else None)
    agent = Agent(name="clerk", model=model, tools=[act], guardrails=[guard])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "Done."
        assert await events(session, CallStarted) == []
        assert session.state.calls == 0
    assert ran == []


async def test_what_was_shown_of_it_is_announced_as_discarded(memory: Store) -> None:
    model = counting("Secret.", "Fine.")
    guard = Guardrail(output=lambda moment: Retry("No.") if "Secret" in moment.text else None)
    agent = Agent(name="clerk", model=model, guardrails=[guard])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        items: list[Any] = []
        reading = collect(session.stream(), items)
        assert (await soon(session.run("go"))).output == "Fine."
        reading.cancel()
    shown = [item for item in items if not isinstance(item, Record)]
    assert [item.text for item in shown if isinstance(item, TextDelta)] != []
    discarded = next(at for at, item in enumerate(shown) if isinstance(item, AttemptDiscarded))
    assert any(isinstance(item, TextDelta) for item in shown[:discarded])
    assert any(isinstance(item, TextDelta) for item in shown[discarded:])


async def test_a_guardrail_has_the_last_word_behind_middleware_and_hooks(memory: Store) -> None:
    async def spoil(action: Any, perform: Any) -> Any:
        event = await perform(action)
        if isinstance(event, ModelResponded):
            return replace(event, message=AssistantMessage((Text("spoilt"),)))
        return event

    found: list[str] = []
    agent = Agent(
        name="clerk",
        model=ScriptedModel(["Done."]),
        middleware=[spoil],
        guardrails=[Guardrail(output=lambda moment: found.append(moment.text))],
    )
    async with Runtime(memory, agents=[agent]) as runtime:
        assert (await soon((await runtime.open(agent)).run("go"))).output == "spoilt"
    assert found == ["spoilt"]


async def test_the_first_guardrail_that_objects_decides(memory: Store) -> None:
    asked: list[str] = []

    def guard(name: str, verdict: Any) -> Guardrail:
        def output(moment: Any) -> Any:
            asked.append(name)
            return verdict

        return Guardrail(output=output)

    guards = [guard("a", None), guard("b", Block("b says no")), guard("c", None)]
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]), guardrails=guards)
    async with Runtime(memory, agents=[agent]) as runtime:
        assert (await soon((await runtime.open(agent)).run("go"))).detail == "output: b says no"
    assert asked == ["a", "b"]


async def _fail(moment: Any) -> None:
    raise ValueError("out of order")


async def _hang(moment: Any) -> None:
    await asyncio.Event().wait()


async def _nonsense(moment: Any) -> Any:
    return "maybe"


@pytest.mark.parametrize("function", [_fail, _hang, _nonsense])
@pytest.mark.parametrize("side", ["input", "output"])
async def test_a_guardrail_that_fails_blocks(memory: Store, side: str, function: Any) -> None:
    clock = ManualClock()
    model = ScriptedModel(lambda request: "The password is hunter2.")
    agent = Agent(name="clerk", model=model, guardrails=[Guardrail(**{side: function}, timeout=5, name="watch")])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await turned(clock, lambda: len(session.state.ended))
        result = await run
        assert result.reason == "refusal"
        assert result.detail.startswith(f"{side}: the guardrail watch failed")
        assert len(await events(session, Noted, kind="hook_failed")) == 1
        assert "hunter2" not in await written(runtime)
    assert len(model.requests) == (side == "output")


async def test_usage_of_rejected_answers_counts_against_the_limits(memory: Store) -> None:
    from perdure import Limits

    model = counting("No.", usage=Usage(40, 10))
    agent = Agent(
        name="clerk",
        model=model,
        limits=Limits(tokens=120),
        guardrails=[Guardrail(output=lambda moment: Retry("Better."))],
    )
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert (result.reason, result.detail) == ("limit", "tokens")
        assert {failed.kind for failed in await events(session, ModelFailed)} <= {"rejected", "limit"}


def test_a_guardrail_that_guards_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="guards nothing"):
        Guardrail()
    with pytest.raises(UsageError, match="function"):
        Guardrail(input="no")  # type: ignore[arg-type]


async def test_an_agent_without_them_vets_nothing(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        assert session.state.spec is not None
        assert not session.state.spec.vets_input


async def test_guardrails_see_the_answer_that_a_hook_did_not_end_to_look_at(memory: Store) -> None:
    async def stubborn(moment: Any) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    clock = ManualClock()
    hooks, model = [Hooks(after_model=stubborn, timeout=7)], ScriptedModel(["The secret."], usage=Usage(40, 10))
    guardrails = [Guardrail(output=lambda moment: Block("secret") if "secret" in moment.message.text else None)]
    agent = Agent(name="clerk", model=model, hooks=hooks, guardrails=guardrails)
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await turned(clock, lambda: bool(session.state.ended), step=2)
        result = await run
        assert (result.reason, result.detail, result.usage.total) == ("refusal", "output: secret", 50)
        assert "The secret" not in await written(runtime)


@pytest.mark.parametrize("how", ["stop", "cancel", "seconds"])
@pytest.mark.parametrize("who", ["guardrail", "after_model", "middleware"])
async def test_an_answer_is_paid_for_although_its_run_ends_while_it_is_looked_at(
    memory: Store, who: str, how: str
) -> None:
    from perdure import Limits

    entered, clock = asyncio.Event(), ManualClock()

    async def look(moment: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    async def around(action: Any, perform: Any) -> Any:
        event = await perform(action)
        if isinstance(event, ModelResponded) and who == "middleware":
            await look(event)
        return event

    ways: dict[str, Any] = {
        "guardrail": {"guardrails": [Guardrail(output=look)]},
        "after_model": {"hooks": [Hooks(after_model=look)]},
        "middleware": {"middleware": [around]},
    }
    model = counting("words", usage=Usage(1000, 500), cost=lambda usage: 1.0)
    agent = Agent(name="clerk", model=model, limits=Limits(seconds=20), **ways[who])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await soon(entered.wait())
        if how != "seconds":
            await (session.stop() if how == "stop" else session.cancel())
        await turned(clock, lambda: bool(session.state.ended), step=5)
        result = await soon(run)
        assert result.reason in ("stopped", "cancelled", "limit")
        assert (result.usage.total, result.cost_usd) == (1500, 1.0)


async def test_an_answer_that_was_kept_is_not_paid_for_again(memory: Store) -> None:
    """The second turn is broken off before it asks anybody."""
    entered, seen = asyncio.Event(), list[int]()

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        return "seen"

    async def hang(moment: Any) -> None:
        seen.append(moment.attempt)
        if len(seen) == 2:
            entered.set()
            await asyncio.Event().wait()

    model = counting([call("look")], usage=Usage(1000, 500), cost=lambda usage: 1.0)
    agent = Agent(name="clerk", model=model, tools=[look], hooks=[Hooks(before_model=hang)])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await soon(entered.wait())
        await session.cancel()
        result = await soon(run)
        assert (result.usage.total, result.cost_usd) == (1500, 1.0)


async def test_an_answer_is_paid_for_although_middleware_breaks_on_it(memory: Store) -> None:
    async def breaks(action: Any, perform: Any) -> Any:
        event = await perform(action)
        if isinstance(event, ModelResponded):
            raise ValueError("out of order")
        return event

    model = counting("words", usage=Usage(1000, 500), cost=lambda usage: 1.0)
    agent = Agent(name="clerk", model=model, middleware=[breaks])
    async with Runtime(memory, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent)).run("go"))
        assert result.reason == "failed"
        assert (result.usage.total, result.cost_usd) == (1500 * len(model.requests), 1.0 * len(model.requests))


@pytest.mark.parametrize("side", ["input", "output"])
async def test_a_guardrail_that_will_not_end_refuses(memory: Store, side: str) -> None:
    async def stubborn(moment: Any) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    clock, model = ManualClock(), ScriptedModel(["The secret."], usage=Usage(40, 10))
    agent = Agent(name="clerk", model=model, guardrails=[Guardrail(**{side: stubborn}, timeout=7)])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("My words.")
        await turned(clock, lambda: bool(session.state.ended), step=2)
        result = await run
        assert result.reason == "refusal"
        assert "longer than 7 s" in result.detail
        assert result.usage.total == 50 * len(model.requests) == (50 if side == "output" else 0)
        assert len(await events(session, Noted, kind="hook_failed")) == 1
        assert "secret" not in await written(runtime)
