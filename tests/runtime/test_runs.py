"""Runs: sending, awaiting, keys, overrides, and what a caller may look at."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from perdure import (
    Agent,
    Conflict,
    Document,
    Image,
    Limits,
    ModelSettings,
    NotFound,
    RunIncomplete,
    Runtime,
    ToolContext,
    UsageError,
    tool,
)
from perdure.core.messages import Media, Text, Usage, UserMessage
from perdure.events import InputAccepted, ModelResponded, RunEnded, RunStarted, SessionOpened
from perdure.ports import Store
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import events, kinds, said, seen, soon

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 16


@tool(effect="read")
async def look(what: str) -> str:
    """Look at something."""
    return f"{what} is fine"


def clerk(*answers: Any, **options: Any) -> Agent[str]:
    return Agent(name="clerk", model=ScriptedModel(list(answers)), tools=[look], **options)


async def test_a_run_gives_the_answer_and_what_it_cost(store: str | Store) -> None:
    model = ScriptedModel(
        [[call("look", what="the order")], "Done."], usage=Usage(10, 5), cost=lambda usage: usage.total / 1000
    )
    agent = Agent(name="clerk", instructions="You bill orders.", model=model, tools=[look])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="order-7")
        result = await session.run("Bill order 7")
        assert (result.output, result.reason, result.detail) == ("Done.", "completed", "")
        assert (result.turns, result.usage, result.pending, result.run) == (2, Usage(20, 10), (), 1)
        assert result.cost_usd == pytest.approx(0.03)
        assert await session.usage() == Usage(20, 10)
        assert session.state.cost_usd == pytest.approx(0.03)
        assert await kinds(session) == [
            "SessionOpened",
            "InputAccepted",
            "AgentPinned",
            "RunStarted",
            "ModelCalled",
            "ModelResponded",
            "CallChecked",
            "CallStarted",
            "CallEnded",
            "ModelCalled",
            "ModelResponded",
            "RunEnded",
        ]
    first = model.requests[0]
    assert (first.instructions, [spec.name for spec in first.tools]) == ("You bill orders.", ["look"])
    assert first.messages[0] == UserMessage((Text("Bill order 7"),))


async def test_open_creates_a_session_or_picks_it_up(store: str | Store) -> None:
    agent = clerk("One.", "Two.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="order-7", metadata={"order": "7"})
        await session.run("first")
        again = await runtime.open(agent, id="order-7")
        assert (again.uid, again.id, again.agent) == (session.uid, "order-7", "clerk")
    async with Runtime(store, agents=[agent]) as runtime:
        picked_up = await runtime.open(agent, id="order-7")
        assert (await picked_up.run("second")).output == "Two."
        assert await said(picked_up) == ["first", "second"]
        assert (await runtime.session("order-7")).uid == session.uid
        assert len(await events(picked_up, SessionOpened)) == 1


async def test_sessions_without_an_id_get_their_own(memory: Store) -> None:
    agent = clerk("One.")
    async with Runtime(memory, agents=[agent]) as runtime:
        first, second = await runtime.open(agent), await runtime.open(agent)
        assert first.id != second.id
        assert (await runtime.session(first.id)).uid == first.uid


async def test_many_openers_of_one_id_share_one_session(store: str | Store) -> None:
    agent = clerk("One.")
    async with Runtime(store, agents=[agent]) as runtime:
        opened = await asyncio.gather(*(runtime.open(agent, id="x") for _ in range(10)))
        assert len({session.uid for session in opened}) == 1


async def test_a_session_belongs_to_its_agent(memory: Store) -> None:
    agent, other = clerk("One."), Agent(name="other", model=ScriptedModel(["Two."]))
    async with Runtime(memory, agents=[agent, other]) as runtime:
        await runtime.open(agent, id="x")
        with pytest.raises(Conflict, match="belongs to the agent 'clerk'"):
            await runtime.open(other, id="x")


async def test_output_of_an_incomplete_run_raises_with_the_result(memory: Store) -> None:
    agent = clerk([call("look", what="x")], limits=Limits(turns=1))
    async with Runtime(memory, agents=[agent]) as runtime:
        result = await (await runtime.open(agent)).run("go")
        with pytest.raises(RunIncomplete, match="is limit: turns") as raised:
            _ = result.output
        assert raised.value.result is result


async def test_start_needs_no_consumer(store: str | Store) -> None:
    agent = clerk("Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        assert run.input == 1
        await seen(session, RunEnded, reason="completed")
        assert run.run == 1
        assert (await run).output == "Done."
        assert (await run).output == "Done.", "a run can be awaited again"


# Keys


async def test_the_same_key_is_the_same_run(store: str | Store) -> None:
    agent = clerk("Billed.", "Other.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        first = await session.run("Bill", key="bill")
        again = await session.run("Bill", key="bill")
        assert (first.run, again.run, again.output) == (1, 1, "Billed.")
        assert again.usage == first.usage
        other = await session.run("Bill", key="bill-2")
        assert (other.run, other.output) == (2, "Other.")
        assert len(await events(session, InputAccepted)) == 2


async def test_a_key_is_known_after_the_first_runtime_is_gone(store: str | Store) -> None:
    model = ScriptedModel(["Billed."])
    agent = Agent(name="clerk", model=model)
    for _ in range(2):
        async with Runtime(store, agents=[agent]) as runtime:
            session = await runtime.open(agent, id="x")
            assert (await session.run("Bill", key="bill")).output == "Billed."
    assert len(model.requests) == 1


async def test_the_same_key_attaches_to_a_run_under_way(store: str | Store) -> None:
    release = asyncio.Event()

    async def answer(_: object) -> str:
        await release.wait()
        return "Billed."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        first = await session.start("Bill", key="bill")
        second = await session.start("Bill", key="bill")
        assert first.input == second.input
        release.set()
        results = await soon(asyncio.gather(first, second))
        assert [result.output for result in results] == ["Billed.", "Billed."]
        assert len(await events(session, ModelResponded)) == 1


async def test_the_same_key_with_another_input_is_a_conflict(store: str | Store) -> None:
    agent = clerk("Billed.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("Bill 7", key="bill")
        before = len(await session.records())
        with pytest.raises(Conflict, match="'bill' was used for another input"):
            await session.run("Bill 8", key="bill")
        assert len(await session.records()) == before


async def test_many_senders_of_one_key_make_one_input(store: str | Store) -> None:
    model = ScriptedModel(["Billed."])
    agent = Agent(name="clerk", model=model)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        results = await asyncio.gather(*(session.run("Bill", key="bill") for _ in range(8)))
        assert {result.output for result in results} == {"Billed."}
        assert len(await events(session, InputAccepted)) == 1


# What a run may change for itself


async def test_overrides_hold_for_one_run(store: str | Store) -> None:
    own = ScriptedModel([[call("look", what="a")], "Own."], name="own")
    other = ScriptedModel(["Other."], name="other")
    agent = Agent(name="clerk", model=own, tools=[look], settings=ModelSettings(temperature=0.5))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        limited = await session.run("one", limits=Limits(turns=1))
        assert (limited.reason, limited.detail) == ("limit", "turns")
        assert (await session.run("two", settings=ModelSettings(seed=7))).output == "Own."
        assert (own.requests[0].settings, own.requests[1].settings) == (
            ModelSettings(temperature=0.5),
            ModelSettings(temperature=0.5, seed=7),
        )
        mixed = ScriptedModel(lambda _: "Other.", name="other")
        assert (await session.run("three", model=mixed)).output == "Other."
        assert not other.requests
        started = await events(session, RunStarted)
        assert [event.model for event in started] == ["own", "own", "other"]
        assert [event.limits.turns for event in started] == [1, 50, 50]


async def test_a_model_of_the_same_name_overrides_too_and_for_one_run_only(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Own."))
    other, third = ScriptedModel(lambda _: "Other."), ScriptedModel(lambda _: "Third.")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await session.run("one", model=other)).output == "Other."
        assert (await session.run("two")).output == "Own."
        assert (await session.run("three", model=third)).output == "Third."
        assert (await session.run("four", model=other)).output == "Other."
        assert {request.model for request in (*other.requests, *third.requests)} == {"scripted"}


async def test_runs_that_wait_keep_their_own_models_apart(memory: Store) -> None:
    release = asyncio.Event()

    async def answer(_: object) -> str:
        await release.wait()
        return "Own."

    agent = Agent(name="clerk", model=ScriptedModel(answer, name="own"))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await session.start("one")
        models = [ScriptedModel(lambda _, text=text: text, name="other") for text in ("A.", "B.")]
        runs = [await session.start("more", model=model) for model in models]
        release.set()
        assert [(await run).output for run in runs] == ["A.", "B."]


async def test_models_that_were_passed_are_not_kept_for_ever(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Own."))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        passed: list[weakref.ref[ScriptedModel]] = []
        for number in range(1100):
            model = ScriptedModel(lambda _, number=number: f"Other {number}.")
            passed.append(weakref.ref(model))
            assert (await session.run("go", model=model)).output == f"Other {number}."
        gc.collect()
        assert sum(model() is not None for model in passed) <= 1000


async def test_a_model_named_by_a_string_is_found_again_in_the_next_process(store: str | Store, tmp_path: Any) -> None:
    script = tmp_path / "script.json"
    script.write_text('["From the file."]')
    agent = clerk("Own.")
    async with Runtime(store, agents=[agent], engine=None) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k", model=f"scripted:{script}")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "From the file."


async def test_a_model_that_is_gone_in_the_next_process_fails_the_run(store: str | Store) -> None:
    agent = clerk("Own.")
    async with Runtime(store, agents=[agent], engine=None) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k", model=ScriptedModel(["Other."], name="other"))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go", key="k"))
        assert result.reason == "failed"
        assert "Nobody provides the model 'other'" in result.detail


async def test_the_runtimes_model_replaces_every_agents(memory: Store) -> None:
    agent = clerk("Own.")
    async with Runtime(memory, agents=[agent], model=ScriptedModel(["Overridden."])) as runtime:
        assert (await (await runtime.open(agent)).run("go")).output == "Overridden."


async def test_the_runtimes_model_spares_agents_from_naming_one(memory: Store) -> None:
    agent = Agent(name="clerk")
    async with Runtime(memory, agents=[agent], model=ScriptedModel(["Yes."])) as runtime:
        assert (await (await runtime.open(agent)).run("go")).output == "Yes."


async def test_a_runtimes_script_has_to_be_used_up(memory: Store) -> None:
    agent = Agent(name="clerk")
    with pytest.raises(AssertionError, match="1 answer left of 2"):
        async with Runtime(memory, agents=[agent], model=ScriptedModel(["One.", "Two."])) as runtime:
            await (await runtime.open(agent)).run("go")
    with pytest.raises(ZeroDivisionError):
        async with Runtime(memory, agents=[agent], model=ScriptedModel(["One."])):
            raise ZeroDivisionError


# What goes in


async def test_images_and_documents_are_artifacts(store: str | Store) -> None:
    model = ScriptedModel(["Nice."])
    agent = Agent(name="clerk", model=model)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run(["What is this?", Image(PNG, name="r.png"), Document(b"a,b", "text/csv", "t.csv")])
        (accepted,) = await events(session, InputAccepted)
        text, image, document = accepted.parts
        assert text == Text("What is this?")
        assert isinstance(image, Media)
        assert isinstance(document, Media)
        assert (image.kind, image.media_type, image.size, image.name) == ("image", "image/png", 24, "r.png")
        assert (document.kind, document.media_type, document.size) == ("document", "text/csv", 3)
        raw = runtime._host.world.store  # pyright: ignore[reportPrivateUsage] - no public view of artifacts yet
        assert await raw.load_artifact(session.uid, image.artifact) == PNG
        assert await raw.load_artifact(session.uid, document.artifact) == b"a,b"
    assert model.requests[0].messages[0] == UserMessage((text, image, document))


async def test_instructions_may_be_a_function_of_the_context(store: str | Store) -> None:
    async def instruct(ctx: ToolContext[dict[str, str], Any]) -> str:
        return f"{ctx.deps['tone']} {ctx.data} {ctx.session} {ctx.tenant} {ctx.run}"

    model = ScriptedModel(["One.", "Two."])
    agent = Agent(name="clerk", model=model, instructions=instruct)
    async with Runtime(store, agents=[agent], deps={"tone": "Be kind."}) as runtime:
        session = await runtime.open(agent, id="x", tenant="acme", data={"user": "u7"})
        await session.run("one")
        await session.run("two")
    assert [request.instructions for request in model.requests] == [
        "Be kind. {'user': 'u7'} x acme 1",
        "Be kind. {'user': 'u7'} x acme 2",
    ]


async def test_instructions_may_be_a_plain_function(memory: Store) -> None:
    model = ScriptedModel(["One."])
    agent = Agent(name="clerk", model=model, instructions=lambda ctx: f"Session {ctx.session}.")
    async with Runtime(memory, agents=[agent]) as runtime:
        await (await runtime.open(agent, id="x")).run("one")
    assert model.requests[0].instructions == "Session x."


# What comes out


async def test_the_log_is_read_in_pages(store: str | Store) -> None:
    agent = clerk("Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("go")
        everything = await session.records()
        assert await session.records(after=2, limit=3) == everything[2:5]
        assert session.state.seq == len(everything)
        assert {record.session for record in everything} == {session.uid}


async def test_history_is_what_the_model_reads(store: str | Store) -> None:
    agent = clerk([call("look", what="it")], "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("go")
        history = await session.history()
        assert [type(message).__name__ for message in history] == [
            "UserMessage",
            "AssistantMessage",
            "ToolMessage",
            "AssistantMessage",
        ]


async def test_a_deleted_session_is_gone(store: str | Store) -> None:
    agent = clerk("Done.", "Again.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("go")
        await session.delete()
        with pytest.raises(NotFound):
            await runtime.session("x")
        with pytest.raises(NotFound):
            await session.run("again")
        assert [row async for row in runtime.sessions()] == []
        anew = await runtime.open(agent, id="x")
        assert anew.uid != session.uid
        assert (await anew.run("go")).output == "Done."


async def test_cancelling_the_await_only_detaches(store: str | Store) -> None:
    release = asyncio.Event()

    async def answer(_: object) -> str:
        await release.wait()
        return "Done."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        waiting = asyncio.ensure_future(_await(run))
        await seen(session, RunStarted)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        release.set()
        assert (await soon(run)).output == "Done."


async def _await(run: Any) -> Any:
    return await run


async def test_a_runtime_serves_only_while_it_is_open(memory: Store) -> None:
    agent = clerk("Done.")
    runtime = Runtime(memory, agents=[agent])
    with pytest.raises(UsageError, match="not open"):
        await runtime.open(agent)
    async with runtime:
        with pytest.raises(UsageError, match="already open"):
            await runtime.__aenter__()
        session = await runtime.open(agent)
    with pytest.raises(UsageError, match="not open"):
        await runtime.open(agent)
    with pytest.raises(UsageError, match="not open"):
        await session.run("go")
    async with runtime:
        assert (await (await runtime.open(agent, id=session.id)).run("go")).output == "Done."
