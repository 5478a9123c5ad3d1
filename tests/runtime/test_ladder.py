"""What callers may say about models: a function that sees errors, a model for the session, settings for a turn."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Agent, Limits, ModelError, ModelSettings, RunIncomplete, Runtime, tool
from perdure.core.actions import CallModel
from perdure.core.messages import Text, Thinking
from perdure.events import ModelResponded, Noted, RunStarted, SettingsChanged
from perdure.ports import ModelTraits, Store
from perdure.runtime.ladder import ATTEMPTS_OF_ALL
from perdure.runtime.recourse import ModelTrouble
from perdure.testing import ManualClock, Reply, ScriptedModel, call
from tests.runtime.scenes import events, soon, turned


@tool(effect="read")
async def look(what: str) -> str:
    """Look."""
    return f"saw {what}"


# Errors


async def test_an_error_of_the_provider_goes_to_the_fallback_at_once_one_of_the_request_never(memory: Store) -> None:
    for kind, reason, asked in (
        ("auth", "completed", 1),
        ("not_found", "completed", 1),
        ("quota_exhausted", "completed", 1),
        ("invalid_request", "failed", 0),
        ("context_too_long", "failed", 0),
        ("content_filtered", "failed", 0),
        ("truncated", "failed", 0),
    ):
        first = ScriptedModel(lambda _, kind=kind: ModelError("no", kind=kind), name="first")  # type: ignore[misc]
        second = ScriptedModel(lambda _: "Second.", name="second")
        agent = Agent(name=f"clerk-{kind}", model=[first, second])
        async with Runtime(memory, agents=[agent]) as runtime:
            result = await soon((await runtime.open(agent)).run("go"))
            assert (result.reason, len(first.requests), len(second.requests)) == (reason, 1, asked), kind


async def test_a_fallback_is_tried_once(memory: Store) -> None:
    clock = ManualClock()
    models = [ScriptedModel(lambda _: ModelError("down", kind="server"), name=f"m{number}") for number in range(3)]
    agent = Agent(name="clerk", model=models)
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await turned(clock, lambda: len(session.state.ended) == 1)
        assert (await run).detail == "server: down"
        assert [len(model.requests) for model in models] == [4, 1, 1]
        switches = [note.data["model"] for note in await events(session, Noted, kind="model_switch")]
        assert switches == ["m1", "m2"]


@pytest.mark.parametrize("per_run", [True, False])
async def test_a_function_decides_what_follows_an_error(memory: Store, per_run: bool) -> None:
    clock = ManualClock()
    seen: list[ModelTrouble] = []

    async def decide(trouble: ModelTrouble) -> str:
        seen.append(trouble)
        return "retry" if trouble.attempt < 3 else "switch"

    first = ScriptedModel(lambda _: ModelError("bad", kind="invalid_request"), name="first")
    second = ScriptedModel(lambda _: "Second.", name="second")
    agent = Agent(name="clerk", model=[first, second], on_model_error=None if per_run else decide)
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go", on_model_error=decide if per_run else None)
        await turned(clock, lambda: len(session.state.ended) == 1)
        assert (await run).output == "Second."
        assert len(first.requests) == 3
        assert [(t.model, t.attempt, t.step, t.fallbacks) for t in seen] == [
            ("first", number, "abort", ("second",)) for number in (1, 2, 3)
        ]
        assert seen[0].error.kind == "invalid_request"


async def test_continue_takes_what_has_come(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([Reply("Half an answer", chunk=5, cut_after=2)]))
    async with Runtime(memory, agents=[agent], clock=ManualClock()) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go", on_model_error=lambda trouble: "continue"))
        assert result.output == "Half an an"
        (note,) = await events(session, Noted)
        assert note.kind == "model_recovery"


async def test_abort_ends_the_run(memory: Store) -> None:
    model = ScriptedModel(lambda _: ModelError("down", kind="server"))
    agent = Agent(name="clerk", model=[model, ScriptedModel(lambda _: "Never.", name="second")])
    async with Runtime(memory, agents=[agent], clock=ManualClock()) as runtime:
        result = await soon((await runtime.open(agent)).run("go", on_model_error=lambda trouble: "abort"))
        assert (result.reason, len(model.requests)) == ("failed", 1)


async def test_a_function_may_name_the_model_to_switch_to(memory: Store) -> None:
    spare = ScriptedModel(["Spare."], name="spare")
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: ModelError("no", kind="auth")))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go", on_model_error=lambda trouble: spare))
        assert result.output == "Spare."
        (responded,) = await events(session, ModelResponded)
        assert responded.model == "spare"


@pytest.mark.parametrize("wrong", [lambda trouble: "dunno", lambda trouble: 1 / 0], ids=["no step", "raises"])
async def test_a_function_that_fails_leaves_the_ladder_as_it_is(memory: Store, wrong: Any) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: ModelError("no", kind="auth")))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go", on_model_error=wrong))
        assert result.detail == "auth: no"
        (note, _) = await events(session, Noted)
        assert note.kind == "hook_failed"


async def test_whoever_says_retry_is_bounded_all_the_same(memory: Store) -> None:
    clock = ManualClock()
    model = ScriptedModel(lambda _: ModelError("down", kind="invalid_request"))
    agent = Agent(name="clerk", model=model)
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go", on_model_error=lambda trouble: "retry")
        await turned(clock, lambda: len(session.state.ended) == 1, 5)
        assert (await run).reason == "failed"
        assert len(model.requests) == ATTEMPTS_OF_ALL


async def test_functions_of_runs_that_have_ended_are_dropped(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Yes."))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        for _ in range(5):
            await soon(session.run("go", on_model_error=lambda trouble: None))
        assert len(session._log.recourses) == 1  # pyright: ignore[reportPrivateUsage]


async def test_a_fallback_without_a_price_is_told_too(memory: Store) -> None:
    first = ScriptedModel(lambda _: ModelError("no", kind="auth"), name="first")
    second = ScriptedModel(lambda _: "Second.", name="second", cost=lambda _: None)
    agent = Agent(name="clerk", model=[first, second], limits=Limits(cost_usd=1.0))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert result.cost_usd is None
        (note,) = await events(session, Noted, kind="price_unknown")
        assert note.data == {"model": "second", "limit": 1.0}


# The session's model


async def test_set_model_keeps_the_history_and_lasts(store: str | Store) -> None:
    own = ScriptedModel([Reply(Thinking("hm", "sig"), "Own.")], name="own", traits=ModelTraits(provider="a"))
    other = ScriptedModel(lambda request: f"Other, after {len(request.messages)}.", name="other")
    agent = Agent(name="clerk", model=own)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("one"))).output == "Own."
        await session.set_model(other)
        assert (await soon(session.run("two"))).output == "Other, after 3."
        assert (await soon(session.run("three", model=own))).reason == "failed", "a run's own model comes first"
        assert (await soon(session.run("four"))).output == "Other, after 6."
        assert [started.model for started in await events(session, RunStarted)] == ["own", "other", "own", "other"]
        first = (await session.history())[1]
        assert (first.parts[0], first.provider) == (Thinking("hm", "sig"), "a"), "whose thought it is stays known"
        await session.set_model(None)
        await session.set_model(None)
        assert len(await events(session, SettingsChanged)) == 2, "what changes nothing is no fact"
        assert session.state.model == ""


async def test_set_model_reaches_an_open_run_at_its_next_turn(memory: Store) -> None:
    other = ScriptedModel(lambda _: "Other.", name="other")

    @tool(effect="read")
    async def change() -> str:
        """Change the model."""
        await session.set_model(other, settings=ModelSettings(temperature=0.1))
        return "changed"

    agent = Agent(name="clerk", model=ScriptedModel([call("change")], name="own"), tools=[change])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "Other."
    assert other.requests[0].settings.temperature == 0.1
    assert len(other.requests[0].messages) == 3


# Settings: agent < session < run < turn


async def test_settings_of_a_turn_beat_those_of_the_run_and_the_agent(memory: Store) -> None:
    async def hurry(action: Any, perform: Any) -> Any:
        if isinstance(action, CallModel) and action.turn == 2:
            action = replace(action, settings=ModelSettings(temperature=0.9, tool_choice="none"))
        return await perform(action)

    model = ScriptedModel([call("look", what="a"), "Done."])
    agent = Agent(
        name="clerk",
        model=model,
        tools=[look],
        settings=ModelSettings(temperature=0.1, seed=1, top_p=0.5),
        middleware=[hurry],
    )
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go", settings=ModelSettings(seed=2)))
    assert [request.settings for request in model.requests] == [
        ModelSettings(temperature=0.1, seed=2, top_p=0.5),
        ModelSettings(temperature=0.9, seed=2, top_p=0.5, tool_choice="none"),
    ]


async def test_middleware_may_choose_another_model_for_a_turn(memory: Store) -> None:
    cheap = ScriptedModel(["Cheap."], name="cheap")

    async def route(action: Any, perform: Any) -> Any:
        return await perform(replace(action, model="cheap") if isinstance(action, CallModel) else action)

    agent = Agent(name="clerk", model=ScriptedModel([]), middleware=[route])
    async with Runtime(memory, agents=[agent]) as runtime:
        runtime._host.world.models["cheap"] = cheap  # pyright: ignore[reportPrivateUsage]
        assert (await soon((await runtime.open(agent)).run("go"))).output == "Cheap."


# Structured output


async def test_an_output_that_never_fits_is_a_failure_with_the_last_value(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["one", "two", '"three"']), output=int)
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert (result.reason, result.last_value) == ("failed", '"three"')
        assert result.detail.startswith("output: ")
        with pytest.raises(RunIncomplete) as raised:
            _ = result.output
        assert raised.value.result is result
        told = [part.text for message in await session.history() for part in message.parts if isinstance(part, Text)]
        assert sum("does not fit" in text for text in told) == 3


async def test_what_was_odd_about_an_answer_is_noted(memory: Store) -> None:
    from perdure.ports import ModelResponse

    agent = Agent(name="clerk", model=ScriptedModel([ModelResponse((Text("Hi."),), notes=("data after the end",))]))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        (note,) = await events(session, Noted)
        assert note.data["notes"] == ["data after the end"]


async def test_who_asks_for_no_wait_is_not_asked_four_times_in_a_moment() -> None:
    from perdure.runtime import ladder

    waits = [ladder._wait_after(ModelError.rate_limited(retry_after=0), 3) for _ in range(200)]  # pyright: ignore[reportPrivateUsage]
    assert max(wait or 0.0 for wait in waits) > 0.5, "back-off, with full jitter"


async def test_what_is_no_model_and_no_step_leaves_the_ladder_as_it_is(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: ModelError("no", kind="auth")))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go", on_model_error=lambda trouble: 5))  # type: ignore[arg-type,return-value]
        assert result.detail == "auth: no"
        assert len(await events(session, Noted, kind="hook_failed")) == 1


async def test_a_price_that_fails_gives_the_probe_back_all_the_same(memory: Store) -> None:
    clock = ManualClock()

    def divide(_: object) -> float:
        return 1 / 0

    model = ScriptedModel([Reply("half", cut_after=1), "Done."], cost=divide)
    agent = Agent(name="clerk", model=model)
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await turned(clock, lambda: len(session.state.ended) == 1)
        assert ((await run).output, (await run).cost_usd) == ("Done.", None)
