"""Model errors: tried again where that helps, in time that the clock gives, and never in secret."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, ModelError, Record, Runtime, Session, TextDelta
from perdure.core.deltas import AttemptDiscarded
from perdure.core.errors import RETRYABLE_KINDS
from perdure.events import ModelCalled, ModelFailed, ModelResponded, Noted
from perdure.ports import Store
from perdure.testing import ManualClock, Reply, ScriptedModel
from tests.runtime.scenes import collect, events, seen, soon, turned


def clerk(*answers: Any, **options: Any) -> Agent[str]:
    return Agent(name="clerk", model=ScriptedModel(list(answers), **options))


async def finished(clock: ManualClock, session: Session[Any], step: float = 1.0) -> Any:
    run = await session.start("go")
    await turned(clock, lambda: len(session.state.ended) == 1, step)
    return await run


async def test_a_model_is_asked_again_after_the_time_it_named(store: str | Store) -> None:
    clock = ManualClock()
    model = ScriptedModel([ModelError.rate_limited(retry_after=30), "Done."])
    agent = Agent(name="clerk", model=model)
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        note = await seen(session, Noted)
        assert note.kind == "model_attempt"
        assert 30 <= note.data.pop("wait") <= 31
        assert note.data == {
            "turn": 1,
            "model": "scripted",
            "attempt": 1,
            "kind": "rate_limited",
            "detail": "rate limited",
        }
        assert len(model.requests) == 1
        await clock.advance(29)
        assert len(model.requests) == 1, "not before its time"
        await turned(clock, lambda: len(session.state.ended) == 1)
        assert (await run).output == "Done."
        assert len(model.requests) == 2
        assert len(await events(session, ModelCalled)) == 1, "attempts are one call to the rules"


@pytest.mark.parametrize("kind", sorted(RETRYABLE_KINDS))
async def test_errors_that_may_pass_are_tried_again(memory: Store, kind: Any) -> None:
    clock = ManualClock()
    agent = clerk(ModelError("hm", kind=kind), ModelError("hm", kind=kind), "Done.")
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        assert (await finished(clock, session)).output == "Done."
        assert [note.data["attempt"] for note in await events(session, Noted)] == [1, 2]


@pytest.mark.parametrize("kind", ["invalid_request", "auth", "not_found", "context_too_long", "content_filtered"])
async def test_errors_that_will_not_pass_end_the_run_at_once(memory: Store, kind: Any) -> None:
    model = ScriptedModel([ModelError("no", kind=kind), "Never."])
    agent = Agent(name="clerk", model=model)
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert (result.reason, result.detail) == ("failed", f"{kind}: no")
        assert [failed.kind for failed in await events(session, ModelFailed)] == [kind]
    assert len(model.requests) == 1


async def test_attempts_are_bounded(memory: Store) -> None:
    clock = ManualClock()

    def fail(_: object) -> ModelError:
        return ModelError("down", kind="server")

    model = ScriptedModel(fail)
    agent = Agent(name="clerk", model=model)
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        result = await finished(clock, session)
        assert (result.reason, result.detail) == ("failed", "server: down")
        waits = [note.data["wait"] for note in await events(session, Noted)]
        assert [wait is None for wait in waits] == [False, False, False, True], "every attempt is in the log"
    assert len(model.requests) == 4


async def test_a_wait_that_is_too_long_is_not_waited_for(memory: Store) -> None:
    agent = clerk(ModelError.rate_limited(retry_after=3600), "Never.")
    async with Runtime(memory, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent)).run("go"))
        assert result.reason == "failed"


async def test_what_was_shown_of_a_failed_attempt_is_discarded(store: str | Store) -> None:
    clock = ManualClock()
    agent = clerk(Reply("It is fine.", chunk=3, cut_after=2), Reply("It was fine.", chunk=6))
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        items: list[Any] = []
        reading = collect(run.stream(), items)
        await turned(clock, lambda: reading.done())
        shown = [
            item.text if isinstance(item, TextDelta) else type(item).__name__
            for item in items
            if not isinstance(item, Record)
        ]
        assert shown == ["It ", "is ", "AttemptDiscarded", "It was", " fine."]
        (discarded,) = [item for item in items if isinstance(item, AttemptDiscarded)]
        assert (discarded.turn, discarded.attempt) == (1, 1)
        assert "cut" in discarded.reason
        assert (await run).output == "It was fine."


# Fallbacks


async def test_a_fallback_answers_when_the_first_model_will_not(store: str | Store) -> None:
    clock = ManualClock()

    def down(_: object) -> Reply:
        return Reply("half an ans", cut_after=1)

    first = ScriptedModel(down, name="first", cost=lambda _: 0.25)
    second = ScriptedModel(["From the second."], name="second", cost=lambda _: 0.5)
    agent = Agent(name="clerk", model=[first, second])
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        items: list[Any] = []
        reading = collect(run.stream(), items)
        await turned(clock, lambda: reading.done())
        result = await run
        assert (result.output, result.cost_usd) == ("From the second.", 1.5), "what had begun to answer is paid for"
        (responded,) = await events(session, ModelResponded)
        assert responded.model == "second"
        assert responded.wasted.estimated
        assert result.usage.total == responded.usage.total + responded.wasted.total
        discarded = [item for item in items if isinstance(item, AttemptDiscarded)]
        assert len(discarded) == len(first.requests) == 4, "every attempt that showed something is discarded"
    assert [request.model for request in second.requests] == ["second"]


async def test_when_all_models_fail_the_run_fails(memory: Store) -> None:
    clock = ManualClock()
    first = ScriptedModel(lambda _: ModelError("one is down", kind="server"), name="first")
    second = ScriptedModel(lambda _: ModelError("two is down", kind="overloaded"), name="second")
    agent = Agent(name="clerk", model=[first, second])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        result = await finished(clock, session)
        assert (result.reason, result.detail) == ("failed", "overloaded: two is down")


async def test_the_first_model_is_asked_first_in_every_turn(memory: Store) -> None:
    clock = ManualClock()
    calls: list[str] = []

    def flaky(_: object) -> Any:
        calls.append("first")
        return ModelError("down", kind="server") if len(calls) <= 4 else "From the first."

    agent = Agent(
        name="clerk", model=[ScriptedModel(flaky, name="first"), ScriptedModel(lambda _: "B.", name="second")]
    )
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        assert (await finished(clock, session)).output == "B."
        assert (await soon(session.run("again"))).output == "From the first."


async def test_a_run_that_failed_can_go_on(store: str | Store) -> None:
    agent = clerk(ModelError("no key", kind="auth"), "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).reason == "failed"
        result = await soon(session.resume())
        assert (result.run, result.output) == (2, "Done.")


async def test_an_answer_without_a_count_is_estimated(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["a" * 400], usage=None))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("b" * 400))
        assert result.usage.estimated
        assert 150 < result.usage.total < 300
